//! Receiving: buffers of TCP into ULPDUs, in order and out of order (sections 4.3, 6, appendix A.3).
//!
//! [`Deframer::receive`] takes a buffer; the caller then asks [`Ulpdus`] for one ULPDU after the
//! other. They are views of the buffer, or of a chain of held ones; nothing is staged. The CRC is
//! verified first, over the whole chain. Where our markers are in the stream, FPDUs behind a hole
//! are found and offered ahead of their turn. Errors are raised where FPDUs are met in order only.
//!
//! Nothing here knows what is in a ULPDU.
//!
//! | file | what |
//! |---|---|
//! | `ulpdus.rs` | the ULPDUs that a buffer brings |
//! | `early.rs` | FPDUs ahead of a hole, found by markers and lengths |
//! | `held.rs` | buffers that wait |
//! | `fpdu.rs`, `ulpdu.rs` | one FPDU: its extent and its checks; views of it |
//! | `ordered.rs` | lists of many connections in one set of slots |

mod early;
mod fpdu;
mod held;
mod ordered;
mod ulpdu;
mod ulpdus;

use std::ops::Range;

use arrayvec::ArrayVec;
use dp::Mbuf;

pub use held::{HeldBuf, HeldList, HeldSlab, NoSlot};
pub use ulpdu::Ulpdu;
pub use ulpdus::{Received, Ulpdus};

use early::Search;
use fpdu::Framing;
use held::{MAX_STRETCHES, first_new};
use ordered::List;
use ulpdus::Source;

/// Plain counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// FPDUs handed up in order, those placed early included.
    pub fpdus: u64,
    /// FPDUs placed ahead of their turn.
    pub early_fpdus: u64,
    /// Their ULPDU bytes.
    pub early_bytes: u64,
    /// Times an FPDU ahead of its turn did not check and was left to be met in order.
    pub early_unsound: u64,
    /// Buffers that arrived ahead of the frontier.
    pub ahead_buffers: u64,
}

/// The receive direction of a connection.
///
/// [`clear`](Self::clear) it before dropping it: what it holds is in a slab that other connections share.
#[derive(Debug)]
pub struct Deframer {
    /// Stream offset of position 0.
    origin: u64,
    framing: Framing,
    /// Position of the next FPDU to hand up.
    next: u64,
    /// Everything in front of this position has arrived.
    frontier: u64,
    held: HeldList,
    /// FPDUs placed early and not yet handed up.
    records: List,
    /// A position ahead where an FPDU begins, known from a valid one that ended there.
    known: u64,
    /// For the next [`Ulpdus::finish`].
    released: usize,
    /// An error was raised, or the caller had enough: what comes is dropped.
    over: bool,
    counters: Counters,
}

impl Deframer {
    /// Position 0 is at stream offset `start`: [`Negotiated::rx_start`](super::Negotiated::rx_start).
    /// `markers` says that they are in the stream, `crc` that CRCs are checked.
    pub fn new(start: u64, markers: bool, crc: bool) -> Self {
        Self {
            origin: start,
            framing: Framing { markers, crc },
            next: 0,
            frontier: 0,
            held: HeldList::default(),
            records: List::default(),
            known: 0,
            released: 0,
            over: false,
            counters: Counters::default(),
        }
    }

    /// A buffer as TCP hands it up: `buf` begins at stream offset `offset`, and everything in front of stream
    /// offset `frontier` has been handed up with it. Gives the ULPDUs that it brings, one by one.
    #[inline]
    pub fn receive<'a>(
        &'a mut self,
        offset: u64,
        buf: Mbuf,
        frontier: u64,
        slab: &'a mut HeldSlab,
    ) -> Ulpdus<'a> {
        let ahead = offset >= frontier;
        self.counters.ahead_buffers += u64::from(ahead);
        let before = buf.len();
        let new = if self.over { None } else { self.first_new(offset, buf, slab) };
        if ahead {
            self.released += before - new.as_ref().map_or(0, |(_, buf)| buf.len());
        }
        self.frontier = self.frontier.max(frontier.saturating_sub(self.origin));
        match new {
            // The usual case: nothing waits, the FPDUs begin here.
            Some((start, buf)) if !ahead && self.held.is_empty() && start == self.next => {
                Ulpdus::new(self, slab, Source::Buffer { start, buf })
            }
            Some((start, buf)) => {
                let source = self.hold(start, buf, ahead, slab);
                Ulpdus::new(self, slab, source)
            }
            None => Ulpdus::new(self, slab, Source::Nothing),
        }
    }

    /// Memory is short: gives up what came ahead of the frontier and was not placed, `bytes` bytes or a
    /// little more, from the far end. `may` is asked for the stretches of the stream, by offset, of each
    /// buffer: whether they count as not received from now on (`tcp_lite::Stack::evict`). They may come
    /// again; they are not to be released.
    pub fn give_up(&mut self, bytes: usize, slab: &mut HeldSlab, mut may: impl FnMut(&[Range<u64>]) -> bool) {
        let origin = self.origin;
        self.held.evict(slab, self.records, bytes, |positions| {
            let mut stretches: ArrayVec<_, MAX_STRETCHES> = ArrayVec::new();
            stretches.extend(positions.iter().map(|range| range.start + origin..range.end + origin));
            may(&stretches)
        });
    }

    /// Whether nothing is pending in front of the frontier: a FIN here cuts no FPDU. Else it is
    /// [`MpaError::Closed`](super::MpaError::Closed), code 1.
    pub const fn at_boundary(&self) -> bool {
        self.next == self.frontier
    }

    /// Ends reception: gives back what is held. What still comes is dropped. Returns bytes for
    /// `tcp_lite::Stack::release`, as [`Ulpdus::finish`].
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        self.end(slab);
        std::mem::take(&mut self.released)
    }

    /// Whether reception is over: by an error, by [`Ulpdus`] dropped half way, or by
    /// [`clear`](Self::clear).
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Bytes of packet buffers that what arrived ahead of the frontier keeps from being used again.
    pub const fn pinned_bytes(&self) -> usize {
        self.held.pinned_bytes()
    }

    /// Counters since the beginning.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// What is new in `buf`, with its position.
    fn first_new(&self, offset: u64, mut buf: Mbuf, slab: &HeldSlab) -> Option<(u64, Mbuf)> {
        let past = (self.origin + self.next).saturating_sub(offset);
        buf.advance(past.min(buf.len() as u64) as usize);
        if buf.is_empty() {
            return None;
        }
        let start = offset + past - self.origin;
        first_new(&slab.records, self.records, start, buf).map(|(start, buf, _)| (start, buf))
    }

    /// Holds what cannot be handed up at once. With markers, a search for what it makes whole ahead
    /// of the frontier begins.
    fn hold(&mut self, start: u64, buf: Mbuf, ahead: bool, slab: &mut HeldSlab) -> Source {
        let before = buf.len();
        // Compaction and clipping keep the bytes in front: the slot's end tells how many were new.
        match self.held.insert(slab, start, buf, ahead) {
            Ok(_) if !ahead => Source::Held,
            Ok(Some(slot)) if self.framing.markers => {
                Source::Ahead(Search::new(self, slab, slot, start, start + before as u64))
            }
            Ok(_) => Source::Nothing,
            Err(NoSlot) => {
                self.released += if ahead { before } else { 0 };
                Source::Lost
            }
        }
    }

    /// Ends reception, and drops what is held.
    fn end(&mut self, slab: &mut HeldSlab) {
        self.over = true;
        self.released += self.held.clear(slab);
        while let Some(head) = self.records.head() {
            slab.records.remove(&mut self.records, head);
        }
    }
}

#[cfg(test)]
mod tests;
