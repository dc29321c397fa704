//! Invariants: what must hold between any two calls, whatever has arrived.
//!
//! Each structure states its own in a `check`. The simulator and the fuzz targets call all of them after
//! every step, by [`Stack::check_invariants`](crate::Stack::check_invariants). Nothing else does, so
//! they cost nothing in production and may allocate.

/// Result of a check: the error says which invariant does not hold.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Returns an error from a check if a condition does not hold.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

pub(crate) use ensure;
