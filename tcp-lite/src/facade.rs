//! The types of smoltcp that this crate uses: packets, time and sequence numbers for the whole crate, and the
//! interface for the slow path.
//!
//! The version is pinned (`=0.14.0`). An upgrade may require changes in this file and in `slow_path.rs`.

pub use smoltcp::time::{Duration, Instant};
pub use smoltcp::wire::{
    EthernetAddress, IpAddress, IpCidr, Ipv4Address, Ipv4Cidr, Ipv6Address, Ipv6Cidr, TcpSeqNumber,
};

pub(crate) use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
pub(crate) use smoltcp::phy;
pub(crate) use smoltcp::socket::raw;
pub(crate) use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};
