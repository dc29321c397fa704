//! The interface to the segments of a chain, whatever backend and storage they have.

/// One segment of a chain, of either backend.
pub(crate) trait View {
    /// Number of data bytes.
    fn len(&self) -> usize;

    /// Whether the data are in external memory.
    fn is_external(&self) -> bool;

    /// The address of the first byte. While the chain exists, raw copies may read the bytes. Bytes that are
    /// not in external memory may also be read through a slice while nobody writes to the chain.
    #[cfg(target_os = "linux")]
    fn start(&self) -> *const u8;

    /// Copies data from `offset` on to `out`, until the data end or `out` is full. Returns the number of
    /// copied bytes.
    fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize;
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
