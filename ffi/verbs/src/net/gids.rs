//! The GIDs of the device, and the address on the wire that a GID of a peer stands for.
//!
//! The table has four GIDs, as that of a RoCE device with an IPv4 address: an IPv6 address and the IPv4
//! address, each with both versions of RoCE as its type. Every GID stands for the same address on the wire,
//! so programs may use any index.
//!
//! | the address on the wire | GIDs 0 and 1 | GIDs 2 and 3 |
//! |---|---|---|
//! | 10.0.0.1 | `fe80::5efe:10.0.0.1`, the link-local address of RFC 5214 | `::ffff:10.0.0.1` |
//! | fd00::1 | `fd00::1` | `fd00::1` |
//! | that of a process of host 10.0.0.1 ([`hosts`]) | the address | `::ffff:10.0.0.1` |
//!
//! In the last row, several processes have the GID of their host. The first byte of a queue pair's number
//! names the process ([`hosts::Slot`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::{mapped, of_gid};
use super::hosts;

/// The number of GIDs.
pub(crate) const GIDS: usize = 4;

/// The first 96 bits of a link-local address that contains an IPv4 address (RFC 5214 section 6.1).
const ISATAP: [u8; 12] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x5e, 0xfe];

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

/// The GIDs of a device with this address on the wire. `host` is the host's address, if a queue pair's number
/// names the process of the host.
pub(super) fn table(address: IpAddr, host: Option<Ipv4Addr>) -> [[u8; 16]; GIDS] {
    let whole = mapped(address).octets();
    let (first, last) = match (address, host) {
        (IpAddr::V4(v4), _) => (link_local(v4), whole),
        (IpAddr::V6(_), Some(host)) => (whole, mapped(host.into()).octets()),
        (IpAddr::V6(_), None) => (whole, whole),
    };
    [first, first, last, last]
}

fn link_local(address: Ipv4Addr) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..12].copy_from_slice(&ISATAP);
    gid[12..].copy_from_slice(&address.octets());
    gid
}

/// The address on the wire of the peer with this GID, whose queue pair has the number `qp_num`.
/// `between_hosts` is true on a wire whose addresses name processes of hosts.
pub(super) fn resolve(gid: [u8; 16], qp_num: u32, between_hosts: bool) -> IpAddr {
    let address = match gid.strip_prefix(&ISATAP) {
        Some(&[a, b, c, d]) if !between_hosts => Ipv4Addr::new(a, b, c, d).into(),
        _ => of_gid(gid),
    };
    match address {
        IpAddr::V4(host) if between_hosts => {
            let address: Ipv6Addr = hosts::address_in_slot(host, hosts::Slot::of_qp_num(qp_num));
            address.into()
        }
        address => address,
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
        for (address, host, gids) in [
            ("100.64.156.65", None, ["fe80::5efe:100.64.156.65", "::ffff:100.64.156.65"]),
            ("fd00::1", None, ["fd00::1", "fd00::1"]),
            (
                "fd75:7761:7270::a4d:1:75fe",
                Some("10.77.0.1"),
                ["fd75:7761:7270::a4d:1:75fe", "::ffff:10.77.0.1"],
            ),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let table = table(address, host.map(|host| host.parse().unwrap()));
            let [first, last] = gids.map(gid);
            assert_eq!(table, [first, first, last, last]);
            for gid in table {
                assert_eq!(resolve(gid, 0xfe_0007, host.is_some()), address, "{gid:x?}");
            }
        }
        assert_eq!(
            [0, 1, 2, 3].map(version_of),
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
        let of = |qp_num| resolve(host, qp_num, true).to_string();
        assert_eq!(
            [0, 0xffff, 0x1_0000].map(of),
            ["fd75:7761:7270::a4d:1:7500", "fd75:7761:7270::a4d:1:7500", "fd75:7761:7270::a4d:1:7501"]
        );
        assert_eq!(resolve(host, 0x1_0000, false).to_string(), "10.77.0.1");
        // Between hosts, no device has a link-local GID.
        assert_eq!(resolve(link_local([10, 0, 0, 1].into()), 1, true).to_string(), "fe80::5efe:a00:1");
    }
}
