//! A host stack for poll-mode ports. smoltcp answers ordinary ARP and neighbour discovery queries, and echo
//! requests. This crate itself implements addresses, neighbours, reassembly, TCP, and UDP datagrams. Its TCP
//! queues segments, not bytes.
//!
//! This crate is deterministic, does no I/O, reads no clock and starts no thread. The inputs of the crate are
//! frames, times, a seed, and the calls of its user. The outputs are frames and events. A test can run whole
//! connections by moving frames between two [`Stack`]s.
//!
//! Each module is on a floor (layer), and uses only modules of lower floors. The package `tests` checks this
//! rule (`src/layout`), also for the modules of `tcp`.
//!
//! | floor | modules | what |
//! |---|---|---|
//! | 0 | `facade`, `id`, `invariant`, `out_of_order` | addresses and times; ids; invariant checks; a gauge of memory |
//! | 1 | `backoff`, `checksum`, `config`, `counters`, `deadline`, `ethernet`, `event`, `four_tuple`, `timer_wheel` | shared basics |
//! | 2 | `ip`, `route`, `secrets` | packets, routes, keys |
//! | 3 | `discovery`, `icmp_error`, `listener`, `membership`, `slow_path`, `table`, `udp` | ARP and NDP, ICMP errors, listeners, multicast groups, the connection table, datagrams |
//! | 4 | `address_conflict`, `neighbor`, `steering` | address conflict detection; the neighbour table; several stacks of one host |
//! | 5 | `tcp` | connections |
//! | 6 | `frame`, `reassembly`, `syn_cookie` | modules that know TCP headers |
//! | 7 | `stack` | one host on one port |
//! | 8 | `bench` | private parts that `benches` measures |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod address_conflict;
mod backoff;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod checksum;
pub mod config;
mod counters;
mod deadline;
mod discovery;
mod ethernet;
pub mod event;
pub mod facade;
mod four_tuple;
mod frame;
mod icmp_error;
mod id;
mod invariant;
mod ip;
mod listener;
mod membership;
mod neighbor;
mod out_of_order;
mod reassembly;
mod route;
mod secrets;
mod slow_path;
pub mod stack;
pub mod steering;
mod syn_cookie;
mod table;
pub mod tcp;
mod timer_wheel;
mod udp;

pub use backoff::Backoff;
pub use config::{
    AddressProbing, CongestionAlgorithm, EcnMode, Keepalive, Limits, Pacing, PathMtuConfig, PathMtuProbing,
    StackConfig, TcpConfig,
};
pub use deadline::Deadline;
pub use event::{CloseReason, Datagram, Event, Received};
pub use facade::{Duration, Instant};
pub use listener::{AddressFilter, ListenConfig, ListenerCounters};
pub use membership::{JoinGroupError, MAX_GROUPS};
pub use stack::{
    Ahead, ConnId, ConnectError, ListenError, ListenerId, SegmentBuf, Sender, Stack, StackCounters,
    StackUsage,
};
pub use steering::Member;
pub use tcp::{ConnInfo, OutOfOrder, SendError, State};
pub use udp::{DatagramHeader, MAX_UDP_PORTS, OpenUdpError, SendDatagramError};
