//! The invariants of a stack: conditions that hold between any two calls, for any input.
//!
//! The simulator and the fuzz targets check all invariants after every step, with
//! [`Stack::check_invariants`](crate::Stack::check_invariants).

#[cfg(test)]
pub(crate) use dp::invariant::assert_found;
pub(crate) use dp::invariant::{Check, ensure};
