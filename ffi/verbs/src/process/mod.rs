//! The process that uses the library.

pub(crate) mod async_events;
mod bound_ports;
pub(crate) mod drain;
pub(crate) mod identity;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod numbers;
pub(crate) mod rendezvous;
pub(crate) mod retries;
pub(crate) mod selves;
mod state;

pub(crate) use state::{Process, get_or_start, started};
