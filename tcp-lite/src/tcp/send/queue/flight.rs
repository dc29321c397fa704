//! Segments in flight in the order of their last transmission, so that overtaken ones are at the front
//! (RFC 8985 section 6.2, step 5: "a separate doubly linked list ordered by Segment.xmit_ts").
//!
//! A segment is in the list while it has [`Marks::IN_FLIGHT`](crate::tcp::slabs::Marks::IN_FLIGHT).

use super::list::SegmentList;
use crate::Instant;
use crate::tcp::slabs::{SegmentKey, SegmentSlab, Sent};

/// The list, the segment sent longest ago first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    pub(super) list: SegmentList,
    /// Transmissions so far; wraps.
    count: u32,
}

impl Flight {
    /// The segment sent longest ago.
    #[inline]
    pub(super) fn oldest(&self) -> Option<SegmentKey> {
        self.list.first
    }

    /// Number of the last transmission; wraps.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Numbers a transmission made now.
    #[inline]
    pub(super) fn number_transmission(&mut self, now: Instant) -> Sent {
        self.count = self.count.wrapping_add(1);
        Sent { at: now, nr: self.count }
    }

    /// Adds a segment that was wrongly marked lost, at the place of its last transmission. Searches from
    /// `near` on, which is in the list and was not sent later than it; `None`: from the front. Takes each
    /// segment that is passed off `steps`, and returns `false`, without a change, when none is left.
    pub(super) fn restore(
        &mut self,
        slab: &mut SegmentSlab,
        near: Option<SegmentKey>,
        key: SegmentKey,
        steps: &mut u32,
    ) -> bool {
        let sent = slab.get(key).sent;
        let mut place = near;
        while let Some(next) = place.map_or(self.list.first, |place| slab.get(place).later)
            && sent.is_after(slab.get(next).sent)
        {
            let Some(left) = steps.checked_sub(1) else { return false };
            *steps = left;
            place = Some(next);
        }
        self.list.insert_after(slab, place, key);
        true
    }
}
