//! The slots of connections that have work, in order: any thread adds slots, and one engine takes them. The
//! list also contains the handshake by which the engine goes to sleep without missing work.
//!
//! One word holds the number of added slots, and a mark that the engine sleeps. A thread adds a slot by an
//! exchange of this word, which clears the mark. So additions and the mark have an order. Either the engine
//! finds that the number has changed and stays awake, or the thread finds the mark and wakes it. Work
//! outside of this list is announced by [`WorkList::announce`], which changes the word in the same way. No
//! fence is needed, and the engine takes a slot without a locked instruction.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU64, Ordering};

/// The bit of `added` that is set while the engine sleeps, or is about to.
const ASLEEP: u64 = 1;

/// The slots of connections that have work.
pub(crate) struct WorkList {
    /// A ring. Each entry has a slot and, in its upper half, the number of its addition; the first is 1. So
    /// the engine recognizes an entry that was written since it took the previous one.
    entries: Box<[AtomicU64]>,
    /// The number of added slots, times two, plus the bit `ASLEEP`.
    added: AtomicU64,
    /// The number of taken slots. Only the engine changes it.
    taken: AtomicU64,
}

/// The error that the list takes no more slots.
pub(crate) struct Full;

impl WorkList {
    /// A list for at least `capacity` slots.
    pub(crate) fn new(capacity: usize) -> Self {
        Self::after(0, capacity)
    }

    /// As [`new`](Self::new), as if `taken` slots had been added and taken.
    pub(super) fn after(taken: u64, capacity: usize) -> Self {
        Self {
            entries: (0..capacity.max(1).next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            added: AtomicU64::new(taken << 1),
            taken: AtomicU64::new(taken),
        }
    }

    /// Adds a slot. Returns whether the engine has to be woken.
    ///
    /// # Errors
    /// [`Full`]; nothing was added.
    #[inline]
    pub(crate) fn add(&self, slot: u32) -> Result<bool, Full> {
        let mut seen = self.added.load(Ordering::Relaxed);
        loop {
            let number = (seen >> 1) + 1;
            // `seen` may be older than `taken`. Then the exchange fails.
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

    /// Takes the oldest slot. Only the engine calls it.
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

    /// Announces work that was added elsewhere before this call. Returns whether the engine has to be woken.
    pub(crate) fn announce(&self) -> bool {
        self.added.fetch_and(!ASLEEP, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Announces sleep, then calls `idle`, which checks for work elsewhere. Returns `false` if work waits,
    /// and the engine stays awake.
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

    /// Called when the engine is awake again.
    pub(crate) fn end_sleep(&self) {
        self.added.fetch_and(!ASLEEP, Ordering::AcqRel);
    }

    /// The entry of the addition with this number.
    #[inline]
    fn entry(&self, number: u64) -> &AtomicU64 {
        // The length is a power of two, so this is a remainder.
        &self.entries[number as usize & (self.entries.len() - 1)]
    }
}
