//! The handles of objects that are not destroyed. A handle is the address that the program has.
//!
//! Some programs, just before they end, destroy a channel while another thread waits for its events. With a
//! kernel channel, that thread keeps waiting. A thread that calls just after the destruction must not access
//! freed memory. So channels are looked up among the live handles, and such a late thread waits for ever,
//! too.
//!
//! Some programs also pass identifiers and channels that they have destroyed. Such a call fails with EINVAL
//! instead of crashing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The objects of one kind that are not destroyed, by their addresses. `T` is the part of an object that a
/// call keeps alive.
pub(crate) struct LiveHandles<T> {
    known: Mutex<Option<HashMap<usize, T>>>,
}

impl<T: Clone> LiveHandles<T> {
    pub(crate) const fn new() -> Self {
        Self { known: Mutex::new(None) }
    }

    fn known(&self) -> MutexGuard<'_, Option<HashMap<usize, T>>> {
        self.known.lock().expect("no holder of this lock panics")
    }

    /// Called when an object was made.
    pub(crate) fn insert(&self, address: usize, what: T) {
        self.known().get_or_insert_default().insert(address, what);
    }

    /// Called when an object is destroyed. Returns `None` if it was destroyed before.
    pub(crate) fn remove(&self, address: usize) -> Option<T> {
        self.known().as_mut().and_then(|known| known.remove(&address))
    }

    /// An object, if it is not destroyed.
    pub(crate) fn get(&self, address: usize) -> Option<T> {
        self.known().as_ref().and_then(|known| known.get(&address).cloned())
    }

    /// The part of a channel that a thread needs to wait for its events. If the channel is destroyed, the
    /// thread blocks here until the process ends.
    pub(crate) fn get_or_block(&self, address: usize) -> T {
        match self.get(address) {
            Some(found) => found,
            None => loop {
                // SAFETY: the call has no argument. It returns after a signal, and the thread may be
                // cancelled in it.
                unsafe { libc::pause() };
            },
        }
    }
}
