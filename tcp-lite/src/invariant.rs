//! Invariants: what must hold between any two calls, whatever has arrived.
//!
//! Each structure states its own in a `check`. The simulator and the fuzz targets call all of them
//! after every step, by [`Stack::check_invariants`](crate::Stack::check_invariants); nobody else
//! does, so they cost nothing. They allocate.

/// What a check finds: nothing, or what does not hold.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Returns from a check with an error, unless something holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

pub(crate) use ensure;
