//! The filter of the socket, which is a classic BPF program. The program passes only frames that a host with
//! the port's addresses needs, so the kernel does not copy other traffic of the interface.
//!
//! The kernel removes a VLAN tag before the filter runs, so all headers have the offsets of untagged frames.
//! A load beyond the end of a frame drops the frame (`net/core/filter.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::sock_filter;

/// Maximum number of addresses. With 64 addresses, the program is much shorter than the kernel's limit of
/// 4096 instructions.
pub(super) const MAX_ADDRESSES: usize = 64;

/// Loads a word, half-word or byte of the frame.
const LD_W: u16 = 0x20;
const LD_H: u16 = 0x28;
const LD_B: u16 = 0x30;
/// Copies the accumulator to X.
const TAX: u16 = 0x07;
/// Jumps if the accumulator equals a constant, has bits of a constant, or equals X.
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const JEQ_X: u16 = 0x1d;
/// Always jumps.
const JA: u16 = 0x05;
const RET: u16 = 0x06;

/// The filter's result that makes the kernel pass all bytes of a frame.
const ALL: u32 = u32::MAX;
const DROP: u32 = 0;

const ETHERTYPE_AT: u32 = 12;
const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_ARP: u32 = 0x0806;
const ETHERTYPE_IPV6: u32 = 0x86dd;
const IPV4_DESTINATION_AT: u32 = 30;
const ARP_SENDER_AT: u32 = 28;
const ARP_TARGET_AT: u32 = 38;
const IPV6_NEXT_HEADER_AT: u32 = 20;
const IPV6_DESTINATION_AT: u32 = 38;
const ICMPV6: u32 = 58;
const HOP_BY_HOP: u32 = 0;

/// The group of all hosts on the link, to which routers send queries for groups (RFC 2236 section 3).
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// The group of all nodes on the link (RFC 4291 section 2.7.1), to which neighbours announce changes.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Makes a program that passes the frames for a host with these addresses. The program passes frames to `mac`
/// or to a group that are
/// - IP packets to one of the addresses,
/// - ARP frames for or from one of the addresses, or gratuitous ARP frames (which announce a new Ethernet
///   address of a neighbour),
/// - ICMPv6 to the groups of the addresses (Neighbor Discovery),
/// - IP packets to one of `groups`, and routers' queries for groups of the same family.
pub(super) fn program(mac: [u8; 6], addresses: &[IpAddr], groups: &[IpAddr]) -> Vec<sock_filter> {
    let (v4, v6) = families(addresses);
    let (groups_v4, groups_v6) = families(groups);
    let [m0, m1, m2, m3, m4, m5] = mac;
    let mut program = vec![
        // These instructions accept group addresses and the address `mac`.
        load(LD_B, 0),
        branch(JSET, 1, 6, 0),
        load(LD_W, 0),
        branch(JEQ, u32::from_be_bytes([m0, m1, m2, m3]), 1, 0),
        ret(DROP),
        load(LD_H, 4),
        branch(JEQ, u32::from(u16::from_be_bytes([m4, m5])), 1, 0),
        ret(DROP),
        load(LD_H, ETHERTYPE_AT),
    ];
    let sections = [
        (ETHERTYPE_IPV4, ipv4(&v4, &groups_v4)),
        (ETHERTYPE_ARP, arp(&v4)),
        (ETHERTYPE_IPV6, ipv6(&v6, &groups_v6)),
    ];
    for (ethertype, section) in sections {
        // A conditional jump reaches at most 255 instructions, so `JA` skips the section.
        program.extend([branch(JEQ, ethertype, 1, 0), load(JA, section.len() as u32)]);
        program.extend(section);
    }
    program.push(ret(DROP));
    program
}

/// Returns the Ethernet addresses of the multicast groups that a port needs for its IPv6 addresses (RFC 2464
/// section 7): the group of all nodes, and the solicited-node group of each address.
pub(super) fn groups(addresses: &[IpAddr]) -> Vec<[u8; 6]> {
    let mut groups = Vec::new();
    for address in addresses {
        if let IpAddr::V6(address) = address {
            groups.extend([ALL_NODES, solicited_node(*address)].map(ethernet_group));
        }
    }
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Returns the Ethernet address of a multicast group (RFC 1112 section 6.4, RFC 2464 section 7).
pub(super) fn group_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => ethernet_group(group),
    }
}

fn families(addresses: &[IpAddr]) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let v4 = addresses.iter().filter_map(|it| if let IpAddr::V4(it) = it { Some(*it) } else { None });
    let v6 = addresses.iter().filter_map(|it| if let IpAddr::V6(it) = it { Some(*it) } else { None });
    (v4.collect(), v6.collect())
}

fn ipv4(addresses: &[Ipv4Addr], groups: &[Ipv4Addr]) -> Vec<sock_filter> {
    let mut section = vec![load(LD_W, IPV4_DESTINATION_AT)];
    let queries = if groups.is_empty() { None } else { Some(&ALL_HOSTS) };
    let passed = addresses.iter().chain(groups).chain(queries);
    section.extend(passed.flat_map(|address| pass_if(address.to_bits())));
    section.push(ret(DROP));
    section
}

fn arp(addresses: &[Ipv4Addr]) -> Vec<sock_filter> {
    if addresses.is_empty() {
        return vec![ret(DROP)];
    }
    let mut section = Vec::new();
    for at in [ARP_TARGET_AT, ARP_SENDER_AT] {
        section.push(load(LD_W, at));
        section.extend(addresses.iter().flat_map(|address| pass_if(address.to_bits())));
    }
    section.extend([load(TAX, 0), load(LD_W, ARP_TARGET_AT), branch(JEQ_X, 0, 0, 1), ret(ALL), ret(DROP)]);
    section
}

fn ipv6(addresses: &[Ipv6Addr], groups: &[Ipv6Addr]) -> Vec<sock_filter> {
    if addresses.is_empty() {
        return vec![ret(DROP)];
    }
    let mut section: Vec<sock_filter> =
        addresses.iter().chain(groups).flat_map(|address| pass_if_destination(*address)).collect();
    section.push(load(LD_B, IPV6_NEXT_HEADER_AT));
    if !groups.is_empty() {
        // A query has a hop-by-hop header.
        section.push(branch(JEQ, HOP_BY_HOP, 2, 0));
    }
    section.extend([branch(JEQ, ICMPV6, 1, 0), ret(DROP)]);
    section.extend(pass_if_destination(ALL_NODES));
    section.extend(addresses.iter().flat_map(|address| pass_if_destination(solicited_node(*address))));
    section.push(ret(DROP));
    section
}

/// Makes instructions that pass the frame if the accumulator equals `value`.
fn pass_if(value: u32) -> [sock_filter; 2] {
    [branch(JEQ, value, 0, 1), ret(ALL)]
}

/// Makes instructions that pass an IPv6 packet to `address`.
fn pass_if_destination(address: Ipv6Addr) -> [sock_filter; 9] {
    let mut code = [ret(ALL); 9];
    let octets = address.octets();
    for (nr, word) in octets.as_chunks().0.iter().enumerate() {
        code[2 * nr] = load(LD_W, IPV6_DESTINATION_AT + 4 * nr as u32);
        // If the word differs, the branch leads to the end of this block.
        code[2 * nr + 1] = branch(JEQ, u32::from_be_bytes(*word), 0, (7 - 2 * nr) as u8);
    }
    code
}

/// The solicited-node group of an address. Neighbours send solicitations to this group (RFC 4291 section
/// 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

fn ethernet_group(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn load(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn ret(bytes: u32) -> sock_filter {
    load(RET, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x02, 0, 0, 0x12, 0x34, 0x56];
    const OTHER: [u8; 6] = [0x02, 0, 0, 0x12, 0x34, 0x57];
    const BROADCAST: [u8; 6] = [0xff; 6];

    /// Returns whether `program` passes `frame`. This function interprets the instructions above, as the
    /// kernel's `bpf_prog_run` does.
    fn passes(program: &[sock_filter], frame: &[u8]) -> bool {
        let (mut a, mut x, mut pc) = (0_u32, 0_u32, 0);
        let bytes = |at: u32, count: usize| {
            let found = frame.get(at as usize..at as usize + count)?;
            Some(found.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        for _ in 0..program.len() {
            let sock_filter { code, jt, jf, k } = program[pc];
            pc += 1;
            let jump = |taken: bool| usize::from(if taken { jt } else { jf });
            let count = match code {
                LD_W => 4,
                LD_H => 2,
                LD_B => 1,
                _ => 0,
            };
            match code {
                LD_W | LD_H | LD_B => match bytes(k, count) {
                    Some(value) => a = value,
                    None => return false,
                },
                TAX => x = a,
                JEQ => pc += jump(a == k),
                JEQ_X => pc += jump(a == x),
                JSET => pc += jump(a & k != 0),
                JA => pc += k as usize,
                RET => {
                    assert!([ALL, DROP].contains(&k), "the kernel would cut frames to {k} bytes");
                    return k == ALL;
                }
                _ => panic!("{code:#x} is no instruction of this filter"),
            }
        }
        panic!("a program without loops ends within its length");
    }

    fn ethernet(to: [u8; 6], ethertype: u32) -> Vec<u8> {
        [&to[..], &OTHER, &(ethertype as u16).to_be_bytes()].concat()
    }

    fn ipv4_to(mac: [u8; 6], address: &str) -> Vec<u8> {
        let address: Ipv4Addr = address.parse().unwrap();
        let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 99];
        [ethernet(mac, ETHERTYPE_IPV4), header.to_vec(), address.octets().to_vec()].concat()
    }

    fn ipv6_to(mac: [u8; 6], protocol: u8, address: &str) -> Vec<u8> {
        let address: Ipv6Addr = address.parse().unwrap();
        let header = [0x60, 0, 0, 0, 0, 0, protocol, 64];
        [ethernet(mac, ETHERTYPE_IPV6), header.to_vec(), vec![0x20; 16], address.octets().to_vec()].concat()
    }

    fn arp_of(mac: [u8; 6], sender: &str, target: &str) -> Vec<u8> {
        let [sender, target] = [sender, target].map(|it| it.parse::<Ipv4Addr>().unwrap().octets().to_vec());
        let front = vec![0, 1, 8, 0, 6, 4, 0, 1];
        [ethernet(mac, ETHERTYPE_ARP), front, OTHER.to_vec(), sender, vec![0; 6], target].concat()
    }

    fn both() -> Vec<sock_filter> {
        program(MAC, &["10.0.0.1", "10.0.0.3", "fd00::1:2", "fe80::a:b:c"].map(|it| it.parse().unwrap()), &[])
    }

    #[test]
    fn packets_to_our_addresses_pass_and_no_others() {
        let program = both();
        for address in ["10.0.0.1", "10.0.0.3"] {
            assert!(passes(&program, &ipv4_to(MAC, address)), "{address}");
            assert!(!passes(&program, &ipv4_to(OTHER, address)), "{address} at another MAC");
        }
        for address in ["10.0.0.2", "10.0.0.0", "255.255.255.255", "224.0.0.1", "10.0.1.1", "11.0.0.1"] {
            assert!(!passes(&program, &ipv4_to(MAC, address)), "{address}");
        }
        for address in ["fd00::1:2", "fe80::a:b:c"] {
            for protocol in [6, 58] {
                assert!(passes(&program, &ipv6_to(MAC, protocol, address)), "{address}");
                assert!(!passes(&program, &ipv6_to(OTHER, protocol, address)), "{address} at another MAC");
            }
        }
        for address in ["fd00::1:3", "fd00:1::1:2", "fd00::1:0:1:2", "fd01::1:2", "ff02::2", "::"] {
            assert!(!passes(&program, &ipv6_to(MAC, 6, address)), "{address}");
            assert!(!passes(&program, &ipv6_to(MAC, 58, address)), "{address}");
        }
    }

    #[test]
    fn arp_passes_if_it_is_about_us_or_announces_a_neighbour() {
        let program = both();
        for (sender, target, passed) in [
            ("10.0.0.9", "10.0.0.1", true),
            ("10.0.0.9", "10.0.0.3", true),
            ("10.0.0.3", "10.0.0.9", true),
            ("10.0.0.9", "10.0.0.9", true),
            ("10.0.0.9", "10.0.0.8", false),
            ("0.0.0.0", "10.0.0.8", false),
            ("0.0.0.0", "10.0.0.1", true),
        ] {
            assert_eq!(passes(&program, &arp_of(BROADCAST, sender, target)), passed, "{sender} {target}");
            assert_eq!(passes(&program, &arp_of(MAC, sender, target)), passed, "{sender} {target}");
            assert!(!passes(&program, &arp_of(OTHER, sender, target)), "{sender} {target}");
        }
    }

    #[test]
    fn neighbor_discovery_passes_at_our_groups() {
        let program = both();
        for (group, mac) in [
            ("ff02::1:ff01:2", [0x33, 0x33, 0xff, 0x01, 0, 0x02]),
            ("ff02::1:ff0b:c", [0x33, 0x33, 0xff, 0x0b, 0, 0x0c]),
            ("ff02::1", [0x33, 0x33, 0, 0, 0, 1]),
        ] {
            assert!(passes(&program, &ipv6_to(mac, 58, group)), "{group}");
            assert!(!passes(&program, &ipv6_to(mac, 17, group)), "{group}: not ICMPv6");
        }
        assert!(!passes(&program, &ipv6_to([0x33, 0x33, 0xff, 1, 0, 3], 58, "ff02::1:ff01:3")));
        let addresses = ["fd00::1:2", "10.0.0.1", "fe80::1:2"].map(|it| it.parse().unwrap());
        assert_eq!(groups(&addresses), [[0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0xff, 1, 0, 2]]);
    }

    #[test]
    fn packets_to_joined_groups_pass_and_queries_for_them() {
        let groups = ["239.1.2.3", "ff0e::7"].map(|it| it.parse().unwrap());
        let program = program(MAC, &["10.0.0.1", "fd00::1:2"].map(|it| it.parse().unwrap()), &groups);
        let to = |group: &str| group_mac(group.parse().unwrap());
        assert_eq!(to("239.129.2.3"), [0x01, 0x00, 0x5e, 0x01, 2, 3]);
        assert_eq!(to("ff0e::1:203"), [0x33, 0x33, 0, 1, 2, 3]);
        let all = ["10.0.0.1", "239.1.2.3", "224.0.0.1"];
        for (address, mac) in all.into_iter().zip([MAC, to("239.1.2.3"), to("224.0.0.1")]) {
            assert!(passes(&program, &ipv4_to(mac, address)), "{address}");
            assert_eq!(passes(&both(), &ipv4_to(mac, address)), address == "10.0.0.1", "{address}");
        }
        // The Ethernet address of a group is that of many groups.
        assert!(!passes(&program, &ipv4_to(to("239.1.2.3"), "239.129.2.3")));
        for (group, protocol, passed) in [
            ("ff0e::7", 17, true),
            ("ff0e::7", 0, true),
            ("ff02::1", 0, true),
            ("ff02::1", 58, true),
            ("ff02::1", 17, false),
            ("ff0e::8", 17, false),
            ("ff0e::8", 0, false),
        ] {
            let frame = ipv6_to(to(group), protocol, group);
            assert_eq!(passes(&program, &frame), passed, "{group} {protocol}");
        }
        assert!(!passes(&both(), &ipv6_to(to("ff02::1"), 0, "ff02::1")), "no group is joined");
    }

    #[test]
    fn a_family_without_an_address_is_dropped_whole() {
        let v4 = program(MAC, &["10.0.0.1".parse().unwrap()], &[]);
        assert!(passes(&v4, &ipv4_to(MAC, "10.0.0.1")));
        assert!(!passes(&v4, &ipv6_to([0x33, 0x33, 0, 0, 0, 1], 58, "ff02::1")));
        let v6 = program(MAC, &["fd00::1".parse().unwrap()], &[]);
        assert!(passes(&v6, &ipv6_to(MAC, 6, "fd00::1")));
        assert!(!passes(&v6, &ipv4_to(MAC, "10.0.0.1")));
        assert!(!passes(&v6, &arp_of(BROADCAST, "10.0.0.9", "10.0.0.9")), "gratuitous");
    }

    #[test]
    fn short_and_foreign_frames_are_dropped() {
        let program = both();
        for frame in
            [ipv4_to(MAC, "10.0.0.1"), ipv6_to(MAC, 6, "fd00::1:2"), arp_of(MAC, "1.1.1.1", "10.0.0.1")]
        {
            assert!(passes(&program, &frame));
            for bytes in 0..frame.len() {
                assert!(!passes(&program, &frame[..bytes]), "cut to {bytes}");
            }
        }
        for ethertype in [0x88cc, 0x8100, 0x0801] {
            assert!(!passes(&program, &[ethernet(MAC, ethertype), vec![0; 60]].concat()), "{ethertype:#x}");
        }
    }

    #[test]
    fn the_last_of_the_most_addresses_is_reached() {
        let v6: Vec<IpAddr> = (1..=MAX_ADDRESSES as u16)
            .map(|nr| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, nr, nr).into())
            .collect();
        let program = program(MAC, &v6, &[]);
        assert!(program.len() < 4096, "the kernel's limit (BPF_MAXINSNS): {}", program.len());
        assert!(passes(&program, &ipv6_to(MAC, 6, &v6[MAX_ADDRESSES - 1].to_string())));
        assert!(!passes(&program, &ipv6_to(MAC, 6, "fd00::41:41")));
    }
}
