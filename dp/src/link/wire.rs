//! One direction of a link: the ring between the threads, and the receiver's queue of what is not due yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use super::LinkPlan;
use crate::{BURST, Mbuf};

/// What a link did to the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Frames lost.
    pub lost: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with one bit turned.
    pub corrupted: u64,
    /// Frames lost, or not duplicated, because no buffer was left for the copy.
    pub no_mbuf: u64,
}

/// A frame on its way.
pub(super) struct InFlight {
    pub(super) due_us: u64,
    /// Due whatever the receiver's clock says: the plan took no time.
    pub(super) at_once: bool,
    pub(super) frame: Mbuf,
}

impl InFlight {
    fn is_due(&self, now_us: u64) -> bool {
        self.at_once || self.due_us <= now_us
    }
}

/// What both ends of a direction see.
pub(super) struct Wire {
    ring: ArrayQueue<InFlight>,
    /// Frames the receiver has taken off, in all; written by the receiver.
    delivered: AtomicU64,
    /// When the first frame may be due that the sender put in since the receiver last looked; else
    /// `u64::MAX`.
    ring_due_us: AtomicU64,
    pub(super) faults: FaultCounters,
}

impl Wire {
    pub(super) fn new(ring_frames: usize) -> Self {
        Self {
            // Every frame of a last burst may be duplicated.
            ring: ArrayQueue::new(2 * ring_frames.max(BURST)),
            delivered: AtomicU64::new(0),
            ring_due_us: AtomicU64::new(u64::MAX),
            faults: FaultCounters::default(),
        }
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    /// Puts one frame in; the sender has checked for room.
    pub(super) fn push(&self, frame: InFlight) {
        let due_us = frame.due_us;
        let refused = self.ring.push(frame).is_err();
        debug_assert!(!refused, "the sender counts what is in flight");
        // After the push: the receiver may then look once in vain, but never too late.
        self.ring_due_us.fetch_min(due_us, Ordering::Release);
    }
}

/// [`LinkFaults`] while it is being counted: written by the sender, read by anyone.
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

/// A plain count that other threads may read.
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

/// The receiver's end of a [`Wire`].
pub(super) struct Receiver {
    /// Frames out of the ring that were not due, or found no place, by due time; equal times in sending
    /// order.
    waiting: VecDeque<InFlight>,
    delivered: u64,
    /// Whether frames come out of the ring in the order they are due: then only the first needs to be looked
    /// at.
    in_order: bool,
}

impl Receiver {
    pub(super) fn new(plan: &LinkPlan, ring_frames: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(2 * ring_frames.max(BURST)),
            delivered: 0,
            in_order: plan.reorder_ppm == 0,
        }
    }

    /// Hands every frame that is due to `deliver`, `room` at most.
    pub(super) fn receive(
        &mut self,
        wire: &Wire,
        now_us: u64,
        room: usize,
        mut deliver: impl FnMut(Mbuf),
    ) -> usize {
        if !wire.ring.is_empty() {
            // A swap, not a store: it takes the sender's `fetch_min` with the push in front of it.
            wire.ring_due_us.swap(u64::MAX, Ordering::AcqRel);
        }
        let mut taken = 0;
        while taken < room {
            self.refill(wire);
            if !self.waiting.front().is_some_and(|first| first.is_due(now_us)) {
                break;
            }
            let Some(first) = self.waiting.pop_front() else { break };
            deliver(first.frame);
            taken += 1;
        }
        if taken == room && !wire.ring.is_empty() {
            // Stopped before the ring was: something may be due right now.
            wire.ring_due_us.fetch_min(now_us, Ordering::Release);
        }
        if taken > 0 {
            self.delivered += taken as u64;
            wire.delivered.store(self.delivered, Ordering::Release);
        }
        taken
    }

    /// When the next frame may be due.
    pub(super) fn next_due_us(&self, wire: &Wire) -> Option<u64> {
        let waiting = self.waiting.front().map(|first| first.due_us);
        let ring = Some(wire.ring_due_us.load(Ordering::Acquire)).filter(|&due_us| due_us != u64::MAX);
        waiting.into_iter().chain(ring).min()
    }

    /// Brings what could be first to the front of `waiting`.
    fn refill(&mut self, wire: &Wire) {
        if self.in_order {
            if self.waiting.is_empty() {
                self.waiting.extend(wire.ring.pop());
            }
            return;
        }
        while let Some(frame) = wire.ring.pop() {
            let place =
                self.waiting.iter().rposition(|other| other.due_us <= frame.due_us).map_or(0, |i| i + 1);
            self.waiting.insert(place, frame);
        }
    }
}
