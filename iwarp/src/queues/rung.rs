//! A flag that is set while the engine has not answered the doorbell of a queue pair, so that many posts
//! ring it once.
//!
//! A thread adds work, *then* calls [`Rung::must_ring`]. The engine calls [`Rung::answer`], *then* looks for
//! work. A thread that finds the flag unset sets it and rings: the engine finds the doorbell, and after it
//! the work. A thread that finds it set loads it again after a sequentially consistent fence. The engine has
//! such a fence after its change of the flag, and the fences have a total order. If the fence of the thread
//! comes first, the engine sees the work. Otherwise the thread sees the flag unset, or set by another
//! thread, which rings.
//!
//! Two threads that find the flag unset at the same time both ring. This costs one needless visit of the
//! engine, no more.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, Ordering, fence};

/// The flag that the doorbell was rung and not answered.
pub(crate) struct Rung(AtomicBool);

impl Rung {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether the caller, which has added work, has to ring the doorbell. Sets the flag: the next caller
    /// need not ring before the engine has answered.
    #[inline]
    pub(crate) fn must_ring(&self) -> bool {
        if self.0.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            if self.0.load(Ordering::Relaxed) {
                return false;
            }
        }
        self.0.store(true, Ordering::Relaxed);
        true
    }

    /// The engine looks for work after this call: the next work rings again.
    #[inline]
    pub(crate) fn answer(&self) {
        // A thread that is about to set the flag rings afterwards, so the engine visits the queue pair
        // again.
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }
}
