//! How users' threads tell an engine that there is something to do, and wake it when it sleeps.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

use super::Notifier;
use super::doze::Doze;

/// The doorbells of an engine.
pub(crate) struct Doorbells {
    /// Slots of connections whose queue pair was posted to. A queue pair is in it once at most.
    slots: ArrayQueue<u32>,
    /// A slot did not fit: every connection is looked at.
    lost: AtomicBool,
    /// Set while there may be commands, so that an idle turn takes no lock.
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

    /// Says that the queue pair of connection `slot` was posted to.
    pub(crate) fn ring(&self, slot: u32) {
        if self.slots.push(slot).is_err() {
            self.lost.store(true, Ordering::Release);
        }
        self.wake();
    }

    /// The next connection whose queue pair was posted to.
    pub(crate) fn next(&self) -> Option<u32> {
        // Looking costs less than taking in vain, which every idle turn would.
        if self.slots.is_empty() { None } else { self.slots.pop() }
    }

    /// Whether a doorbell was lost since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) && self.lost.swap(false, Ordering::AcqRel)
    }

    /// Says whether there are commands. Whoever has entered one calls [`wake`](Self::wake) as well.
    pub(crate) fn set_commanded(&self, commanded: bool) {
        self.commanded.store(commanded, Ordering::Release);
    }

    /// Whether there may be commands.
    pub(crate) fn is_commanded(&self) -> bool {
        self.commanded.load(Ordering::Acquire)
    }

    /// Ends the engine's sleep, if it sleeps.
    pub(crate) fn wake(&self) {
        if self.doze.must_wake() {
            self.waker.notify();
        }
    }

    /// Ends the engine's sleep or, if it does not sleep now, the next one before it begins: for
    /// what [`prepare_sleep`](Self::prepare_sleep) does not look at.
    pub(crate) fn interrupt(&self) {
        self.waker.notify();
    }

    /// Announces sleep. `false`: something is there to do already.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.doze
            .prepare(|| self.slots.is_empty() && !self.is_commanded() && !self.lost.load(Ordering::Acquire))
    }

    /// Ends sleep and takes what woke it.
    pub(crate) fn end_sleep(&self) -> std::io::Result<()> {
        self.doze.end();
        self.waker.take().map(drop)
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
