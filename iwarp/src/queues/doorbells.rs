//! How threads of the user tell an engine of new work, and wake it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

use super::Notifier;
use super::doze::Doze;

/// The doorbells of an engine.
pub(crate) struct Doorbells {
    /// Slots of connections with new posts or an `Ask`. A queue pair is in it once at most.
    slots: ArrayQueue<u32>,
    /// A slot did not fit. The engine then looks at every connection.
    lost: AtomicBool,
    /// Set while commands may wait, so that an idle poll takes no lock.
    commanded: AtomicBool,
    doze: Doze,
    waker: Notifier,
}

impl Doorbells {
    pub(crate) fn new(max_connections: usize, waker: Notifier) -> Self {
        Self {
            slots: ArrayQueue::new(max_connections.max(1)),
            lost: AtomicBool::new(false),
            commanded: AtomicBool::new(false),
            doze: Doze::new(),
            waker,
        }
    }

    /// Tells the engine that the queue pair of connection `slot` has new posts, or an `Ask`.
    pub(crate) fn ring(&self, slot: u32) {
        if self.slots.push(slot).is_err() {
            self.lost.store(true, Ordering::Release);
        }
        self.wake();
    }

    /// The next connection with new posts.
    pub(crate) fn next(&self) -> Option<u32> {
        // `is_empty` costs less than a `pop` that finds nothing, and an idle poll finds nothing.
        if self.slots.is_empty() { None } else { self.slots.pop() }
    }

    /// Whether a doorbell was lost since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) && self.lost.swap(false, Ordering::AcqRel)
    }

    /// Sets whether commands wait. A caller that added a command also calls [`wake`](Self::wake).
    pub(crate) fn set_commanded(&self, commanded: bool) {
        self.commanded.store(commanded, Ordering::Release);
    }

    /// Whether commands may wait.
    pub(crate) fn is_commanded(&self) -> bool {
        self.commanded.load(Ordering::Acquire)
    }

    /// Wakes the engine if it sleeps.
    pub(crate) fn wake(&self) {
        if self.doze.must_wake() {
            self.waker.notify();
        }
    }

    /// Wakes the engine if it sleeps, and otherwise cuts its next sleep short. For events that
    /// [`prepare_sleep`](Self::prepare_sleep) does not check.
    pub(crate) fn interrupt(&self) {
        self.waker.notify();
    }

    /// Announces that the engine is going to sleep. Returns `false` if work waits already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.doze
            .prepare(|| self.slots.is_empty() && !self.is_commanded() && !self.lost.load(Ordering::Acquire))
    }

    /// The engine is awake: takes the notifications that woke it.
    pub(crate) fn end_sleep(&self) -> std::io::Result<()> {
        self.doze.end();
        self.waker.take().map(drop)
    }

    /// The descriptor that becomes readable to wake the engine.
    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
