//! The invariants of a stack: what must hold between any two calls, whatever has arrived.
//!
//! The simulator and the fuzz targets look at all of them after every step, by
//! [`Stack::check_invariants`](crate::Stack::check_invariants).

pub(crate) use dp::invariant::{Check, ensure};

/// Asserts that a check fails, with a message that contains `what`.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_found<T: std::fmt::Debug>(check: Check<T>, what: &str) {
    let message = check.expect_err(what);
    assert!(message.contains(what), "{message:?} does not say {what:?}");
}
