//! The invariants of a stack: what must hold between any two calls, whatever has arrived.
//!
//! The simulator and the fuzz targets look at all of them after every step, by
//! [`Stack::check_invariants`](crate::Stack::check_invariants).

#[cfg(test)]
pub(crate) use dp::invariant::assert_found;
pub(crate) use dp::invariant::{Check, ensure};
