//! Tests of control blocks without a stack, with single segments that a test builds, and with pairs of
//! control blocks on a wire that the test controls.

mod arrival;
mod ecn;
mod handshake;
mod link;
mod loss;
mod memory;
mod out_of_order;
mod pacing;
mod path_mtu;
mod pauses;
mod property;
mod recovery;
mod reduction;
mod reneging;
mod rules;
mod steps;
mod stream;
mod stuck;
mod teardown;
mod time_wait;
mod window;
mod wire;
mod withheld;
