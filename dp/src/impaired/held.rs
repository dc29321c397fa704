//! The frames that wait for their time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::Mbuf;

/// Frames with the times at which they are due. Frames that are due at the same time keep their order.
pub(super) struct Held {
    frames: BinaryHeap<Reverse<Waiting>>,
    /// Number of frames that were added so far.
    ordinal: u64,
    /// Number of packet buffers of the frames.
    buffers: usize,
    most_frames: usize,
    most_buffers: usize,
}

struct Waiting {
    due_us: u64,
    ordinal: u64,
    frame: Mbuf,
}

impl Held {
    /// Makes an empty queue for at most `most_frames` frames, which have at most `most_buffers` buffers.
    pub(super) fn new(most_frames: usize, most_buffers: usize) -> Self {
        let frames = BinaryHeap::with_capacity(most_frames);
        Self { frames, ordinal: 0, buffers: 0, most_frames, most_buffers }
    }

    /// Whether one more frame may be added. An empty queue has room for any frame.
    pub(super) fn has_room_for(&self, frame: &Mbuf) -> bool {
        let fits = self.buffers + frame.segment_count() <= self.most_buffers;
        self.frames.is_empty() || self.frames.len() < self.most_frames && fits
    }

    /// Adds a frame. The caller has checked that there is room.
    pub(super) fn push(&mut self, due_us: u64, frame: Mbuf) {
        debug_assert!(self.frames.len() < self.most_frames, "the caller has checked that there is room");
        self.buffers += frame.segment_count();
        self.frames.push(Reverse(Waiting { due_us, ordinal: self.ordinal, frame }));
        self.ordinal += 1;
    }

    /// Removes the frame that is due first, if it is due at `now_us`.
    pub(super) fn pop(&mut self, now_us: u64) -> Option<Mbuf> {
        self.next_due_us().filter(|&due_us| due_us <= now_us)?;
        let Reverse(Waiting { frame, .. }) = self.frames.pop()?;
        self.buffers -= frame.segment_count();
        Some(frame)
    }

    /// The time at which the first frame is due.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        self.frames.peek().map(|Reverse(first)| first.due_us)
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Waiting {
    fn key(&self) -> (u64, u64) {
        (self.due_us, self.ordinal)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
