//! Counts the objects that use another object. An object cannot be destroyed while other objects use it (the
//! kernel's `usecnt`).

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of objects that use this object.
#[derive(Default)]
pub(crate) struct UseCount(AtomicUsize);

impl UseCount {
    pub(crate) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the object has users.
    pub(crate) fn in_use(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
