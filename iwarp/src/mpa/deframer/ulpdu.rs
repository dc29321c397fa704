//! Views of what was received, where it lies: wire octets across buffers, and the ULPDU between the markers.

use std::iter;

use dp::Mbuf;

use super::held::HeldBuf;
use super::ordered::{Slots, Stretch};
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
    /// A buffer whose first octet is at `start`.
    pub(super) const fn buf(start: u64, buf: &'a Mbuf) -> Self {
        Self { start, octets: Octets::Buf(buf) }
    }

    /// The buffer in slot `first` and those that follow it without a hole.
    pub(super) fn held(slots: &'a Slots<HeldBuf>, first: u32) -> Option<Self> {
        Some(Self { start: slots.at(first)?.start, octets: Octets::Held(slots, first) })
    }

    /// The buffers, each with its position.
    fn bufs(self) -> impl Iterator<Item = (u64, &'a Mbuf)> {
        let (alone, held) = match self.octets {
            Octets::Slice(_) => (None, None),
            Octets::Buf(buf) => (Some((self.start, buf)), None),
            Octets::Held(slots, first) => (None, Some((slots, first))),
        };
        let mut end = self.start;
        let held = held.into_iter().flat_map(|(slots, first)| {
            iter::successors(Some(first), |id| slots.next(*id)).map_while(|id| slots.at(id))
        });
        let contiguous = held.map_while(move |held| {
            let follows = held.start == end;
            end = held.end();
            follows.then_some((held.start, &held.buf))
        });
        alone.into_iter().chain(contiguous)
    }

    /// The octets at `from..to`, as far as they are there, in slices with their positions.
    pub(super) fn slices(self, from: u64, to: u64) -> impl Iterator<Item = (u64, &'a [u8])> {
        let slice = match self.octets {
            Octets::Slice(octets) => Some((self.start, octets)),
            Octets::Buf(_) | Octets::Held(..) => None,
        };
        let segments = self.bufs().take_while(move |(start, _)| *start < to).flat_map(|(start, buf)| {
            let mut at = start;
            buf.segments().map(move |octets| {
                let start = at;
                at += octets.len() as u64;
                (start, octets)
            })
        });
        slice.into_iter().chain(segments).filter_map(move |(start, octets)| {
            let end = start + octets.len() as u64;
            let (from, to) = (from.clamp(start, end), to.clamp(start, end));
            (from < to).then(|| (from, &octets[(from - start) as usize..(to - start) as usize]))
        })
    }

    /// Whether all octets at `from..to` are there.
    pub(super) fn covers(self, from: u64, to: u64) -> bool {
        match self.octets {
            Octets::Slice(octets) => self.start <= from && to <= self.start + octets.len() as u64,
            Octets::Buf(buf) => self.start <= from && to <= self.start + buf.len() as u64,
            Octets::Held(..) => {
                self.start <= from && self.bufs().any(|(start, buf)| to <= start + buf.len() as u64)
            }
        }
    }

    /// The octets at `position`.
    pub(super) fn read<const N: usize>(self, position: u64) -> Option<[u8; N]> {
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
        match self.slices(from, to).next() {
            Some((start, octets)) if octets.len() as u64 == to - from => {
                Self { start, octets: Octets::Slice(octets) }
            }
            _ => self,
        }
    }
}

/// A view of a ULPDU where it lies in received buffers, checked by its CRC if CRCs are in use. Markers, length, pad and
/// CRC are not part of it.
#[derive(Clone, Copy)]
pub struct Ulpdu<'a> {
    wire: Wire<'a>,
    /// Position of the ULPDU length.
    header: u64,
    len: usize,
    markers: bool,
}

impl<'a> Ulpdu<'a> {
    pub(super) const fn new(wire: Wire<'a>, header: u64, len: usize, markers: bool) -> Self {
        Self { wire, header, len, markers }
    }

    /// Octets of the ULPDU. 0 is possible, and DDP's to refuse; so is more than a sender may send.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position of its FPDU's length field: a key for the sender's order.
    pub const fn position(&self) -> u64 {
        self.header
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
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        let from = marker::nth_content(self.header, (LENGTH_OCTETS + offset) as u64, self.markers);
        let to = match len {
            0 => from,
            len => marker::end_of_content(from, len as u64, self.markers),
        };
        let markers = self.markers;
        self.wire.slices(from, to).flat_map(move |(position, octets)| Content { position, octets, markers })
    }
}

impl std::fmt::Debug for Ulpdu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ulpdu")
            .field("position", &self.header)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The runs of a slice between the markers in it.
struct Content<'a> {
    position: u64,
    octets: &'a [u8],
    markers: bool,
}

impl<'a> Iterator for Content<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if !self.markers {
            return Some(std::mem::take(&mut self.octets)).filter(|octets| !octets.is_empty());
        }
        let into = self.position % marker::INTERVAL;
        if into < marker::MARKER_OCTETS {
            self.skip((marker::MARKER_OCTETS - into) as usize);
        }
        let run = self.skip((marker::INTERVAL - self.position % marker::INTERVAL) as usize);
        Some(run).filter(|run| !run.is_empty())
    }
}

impl<'a> Content<'a> {
    /// Takes `octets` off the front, or all that is left.
    fn skip(&mut self, octets: usize) -> &'a [u8] {
        let (taken, rest) = self.octets.split_at(octets.min(self.octets.len()));
        self.octets = rest;
        self.position += taken.len() as u64;
        taken
    }
}
