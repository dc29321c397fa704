//! Views of what was received, where it lies: wire bytes across buffers, and the ULPDU between the markers.

use std::iter;

use dp::Mbuf;
use dp::mbuf::Segments;

use super::held::HeldBuf;
use super::ordered::{Slots, Stretch};
use crate::memory::{Runs, Stride};
use crate::mpa::{LENGTH_BYTES, marker};

/// Contiguous wire bytes by position: one slice, or a buffer and those that follow it.
#[derive(Clone, Copy)]
pub(super) struct Wire<'a> {
    start: u64,
    bytes: Bytes<'a>,
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Slice(&'a [u8]),
    Buf(&'a Mbuf),
    Held(&'a Slots<HeldBuf>, u32),
}

impl<'a> Wire<'a> {
    /// Bytes that begin at `start`.
    pub(super) const fn slice(start: u64, bytes: &'a [u8]) -> Self {
        Self { start, bytes: Bytes::Slice(bytes) }
    }

    /// A buffer whose first byte is at `start`.
    pub(super) const fn buf(start: u64, buf: &'a Mbuf) -> Self {
        Self { start, bytes: Bytes::Buf(buf) }
    }

    /// The buffer in slot `first` and those that follow it without a hole.
    pub(super) fn held(slots: &'a Slots<HeldBuf>, first: u32) -> Option<Self> {
        Some(Self { start: slots.at(first)?.start, bytes: Bytes::Held(slots, first) })
    }

    /// The bytes at `from..to`, as far as they are there, in slices with their positions.
    pub(super) fn slices(self, from: u64, to: u64) -> Slices<'a> {
        let rest = match self.bytes {
            Bytes::Slice(bytes) => Rest::Slice(Some(bytes)),
            Bytes::Buf(buf) => Rest::Bufs { segments: buf.segments(), behind: None },
            Bytes::Held(slots, first) => match slots.at(first) {
                Some(held) => {
                    let end = held.end();
                    Rest::Bufs { segments: held.buf.segments(), behind: Some((slots, first, end)) }
                }
                None => Rest::Slice(None),
            },
        };
        Slices { from, to, at: self.start, rest }
    }

    /// The bytes at `from..to`, where they lie in the first buffer's first segment: the usual case.
    pub(super) fn front(self, from: u64, to: u64) -> Option<&'a [u8]> {
        let bytes = match self.bytes {
            Bytes::Slice(bytes) => bytes,
            Bytes::Buf(buf) => buf.head(),
            Bytes::Held(slots, first) => slots.at(first)?.buf.head(),
        };
        let (from, to) = (from.checked_sub(self.start)?, to.checked_sub(self.start)?);
        bytes.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    /// Whether all bytes at `from..to` are there.
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

    /// The bytes at `position`.
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

    /// `from..to` alone, as a slice if it lies in one.
    pub(super) fn narrow(self, from: u64, to: u64) -> Self {
        match self.front(from, to) {
            Some(bytes) => Self { start: from, bytes: Bytes::Slice(bytes) },
            None => self,
        }
    }
}

/// What [`Wire::slices`] gives.
pub(super) struct Slices<'a> {
    from: u64,
    to: u64,
    /// Position of what `rest` begins with.
    at: u64,
    rest: Rest<'a>,
}

enum Rest<'a> {
    Slice(Option<&'a [u8]>),
    /// Segments of a buffer; where it is held: the slots, its own, and the position behind it.
    Bufs {
        segments: Segments<'a>,
        behind: Option<(&'a Slots<HeldBuf>, u32, u64)>,
    },
}

impl<'a> Slices<'a> {
    /// The slot behind `id`, whose buffer ends at `end`, and its own end, if it follows without a hole.
    fn follower(slots: &Slots<HeldBuf>, id: u32, end: u64) -> Option<(u32, u64)> {
        let next = slots.next(id)?;
        slots.at(next).filter(|held| held.start == end).map(|held| (next, held.end()))
    }

    /// The next piece of memory, whole.
    fn piece(&mut self) -> Option<&'a [u8]> {
        match &mut self.rest {
            Rest::Slice(bytes) => bytes.take(),
            Rest::Bufs { segments, behind } => loop {
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

/// A view of a ULPDU where it lies in received buffers, checked by its CRC if CRCs are in use. Markers,
/// length, pad and CRC are not part of it.
#[derive(Clone, Copy)]
pub struct Ulpdu<'a> {
    /// Position of the ULPDU length.
    header: u64,
    bytes: UlpduBytes<'a>,
}

/// How the bytes of a ULPDU lie.
#[derive(Clone, Copy)]
enum UlpduBytes<'a> {
    /// In one run: the usual case.
    Whole(&'a [u8]),
    /// Cut by buffers or markers.
    Cut { wire: Wire<'a>, len: usize, markers: bool },
}

impl<'a> Ulpdu<'a> {
    #[inline]
    pub(super) fn new(wire: Wire<'a>, header: u64, len: usize, markers: bool) -> Self {
        let start = header + LENGTH_BYTES as u64;
        let end = start + len as u64;
        let is_cut = markers && marker::count(start, end) > 0;
        let bytes = match wire.front(start, end) {
            Some(bytes) if !is_cut => UlpduBytes::Whole(bytes),
            _ => UlpduBytes::Cut { wire, len, markers },
        };
        Self { header, bytes }
    }

    /// Bytes of the ULPDU. 0 is possible, and DDP's to refuse; so is more than a sender may send.
    pub const fn len(&self) -> usize {
        match self.bytes {
            UlpduBytes::Whole(bytes) => bytes.len(),
            UlpduBytes::Cut { len, .. } => len,
        }
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Position of its FPDU's length field: a key for the sender's order.
    pub const fn position(&self) -> u64 {
        self.header
    }

    /// All its bytes, where they lie in one run: the usual case, without markers.
    pub const fn whole(&self) -> Option<&'a [u8]> {
        match self.bytes {
            UlpduBytes::Whole(bytes) => Some(bytes),
            UlpduBytes::Cut { .. } => None,
        }
    }

    /// Its first bytes, `len` or all, where they lie in one run.
    pub fn front(&self, len: usize) -> Option<&'a [u8]> {
        match self.bytes {
            UlpduBytes::Whole(bytes) => Some(&bytes[..len.min(bytes.len())]),
            UlpduBytes::Cut { wire, len: all, markers } => {
                let start = self.header + LENGTH_BYTES as u64;
                let end = start + len.min(all) as u64;
                if markers && marker::count(start, end) > 0 { None } else { wire.front(start, end) }
            }
        }
    }

    /// Copies from `offset` on, as much as there is and `out` holds; returns how much that was.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for run in self.runs(offset, out.len()) {
            out[done..done + run.len()].copy_from_slice(run);
            done += run.len();
        }
        done
    }

    /// The bytes from `offset` on, at most `len`, in the runs in which they lie: cut by buffers and by
    /// markers, in order, none empty.
    pub fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.pieces(offset, len).flatten()
    }

    /// The bytes from `offset` on, at most `len`, by the buffers in which they lie, in order: in each there
    /// are markers between its runs.
    pub fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = Runs<'a>> + use<'a> {
        let start = self.header + LENGTH_BYTES as u64;
        let (wire, all, markers) = match self.bytes {
            UlpduBytes::Whole(bytes) => (Wire::slice(start, bytes), bytes.len(), false),
            UlpduBytes::Cut { wire, len, markers } => (wire, len, markers),
        };
        let offset = offset.min(all);
        let len = len.min(all - offset);
        let from = marker::nth_content(self.header, (LENGTH_BYTES + offset) as u64, markers);
        let to = match len {
            0 => from,
            len => marker::end_of_content(from, len as u64, markers),
        };
        wire.slices(from, to).map(move |(position, bytes)| {
            if !markers {
                return Stride::NONE.runs(bytes);
            }
            let into = (position % marker::INTERVAL) as usize;
            // It may begin in a marker.
            let bytes = &bytes[Stride::GAP.saturating_sub(into).min(bytes.len())..];
            Stride::new(Stride::PERIOD - into.max(Stride::GAP)).runs(bytes)
        })
    }
}

impl std::fmt::Debug for Ulpdu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ulpdu")
            .field("position", &self.header)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
