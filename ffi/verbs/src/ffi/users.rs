//! How many living objects use another one, which is not destroyed before them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
