//! A flag that is set while the engine has not answered the doorbell of a queue pair. Because of this flag,
//! many posts ring the doorbell only once.
//!
//! A thread adds work, *then* calls [`Rung::must_ring`]. The engine calls [`Rung::answer`], *then* checks for
//! work. If the thread finds the flag unset, it sets the flag and rings the doorbell: the engine finds the
//! doorbell, and then the work. If the thread finds the flag set, it executes a sequentially consistent fence
//! and loads the flag again. The engine also executes such a fence after it has cleared the flag, and the
//! fences have a total order. If the thread's fence comes first, the engine sees the work. Otherwise the
//! thread sees that the flag is unset, or that another thread has set the flag. In the latter case the other
//! thread rings the doorbell.
//!
//! If two threads find the flag unset at the same time, both ring the doorbell. The only cost is that the
//! engine visits the queue pair once more than necessary.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving with at
//! most three preemptions.

use super::atomic::{AtomicBool, Ordering, fence};

pub(crate) struct Rung(AtomicBool);

impl Rung {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Whether the caller, which has added work, must ring the doorbell. Also sets the flag: until the engine
    /// has answered, further callers need not ring the doorbell.
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

    /// Clears the flag, so that the next work rings the doorbell again. The engine checks for work after this
    /// call.
    #[inline]
    pub(crate) fn answer(&self) {
        // If the flag is not set, nothing needs to be done: a thread that is about to set the flag then rings
        // the doorbell, so the engine visits the queue pair again.
        if self.0.load(Ordering::Relaxed) {
            self.0.store(false, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }
}
