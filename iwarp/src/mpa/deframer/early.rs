//! Out-of-order FPDUs, placed before the hole in front of them is filled (section 4.3; appendices A.3, B.2).
//!
//! Every FPDU begins at a multiple of 4 and a marker says where one begins, so that an isolated buffer can be
//! searched. What a marker points to is believed only under a valid CRC; from a valid FPDU the next one is
//! found by length. Nothing here is an error: what does not check is left to be met in order.

use super::Deframer;
use super::fpdu::{Extent, Unsound};
use super::held::{HeldList, HeldSlab};
use super::ordered::Stretch;
use super::ulpdu::Wire;
use crate::mpa::marker;

/// Bytes of a ULPDU that a record keeps: the longest DDP header.
pub(super) const HEADER_BYTES: usize = 18;

/// FPDUs with a bad CRC that one buffer may lead to: what is summed for each buffer has a limit.
const FAILURES: u32 = 2;

/// An FPDU that was placed early.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) ulpdu_bytes: usize,
    header: [u8; HEADER_BYTES],
}

impl Record {
    /// The first bytes of its ULPDU.
    pub(super) fn header(&self) -> &[u8] {
        &self.header[..self.ulpdu_bytes.min(HEADER_BYTES)]
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

/// A sound FPDU ahead of the frontier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// The slot that holds its beginning.
    pub(super) slot: u32,
    pub(super) extent: Extent,
}

/// Where an FPDU begins ahead of the frontier.
#[derive(Clone, Copy, Debug)]
struct Lead {
    /// The slot that holds it.
    slot: u32,
    start: u64,
}

/// How far a walk by lengths came.
enum Walk {
    /// To an FPDU that checks, and for which there is a record.
    Found(Found),
    /// To bytes that have not come yet: no marker leads further now.
    Incomplete,
    /// To an FPDU that does not check, at this position.
    Unsound(u64),
}

/// A search for the FPDUs that new bytes make whole.
#[derive(Debug)]
pub(super) struct Search {
    /// The slot of the new bytes, and where they end.
    slot: u32,
    to: u64,
    /// The position of the marker that was followed last.
    marker: u64,
    /// Where a walk by lengths begins.
    lead: Option<Lead>,
    /// The FPDU that was found last, until it is placed.
    found: Option<Found>,
    /// Where the walk goes on behind it: slot and position.
    behind: Option<(Option<u32>, u64)>,
    /// Where the last walk met an FPDU that does not check, and how many did.
    unsound: Option<u64>,
    failures: u32,
}

impl Search {
    /// The bytes `from..to` are new, in slot `slot`.
    pub(super) fn new(deframer: &Deframer, slab: &HeldSlab, slot: u32, from: u64, to: u64) -> Self {
        let known = (deframer.known < to).then(|| lead(slab, slot, deframer.known)).flatten();
        // The last marker in front of the new bytes belongs to the FPDU that they continue, or to one shortly
        // before.
        let marker = from.saturating_sub(1) / marker::INTERVAL * marker::INTERVAL;
        let lead = known.or_else(|| follow(slab, slot, marker));
        Self { slot, to, marker, lead, found: None, behind: None, unsound: None, failures: 0 }
    }

    /// The next FPDU to place; `None`: that is all.
    pub(super) fn next(&mut self, deframer: &mut Deframer, slab: &HeldSlab) -> Option<Found> {
        if let Some((slot, position)) = self.behind.take() {
            self.lead = Some(onward(slab, slot, position)?);
        }
        loop {
            if let Some(lead) = self.lead.take() {
                match walk(lead, deframer, slab) {
                    Walk::Found(found) => {
                        self.found = Some(found);
                        self.behind = Some((Some(found.slot), found.extent.end));
                        return Some(found);
                    }
                    Walk::Incomplete => return None,
                    Walk::Unsound(position) => self.unsound = Some(position),
                }
                self.failures += 1;
                if self.failures == FAILURES {
                    return None;
                }
            }
            self.marker += marker::INTERVAL;
            // A marker in front of the new bytes cannot lead to more than a known place or the last of them
            // did.
            if self.marker >= self.to || slab.buffers.at(self.slot).is_none() {
                return None;
            }
            let is_new = |lead: &Lead| self.unsound.is_none_or(|unsound| unsound < lead.start);
            self.lead = follow(slab, self.slot, self.marker).filter(is_new);
        }
    }

    /// The FPDU found last has been placed: remembers it, and lets go of its bytes.
    pub(super) fn mark_placed(&mut self, deframer: &mut Deframer, slab: &mut HeldSlab) {
        let Some(Found { slot, extent }) = self.found.take() else { return };
        let Some(wire) = Wire::held(&slab.buffers, slot) else { return };
        let mut header = [0; HEADER_BYTES];
        extent.ulpdu(wire, deframer.framing).copy_to(0, &mut header);
        let Extent { start, end, ulpdu_bytes, .. } = extent;
        let record = Record { start, end, ulpdu_bytes, header };
        deframer.counters.early_fpdus += 1;
        deframer.counters.early_bytes += ulpdu_bytes as u64;
        let after = slab.records.last_at(deframer.records, start);
        // There is room: it was looked for when the FPDU was found.
        let inserted = slab.records.insert(&mut deframer.records, after, record);
        debug_assert!(inserted.is_ok());
        let (released, next) = deframer.held.account(slab, slot, start, end);
        deframer.released += released;
        self.behind = Some((next, end));
    }
}

/// From an FPDU to the next by their lengths, as long as they check, down to one that can be
/// placed.
fn walk(mut lead: Lead, deframer: &mut Deframer, slab: &HeldSlab) -> Walk {
    let framing = deframer.framing;
    loop {
        let Some(wire) = Wire::held(&slab.buffers, lead.slot) else {
            return Walk::Incomplete;
        };
        let Some(extent) = Extent::read(wire, lead.start, framing) else {
            return Walk::Incomplete;
        };
        // Placed already? Its bytes may be gone.
        if let Some(id) = slab.records.last_at(deframer.records, extent.end - 1)
            && let Some(record) = slab.records.at(id)
            && record.end > extent.start
        {
            if record.start != extent.start {
                return Walk::Unsound(lead.start);
            }
            match onward(slab, Some(lead.slot), record.end) {
                Some(next) => lead = next,
                None => return Walk::Incomplete,
            }
            continue;
        }
        if !wire.covers(extent.start, extent.end) {
            return Walk::Incomplete;
        }
        match extent.check(wire, framing) {
            Ok(()) => deframer.known = extent.end,
            Err(Unsound::Crc | Unsound::Marker) => {
                deframer.counters.early_unsound += 1;
                return Walk::Unsound(lead.start);
            }
        }
        if slab.records.used() < slab.records.capacity() {
            return Walk::Found(Found { slot: lead.slot, extent });
        }
        match onward(slab, Some(lead.slot), extent.end) {
            Some(next) => lead = next,
            None => return Walk::Incomplete,
        }
    }
}

/// The beginning of the FPDU at `start`, if it is held in one piece with slot `slot`.
fn lead(slab: &HeldSlab, slot: u32, start: u64) -> Option<Lead> {
    HeldList::back_to(slab, slot, start).map(|slot| Lead { slot, start })
}

/// Where the marker at `position` leads to.
fn follow(slab: &HeldSlab, slot: u32, position: u64) -> Option<Lead> {
    let holder = HeldList::back_to(slab, slot, position)?;
    let pointer = marker::decode(Wire::held(&slab.buffers, holder)?.read(position)?);
    let header = marker::target(position, pointer)?;
    lead(slab, slot, marker::start_of(header, true))
}

/// The slot at or behind `slot` that holds `position`.
fn onward(slab: &HeldSlab, slot: Option<u32>, position: u64) -> Option<Lead> {
    let mut at = slot;
    while let Some(id) = at {
        let held = slab.buffers.at(id)?;
        if held.end() > position {
            return (held.start <= position).then_some(Lead { slot: id, start: position });
        }
        at = slab.buffers.next(id);
    }
    None
}
