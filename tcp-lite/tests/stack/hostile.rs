//! Tests that hostile frames cause no panic, and that an existing connection continues. Further tests are
//! about packets that are longer than their frame, and about answers that belong to no connection.

use dp::Checksum;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use smoltcp::wire::{ArpOperation, Icmpv4DstUnreachable, Icmpv4Repr, IpProtocol, TcpControl};
use tcp_lite::CloseReason;
use tcp_lite::facade::{Ipv4Address, Ipv6Address};
use testkit::dice::Dice;

use crate::craft;
use crate::harness::{MAC_A, MAC_B, config};
use crate::relay::{Relay, Tap};

const FRAMES: usize = 10_000;

/// Returns a connection that has carried bytes from A to B, and a list of frames: the frames that B has
/// received, and fragments of them.
fn live() -> (Relay, Vec<Vec<u8>>) {
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.b.host.stack.listen(4000).unwrap();
    let now = relay.a.now();
    relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), 50_000);
    relay.a.host.keep_open(0);
    let mut seen = Vec::new();
    let done = relay.run(
        10_000_000,
        |to_b, frame| {
            if to_b {
                seen.push(frame.clone());
                // Adds fragments, which do not occur in this connection.
                seen.extend(craft::fragments(&frame, 96, 1).into_iter().skip(1));
            }
            vec![(frame, Checksum::Unknown)]
        },
        |r| r.b.host.streams.first().is_some_and(|s| s.received.next_offset() == 50_000),
    );
    assert!(done);
    (relay, seen)
}

/// Checks that the connection still carries bytes.
fn still_works(relay: &mut Relay) {
    relay.b.now_us = relay.b.now_us.max(relay.a.now_us);
    relay.a.now_us = relay.b.now_us;
    relay.a.host.send_more(0, 50_000);
    let arrived = relay.run(
        120_000_000,
        |_, frame| vec![(frame, Checksum::Unknown)],
        |r| r.b.host.received(0) == 100_000,
    );
    assert!(arrived, "{:#?}", relay.b.host.stack.counters());
    assert_eq!(relay.b.host.streams[0].closed, None);
}

fn runner() -> TestRunner {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[9; 32]);
    TestRunner::new_with_rng(Config::default(), rng)
}

/// Returns random bytes with an Ethernet header that passes the first check.
fn random_frame() -> impl Strategy<Value = Vec<u8>> {
    let ethertype = prop_oneof![
        Just([0x08u8, 0x00]),
        Just([0x86, 0xdd]),
        Just([0x08, 0x06]),
        Just([0x81, 0x00]),
        any::<[u8; 2]>()
    ];
    (ethertype, prop::collection::vec(any::<u8>(), 0..200), any::<bool>()).prop_map(
        |(ethertype, rest, plausible)| {
            let mut frame = [&MAC_B.0[..], &MAC_A.0[..], &ethertype, &rest].concat();
            if plausible && ethertype == [0x86, 0xdd] && rest.len() > 40 {
                // Length and addresses are valid, so that the stack parses the rest.
                frame[14] = 0x60;
                frame[18..20].copy_from_slice(&(rest.len() as u16 - 40).to_be_bytes());
                frame[38..54].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
                frame[22..38].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
                frame[20] = [0, 6, 43, 44, 58, 60][usize::from(rest[6]) % 6];
                frame[21] = 255;
            } else if plausible && ethertype == [0x08, 0x00] && rest.len() > 20 {
                frame[14] = 0x45;
                frame[16..18].copy_from_slice(&(rest.len() as u16).to_be_bytes());
                frame[23] = [1, 6, 17, 2][usize::from(rest[9]) % 4];
                frame[26..34].copy_from_slice(&[10, 0, 0, 9, 10, 0, 0, 2]);
                frame[24..26].fill(0);
                let checksum = !smoltcp::wire::checksum::data(&frame[14..34]);
                frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            frame
        },
    )
}

/// Changes of a frame: new values of bytes, the length after truncation, and how the frame is split into
/// buffers.
type Mutation = (Vec<(prop::sample::Index, u8)>, Option<prop::sample::Index>, Vec<usize>);

fn mutation() -> impl Strategy<Value = Mutation> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let cut = prop::option::weighted(0.2, any::<prop::sample::Index>());
    (changes, cut, prop::collection::vec(any::<usize>(), 0..5))
}

fn mutate(frame: &[u8], (changes, cut, _): &Mutation) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for (at, value) in changes {
        // All changes are in the first 80 bytes, most of which are headers.
        let reach = frame.len().min(80);
        frame[at.index(reach)] = *value;
    }
    if let Some(cut) = cut {
        frame.truncate(cut.index(frame.len() + 1));
    }
    frame
}

#[test]
fn random_frames_leave_a_live_connection_alone() {
    let (mut relay, _) = live();
    let mut runner = runner();
    let (frames, cuts) = (random_frame(), prop::collection::vec(any::<usize>(), 0..4));
    for n in 0..FRAMES {
        let frame = frames.new_tree(&mut runner).unwrap().current();
        let cuts = cuts.new_tree(&mut runner).unwrap().current();
        relay.b.inject_as(&frame, &cuts, Checksum::Unknown);
        if n % 64 == 0 {
            relay.b.now_us += 100;
            relay.b.frames();
        }
    }
    still_works(&mut relay);
}

/// Returns a frame for the slow path of B. The frame is from an unknown host, or about a flow that equals or
/// nearly equals the flow of `sent`, a frame of B. The frame's checksums are correct, as an attacker's
/// checksums would be, unless the frame is damaged on purpose.
fn forged(random: &mut impl FnMut() -> u8, sent: &[u8]) -> Vec<u8> {
    let mut stranger = MAC_A;
    (stranger.0[4], stranger.0[5]) = (1, random());
    let macs = [stranger, MAC_B];
    let (v4, b4) = (Ipv4Address::new(10, 0, 0, 16 + random() / 2), Ipv4Address::new(10, 0, 0, 2));
    let prefix = |last| Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
    let (v6, b6) = (prefix(16 + u16::from(random())), prefix(2));
    let mut frame = match random() % 8 {
        0 => craft::arp(ArpOperation::Request, stranger, MAC_B, v4, b4),
        1 => craft::arp(ArpOperation::Reply, stranger, MAC_B, v4, b4),
        2 => craft::solicit(macs, v6, b6),
        3 => {
            let data: Vec<u8> = (0..random()).map(|n| n ^ 0x55).collect();
            let echo = Icmpv4Repr::EchoRequest { ident: 7, seq_no: random().into(), data: &data };
            craft::icmpv4(macs, v4, b4, &echo)
        }
        // The error is about a flow that does not exist, or about a sequence number that is not in flight.
        kind @ 4..=5 => {
            let mut quoted = sent.to_vec();
            quoted[if kind == 4 { 36 } else { 38 }] ^= 0x40;
            let reasons = [Icmpv4DstUnreachable::FragRequired, Icmpv4DstUnreachable::PortUnreachable];
            craft::error_about(macs, &quoted, reasons[usize::from(random() % 2)], 68)
        }
        // One fragment of a segment, whose other fragments never arrive.
        _ => {
            let mut segment = craft::ip(macs, v4.into(), b4.into(), IpProtocol::Tcp, 64, &[random(); 300]);
            segment[34 + 12] = 0x50;
            let mut pieces = craft::fragments(&segment, 96, random().into());
            pieces.swap_remove(usize::from(random()) % pieces.len())
        }
    };
    // Some frames are damaged, except for the addresses in ARP, which every host believes.
    let reach = if frame[12..14] == [0x08, 0x06] { 22 } else { frame.len() };
    if random().is_multiple_of(4) {
        frame[14 + usize::from(random()) % (reach - 14)] ^= random();
    }
    frame
}

/// With each frame that B receives during a transfer in both directions, four forged frames arrive: ARP,
/// neighbour discovery, ICMP or fragments. The forged frames have no effect on the transfer.
// Proves SEC-017: forged errors about unknown flows, and about bytes that are not in flight, change nothing.
#[test]
fn noise_on_the_slow_path_does_not_disturb_a_transfer() {
    const BYTES: u64 = 1_000_000;
    /// The payload of a segment with an MTU of 1500 and timestamps.
    const EMSS: usize = 1448;
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.b.host.stack.listen(4000).unwrap();
    relay.b.host.serve = BYTES;
    let now = relay.a.now();
    relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), BYTES);
    let (mut dice, mut sent, mut injected, mut segments) = (Dice::xorshift(0), Vec::new(), 0, Vec::new());
    let mut random = || (dice.number() >> 8) as u8;
    let done = relay.run(
        60_000_000,
        |to_b, frame| {
            if !to_b {
                sent = frame.clone();
            }
            let mut frames = vec![(frame, Checksum::Unknown)];
            if to_b && sent.len() > 54 {
                injected += 4;
                frames.extend((0..4).map(|_| (forged(&mut random, &sent), Checksum::Unknown)));
            }
            frames
        },
        |r| {
            let stream = r.b.host.streams.first();
            segments.extend(stream.and_then(|stream| r.b.host.stack.info(stream.conn)).map(|info| info.emss));
            let received =
                |host: &crate::harness::Host| host.streams.first().map(|s| s.received.next_offset());
            received(&r.a.host) == Some(BYTES) && received(&r.b.host) == Some(BYTES)
        },
    );
    let counters = relay.b.host.stack.counters();
    assert!(done, "{counters:#?}");
    assert!(injected > 2000 && counters.rx_slow > 1000, "{injected} injected, {counters:#?}");
    assert_eq!((counters.tx_cut_by_emss, counters.tx_retransmits), (0, 0));
    assert!(
        segments.len() > 10 && segments.iter().all(|&bytes| bytes == EMSS),
        "a forged MTU counts: {segments:?}"
    );
    assert!(relay.b.host.streams[0].closed.is_none_or(|reason| reason == CloseReason::Graceful));
}

#[test]
fn mutated_frames_leave_a_live_connection_alone() {
    let (mut relay, seen) = live();
    let mut runner = runner();
    // ARP has no checksum, so every host believes a changed address in an ARP frame.
    let seen: Vec<_> = seen.into_iter().filter(|f| f[12..14] != [0x08, 0x06]).collect();
    for n in 0..FRAMES {
        let mutation = mutation().new_tree(&mut runner).unwrap().current();
        let mut frame = mutate(&seen[n % seen.len()], &mutation);
        if frame.len() > 14 && frame[12..14] == [0x08, 0x06] {
            frame[12] = 0x88;
        }
        relay.b.inject_as(&frame, &mutation.2, Checksum::Unknown);
        if n % 64 == 0 {
            relay.b.now_us += 100;
            relay.b.frames();
        }
    }
    still_works(&mut relay);
}

#[test]
fn a_packet_longer_than_its_frame_is_malformed() {
    for (src, dst) in [
        (Ipv4Address::new(10, 0, 0, 2).into(), Ipv4Address::new(10, 0, 0, 1).into()),
        (
            "2001:db8::2".parse::<Ipv6Address>().unwrap().into(),
            "2001:db8::1".parse::<Ipv6Address>().unwrap().into(),
        ),
    ] {
        let mut tap = Tap::new(config(MAC_A, 1));
        // The frames are 1 to 20 bytes too short. Without payload, the TCP header is incomplete; with 20
        // bytes of payload, bytes of the payload are missing.
        let macs = [MAC_B, MAC_A];
        for payload in [&[][..], &[7; 20]] {
            let whole = craft::answer(macs, (src, 9), (dst, 4000), TcpControl::Syn, (7, None), payload);
            let before = tap.host.stack.counters().rx_malformed;
            for missing in 1..=20 {
                tap.inject(&whole[..whole.len() - missing]);
                assert_eq!(tap.host.stack.counters().rx_malformed, before + missing as u64, "{dst}");
            }
            tap.inject(&whole);
            assert_eq!(tap.host.stack.counters().rx_malformed, before + 20);
        }
    }
}

/// An answer to a segment that belongs to no connection is due at once. Therefore a host that sleeps until
/// the next deadline does not delay the answer.
#[test]
fn an_answer_that_belongs_to_no_connection_is_due_at_once() {
    let (a, b) = (Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2));
    let request = craft::arp(ArpOperation::Request, MAC_B, MAC_A, b, a);
    let syn = craft::segment([MAC_B, MAC_A], (b.into(), 9), (a.into(), 4000), TcpControl::Syn);
    let mut tap = Tap::new(config(MAC_A, 1));
    for frame in [request, syn] {
        tap.frames();
        tap.inject(&frame);
        let now = tap.now();
        tap.host.stack.poll(now);
        assert_eq!(tap.host.stack.next_deadline(now), Some(now));
        assert_eq!(tap.frames().len(), 1);
    }
}
