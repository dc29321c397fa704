//! Complete stacks that communicate with each other, or that receive hostile frames, over links in memory.
//! (The simulator, `tests/src/sim`, runs stacks against smoltcp's TCP.)
//!
//! There is one test binary, since all tests link the same crates. [`harness`] moves frames and time, and
//! checks streams.

mod addresses;
mod closed_window;
mod craft;
mod crowd;
mod datagrams;
mod departure;
mod determinism;
mod gro;
mod groups;
mod harness;
mod hostile;
mod icmp;
mod in_order;
mod limits;
mod members;
mod neighbors;
mod own_address;
mod prediction;
mod relay;
mod streams;
mod time_wait;
mod timers;
mod trains;
