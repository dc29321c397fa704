//! Whole stacks against each other, and against hostile frames, over links in memory. (Against smoltcp's TCP:
//! the simulator, `tests/src/sim`.)
//!
//! One binary for all, since each links the same things. [`harness`] moves frames, time and checked streams.

mod addresses;
mod craft;
mod crowd;
mod determinism;
mod gro;
mod harness;
mod hostile;
mod icmp;
mod limits;
mod neighbors;
mod relay;
mod streams;
mod time_wait;
mod trains;
