//! The GIDs of the device, and the address on the wire that a GID of a peer stands for.
//!
//! The table is that of a RoCE device with an IPv4 address: an IPv6 address and the IPv4 address, each with
//! both versions of RoCE as its type. On a `local` wire, the table is that of a device with two IPv4
//! addresses. Every GID stands for the same address on the wire, so programs may use any index.
//!
//! | the address on the wire | GIDs 0 and 1 | GIDs 2 and 3 | GIDs 4 and 5 |
//! |---|---|---|---|
//! | 10.0.0.1 | `fe80::5efe:10.0.0.1`, the link-local address of RFC 5214 | `::ffff:10.0.0.1` | none |
//! | 100.64.0.1 on a `local` wire | `fe80::5efe:100.64.0.1` | `::ffff:127.64.0.1` | `::ffff:100.64.0.1` |
//! | fd00::1 | `fd00::1` | `fd00::1` | none |
//! | that of a process of host 10.0.0.1 ([`hosts`]) | the address | `::ffff:10.0.0.1` | none |
//!
//! UCX 1.19 and later connect by the first IPv4 GID of RoCEv2, if the kernel has a route to the peer's GID
//! through the interface of the own GID. A `local` wire reports the loopback interface, to which 127.0.0.0/8
//! belongs. Other programs ignore the GIDs of the loopback interface, and use GID 5.
//!
//! In the last row, several processes have the GID of their host. The first byte of a queue pair's number
//! names the process ([`hosts::Slot`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use iwarp_wire::address_of_station;

use super::address::{mapped, of_gid};
use super::hosts;

/// The first 96 bits of a link-local address that contains an IPv4 address (RFC 5214 section 6.1).
const ISATAP: [u8; 12] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x5e, 0xfe];

/// The first byte of the addresses of the loopback interface.
const LOOPBACK: u8 = 127;

/// The version of RoCE in the type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoceVersion {
    V1,
    V2,
}

/// The version of RoCE of the GID at `index`.
pub(crate) fn version_of(index: usize) -> RoceVersion {
    if index.is_multiple_of(2) { RoceVersion::V1 } else { RoceVersion::V2 }
}

/// The wire, for which GIDs stand for addresses on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// A wire on which programs use the addresses on the wire.
    Network,
    /// A `local` wire.
    Local,
    /// A wire whose addresses name processes of hosts.
    Hosts,
}

/// The number of GIDs of a device on such a wire.
pub(super) fn count(scope: Scope) -> usize {
    match scope {
        Scope::Network | Scope::Hosts => 4,
        Scope::Local => 6,
    }
}

/// The GID at `index` of the table of a device with this address on the wire. `host` is the host's address,
/// if a queue pair's number names the process of the host.
pub(super) fn at(index: usize, address: IpAddr, host: Option<Ipv4Addr>, scope: Scope) -> Option<[u8; 16]> {
    if index >= count(scope) {
        return None;
    }
    let gid = match (index, address, host) {
        (0 | 1, IpAddr::V4(v4), _) => link_local(v4),
        (2 | 3, IpAddr::V4(v4), _) if scope == Scope::Local => loopback(v4),
        (2 | 3, IpAddr::V6(_), Some(host)) => mapped(host.into()).octets(),
        _ => mapped(address).octets(),
    };
    Some(gid)
}

/// The address of the loopback interface that stands for an address on a `local` wire.
fn loopback(address: Ipv4Addr) -> [u8; 16] {
    let [_, b, c, d] = address.octets();
    Ipv4Addr::new(LOOPBACK, b, c, d).to_ipv6_mapped().octets()
}

fn link_local(address: Ipv4Addr) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..12].copy_from_slice(&ISATAP);
    gid[12..].copy_from_slice(&address.octets());
    gid
}

/// The address on the wire of the peer with this GID, whose queue pair has the number `qp_num`.
pub(super) fn resolve(gid: [u8; 16], qp_num: u32, scope: Scope) -> IpAddr {
    let address = match gid.strip_prefix(&ISATAP) {
        Some(&[a, b, c, d]) if scope != Scope::Hosts => Ipv4Addr::new(a, b, c, d).into(),
        _ => of_gid(gid),
    };
    match (address, scope) {
        (IpAddr::V4(host), Scope::Hosts) => {
            let address: Ipv6Addr = hosts::address_in_slot(host, hosts::Slot::of_qp_num(qp_num));
            address.into()
        }
        (IpAddr::V4(v4), Scope::Local) if v4.is_loopback() => {
            let [.., high, low] = v4.octets();
            address_of_station(u16::from_be_bytes([high, low]))
        }
        (address, _) => address,
    }
}

/// The first 96 bits of the IPv6 group that stands for an IPv4 group on a wire of IPv6: `ff0e::ffff:a.b.c.d`,
/// the GID of the IPv4 group in RoCEv1.
const GROUP_OF_IPV4: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// The address of a multicast group on a wire whose address of this process is `own`. `is_private` is true if
/// all peers use this library: then an IPv4 group has an address on a wire of IPv6. `None` if the wire has no
/// address for the group.
pub(super) fn group_on_wire(own: IpAddr, group: IpAddr, is_private: bool) -> Option<IpAddr> {
    match (own, group) {
        (IpAddr::V6(_), IpAddr::V4(group)) if is_private => {
            let mut octets = [0; 16];
            octets[..12].copy_from_slice(&GROUP_OF_IPV4);
            octets[12..].copy_from_slice(&group.octets());
            Some(Ipv6Addr::from(octets).into())
        }
        _ => (own.is_ipv4() == group.is_ipv4()).then_some(group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn each_gid_of_a_table_is_the_address_of_its_owner() {
        let ipv4 = "100.64.156.65";
        let link_local = "fe80::5efe:100.64.156.65";
        let process = "fd75:7761:7270::a4d:1:75fe";
        let [mapped, host] = ["::ffff:100.64.156.65", "::ffff:10.77.0.1"];
        let local = [link_local, "::ffff:127.64.156.65", mapped];
        for (address, host, scope, pairs) in [
            (ipv4, None, Scope::Network, &[link_local, mapped][..]),
            (ipv4, None, Scope::Local, &local[..]),
            ("fd00::1", None, Scope::Network, &["fd00::1"; 2][..]),
            (process, Some("10.77.0.1"), Scope::Hosts, &[process, host][..]),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let host = host.map(|host| host.parse().unwrap());
            assert_eq!(count(scope), 2 * pairs.len());
            assert_eq!(at(count(scope), address, host, scope), None);
            for index in 0..count(scope) {
                let found = at(index, address, host, scope).unwrap();
                assert_eq!(found, gid(pairs[index / 2]), "{address} {index}");
                assert_eq!(resolve(found, 0xfe_0007, scope), address, "{address} {index}");
            }
        }
        // Other addresses stand for themselves on a `local` wire.
        assert_eq!(resolve(gid("::ffff:10.64.0.1"), 0, Scope::Local).to_string(), "10.64.0.1");
        // On a network, a GID of the loopback interface is no other address.
        assert_eq!(resolve(gid("::ffff:127.64.0.1"), 0, Scope::Network).to_string(), "127.64.0.1");
        assert_eq!(
            [0, 1, 4, 5].map(version_of),
            [RoceVersion::V1, RoceVersion::V2, RoceVersion::V1, RoceVersion::V2]
        );
    }

    #[test]
    fn a_group_of_ipv4_has_an_address_on_each_wire_of_our_own() {
        let of = |own: &str, group: &str, is_private| {
            let [own, group] = [own, group].map(|text| text.parse().unwrap());
            group_on_wire(own, group, is_private).map(|group| group.to_string())
        };
        assert_eq!(of("100.64.0.1", "239.1.2.3", true).as_deref(), Some("239.1.2.3"));
        assert_eq!(of("100.64.0.1", "ff0e::1", true), None);
        assert_eq!(of("fd75::1", "239.1.2.3", true).as_deref(), Some("ff0e::ffff:ef01:203"));
        assert_eq!(of("fd75::1", "239.1.2.3", false), None);
        assert_eq!(of("fd75::1", "ff0e::1", false).as_deref(), Some("ff0e::1"));
        // No IPv6 group of a program has the address of another group.
        let gid = "ff0e::ffff:ef01:203".parse::<Ipv6Addr>().unwrap().octets();
        assert_eq!(iwarp::roce::group_of_gid(&gid), Some("239.1.2.3".parse().unwrap()));
    }

    #[test]
    fn the_number_of_a_queue_pair_names_the_process_of_a_host_and_only_there() {
        let host = gid("::ffff:10.77.0.1");
        let of = |qp_num| resolve(host, qp_num, Scope::Hosts).to_string();
        assert_eq!(
            [0, 0xffff, 0x1_0000].map(of),
            ["fd75:7761:7270::a4d:1:7500", "fd75:7761:7270::a4d:1:7500", "fd75:7761:7270::a4d:1:7501"]
        );
        assert_eq!(resolve(host, 0x1_0000, Scope::Network).to_string(), "10.77.0.1");
        // Between hosts, no device has a link-local GID.
        assert_eq!(
            resolve(link_local([10, 0, 0, 1].into()), 1, Scope::Hosts).to_string(),
            "fe80::5efe:a00:1"
        );
    }
}
