//! The invariants of a stack: conditions that hold between any two calls, for any input.
//!
//! [`Stack::check_invariants`](crate::Stack::check_invariants) checks all invariants. The simulator calls it
//! after every poll, and the fuzz targets that have a stack call it regularly.

#[cfg(test)]
pub(crate) use dp::invariant::assert_found;
pub(crate) use dp::invariant::{Check, ensure};
