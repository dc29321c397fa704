//! The GIDs of multicast groups.
//!
//! RoCEv2 has no subnet manager, so the GID of a group follows from its IP address. The GID of an IPv6 group
//! is the address. Linux's `rdma_cm` has used two GIDs for the IPv4 group a.b.c.d: `::ffff:a.b.c.d` for
//! RoCEv2, and `ff0e::ffff:a.b.c.d` for RoCEv1. libibverbs accepts both GIDs as IPv4 addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first twelve bytes of `ff0e::ffff:a.b.c.d`.
const ROCE_V1: [u8; 12] = [0xFF, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];

/// Returns the GID of the multicast group `group`, as `rdma_cm` chooses it for RoCEv2: the IPv6 address, or
/// the IPv4-mapped address. Returns `None` if the address is not a multicast address.
pub fn group_gid(group: IpAddr) -> Option<[u8; 16]> {
    let address = match group {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    group.is_multicast().then(|| address.octets())
}

/// Returns the IP address of the multicast group that a GID names. Accepts both forms of the GID of an IPv4
/// group. Returns `None` if the GID names no group.
pub fn group_of_gid(gid: &[u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(*gid);
    let [head @ .., a, b, c, d] = *gid;
    let v4 = Ipv4Addr::new(a, b, c, d);
    let is_v4 = head == ROCE_V1 && v4.is_multicast();
    let group = if is_v4 { IpAddr::V4(v4) } else { address.to_canonical() };
    group.is_multicast().then_some(group)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::{group_gid, group_of_gid};

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    #[test]
    fn a_group_has_the_gid_of_rdma_cm() {
        for (group, expected) in [
            ("224.1.2.3", "::ffff:224.1.2.3"),
            ("239.255.255.250", "::ffff:239.255.255.250"),
            ("ff02::1", "ff02::1"),
            ("ff0e::ffff:e001:203", "ff0e::ffff:e001:203"),
        ] {
            assert_eq!(group_gid(group.parse().unwrap()), Some(gid(expected)), "{group}");
        }
        for unicast in
            ["10.0.0.1", "223.255.255.255", "240.0.0.1", "255.255.255.255", "fe80::1", "::", "0.0.0.0"]
        {
            assert_eq!(group_gid(unicast.parse().unwrap()), None, "{unicast}");
        }
    }

    #[test]
    fn both_gids_of_an_ipv4_group_are_known() {
        let named = |text| group_of_gid(&gid(text)).map(|group| group.to_string());
        for text in ["::ffff:224.1.2.3", "ff0e::ffff:224.1.2.3"] {
            assert_eq!(named(text).as_deref(), Some("224.1.2.3"));
        }
        assert_eq!(named("ff12:601b::1").as_deref(), Some("ff12:601b::1"));
        // A group of IPv6 whose address ends like a unicast address of IPv4.
        assert_eq!(named("ff0e::ffff:10.0.0.1").as_deref(), Some("ff0e::ffff:a00:1"));
        for unicast in ["::ffff:10.0.0.1", "::224.1.2.3", "fe80::1", "::", "64:ff9b::e001:203"] {
            assert_eq!(named(unicast), None, "{unicast}");
        }
    }

    #[test]
    fn a_group_comes_back_from_its_gid() {
        for group in ["224.0.0.1", "239.1.2.3", "ff02::1:ff00:1", "ff3e:40:2001:db8::1"] {
            let group: IpAddr = group.parse().unwrap();
            assert_eq!(group_of_gid(&group_gid(group).unwrap()), Some(group));
        }
    }
}
