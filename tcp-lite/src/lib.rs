//! A host stack for poll-mode ports: smoltcp answers ARP, neighbour discovery and echo requests; addresses, neighbours and
//! reassembly are our own, and so is TCP, whose unit is the segment, not the byte.
//!
//! This crate is deterministic, does no I/O, reads no clock and starts no thread: frames, time and a seed come
//! in, frames and events go out. Whole connections run in a test by moving frames between two [`Stack`]s.
#![forbid(unsafe_code)]

mod backoff;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod checksum;
mod claims;
pub mod config;
mod counters;
mod discovery;
mod ethernet;
pub mod event;
pub mod facade;
mod frame;
mod icmp_error;
mod id;
pub mod in_order;
mod ip;
mod listener;
mod neighbor;
mod out_of_order;
mod reassembly;
mod route;
mod secrets;
mod slow_path;
pub mod stack;
mod syn_cookie;
mod table;
pub mod tcp;
mod timer_wheel;

pub use backoff::Backoff;
pub use config::{
    AddressProbing, CongestionAlgorithm, EcnMode, Keepalive, Limits, Pacing, PathMtuConfig, PathMtuProbing,
    StackConfig, TcpConfig,
};
pub use event::{CloseReason, Event, Received};
pub use facade::{Duration, Instant};
pub use in_order::{InOrder, Ordered};
pub use listener::{AddressFilter, ListenConfig, ListenerCounters};
pub use stack::{
    Ahead, ConnId, ConnectError, ListenError, ListenerId, SegmentBuf, Sender, Stack, StackCounters,
    StackUsage,
};
pub use tcp::{ConnInfo, OutOfOrder, SendError, State};
