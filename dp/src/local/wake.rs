//! The handshake by which a reader goes to sleep without missing a record.
//!
//! The writer publishes records and then looks whether the reader sleeps. The reader says that it sleeps and
//! then looks for records. A full fence between the two steps, on both sides, excludes that both look too
//! early. The one who wakes the reader clears the mark, so that there is one wake-up for each sleep.
//!
//! `tests/loom_wake.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU64, Ordering, fence};

/// The reader polls.
const AWAKE: u64 = 0;

/// The reader sleeps, or is about to.
const ASLEEP: u64 = 1;

/// Writer: makes everything below `value` visible. Returns whether the reader has to be woken.
#[inline]
pub(super) fn publish(tail: &AtomicU64, value: u64, sleeper: &AtomicU64) -> bool {
    tail.store(value, Ordering::Release);
    // Pairs with the fence in `settle`: the reader sees `value`, or we see its mark.
    fence(Ordering::SeqCst);
    sleeper.load(Ordering::Relaxed) != AWAKE && sleeper.swap(AWAKE, Ordering::Relaxed) != AWAKE
}

/// Reader: says that it is going to sleep. [`settle`] has to follow, then a look at each tail.
#[inline]
pub(super) fn mark_sleeping(sleeper: &AtomicU64) {
    sleeper.store(ASLEEP, Ordering::Relaxed);
}

/// Reader: the marks come before the looks that follow.
#[inline]
pub(super) fn settle() {
    fence(Ordering::SeqCst);
}

/// Reader: it polls again.
#[inline]
pub(super) fn mark_awake(sleeper: &AtomicU64) {
    sleeper.store(AWAKE, Ordering::Relaxed);
}
