//! Registered memory without an engine, for example rights, STags, windows, atomics and revocation.
//! `scripts/asan` runs these tests under AddressSanitizer.

mod atomic;
mod revocation;
mod sharing;
mod table;
mod windows;
