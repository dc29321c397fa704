//! The process that uses the library: what it has, and its one way in.
//!
//! [`get_or_start`] starts everything. The calls that may be a program's first one begin with it; others use
//! [`started`], or the [`Process`] that their object has.
//!
//! | file | contents |
//! |---|---|
//! | `state.rs` | the state of the process: its start, what happens after each poll, its end |
//! | `identity.rs`, `limits.rs` | what the device calls itself, and what it can do |
//! | `cm_id_table.rs`, `bound_ports.rs` | the identifiers of librdmacm: who handles their events, and their ports |
//! | `qp_table.rs` | queue pairs by their numbers |
//! | `async_events.rs` | where asynchronous events go |
//! | `oob_connections.rs`, `retry_timeouts.rs`, `loopback_qps.rs` | queue pairs that programs connect out of band: those whose peer has not come yet, and those that are their own peer |
//! | `drain.rs` | the end of queue pairs |

pub(crate) mod async_events;
mod bound_ports;
pub(crate) mod cm_id_table;
pub(crate) mod drain;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod loopback_qps;
pub(crate) mod oob_connections;
pub(crate) mod qp_table;
pub(crate) mod retry_timeouts;
mod state;

pub(crate) use state::{Process, get_or_start, started};
