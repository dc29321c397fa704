//! The simulator's parser and rules on the wire from `tests/src/sim`: included by path and not as a crate, so
//! that little code is compiled with instrumentation.

#[path = "../../src/sim/coverage.rs"]
pub mod coverage;
#[path = "../../src/sim/watch/mod.rs"]
pub mod watch;
