//! How callers give the polling back to the thread of a shared engine, which waits while they poll.
//!
//! A caller says that it will not come, *then* looks whether the thread waits, and calls it if so. The thread
//! says that it is about to wait, *then* looks whether a caller has said so. A sequentially consistent fence
//! is between the two steps of each, and fences have a total order: so one of them sees the other, and a
//! thread that waits is called.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, Ordering, fence};

/// See the module.
pub(crate) struct Handover {
    /// Callers have said that they will not come.
    given: AtomicBool,
    /// The thread waits, or is about to.
    stepped_back: AtomicBool,
}

impl Handover {
    pub(crate) fn new() -> Self {
        Self { given: AtomicBool::new(false), stepped_back: AtomicBool::new(false) }
    }

    /// A caller will not come. Returns whether it has to call the thread.
    pub(crate) fn give(&self) -> bool {
        self.given.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.stepped_back.load(Ordering::Relaxed)
    }

    /// Callers come again.
    pub(crate) fn withdraw(&self) {
        self.given.store(false, Ordering::Relaxed);
    }

    /// Whether callers have given the polling to the thread since it last asked.
    pub(crate) fn take(&self) -> bool {
        self.given.swap(false, Ordering::Relaxed)
    }

    /// The thread is about to wait while callers poll. Returns whether it may.
    pub(crate) fn step_back(&self) -> bool {
        self.stepped_back.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.given.load(Ordering::Relaxed)
    }

    /// The thread waits no more.
    pub(crate) fn return_from_waiting(&self) {
        self.stepped_back.store(false, Ordering::Relaxed);
    }
}
