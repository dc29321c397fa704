//! perftest's exchange of `ib_* -R`: what both ends say on the control connection, in which order.
//!
//! A control connection (port 18515) carries Sends only, client first and strictly alternating. On it the
//! ends agree on versions, wait for each other while the data connections are made (to the same port), tell
//! each other where their memory is, and report. The order was read off perftest 4.5+0.17, Debian 12's, and
//! off captures of it.

pub mod client;
pub mod exchange;
pub mod script;
pub mod server;
pub mod wire;
