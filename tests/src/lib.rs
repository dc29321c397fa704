//! The cross-crate tests of uwarp.
