//! Views of what was received, where it lies: wire octets across buffers, and the ULPDU between the markers.

use std::iter;

use dp::Mbuf;
use dp::mbuf::Segments;

use super::held::HeldBuf;
use super::ordered::{Slots, Stretch};
use crate::memory::{Runs, Stride};
use crate::mpa::{LENGTH_OCTETS, marker};

/// Contiguous wire octets by position: one slice, or a buffer and those that follow it.
#[derive(Clone, Copy)]
pub(super) struct Wire<'a> {
    start: u64,
    octets: Octets<'a>,
}

#[derive(Clone, Copy)]
enum Octets<'a> {
    Slice(&'a [u8]),
    Buf(&'a Mbuf),
    Held(&'a Slots<HeldBuf>, u32),
}

impl<'a> Wire<'a> {
    /// Octets that begin at `start`.
    pub(super) const fn slice(start: u64, octets: &'a [u8]) -> Self {
        Self { start, octets: Octets::Slice(octets) }
    }

    /// A buffer whose first octet is at `start`.
    pub(super) const fn buf(start: u64, buf: &'a Mbuf) -> Self {
        Self { start, octets: Octets::Buf(buf) }
    }

    /// The buffer in slot `first` and those that follow it without a hole.
    pub(super) fn held(slots: &'a Slots<HeldBuf>, first: u32) -> Option<Self> {
        Some(Self { start: slots.at(first)?.start, octets: Octets::Held(slots, first) })
    }

    /// The octets at `from..to`, as far as they are there, in slices with their positions.
    pub(super) fn slices(self, from: u64, to: u64) -> Slices<'a> {
        let rest = match self.octets {
            Octets::Slice(octets) => Rest::Slice(Some(octets)),
            Octets::Buf(buf) => Rest::Bufs { segments: buf.segments(), behind: None },
            Octets::Held(slots, first) => match slots.at(first) {
                Some(held) => {
                    let end = held.end();
                    Rest::Bufs { segments: held.buf.segments(), behind: Some((slots, first, end)) }
                }
                None => Rest::Slice(None),
            },
        };
        Slices { from, to, at: self.start, rest }
    }

    /// The octets at `from..to`, where they lie in the first buffer's first segment: the usual case.
    pub(super) fn front(self, from: u64, to: u64) -> Option<&'a [u8]> {
        let octets = match self.octets {
            Octets::Slice(octets) => octets,
            Octets::Buf(buf) => buf.head(),
            Octets::Held(slots, first) => slots.at(first)?.buf.head(),
        };
        let (from, to) = (from.checked_sub(self.start)?, to.checked_sub(self.start)?);
        octets.get(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
    }

    /// Whether all octets at `from..to` are there.
    pub(super) fn covers(self, from: u64, to: u64) -> bool {
        match self.octets {
            Octets::Slice(octets) => self.start <= from && to <= self.start + octets.len() as u64,
            Octets::Buf(buf) => self.start <= from && to <= self.start + buf.len() as u64,
            Octets::Held(slots, first) => {
                let behind = |(id, end): &(u32, u64)| Slices::follower(slots, *id, *end);
                let first = slots.at(first).map(|held| (first, held.end()));
                self.start <= from && iter::successors(first, behind).any(|(_, end)| to <= end)
            }
        }
    }

    /// The octets at `position`.
    pub(super) fn read<const N: usize>(self, position: u64) -> Option<[u8; N]> {
        if let Some(octets) = self.front(position, position + N as u64) {
            return octets.try_into().ok();
        }
        let mut out = [0; N];
        let mut filled = 0;
        for (_, octets) in self.slices(position, position + N as u64) {
            out[filled..filled + octets.len()].copy_from_slice(octets);
            filled += octets.len();
        }
        (filled == N).then_some(out)
    }

    /// `from..to` alone, as a slice if it lies in one.
    pub(super) fn narrow(self, from: u64, to: u64) -> Self {
        match self.front(from, to) {
            Some(octets) => Self { start: from, octets: Octets::Slice(octets) },
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
            Rest::Slice(octets) => octets.take(),
            Rest::Bufs { segments, behind } => loop {
                if let Some(octets) = segments.next() {
                    return Some(octets);
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
            let octets = self.piece()?;
            let (start, end) = (self.at, self.at + octets.len() as u64);
            self.at = end;
            let (from, to) = (self.from.clamp(start, end), self.to.clamp(start, end));
            if from < to {
                return Some((from, &octets[(from - start) as usize..(to - start) as usize]));
            }
        }
        None
    }
}

/// A view of a ULPDU where it lies in received buffers, checked by its CRC if CRCs are in use. Markers, length, pad and
/// CRC are not part of it.
#[derive(Clone, Copy)]
pub struct Ulpdu<'a> {
    /// Position of the ULPDU length.
    header: u64,
    octets: UlpduOctets<'a>,
}

/// How the octets of a ULPDU lie.
#[derive(Clone, Copy)]
enum UlpduOctets<'a> {
    /// In one run: the usual case.
    Whole(&'a [u8]),
    /// Cut by buffers or markers.
    Cut { wire: Wire<'a>, len: usize, markers: bool },
}

impl<'a> Ulpdu<'a> {
    #[inline]
    pub(super) fn new(wire: Wire<'a>, header: u64, len: usize, markers: bool) -> Self {
        let start = header + LENGTH_OCTETS as u64;
        let end = start + len as u64;
        let is_cut = markers && marker::count(start, end) > 0;
        let octets = match wire.front(start, end) {
            Some(octets) if !is_cut => UlpduOctets::Whole(octets),
            _ => UlpduOctets::Cut { wire, len, markers },
        };
        Self { header, octets }
    }

    /// Octets of the ULPDU. 0 is possible, and DDP's to refuse; so is more than a sender may send.
    pub const fn len(&self) -> usize {
        match self.octets {
            UlpduOctets::Whole(octets) => octets.len(),
            UlpduOctets::Cut { len, .. } => len,
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

    /// All its octets, where they lie in one run: the usual case, without markers.
    pub const fn whole(&self) -> Option<&'a [u8]> {
        match self.octets {
            UlpduOctets::Whole(octets) => Some(octets),
            UlpduOctets::Cut { .. } => None,
        }
    }

    /// Its first octets, `len` or all, where they lie in one run.
    pub fn front(&self, len: usize) -> Option<&'a [u8]> {
        match self.octets {
            UlpduOctets::Whole(octets) => Some(&octets[..len.min(octets.len())]),
            UlpduOctets::Cut { wire, len: all, markers } => {
                let start = self.header + LENGTH_OCTETS as u64;
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

    /// The octets from `offset` on, at most `len`, in the runs in which they lie: cut by buffers and by markers, in
    /// order, none empty.
    pub fn runs(&self, offset: usize, len: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.pieces(offset, len).flatten()
    }

    /// The octets from `offset` on, at most `len`, by the buffers in which they lie, in order: in each there are markers
    /// between its runs.
    pub fn pieces(&self, offset: usize, len: usize) -> impl Iterator<Item = Runs<'a>> + use<'a> {
        let start = self.header + LENGTH_OCTETS as u64;
        let (wire, all, markers) = match self.octets {
            UlpduOctets::Whole(octets) => (Wire::slice(start, octets), octets.len(), false),
            UlpduOctets::Cut { wire, len, markers } => (wire, len, markers),
        };
        let offset = offset.min(all);
        let len = len.min(all - offset);
        let from = marker::nth_content(self.header, (LENGTH_OCTETS + offset) as u64, markers);
        let to = match len {
            0 => from,
            len => marker::end_of_content(from, len as u64, markers),
        };
        wire.slices(from, to).map(move |(position, octets)| {
            if !markers {
                return Stride::NONE.runs(octets);
            }
            let into = (position % marker::INTERVAL) as usize;
            // It may begin in a marker.
            let octets = &octets[Stride::GAP.saturating_sub(into).min(octets.len())..];
            Stride::new(Stride::PERIOD - into.max(Stride::GAP)).runs(octets)
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
