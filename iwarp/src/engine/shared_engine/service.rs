//! Which waiting caller serves a shared engine, and whether the engine's thread may park meanwhile.
//!
//! A caller stops serving, *then* checks whether the thread is parked, and sets the thread's alarm if so. The
//! thread announces that it is about to park, *then* checks whether a caller serves. Each side has a
//! sequentially consistent fence between its two steps ([`Handover`]), so at least one side sees the other.
//! So while the thread is parked without an alarm, a caller serves. The first caller that stops serving while
//! the thread is parked sets the alarm, and later callers leave this alarm as it is.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use super::handover::Handover;

/// No caller serves: the thread serves, or has an alarm.
const NOBODY: u64 = 0;

pub(crate) struct Service {
    /// The number of the wait whose caller serves, or [`NOBODY`].
    serving: AtomicU64,
    /// How a caller that stops serving learns that the thread is parked.
    watch: Handover,
    /// True after a caller has begun to set the alarm of the thread that is parked now.
    is_alarmed: AtomicBool,
}

impl Service {
    pub(crate) fn new() -> Self {
        Self { serving: AtomicU64::new(NOBODY), watch: Handover::new(), is_alarmed: AtomicBool::new(false) }
    }

    /// From now on, the caller of this wait serves, in place of any other caller. `wait` is not zero.
    pub(crate) fn begin(&self, wait: u64) {
        self.serving.swap(wait, Ordering::SeqCst);
    }

    /// Whether the caller of this wait serves.
    pub(crate) fn is_of(&self, wait: u64) -> bool {
        self.serving.load(Ordering::SeqCst) == wait
    }

    /// Whether a caller serves.
    #[inline]
    pub(crate) fn any_serves(&self) -> bool {
        self.serving.load(Ordering::SeqCst) != NOBODY
    }

    /// From now on, the caller of this wait does not serve. Returns whether this call has to set the thread's
    /// alarm.
    pub(crate) fn end(&self, wait: u64) -> bool {
        let ended = self.serving.compare_exchange(wait, NOBODY, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_err() || !self.watch.give() {
            return false;
        }
        // Pairs with the fence in `park`: a caller that sees that the thread is about to park also sees that
        // the alarm is not set.
        fence(Ordering::SeqCst);
        !self.is_alarmed.swap(true, Ordering::Relaxed)
    }

    /// Announces that the thread is about to park. Returns whether the thread may park.
    pub(crate) fn park(&self) -> bool {
        self.is_alarmed.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.watch.withdraw();
        self.watch.step_back() && self.any_serves()
    }

    /// Announces that the thread is not parked any more.
    pub(crate) fn unpark(&self) {
        self.watch.return_from_waiting();
    }
}
