//! Which segments arrived and which are lost: SACK and loss inference by segment (RFC 2018, RFC 6675 section 4).
//!
//! Marks are on the segments of the send queue. Loss recovery as a process is in `recovery.rs`.

use super::send::{Marks, SegmentKey, SegmentSlab, SendQueue};
use crate::Instant;

/// Segments that must have arrived above a hole before it counts as lost (RFC 6675, `DupThresh`).
pub(super) const DUP_THRESHOLD: u32 = 3;

impl SendQueue {
    /// The peer holds `start..end`: marks the segments wholly inside. Returns whether any was news.
    pub(super) fn sack(&mut self, slab: &mut SegmentSlab, start: u64, end: u64) -> bool {
        let mut news = false;
        let mut cursor = self.head;
        while let Some(key) = cursor {
            let segment = slab.get(key);
            if segment.pos >= end || self.unsent == Some(key) {
                break;
            }
            cursor = segment.next;
            if segment.pos >= start && segment.end() <= end && !segment.marks.contains(Marks::SACKED) {
                let marks = (segment.marks | Marks::SACKED) - Marks::LOST;
                self.set_marks(slab, key, marks);
                news = true;
            }
        }
        news
    }

    /// Marks holes below [`DUP_THRESHOLD`] arrived segments as lost. Returns whether any is new.
    pub(super) fn infer_lost(&mut self, slab: &mut SegmentSlab) -> bool {
        let mut above = self.sacked_segments;
        let mut news = false;
        let mut cursor = self.head;
        while let Some(key) = cursor {
            if above < DUP_THRESHOLD || self.unsent == Some(key) {
                break;
            }
            let segment = slab.get(key);
            cursor = segment.next;
            if segment.marks.contains(Marks::SACKED) {
                above -= 1;
            } else {
                news |= self.mark_lost(slab, key);
            }
        }
        news
    }

    /// Marks the oldest sent segment as lost. Returns whether it is new.
    pub(super) fn mark_head_lost(&mut self, slab: &mut SegmentSlab) -> bool {
        match self.head {
            Some(key) if self.unsent != Some(key) => self.mark_lost(slab, key),
            _ => false,
        }
    }

    fn mark_lost(&mut self, slab: &mut SegmentSlab, key: SegmentKey) -> bool {
        let marks = slab.get(key).marks;
        if marks.intersects(Marks::LOST | Marks::REPAIRED | Marks::SACKED) {
            return false;
        }
        self.set_marks(slab, key, marks | Marks::LOST);
        self.repair = self.head;
        true
    }

    /// The timer expired: everything sent and not known to have arrived is lost, repaired or not. A peer that
    /// selectively acknowledged its frontier's next octet took that back (RFC 2018 section 8): then nothing is
    /// known to have arrived. Returns whether the oldest segment had not been sent again before.
    pub(super) fn mark_all_lost(&mut self, slab: &mut SegmentSlab) -> bool {
        let reneged = self.head.is_some_and(|key| slab.get(key).marks.contains(Marks::SACKED));
        let first = self.head.is_none_or(|key| !slab.get(key).marks.contains(Marks::RESENT));
        let mut cursor = self.head;
        while let Some(key) = cursor {
            if self.unsent == Some(key) {
                break;
            }
            let segment = slab.get(key);
            cursor = segment.next;
            if reneged || !segment.marks.contains(Marks::SACKED) {
                let marks = (segment.marks & Marks::RESENT) | Marks::LOST;
                self.set_marks(slab, key, marks);
            }
        }
        self.repair = self.head;
        first
    }

    /// Recovery is over: what was sent again may be inferred lost again.
    pub(super) fn forget_repairs(&mut self, slab: &mut SegmentSlab) {
        let mut cursor = self.head;
        while let Some(key) = cursor {
            if self.unsent == Some(key) {
                break;
            }
            let segment = slab.get_mut(key);
            segment.marks -= Marks::REPAIRED;
            cursor = segment.next;
        }
    }

    /// The oldest segment marked lost.
    pub(super) fn next_repair(&mut self, slab: &SegmentSlab) -> Option<SegmentKey> {
        if self.lost_octets == 0 {
            return None;
        }
        while let Some(key) = self.repair {
            let segment = slab.get(key);
            if segment.marks.contains(Marks::LOST) {
                return Some(key);
            }
            self.repair = segment.next;
        }
        None
    }

    /// A lost segment was sent again.
    pub(super) fn on_repaired(&mut self, slab: &mut SegmentSlab, key: SegmentKey, now: Instant) {
        slab.get_mut(key).sent_at = now;
        let marks = (slab.get(key).marks - Marks::LOST) | Marks::RESENT | Marks::REPAIRED;
        self.set_marks(slab, key, marks);
    }
}
