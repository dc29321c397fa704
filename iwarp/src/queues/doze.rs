//! The handshake between an engine that goes to sleep and the threads that give it work. It takes no lock and
//! misses no work.
//!
//! A thread adds work where [`Doze::prepare`] looks for it, *then* calls [`Doze::must_wake`]. The engine
//! announces its sleep, *then* looks for work. Each side has a sequentially consistent fence between its two
//! steps, and the fences have a total order. If the fence of the thread comes first, the engine sees the work
//! and stays awake. Otherwise the thread sees that the engine sleeps, and wakes it.
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

    /// Announces sleep, then calls `idle`. Returns what `idle` returned: `false` means that work waits and
    /// the engine stays awake.
    pub(crate) fn prepare(&self, idle: impl FnOnce() -> bool) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let idle = idle();
        if !idle {
            self.asleep.store(false, Ordering::Relaxed);
        }
        idle
    }

    /// Whether the engine has to be woken for work that was added before this call.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    /// The engine is awake.
    pub(crate) fn end(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
