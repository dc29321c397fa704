//! Tests of ICMP errors about TCP: which errors have an effect, and which effect (RFC 1122 section 4.2.3.9,
//! RFC 5927, RFC 8201).

use std::cell::RefCell;

use dp::Checksum;
use smoltcp::wire::{Icmpv6Packet, IpProtocol};
use tcp_lite::CloseReason;
use tcp_lite::facade::{EthernetAddress, Ipv4Address, Ipv6Address};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, config};
use crate::relay::{Relay, Tap};

const A4: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const B4: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const A6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const TO_A: [EthernetAddress; 2] = [MAC_B, MAC_A];

/// An ICMP error, and the bytes that it quotes.
#[derive(Clone, Copy)]
struct Report {
    kind: (u8, u8),
    mtu: u32,
    /// Number of quoted bytes of the TCP segment.
    quoted: usize,
    /// Number of option bytes in the quoted IPv4 header, which a router has inserted.
    options: usize,
}

const HARD_4: Report = Report { kind: (3, 3), mtu: 0, quoted: 8, options: 0 };
const HARD_6: Report = Report { kind: (1, 4), mtu: 0, quoted: 8, options: 0 };

impl Report {
    fn kind(self, kind: u8, code: u8) -> Self {
        Self { kind: (kind, code), ..self }
    }

    fn too_big(mtu: u32, ipv6: bool) -> Self {
        let kind = if ipv6 { (2, 0) } else { (3, 4) };
        Self { kind, mtu, ..HARD_4 }
    }

    /// Returns the ICMP error about `frame`, which our host has sent.
    fn about(self, frame: &[u8]) -> Vec<u8> {
        self.about_changed(frame, |_| {})
    }

    /// Like [`about`](Self::about), but applies `change` to the quoted bytes.
    fn about_changed(self, frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let ipv6 = frame[12..14] == [0x86, 0xdd];
        let mut message = vec![self.kind.0, self.kind.1, 0, 0];
        message.extend(self.mtu.to_be_bytes());
        let header = if ipv6 { 40 } else { 20 };
        message.extend(&frame[14..14 + header]);
        if self.options > 0 {
            message[8] += (self.options / 4) as u8;
            message.extend(vec![1; self.options]);
        }
        let tcp = &frame[14 + header..];
        message.extend(&tcp[..self.quoted.min(tcp.len())]);
        change(&mut message[8..]);
        if ipv6 {
            Icmpv6Packet::new_unchecked(&mut message).fill_checksum(&B6, &A6);
            return craft::ip(TO_A, B6.into(), A6.into(), IpProtocol::Icmpv6, 64, &message);
        }
        let checksum = !smoltcp::wire::checksum::data(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        craft::ip(TO_A, B4.into(), A4.into(), IpProtocol::Icmp, 64, &message)
    }
}

/// Returns a host that has sent a SYN to a neighbour, and this SYN.
fn connecting(ipv6: bool) -> (Tap, Vec<u8>) {
    let mut tap = Tap::new(config(MAC_A, 1));
    let remote = if ipv6 { "[2001:db8::2]:1" } else { "10.0.0.2:1" };
    tap.inject(&craft::arp(smoltcp::wire::ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
    tap.inject(&craft::solicit(TO_A, B6, A6));
    tap.frames();
    let now = tap.now();
    tap.host.connect(now, remote.parse().unwrap(), 0);
    let syn = tap.frames().remove(0);
    (tap, syn)
}

/// How a connection attempt ends after `report`, and the counters of soft errors and of ignored errors.
fn after(ipv6: bool, report: Report) -> (Option<CloseReason>, u64, u64) {
    let (mut tap, syn) = connecting(ipv6);
    tap.inject(&report.about(&syn));
    tap.frames();
    let counters = tap.host.stack.counters();
    (tap.host.streams[0].closed, counters.icmp_soft_errors, counters.icmp_ignored)
}

const ENDS: (Option<CloseReason>, u64, u64) = (Some(CloseReason::Unreachable), 0, 0);

#[test]
fn a_hard_error_ends_a_connection_attempt_and_a_soft_one_does_not() {
    for code in [2, 3, 9, 10, 13] {
        assert_eq!(after(false, HARD_4.kind(3, code)), ENDS, "{code}");
    }
    for code in [1, 4, 5, 6] {
        assert_eq!(after(true, HARD_6.kind(1, code)), ENDS, "{code}");
    }
    for (kind, code) in [(3, 0), (3, 1), (3, 5), (11, 0), (12, 0)] {
        assert_eq!(after(false, HARD_4.kind(kind, code)), (None, 1, 0), "{kind} {code}");
    }
    for (kind, code) in [(1, 0), (1, 3), (3, 0), (4, 1)] {
        assert_eq!(after(true, HARD_6.kind(kind, code)), (None, 1, 0), "{kind} {code}");
    }
}

#[test]
fn a_soft_error_that_persists_ends_a_connection_attempt() {
    for ipv6 in [false, true] {
        let (mut tap, syn) = connecting(ipv6);
        let soft = if ipv6 { HARD_6.kind(1, 3) } else { HARD_4.kind(3, 1) };
        tap.inject(&soft.about(&syn));
        let tcp_at = if ipv6 { 20 } else { 23 };
        let seen = tap.frames_for(1_100_000);
        assert_eq!(seen.iter().filter(|frame| frame[tcp_at] == 6).count(), 1, "the SYN again");
        assert_eq!(tap.host.streams[0].closed, None);
        tap.inject(&soft.about(&syn));
        tap.frames();
        assert_eq!(tap.host.streams[0].closed, Some(CloseReason::Unreachable));
    }
}

#[test]
fn only_what_quotes_a_segment_on_its_way_is_believed() {
    for (ipv6, hard, tcp_at) in [(false, HARD_4, 34), (true, HARD_6, 54)] {
        for byte in [0, 3, 4, 7] {
            let (mut tap, mut syn) = connecting(ipv6);
            syn[tcp_at + byte] ^= 0x40;
            tap.inject(&hard.about(&syn));
            tap.frames();
            assert_eq!(tap.host.streams[0].closed, None, "byte {byte} of the TCP header");
            assert_eq!(tap.host.stack.counters().icmp_ignored, 1);
        }
        assert_eq!(after(ipv6, Report { quoted: 7, ..hard }), (None, 0, 0), "too short to tell");
        assert_eq!(after(ipv6, Report { quoted: 200, ..hard }), ENDS, "more than it has to be");
    }
    assert_eq!(after(false, Report { options: 8, ..HARD_4 }), ENDS, "quoted with options");
    assert_eq!(
        after(false, Report { options: 44, ..HARD_4 }).0,
        None,
        "a header of more than its length field holds"
    );
}

/// A later fragment has no TCP header after its IP header, so an error about it is ignored.
#[test]
fn only_the_head_of_a_tcp_segment_is_taken_for_one() {
    for (ipv6, at, bytes, heard) in [
        (false, 6, [0x40, 0], true),
        (false, 6, [0x20, 0], true),
        (false, 6, [0, 1], false),
        (false, 6, [0x20, 1], false),
        (false, 6, [1, 0], false),
        (false, 6, [0x10, 0], false),
        // The cases: another IP version, a header that is too short, and another protocol.
        (false, 0, [0x65, 0], false),
        (false, 0, [0x44, 0], false),
        (false, 8, [64, 17], false),
        (true, 0, [0x40, 0], false),
        (true, 6, [17, 64], false),
        (true, 6, [44, 64], false),
    ] {
        let (mut tap, syn) = connecting(ipv6);
        let hard = if ipv6 { HARD_6 } else { HARD_4 };
        let change = |quoted: &mut [u8]| quoted[at..at + 2].copy_from_slice(&bytes);
        tap.inject(&hard.about_changed(&syn, change));
        tap.frames();
        let closed = heard.then_some(CloseReason::Unreachable);
        assert_eq!(tap.host.streams[0].closed, closed, "IPv6 {ipv6}, {bytes:?} at {at}");
        assert_eq!(tap.host.stack.counters().icmp_ignored, 0);
    }
}

#[test]
fn an_error_to_another_address_of_ours_is_not_heard() {
    let mut both = config(MAC_A, 1);
    both.addresses.push("10.0.0.3/24".parse().unwrap());
    for to in [A4, Ipv4Address::new(10, 0, 0, 3)] {
        let mut tap = Tap::new(both.clone());
        tap.inject(&craft::arp(
            smoltcp::wire::ArpOperation::Request,
            MAC_B,
            EthernetAddress::BROADCAST,
            B4,
            A4,
        ));
        tap.frames();
        let now = tap.now();
        tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
        let syn = tap.frames().remove(0);
        let ours = syn[26..30] == to.octets();
        let error = HARD_4.about(&syn);
        tap.inject(&craft::ip(TO_A, B4.into(), to.into(), IpProtocol::Icmp, 64, &error[34..]));
        tap.frames();
        assert_eq!(tap.host.streams[0].closed, ours.then_some(CloseReason::Unreachable), "to {to}");
    }
}

#[test]
fn source_quench_and_what_is_no_error_are_not_heard() {
    for kind in [0, 4, 5, 8] {
        assert_eq!(after(false, HARD_4.kind(kind, 0)), (None, 0, 0), "{kind}");
    }
}

#[test]
fn an_error_of_a_wrong_checksum_is_not_heard() {
    for (ipv6, hard, checksum_at) in [(false, HARD_4, 36), (true, HARD_6, 56)] {
        let (mut tap, syn) = connecting(ipv6);
        let mut error = hard.about(&syn);
        error[checksum_at] ^= 1;
        tap.inject(&error);
        tap.frames();
        assert_eq!(tap.host.streams[0].closed, None, "IPv6 {ipv6}");
    }
}

/// Returns two hosts with an established connection, and a full segment of `a` in flight.
fn sending(ipv6: bool) -> (Relay, Vec<u8>) {
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.b.host.stack.listen(4000).unwrap();
    let now = relay.a.now();
    let remote = if ipv6 { "[2001:db8::2]:4000" } else { "10.0.0.2:4000" };
    relay.a.host.connect(now, remote.parse().unwrap(), 10_000);
    let segment = RefCell::new(None);
    let carry = |from_a: bool, frame: Vec<u8>| {
        if from_a && frame.len() > 1000 {
            segment.borrow_mut().get_or_insert(frame);
            return Vec::new();
        }
        vec![(frame, Checksum::Unknown)]
    };
    assert!(relay.run(30_000, carry, |_| segment.borrow().is_some()));
    let segment = segment.take().expect("a full segment");
    (relay, segment)
}

fn emss(relay: &Relay) -> usize {
    relay.a.host.stack.info(relay.a.host.streams[0].conn).expect("alive").emss
}

#[test]
fn no_error_ends_a_connection_that_is_established() {
    for (ipv6, hard) in [(false, HARD_4), (true, HARD_6)] {
        let (mut relay, segment) = sending(ipv6);
        relay.a.inject(&hard.about(&segment));
        assert_eq!(relay.a.host.stack.counters().icmp_soft_errors, 1);
        let whole = |_: bool, frame: Vec<u8>| vec![(frame, Checksum::Unknown)];
        assert!(relay.run(2_000_000, whole, |r| r.b.host.received(0) == 10_000));
        assert_eq!(relay.a.host.streams[0].closed, None);
    }
}

#[test]
fn a_report_of_a_packet_too_big_has_to_be_plausible() {
    for (ipv6, mtu, emss_then) in [
        (false, 1000, Some(948)),
        // The reported MTU is below the smallest MTU that an error can set (576 bytes), so the stack uses 576
        // bytes.
        (false, 100, Some(524)),
        // The packet was not longer than the reported MTU, so the report is ignored.
        (false, 1500, None),
        (false, 1501, None),
        // The report has no MTU. The next plateau of RFC 1191 section 7.1 below the packet's length is used.
        (false, 0, Some(1440)),
        (true, 1400, Some(1328)),
        (true, 1280, Some(1208)),
        // Every path carries 1280 bytes (RFC 8201 section 4), so a smaller MTU is ignored.
        (true, 1279, None),
        (true, 0, None),
        (true, 1500, None),
        (true, 0x1_0000 + 1400, None),
    ] {
        let (mut relay, segment) = sending(ipv6);
        let before = emss(&relay);
        relay.a.inject(&Report::too_big(mtu, ipv6).about(&segment));
        assert_eq!(emss(&relay), emss_then.unwrap_or(before), "IPv6 {ipv6}, {mtu}");
        let mut forged = segment.clone();
        forged[if ipv6 { 54 } else { 34 } + 4] ^= 0x40;
        relay.a.inject(&Report::too_big(1300, ipv6).about(&forged));
        assert_eq!(emss(&relay), emss_then.unwrap_or(before), "it quotes nothing that is on its way");
    }
}

#[test]
fn an_error_to_an_address_of_many_is_not_heard() {
    let (mut tap, syn) = connecting(false);
    let mut error = HARD_4.about(&syn);
    // The broadcast address of the link; the header checksum follows.
    error[33] = 255;
    error[24..26].fill(0);
    let checksum = !smoltcp::wire::checksum::data(&error[14..34]);
    error[24..26].copy_from_slice(&checksum.to_be_bytes());
    tap.inject(&error);
    tap.frames();
    assert_eq!(tap.host.streams[0].closed, None);
}
