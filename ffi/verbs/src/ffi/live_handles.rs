//! The handles of objects that are not yet destroyed. A handle is the object's address, which the program
//! holds as a pointer.
//!
//! Some programs, just before they end, destroy a channel while another thread waits for events of the
//! channel. With a kernel channel, the waiting thread keeps waiting. A thread that asks for an event just
//! after the destruction must not access freed memory. So a call that waits for events first looks up its
//! channel in the table of live handles. If the channel is destroyed, the calling thread waits for ever.
//!
//! Some programs also pass identifiers and channels that they have destroyed. Any other call that looks up
//! such an object here fails with EINVAL instead of crashing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The objects of one kind that are not destroyed, by their addresses. `T` is a shared part of the object,
/// which stays valid while a call uses it.
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

    /// Inserts an object that was made. `address` is the address that the program has.
    pub(crate) fn insert(&self, address: usize, what: T) {
        self.known().get_or_insert_default().insert(address, what);
    }

    /// Removes the object at `address`, which the program destroys. Returns `None` if the object was
    /// destroyed before.
    pub(crate) fn remove(&self, address: usize) -> Option<T> {
        self.known().as_mut().and_then(|known| known.remove(&address))
    }

    /// Returns the shared part of an object, or `None` if the object is destroyed.
    pub(crate) fn get(&self, address: usize) -> Option<T> {
        self.known().as_ref().and_then(|known| known.get(&address).cloned())
    }

    /// Calls `act` with the address of each object. No object is removed during the call. So `act` must take
    /// only locks whose holders do not use this value.
    pub(crate) fn for_each(&self, mut act: impl FnMut(usize)) {
        self.known().iter().flatten().for_each(|(address, _)| act(*address));
    }

    /// Returns the part of a channel that a thread needs to wait for events of the channel. If the channel is
    /// destroyed, the thread blocks here until the process ends.
    pub(crate) fn get_or_block(&self, address: usize) -> T {
        match self.get(address) {
            Some(found) => found,
            None => loop {
                // SAFETY: `pause` has no argument and no precondition. `pause` returns after a signal, so it
                // is called in a loop.
                unsafe { libc::pause() };
            },
        }
    }
}
