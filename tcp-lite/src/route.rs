//! Our addresses, and the next hop of a packet: a host on the link, or the gateway of the packet's family.

use arrayvec::ArrayVec;

use crate::facade::{EthernetAddress, IpAddress, IpCidr, Ipv6Address, Ipv6Cidr};

/// Addresses and gateways of one stack, which never change.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    addresses: ArrayVec<IpCidr, 8>,
    gateways: ArrayVec<IpAddress, 2>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The source address: one of our addresses.
    pub(crate) local: IpAddress,
    /// The host to whose Ethernet address the frames are sent.
    pub(crate) next_hop: IpAddress,
}

impl Routes {
    /// Creates the routes. If `addresses` has IPv6 addresses but no link-local address, adds the link-local
    /// address of the Ethernet address (RFC 4291 appendix A), unless the list is full. Every IPv6 node has a
    /// link-local address, which is the source of its queries for gateways and neighbours.
    pub(crate) fn new(
        mac: EthernetAddress,
        mut addresses: ArrayVec<IpCidr, 8>,
        gateways: ArrayVec<IpAddress, 2>,
    ) -> Self {
        let has = |wanted: fn(&Ipv6Address) -> bool| {
            addresses.iter().any(|c| matches!(c.address(), IpAddress::Ipv6(a) if wanted(&a)))
        };
        if has(|_| true) && !has(is_link_local) && !addresses.is_full() {
            addresses.push(IpCidr::Ipv6(Ipv6Cidr::new(eui64_link_local(mac), 64)));
        }
        Self { addresses, gateways }
    }

    pub(crate) fn addresses(&self) -> &[IpCidr] {
        &self.addresses
    }

    pub(crate) fn gateways(&self) -> &[IpAddress] {
        &self.gateways
    }

    /// Whether `address` is one of our addresses.
    pub(crate) fn is_ours(&self, address: &IpAddress) -> bool {
        self.addresses.iter().any(|c| c.address() == *address)
    }

    /// The path to `remote`; `None` if there is no path. If `remote` is one of our addresses, it is also the
    /// source address. If `remote` is on a link of ours, the source is our address on that link. Otherwise
    /// the source is our address on the gateway's link. If we have no such address, or if it is link-local
    /// and `remote` is not, the source is our first address of the same family that is not link-local.
    pub(crate) fn path(&self, remote: &IpAddress) -> Option<Path> {
        if self.is_ours(remote) {
            return Some(Path { local: *remote, next_hop: *remote });
        }
        if let Some(local) = self.on_link(remote) {
            return Some(Path { local, next_hop: *remote });
        }
        let gateway = self.gateways.iter().find(|g| same_family(g, remote))?;
        let local = match self.on_link(gateway) {
            Some(local) if !link_local(&local) || link_local(remote) => local,
            // Our address on the gateway's link is link-local, or we have no such address. So the source is
            // an address that is valid beyond the link.
            _ => self.first_global(remote)?,
        };
        Some(Path { local, next_hop: *gateway })
    }

    /// The next hop of packets from `local`, the address of an existing connection, to `remote`; `None` if
    /// there is no path, or if the addresses are of different families.
    pub(crate) fn next_hop(&self, local: &IpAddress, remote: &IpAddress) -> Option<IpAddress> {
        same_family(local, remote).then_some(())?;
        self.path(remote).map(|p| p.next_hop)
    }

    /// The source address for queries for `target` (RFC 4861 section 7.2.2): our address on the link of
    /// `target`, or otherwise our first address of the same family. Returns `None` if we have no such
    /// address.
    pub(crate) fn query_source(&self, target: &IpAddress) -> Option<IpAddress> {
        self.on_link(target).or_else(|| self.first(|a| same_family(a, target)))
    }

    /// The source address of packets to a multicast group: our first address of the same family that is not
    /// link-local, or otherwise our first address of the same family.
    pub(crate) fn group_source(&self, group: &IpAddress) -> Option<IpAddress> {
        self.first_global(group).or_else(|| self.first(|a| same_family(a, group)))
    }

    /// Whether `address` is the broadcast address of one of our links, or 255.255.255.255.
    pub(crate) fn is_broadcast(&self, address: &IpAddress) -> bool {
        let IpAddress::Ipv4(address) = address else { return false };
        address.is_broadcast()
            || self.addresses.iter().any(|c| matches!(c, IpCidr::Ipv4(c) if c.broadcast() == Some(*address)))
    }

    /// Our address with the longest prefix that contains `remote`; `None` if no prefix contains `remote`.
    fn on_link(&self, remote: &IpAddress) -> Option<IpAddress> {
        let on_link = self.addresses.iter().filter(|c| c.contains_addr(remote));
        on_link.max_by_key(|c| c.prefix_len()).map(|c| c.address())
    }

    fn first_global(&self, remote: &IpAddress) -> Option<IpAddress> {
        self.first(|a| same_family(a, remote) && !link_local(a))
    }

    fn first(&self, wanted: impl Fn(&IpAddress) -> bool) -> Option<IpAddress> {
        self.addresses.iter().map(|c| c.address()).find(wanted)
    }
}

fn same_family(a: &IpAddress, b: &IpAddress) -> bool {
    a.version() == b.version()
}

fn link_local(address: &IpAddress) -> bool {
    matches!(address, IpAddress::Ipv6(a) if is_link_local(a))
}

fn is_link_local(address: &Ipv6Address) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

fn eui64_link_local(mac: EthernetAddress) -> Ipv6Address {
    let m = mac.0;
    let word = |high, low| u16::from_be_bytes([high, low]);
    Ipv6Address::new(
        0xfe80,
        0,
        0,
        0,
        word(m[0] ^ 0x02, m[1]),
        word(m[2], 0xff),
        word(0xfe, m[3]),
        word(m[4], m[5]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(addresses: &[&str], gateways: &[&str]) -> Routes {
        let mac = EthernetAddress([0x02, 0, 0, 0, 0, 0x07]);
        Routes::new(
            mac,
            addresses.iter().map(|a| a.parse().unwrap()).collect(),
            gateways.iter().map(|a| a.parse().unwrap()).collect(),
        )
    }

    fn path(routes: &Routes, remote: &str) -> Option<(String, String)> {
        let path = routes.path(&remote.parse().unwrap())?;
        Some((path.local.to_string(), path.next_hop.to_string()))
    }

    fn pair(a: &str, b: &str) -> Option<(String, String)> {
        Some((a.into(), b.into()))
    }

    #[test]
    fn on_link_goes_straight_and_the_rest_to_the_gateway() {
        let r = routes(&["10.0.0.1/24", "10.9.0.1/16", "2001:db8::1/64"], &["10.0.0.254", "fe80::fe"]);
        assert_eq!(path(&r, "10.0.0.9"), pair("10.0.0.1", "10.0.0.9"));
        assert_eq!(path(&r, "10.9.8.7"), pair("10.9.0.1", "10.9.8.7"));
        assert_eq!(path(&r, "192.0.2.1"), pair("10.0.0.1", "10.0.0.254"));
        assert_eq!(path(&r, "2001:db8::2"), pair("2001:db8::1", "2001:db8::2"));
        assert_eq!(path(&r, "2001:db8:1::2"), pair("2001:db8::1", "fe80::fe"));
        assert_eq!(path(&r, "fe80::9"), pair("fe80::ff:fe00:7", "fe80::9"));
        assert!(r.is_broadcast(&IpAddress::v4(10, 0, 0, 255)));
    }

    #[test]
    fn without_an_address_of_the_family_there_is_no_way() {
        let r = routes(&["10.0.0.1/24"], &[]);
        assert_eq!(path(&r, "2001:db8::2"), None);
        assert_eq!(path(&r, "192.0.2.1"), None);
        assert_eq!(r.addresses().len(), 1);
    }
}
