//! A list of the slots of connections that have work, in order. Any thread adds slots, and one engine removes
//! them. The list also contains the handshake by which the engine goes to sleep without missing work.
//!
//! One word contains the number of added slots, and a mark that the engine sleeps. A thread adds a slot by an
//! exchange of this word, which clears the mark. So additions and changes of the mark are ordered. Either the
//! engine finds that the number has changed, and stays awake, or the thread finds the mark, and wakes the
//! engine. [`WorkList::announce`] announces work outside of this list, and clears the mark in the same way.
//! No fence is needed, and the engine removes a slot without a locked instruction.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving, in the
//! largest model only those with at most three preemptions.

use super::atomic::{AtomicU64, Ordering};

/// The bit of `added` that is set while the engine sleeps or is about to sleep.
const ASLEEP: u64 = 1;

pub(crate) struct WorkList {
    /// A ring of entries. An entry has a slot in its lower half and the number of its addition in its upper
    /// half. The first addition has number 1. By this number the engine recognizes whether the next entry has
    /// been written.
    entries: Box<[AtomicU64]>,
    /// Number of added slots, times two, plus the bit `ASLEEP`.
    added: AtomicU64,
    /// Number of removed slots. Only the engine changes this number.
    taken: AtomicU64,
}

/// The error that the list has no room for a further slot.
pub(crate) struct Full;

impl WorkList {
    /// Returns a list for at least `capacity` slots.
    pub(crate) fn new(capacity: usize) -> Self {
        Self::after(0, capacity)
    }

    /// Returns a list like [`new`](Self::new), but as if `taken` slots had already been added and removed.
    pub(super) fn after(taken: u64, capacity: usize) -> Self {
        Self {
            entries: (0..capacity.max(1).next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            added: AtomicU64::new(taken << 1),
            taken: AtomicU64::new(taken),
        }
    }

    /// Adds a slot. Returns whether the caller must wake the engine.
    ///
    /// # Errors
    /// [`Full`]: the slot was not added.
    #[inline]
    pub(crate) fn add(&self, slot: u32) -> Result<bool, Full> {
        let mut seen = self.added.load(Ordering::Relaxed);
        loop {
            let number = (seen >> 1) + 1;
            // `seen` may be older than `taken`. In this case the exchange fails.
            if number.saturating_sub(self.taken.load(Ordering::Acquire)) > self.entries.len() as u64 {
                return Err(Full);
            }
            match self.added.compare_exchange_weak(seen, number << 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.entry(number).store(number << 32 | u64::from(slot), Ordering::Release);
                    return Ok(seen & ASLEEP != 0);
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Removes and returns the oldest slot, if any. Only the engine calls this function.
    #[inline]
    pub(crate) fn take(&self) -> Option<u32> {
        let number = self.taken.load(Ordering::Relaxed) + 1;
        let entry = self.entry(number).load(Ordering::Acquire);
        if entry >> 32 != number & u64::from(u32::MAX) {
            return None;
        }
        self.taken.store(number, Ordering::Release);
        Some(entry as u32)
    }

    /// Announces work outside of this list that was added before this call. Returns whether the caller must
    /// wake the engine.
    pub(crate) fn announce(&self) -> bool {
        self.added.fetch_and(!ASLEEP, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Sets the mark that the engine sleeps, and then calls `idle`, which checks for work outside of this
    /// list. Returns `false` if work waits, so that the engine stays awake.
    pub(crate) fn prepare_sleep(&self, idle: impl FnOnce() -> bool) -> bool {
        let awake = self.taken.load(Ordering::Relaxed) << 1;
        let sleeps = awake | ASLEEP;
        if self.added.compare_exchange(awake, sleeps, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let idle = idle();
        if !idle {
            self.end_sleep();
        }
        idle
    }

    /// Clears the mark that the engine sleeps. Called when the engine is awake again.
    pub(crate) fn end_sleep(&self) {
        self.added.fetch_and(!ASLEEP, Ordering::AcqRel);
    }

    /// Returns the entry of the addition with this number.
    #[inline]
    fn entry(&self, number: u64) -> &AtomicU64 {
        // The length is a power of two, so the bitwise AND computes the remainder.
        &self.entries[number as usize & (self.entries.len() - 1)]
    }
}
