//! A host stack for poll-mode ports: smoltcp for addresses, ARP/NDP, ICMP and reassembly, and a TCP of our own
//! whose unit is the segment, not the byte.
//!
//! This crate is deterministic, does no I/O, reads no clock and starts no thread: frames, time and a seed come
//! in, frames and events go out. Whole connections run in a test by moving frames between two [`Stack`]s.
#![forbid(unsafe_code)]

pub mod config;
pub mod event;
pub mod facade;
pub mod stack;
pub mod tcp;

pub use config::{Limits, StackConfig, TcpConfig};
pub use event::{CloseReason, Event, Received};
pub use facade::{Duration, Instant};
pub use stack::{ConnId, ConnectError, ListenError, ListenerId, Stack, StackCounters};
pub use tcp::{ConnInfo, SegmentBuf, SendError};
