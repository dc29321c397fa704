//! Control blocks without a stack: single segments made by hand, and pairs of control blocks that are joined
//! by a wire under the test's control.

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
