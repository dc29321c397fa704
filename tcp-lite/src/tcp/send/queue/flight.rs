//! Segments in flight in the order of their last transmission, so that the segments that may be lost are at
//! the front (RFC 8985 section 6.2, step 5: "a separate doubly linked list ordered by Segment.xmit_ts").
//!
//! A segment is in the list while it has [`Marks::IN_FLIGHT`](crate::tcp::slabs::Marks::IN_FLIGHT).

use super::list::SegmentList;
use crate::Instant;
use crate::tcp::slabs::{SegmentKey, SegmentSlab, Sent};

/// The list. The segment that was sent longest ago is first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    pub(super) list: SegmentList,
    /// Number of transmissions so far, which wraps.
    count: u32,
}

impl Flight {
    /// The segment that was sent longest ago; `None` if no segment is in flight.
    #[inline]
    pub(super) fn oldest(&self) -> Option<SegmentKey> {
        self.list.first
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Numbers a transmission that is made now.
    #[inline]
    pub(super) fn number_transmission(&mut self, now: Instant) -> Sent {
        self.count = self.count.wrapping_add(1);
        Sent { at: now, nr: self.count }
    }

    /// Inserts a segment that was wrongly marked lost where its last transmission belongs. The search starts
    /// at `near`, a segment of the list that was not sent later than `key`. If `near` is `None`, the search
    /// starts at the front. `steps` becomes smaller by one for each segment that the search passes. If no
    /// step is left, returns `false` and changes nothing else.
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
