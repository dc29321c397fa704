//! UDP datagrams: between two stacks, handmade, damaged, and to neighbours that do not answer.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use dp::link::{LinkConfig, pair};
use dp::{Checksum, Loopback};
use proptest::prelude::*;
use smoltcp::wire::{ArpOperation, EthernetAddress, IpAddress, IpProtocol, Ipv4Address};
use tcp_lite::{
    Datagram, DatagramHeader, Limits, MAX_UDP_PORTS, OpenUdpError, SendDatagramError, Stack, StackConfig,
};

use crate::craft;
use crate::harness::{Host, MAC_A, MAC_B, World, bytes_of, config};
use crate::relay::Tap;

const PORT: u16 = 4791;
/// The addresses of [`config`] for hosts 1 and 2, and of a host that does not exist.
const V4: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.9"];
const V6: [&str; 3] = ["2001:db8::1", "2001:db8::2", "2001:db8::9"];
/// Maximum number of datagrams that wait as events, or to be sent.
const FOUR_BURSTS: usize = 4 * dp::BURST;

fn socket(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn header(local: &str, remote: &str) -> DatagramHeader {
    DatagramHeader {
        local: socket(local, 50_000),
        remote: socket(remote, PORT),
        traffic_class: 0x6a,
        hop_limit: 33,
        flow_label: 0x9_8765,
        checksum: true,
    }
}

/// Sends `payload` from `host`.
fn send(
    stack: &mut Stack,
    now_us: u64,
    header: &DatagramHeader,
    payload: &[u8],
) -> Result<(), SendDatagramError<()>> {
    let now = tcp_lite::Instant::from_micros(now_us as i64);
    stack.send_datagram(now, header, payload.len(), |packet, at| {
        packet[at..].copy_from_slice(payload);
        Ok(())
    })
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + 1) as u8).collect()
}

/// The bytes of a range of a datagram's frame, which may be in several buffers.
fn part(datagram: &Datagram, range: &Range<usize>) -> Vec<u8> {
    bytes_of(&datagram.frame)[range.clone()].to_vec()
}

/// Host 2 with an open port, and the test at the other side of its wire.
fn open_tap() -> Tap {
    let mut tap = Tap::new(config(MAC_B, 2));
    tap.host.stack.open_udp(PORT).unwrap();
    tap
}

/// A frame from host 1 to the open port of host 2.
fn frame_to(dst: &str, payload: &[u8]) -> Vec<u8> {
    let src = if dst.contains(':') { V6[0] } else { V4[0] };
    frame_between((src, MAC_A), (dst, MAC_B), payload)
}

fn frame_between(
    (src, src_mac): (&str, EthernetAddress),
    (dst, dst_mac): (&str, EthernetAddress),
    payload: &[u8],
) -> Vec<u8> {
    let [src, dst] = [src, dst].map(|it| it.parse::<IpAddress>().unwrap());
    craft::udp([src_mac, dst_mac], (src, 50_000), (dst, PORT), payload)
}

/// Number of bytes of the IP header in an untagged frame of the test.
fn ip_bytes(dst: &str) -> usize {
    if dst.contains(':') { 40 } else { 20 }
}

/// Injects a frame, and returns the datagrams that arrive, and the number of dropped ones.
fn arrives(tap: &mut Tap, frame: &[u8], cuts: &[usize], checksum: Checksum) -> (Vec<Datagram>, u64) {
    let before = tap.host.stack.counters();
    tap.inject_as(frame, cuts, checksum);
    tap.host.poll(tap.now_us);
    let after = tap.host.stack.counters();
    let datagrams = std::mem::take(&mut tap.host.datagrams);
    assert_eq!(after.rx_datagrams - before.rx_datagrams, datagrams.len() as u64);
    (datagrams, after.rx_datagram_dropped - before.rx_datagram_dropped)
}

/// Checks that a frame is dropped as a datagram, and nothing else happens.
fn is_dropped(tap: &mut Tap, frame: &[u8], why: &str) {
    let slow = tap.host.stack.counters().rx_slow;
    let (datagrams, dropped) = arrives(tap, frame, &[], Checksum::Unknown);
    assert_eq!((datagrams.len(), dropped), (0, 1), "{why}");
    assert_eq!(tap.host.stack.counters().rx_slow, slow, "{why}");
    assert!(tap.frames().is_empty(), "{why}: an answer");
}

fn is_taken(tap: &mut Tap, frame: &[u8], why: &str) {
    let (datagrams, dropped) = arrives(tap, frame, &[], Checksum::Unknown);
    assert_eq!((datagrams.len(), dropped), (1, 0), "{why}");
}

#[test]
fn a_datagram_arrives_as_it_was_sent() {
    for ([local, remote, _], max) in [(V4, 1472), (V6, 1452)] {
        for vlan in [None, Some(5)] {
            let tag = if vlan.is_some() { 4 } else { 0 };
            let hosts = [(MAC_A, 1), (MAC_B, 2)].map(|(mac, n)| StackConfig { vlan, ..config(mac, n) });
            let [a, b] = hosts;
            let mut world = World::new(&LinkConfig::default(), a, b);
            world.b.stack.open_udp(PORT).unwrap();
            assert_eq!(world.a.stack.datagram_mtu(remote.parse().unwrap()), max);
            for (checksum, bytes) in [(true, 0), (true, 1), (false, 100), (true, max), (false, max)] {
                let what = format!("{remote} {vlan:?} {checksum} {bytes}");
                let header = DatagramHeader { checksum, ..header(local, remote) };
                send(&mut world.a.stack, world.now_us, &header, &payload(bytes)).unwrap();
                assert!(world.run(1_000_000, |world| world.b.datagrams.len() == 1), "{what}");
                let datagram = world.b.datagrams.pop().unwrap();
                assert_eq!((datagram.local, datagram.remote), (header.remote, header.local), "{what}");
                assert_eq!(part(&datagram, &datagram.payload), payload(bytes), "{what}");
                let udp_at = 14 + tag + ip_bytes(remote);
                assert_eq!(datagram.ip, 14 + tag..datagram.frame.len(), "{what}");
                assert_eq!(datagram.payload, udp_at + 8..datagram.frame.len(), "{what}");
                let frame = bytes_of(&datagram.frame);
                assert_eq!(frame[udp_at + 6..udp_at + 8] != [0, 0], checksum, "{what}");
                let ip = &frame[datagram.ip.start..];
                match remote.contains(':') {
                    false => assert_eq!((ip[1], ip[6] & 0x40, ip[8]), (0x6a, 0x40, 33), "{what}"),
                    true => assert_eq!((&ip[..4], ip[7]), (&[0x66, 0xa9, 0x87, 0x65][..], 33), "{what}"),
                }
            }
            let (a, b) = (world.a.stack.counters(), world.b.stack.counters());
            assert_eq!((a.tx_datagrams, b.rx_datagrams), (5, 5));
            assert_eq!(
                (a.tx_datagram_dropped, b.rx_datagram_dropped, world.a.stack.usage().datagrams),
                (0, 0, 0)
            );
        }
    }
}

#[test]
fn the_payload_is_written_behind_complete_headers_and_a_failure_sends_nothing() {
    let mut tap = open_tap();
    let free = tap.host.port.mempool().available();
    for [remote, local, _] in [V4, V6] {
        let header = header(local, remote);
        let now = tap.now();
        let mut seen = Vec::new();
        let refused = tap.host.stack.send_datagram(now, &header, 5, |packet, at| {
            seen = packet[..at].to_vec();
            assert_eq!(packet.len(), at + 5);
            Err("no payload")
        });
        assert_eq!(refused, Err(SendDatagramError::Fill("no payload")));
        assert_eq!(seen.len(), ip_bytes(remote) + 8);
        let (src, dst) = ((local.parse().unwrap(), 50_000), (remote.parse().unwrap(), PORT));
        let mut like = craft::udp([MAC_B, MAC_A], src, dst, &[0; 5]);
        let udp_at = 14 + ip_bytes(remote);
        like[udp_at + 6..udp_at + 8].fill(0);
        // The lengths, the addresses and the UDP header are as smoltcp writes them.
        let same = if remote.contains(':') { [4..7, 8..48] } else { [2..4, 12..28] };
        for range in same {
            assert_eq!(seen[range.clone()], like[14..][range], "{remote}");
        }
    }
    assert!(tap.frames().is_empty());
    assert_eq!(tap.host.port.mempool().available(), free);
}

#[test]
fn datagrams_that_cannot_be_sent_are_refused() {
    let mut tap = open_tap();
    let mut refused = |local: &str, remote: &str, bytes| {
        send(&mut tap.host.stack, 1_000_000, &header(local, remote), &payload(bytes)).unwrap_err()
    };
    for ([other, own, _], max) in [(V4, 1472), (V6, 1452)] {
        assert_eq!(refused(other, own, 0), SendDatagramError::NoAddress);
        assert_eq!(refused(own, other, max + 1), SendDatagramError::TooLong { max });
        assert_eq!(refused(own, own, 0), SendDatagramError::NoRoute, "no loopback");
    }
    for (local, remote) in [
        (V4[1], V6[0]),
        (V6[1], V4[0]),
        (V4[1], "192.0.2.1"),
        (V4[1], "10.0.0.255"),
        (V4[1], "255.255.255.255"),
        (V4[1], "0.0.0.0"),
        (V6[1], "::"),
        (V6[1], "239.1.2.3"),
        (V4[1], "ff15::7"),
    ] {
        assert_eq!(refused(local, remote, 0), SendDatagramError::NoRoute, "{local} {remote}");
    }
    assert!(tap.frames().is_empty());
}

/// A datagram that waits to be sent occupies a buffer, so their number is limited. Sending makes room.
#[test]
fn too_many_datagrams_are_refused_until_some_are_sent() {
    let mut tap = open_tap();
    let header = header(V4[1], "239.1.2.3");
    let fill_up = |tap: &mut Tap| (0..).find(|_| send(&mut tap.host.stack, 0, &header, b"x").is_err());
    assert_eq!(fill_up(&mut tap), Some(FOUR_BURSTS));
    assert_eq!(send(&mut tap.host.stack, 0, &header, b"x"), Err(SendDatagramError::NoBuffer));
    assert_eq!(tap.frames().len(), FOUR_BURSTS);
    assert_eq!(fill_up(&mut tap), Some(FOUR_BURSTS));
    assert_eq!(tap.frames().len(), FOUR_BURSTS);
    let held: Vec<_> = std::iter::from_fn(|| tap.host.port.mempool().alloc()).collect();
    assert!(!held.is_empty());
    assert_eq!(fill_up(&mut tap), Some(0));
}

/// The pool has so few buffers that the waiting datagrams could occupy all of them. The query for the
/// Ethernet address still finds a buffer.
#[test]
fn waiting_datagrams_leave_buffers_for_the_query() {
    let mut tap = Tap::with_buffers(config(MAC_B, 2), 16);
    for _ in 0..100 {
        let _full = send(&mut tap.host.stack, 1_000_000, &header(V4[1], V4[2]), b"x");
    }
    assert_eq!(tap.host.stack.usage().datagrams, 2, "an eighth of the buffers");
    assert_eq!(tap.frames().len(), 1, "the query");
}

/// Makes the payload of an ARP reply of host 9 known to host 2.
fn reply_of_9(tap: &mut Tap) {
    let (src, dst) = (Ipv4Address::new(10, 0, 0, 9), Ipv4Address::new(10, 0, 0, 2));
    tap.inject(&craft::arp(ArpOperation::Reply, MAC_A, MAC_B, src, dst));
}

#[test]
fn datagrams_wait_for_a_neighbor_and_the_oldest_give_way() {
    let mut tap = open_tap();
    for n in 0..64 {
        send(&mut tap.host.stack, tap.now_us, &header(V4[1], V4[2]), &[n]).unwrap();
    }
    let query = tap.frames_for(249_000);
    // Until then, further datagrams are refused, unless their next hop is known.
    let refused = send(&mut tap.host.stack, tap.now_us, &header(V4[1], V4[2]), b"x");
    assert_eq!(refused, Err(SendDatagramError::Unresolved));
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], "239.1.2.3"), b"x").unwrap();
    assert_eq!((tap.frames().len(), tap.host.stack.counters().tx_datagram_dropped), (1, 0));
    tap.frames_for(1000);
    for n in 64..70 {
        send(&mut tap.host.stack, tap.now_us, &header(V4[1], V4[2]), &[n]).unwrap();
    }
    assert_eq!(tap.host.stack.usage().datagrams, 64);
    assert_eq!(tap.host.stack.counters().tx_datagram_dropped, 6);
    assert_eq!((query.len(), &query[0][12..14]), (1, &[0x08, 0x06][..]));
    reply_of_9(&mut tap);
    let sent = tap.frames();
    assert_eq!(sent.iter().map(|frame| frame[42]).collect::<Vec<_>>(), (6..70).collect::<Vec<_>>());
    assert!(sent.iter().all(|frame| frame[..6] == MAC_A.0 && frame[6..12] == MAC_B.0));
    let counters = tap.host.stack.counters();
    assert_eq!((counters.tx_datagrams, counters.tx_datagram_dropped), (65, 6));
    assert_eq!(tap.host.stack.usage().datagrams, 0);
    // The address is known now, so the next datagram does not wait.
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], V4[2]), b"x").unwrap();
    assert_eq!(tap.frames().len(), 1);
}

/// The queries of the first datagram fail after 3 s. The second datagram, which is younger, fails with them.
/// Later datagrams are dropped at once, until the failure is forgotten.
#[test]
fn datagrams_to_a_neighbor_that_does_not_answer_are_dropped() {
    for [_, local, remote] in [V4, V6] {
        let mut tap = open_tap();
        let dropped = |tap: &Tap| tap.host.stack.counters().tx_datagram_dropped;
        send(&mut tap.host.stack, tap.now_us, &header(local, remote), b"1").unwrap();
        assert_eq!(tap.frames_for(2_500_000).len(), 3, "queries");
        send(&mut tap.host.stack, tap.now_us, &header(local, remote), b"2").unwrap();
        assert!(tap.frames_for(499_000).is_empty());
        assert_eq!((dropped(&tap), tap.host.stack.usage().datagrams), (0, 2));
        assert!(tap.frames_for(1000).is_empty());
        assert_eq!((dropped(&tap), tap.host.stack.usage().datagrams), (2, 0), "{remote}");
        send(&mut tap.host.stack, tap.now_us, &header(local, remote), b"3").unwrap();
        assert_eq!((dropped(&tap), tap.host.stack.usage().datagrams), (3, 0), "{remote}");
        tap.frames_for(1_000_000);
        send(&mut tap.host.stack, tap.now_us, &header(local, remote), b"4").unwrap();
        assert_eq!((dropped(&tap), tap.frames().len()), (3, 1), "{remote}: queried again");
    }
}

/// The neighbour table is full of addresses that are being queried, so the query for the next datagram does
/// not start. The datagram is dropped after 3 s, although no query has failed.
#[test]
fn a_datagram_waits_three_seconds_at_most() {
    let limits = Limits { neighbors: 1, ..Limits::default() };
    let mut tap = Tap::new(StackConfig { limits, ..config(MAC_B, 2) });
    let now_us = tap.now_us;
    send(&mut tap.host.stack, now_us, &header(V4[1], "10.0.0.8"), b"1").unwrap();
    tap.frames_for(1_000_000);
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], "10.0.0.9"), b"2").unwrap();
    tap.frames_for(1_999_000);
    assert_eq!(tap.host.stack.usage().datagrams, 2);
    tap.frames_for(1000);
    assert_eq!((tap.host.stack.usage().datagrams, tap.host.stack.counters().tx_datagram_dropped), (1, 1));
    let deadline = tap.host.stack.next_deadline(tap.now()).unwrap();
    assert!(deadline <= tap.now() + tcp_lite::Duration::from_secs(1));
    tap.frames_for(999_000);
    assert_eq!(tap.host.stack.usage().datagrams, 1);
    // The failure of host 8 is forgotten at the same time, and the second datagram is too old.
    tap.frames_for(1000);
    assert_eq!((tap.host.stack.usage().datagrams, tap.host.stack.counters().tx_datagram_dropped), (0, 2));
}

/// A stack with nothing but a waiting datagram asks to be polled when the datagram is to be dropped.
#[test]
fn without_a_link_datagrams_are_dropped() {
    let mut tap = open_tap();
    let now = tap.now();
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], V4[2]), b"waits").unwrap();
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], "239.1.2.3"), b"ready").unwrap();
    tap.host.stack.set_link(now, false);
    assert_eq!(tap.host.stack.counters().tx_datagram_dropped, 2);
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], "239.1.2.3"), b"later").unwrap();
    assert_eq!(tap.host.stack.counters().tx_datagram_dropped, 3);
    tap.host.stack.set_link(now, true);
    let sent = tap.frames();
    assert!(sent.iter().all(|frame| frame[12..14] == [0x08, 0x06]), "queries only");
    send(&mut tap.host.stack, tap.now_us, &header(V4[1], "239.1.2.3"), b"now").unwrap();
    assert_eq!(tap.frames().len(), 1);
}

#[test]
fn a_datagram_to_our_own_address_comes_back() {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let a = StackConfig { loopback: true, ..config(MAC_A, 1) };
    let mut world = World {
        a: Host::new(a, Box::new(Loopback::new(port_a))),
        b: Host::new(config(MAC_B, 2), port_b),
        now_us: 1_000_000,
    };
    world.a.stack.open_udp(PORT).unwrap();
    for own in [V4[0], V6[0]] {
        for checksum in [true, false] {
            let header = DatagramHeader { checksum, ..header(own, own) };
            send(&mut world.a.stack, world.now_us, &header, b"to us").unwrap();
            assert!(world.run(1_000_000, |world| !world.a.datagrams.is_empty()), "{own}");
            let datagram = world.a.datagrams.pop().unwrap();
            assert_eq!((datagram.local, datagram.remote), (header.remote, header.local));
            assert_eq!(part(&datagram, &datagram.payload), b"to us");
        }
    }
    assert_eq!(world.b.port.counters().rx_frames, 0, "nothing reaches the wire, no query either");
}

/// A datagram to a port that is not open takes the slow path, whether or not another port is open.
#[test]
fn a_port_that_is_not_open_is_answered_as_before() {
    for dst in [V4[1], V6[1]] {
        let answers = |ports: &[u16]| {
            let mut tap = Tap::new(config(MAC_B, 2));
            ports.iter().for_each(|port| tap.host.stack.open_udp(*port).unwrap());
            let (datagrams, dropped) = arrives(&mut tap, &frame_to(dst, b"x"), &[], Checksum::Unknown);
            assert_eq!((datagrams.len(), dropped), (0, 0));
            assert_eq!(tap.host.stack.counters().rx_slow, 1);
            tap.frames_for(1000)
        };
        let before = answers(&[]);
        assert!(!before.is_empty());
        assert_eq!(answers(&[PORT + 1, PORT - 1, 50_000]), before, "{dst}");
    }
    let (src, dst) = ((V4[0].parse().unwrap(), 50_000), (V4[1].parse().unwrap(), 0));
    let mut tap = open_tap();
    tap.inject(&craft::udp([MAC_A, MAC_B], src, dst, b"port 0 is never open"));
    assert_eq!(tap.host.stack.counters().rx_slow, 1);
}

#[test]
fn ports_are_opened_once_and_closed() {
    let mut tap = Tap::new(config(MAC_B, 2));
    let stack = &mut tap.host.stack;
    assert_eq!(stack.open_udp(0), Err(OpenUdpError::InUse));
    for port in 0..MAX_UDP_PORTS as u16 {
        assert_eq!(stack.open_udp(PORT + port), Ok(()));
    }
    assert_eq!(
        (stack.open_udp(PORT), stack.open_udp(1)),
        (Err(OpenUdpError::InUse), Err(OpenUdpError::Full))
    );
    is_taken(&mut tap, &frame_to(V4[1], b"x"), "open");
    tap.host.stack.close_udp(PORT);
    assert_eq!(arrives(&mut tap, &frame_to(V4[1], b"x"), &[], Checksum::Unknown).1, 0);
    assert_eq!(tap.host.stack.counters().rx_slow, 1);
    assert_eq!(tap.host.stack.open_udp(PORT), Ok(()));
    is_taken(&mut tap, &frame_to(V4[1], b"x"), "open again");
    assert_eq!(tap.host.stack.open_udp(1), Err(OpenUdpError::Full));
}

#[test]
fn what_is_wrong_with_a_datagram_is_found() {
    for [src, dst, _] in [V4, V6] {
        let mut tap = open_tap();
        let good = frame_to(dst, b"payload");
        let (ip_bytes, udp_at) = (ip_bytes(dst), 14 + ip_bytes(dst));
        is_taken(&mut tap, &good, "good");
        is_taken(&mut tap, &[&good[..], &[0xee; 20]].concat(), "Ethernet's padding");
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = good.clone();
            change(&mut frame);
            if ip_bytes == 20 {
                craft::fix_ipv4_checksum(&mut frame);
            }
            frame
        };
        // The UDP length is that of a header, of less than a header, and of more than the packet. No
        // checksum, so only the length is wrong.
        let length = |length: u16| {
            changed(&|frame| {
                frame[udp_at + 4..udp_at + 6].copy_from_slice(&length.to_be_bytes());
                frame[udp_at + 6..udp_at + 8].fill(0);
            })
        };
        for wrong in [0, 7, 16, 0xffff] {
            is_dropped(&mut tap, &length(wrong), &format!("{dst}: length {wrong}"));
        }
        for shorter in [8, 14] {
            let (datagrams, _) = arrives(&mut tap, &length(shorter), &[], Checksum::Unknown);
            let datagram = &datagrams[0];
            assert_eq!(part(datagram, &datagram.payload), b"payload"[..usize::from(shorter) - 8]);
            assert_eq!((datagram.ip.end, datagram.payload.end), (datagram.frame.len(), datagram.frame.len()));
        }
        is_taken(&mut tap, &length(15), "no checksum");
        let damaged = changed(&|frame| frame[udp_at + 9] ^= 1);
        is_dropped(&mut tap, &damaged, "checksum");
        for (frame, verdict, taken) in [
            (&damaged, Checksum::Good, 1),
            (&damaged, Checksum::Partial, 1),
            (&good, Checksum::Bad, 0),
            (&length(15), Checksum::Bad, 1),
        ] {
            assert_eq!(arrives(&mut tap, frame, &[], verdict).0.len(), taken, "{dst}: {verdict:?}");
        }
        // The datagram is not for this host alone, or comes from an address that is not a host's.
        let group_mac = EthernetAddress([0x33, 0x33, 0, 0, 0, 1]);
        is_dropped(&mut tap, &frame_between((src, MAC_A), (dst, group_mac), b"x"), "a group's frame");
        let broadcast = frame_between((src, MAC_A), (dst, EthernetAddress::BROADCAST), b"x");
        is_dropped(&mut tap, &broadcast, "a broadcast frame");
        let sources = match dst.contains(':') {
            true => ["::", "ff02::1", "ff15::7", dst],
            false => ["0.0.0.0", "224.0.0.1", "10.0.0.255", dst],
        };
        for source in sources {
            is_dropped(&mut tap, &frame_between((source, MAC_A), (dst, MAC_B), b"x"), source);
        }
    }
}

#[test]
fn broadcasts_options_and_fragments_are_not_taken() {
    let mut tap = open_tap();
    for dst in ["10.0.0.255", "255.255.255.255"] {
        let frame = frame_between((V4[0], MAC_A), (dst, EthernetAddress::BROADCAST), b"x");
        is_dropped(&mut tap, &frame, dst);
    }
    // Four NOPs.
    let mut options = frame_to(V4[1], b"x");
    options.splice(34..34, [1; 4]);
    (options[14], options[17]) = (0x46, options[17] + 4);
    craft::fix_ipv4_checksum(&mut options);
    is_dropped(&mut tap, &options, "IPv4 options");
    // Destination options that consist of padding, and a fragment header without fragments.
    for (next_header, extension) in [(60, [17, 0, 1, 4, 0, 0, 0, 0]), (44, [17, 0, 0, 0, 0, 0, 0, 1])] {
        let mut extended = frame_to(V6[1], b"x");
        extended.splice(54..54, extension);
        (extended[20], extended[19]) = (next_header, extended[19] + 8);
        is_dropped(&mut tap, &extended, "IPv6 extension headers");
    }
    for dst in [V4[1], V6[1]] {
        let mut tap = open_tap();
        let whole = frame_to(dst, &payload(100));
        let before = tap.host.stack.counters();
        for fragment in craft::fragments(&whole, 48, 7) {
            tap.inject(&fragment);
        }
        let after = tap.host.stack.counters();
        assert_eq!(after.rx_datagram_dropped - before.rx_datagram_dropped, 1, "{dst}");
        assert!(tap.frames().is_empty() && tap.host.datagrams.is_empty(), "{dst}");
        tap.host.stack.close_udp(PORT);
        craft::fragments(&whole, 48, 8).iter().for_each(|fragment| tap.inject(fragment));
        assert!(!tap.frames_for(1000).is_empty(), "{dst}: a closed port is answered");
        tap.host.stack.open_udp(PORT).unwrap();
        assert_eq!(tap.host.stack.counters().rx_datagram_dropped, after.rx_datagram_dropped);
    }
}

/// Nobody takes events. A TCP segment still finds a place among the events.
#[test]
fn datagrams_that_nobody_takes_are_limited() {
    let frame = frame_to(V4[1], b"x");
    for (events, most) in [(Limits::default().events, FOUR_BURSTS as u64), (10, 10)] {
        let limits = Limits { events, ..Limits::default() };
        let mut tap = Tap::new(StackConfig { limits, ..config(MAC_B, 2) });
        tap.host.stack.open_udp(PORT).unwrap();
        (0..300).for_each(|_| tap.inject(&frame));
        let counters = tap.host.stack.counters();
        assert_eq!((counters.rx_datagrams, counters.rx_datagram_dropped), (most, 300 - most));
        tap.host.stack.check_invariants().unwrap();
        tap.host.poll(tap.now_us);
        assert_eq!(tap.host.datagrams.len() as u64, most);
        is_dropped_or_taken_again(&mut tap, &frame);
    }
}

fn is_dropped_or_taken_again(tap: &mut Tap, frame: &[u8]) {
    tap.host.datagrams.clear();
    is_taken(tap, frame, "the events were taken");
}

/// The fields of IPv6 that no checksum covers: traffic class, flow label and hop limit.
fn is_uncovered(dst: &str, at: usize) -> bool {
    dst.contains(':') && (14..18).contains(&at) || dst.contains(':') && at == 21
}

/// Each header bit that a checksum covers is flipped once. A damaged frame never arrives.
#[test]
fn a_flipped_bit_of_a_covered_header_never_arrives() {
    for dst in [V4[1], V6[1]] {
        let good = frame_to(dst, b"payload");
        let mut tap = open_tap();
        let covered = (14..14 + ip_bytes(dst) + 8).filter(|at| !is_uncovered(dst, *at));
        for at in covered.chain(0..6) {
            for bit in 0..8 {
                let mut frame = good.clone();
                frame[at] ^= 1 << bit;
                let (datagrams, _) = arrives(&mut tap, &frame, &[], Checksum::Unknown);
                assert!(datagrams.is_empty(), "{dst}: bit {bit} of byte {at}");
            }
        }
        is_taken(&mut tap, &good, "afterwards");
    }
}

/// Checks a datagram that the stack passed to its user: all ranges are within the frame, the port is open,
/// and the addresses and ports are those in the frame.
fn check(datagram: &Datagram) {
    let frame = bytes_of(&datagram.frame);
    let Datagram { ip, payload, .. } = datagram;
    assert!(ip.start < payload.start && payload.start <= payload.end && payload.end <= frame.len());
    assert!(datagram.frame.head().len() >= payload.start, "the headers are in one buffer");
    let ports = &frame[payload.start - 8..];
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    assert_eq!((datagram.remote.port(), datagram.local.port()), (port(0), port(2)));
    assert_eq!(datagram.local.port(), PORT);
    let address = match datagram.local.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    assert!(frame[..payload.start - 8].ends_with(&address));
    assert!([V4[1], V6[1]].contains(&&*datagram.local.ip().to_string()));
}

proptest! {
    /// Frames that are cut, damaged, and spread over several buffers. `honest` frames are only spread.
    #[test]
    fn damaged_and_divided_frames_arrive_at_their_port_or_not_at_all(
        six: bool,
        bytes in 0..200_usize,
        cuts in prop::collection::vec(0..300_usize, 0..4),
        flips in prop::collection::vec((0..70_usize, 0..8_u8), 0..4),
        length in prop::option::of(0..300_usize),
        checksum in prop_oneof![Just(Checksum::Unknown), Just(Checksum::Good), Just(Checksum::Partial)],
    ) {
        let dst = if six { V6[1] } else { V4[1] };
        let mut frame = frame_to(dst, &payload(bytes));
        let whole = frame.len();
        for (at, bit) in &flips {
            let at = at % whole;
            frame[at] ^= 1 << bit;
        }
        let is_cut = length.is_some_and(|length| length < whole);
        frame.truncate(length.unwrap_or(whole));
        let mut tap = open_tap();
        let (datagrams, dropped) = arrives(&mut tap, &frame, &cuts, checksum);
        prop_assert!(datagrams.len() as u64 + dropped <= 1);
        datagrams.iter().for_each(check);
        prop_assert!(!is_cut || datagrams.is_empty() || !flips.is_empty());
        if flips.is_empty() && !is_cut {
            prop_assert_eq!(part(&datagrams[0], &datagrams[0].payload), payload(bytes));
        }
    }

    /// Random bytes after a valid IP header.
    #[test]
    fn random_datagrams_arrive_at_an_open_port_or_not_at_all(
        six: bool,
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        to_port: bool,
        padding in 0..20_usize,
        cuts in prop::collection::vec(0..200_usize, 0..4),
        checksum in prop_oneof![Just(Checksum::Unknown), Just(Checksum::Good), Just(Checksum::Bad)],
    ) {
        let [src, dst, _] = if six { V6 } else { V4 };
        if to_port && bytes.len() >= 8 {
            bytes[2..4].copy_from_slice(&PORT.to_be_bytes());
            // The upper half of a random length is almost never right.
            bytes[4] = 0;
        }
        let [src, dst] = [src, dst].map(|it| it.parse::<IpAddress>().unwrap());
        let mut frame = craft::ip([MAC_A, MAC_B], src, dst, IpProtocol::Udp, 64, &bytes);
        frame.extend(vec![0xee; padding]);
        let mut tap = open_tap();
        let (datagrams, dropped) = arrives(&mut tap, &frame, &cuts, checksum);
        let slow = tap.host.stack.counters().rx_slow;
        prop_assert_eq!(datagrams.len() as u64 + dropped + slow, 1);
        prop_assert_eq!(slow, u64::from(bytes.len() < 8 || bytes[2..4] != PORT.to_be_bytes()));
        datagrams.iter().for_each(check);
        for datagram in &datagrams {
            let length = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
            prop_assert_eq!(part(datagram, &datagram.payload), &bytes[8..length]);
        }
    }
}
