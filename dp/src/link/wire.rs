//! A wire: one direction of a link, from a sending queue to a receiving queue. The wire has a ring between
//! the threads. If the plan reorders frames, the receiver also sorts the frames by due time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::config::LinkPlan;
use crate::{BURST, Mbuf, Mempool};

/// The numbers of faults of one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Number of frames that were lost, at random or by [`LinkPlan::drop_exactly`].
    pub lost: u64,
    /// Number of frames that were delivered twice.
    pub duplicated: u64,
    /// Number of frames that were held back.
    pub reordered: u64,
    /// Number of frames with one bit flipped.
    pub corrupted: u64,
    /// Number of frames that were lost, or not duplicated, because no buffer was free for the copy.
    pub no_mbuf: u64,
}

pub(super) struct InFlight {
    pub(super) due_us: u64,
    /// `true` if the frame has no delay: it is due at once, whatever the receiver's clock shows.
    pub(super) at_once: bool,
    pub(super) frame: Mbuf,
}

impl InFlight {
    fn is_due(&self, now_us: u64) -> bool {
        self.at_once || self.due_us <= now_us
    }
}

/// The state that the two ends of a wire share. The state has its own cache lines.
#[repr(align(128))]
pub(super) struct Wire {
    /// Total number of frames that the receiver has delivered. Only the receiver writes this number.
    delivered: AtomicU64,
    /// On a wire with reordering: a lower bound of the due times of the frames that were added since the
    /// receiver's last check. The value is `u64::MAX` if no frame was added. Wires without reordering do not
    /// use this field, since their first frame is due first.
    ring_due_us: AtomicU64,
    pub(super) faults: FaultCounters,
}

/// Makes the two ends of a wire with this plan. `pool` is the pool of the receiving queue.
pub(super) fn ends(plan: &LinkPlan, ring_frames: usize, pool: &Mempool) -> (Sender, Receiver) {
    // Each frame in the ring may be duplicated.
    let frames = 2 * ring_frames.max(BURST);
    let (producer, consumer) = RingBuffer::new(frames);
    let in_order = plan.reorder_ppm == 0;
    let wire = Arc::new(Wire {
        delivered: AtomicU64::new(0),
        ring_due_us: AtomicU64::new(u64::MAX),
        faults: FaultCounters::default(),
    });
    let sender = Sender {
        wire: Arc::clone(&wire),
        ring: producer,
        pool: pool.clone(),
        sent: 0,
        ring_frames: ring_frames as u64,
        in_order,
    };
    let waiting = VecDeque::with_capacity(if in_order { 0 } else { frames });
    (sender, Receiver { wire, ring: consumer, waiting, delivered: 0, in_order })
}

/// The sending end of a [`Wire`].
pub(super) struct Sender {
    pub(super) wire: Arc<Wire>,
    ring: Producer<InFlight>,
    /// The pool of the receiving queue, from which copies and pieces of frames are allocated.
    pub(super) pool: Mempool,
    /// Number of frames that were put on the wire, including copies and excluding lost frames.
    sent: u64,
    ring_frames: u64,
    /// Has the same value as [`Receiver::in_order`].
    in_order: bool,
}

impl Sender {
    /// Number of frames that may be added now.
    pub(super) fn room(&self) -> u64 {
        let in_flight = self.sent - self.wire.delivered.load(Ordering::Acquire);
        self.ring_frames.saturating_sub(in_flight)
    }

    /// Whether the receiving queue was dropped.
    pub(super) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Adds one frame. The caller has checked that there is room.
    #[inline]
    pub(super) fn push(&mut self, frame: InFlight) {
        let due_us = frame.due_us;
        let refused = self.ring.push(frame).is_err();
        debug_assert!(!refused, "the sender counts what is in flight");
        self.sent += 1;
        if !self.in_order {
            // The due time is stored after the push. So the receiver may check the ring once too early, but
            // never misses a frame.
            self.wire.ring_due_us.fetch_min(due_us, Ordering::Release);
        }
    }

    /// Counts a frame that is lost, or not duplicated, because no buffer was free for the copy.
    #[cold]
    pub(super) fn no_mbuf(&self) {
        self.wire.faults.no_mbuf.increment();
    }
}

/// The counters of [`LinkFaults`]. The sender writes the counters, and any thread may read them.
#[derive(Default)]
pub(super) struct FaultCounters {
    pub(super) lost: Counter,
    pub(super) duplicated: Counter,
    pub(super) reordered: Counter,
    pub(super) corrupted: Counter,
    pub(super) no_mbuf: Counter,
}

impl FaultCounters {
    pub(super) fn snapshot(&self) -> LinkFaults {
        let Self { lost, duplicated, reordered, corrupted, no_mbuf } = self;
        LinkFaults {
            lost: lost.value(),
            duplicated: duplicated.value(),
            reordered: reordered.value(),
            corrupted: corrupted.value(),
            no_mbuf: no_mbuf.value(),
        }
    }
}

/// A counter that other threads may read.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The receiving end of a [`Wire`].
pub(super) struct Receiver {
    pub(super) wire: Arc<Wire>,
    ring: Consumer<InFlight>,
    /// Frames that were removed from the ring but were not due, or had no room in the burst. The frames are
    /// sorted by due time. Frames with equal due times are in the order of sending.
    waiting: VecDeque<InFlight>,
    delivered: u64,
    /// `true` if the frames in the ring are in the order of their due times. In this case only the first
    /// frame is checked, and this frame waits in the ring until it is due.
    in_order: bool,
}

impl Receiver {
    /// Passes due frames to `deliver`, at most `room` frames. Returns the number of passed frames.
    #[inline]
    pub(super) fn receive(&mut self, now_us: u64, room: usize, mut deliver: impl FnMut(Mbuf)) -> usize {
        let mut taken = 0;
        if self.in_order {
            while taken < room
                && self.ring.peek().is_ok_and(|first| first.is_due(now_us))
                && let Ok(first) = self.ring.pop()
            {
                deliver(first.frame);
                taken += 1;
            }
        } else {
            self.sort();
            while taken < room
                && self.waiting.front().is_some_and(|first| first.is_due(now_us))
                && let Some(first) = self.waiting.pop_front()
            {
                deliver(first.frame);
                taken += 1;
            }
        }
        if taken > 0 {
            self.delivered += taken as u64;
            self.wire.delivered.store(self.delivered, Ordering::Release);
        }
        taken
    }

    /// Whether no frame is in flight on this wire. A frame that is due is in flight until it is received.
    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty() && self.waiting.is_empty()
    }

    /// The earliest time at which the next frame may be due. `None` if no frame is in flight.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        if self.in_order {
            return self.ring.peek().ok().map(|first| first.due_us);
        }
        let waiting = self.waiting.front().map(|first| first.due_us);
        let ring = Some(self.wire.ring_due_us.load(Ordering::Acquire)).filter(|&due_us| due_us != u64::MAX);
        waiting.into_iter().chain(ring).min()
    }

    /// Moves all frames from the ring to `waiting`, which is sorted by due time.
    fn sort(&mut self) {
        if self.ring.is_empty() {
            return;
        }
        // The code uses a swap instead of a store: a swap acquires the sender's `fetch_min`, and so the push
        // before the `fetch_min`.
        self.wire.ring_due_us.swap(u64::MAX, Ordering::AcqRel);
        while let Ok(frame) = self.ring.pop() {
            let place =
                self.waiting.iter().rposition(|other| other.due_us <= frame.due_us).map_or(0, |i| i + 1);
            self.waiting.insert(place, frame);
        }
    }
}
