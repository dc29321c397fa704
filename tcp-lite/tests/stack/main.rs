//! Whole stacks against each other, against smoltcp's TCP, and against hostile frames, over links in memory.
//!
//! One binary for all, since each links the same things. [`harness`] moves frames, time and checked streams.

mod addresses;
mod craft;
mod crowd;
mod determinism;
mod harness;
mod hostile;
mod icmp;
mod joined;
mod limits;
mod neighbors;
mod relay;
mod smoltcp_peer;
mod streams;
mod time_wait;
mod trains;
