//! Invariants: conditions that must hold between any two calls, whatever frames have arrived.
//!
//! The invariants of a structure are in its method `check` or `check_invariants`. The simulator, the fuzz
//! targets and other tests call these methods. Ordinary programs do not call them. A check may allocate.

/// The result of a check: the invariant that does not hold, as an error.
pub type Check<T = ()> = Result<T, String>;

/// Returns from a check with an error if a condition does not hold.
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

/// Asserts that a check fails with a message that contains `what`. Only tests call this function.
///
/// # Panics
/// If the check succeeds, or if its message does not contain `what`.
#[track_caller]
pub fn assert_found<T: std::fmt::Debug>(check: Check<T>, what: &str) {
    let message = check.expect_err(what);
    assert!(message.contains(what), "{message:?} does not say {what:?}");
}
