//! The state of the process that uses the library, and the function that starts it.
//!
//! [`get_or_start`] starts the engine and everything that it needs. Each call that may be a program's first
//! use of the engine begins with [`get_or_start`]. Other calls use [`started`], or the [`Process`] of their
//! object.
//!
//! | file | contents |
//! |---|---|
//! | `state.rs` | the state of the process: its start, the work after each poll, its end |
//! | `identity.rs`, `limits.rs` | the device's identity and limits |
//! | `cm_id_table.rs`, `bound_ports.rs` | the identifiers of librdmacm: their event handlers and their ports |
//! | `sidr.rs`, `gsi.rs` | the lookup of datagram services, and the queue pair that exchanges its messages |
//! | `groups.rs` | the multicast groups to which queue pairs are attached |
//! | `qp_table.rs` | finds queue pairs by the queue pair number that the program sees |
//! | `async_events.rs` | delivery of asynchronous events |
//! | `oob_connections.rs`, `retry_timeouts.rs`, `loopback_qps.rs` | queue pairs that programs connect out of band: those whose peer has not connected yet, and those connected to themselves |
//! | `removal.rs` | the removal of the device |
//! | `object_guard.rs` | the lock of a queue pair or an identifier, and its rule |
//! | `drain.rs` | the end of queue pairs |

pub(crate) mod async_events;
mod bound_ports;
pub(crate) mod cm_id_table;
pub(crate) mod drain;
mod groups;
mod gsi;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod loopback_qps;
mod object_guard;
pub(crate) mod oob_connections;
pub(crate) mod qp_table;
mod removal;
pub(crate) mod retry_timeouts;
pub(crate) mod sidr;
mod state;

pub(crate) use bound_ports::BoundPorts;
pub(crate) use object_guard::ObjectGuard;
pub(crate) use state::{Process, get_or_start, started};
