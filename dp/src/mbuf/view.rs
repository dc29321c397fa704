//! The interface to the segments of a chain, whatever backend and storage they have.

use std::marker::PhantomData;

/// One segment of a chain, of either backend.
pub(crate) trait View {
    /// Number of data bytes.
    fn len(&self) -> usize;

    /// Whether the data are in external memory.
    fn is_external(&self) -> bool;

    /// The address of the first byte. While the chain exists, raw copies may read the bytes. Bytes that are
    /// not in external memory may also be read through a slice while nobody writes to the chain.
    fn start(&self) -> *const u8;

    /// Copies data from `offset` on to `out`, until the data end or `out` is full. Returns the number of
    /// copied bytes.
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize;
}

/// Bytes of one segment of a frame, which may be in [external memory](super::ExtBuf): raw copies may read the
/// bytes while the frame is borrowed, but other code may write them at any time.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    start: *const u8,
    bytes: usize,
    _frame: PhantomData<&'a [u8]>,
}

impl Part<'_> {
    /// The address of the first byte. While the frame is borrowed, raw copies may read [`len`](Self::len)
    /// bytes at this address.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

/// Calls `take` with the parts of at most `len` bytes from `offset` on, in order. No part is empty.
#[inline]
pub(super) fn try_each_part<'a, V: View + 'a, E>(
    views: impl Iterator<Item = V>,
    (mut skip, mut len): (usize, usize),
    mut take: impl FnMut(Part<'a>) -> Result<(), E>,
) -> Result<(), E> {
    for view in views {
        let bytes = view.len().saturating_sub(skip).min(len);
        if bytes > 0 {
            // The address stays inside the segment, since the segment has more than `skip` bytes.
            take(Part { start: view.start().wrapping_add(skip), bytes, _frame: PhantomData })?;
            len -= bytes;
        }
        if len == 0 {
            break;
        }
        skip = skip.saturating_sub(view.len());
    }
    Ok(())
}

pub(super) fn copy_views<V: View>(views: impl Iterator<Item = V>, offset: usize, out: &mut [u8]) -> usize {
    let (mut skip, mut done) = (offset, 0);
    for view in views {
        if done == out.len() {
            break;
        }
        done += view.copy_to(skip, &mut out[done..]);
        skip = skip.saturating_sub(view.len());
    }
    done
}

/// Copies bytes of a slice to `out`, as [`View::copy_to`] copies data of a segment.
pub(super) fn copy_slice(bytes: &[u8], offset: usize, out: &mut [u8]) -> usize {
    let bytes = bytes.get(offset..).unwrap_or_default();
    let copied = bytes.len().min(out.len());
    out[..copied].copy_from_slice(&bytes[..copied]);
    copied
}
