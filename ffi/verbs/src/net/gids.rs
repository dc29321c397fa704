//! The GIDs of the device, and the address on the wire that a GID of a peer stands for.
//!
//! The table has four GIDs, as that of a RoCE device with an IPv4 address: an IPv6 address and the IPv4
//! address, each with both versions of RoCE as its type. Every GID stands for the same address on the wire,
//! so programs may use any index.
//!
//! | the address on the wire | GIDs 0 and 1 | GID 2 | GID 3 |
//! |---|---|---|---|
//! | 10.0.0.1 | `fe80::5efe:10.0.0.1`, the link-local address of RFC 5214 | `::ffff:10.0.0.1` | as GID 2 |
//! | 100.64.0.1 on a `local` wire | `fe80::5efe:100.64.0.1` | `::ffff:100.64.0.1` | `::ffff:127.64.0.1` |
//! | fd00::1 | `fd00::1` | `fd00::1` | as GID 2 |
//! | that of a process of host 10.0.0.1 ([`hosts`]) | the address | `::ffff:10.0.0.1` | as GID 2 |
//!
//! UCX 1.19 and later connect by the first IPv4 GID of RoCEv2, if the kernel has a route to the peer's GID
//! through the interface of the own GID. A `local` wire reports the loopback interface, to which 127.0.0.0/8
//! belongs.
//!
//! In the last row, several processes have the GID of their host. The first byte of a queue pair's number
//! names the process ([`hosts::Slot`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use iwarp_wire::address_of_station;

use super::address::{mapped, of_gid};
use super::hosts;

/// The number of GIDs.
pub(crate) const GIDS: usize = 4;

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

/// The GIDs of a device with this address on the wire. `host` is the host's address, if a queue pair's number
/// names the process of the host.
pub(super) fn table(address: IpAddr, host: Option<Ipv4Addr>, scope: Scope) -> [[u8; 16]; GIDS] {
    let whole = mapped(address).octets();
    let (first, third, last) = match (address, host) {
        (IpAddr::V4(v4), _) => (link_local(v4), whole, of_address(address, scope)),
        (IpAddr::V6(_), Some(host)) => (whole, mapped(host.into()).octets(), mapped(host.into()).octets()),
        (IpAddr::V6(_), None) => (whole, whole, whole),
    };
    [first, first, third, last]
}

/// The GID of RoCEv2 that stands for a process's address on the wire.
pub(super) fn of_address(address: IpAddr, scope: Scope) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) if scope == Scope::Local => loopback(v4),
        _ => mapped(address).octets(),
    }
}

/// Whether the GID is this address of a process, or stands for it as an address of the loopback interface.
pub(super) fn is_address(gid: [u8; 16], address: IpAddr) -> bool {
    gid == mapped(address).octets() || matches!(address, IpAddr::V4(v4) if gid == loopback(v4))
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
        for (address, host, scope, gids) in [
            (ipv4, None, Scope::Network, [link_local, mapped, mapped]),
            (ipv4, None, Scope::Local, [link_local, mapped, "::ffff:127.64.156.65"]),
            ("fd00::1", None, Scope::Network, ["fd00::1"; 3]),
            (process, Some("10.77.0.1"), Scope::Hosts, [process, host, host]),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let table = table(address, host.map(|host| host.parse().unwrap()), scope);
            let [first, third, last] = gids.map(gid);
            assert_eq!(table, [first, first, third, last]);
            for gid in table {
                assert_eq!(resolve(gid, 0xfe_0007, scope), address, "{gid:x?}");
            }
        }
        // On a network, a GID of the loopback interface is no other address.
        assert_eq!(resolve(gid("::ffff:127.64.0.1"), 0, Scope::Network).to_string(), "127.64.0.1");
        assert_eq!(
            [0, 1, 2, 3].map(version_of),
            [RoceVersion::V1, RoceVersion::V2, RoceVersion::V1, RoceVersion::V2]
        );
    }

    #[test]
    fn the_address_of_a_received_datagram_is_found_in_the_table() {
        let own: IpAddr = "100.64.156.65".parse().unwrap();
        let found = table(own, None, Scope::Local).map(|gid| is_address(gid, own));
        assert_eq!(found, [false, false, true, true]);
        assert_eq!(of_address(own, Scope::Local), table(own, None, Scope::Local)[3]);
        assert_eq!(of_address(own, Scope::Network), gid("::ffff:100.64.156.65"));
        let other = table("100.64.156.66".parse().unwrap(), None, Scope::Local);
        assert!(!other.into_iter().any(|gid| is_address(gid, own)));
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
