//! Receiving: buffers of TCP into ULPDUs, in order and out of order (sections 4.3, 6, appendix A.3).
//!
//! FPDUs are handed up where they lie, as views: in one buffer, or across a chain of held ones; nothing is staged. The
//! CRC is verified first, over the whole chain. Where our markers are in the stream, FPDUs behind a hole are found
//! and offered ahead of their turn. Errors are raised where FPDUs are met in order only.
//!
//! Nothing here knows what is in a ULPDU.

mod early;
mod fpdu;
mod held;
mod ordered;
mod ulpdu;

use std::ops::{ControlFlow, Range};

use arrayvec::ArrayVec;
use dp::Mbuf;

pub use held::{HeldBuf, HeldList, HeldSlab, NoSlot};
pub use ulpdu::Ulpdu;

use early::{Record, Search};
use fpdu::{Extent, Framing, Unsound};
use held::{MAX_STRETCHES, first_new};
use ordered::List;
use ulpdu::Wire;

use super::MpaError;

/// A ULPDU whose turn it is.
#[derive(Clone, Copy, Debug)]
pub enum Arrival<'a> {
    /// Its octets have not been handed over yet.
    Whole(Ulpdu<'a>),
    /// [`UlpduSink::place_early`] took it.
    Placed {
        /// Its first octets: 18, or all if it has fewer.
        header: &'a [u8],
        /// Octets of the ULPDU.
        ulpdu_len: usize,
    },
}

/// Takes ULPDUs.
pub trait UlpduSink {
    /// Offers a ULPDU ahead of its turn, checked by CRC. `true`: its octets are where they belong and go away; it comes
    /// again as [`Arrival::Placed`]. `false`: it is held and comes as [`Arrival::Whole`]; it may be offered again.
    fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool;

    /// The next ULPDU in the sender's order, each exactly once. `Break` ends reception for good.
    fn arrive(&mut self, arrival: Arrival<'_>) -> ControlFlow<()>;
}

/// What a call brought, besides what the sink was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// For `tcp_lite::Stack::release`: of the octets that were handed up ahead of the frontier, how many are no longer
    /// held ahead of it, since the last call. Each such octet counts once: when its FPDU was placed early, when the
    /// frontier passed it, or when reception ended. What is in order never counts, also where it waits for the rest of its
    /// FPDU: else a window with less room than for that would stay closed, and the FPDU would never be whole.
    pub released: usize,
}

/// Plain counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// FPDUs handed up in order, those placed early included.
    pub fpdus: u64,
    /// FPDUs placed ahead of their turn.
    pub early_fpdus: u64,
    /// Their ULPDU octets.
    pub early_octets: u64,
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
    /// For the next [`Progress`].
    released: usize,
    /// An error was raised, or the sink had enough: what comes is dropped.
    over: bool,
    counters: Counters,
}

impl Deframer {
    /// Position 0 is at stream offset `start`: [`Negotiated::rx_start`](super::Negotiated::rx_start). `markers` says
    /// that they are in the stream, `crc` that CRCs are checked.
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

    /// A buffer as TCP hands it up: `buf` begins at stream offset `offset`, and everything in front of stream offset
    /// `frontier` has been handed up with it. ULPDUs go to `sink`, during this call.
    ///
    /// # Errors
    /// Code 2 or 3 of the FPDU at the frontier, or 5 where `slab` has no slot left. Reception is over then: what is
    /// held goes, and what still comes is dropped.
    pub fn receive(
        &mut self,
        offset: u64,
        buf: Mbuf,
        frontier: u64,
        slab: &mut HeldSlab,
        sink: &mut impl UlpduSink,
    ) -> Result<Progress, MpaError> {
        let ahead = offset >= frontier;
        self.counters.ahead_buffers += u64::from(ahead);
        let before = buf.len();
        let taken = if self.over { None } else { self.first_new(offset, buf, slab) };
        if ahead {
            self.released += before - taken.as_ref().map_or(0, |(_, buf)| buf.len());
        }
        self.frontier = self.frontier.max(frontier.saturating_sub(self.origin));
        let result = match taken {
            Some((start, buf)) if ahead => self.receive_ahead(start, buf, slab, sink),
            Some((start, buf)) => self.receive_in_order(start, buf, slab, sink),
            None => Ok(()),
        };
        if result.is_err() || self.over {
            self.over = true;
            self.drop_all(slab);
        } else if !ahead {
            self.released += self.held.pass(slab, self.frontier);
        }
        result.map(|()| Progress { released: std::mem::take(&mut self.released) })
    }

    /// Memory is short: gives up what came ahead of the frontier and was not placed, `octets` octets or a little more,
    /// from the far end. `may` is asked for the stretches of the stream, by offset, of each buffer: whether they count as
    /// not received from now on (`tcp_lite::Stack::evict`). They may come again; they are not to be released.
    pub fn give_up(
        &mut self,
        octets: usize,
        slab: &mut HeldSlab,
        mut may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        let origin = self.origin;
        self.held.evict(slab, self.records, octets, |positions| {
            let mut stretches: ArrayVec<_, MAX_STRETCHES> = ArrayVec::new();
            stretches.extend(positions.iter().map(|range| range.start + origin..range.end + origin));
            may(&stretches)
        });
    }

    /// Whether nothing is pending in front of the frontier: a FIN here cuts no FPDU. Else it is
    /// [`MpaError::Closed`], code 1.
    pub const fn at_boundary(&self) -> bool {
        self.next == self.frontier
    }

    /// Ends reception: gives back what is held. What still comes is dropped. Returns octets for
    /// `tcp_lite::Stack::release`, as [`Progress::released`].
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        self.over = true;
        self.drop_all(slab);
        std::mem::take(&mut self.released)
    }

    /// Whether reception is over, by an error, by the sink's `Break` or by [`clear`](Self::clear).
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Octets of packet buffers that what arrived ahead of the frontier keeps from being used again.
    pub const fn pinned_octets(&self) -> usize {
        self.held.pinned_octets()
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

    fn receive_in_order(
        &mut self,
        start: u64,
        buf: Mbuf,
        slab: &mut HeldSlab,
        sink: &mut impl UlpduSink,
    ) -> Result<(), MpaError> {
        if !self.held.is_empty() || start != self.next {
            self.held.hold(slab, start, buf, false).map_err(|NoSlot| MpaError::NoHeldSlot)?;
            return self.deliver(&mut None, slab, sink);
        }
        // The usual case: nothing waits, the FPDUs begin here.
        let mut direct = Some((start, buf));
        self.deliver(&mut direct, slab, sink)?;
        if let Some((start, buf)) = direct
            && !buf.is_empty()
            && !self.over
        {
            self.held.hold(slab, start, buf, false).map_err(|NoSlot| MpaError::NoHeldSlot)?;
        }
        Ok(())
    }

    fn receive_ahead(
        &mut self,
        start: u64,
        buf: Mbuf,
        slab: &mut HeldSlab,
        sink: &mut impl UlpduSink,
    ) -> Result<(), MpaError> {
        let before = buf.len();
        // Compaction and clipping keep the octets in front: the slot's end tells how many were new.
        let slot = self.held.insert(slab, start, buf, true).map_err(|NoSlot| {
            self.released += before;
            MpaError::NoHeldSlot
        })?;
        if let (Some(slot), true) = (slot, self.framing.markers) {
            let Self { framing, held, records, known, counters, released, .. } = self;
            let mut search =
                Search { framing: *framing, held, records, slab, known, counters, sink, released: 0 };
            search.run(slot, start, start + before as u64);
            *released += search.released;
        }
        Ok(())
    }

    /// Hands up every FPDU that is whole in front of the frontier. `direct` is a buffer that is not held; what was handed
    /// up is gone from its front.
    fn deliver(
        &mut self,
        direct: &mut Option<(u64, Mbuf)>,
        slab: &mut HeldSlab,
        sink: &mut impl UlpduSink,
    ) -> Result<(), MpaError> {
        loop {
            if let Some((start, buf)) = direct
                && self.records.is_empty()
            {
                let done = self.deliver_run(*start, buf.head(), sink)?;
                buf.advance(done);
                *start += done as u64;
                if self.over || buf.is_empty() {
                    return Ok(());
                }
                if done > 0 {
                    // The next buffer of the chain may begin with an FPDU as well.
                    continue;
                }
            }
            let record = self.records.head().and_then(|id| slab.records.at(id)).copied();
            let flow = match record {
                Some(record) if record.start <= self.next => self.deliver_placed(record, slab, sink)?,
                record => {
                    let wire = match &*direct {
                        Some((start, buf)) => Some(Wire::buf(*start, buf)),
                        None => self.held.list.head().and_then(|head| Wire::held(&slab.buffers, head)),
                    };
                    let Some(wire) = wire else { return Ok(()) };
                    match self.deliver_whole(wire, record, sink)? {
                        Some(flow) => flow,
                        None => return Ok(()),
                    }
                }
            };
            self.counters.fpdus += 1;
            self.released += self.held.drop_before(slab, self.next);
            if let Some((start, buf)) = direct {
                let done = (self.next - *start).min(buf.len() as u64);
                buf.advance(done as usize);
                *start += done;
            }
            if flow.is_break() {
                self.over = true;
                return Ok(());
            }
        }
    }

    /// The usual case of [`deliver`](Self::deliver): hands up the FPDUs that lie one behind the other in `octets`, which
    /// begin at position `start`, the next one's. Returns the octets they have.
    fn deliver_run(
        &mut self,
        start: u64,
        octets: &[u8],
        sink: &mut impl UlpduSink,
    ) -> Result<usize, MpaError> {
        let mut done = 0;
        while done < octets.len()
            && let Some(flow) = self.deliver_whole(Wire::slice(self.next, &octets[done..]), None, sink)?
        {
            done = (self.next - start) as usize;
            self.counters.fpdus += 1;
            if flow.is_break() {
                self.over = true;
                break;
            }
        }
        Ok(done)
    }

    fn deliver_placed(
        &mut self,
        record: Record,
        slab: &mut HeldSlab,
        sink: &mut impl UlpduSink,
    ) -> Result<ControlFlow<()>, MpaError> {
        if record.start != self.next {
            // By length an FPDU reached into one that a marker led to.
            return Err(MpaError::Marker { position: self.next });
        }
        if let Some(head) = self.records.head() {
            slab.records.remove(&mut self.records, head);
        }
        self.next = record.end;
        Ok(sink.arrive(Arrival::Placed { header: record.header(), ulpdu_len: record.ulpdu_octets }))
    }

    /// The FPDU at `next` in `wire`; `None` while it is not whole there.
    fn deliver_whole(
        &mut self,
        wire: Wire<'_>,
        record: Option<Record>,
        sink: &mut impl UlpduSink,
    ) -> Result<Option<ControlFlow<()>>, MpaError> {
        let position = self.next;
        let Some(extent) = Extent::read(wire, position, self.framing) else {
            return Ok(None);
        };
        if record.is_some_and(|record| record.start < extent.end) && extent.header < self.frontier {
            // The length chain and a marker disagree. The octets of the other FPDU are gone, so that no CRC can say
            // which is wrong.
            return Err(MpaError::Marker { position });
        }
        if extent.end > self.frontier || !wire.covers(extent.start, extent.end) {
            return Ok(None);
        }
        let ulpdu = extent.check(wire, self.framing).map_err(|unsound| match unsound {
            Unsound::Crc => MpaError::Crc { position },
            Unsound::Marker => MpaError::Marker { position },
        })?;
        self.next = extent.end;
        Ok(Some(sink.arrive(Arrival::Whole(ulpdu))))
    }

    fn drop_all(&mut self, slab: &mut HeldSlab) {
        self.released += self.held.clear(slab);
        while let Some(head) = self.records.head() {
            slab.records.remove(&mut self.records, head);
        }
    }
}

#[cfg(test)]
mod tests;
