//! Chooses the segments that may be sent together with a new segment (see `send/train.rs`).

use super::SendQueue;
use crate::tcp::slabs::{EXTERNAL_VIEWS, SegmentKey, SegmentSlab};

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct TrainLimits {
    /// Maximum number of segments.
    pub(in crate::tcp::send) segments: usize,
    /// Maximum number of contiguous ranges of memory.
    pub(in crate::tcp::send) views: usize,
    /// Maximum number of payload bytes.
    pub(in crate::tcp::send) bytes: u64,
    /// The number of bytes that the congestion window still allows. A segment joins the train only if the
    /// segments before it have fewer bytes than `allowance`.
    pub(in crate::tcp::send) allowance: u64,
}

impl SendQueue {
    /// The number of segments that may be sent together from the new segment `first` on. These segments have
    /// the same length, except that the last segment may be shorter. Either all or none of these segments
    /// have external memory, and the peer's window covers all of them. Also returns whether the last of these
    /// segments is the last segment of the queue.
    #[inline]
    pub(in crate::tcp::send) fn train(
        &self,
        slab: &SegmentSlab,
        first: SegmentKey,
        limits: &TrainLimits,
    ) -> (usize, bool) {
        let bytes = u64::from(slab.get(first).len);
        let external = slab.is_external(first);
        let mut views = limits.views;
        if external {
            views = views.saturating_sub(EXTERNAL_VIEWS - 1);
        }
        let (mut last, mut count, mut sum) = (first, 1, bytes);
        while count < limits.segments
            && sum < limits.allowance
            && let Some(next) = self.follower(slab, last, bytes)
        {
            let segment = slab.get(next);
            if sum + u64::from(segment.len) > limits.bytes {
                break;
            }
            if external || !slab.get(last).adjoins(segment) {
                let more = if external { EXTERNAL_VIEWS } else { 1 };
                if views <= more {
                    break;
                }
                views -= more;
            }
            sum += u64::from(segment.len);
            (last, count) = (next, count + 1);
        }
        (count, slab.get(last).next.is_none())
    }

    /// The segment that may follow `last` in a train whose first segment has `bytes` bytes; `None` if no
    /// segment may follow.
    #[inline]
    fn follower(&self, slab: &SegmentSlab, last: SegmentKey, bytes: u64) -> Option<SegmentKey> {
        let before = slab.get(last);
        // A segment that is shorter than the first segment ends the train.
        let next = before.next.filter(|_| u64::from(before.len) == bytes)?;
        let segment = slab.get(next);
        let fits = u64::from(segment.len) <= bytes
            && segment.external.is_some() == before.external.is_some()
            && self.fits_window(segment);
        fits.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_queue::TestQueue;
    use super::*;

    const ALL: TrainLimits = TrainLimits { segments: 100, views: 100, bytes: 1 << 16, allowance: 1 << 16 };

    /// Returns the result of [`SendQueue::train`] for new segments of these lengths. The pages have 2048
    /// bytes, and the peer's window has `window` bytes.
    fn train(lengths: &[usize], window: u64, limits: &TrainLimits) -> (usize, bool) {
        let mut made = TestQueue::new(64);
        made.queue.window_mut().establish(1, window);
        for bytes in lengths {
            assert!(made.push(*bytes));
        }
        let first = made.queue.unsent().expect("a segment");
        made.queue.train(&made.slab, first, limits)
    }

    #[test]
    fn segments_as_long_as_the_first_and_one_shorter_one_leave_together() {
        assert_eq!(train(&[100; 5], 1000, &ALL), (5, true));
        assert_eq!(train(&[100, 100, 50], 1000, &ALL), (3, true));
        assert_eq!(train(&[100, 100, 50, 50], 1000, &ALL), (3, false), "a shorter one is the last");
        assert_eq!(train(&[100, 101], 1000, &ALL), (1, false), "none is longer than the first");
    }

    #[test]
    fn the_peers_window_covers_all_of_them() {
        assert_eq!(train(&[100; 5], 300, &ALL), (3, false));
        assert_eq!(train(&[100; 5], 399, &ALL), (3, false));
        assert_eq!(train(&[100; 5], 400, &ALL), (4, false));
    }

    #[test]
    fn a_train_has_at_most_so_many_segments_bytes_and_views() {
        assert_eq!(train(&[100; 5], 1000, &TrainLimits { segments: 2, ..ALL }), (2, false));
        assert_eq!(train(&[100; 5], 1000, &TrainLimits { segments: 1, ..ALL }), (1, false));
        assert_eq!(train(&[100; 5], 1000, &TrainLimits { bytes: 299, ..ALL }), (2, false));
        assert_eq!(train(&[100; 5], 1000, &TrainLimits { bytes: 300, ..ALL }), (3, false));
        // Each page has two segments.
        assert_eq!(train(&[1000; 5], 9000, &TrainLimits { views: 1, ..ALL }), (2, false));
        assert_eq!(train(&[1000; 5], 9000, &TrainLimits { views: 2, ..ALL }), (4, false));
        assert_eq!(train(&[1000; 5], 9000, &TrainLimits { views: 3, ..ALL }), (5, true));
    }

    #[test]
    fn any_byte_that_the_congestion_window_leaves_allows_one_more_segment() {
        for (allowance, segments) in [(0, 1), (100, 1), (101, 2), (200, 2), (201, 3)] {
            assert_eq!(train(&[100; 5], 1000, &TrainLimits { allowance, ..ALL }).0, segments, "{allowance}");
        }
    }
}
