//! The simulator's rules on the wire and its counters of coverage, from `tests/src/sim`. This crate includes
//! these files by path instead of depending on the crate `tests`, so that little code is compiled with
//! instrumentation.

#[path = "../../src/sim/coverage.rs"]
pub mod coverage;
#[path = "../../src/sim/watch/mod.rs"]
pub mod watch;
