//! Out-of-order FPDUs, placed before the hole in front of them is filled (section 4.3; appendices A.3, B.2).
//!
//! Every FPDU begins at a multiple of 4 and a marker says where one begins, so that an isolated buffer can be searched.
//! What a marker points to is believed only under a valid CRC; from a valid FPDU the next one is found by length.
//! Nothing here is an error: what does not check is left to be met in order.

use super::fpdu::{Extent, Framing, Unsound};
use super::held::{HeldList, HeldSlab};
use super::ordered::{List, Stretch};
use super::ulpdu::Wire;
use super::{Counters, UlpduSink};
use crate::mpa::marker;

/// Octets of a ULPDU that a record keeps: the longest DDP header.
pub(super) const HEADER_OCTETS: usize = 18;

/// FPDUs with a bad CRC that one buffer may lead to: what is summed for each buffer has a limit.
const FAILURES: u32 = 2;

/// An FPDU that was placed early.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) ulpdu_octets: usize,
    header: [u8; HEADER_OCTETS],
}

impl Record {
    /// The first octets of its ULPDU.
    pub(super) fn header(&self) -> &[u8] {
        &self.header[..self.ulpdu_octets.min(HEADER_OCTETS)]
    }
}

impl Stretch for Record {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }
}

/// Where an FPDU begins ahead of the frontier.
#[derive(Clone, Copy)]
struct Lead {
    /// The slot that holds it.
    slot: u32,
    start: u64,
}

/// How far a walk by lengths came.
enum Walk {
    /// To octets that have not come yet: no marker leads further now.
    Incomplete,
    /// To an FPDU that does not check, at this position.
    Unsound(u64),
}

/// What a search of one connection works on.
pub(super) struct Search<'a, S> {
    pub(super) framing: Framing,
    pub(super) held: &'a mut HeldList,
    pub(super) records: &'a mut List,
    pub(super) slab: &'a mut HeldSlab,
    /// Where an FPDU begins because a valid one ended there: the last such place.
    pub(super) known: &'a mut u64,
    pub(super) counters: &'a mut Counters,
    pub(super) sink: &'a mut S,
    /// Octets placed.
    pub(super) released: usize,
}

impl<S: UlpduSink> Search<'_, S> {
    /// Finds and places the FPDUs that the octets `from..to`, new in slot `slot`, make whole.
    pub(super) fn run(&mut self, slot: u32, from: u64, to: u64) {
        let mut tried = None;
        let mut failures = 0;
        let known = (*self.known < to).then(|| self.lead(slot, *self.known)).flatten();
        // The last marker in front of the new octets belongs to the FPDU that they continue, or to one shortly before.
        let mut at = from.saturating_sub(1) / marker::INTERVAL * marker::INTERVAL;
        let mut lead = known.or_else(|| self.follow(slot, at));
        loop {
            if let Some(lead) = lead.filter(|lead| tried.is_none_or(|tried| tried < lead.start)) {
                match self.walk(lead) {
                    Walk::Incomplete => return,
                    Walk::Unsound(position) => tried = Some(position),
                }
                failures += 1;
                if failures == FAILURES {
                    return;
                }
            }
            at += marker::INTERVAL;
            // A marker in front of the new octets cannot lead to more than a known place or the last of them did.
            if at >= to || self.slab.buffers.at(slot).is_none() {
                return;
            }
            lead = self.follow(slot, at);
        }
    }

    /// The beginning of the FPDU at `start`, if it is held in one piece with slot `slot`.
    fn lead(&self, slot: u32, start: u64) -> Option<Lead> {
        HeldList::back_to(self.slab, slot, start).map(|slot| Lead { slot, start })
    }

    /// Where the marker at `position` leads to.
    fn follow(&self, slot: u32, position: u64) -> Option<Lead> {
        let holder = HeldList::back_to(self.slab, slot, position)?;
        let pointer = marker::decode(Wire::held(&self.slab.buffers, holder)?.read(position)?);
        let header = marker::target(position, pointer)?;
        let start = marker::start_of(header, true);
        self.lead(slot, start)
    }

    /// From an FPDU to the next by their lengths, as long as they check.
    fn walk(&mut self, mut lead: Lead) -> Walk {
        loop {
            let Some(wire) = Wire::held(&self.slab.buffers, lead.slot) else {
                return Walk::Incomplete;
            };
            let Some(extent) = Extent::read(wire, lead.start, self.framing) else {
                return Walk::Incomplete;
            };
            // Placed already? Its octets may be gone.
            if let Some(id) = self.slab.records.last_at(*self.records, extent.end - 1)
                && let Some(record) = self.slab.records.at(id).copied()
                && record.end > extent.start
            {
                if record.start != extent.start {
                    return Walk::Unsound(lead.start);
                }
                match self.onward(Some(lead.slot), record.end) {
                    Some(next) => lead = next,
                    None => return Walk::Incomplete,
                }
                continue;
            }
            if !wire.covers(extent.start, extent.end) {
                return Walk::Incomplete;
            }
            let placed = match extent.check(wire, self.framing) {
                Ok(ulpdu) => {
                    let room = self.slab.records.used() < self.slab.records.capacity();
                    let placed = room && self.sink.place_early(&ulpdu);
                    let mut header = [0; HEADER_OCTETS];
                    ulpdu.copy_to(0, &mut header);
                    placed.then_some(Record {
                        start: extent.start,
                        end: extent.end,
                        ulpdu_octets: extent.ulpdu_octets,
                        header,
                    })
                }
                Err(Unsound::Crc | Unsound::Marker) => {
                    self.counters.early_unsound += 1;
                    return Walk::Unsound(lead.start);
                }
            };
            *self.known = extent.end;
            let slot = match placed {
                Some(record) => self.record(record, lead.slot),
                None => Some(lead.slot),
            };
            match self.onward(slot, extent.end) {
                Some(next) => lead = next,
                None => return Walk::Incomplete,
            }
        }
    }

    /// Remembers a placed FPDU and lets go of its octets; gives the slot behind it.
    fn record(&mut self, record: Record, slot: u32) -> Option<u32> {
        self.counters.early_fpdus += 1;
        self.counters.early_octets += record.ulpdu_octets as u64;
        let after = self.slab.records.last_at(*self.records, record.start);
        // There is room: it was looked for before the sink was asked.
        let inserted = self.slab.records.insert(self.records, after, record);
        debug_assert!(inserted.is_ok());
        let (released, next) = self.held.account(self.slab, slot, record.start, record.end);
        self.released += released;
        next
    }

    /// The slot at or behind `slot` that holds `position`.
    fn onward(&self, slot: Option<u32>, position: u64) -> Option<Lead> {
        let mut at = slot;
        while let Some(id) = at {
            let held = self.slab.buffers.at(id)?;
            if held.end() > position {
                return (held.start <= position).then_some(Lead { slot: id, start: position });
            }
            at = self.slab.buffers.next(id);
        }
        None
    }
}
