//! A send queue for the tests of its parts.

use dp::Mempool;

use super::SendQueue;
use crate::Instant;
use crate::facade::TcpSeqNumber;
use crate::invariant::{Check, assert_found};
use crate::tcp::slabs::{Marks, Segment, SegmentKey, SegmentSlab};

/// A queue that begins at position 1, and the memory of its segments.
pub(in crate::tcp::send) struct TestQueue {
    pub(in crate::tcp::send) slab: SegmentSlab,
    pub(in crate::tcp::send) queue: SendQueue,
    pool: Mempool,
}

impl TestQueue {
    /// A queue with memory for this many segments.
    pub(in crate::tcp::send) fn new(segments: usize) -> Self {
        let (slab, mut queue) = (SegmentSlab::new(segments, segments), SendQueue::new(TcpSeqNumber(0)));
        queue.positions.on_syn_sent();
        queue.positions.on_syn_acked();
        Self { slab, queue, pool: Mempool::heap("test", 64, 2048) }
    }

    /// Pushes a segment of `bytes` bytes. Returns whether there was space for the segment.
    pub(in crate::tcp::send) fn push(&mut self, bytes: usize) -> bool {
        let has_space = self.queue.page(&mut self.slab, (&self.pool, None), bytes, || 0).is_ok();
        if has_space {
            self.queue.push(&mut self.slab, bytes, None);
        }
        has_space
    }

    /// Pushes a segment of `bytes` bytes, and sends the oldest unsent segment. Returns whether there was
    /// space for the segment.
    pub(in crate::tcp::send) fn send(&mut self, bytes: usize, now: Instant) -> bool {
        let has_space = self.push(bytes);
        if has_space {
            self.queue.on_sent(&mut self.slab, now);
        }
        has_space
    }
}

/// A queue of five segments: one selectively acknowledged, one lost, two in flight, one unsent.
pub(super) struct FiveSegments {
    pub(super) slab: SegmentSlab,
    pub(super) queue: SendQueue,
    pub(super) keys: [SegmentKey; 5],
}

impl FiveSegments {
    pub(super) const LEN: u64 = 100;

    pub(super) fn new() -> Self {
        let mut made = TestQueue::new(64);
        for ms in 0..4 {
            assert!(made.send(Self::LEN as usize, Instant::from_millis(ms)));
        }
        assert!(made.push(Self::LEN as usize));
        let TestQueue { mut slab, mut queue, .. } = made;
        let keys: Vec<_> = slab.iter_from(queue.segments.head().expect("a segment")).collect();
        let keys: [SegmentKey; 5] = keys.try_into().expect("five segments");
        queue.sent().set_marks(&mut slab, keys[0], Marks::SACKED);
        queue.sent().set_marks(&mut slab, keys[1], Marks::LOST);
        queue.scoreboard.index_mut().find(&mut slab, (keys[0], keys[3]), 0);
        Self { slab, queue, keys }
    }

    pub(super) fn check(&self) -> Check {
        self.queue.check(&self.slab)
    }

    pub(super) fn segment(&mut self, number: usize) -> &mut Segment {
        self.slab.get_mut(self.keys[number])
    }

    /// Returns the key of a segment that was freed.
    pub(super) fn dangling(&mut self) -> SegmentKey {
        let page = self.segment(0).page;
        let key = self.slab.insert(page, 1, 0, None);
        self.slab.release(key);
        self.slab.free(key, key, 1);
        key
    }
}

/// A function that breaks an invariant of a queue.
pub(super) type Break = fn(&mut FiveSegments);

/// Asserts that the check of the queue reports each of these defects with the given message.
#[track_caller]
pub(super) fn assert_all_found(broken: &[(Break, &str)]) {
    for (break_it, what) in broken {
        let mut queued = FiveSegments::new();
        queued.check().expect("invariants");
        break_it(&mut queued);
        assert_found(queued.check(), what);
    }
}
