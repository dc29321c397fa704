//! Addresses on a wire.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The address of a peer on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Connect there.
    At(SocketAddr),
    /// A program has bound the address, and does not listen yet.
    Bound,
    /// Nobody listens at the address that the program named.
    Nobody,
    /// The host of the address does not answer.
    Silent,
}

/// The first two bytes of the addresses on a `local` wire: a part of 100.64.0.0/10, the range for carriers
/// (RFC 6598), which no host has on an interface by itself.
const LOCAL_NETWORK: [u8; 2] = [100, 64];

/// The prefix length of that range. With 16, the last station would have the broadcast address.
pub(super) const LOCAL_PREFIX: u8 = 10;

/// The address of a station of a `local` wire.
pub(super) fn address_of_station(station: u16) -> IpAddr {
    let [high, low] = station.to_be_bytes();
    IpAddr::from([LOCAL_NETWORK[0], LOCAL_NETWORK[1], high, low])
}

/// An address as IPv6 has it.
pub(crate) fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The address that a GID names.
pub(crate) fn of_gid(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}
