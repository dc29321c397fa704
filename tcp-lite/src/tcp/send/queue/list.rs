//! A doubly linked list through the records of the send queue. A segment is in one list at a time.

use crate::tcp::slabs::{SegmentKey, SegmentSlab};

/// The ends of the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentList {
    pub(super) first: Option<SegmentKey>,
    pub(super) last: Option<SegmentKey>,
}

impl SegmentList {
    /// Adds a segment at the end.
    #[inline]
    pub(super) fn append(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        let before = self.last.replace(key);
        match before {
            Some(before) => slab.get_mut(before).later = Some(key),
            None => self.first = Some(key),
        }
        let segment = slab.get_mut(key);
        (segment.earlier, segment.later) = (before, None);
    }

    /// Removes a segment.
    #[inline]
    pub(super) fn unlink(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        let segment = slab.get_mut(key);
        let (earlier, later) = (segment.earlier.take(), segment.later.take());
        match earlier {
            Some(earlier) => slab.get_mut(earlier).later = later,
            None => self.first = later,
        }
        match later {
            Some(later) => slab.get_mut(later).earlier = earlier,
            None => self.last = earlier,
        }
    }

    /// Adds a segment behind `earlier`; `None`: at the front.
    #[inline]
    pub(super) fn insert_after(
        &mut self,
        slab: &mut SegmentSlab,
        earlier: Option<SegmentKey>,
        key: SegmentKey,
    ) {
        let later = match earlier {
            Some(earlier) => slab.get_mut(earlier).later.replace(key),
            None => self.first.replace(key),
        };
        match later {
            Some(later) => slab.get_mut(later).earlier = Some(key),
            None => self.last = Some(key),
        }
        let segment = slab.get_mut(key);
        (segment.earlier, segment.later) = (earlier, later);
    }

    /// Segments at the front were removed: `first` is the one behind them.
    #[inline]
    pub(super) fn set_first(&mut self, slab: &mut SegmentSlab, first: Option<SegmentKey>) {
        self.first = first;
        match first {
            Some(first) => slab.get_mut(first).earlier = None,
            None => self.last = None,
        }
    }
}
