//! The segments of one queue, oldest first: first the sent segments, then the unsent segments.
//!
//! The segments are linked by [`Segment::next`](crate::tcp::slabs::Segment::next). This module implements
//! only the list. The owner of the queue frees the records, and the scoreboard keeps the marks.

use super::list::walk;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{SegmentKey, SegmentSlab};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueuedSegments {
    head: Option<SegmentKey>,
    tail: Option<SegmentKey>,
    /// The first segment that was never sent; `None` if all segments were sent.
    unsent: Option<SegmentKey>,
    /// The last segment that was sent. The value is not valid if no sent segment is queued.
    last_sent: Option<SegmentKey>,
    count: u32,
}

impl QueuedSegments {
    /// The oldest segment; `None` if the queue is empty.
    #[inline]
    pub(super) fn head(&self) -> Option<SegmentKey> {
        self.head
    }

    /// The oldest segment, if it was sent.
    #[inline]
    pub(super) fn oldest_sent(&self) -> Option<SegmentKey> {
        self.if_sent(self.head)
    }

    /// The last sent segment of the queue; `None` if no sent segment is queued.
    #[inline]
    pub(super) fn last_sent(&self) -> Option<SegmentKey> {
        self.oldest_sent().and(self.last_sent)
    }

    /// Returns `next` if it was sent. `next` is the oldest segment, or the segment after a sent segment.
    #[inline]
    pub(super) fn if_sent(&self, next: Option<SegmentKey>) -> Option<SegmentKey> {
        next.filter(|key| self.unsent != Some(*key))
    }

    /// The first segment that was never sent; `None` if all segments were sent.
    #[inline]
    pub(super) fn unsent(&self) -> Option<SegmentKey> {
        self.unsent
    }

    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    pub(super) fn append(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        self.count += 1;
        match self.tail {
            Some(tail) => slab.get_mut(tail).next = Some(key),
            None => self.head = Some(key),
        }
        self.tail = Some(key);
        self.unsent = self.unsent.or(Some(key));
    }

    /// Called when `key`, the segment at the front of the unsent segments, has been sent. `next` is the
    /// segment after `key`.
    #[inline]
    pub(super) fn on_sent(&mut self, key: SegmentKey, next: Option<SegmentKey>) {
        self.unsent = next;
        self.last_sent = Some(key);
    }

    /// Called when the oldest `count` segments, which had all been sent, were removed. `next` is the first
    /// remaining segment.
    #[inline]
    pub(super) fn on_run_removed(&mut self, count: u32, next: Option<SegmentKey>) {
        self.count -= count;
        self.head = next;
        if next.is_none() {
            self.tail = None;
        }
    }

    /// Called when the oldest segment, `key`, was removed, whether it was sent or not. `next` is the segment
    /// after `key`.
    pub(super) fn on_head_removed(&mut self, key: SegmentKey, next: Option<SegmentKey>) {
        self.on_run_removed(1, next);
        if self.unsent == Some(key) {
            self.unsent = next;
        }
    }

    /// Called when the segment `first` was split. `second` is the rest of the segment.
    pub(super) fn on_split(&mut self, first: SegmentKey, second: SegmentKey) {
        self.count += 1;
        if self.last_sent == Some(first) {
            self.last_sent = Some(second);
        }
        if self.tail == Some(first) {
            self.tail = Some(second);
        }
    }

    /// Checks that the segments are linked from the first to the last without a gap, and that the cursors
    /// point to segments of the list.
    pub(super) fn check(&self, slab: &SegmentSlab) -> Check {
        let (mut pos, mut last, mut last_sent, mut is_sent, mut count) = (None, None, None, true, 0);
        for key in walk(slab, self.head, |segment| segment.next) {
            let (key, segment) = key?;
            is_sent &= self.unsent != Some(key);
            last_sent = Some(key).filter(|_| is_sent).or(last_sent);
            ensure!(pos.is_none_or(|pos| pos == segment.pos), "a gap in the queue at {}", segment.pos);
            ensure!(segment.len > 0, "a segment without bytes at {}", segment.pos);
            pos = Some(segment.end());
            (last, count) = (Some(key), count + 1);
        }
        ensure!(is_sent == self.unsent.is_none(), "a cursor outside of the queue: {self:?}");
        let said = self.last_sent();
        ensure!(said == last_sent, "the last one sent is {said:?}, not {last_sent:?}");
        ensure!(self.tail == last, "the tail is {:?}, not {last:?}", self.tail);
        ensure!(self.count == count, "{} segments of {count} in the queue", self.count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::SendQueue;
    use super::super::test_queue::{Break, FiveSegments, assert_all_found};
    use crate::Instant;
    use crate::tcp::slabs::Marks;

    #[test]
    fn a_torn_queue_is_found() {
        assert_all_found(&[
            (|q| q.segment(2).pos += 1, "a gap in the queue at 202"),
            (|q| q.segment(2).len += 1, "a gap in the queue at 301"),
            (|q| q.segment(4).len = 0, "a segment without bytes at 401"),
            (|q| q.segment(3).next = None, "a cursor outside of the queue"),
            (|q| q.segment(4).next = Some(q.dangling()), "is linked and not there"),
            (|q| q.queue.segments.head = Some(q.dangling()), "is linked and not there"),
            (|q| q.queue.segments.head = q.segment(0).next, "5 segments of 4 in the queue"),
            (|q| q.queue.segments.tail = Some(q.keys[3]), "the tail is"),
            (|q| q.queue.segments.tail = None, "the tail is None"),
            (|q| q.queue.segments.count -= 1, "4 segments of 5 in the queue"),
        ]);
    }

    #[test]
    fn cursors_outside_of_the_queue_are_found() {
        let broken: [(Break, &str); 5] = [
            (|q| q.queue.segments.unsent = Some(q.dangling()), "a cursor outside of the queue"),
            (|q| q.queue.segments.unsent = None, "the last one sent is"),
            (|q| q.queue.segments.unsent = Some(q.keys[3]), "the last one sent is"),
            (
                |q| q.queue.segments.last_sent = Some(q.keys[2]),
                "the last one sent is Some(SegmentKey(3)), not",
            ),
            (|q| q.queue.segments.last_sent = None, "the last one sent is None, not"),
        ];
        assert_all_found(&broken);
    }

    #[test]
    fn the_segments_that_were_sent_are_those_in_front_of_the_first_that_was_not() {
        let FiveSegments { mut slab, mut queue, keys } = FiveSegments::new();
        let ends = |queue: &SendQueue| {
            let segments = &queue.segments;
            (segments.oldest_sent(), segments.last_sent(), segments.unsent(), segments.count())
        };
        assert_eq!(ends(&queue), (Some(keys[0]), Some(keys[3]), Some(keys[4]), 5));
        assert!(queue.split(&mut slab, keys[4], 50));
        let rest = slab.get(keys[4]).next;
        queue.on_sent(&mut slab, Instant::from_millis(9));
        assert_eq!(ends(&queue), (Some(keys[0]), Some(keys[4]), rest, 6));
        queue.on_sent(&mut slab, Instant::from_millis(9));
        assert_eq!(ends(&queue), (Some(keys[0]), rest, None, 6));
        let last = rest.expect("a segment");
        queue.sent().set_marks(&mut slab, last, Marks::LOST);
        assert!(queue.split(&mut slab, last, 10));
        let last = slab.get(last).next;
        assert_eq!(ends(&queue), (Some(keys[0]), last, None, 7), "the rest was sent, too");
        queue.check(&slab).expect("invariants");
        queue.clear(&mut slab);
        assert_eq!(ends(&queue), (None, None, None, 0));
    }
}
