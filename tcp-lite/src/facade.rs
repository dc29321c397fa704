//! All that is used of smoltcp, in one place: its vocabulary of packets, time and sequence numbers.
//!
//! The version is pinned (`=0.14`); a new one has to get past this file.

pub use smoltcp::time::{Duration, Instant};
pub use smoltcp::wire::{
    EthernetAddress, IpAddress, IpCidr, Ipv4Address, Ipv4Cidr, Ipv6Address, Ipv6Cidr, TcpSeqNumber,
};
