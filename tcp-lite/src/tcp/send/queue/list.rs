//! A doubly linked list through the records of the send queue. A segment is in at most one list at a time.

use crate::invariant::Check;
use crate::tcp::slabs::{Segment, SegmentKey, SegmentSlab};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentList {
    pub(super) first: Option<SegmentKey>,
    pub(super) last: Option<SegmentKey>,
}

impl SegmentList {
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

    /// Inserts a segment after `earlier`, or at the front if `earlier` is `None`.
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

    /// Called when segments at the front were removed. `first` is the first remaining segment.
    #[inline]
    pub(super) fn set_first(&mut self, slab: &mut SegmentSlab, first: Option<SegmentKey>) {
        self.first = first;
        match first {
            Some(first) => slab.get_mut(first).earlier = None,
            None => self.last = None,
        }
    }
}

/// Visits a list from `first` on, for checks. Returns an error for a dangling or circular link.
pub(super) fn walk(
    slab: &SegmentSlab,
    first: Option<SegmentKey>,
    next: impl Fn(&Segment) -> Option<SegmentKey>,
) -> impl Iterator<Item = Check<(SegmentKey, &Segment)>> {
    let (mut cursor, mut left) = (first, slab.len());
    std::iter::from_fn(move || {
        let key = cursor.take()?;
        let Some(segment) = slab.find(key) else {
            return Some(Err(format!("{key:?} is linked and not there")));
        };
        if left == 0 {
            return Some(Err("segments linked in a circle".into()));
        }
        left -= 1;
        cursor = next(segment);
        Some(Ok((key, segment)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_queue::FiveSegments;
    use super::*;
    use crate::invariant::assert_found;

    #[test]
    fn segments_linked_in_a_circle_are_found() {
        let mut q = FiveSegments::new();
        q.segment(3).later = Some(q.keys[2]);
        let mut circle = walk(&q.slab, Some(q.keys[2]), |segment| segment.later);
        assert_found(circle.find_map(Check::err).map_or(Ok(()), Err), "segments linked in a circle");
        // The check of the whole queue finds another error first: the link to the previous segment is wrong.
        assert_found(q.check(), "the order of transmission is torn at 201");
    }
}
