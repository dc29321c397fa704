//! Registered memory without an engine: rights, STags, windows and revocation. `scripts/asan` runs these
//! tests under AddressSanitizer.

mod atomic;
mod revocation;
mod sharing;
mod table;
mod windows;
