//! Views of received bytes without a copy: the wire bytes in a chain of buffers, and the bytes of a ULPDU
//! between the markers.

use std::iter;
use std::ops::Range;

use dp::Mbuf;
use dp::mbuf::Segments;

use super::held::HeldBuf;
use super::ordered::{RangeSlots, StreamRange};
use crate::memory::{Runs, Stride};
use crate::mpa::{LENGTH_BYTES, marker};

/// Contiguous wire bytes, which are accessed by position: one slice, or a buffer and the adjacent buffers
/// after it.
#[derive(Clone, Copy)]
pub(super) struct Wire<'a> {
    start: u64,
    bytes: Bytes<'a>,
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Slice(&'a [u8]),
    Buf(&'a Mbuf),
    Held(&'a RangeSlots<HeldBuf>, u32),
}

impl<'a> Wire<'a> {
    /// Returns the view of a slice whose first byte has the position `start`.
    pub(super) const fn slice(start: u64, bytes: &'a [u8]) -> Self {
        Self { start, bytes: Bytes::Slice(bytes) }
    }

    /// Returns the view of a buffer whose first byte has the position `start`.
    pub(super) const fn buf(start: u64, buf: &'a Mbuf) -> Self {
        Self { start, bytes: Bytes::Buf(buf) }
    }

    /// Returns the view of the buffer in slot `first` and of all buffers that follow it without a hole.
    /// Returns `None` if slot `first` is free.
    pub(super) fn held(slots: &'a RangeSlots<HeldBuf>, first: u32) -> Option<Self> {
        Some(Self { start: slots.at(first)?.start, bytes: Bytes::Held(slots, first) })
    }

    /// Returns the available bytes in `from..to`, as slices with their positions.
    pub(super) fn slices(self, from: u64, to: u64) -> Slices<'a> {
        let rest = match self.bytes {
            Bytes::Slice(bytes) => Pieces::Slice(Some(bytes)),
            Bytes::Buf(buf) => Pieces::Bufs { segments: buf.segments(), behind: None },
            Bytes::Held(slots, first) => match slots.at(first) {
                Some(held) => {
                    let end = held.end();
                    Pieces::Bufs { segments: held.buf.segments(), behind: Some((slots, first, end)) }
                }
                None => Pieces::Slice(None),
            },
        };
        Slices { from, to, at: self.start, rest }
    }

    /// Returns the bytes in `from..to`, if they are all in the first segment of the first buffer, which is
    /// the usual case.
    pub(super) fn front(self, from: u64, to: u64) -> Option<&'a [u8]> {
        let bytes = match self.bytes {
            Bytes::Slice(bytes) => bytes,
            Bytes::Buf(buf) => buf.head(),
            Bytes::Held(slots, first) => slots.at(first)?.buf.head(),
        };
        let (from, to) = (from.checked_sub(self.start)?, to.checked_sub(self.start)?);
        bytes.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    /// Whether all bytes in `from..to` are available.
    pub(super) fn covers(self, from: u64, to: u64) -> bool {
        match self.bytes {
            Bytes::Slice(bytes) => self.start <= from && to <= self.start + bytes.len() as u64,
            Bytes::Buf(buf) => self.start <= from && to <= self.start + buf.len() as u64,
            Bytes::Held(slots, first) => {
                let behind = |(id, end): &(u32, u64)| Slices::follower(slots, *id, *end);
                let first = slots.at(first).map(|held| (first, held.end()));
                self.start <= from && iter::successors(first, behind).any(|(_, end)| to <= end)
            }
        }
    }

    /// Returns the `N` bytes at `position`, or `None` if they are not all available.
    pub(super) fn read<const N: usize>(self, position: u64) -> Option<[u8; N]> {
        if let Some(bytes) = self.front(position, position + N as u64) {
            return bytes.try_into().ok();
        }
        let mut out = [0; N];
        let mut filled = 0;
        for (_, bytes) in self.slices(position, position + N as u64) {
            out[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        }
        (filled == N).then_some(out)
    }

    /// Returns a view of the bytes `from..to`: a slice, if these bytes are in the first segment of the first
    /// buffer, and otherwise the unchanged view.
    pub(super) fn narrow(self, from: u64, to: u64) -> Self {
        match self.front(from, to) {
            Some(bytes) => Self { start: from, bytes: Bytes::Slice(bytes) },
            None => self,
        }
    }
}

/// The iterator of [`Wire::slices`].
pub(super) struct Slices<'a> {
    from: u64,
    to: u64,
    /// Position of the first byte in `rest`.
    at: u64,
    rest: Pieces<'a>,
}

enum Pieces<'a> {
    Slice(Option<&'a [u8]>),
    /// The segments of a buffer. For a held buffer, also the set of slots, the buffer's slot, and the
    /// position after the buffer.
    Bufs {
        segments: Segments<'a>,
        behind: Option<(&'a RangeSlots<HeldBuf>, u32, u64)>,
    },
}

impl<'a> Slices<'a> {
    /// Returns the slot after `id` and the position after the buffer in that slot, if the buffer begins at
    /// `end`.
    fn follower(slots: &RangeSlots<HeldBuf>, id: u32, end: u64) -> Option<(u32, u64)> {
        let next = slots.next(id)?;
        slots.at(next).filter(|held| held.start == end).map(|held| (next, held.end()))
    }

    /// Returns the next contiguous piece of memory, or `None` after the last piece.
    fn piece(&mut self) -> Option<&'a [u8]> {
        match &mut self.rest {
            Pieces::Slice(bytes) => bytes.take(),
            Pieces::Bufs { segments, behind } => loop {
                if let Some(bytes) = segments.next() {
                    return Some(bytes);
                }
                let (slots, id, end) = (*behind)?;
                let (next, end) = Self::follower(slots, id, end)?;
                *segments = slots.at(next)?.buf.segments();
                *behind = Some((slots, next, end));
            },
        }
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.to {
            let bytes = self.piece()?;
            let (start, end) = (self.at, self.at + bytes.len() as u64);
            self.at = end;
            let (from, to) = (self.from.clamp(start, end), self.to.clamp(start, end));
            if from < to {
                return Some((from, &bytes[(from - start) as usize..(to - start) as usize]));
            }
        }
        None
    }
}

/// A view of a ULPDU in received buffers. If CRCs are in use, the CRC of the ULPDU's FPDU has been verified.
///
/// RFC 5044 section 4.3 (MPA-076): markers, length, pad and CRC are not part of a ULPDU.
#[derive(Clone, Copy)]
pub struct Ulpdu<'a> {
    length_at: u64,
    bytes: UlpduBytes<'a>,
}

/// Where the bytes of a ULPDU are.
#[derive(Clone, Copy)]
enum UlpduBytes<'a> {
    /// The bytes are in one run, which is the usual case.
    Whole(&'a [u8]),
    /// The bytes are in several runs, which buffers or markers separate.
    Cut { wire: Wire<'a>, len: usize, markers: bool },
    /// `len` bytes at `at` of a frame with borrowed memory, which other processes may write.
    Borrowed { frame: &'a Mbuf, at: usize, len: usize },
}

impl<'a> Ulpdu<'a> {
    #[inline]
    pub(super) fn new(wire: Wire<'a>, length_at: u64, len: usize, markers: bool) -> Self {
        let start = length_at + LENGTH_BYTES as u64;
        let end = start + len as u64;
        let is_cut = markers && marker::count(start, end) > 0;
        let bytes = match wire.front(start, end) {
            Some(bytes) if !is_cut => UlpduBytes::Whole(bytes),
            _ => UlpduBytes::Cut { wire, len, markers },
        };
        Self { length_at, bytes }
    }

    /// Returns the ULPDU that has the `len` bytes at `at` of a frame with borrowed memory. The caller checks
    /// that the frame has these bytes.
    #[inline]
    pub(crate) const fn borrowed(length_at: u64, frame: &'a Mbuf, at: usize, len: usize) -> Self {
        Self { length_at, bytes: UlpduBytes::Borrowed { frame, at, len } }
    }

    /// Returns the ULPDU whose bytes are `bytes` and whose length field is at position `length_at`.
    #[inline]
    pub(crate) const fn in_one_run(length_at: u64, bytes: &'a [u8]) -> Self {
        Self { length_at, bytes: UlpduBytes::Whole(bytes) }
    }

    /// Number of bytes of the ULPDU: 0 to 65,535. A ULPDU is accepted even if it is longer than RFC 5044
    /// allows a sender ([`MAX_ULPDU`](crate::mpa::MAX_ULPDU)).
    pub const fn len(&self) -> usize {
        match self.bytes {
            UlpduBytes::Whole(bytes) => bytes.len(),
            UlpduBytes::Cut { len, .. } | UlpduBytes::Borrowed { len, .. } => len,
        }
    }

    /// Whether the ULPDU has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position of the ULPDU's length field. ULPDUs in the sender's order have increasing positions.
    pub const fn position(&self) -> u64 {
        self.length_at
    }

    /// Returns all bytes of the ULPDU if they are in one run, which is the usual case without markers, and
    /// otherwise `None`.
    pub const fn whole(&self) -> Option<&'a [u8]> {
        match self.bytes {
            UlpduBytes::Whole(bytes) => Some(bytes),
            UlpduBytes::Cut { .. } | UlpduBytes::Borrowed { .. } => None,
        }
    }

    /// Returns the frame that has the bytes of the ULPDU, and the offset of the first byte, if the bytes may
    /// be in borrowed memory. Such bytes can only be copied: other processes may write them.
    #[inline]
    pub fn in_frame(&self) -> Option<(&'a Mbuf, usize)> {
        match self.bytes {
            UlpduBytes::Borrowed { frame, at, .. } => Some((frame, at)),
            UlpduBytes::Whole(_) | UlpduBytes::Cut { .. } => None,
        }
    }

    /// Returns the first `len` bytes of the ULPDU, or all bytes if it has fewer. Returns `None` if these
    /// bytes are not in one run.
    pub fn front(&self, len: usize) -> Option<&'a [u8]> {
        match self.bytes {
            UlpduBytes::Whole(bytes) => Some(&bytes[..len.min(bytes.len())]),
            UlpduBytes::Cut { wire, len: all, markers } => {
                let start = self.length_at + LENGTH_BYTES as u64;
                let end = start + len.min(all) as u64;
                if markers && marker::count(start, end) > 0 { None } else { wire.front(start, end) }
            }
            UlpduBytes::Borrowed { .. } => None,
        }
    }

    /// Copies bytes from `offset` on to `out`, as many as fit. Returns the number of copied bytes.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        if let UlpduBytes::Borrowed { frame, at, len } = self.bytes {
            let bytes = len.saturating_sub(offset).min(out.len());
            return frame.copy_to(at + offset, &mut out[..bytes]);
        }
        let mut done = 0;
        for run in self.runs(offset, out.len()) {
            out[done..done + run.len()].copy_from_slice(run);
            done += run.len();
        }
        done
    }

    /// Passes at most `len` bytes from `offset` on to `take`, in order, in runs. No run is empty.
    ///
    /// # Errors
    /// The first error that `take` returns.
    pub(crate) fn try_each_run<E>(
        &self,
        offset: usize,
        len: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.in_frame().is_none() {
            return self.runs(offset, len).try_for_each(take);
        }
        let (mut offset, end) = (offset, self.len().min(offset.saturating_add(len)));
        let mut run = [0; 64];
        while offset < end {
            let bytes = (end - offset).min(run.len());
            let copied = self.copy_to(offset, &mut run[..bytes]);
            if copied == 0 {
                break;
            }
            take(&run[..copied])?;
            offset += copied;
        }
        Ok(())
    }

    /// Returns at most `len` bytes from `offset` on, in order, in runs that buffers and markers separate. No
    /// run is empty. There is no run if the bytes are [in a frame](Self::in_frame) with borrowed memory.
    pub fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.pieces(offset, len).flatten()
    }

    /// Returns at most `len` bytes from `offset` on, in order. Each item has the bytes in one segment of a
    /// buffer, with gaps where the segment has markers. There is no item if the bytes are
    /// [in a frame](Self::in_frame) with borrowed memory.
    pub fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = Runs<'a>> + use<'a> {
        let (wire, markers, Range { start, end }) = self.part(offset, len);
        wire.slices(start, end).map(move |(position, bytes)| runs(position, bytes, markers))
    }

    /// Returns the only item of [`pieces`](Self::pieces), if these bytes are in the first segment of the
    /// first buffer, which is the usual case. Otherwise returns `None`.
    #[inline]
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Option<Runs<'a>> {
        let (wire, markers, Range { start, end }) = self.part(offset, len);
        Some(runs(start, wire.front(start, end)?, markers))
    }

    /// Returns the wire bytes of the ULPDU, whether they contain markers, and the positions of at most `len`
    /// bytes from `offset` on.
    #[inline]
    fn part(&self, offset: usize, len: usize) -> (Wire<'a>, bool, Range<u64>) {
        let start = self.length_at + LENGTH_BYTES as u64;
        let (wire, all, markers) = match self.bytes {
            UlpduBytes::Whole(bytes) => (Wire::slice(start, bytes), bytes.len(), false),
            UlpduBytes::Cut { wire, len, markers } => (wire, len, markers),
            UlpduBytes::Borrowed { .. } => (Wire::slice(start, &[]), 0, false),
        };
        let offset = offset.min(all);
        let len = len.min(all - offset);
        let from = marker::nth_content(self.length_at, (LENGTH_BYTES + offset) as u64, markers);
        let to = match len {
            0 => from,
            len => marker::end_of_content(from, len as u64, markers),
        };
        (wire, markers, from..to)
    }
}

/// Returns the runs between the markers in `bytes`. The first byte is at `position`.
#[inline]
fn runs(position: u64, bytes: &[u8], markers: bool) -> Runs<'_> {
    if !markers {
        return Stride::NONE.runs(bytes);
    }
    let into = (position % marker::INTERVAL) as usize;
    // The slice may begin inside a marker.
    let bytes = &bytes[Stride::GAP.saturating_sub(into).min(bytes.len())..];
    Stride::new(Stride::PERIOD - into.max(Stride::GAP)).runs(bytes)
}

impl std::fmt::Debug for Ulpdu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ulpdu")
            .field("position", &self.length_at)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
