//! A send queue for the tests of its parts.

use dp::Mempool;

use super::SendQueue;
use crate::Instant;
use crate::facade::TcpSeqNumber;
use crate::tcp::slabs::SegmentSlab;

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

    /// Pushes a segment of `bytes`. Returns whether there was space for it.
    pub(in crate::tcp::send) fn push(&mut self, bytes: usize) -> bool {
        let has_space = self.queue.page(&mut self.slab, (&self.pool, None), bytes).is_ok();
        if has_space {
            self.queue.push(&mut self.slab, bytes, None);
        }
        has_space
    }

    /// Pushes a segment of `bytes`, and sends the oldest one that was not sent.
    pub(in crate::tcp::send) fn send(&mut self, bytes: usize, now: Instant) -> bool {
        let has_space = self.push(bytes);
        if has_space {
            self.queue.on_sent(&mut self.slab, now);
        }
        has_space
    }
}
