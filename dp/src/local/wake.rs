//! The handshake that lets a reader go to sleep without missing a record.
//!
//! The writer publishes records and then checks whether the reader sleeps. The reader marks itself as
//! sleeping and then checks for records. A full fence between the two steps on each side guarantees that at
//! least one side sees the other's store. The writer that wakes the reader clears the mark, so each sleep
//! gets one wake-up.
//!
//! `tests/loom_wake.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU64, Ordering, fence};

/// The reader polls.
const AWAKE: u64 = 0;

/// The reader sleeps, or is about to sleep.
const ASLEEP: u64 = 1;

/// Called by the writer: publishes all records below `value`. Returns whether the reader has to be woken.
#[inline]
pub(super) fn publish(tail: &AtomicU64, value: u64, sleeper: &AtomicU64) -> bool {
    tail.store(value, Ordering::Release);
    // Pairs with the fence in `settle`: the reader sees `value`, or this thread sees the reader's mark.
    fence(Ordering::SeqCst);
    sleeper.load(Ordering::Relaxed) != AWAKE && sleeper.swap(AWAKE, Ordering::Relaxed) != AWAKE
}

/// Called by the reader: announces that it is about to sleep. Then the reader has to call [`settle`], and to
/// check each tail.
#[inline]
pub(super) fn mark_sleeping(sleeper: &AtomicU64) {
    sleeper.store(ASLEEP, Ordering::Relaxed);
}

/// Called by the reader: orders the marks before the following checks of the tails.
#[inline]
pub(super) fn settle() {
    fence(Ordering::SeqCst);
}

/// Called by the reader: announces that it polls again.
#[inline]
pub(super) fn mark_awake(sleeper: &AtomicU64) {
    sleeper.store(AWAKE, Ordering::Relaxed);
}
