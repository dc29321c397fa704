//! Out-of-order FPDUs that are placed while bytes before them are still missing (RFC 5044 section 4.3;
//! appendices A.3, B.2).
//!
//! FPDUs can be found in an isolated buffer, because each marker points to the beginning of an FPDU. A
//! position from a marker is used only if the FPDU at this position is valid: its markers and, if CRCs are in
//! use, its CRC must be correct. The length of a valid FPDU gives the position of the next FPDU. A failed
//! check of an out-of-order FPDU is no error: the FPDU is checked again in order.

use super::Deframer;
use super::early_fpdu::{EarlyFpdu, HEAD_BYTES};
use super::fpdu::{Extent, Unsound};
use super::held::{HeldList, HeldSlab};
use super::ordered::StreamRange;
use super::ulpdu::Wire;
use crate::mpa::marker;

/// Number of FPDUs with a failed check after which a search ends. A damaged length or marker makes one walk
/// fail. The second walk starts at a later marker. Each further walk would compute the CRC of another whole
/// FPDU.
const MAX_FAILURES: u32 = 2;

/// A valid FPDU ahead of the next expected byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundFpdu {
    /// The slot that holds the first byte of the FPDU.
    pub(super) slot: u32,
    pub(super) extent: Extent,
}

/// The beginning of an FPDU ahead of the next expected byte.
#[derive(Clone, Copy, Debug)]
struct FpduStart {
    /// The slot that holds the byte at `position`.
    slot: u32,
    position: u64,
}

/// The result of a walk from FPDU to FPDU by their lengths.
enum Walk {
    /// A valid FPDU was found, and a slot for an early FPDU is free.
    Found(FoundFpdu),
    /// The walk found a byte that is missing. Bytes that arrive later start a new search.
    Incomplete,
    /// The FPDU at this position failed a check.
    Unsound(u64),
}

/// A search for the FPDUs that newly arrived bytes have completed.
#[derive(Debug)]
pub(super) struct Search {
    /// The slot of the new bytes; `to` is the position after these bytes.
    slot: u32,
    to: u64,
    /// The position of the last marker that was followed.
    marker: u64,
    /// The FPDU at which the next walk by lengths begins.
    start: Option<FpduStart>,
    /// The last FPDU that was found, until it is placed.
    found: Option<FoundFpdu>,
    /// Slot and position at which the walk continues after the FPDU in `found`.
    resume_at: Option<(Option<u32>, u64)>,
    /// The position of the FPDU that failed a check in the last walk. `failures` is the number of such FPDUs
    /// in this search.
    unsound: Option<u64>,
    failures: u32,
}

impl Search {
    /// Returns a search for the FPDUs that the bytes `from..to` in slot `slot` have completed.
    pub(super) fn new(deframer: &Deframer, slab: &HeldSlab, slot: u32, from: u64, to: u64) -> Self {
        let known =
            (deframer.known_start < to).then(|| held_start(slab, slot, deframer.known_start)).flatten();
        // The last marker before the new bytes points to the FPDU that these bytes continue, or to an FPDU
        // shortly before that FPDU.
        let marker = from.saturating_sub(1) / marker::INTERVAL * marker::INTERVAL;
        let start = known.or_else(|| follow(slab, slot, marker));
        Self { slot, to, marker, start, found: None, resume_at: None, unsound: None, failures: 0 }
    }

    /// Returns the next FPDU to place, or `None` at the end of the search.
    pub(super) fn next(&mut self, deframer: &mut Deframer, slab: &HeldSlab) -> Option<FoundFpdu> {
        if let Some((slot, position)) = self.resume_at.take() {
            self.start = Some(start_at_or_after(slab, slot, position)?);
        }
        loop {
            if let Some(start) = self.start.take() {
                match walk(start, deframer, slab) {
                    Walk::Found(found) => {
                        self.found = Some(found);
                        self.resume_at = Some((Some(found.slot), found.extent.end));
                        return Some(found);
                    }
                    Walk::Incomplete => return None,
                    Walk::Unsound(position) => self.unsound = Some(position),
                }
                self.failures += 1;
                if self.failures == MAX_FAILURES {
                    return None;
                }
            }
            self.marker += marker::INTERVAL;
            // Only markers in the new bytes have not been followed yet. The first walk, which started at the
            // known position or at the last marker before the new bytes, has found every FPDU that an earlier
            // marker leads to.
            if self.marker >= self.to || slab.buffers.at(self.slot).is_none() {
                return None;
            }
            let is_new = |start: &FpduStart| self.unsound.is_none_or(|unsound| unsound < start.position);
            self.start = follow(slab, self.slot, self.marker).filter(is_new);
        }
    }

    /// Records that the last FPDU that was found has been placed: keeps the FPDU's header and frees its
    /// bytes.
    pub(super) fn mark_placed(&mut self, deframer: &mut Deframer, slab: &mut HeldSlab) {
        let Some(FoundFpdu { slot, extent }) = self.found.take() else { return };
        // If one of these steps fails, the FPDU stays held, and is handed up again in order.
        let Some(wire) = Wire::held(&slab.buffers, slot) else {
            return debug_assert!(false, "slot {slot} of an FPDU is free");
        };
        let mut head = [0; HEAD_BYTES];
        extent.ulpdu(wire, deframer.framing).copy_to(0, &mut head);
        let Extent { start, end, ulpdu_bytes, .. } = extent;
        let fpdu = EarlyFpdu { start, end, ulpdu_bytes, head };
        let after = slab.early.last_at(deframer.early, start);
        if slab.early.insert(&mut deframer.early, after, fpdu).is_err() {
            return debug_assert!(false, "`walk` has seen a free slot");
        }
        deframer.counters.early_fpdus += 1;
        deframer.counters.early_bytes += ulpdu_bytes as u64;
        let (released, next) = deframer.held.mark_placed(slab, slot, start, end);
        deframer.released += released;
        self.resume_at = Some((next, end));
    }
}

/// Walks from FPDU to FPDU by their lengths, as long as each FPDU is complete and valid. Ends at the first
/// FPDU that can be placed.
fn walk(mut start: FpduStart, deframer: &mut Deframer, slab: &HeldSlab) -> Walk {
    let framing = deframer.framing;
    loop {
        let Some(wire) = Wire::held(&slab.buffers, start.slot) else {
            return Walk::Incomplete;
        };
        let Some(extent) = Extent::read(wire, start.position, framing) else {
            return Walk::Incomplete;
        };
        // The FPDU may already have been placed, and its bytes freed.
        if let Some(id) = slab.early.last_at(deframer.early, extent.end - 1)
            && let Some(early) = slab.early.at(id)
            && early.end > extent.start
        {
            if early.start != extent.start {
                return Walk::Unsound(start.position);
            }
            match start_at_or_after(slab, Some(start.slot), early.end) {
                Some(next) => start = next,
                None => return Walk::Incomplete,
            }
            continue;
        }
        if !wire.covers(extent.start, extent.end) {
            return Walk::Incomplete;
        }
        // RFC 5044 section 6 (MPA-126, MPA-127): only a valid FPDU, whose CRC is correct if CRCs are in use,
        // is handed up and gives the start of the next FPDU.
        match extent.check(wire, framing) {
            Ok(()) => deframer.known_start = extent.end,
            Err(Unsound::Crc | Unsound::Marker) => {
                deframer.counters.early_unsound += 1;
                return Walk::Unsound(start.position);
            }
        }
        if slab.early.used() < slab.early.capacity() {
            return Walk::Found(FoundFpdu { slot: start.slot, extent });
        }
        match start_at_or_after(slab, Some(start.slot), extent.end) {
            Some(next) => start = next,
            None => return Walk::Incomplete,
        }
    }
}

/// Returns the beginning of the FPDU at `position`, if all bytes from this position to slot `slot` are held.
fn held_start(slab: &HeldSlab, slot: u32, position: u64) -> Option<FpduStart> {
    HeldList::back_to(slab, slot, position).map(|slot| FpduStart { slot, position })
}

/// Returns the beginning of the FPDU that the marker at `position` points to, if all bytes from this
/// beginning to slot `slot` are held.
fn follow(slab: &HeldSlab, slot: u32, position: u64) -> Option<FpduStart> {
    let holder = HeldList::back_to(slab, slot, position)?;
    let pointer = marker::decode(Wire::held(&slab.buffers, holder)?.read(position)?);
    let length_at = marker::target(position, pointer)?;
    held_start(slab, slot, marker::start_of(length_at, true))
}

/// Searches the slots from `slot` on for the slot that holds `position`. Returns `position` with that slot,
/// or `None` if no slot holds it.
fn start_at_or_after(slab: &HeldSlab, slot: Option<u32>, position: u64) -> Option<FpduStart> {
    let mut at = slot;
    while let Some(id) = at {
        let held = slab.buffers.at(id)?;
        if held.end() > position {
            return (held.start <= position).then_some(FpduStart { slot: id, position });
        }
        at = slab.buffers.next(id);
    }
    None
}
