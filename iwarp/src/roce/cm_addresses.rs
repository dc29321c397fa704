//! The header that Linux's `rdma_cm` puts in front of the private data of its requests (`struct cma_hdr`, IBA
//! annex A11): the addresses under which the programs of both ends know the connection.
//!
//! ```text
//! | version | IP version << 4 | source port | source address | destination address |
//! |    1    |        1        |      2      |       16       |         16          |
//! ```
//!
//! An IPv4 address is in the last four bytes of its field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The version of the header.
const VERSION: u8 = 0;

/// The addresses of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmAddresses {
    /// The sender's address.
    pub source: SocketAddr,
    /// The address to which the sender connects, of the same family. The port is part of the service ID.
    pub destination: IpAddr,
}

impl CmAddresses {
    /// Number of bytes of the header.
    pub const LEN: usize = 36;

    /// Returns the header. If only one of the addresses is an IPv4 address, this address is written in
    /// IPv4-mapped form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (ip_version, addresses) = match (self.source.ip(), self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (4, [of_v4(source), of_v4(destination)]),
            (source, destination) => (6, [source, destination].map(of_v6)),
        };
        bytes[0] = VERSION;
        bytes[1] = ip_version << 4;
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        bytes[4..20].copy_from_slice(&addresses[0]);
        bytes[20..36].copy_from_slice(&addresses[1]);
        bytes
    }

    /// Parses the header. Returns `None` if the version is not known, or if the addresses are not of IP.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [VERSION, ip_version, p0, p1, addresses @ ..] = bytes else { return None };
        let (source, destination): (&[u8; 16], &[u8; 16]) =
            (addresses.first_chunk()?, addresses.last_chunk()?);
        let [source, destination] = match ip_version >> 4 {
            4 => [source, destination].map(|[.., a, b, c, d]| Ipv4Addr::new(*a, *b, *c, *d).into()),
            6 => [source, destination].map(|octets| Ipv6Addr::from(*octets).into()),
            _ => return None,
        };
        let port = u16::from_be_bytes([*p0, *p1]);
        Some(Self { source: SocketAddr::new(source, port), destination })
    }
}

fn of_v4(address: Ipv4Addr) -> [u8; 16] {
    let mut field = [0; 16];
    field[12..].copy_from_slice(&address.octets());
    field
}

fn of_v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(source: &str, destination: &str) -> CmAddresses {
        CmAddresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    /// The positions are those of `struct cma_hdr` in Linux's `cma.c`.
    #[test]
    fn each_field_is_in_its_place() {
        let v4 = addresses("10.1.2.3:7471", "10.4.5.6");
        let mut expected = vec![0, 0x40, 0x1d, 0x2f];
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 2, 3]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 4, 5, 6]);
        assert_eq!(v4.to_bytes()[..], expected);
        let v6 = addresses("[fd00::1]:7471", "fd00::2:3");
        let mut expected = vec![0, 0x60, 0x1d, 0x2f];
        expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3]);
        assert_eq!(v6.to_bytes()[..], expected);
    }

    #[test]
    fn other_headers_are_refused() {
        let whole = addresses("10.1.2.3:7471", "10.4.5.6").to_bytes();
        for (at, value) in [(0, 1), (1, 0x50), (1, 0), (1, 0x70), (1, 0x04)] {
            let mut other = whole;
            other[at] = value;
            assert_eq!(CmAddresses::parse(&other), None, "{value:#x} at {at}");
        }
    }

    #[test]
    fn addresses_of_different_families_are_both_written_as_ipv6() {
        let mixed = addresses("10.1.2.3:1", "fd00::2");
        let parsed = CmAddresses::parse(&mixed.to_bytes()).unwrap();
        assert_eq!(parsed, addresses("[::ffff:10.1.2.3]:1", "fd00::2"));
    }

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_was(
            source in any::<(IpAddr, u16)>(),
            destination in any::<IpAddr>(),
        ) {
            let source = SocketAddr::from(source);
            prop_assume!(source.is_ipv4() == destination.is_ipv4());
            let addresses = CmAddresses { source, destination };
            prop_assert_eq!(CmAddresses::parse(&addresses.to_bytes()), Some(addresses));
        }
    }
}
