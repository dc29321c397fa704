//! Addresses on a wire.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The name service's answer for an address to which a program connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// A program listens at the named address. The value is the program's address on the wire.
    At(SocketAddr),
    /// A program has bound the named address, but does not listen yet.
    Bound,
    /// No program listens at the named address.
    NotFound,
    /// The host of the named address does not answer.
    NoAnswer,
}

/// The IPv6 form of an address. An IPv4 address becomes an IPv4-mapped address.
pub(crate) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The address in a GID.
pub(crate) fn of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}
