//! The handshake by which a reader goes to sleep without missing a record.
//!
//! The writer publishes records and then checks whether the reader sleeps. The reader marks itself as
//! sleeping and then checks for records. Each side has a full fence between its two steps, so at least one
//! side sees the store of the other side. The writer that wakes the reader clears the mark, so each writer
//! wakes the reader at most once per sleep.
//!
//! `tests/loom_wake.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU64, Ordering, fence};

const AWAKE: u64 = 0;

/// The reader sleeps, or is about to sleep.
const ASLEEP: u64 = 1;

/// The writer calls this function to publish all records below `value`. Returns whether the reader has to be
/// woken.
#[inline]
pub(super) fn publish(tail: &AtomicU64, value: u64, sleeper: &AtomicU64) -> bool {
    tail.store(value, Ordering::Release);
    // The fence pairs with the fence in `settle`: the reader sees `value`, or this thread sees the reader's
    // mark.
    fence(Ordering::SeqCst);
    sleeper.load(Ordering::Relaxed) != AWAKE && sleeper.swap(AWAKE, Ordering::Relaxed) != AWAKE
}

/// The reader calls this function to announce that it is about to sleep. Afterwards the reader has to call
/// [`settle`], and to check each tail.
#[inline]
pub(super) fn mark_sleeping(sleeper: &AtomicU64) {
    sleeper.store(ASLEEP, Ordering::Relaxed);
}

/// The reader calls this function to order the marks before the following checks of the tails.
#[inline]
pub(super) fn settle() {
    fence(Ordering::SeqCst);
}

/// The reader calls this function to announce that it polls again.
#[inline]
pub(super) fn mark_awake(sleeper: &AtomicU64) {
    sleeper.store(AWAKE, Ordering::Relaxed);
}
