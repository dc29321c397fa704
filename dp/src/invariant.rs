//! Invariants: what must hold between any two calls, whatever has arrived.
//!
//! A structure states its invariants in a `check` method. The simulator and the fuzz targets call all
//! checks after every step; no other code calls them, so they cost nothing elsewhere. A check may allocate.

/// The result of a check: the invariant that does not hold, as an error.
pub type Check<T = ()> = Result<T, String>;

/// Returns from a check with an error, unless something holds.
#[doc(hidden)]
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

pub use ensure;

/// Asserts that a check fails, with a message that contains `what`. Only tests call it. It is generic, so no
/// other build has code for it.
///
/// # Panics
/// When the check succeeds, or its message does not contain `what`.
#[track_caller]
pub fn assert_found<T: std::fmt::Debug>(check: Check<T>, what: &str) {
    let message = check.expect_err(what);
    assert!(message.contains(what), "{message:?} does not say {what:?}");
}
