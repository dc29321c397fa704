//! Slots of threads. A slot is a small number that one thread owns from the thread's first call until the
//! thread ends. Only one thread at a time uses the data of a slot, so the data need no lock.
//!
//! If a thread finds no free slot at its first call, the thread never has a slot.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) const SLOTS: usize = 8;
/// The thread has not requested a slot yet.
const UNASKED: usize = usize::MAX;
/// The thread has no slot, and never will.
const NONE: usize = usize::MAX - 1;

/// A bit for each slot that is owned.
///
/// The Acquire of the thread that sets a bit pairs with the Release of the thread that has cleared the bit.
/// So the accesses of two owners of a slot are ordered.
static OWNED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The slot of this thread. The variable has no destructor, so it can be read until the thread has ended.
    static SLOT: Cell<usize> = const { Cell::new(UNASKED) };
    /// Releases the slot when the thread ends.
    static ENDING: Ending = const { Ending };
}

struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        // Destructors that run later find that the thread has no slot.
        let slot = SLOT.replace(NONE);
        if slot < SLOTS {
            OWNED.fetch_and(!(1 << slot), Ordering::Release);
        }
    }
}

/// Returns the slot of the calling thread. The result is at least [`SLOTS`] if the thread has no slot.
#[inline]
pub(super) fn own() -> usize {
    let slot = SLOT.get();
    if slot == UNASKED { ask() } else { slot }
}

#[cold]
fn ask() -> usize {
    // `try_with` fails in a thread that is already ending. Such a thread receives no slot, since nothing
    // would release the slot.
    let found = ENDING.try_with(|_| ()).is_ok().then(|| (0..SLOTS).find(|slot| try_own(*slot))).flatten();
    SLOT.set(found.unwrap_or(NONE));
    SLOT.get()
}

/// Sets the bit of a slot. Returns `true` if the bit was not set before.
fn try_own(slot: usize) -> bool {
    OWNED.fetch_or(1 << slot, Ordering::Acquire) & 1 << slot == 0
}

/// A slot that no thread owned, and that is claimed until this value is dropped.
pub(super) struct Claimed(usize);

impl Claimed {
    /// Claims the slots that no thread owns, one after another.
    pub(super) fn unowned() -> impl Iterator<Item = Self> {
        // Only a slot that was claimed becomes a `Claimed`, since the drop of a `Claimed` releases the slot.
        (0..SLOTS).filter(|slot| try_own(*slot)).map(Self)
    }

    pub(super) fn number(&self) -> usize {
        self.0
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        OWNED.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_search_of_slots_without_owner_leaves_those_of_threads() {
        let search = || {
            let slot = own();
            Claimed::unowned().for_each(drop);
            assert!(slot >= SLOTS || !try_own(slot), "the slot of this thread was given back");
            slot < SLOTS
        };
        // Other tests may own all slots for some time.
        let found_one = (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            std::thread::spawn(search).join().unwrap()
        });
        assert!(found_one);
    }
}
