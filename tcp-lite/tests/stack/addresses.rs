//! Tests that the stack announces, probes and defends its addresses (RFC 5227, RFC 4862 section 5.4), even
//! when the link goes down and up.

use smoltcp::wire::{ArpOperation, Icmpv4Repr, Icmpv6Repr, NdiscNeighborFlags, NdiscRepr, TcpControl};
use tcp_lite::facade::{EthernetAddress, IpAddress, Ipv4Address, Ipv6Address};
use tcp_lite::{AddressProbing, CloseReason};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, config};
use crate::relay::Tap;

const A4: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const B4: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const A6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const LINK_LOCAL: Ipv6Address = Ipv6Address::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0x0a);
const NOBODY4: Ipv4Address = Ipv4Address::UNSPECIFIED;
const NOBODY: EthernetAddress = EthernetAddress([0; 6]);
const ALL_NODES: Ipv6Address = Ipv6Address::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const TO_ALL_NODES: [EthernetAddress; 2] = [MAC_A, EthernetAddress([0x33, 0x33, 0, 0, 0, 1])];

fn host(address_probing: AddressProbing) -> Tap {
    Tap::new(tcp_lite::StackConfig { address_probing, ..config(MAC_A, 1) })
}

/// Returns a broadcast ARP request that `mac` sends.
fn request(mac: EthernetAddress, src: Ipv4Address, dst: Ipv4Address) -> Vec<u8> {
    let mut frame = craft::arp(ArpOperation::Request, mac, NOBODY, src, dst);
    frame[0..6].fill(0xff);
    frame
}

fn advert(macs: [EthernetAddress; 2], address: Ipv6Address, dst: Ipv6Address) -> Vec<u8> {
    let lladdr = Some(macs[0].into());
    let flags = NdiscNeighborFlags::OVERRIDE;
    let message = NdiscRepr::NeighborAdvert { flags, target_addr: address, lladdr };
    craft::icmpv6(macs, address, dst, &Icmpv6Repr::Ndisc(message))
}

/// Returns a solicitation from the unspecified address, which probes `address`.
fn probe6(mac: EthernetAddress, address: Ipv6Address) -> Vec<u8> {
    let [.., a, b, c] = address.octets();
    let word = |high, low| u16::from_be_bytes([high, low]);
    let group = Ipv6Address::new(0xff02, 0, 0, 0, 0, 1, word(0xff, a), word(b, c));
    let macs = [mac, EthernetAddress([0x33, 0x33, 0xff, a, b, c])];
    let message = NdiscRepr::NeighborSolicit { target_addr: address, lladdr: None };
    craft::icmpv6(macs, Ipv6Address::UNSPECIFIED, group, &Icmpv6Repr::Ndisc(message))
}

fn announcements() -> Vec<Vec<u8>> {
    vec![
        request(MAC_A, A4, A4),
        advert(TO_ALL_NODES, A6, ALL_NODES),
        advert(TO_ALL_NODES, LINK_LOCAL, ALL_NODES),
    ]
}

#[test]
fn addresses_are_announced_at_the_start_and_when_the_link_is_back() {
    let mut tap = host(AddressProbing::Announce);
    assert_eq!(tap.frames(), announcements());
    assert_eq!(tap.frames_for(60_000_000), announcements(), "once more, and no more");
    let now = tap.now();
    tap.host.stack.set_link(now, true);
    assert_eq!(tap.frames_for(5_000_000).len(), 0, "nothing has happened");
    let now = tap.now();
    tap.host.stack.set_link(now, false);
    assert_eq!(tap.frames_for(1_000_000).len(), 0);
    let now = tap.now();
    tap.host.stack.set_link(now, true);
    assert_eq!(tap.frames(), announcements());
    assert_eq!(tap.frames_for(60_000_000), announcements());
    assert_eq!(tap.host.stack.counters().link_downs, 1);
    assert_eq!(tap.host.stack.counters().tx_assertions, 12);
}

#[test]
fn who_uses_our_address_is_told_of_and_answered_once_in_ten_seconds() {
    let claims = [
        (request(MAC_B, A4, B4), IpAddress::from(A4), request(MAC_A, A4, A4)),
        (craft::arp(ArpOperation::Reply, MAC_B, MAC_A, A4, B4), A4.into(), request(MAC_A, A4, A4)),
        (advert([MAC_B, TO_ALL_NODES[1]], A6, ALL_NODES), A6.into(), advert(TO_ALL_NODES, A6, ALL_NODES)),
    ];
    for (claim, address, defence) in claims {
        let mut tap = host(AddressProbing::Off);
        for _ in 0..100 {
            tap.inject(&claim);
        }
        let told = (address.into(), MAC_B, false);
        assert_eq!((tap.frames(), &tap.host.conflicts), (vec![defence.clone()], &vec![told]));
        tap.frames_for(9_900_000);
        tap.inject(&claim);
        assert_eq!((tap.frames().len(), tap.host.conflicts.len()), (0, 1));
        tap.frames_for(100_000);
        tap.inject(&claim);
        assert_eq!((tap.frames(), tap.host.conflicts.len()), (vec![defence], 2));
        assert_eq!(tap.host.stack.counters().address_conflicts, 2);
    }
}

#[test]
fn our_own_frames_and_those_of_others_are_no_conflict() {
    let mut tap = host(AddressProbing::Off);
    for frame in [
        request(MAC_A, A4, A4),
        request(MAC_A, NOBODY4, A4),
        advert(TO_ALL_NODES, A6, ALL_NODES),
        probe6(MAC_A, A6),
        request(MAC_B, B4, B4),
        request(MAC_B, NOBODY4, B4),
        advert([MAC_B, TO_ALL_NODES[1]], B6, ALL_NODES),
    ] {
        tap.inject(&frame);
    }
    assert_eq!((tap.frames().len(), tap.host.conflicts.len()), (0, 0));
}

#[test]
fn who_probes_our_address_is_answered() {
    let mut tap = host(AddressProbing::Off);
    tap.inject(&request(MAC_B, NOBODY4, A4));
    tap.inject(&probe6(MAC_B, A6));
    let reply = craft::arp(ArpOperation::Reply, MAC_A, MAC_B, A4, NOBODY4);
    assert_eq!(tap.frames(), [reply, advert(TO_ALL_NODES, A6, ALL_NODES)]);
    assert_eq!(tap.host.conflicts, []);
}

#[test]
fn probed_addresses_are_silent_until_they_are_ours() {
    let mut tap = host(AddressProbing::Probe);
    let now = tap.now();
    tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
    tap.host.stack.listen(4000).unwrap();
    let probes = [request(MAC_A, NOBODY4, A4), probe6(MAC_A, A6), probe6(MAC_A, LINK_LOCAL)];
    let mut seen = tap.frames_for(3_200_000);
    seen.dedup();
    assert_eq!(seen, [&probes[..]; 3].concat(), "three times");
    // The stack does not announce the addresses, and does not accept connections to them.
    let syn = craft::segment([MAC_B, MAC_A], (B4.into(), 9), (A4.into(), 4000), TcpControl::Syn);
    for frame in [request(MAC_B, B4, A4), craft::solicit([MAC_B, MAC_A], B6, A6)] {
        tap.inject(&frame);
    }
    let not_ours = tap.host.stack.counters().rx_not_ours;
    tap.inject(&syn);
    assert_eq!(tap.host.stack.counters().rx_not_ours, not_ours + 1, "TCP does not see it");
    assert_eq!(tap.frames(), Vec::<Vec<u8>>::new());
    let seen = tap.frames_for(2_000_000);
    assert_eq!(seen[..3], announcements());
    assert_eq!((&seen[3][12..14], &seen[3][23..24]), (&[8, 0][..], &[6][..]), "the SYN");
    assert_eq!(tap.host.conflicts, []);
}

#[test]
fn a_probed_address_that_somebody_has_is_not_used() {
    let mut tap = host(AddressProbing::Probe);
    let now = tap.now();
    let stream = tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
    let other = tap.host.connect(now, "[2001:db8::2]:1".parse().unwrap(), 0);
    tap.frames_for(1_500_000);
    tap.inject(&craft::arp(ArpOperation::Reply, MAC_B, MAC_A, A4, NOBODY4));
    tap.frames();
    assert_eq!(tap.host.conflicts, [(IpAddress::from(A4).into(), MAC_B, true)]);
    assert_eq!(tap.host.streams[stream].closed, Some(CloseReason::AddressLost));
    let seen = tap.frames_for(20_000_000);
    assert!(seen.iter().all(|frame| frame[12..14] != [8, 6]), "neither announced nor probed");
    tap.inject(&request(MAC_B, B4, A4));
    assert_eq!(tap.frames().len(), 0, "nor answered for");
    assert_eq!(
        tap.host.streams[other].closed,
        Some(CloseReason::NoNeighbor),
        "nobody is there, but it was tried"
    );
}

#[test]
fn without_a_link_nothing_is_sent_and_no_poll_is_requested() {
    let mut tap = host(AddressProbing::Off);
    let now = tap.now();
    tap.host.stack.set_link(now, false);
    tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
    assert_eq!(tap.frames_for(2_000_000).len(), 0);
    let now = tap.now();
    let next = tap.host.stack.next_deadline(now);
    assert!(next.is_none_or(|at| at > now), "{next:?}");
    tap.host.stack.set_link(now, true);
    assert_eq!(tap.frames(), [request(MAC_A, A4, B4)]);
}

/// If frames cannot be sent, a poller that sleeps until the next deadline is not woken because of them.
#[test]
fn without_a_link_packets_of_the_slow_path_request_no_poll() {
    let mut tap = Tap::new(tcp_lite::StackConfig { mtu: 600, ..config(MAC_A, 1) });
    let now = tap.now();
    tap.inject(&request(MAC_B, B4, A4));
    tap.frames();
    tap.host.stack.set_link(now, false);
    // Each answer needs three frames.
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: &[0x5a; 1400] };
    let ping = craft::icmpv4([MAC_B, MAC_A], B4, A4, &request);
    for identification in 0..40 {
        for fragment in craft::fragments(&ping, 576, identification) {
            tap.inject(&fragment);
        }
        let idle = |tap: &mut Tap| {
            tap.frames();
            let now = tap.now();
            tap.host.stack.next_deadline(now).is_none_or(|at| at > now)
        };
        assert!((0..4).any(|_| idle(&mut tap)), "after {identification}");
    }
    tap.host.stack.set_link(now, true);
    let answers = tap.frames().len();
    assert!(answers >= 64, "{answers} frames waited");
    let now = tap.now();
    assert!(tap.host.stack.next_deadline(now).is_none_or(|at| at > now));
}
