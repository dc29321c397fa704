//! How callers return the polling to the thread of a shared engine, which waits while callers poll.
//!
//! A caller announces that it will not poll, *then* checks whether the thread waits, and wakes the thread if
//! so. The thread announces that it is about to wait, *then* checks for an announcement of a caller. Each
//! side has a sequentially consistent fence between its two steps, and fences have a total order. So at least
//! one side sees the other side's announcement, and a waiting thread is woken.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, Ordering, fence};

/// The state of the handover between callers and the thread, as the module describes.
pub(crate) struct Handover {
    /// Whether callers have announced that they will not poll.
    given: AtomicBool,
    /// Whether the thread waits or is about to wait.
    stepped_back: AtomicBool,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self { given: AtomicBool::new(false), stepped_back: AtomicBool::new(false) }
    }

    /// Announces that a caller will not poll. Returns whether the caller has to wake the thread.
    pub(crate) fn give(&self) -> bool {
        self.given.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.stepped_back.load(Ordering::Relaxed)
    }

    /// Withdraws the announcement, because callers poll again.
    pub(crate) fn withdraw(&self) {
        self.given.store(false, Ordering::Relaxed);
    }

    /// Returns whether callers have announced since the last call that they will not poll, and clears the
    /// announcement.
    pub(crate) fn take(&self) -> bool {
        self.given.swap(false, Ordering::Relaxed)
    }

    /// Announces that the thread is about to wait while callers poll. Returns whether the thread may wait.
    pub(crate) fn step_back(&self) -> bool {
        self.stepped_back.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.given.load(Ordering::Relaxed)
    }

    /// Announces that the thread no longer waits.
    pub(crate) fn return_from_waiting(&self) {
        self.stepped_back.store(false, Ordering::Relaxed);
    }
}
