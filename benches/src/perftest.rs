//! perftest's exchange of `ib_* -R`: the messages of both sides on the control connection, and their order.
//!
//! A control connection (by default to port 18515) carries only Sends. The client sends first, and the two
//! sides strictly alternate. On this connection the sides agree on versions, exchange the addresses of their
//! memory, and report their results. The sides also wait for each other while the data connections are made
//! to the same port. The order was taken from perftest 4.5+0.17 (Debian 12) and from captures of its
//! connections.

pub mod client;
pub mod exchange;
pub mod script;
pub mod server;
pub mod wire;
