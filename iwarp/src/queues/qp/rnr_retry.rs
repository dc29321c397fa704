//! How often a message is tried again that finds no receive request at the peer.

use std::sync::atomic::{AtomicU8, Ordering};

use super::QpShared;

/// The user has set nothing.
const UNSET: u8 = u8::MAX;

/// A number of tries, if the user has set one.
pub(super) struct RnrRetry(AtomicU8);

impl RnrRetry {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(UNSET))
    }
}

impl QpShared {
    /// Sets the number.
    pub(crate) fn set_rnr_retry(&self, retry: u8) {
        self.rnr_retry.0.store(retry, Ordering::Relaxed);
    }

    /// The number that was set.
    pub(crate) fn rnr_retry(&self) -> Option<u8> {
        Some(self.rnr_retry.0.load(Ordering::Relaxed)).filter(|retry| *retry != UNSET)
    }
}
