//! The handles of objects that are not destroyed: the addresses that programs have.
//!
//! Programs destroy a channel while another thread waits for its events: they are about to end, and nothing
//! more comes. With the kernel's channels that thread waits on. A thread that is a moment late must not find
//! freed memory. So channels are looked up among the live handles, and a late thread waits on, too.
//!
//! Programs also call with identifiers and channels that they have destroyed. That is EINVAL, not a crash.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The objects of one kind that are not destroyed, by their addresses, with the part of them that outlives a
/// call.
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

    /// An object was made.
    pub(crate) fn insert(&self, address: usize, what: T) {
        self.known().get_or_insert_default().insert(address, what);
    }

    /// An object is destroyed, unless it was before.
    pub(crate) fn remove(&self, address: usize) -> Option<T> {
        self.known().as_mut().and_then(|known| known.remove(&address))
    }

    /// An object, if it is not destroyed.
    pub(crate) fn get(&self, address: usize) -> Option<T> {
        self.known().as_ref().and_then(|known| known.get(&address).cloned())
    }

    /// What a thread needs to wait for events of a channel. If it is destroyed, the thread waits here until
    /// the process ends.
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
