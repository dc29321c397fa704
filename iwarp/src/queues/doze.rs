//! Sleeping against waking: how an engine goes to sleep without missing what is asked of it, without a lock.
//!
//! Who has work for the engine leaves it where [`Doze::prepare`] looks, *then* asks [`Doze::must_wake`]. The
//! engine announces its sleep, *then* looks. Each of the two has a sequentially consistent fence between. The
//! fences have an order: if the one of the work is first, the engine sees the work and stays awake; else the
//! work sees the engine asleep, and wakes it.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, Ordering, fence};

/// Whether the engine sleeps or is about to.
pub(crate) struct Doze {
    asleep: AtomicBool,
}

impl Doze {
    pub(crate) fn new() -> Self {
        Self { asleep: AtomicBool::new(false) }
    }

    /// Announces sleep. `false`: something is there to do already, and `idle` says so.
    pub(crate) fn prepare(&self, idle: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = idle();
        if !idle {
            self.asleep.store(false, Ordering::Relaxed);
        }
        idle
    }

    /// Whether the engine has to be woken for work that was left before this call.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    /// The engine is awake.
    pub(crate) fn end(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
