//! How many objects use another one, which is not destroyed before them (the kernel's `usecnt`).

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Default)]
pub(crate) struct UseCount(AtomicUsize);

impl UseCount {
    pub(crate) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there are any.
    pub(crate) fn in_use(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
