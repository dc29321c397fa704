//! The slots of connections that have work, in order: any thread adds one, and one engine takes them. It is
//! also the handshake by which the engine goes to sleep without missing work.
//!
//! One word has the number of slots that were added and a mark that the engine sleeps. A thread adds a slot
//! by an exchange of this word, which clears the mark. So additions and the mark have an order. Either the
//! engine finds that the number has changed and stays awake, or the thread finds the mark and wakes it. Work
//! that lies elsewhere is announced by [`WorkList::announce`], which changes the word in the same way. No
//! fence is needed, and the engine takes a slot without a locked instruction.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and tries every interleaving.

use super::atomic::{AtomicU64, Ordering};

/// The bit of `added` that is set while the engine sleeps, or is about to.
const ASLEEP: u64 = 1;

/// See the module.
pub(crate) struct WorkList {
    /// A ring. Each entry has a slot and, in its upper half, the number of its addition; the first is 1. So
    /// the engine knows an entry that was written since it took the one before.
    entries: Box<[AtomicU64]>,
    /// Slots that were added, times two, and `ASLEEP`.
    added: AtomicU64,
    /// Slots that were taken. Only the engine changes it.
    taken: AtomicU64,
}

/// The list takes no more slots.
pub(crate) struct Full;

impl WorkList {
    /// A list for `capacity` slots at least.
    pub(crate) fn new(capacity: usize) -> Self {
        Self::after(0, capacity)
    }

    /// As [`new`](Self::new), as if so many slots had been added and taken.
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
            // `seen` may be older than what was taken since. The exchange fails then.
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

    /// Announces sleep, then calls `idle`, which looks for work elsewhere. `false`: work waits, and the
    /// engine stays awake.
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

    /// The engine is awake.
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
