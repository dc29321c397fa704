//! Tests of what a stack does besides TCP, such as address resolution, ping, ICMP errors, fragments and
//! partial checksums.

use dp::Checksum;
use smoltcp::wire::{ArpOperation, Icmpv4DstUnreachable, Icmpv4Repr, Icmpv6Repr, IpProtocol, TcpControl};
use tcp_lite::CloseReason;
use tcp_lite::facade::{EthernetAddress, IpAddress, Ipv4Address, Ipv6Address};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, config};
use crate::relay::{Relay, Tap};

const A4: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const B4: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const A6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const TO_A: [EthernetAddress; 2] = [MAC_B, MAC_A];

/// Returns a host that already knows the Ethernet address of its neighbour `B`, which the test plays.
fn acquainted() -> Tap {
    let mut tap = Tap::new(config(MAC_A, 1));
    tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
    tap.inject(&craft::solicit(TO_A, B6, A6));
    let answers = tap.frames();
    assert_eq!(answers.len(), 2, "ARP reply and neighbour advertisement");
    assert!(answers.iter().all(|a| a[0..6] == MAC_B.0));
    tap
}

#[test]
fn a_next_hop_that_does_not_answer_is_unreachable_after_three_queries() {
    for (remote, ethertype, bytes) in
        [("10.0.0.9:1", [0x08, 0x06], 42), ("[2001:db8::9]:1", [0x86, 0xdd], 86)]
    {
        let mut tap = Tap::new(config(MAC_A, 1));
        let now = tap.now();
        let stream = tap.host.connect(now, remote.parse().unwrap(), 0);
        let frames = tap.frames_for(2_900_000);
        assert_eq!(tap.host.streams[stream].closed, None);
        assert_eq!(frames.len(), 3, "queries and nothing else");
        assert!(frames.iter().all(|f| f[12..14] == ethertype && f.len() == bytes));
        tap.frames_for(300_000);
        assert_eq!(tap.host.streams[stream].closed, Some(CloseReason::NoNeighbor));
    }
}

/// A caller that stops waiting before the stack gives up can ask which answer is missing.
#[test]
fn a_connection_without_an_answer_knows_which_one_is_missing() {
    let mut tap = acquainted();
    for (remote, missing) in [("10.0.0.9:1", CloseReason::NoNeighbor), ("10.0.0.2:1", CloseReason::TimedOut)]
    {
        let now = tap.now();
        let stream = tap.host.connect(now, remote.parse().unwrap(), 0);
        tap.frames_for(1_000_000);
        assert_eq!(tap.host.streams[stream].closed, None);
        let conn = tap.host.streams[stream].conn;
        assert_eq!(tap.host.stack.unanswered(conn), missing, "{remote}");
    }
}

/// The answer to address resolution is damaged on the path: the answer contains a wrong Ethernet address,
/// which no checksum detects. The SYNs are therefore sent to an address that no host has. After the SYNs stay
/// unanswered, the stack probes the neighbour, and then asks by broadcast. The connection is then
/// established.
#[test]
fn a_wrong_answer_is_found_out_while_connecting() {
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.b.host.stack.listen(4000).unwrap();
    let now = relay.a.now();
    relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), 0);
    let (mut answers, mut asked) = (0, Vec::new());
    let carry = |from_a: bool, mut frame: Vec<u8>| {
        let is_arp = frame[12..14] == [8, 6];
        if from_a && is_arp {
            asked.push(frame[0..6].to_vec());
        }
        // B's port receives only frames for its own Ethernet address and broadcasts.
        if from_a && ![MAC_B.0, [0xff; 6]].contains(&frame[0..6].try_into().unwrap()) {
            return Vec::new();
        }
        if !from_a && is_arp {
            answers += 1;
            if answers == 1 {
                frame[27] ^= 0x40;
            }
        }
        vec![(frame, Checksum::Unknown)]
    };
    assert!(relay.run(9_000_000, carry, |r| r.a.host.streams[0].established));
    let mut wrong = MAC_B.0;
    wrong[5] ^= 0x40;
    assert_eq!(asked[..5], [[0xff; 6], wrong, wrong, wrong, [0xff; 6]]);
}

#[test]
fn a_thousand_sends_ask_once() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let now = tap.now();
    for _ in 0..1000 {
        tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
    }
    assert_eq!(tap.frames().len(), 1);
    tap.inject(&craft::arp(ArpOperation::Reply, MAC_B, MAC_A, B4, A4));
    let syns = tap.frames();
    assert_eq!(syns.len(), 1000);
    assert!(syns.iter().all(|f| f[0..6] == MAC_B.0 && f[23] == 6));
}

#[test]
fn ping_is_answered() {
    let mut tap = acquainted();
    let data = [0x5a; 300];
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: &data };
    tap.inject(&craft::icmpv4(TO_A, B4, A4, &request));
    let reply = Icmpv4Repr::EchoReply { ident: 7, seq_no: 9, data: &data };
    let frames = tap.frames();
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][34..], craft::icmpv4(TO_A, A4, B4, &reply)[34..]);
    let request = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 9, data: &data };
    tap.inject(&craft::icmpv6(TO_A, B6, A6, &request));
    let reply = Icmpv6Repr::EchoReply { ident: 7, seq_no: 9, data: &data };
    assert_eq!(tap.frames()[0][54..], craft::icmpv6(TO_A, A6, B6, &reply)[54..]);
}

#[test]
fn ping_in_fragments_is_answered() {
    let mut tap = acquainted();
    let data: Vec<u8> = (0..1200).map(|n| n as u8).collect();
    let request = craft::icmpv6(TO_A, B6, A6, &Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: &data });
    for fragment in craft::fragments(&request, 400, 3).iter().rev() {
        tap.inject(fragment);
    }
    let reply = craft::icmpv6(TO_A, A6, B6, &Icmpv6Repr::EchoReply { ident: 1, seq_no: 2, data: &data });
    assert_eq!(tap.frames()[0][54..], reply[54..]);
}

/// Runs an exchange in which `carry` returns the frames that replace each frame. Checks that all bytes arrive
/// and that the connection closes gracefully.
fn exchange(remote: &str, carry: impl FnMut(bool, Vec<u8>) -> Vec<(Vec<u8>, Checksum)>) -> Relay {
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.b.host.stack.listen(4000).unwrap();
    relay.b.host.serve = 60_000;
    let now = relay.a.now();
    relay.a.host.connect(now, remote.parse().unwrap(), 80_000);
    let ended = relay.run(120_000_000, carry, |r| {
        r.a.host.streams[0].closed.is_some() && r.b.host.streams.first().is_some_and(|s| s.closed.is_some())
    });
    assert!(ended, "{:#?} {:#?}", relay.a.host.stack.counters(), relay.b.host.stack.counters());
    assert_eq!(relay.b.host.received(0), 80_000);
    assert_eq!(relay.a.host.received(0), 60_000);
    assert_eq!(relay.a.host.streams[0].closed, Some(CloseReason::Graceful));
    relay
}

// Proves MPA-284, MPA-286.
#[test]
fn a_stream_whose_every_segment_is_fragmented_survives() {
    for (remote, backwards) in [
        ("10.0.0.2:4000", false),
        ("10.0.0.2:4000", true),
        ("[2001:db8::2]:4000", false),
        ("[2001:db8::2]:4000", true),
    ] {
        let mut identification = 0;
        let relay = exchange(remote, |_, frame| {
            identification += 1;
            let is_tcp =
                frame[12..14] == [8, 0] && frame[23] == 6 || frame[12..14] == [0x86, 0xdd] && frame[20] == 6;
            if !is_tcp || frame.len() < 200 {
                return vec![(frame, Checksum::Unknown)];
            }
            let mut all = craft::fragments(&frame, 496, identification);
            if backwards {
                all.reverse();
            }
            all.into_iter().map(|f| (f, Checksum::Unknown)).collect()
        });
        for tap in [&relay.a, &relay.b] {
            assert!(tap.host.stack.counters().rx_reassembled > 20);
            assert_eq!(tap.host.stack.counters().tx_resets, 0);
        }
    }
}

#[test]
fn partial_checksums_are_taken_as_good_and_bad_ones_are_dropped() {
    let mut number = 0;
    let relay = exchange("10.0.0.2:4000", |_, mut frame| {
        if frame[12..14] != [8, 0] {
            return vec![(frame, Checksum::Unknown)];
        }
        number += 1;
        if number % 10 == 0 {
            return vec![(frame, Checksum::Bad)];
        }
        frame[50..52].copy_from_slice(&[0x12, 0x34]);
        vec![(frame, Checksum::Partial)]
    });
    assert!(relay.b.host.stack.counters().rx_bad_checksum > 0);
}

#[test]
fn a_partial_checksum_is_filled_in_before_the_slow_path() {
    let mut tap = acquainted();
    // A UDP packet to our host, whose checksum field the answer quotes.
    let mut udp = vec![0x10, 0, 0x20, 0, 0, 12, 0xab, 0xcd, 1, 2, 3, 4];
    let frame = craft::ip(TO_A, IpAddress::Ipv4(B4), IpAddress::Ipv4(A4), IpProtocol::Udp, 64, &udp);
    tap.inject_as(&frame, &[20, 40], Checksum::Partial);
    let answer = tap.frames().remove(0);
    let quoted = &answer[answer.len() - 12..];
    udp[6..8].fill(0);
    let mut all = [B4.octets(), A4.octets(), [0, 17, 0, 12]].concat();
    all.extend(&udp);
    assert_eq!(quoted[6..8], (!smoltcp::wire::checksum::data(&all)).to_be_bytes());
}

/// The peer's SYN has just shown that the peer is reachable. Unanswered address resolution therefore does not
/// end the new connection.
#[test]
fn a_peer_whose_address_nobody_answers_for_is_asked_for_again_while_it_connects() {
    let mut tap = Tap::new(config(MAC_A, 1));
    tap.host.stack.listen(4000).unwrap();
    let syn = craft::segment(TO_A, (B4.into(), 9), (A4.into(), 4000), TcpControl::Syn);
    tap.inject(&syn);
    let seen = tap.frames_for(5_000_000);
    assert!(seen.len() >= 4 && seen.iter().all(|frame| frame[12..14] == [8, 6]), "questions alone");
    tap.inject(&craft::arp(ArpOperation::Reply, MAC_B, MAC_A, B4, A4));
    let seen = tap.frames();
    assert_eq!((seen.len(), seen[0][23], seen[0][47]), (1, 6, 0x12), "the SYN-ACK");
}

/// If two hosts claim the same address, our frames do not alternate between them.
#[test]
fn a_neighbour_moves_once_a_second_at_most() {
    let mut tap = acquainted();
    let other = EthernetAddress([2, 0, 0, 0, 0, 0x77]);
    let claim = |mac| craft::arp(ArpOperation::Request, mac, EthernetAddress::BROADCAST, B4, B4);
    let goes_to = |tap: &mut Tap| {
        let now = tap.now();
        tap.host.connect(now, "10.0.0.2:1".parse().unwrap(), 0);
        let syn = tap.frames().into_iter().find(|frame| frame[12..14] == [8, 0]).expect("a SYN");
        EthernetAddress::from_bytes(&syn[0..6])
    };
    tap.inject(&claim(other));
    assert_eq!(goes_to(&mut tap), other, "a neighbour that was quiet may have moved");
    for mac in [MAC_B, other, MAC_B] {
        tap.inject(&claim(mac));
    }
    assert_eq!((goes_to(&mut tap), tap.host.stack.counters().neighbor_moves_refused), (other, 2));
    tap.frames_for(1_000_000);
    tap.inject(&claim(MAC_B));
    assert_eq!(goes_to(&mut tap), MAC_B);
}

// Proves MPA-244: a report of a path whose MTU is below the minimum of IP does not make segments tiny.
#[test]
fn a_path_with_a_smaller_mtu_is_found_and_everything_arrives() {
    for mtu in [1000u16, 0, 68] {
        let (mut reports, mut frames) = (Vec::new(), 0);
        let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
        relay.b.host.stack.listen(4000).unwrap();
        let now = relay.a.now();
        relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), 100_000);
        for _ in 0..10_000 {
            // The router between the hosts drops frames that are too long, and reports them.
            reports.drain(..).for_each(|r: Vec<u8>| relay.a.inject(&r));
            let ended = relay.run(
                101,
                |from_a, frame| {
                    frames += usize::from(from_a);
                    let too_big = from_a && frame[12..14] == [8, 0] && frame.len() > 1014;
                    if !too_big {
                        return vec![(frame, Checksum::Unknown)];
                    }
                    reports.push(craft::error_about(TO_A, &frame, Icmpv4DstUnreachable::FragRequired, mtu));
                    Vec::new()
                },
                |r| r.b.host.streams.first().is_some_and(|s| s.peer_closed),
            );
            if ended {
                break;
            }
        }
        assert_eq!(relay.b.host.received(0), 100_000);
        assert!(frames < 500, "{frames} frames");
        assert!(relay.a.host.stack.counters().tx_cut_by_emss > 0);
        // Each report causes at most one timeout, for the bytes that were lost together with it.
        assert!(relay.a.host.stack.counters().rto_expired <= 3);
    }
}

/// A host answers a unicast solicitation without its link-layer address, as RFC 4861 section 7.2.4 allows and
/// Linux does. The answer confirms the neighbour, so that the stack does not ask by multicast.
#[test]
fn an_advertisement_without_an_address_confirms_a_neighbour() {
    use smoltcp::wire::{Icmpv6Repr, NdiscNeighborFlags, NdiscRepr};
    // The first case is a solicited answer. The other answers do not confirm the neighbour: an unsolicited
    // answer, a solicited answer that is sent to a group, and an answer with an ICMP code other than 0 (RFC
    // 4861 section 7.1.2).
    let all_nodes = "ff02::1".parse().unwrap();
    for (flags, to, code, answers) in [
        (NdiscNeighborFlags::SOLICITED, A6, 0, true),
        (NdiscNeighborFlags::empty(), A6, 0, false),
        (NdiscNeighborFlags::SOLICITED, all_nodes, 0, false),
        (NdiscNeighborFlags::SOLICITED, A6, 1, false),
    ] {
        let mut tap = acquainted();
        let now = tap.now();
        tap.host.connect(now, "[2001:db8::2]:4000".parse().unwrap(), 0);
        let (mut unicast, mut multicast) = (0, 0);
        for _ in 0..90 {
            for frame in tap.frames_for(100_000) {
                if frame[12..14] != [0x86, 0xdd] || frame[20] != 58 || frame[54] != 135 {
                    continue;
                }
                if frame[0..6] != MAC_B.0 {
                    multicast += 1;
                    continue;
                }
                unicast += 1;
                let message = NdiscRepr::NeighborAdvert { flags, target_addr: B6, lladdr: None };
                let mut answer = craft::icmpv6(TO_A, B6, to, &Icmpv6Repr::Ndisc(message));
                // Sets the code, and reduces the checksum, which follows it, by the same value.
                answer[55] += code;
                answer[57] -= code;
                tap.inject(&answer);
            }
        }
        // The peer answers no SYN, so the stack doubts that the peer is reachable.
        assert!(unicast >= 2, "{unicast}");
        assert_eq!(multicast == 0, answers, "{multicast} by multicast");
    }
}
