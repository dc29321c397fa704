//! Multicast groups: datagrams to groups, and the messages by which routers learn of groups.

use std::net::{IpAddr, SocketAddr};

use dp::link::LinkConfig;
use smoltcp::wire::{EthernetAddress, IpAddress};
use tcp_lite::{AddressProbing, DatagramHeader, JoinGroupError, MAX_GROUPS, StackConfig};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, World, bytes_of, config};
use crate::relay::Tap;

const PORT: u16 = 4791;
/// For each family: a source, a group with its Ethernet address, and another group.
const FAMILIES: [(&str, &str, [u8; 6], &str); 2] = [
    ("10.0.0.1", "239.129.2.3", [0x01, 0, 0x5e, 1, 2, 3], "239.129.2.4"),
    ("2001:db8::1", "ff15::abcd:7", [0x33, 0x33, 0xab, 0xcd, 0, 7], "ff15::abcd:8"),
];

fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

fn header(local: &str, group: &str) -> DatagramHeader {
    DatagramHeader {
        local: SocketAddr::new(ip(local), 50_000),
        remote: SocketAddr::new(ip(group), PORT),
        traffic_class: 0,
        hop_limit: 1,
        flow_label: 0,
        checksum: true,
    }
}

/// A datagram from host 1 to a group.
fn to_group(src: &str, group: &str, mac: [u8; 6]) -> Vec<u8> {
    let [src, dst] = [src, group].map(|it| it.parse::<IpAddress>().unwrap());
    craft::udp([MAC_A, EthernetAddress(mac)], (src, 50_000), (dst, PORT), b"group")
}

/// The type of an IGMP or MLD message with its destination address and the group that it is about; `None`
/// for any other frame.
fn message(frame: &[u8]) -> Option<(u8, IpAddress, IpAddress)> {
    let v4 = |at: usize| IpAddress::v4(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let v6 = |at: usize| {
        let octets: [u8; 16] = frame[at..at + 16].try_into().unwrap();
        IpAddress::from(IpAddr::from(octets))
    };
    match (&frame[12..14], frame[14], frame[20], frame[23]) {
        ([0x08, 0], 0x46, _, 2) => Some((frame[38], v4(30), v4(42))),
        ([0x86, 0xdd], _, 0, _) => Some((frame[62], v6(38), v6(70))),
        _ => None,
    }
}

#[test]
fn a_group_is_reached_by_its_ethernet_address_without_a_query() {
    for (local, group, mac, _) in FAMILIES {
        let mut world = World::standard(&LinkConfig::default());
        world.b.stack.open_udp(PORT).unwrap();
        let now = world.now();
        world.b.stack.join_group(now, ip(group)).unwrap();
        let sent = world.a.stack.send_datagram(now, &header(local, group), 5, |packet, at| {
            packet[at..].copy_from_slice(b"group");
            Ok::<_, ()>(())
        });
        assert_eq!(sent, Ok(()));
        world.a.sent_frames = Some(Vec::new());
        assert!(world.run(1_000_000, |world| !world.b.datagrams.is_empty()), "{group}");
        let frames = world.a.sent_frames.take().unwrap();
        assert_eq!((frames.len(), &frames[0][..6]), (1, &mac[..]));
        let datagram = world.b.datagrams.pop().unwrap();
        assert_eq!((datagram.local.ip(), datagram.remote.ip()), (ip(group), ip(local)));
        assert_eq!(bytes_of(&datagram.frame)[datagram.payload.clone()], *b"group");
    }
}

#[test]
fn datagrams_come_up_while_their_group_is_joined() {
    for (src, group, mac, other) in FAMILIES {
        let mut tap = Tap::new(config(MAC_B, 2));
        tap.host.stack.open_udp(PORT).unwrap();
        let now = tap.now();
        let counts = |tap: &mut Tap, to: &str| {
            let before = tap.host.stack.counters();
            tap.inject(&to_group(src, to, mac));
            let after = tap.host.stack.counters();
            assert_eq!(after.rx_slow, before.rx_slow, "{to}");
            let dropped = after.rx_datagram_dropped - before.rx_datagram_dropped;
            (after.rx_datagrams - before.rx_datagrams, dropped)
        };
        assert_eq!(counts(&mut tap, group), (0, 1));
        tap.host.stack.join_group(now, ip(group)).unwrap();
        tap.host.stack.join_group(now, ip(group)).unwrap();
        assert_eq!((counts(&mut tap, group), counts(&mut tap, other)), ((1, 0), (0, 1)));
        tap.host.stack.leave_group(now, ip(other));
        tap.host.stack.leave_group(now, ip(group));
        assert_eq!(counts(&mut tap, group), (1, 0), "joined twice, left once");
        tap.host.stack.leave_group(now, ip(group));
        assert_eq!(counts(&mut tap, group), (0, 1));
        // A group cannot be a source, and no frame to a group comes from us.
        tap.host.stack.join_group(now, ip(group)).unwrap();
        let ours = if group.contains(':') { "2001:db8::2" } else { "10.0.0.2" };
        for source in [group, ours] {
            let before = tap.host.stack.counters().rx_datagram_dropped;
            tap.inject(&to_group(source, group, mac));
            assert_eq!(tap.host.stack.counters().rx_datagram_dropped, before + 1, "{source}");
        }
        tap.host.stack.close_udp(PORT);
        tap.inject(&to_group(src, group, mac));
        assert_eq!(tap.host.stack.counters().rx_slow, 1, "no port is open");
    }
}

#[test]
fn only_groups_are_joined_and_not_too_many() {
    let mut tap = Tap::new(config(MAC_B, 2));
    let now = tap.now();
    let stack = &mut tap.host.stack;
    for address in ["10.0.0.2", "255.255.255.255", "2001:db8::2", "::"] {
        assert_eq!(stack.join_group(now, ip(address)), Err(JoinGroupError::NotMulticast), "{address}");
    }
    for n in 0..MAX_GROUPS as u8 {
        assert_eq!(stack.join_group(now, ip(&format!("239.0.0.{n}"))), Ok(()));
    }
    assert_eq!(stack.join_group(now, ip("239.0.1.0")), Err(JoinGroupError::Full));
    assert_eq!(stack.join_group(now, ip("239.0.0.3")), Ok(()));
}

/// The group is reported twice within ten seconds, and once for each query. A leave ends the reports.
#[test]
fn routers_learn_of_groups() {
    for (_, group, mac, other) in FAMILIES {
        let six = group.contains(':');
        let (report, done, routers) = if six { (131, 132, "ff02::2") } else { (0x16, 0x17, "224.0.0.2") };
        let [address, routers] = [group, routers].map(|it| it.parse::<IpAddress>().unwrap());
        let mut tap = Tap::new(config(MAC_B, 2));
        let now = tap.now();
        tap.host.stack.join_group(now, ip(group)).unwrap();
        tap.host.stack.join_group(now, ip(group)).unwrap();
        let first = tap.frames();
        assert_eq!(
            first.iter().map(|frame| message(frame)).collect::<Vec<_>>(),
            [Some((report, address, address))]
        );
        assert_eq!((&first[0][..6], &first[0][6..12]), (&mac[..], &MAC_B.0[..]));
        // The source of MLD is the link-local address, which follows from the Ethernet address.
        match six {
            true => {
                assert_eq!(first[0][22..38], [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x0b])
            }
            false => assert_eq!(first[0][26..30], [10, 0, 0, 2]),
        }
        let repeated = tap.frames_for(10_001_000);
        assert_eq!(repeated.iter().map(|frame| message(frame)).collect::<Vec<_>>(), [message(&first[0])]);
        assert!(tap.frames_for(30_000_000).is_empty());
        // A query for the group, one for another group, and one for all groups. Each allows two seconds.
        for (queried, answers) in [(group, 1), (other, 0), (if six { "::" } else { "0.0.0.0" }, 1)] {
            tap.inject(&query(queried));
            assert_eq!(tap.frames_for(2_001_000).len(), answers, "{queried}");
            assert!(tap.frames_for(30_000_000).is_empty());
        }
        let now = tap.now();
        tap.host.stack.leave_group(now, ip(group));
        assert!(tap.frames().is_empty());
        tap.host.stack.leave_group(now, ip(group));
        let left: Vec<_> = tap.frames_for(20_000_000).iter().map(|frame| message(frame)).collect();
        assert_eq!(left, [Some((done, routers, address))]);
        tap.inject(&query(group));
        assert!(tap.frames_for(20_000_000).is_empty());
    }
}

/// A router's query for `group`, or for all groups if `group` is the unspecified address.
fn query(group: &str) -> Vec<u8> {
    let ip: IpAddress = group.parse().unwrap();
    let sum = |bytes: &[u8]| !smoltcp::wire::checksum::data(bytes);
    match ip {
        IpAddress::Ipv4(group) => {
            let to: IpAddress = if group.is_unspecified() { IpAddress::v4(224, 0, 0, 1) } else { ip };
            let mut message = [&[0x11, 20, 0, 0][..], &group.octets()].concat();
            let checksum = sum(&message);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            let mac = EthernetAddress([0x01, 0, 0x5e, 0, 0, 1]);
            let src = IpAddress::v4(10, 0, 0, 254);
            craft::ip([MAC_A, mac], src, to, smoltcp::wire::IpProtocol::Igmp, 1, &message)
        }
        IpAddress::Ipv6(group) => {
            let all = IpAddress::v6(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let to = if group.is_unspecified() { all } else { ip };
            let src = IpAddress::v6(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
            let mut message =
                [&[130, 0, 0, 0][..], &2000_u16.to_be_bytes(), &[0; 2], &group.octets()].concat();
            let pseudo = smoltcp::wire::checksum::pseudo_header(
                &src,
                &to,
                smoltcp::wire::IpProtocol::Icmpv6,
                message.len() as u32,
            );
            let all = smoltcp::wire::checksum::combine(&[pseudo, smoltcp::wire::checksum::data(&message)]);
            message[2..4].copy_from_slice(&(!all).to_be_bytes());
            let mac = EthernetAddress([0x33, 0x33, 0, 0, 0, 1]);
            craft::ip([MAC_A, mac], src, to, smoltcp::wire::IpProtocol::Icmpv6, 1, &message)
        }
    }
}

#[test]
fn groups_of_all_hosts_are_not_reported_and_a_new_link_is_told_of_the_others() {
    let mut tap = Tap::new(config(MAC_B, 2));
    let now = tap.now();
    for group in ["224.0.0.1", "ff02::1", "239.1.2.3"] {
        tap.host.stack.join_group(now, ip(group)).unwrap();
    }
    assert_eq!(tap.frames_for(11_000_000).len(), 2);
    let now = tap.now();
    tap.host.stack.set_link(now, false);
    tap.host.stack.set_link(now, true);
    assert_eq!(tap.frames_for(2_000_000).iter().filter_map(|frame| message(frame)).count(), 1);
}

/// No IPv4 address may be used yet. The repetition of the report follows when the address was probed.
#[test]
fn an_address_that_is_probed_reports_nothing_and_sends_nothing() {
    let mut tap = Tap::new(StackConfig { address_probing: AddressProbing::Probe, ..config(MAC_B, 2) });
    tap.host.stack.open_udp(PORT).unwrap();
    let now = tap.now();
    tap.host.stack.join_group(now, ip("239.1.2.3")).unwrap();
    assert_eq!(tap.frames().iter().filter_map(|frame| message(frame)).count(), 0);
    let send = |tap: &mut Tap| {
        let now = tap.now();
        tap.host.stack.send_datagram(now, &header("10.0.0.2", "239.1.2.3"), 0, |_, _| Ok::<_, ()>(()))
    };
    assert_eq!(send(&mut tap), Err(tcp_lite::SendDatagramError::NoAddress));
    tap.frames_for(6_000_000);
    assert_eq!(send(&mut tap), Ok(()));
}
