//! Segments in flight in the order of their last transmission, so that overtaken ones are at the front
//! (RFC 8985 section 6.2, step 5: "a separate doubly linked list ordered by Segment.xmit_ts").
//!
//! The list runs through the records of the send queue; a segment is in it while it has
//! [`Marks::IN_FLIGHT`](crate::tcp::slabs::Marks::IN_FLIGHT).

use crate::Instant;
use crate::tcp::slabs::{SegmentKey, SegmentSlab, Sent};

/// The ends of the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// The segment sent longest ago.
    pub(super) oldest: Option<SegmentKey>,
    newest: Option<SegmentKey>,
    /// Transmissions so far; wraps.
    count: u32,
}

impl Flight {
    /// The segment sent last.
    pub(super) fn newest(&self) -> Option<SegmentKey> {
        self.newest
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

    /// Adds a segment that was sent now.
    #[inline]
    pub(super) fn append(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        let before = self.newest.replace(key);
        match before {
            Some(before) => slab.get_mut(before).sent_after = Some(key),
            None => self.oldest = Some(key),
        }
        let segment = slab.get_mut(key);
        (segment.sent_before, segment.sent_after) = (before, None);
    }

    /// Removes a segment that arrived or was marked lost.
    #[inline]
    pub(super) fn unlink(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        let segment = slab.get_mut(key);
        let (earlier, later) = (segment.sent_before.take(), segment.sent_after.take());
        match earlier {
            Some(earlier) => slab.get_mut(earlier).sent_after = later,
            None => self.oldest = later,
        }
        match later {
            Some(later) => slab.get_mut(later).sent_before = earlier,
            None => self.newest = earlier,
        }
    }

    /// Segments at the front were removed: `oldest` is the one behind them.
    #[inline]
    pub(super) fn set_oldest(&mut self, slab: &mut SegmentSlab, oldest: Option<SegmentKey>) {
        self.oldest = oldest;
        match oldest {
            Some(oldest) => slab.get_mut(oldest).sent_before = None,
            None => self.newest = None,
        }
    }

    /// Adds a segment that was wrongly marked lost, at the place of its last transmission. Searches from
    /// `near` on, which is in the list and was not sent later than it; `None`: from the front.
    pub(super) fn restore(&mut self, slab: &mut SegmentSlab, near: Option<SegmentKey>, key: SegmentKey) {
        let sent = slab.get(key).sent;
        let mut place = near;
        while let Some(next) = place.map_or(self.oldest, |place| slab.get(place).sent_after)
            && sent.is_after(slab.get(next).sent)
        {
            place = Some(next);
        }
        self.insert_after(slab, place, key);
    }

    #[inline]
    fn insert_after(&mut self, slab: &mut SegmentSlab, earlier: Option<SegmentKey>, key: SegmentKey) {
        let later = match earlier {
            Some(earlier) => slab.get_mut(earlier).sent_after.replace(key),
            None => self.oldest.replace(key),
        };
        match later {
            Some(later) => slab.get_mut(later).sent_before = Some(key),
            None => self.newest = Some(key),
        }
        let segment = slab.get_mut(key);
        (segment.sent_before, segment.sent_after) = (earlier, later);
    }
}
