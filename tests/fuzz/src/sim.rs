//! What the simulator knows of frames and of the wire, as it is in `tests/src/sim`: by path rather than
//! through its crate, so that what is instrumented is built of little.

#[path = "../../src/sim/coverage.rs"]
pub mod coverage;
#[path = "../../src/sim/packet.rs"]
pub mod packet;
#[path = "../../src/sim/watch/mod.rs"]
pub mod watch;
