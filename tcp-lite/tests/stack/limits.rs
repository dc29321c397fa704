//! Tests of many connections, and of the behaviour of the stack at its limits.

use dp::link::LinkConfig;
use smoltcp::wire::{ArpOperation, TcpControl};
use tcp_lite::facade::{EthernetAddress, IpAddress, Ipv4Address};
use tcp_lite::{AddressFilter, CloseReason, ConnectError, Duration, ListenConfig, ListenError, StackConfig};

use crate::craft;
use crate::harness::{MAC_A, MAC_B, World, byte, config};
use crate::relay::Tap;

pub(crate) const A4: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
pub(crate) const B4: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
pub(crate) const A: IpAddress = IpAddress::Ipv4(A4);
pub(crate) const B: IpAddress = IpAddress::Ipv4(B4);
pub(crate) const TO_A: [EthernetAddress; 2] = [MAC_B, MAC_A];

/// TCP flags of an IPv4 frame.
fn flags(frame: &[u8]) -> u8 {
    frame[14 + 20 + 13]
}

const SYN_ACK: u8 = 0x12;
const RST: u8 = 0x04;

/// Host A, which listens on port 80 and knows the Ethernet address of B.
fn listening(config: StackConfig) -> Tap {
    let mut tap = Tap::new(config);
    tap.host.stack.listen(80).unwrap();
    tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
    tap.frames();
    tap
}

#[test]
fn a_closed_port_refuses() {
    for remote in ["10.0.0.2:9", "[2001:db8::2]:9"] {
        let mut world = World::standard(&LinkConfig::default());
        let now = world.now();
        world.a.connect(now, remote.parse().unwrap(), 0);
        assert!(world.run(1_000_000, |w| w.a.streams[0].closed.is_some()));
        assert_eq!(world.a.streams[0].closed, Some(CloseReason::Refused));
        let counters = world.b.stack.counters();
        assert_eq!((counters.rx_no_connection, counters.tx_resets), (1, 1));
    }
}

/// An answer is sent to the source of a frame, so a frame whose source is a group address is not answered.
#[test]
fn a_frame_from_a_group_is_not_answered() {
    let group = EthernetAddress([0x25, 0, 0, 0, 0, 0xcb]);
    for (from, answers) in [(MAC_B, 1), (group, 0), (EthernetAddress::BROADCAST, 0)] {
        let mut tap = Tap::new(config(MAC_A, 1));
        tap.inject(&craft::segment([from, MAC_A], (B, 1000), (A, 80), TcpControl::Syn));
        assert_eq!(tap.frames().len(), answers, "from {from}");
        assert_eq!(tap.host.stack.counters().rx_malformed, 1 - answers as u64);
    }
}

#[test]
fn a_thousand_connections_work_at_once() {
    let mut world = World::standard(&LinkConfig::default());
    world.b.stack.listen(4000).unwrap();
    world.b.serve = 3000;
    let now = world.now();
    for n in 0..1000 {
        let stream = world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 2000 + n);
        world.a.keep_open(stream);
    }
    let all = |w: &mut World| {
        let heard = w.a.streams.iter().all(|s| s.received.next_offset() == 3000);
        heard && w.b.streams.len() == 1000 && w.b.streams.iter().all(|s| s.received.next_offset() >= 2000)
    };
    assert!(world.run(60_000_000, all));
    let sum: u64 = (0..1000).map(|n| world.b.received(n)).sum();
    assert_eq!(sum, (2000..3000).sum::<u64>());
    assert!(world.a.streams.iter().all(|s| s.established && s.peer_closed && s.closed.is_none()));
    // Now the other direction is also closed, and all connections end.
    for n in 0..1000 {
        let conn = world.a.streams[n].conn;
        world.a.stack.close(now, conn);
    }
    let over = |w: &mut World| [&w.a, &w.b].iter().all(|h| h.streams.iter().all(|s| s.closed.is_some()));
    assert!(world.run(60_000_000, over));
}

#[test]
fn bulk_connections_get_equal_shares() {
    let (mut a, b) = (config(MAC_A, 1), config(MAC_B, 2));
    a.tcp.send_buffer_bytes = 128 * 1024;
    let mut world = World::new(&LinkConfig::default(), a, b);
    world.b.stack.listen(4000).unwrap();
    let now = world.now();
    for _ in 0..16 {
        world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 1_000_000);
    }
    let first_is_through = |w: &mut World| w.b.streams.iter().any(|s| s.received.next_offset() == 1_000_000);
    assert!(world.run(60_000_000, first_is_through));
    let slowest = (0..16).map(|n| world.b.received(n)).min().unwrap();
    assert!(slowest >= 800_000, "the slowest has {slowest}");
}

#[test]
fn send_buffers_larger_than_the_pool_starve_nobody() {
    let mut world = World::standard(&LinkConfig { mbufs: 1024, ..LinkConfig::default() });
    world.b.stack.listen(4000).unwrap();
    let now = world.now();
    for _ in 0..16 {
        world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 300_000);
    }
    let all = |w: &mut World| {
        w.b.streams.len() == 16 && w.b.streams.iter().all(|s| s.received.next_offset() == 300_000)
    };
    assert!(world.run(60_000_000, all));
}

/// The host that closes first enters TIME-WAIT, and a peer can cause this any number of times. Therefore a
/// new connection at the limit replaces the oldest connection in TIME-WAIT, but no other connection.
#[test]
fn the_oldest_in_time_wait_makes_room_and_no_other_connection_does() {
    let (a, mut b) = (config(MAC_A, 1), config(MAC_B, 2));
    b.limits.connections = 4;
    let mut world = World::new(&LinkConfig::default(), a, b);
    world.b.stack.listen(4000).unwrap();
    world.b.serve = 100;
    let connect = |world: &mut World| {
        let now = world.now();
        let stream = world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 0);
        world.a.keep_open(stream);
        world.run(100_000, |w| w.a.streams[stream].peer_closed)
    };
    for n in 0..20 {
        assert!(connect(&mut world), "connection {n}");
        let (now, conn) = (world.now(), world.a.streams[n].conn);
        world.a.stack.close(now, conn);
        assert!(world.run(100_000, |w| w.b.streams[n].closed.is_some()), "connection {n} does not end");
    }
    assert_eq!(world.b.stack.counters().time_wait_recycled, 16);
    // The next four connections stay in FIN-WAIT-2.
    for n in 20..24 {
        assert!(connect(&mut world), "connection {n}");
    }
    assert!(!connect(&mut world), "nobody else makes room");
    let counters = world.b.stack.counters();
    assert_eq!((counters.time_wait_recycled, counters.rx_syn_dropped), (20, 1));
}

#[test]
fn the_backlog_bounds_half_open_connections_and_a_reset_makes_room() {
    let mut limited = config(MAC_A, 1);
    limited.limits.backlog = 5;
    limited.limits.syn_cookies = false;
    let mut tap = listening(limited);
    let syn = |port, control| craft::segment(TO_A, (B, port), (A, 80), control);
    for port in 1000..1020 {
        tap.inject(&syn(port, TcpControl::Syn));
    }
    let answers = tap.frames();
    assert_eq!(answers.iter().filter(|f| flags(f) == SYN_ACK).count(), 5);
    assert_eq!(tap.host.stack.counters().rx_syn_dropped, 15);
    // An RST with the next expected sequence number ends a half-open connection. Therefore one of the next
    // two SYNs is answered.
    let mut reset = craft::segment(TO_A, (B, 1000), (A, 80), TcpControl::Rst);
    craft::set_tcp_seq(&mut reset, 8);
    tap.inject(&reset);
    tap.inject(&syn(1010, TcpControl::Syn));
    tap.inject(&syn(1011, TcpControl::Syn));
    let answers = tap.frames();
    assert_eq!(answers.iter().filter(|f| flags(f) == SYN_ACK).count(), 1);
    assert_eq!(tap.host.stack.counters().rx_syn_dropped, 16);
}

/// SYNs from addresses that do not exist, to port 4000 of host B.
fn flood(world: &mut World, syns: u16) {
    for n in 0..syns {
        let [high, low] = n.to_be_bytes();
        let from = IpAddress::Ipv4(Ipv4Address::new(10, 0, 100 + high, low));
        let syn = craft::segment([MAC_A, MAC_B], (from, 1000 + n), (B, 4000), TcpControl::Syn);
        let mut frame = world.a.port.mempool().alloc().unwrap();
        assert!(frame.append_slice(&syn));
        let now = world.now();
        world.b.stack.input(now, frame);
    }
}

#[test]
fn a_flood_of_syns_keeps_nobody_out() {
    for sack in [false, true] {
        let mut limited = config(MAC_B, 2);
        limited.addresses[0] = "10.0.0.2/16".parse().unwrap();
        limited.limits.backlog = 5;
        let mut client = config(MAC_A, 1);
        client.tcp.sack = sack;
        // Without timestamps, the cookie encodes only the MSS.
        client.tcp.timestamps = sack;
        let mut world = World::new(&LinkConfig::default(), client, limited);
        let listener = world.b.stack.listen(4000).unwrap();
        world.b.serve = 100_000;
        flood(&mut world, 40);
        assert_eq!(world.b.stack.listener_counters(listener).unwrap().1, 5);
        assert_eq!(world.b.stack.counters().tx_syn_cookies, 35);
        let now = world.now();
        world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 100_000);
        let done = |w: &mut World| {
            flood(w, 3);
            w.a.streams[0].received.next_offset() == 100_000
                && w.b.streams.first().is_some_and(|s| s.received.next_offset() == 100_000)
        };
        assert!(world.run(30_000_000, done));
        let counters = world.b.stack.counters();
        assert_eq!((counters.rx_syn_cookies, counters.rx_syn_dropped), (1, 0));
        assert!(world.b.stack.listener_counters(listener).unwrap().1 <= 5);
    }
}

/// An engine receives four bursts before it transmits. SYNs beyond the backlog are still answered, with
/// cookies. When the queue of answers is full, further SYNs are dropped, and the counters show the drops.
#[test]
fn syns_of_four_bursts_are_answered_before_the_next_transmission() {
    const ANSWERED: u16 = 4 * dp::BURST as u16;
    let mut limited = config(MAC_A, 1);
    limited.limits.backlog = 1;
    let mut tap = listening(limited);
    let mut arrive = |syns: std::ops::Range<u16>| {
        for n in syns {
            let syn = craft::segment(TO_A, (B, 1000 + n), (A, 80), TcpControl::Syn);
            let mut frame = tap.host.port.mempool().alloc().unwrap();
            assert!(frame.append_slice(&syn));
            let now = tap.now();
            tap.host.stack.input(now, frame);
        }
        let counters = tap.host.stack.counters();
        (counters.tx_syn_cookies, counters.rx_syn_dropped)
    };
    // The first connection uses the only place in the backlog.
    assert_eq!(arrive(0..1 + ANSWERED), (ANSWERED.into(), 0));
    assert_eq!(arrive(1 + ANSWERED..4 + ANSWERED), (ANSWERED.into(), 3));
    let answers = tap.frames();
    let syn_acks = answers.iter().filter(|frame| flags(frame) == SYN_ACK).count();
    assert_eq!(syn_acks, 1 + usize::from(ANSWERED));
}

#[test]
fn an_ack_that_brings_no_cookie_of_ours_is_refused() {
    let mut limited = config(MAC_A, 1);
    limited.limits.backlog = 1;
    let mut tap = Tap::new(limited);
    tap.host.stack.listen(80).unwrap();
    for port in [1000, 1001] {
        tap.inject(&craft::segment(TO_A, (B, port), (A, 80), TcpControl::Syn));
    }
    tap.frames();
    tap.inject(&craft::segment(TO_A, (B, 1001), (A, 80), TcpControl::None));
    let answers = tap.frames();
    assert!(answers.iter().any(|frame| flags(frame) & 0x04 != 0), "{answers:?}");
    let counters = tap.host.stack.counters();
    assert_eq!((counters.tx_syn_cookies, counters.rx_syn_cookies, counters.rx_no_connection), (1, 0, 1));
}

/// Sequence number of a TCP segment over IPv4.
fn seq(frame: &[u8]) -> i32 {
    i32::from_be_bytes(*frame[14 + 20 + 4..].first_chunk().unwrap())
}

#[test]
fn bytes_that_overtake_the_acknowledgement_of_a_cookie_do_not_refuse_the_connection() {
    let mut limited = config(MAC_A, 1);
    limited.limits.backlog = 1;
    let mut tap = listening(limited);
    for port in [1000, 1001] {
        tap.inject(&craft::segment(TO_A, (B, port), (A, 80), TcpControl::Syn));
    }
    let answers = tap.frames();
    let cookie = answers.iter().find(|frame| frame.len() > 38 && frame[36..38] == 1001_u16.to_be_bytes());
    let next = Some(seq(cookie.expect("a SYN-ACK")).wrapping_add(1));
    let send = |control, ack, seq, payload: &[u8]| {
        craft::answer(TO_A, (B, 1001), (A, 80), control, (seq, ack), payload)
    };
    tap.inject(&send(TcpControl::Fin, next, 17, b""));
    tap.inject(&send(TcpControl::None, next, 11, b"second"));
    assert!(tap.frames().is_empty(), "no RST");
    // Bytes may arrive before the acknowledgement of the cookie. But a segment without bytes, and a segment
    // whose acknowledgement number is far from the cookie, are answered with an RST.
    tap.inject(&send(TcpControl::None, next, 11, b""));
    tap.inject(&send(TcpControl::None, next.map(|ack| ack.wrapping_add(1 << 29)), 11, b"second"));
    assert_eq!(tap.frames().iter().filter(|frame| flags(frame) == RST).count(), 2);
    tap.inject(&send(TcpControl::None, next, 8, b"1st"));
    assert_eq!(tap.host.stack.counters().rx_syn_cookies, 1);
}

/// A SYN was answered with a cookie. Before the sender of the SYN receives the cookie, the SYN arrives again,
/// and the backlog has space now. The sender acknowledges the cookie, and receives a second SYN-ACK later.
#[test]
fn a_cookie_is_taken_although_the_syn_came_again_and_found_room() {
    let bytes: Vec<u8> = (0..9).map(byte).collect();
    for overtakes in [false, true] {
        let mut limited = config(MAC_A, 1);
        limited.limits.backlog = 1;
        let mut tap = Tap::new(limited);
        let listener = tap.host.stack.listen(80).unwrap();
        tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
        tap.frames();
        let send = |port, control, seq, ack, payload: &[u8]| {
            craft::answer(TO_A, (B, port), (A, 80), control, (seq, ack), payload)
        };
        let of = |frames: &[Vec<u8>], port: u16| {
            let is_its = |frame: &&Vec<u8>| flags(frame) == SYN_ACK && frame[36..38] == port.to_be_bytes();
            seq(frames.iter().find(is_its).expect("a SYN-ACK")).wrapping_add(1)
        };
        tap.inject(&send(1000, TcpControl::Syn, 7, None, b""));
        tap.inject(&send(1001, TcpControl::Syn, 7, None, b""));
        let answers = tap.frames();
        let (first, cookie) = (of(&answers, 1000), of(&answers, 1001));
        tap.inject(&send(1000, TcpControl::None, 8, Some(first), b""));
        tap.inject(&send(1001, TcpControl::Syn, 7, None, b""));
        let other = of(&tap.frames(), 1001);
        assert_ne!(other, cookie);
        assert_eq!(tap.host.stack.listener_counters(listener).unwrap().1, 1);
        if overtakes {
            tap.inject(&send(1001, TcpControl::None, 11, Some(cookie), &bytes[3..9]));
        }
        tap.inject(&send(1001, TcpControl::None, 8, Some(cookie), &bytes[..3]));
        // This is the challenge ACK with which the peer answers the second SYN-ACK.
        tap.inject(&send(1001, TcpControl::None, 11, Some(cookie), b""));
        let answers = tap.frames();
        assert!(answers.iter().all(|frame| flags(frame) & RST == 0), "{answers:?}");
        let counters = tap.host.stack.counters();
        assert_eq!((counters.tx_syn_cookies, counters.rx_syn_cookies), (1, 1));
        assert_eq!(tap.host.stack.listener_counters(listener).unwrap().1, 0);
        // If the acknowledgement of an ordinary SYN-ACK carries bytes, they are accepted, whatever the
        // sequence number of the SYN-ACK is.
        let unmatched = counters.rx_no_connection;
        for port in 2000..2100 {
            tap.inject(&send(port, TcpControl::Syn, 7, None, b""));
            let number = of(&tap.frames(), port);
            tap.inject(&send(port, TcpControl::None, 8, Some(number), &bytes));
            tap.frames();
        }
        assert_eq!(tap.host.stack.counters().rx_no_connection, unmatched);
        // A segment that acknowledges neither of the two SYN-ACKs is answered with an RST.
        tap.inject(&send(1002, TcpControl::Syn, 7, None, b""));
        tap.frames();
        tap.inject(&send(1002, TcpControl::None, 8, Some(first), b""));
        assert_eq!(tap.frames().iter().filter(|frame| flags(frame) == RST).count(), 1);
    }
}

#[test]
fn a_connection_out_of_time_wait_begins_beyond_what_the_last_one_used() {
    let mut tap = listening(config(MAC_A, 1));
    tap.host.serve = 100;
    let segment = |control, seq, ack| craft::answer(TO_A, (B, 1000), (A, 80), control, (seq, ack), &[]);
    tap.inject(&segment(TcpControl::Syn, 7, None));
    let first = seq(tap.frames().last().unwrap());
    tap.inject(&segment(TcpControl::None, 8, Some(first.wrapping_add(1))));
    tap.frames();
    // `used` covers a hundred bytes and the FIN.
    let used = first.wrapping_add(102);
    tap.inject(&segment(TcpControl::None, 8, Some(used)));
    tap.inject(&segment(TcpControl::Fin, 8, Some(used)));
    tap.frames();
    tap.inject(&segment(TcpControl::Syn, 1000, None));
    let answers = tap.frames();
    let syn_ack = answers.iter().find(|frame| flags(frame) == SYN_ACK).expect("a new connection");
    assert!(seq(syn_ack).wrapping_sub(used) > 0, "{} after {used}", seq(syn_ack));
}

/// If a SYN cannot be answered, it must not end the old connection, because the peer may have to retransmit
/// its FIN. A cookie cannot be the answer, because the old connection may have used the cookie's sequence
/// number.
#[test]
fn a_syn_that_finds_no_room_leaves_the_connection_in_time_wait() {
    for syn_cookies in [false, true] {
        let mut limited = config(MAC_A, 1);
        limited.limits.backlog = 1;
        limited.limits.syn_cookies = syn_cookies;
        let mut tap = listening(limited);
        let from =
            |port, control, seq, ack| craft::answer(TO_A, (B, port), (A, 80), control, (seq, ack), &[]);
        tap.inject(&from(1000, TcpControl::Syn, 7, None));
        let first = seq(tap.frames().last().unwrap());
        tap.inject(&from(1000, TcpControl::None, 8, Some(first.wrapping_add(1))));
        tap.frames();
        let used = first.wrapping_add(2);
        let fin = from(1000, TcpControl::Fin, 8, Some(used));
        tap.inject(&fin);
        assert_eq!(tap.frames().len(), 1, "it is acknowledged");
        // Another connection uses the listener's only place.
        tap.inject(&from(1001, TcpControl::Syn, 7, None));
        assert_eq!(tap.frames().len(), 1);
        tap.inject(&from(1000, TcpControl::Syn, 1000, None));
        assert_eq!((tap.frames().len(), tap.host.stack.counters().rx_syn_dropped), (0, 1));
        tap.inject(&fin);
        let answers = tap.frames();
        assert_eq!((answers.len(), flags(&answers[0])), (1, 0x10), "the old connection is there");
        tap.inject(&from(1001, TcpControl::Rst, 8, None));
        tap.inject(&from(1000, TcpControl::Syn, 1000, None));
        let answers = tap.frames();
        assert_eq!((answers.len(), flags(&answers[0])), (1, SYN_ACK), "there is room now");
        assert!(seq(&answers[0]).wrapping_sub(used) > 0);
    }
}

/// At the limit of connections, only a SYN that becomes a connection may end the oldest connection in
/// TIME-WAIT. A SYN that is dropped or answered with a cookie must not end a connection.
#[test]
fn a_syn_beyond_the_backlog_leaves_the_connections_in_time_wait() {
    for syn_cookies in [false, true] {
        let mut limited = config(MAC_A, 1);
        (limited.limits.backlog, limited.limits.connections) = (1, 2);
        limited.limits.syn_cookies = syn_cookies;
        let mut tap = listening(limited);
        let from =
            |port, control, seq, ack| craft::answer(TO_A, (B, port), (A, 80), control, (seq, ack), &[]);
        tap.inject(&from(1000, TcpControl::Syn, 7, None));
        let first = seq(tap.frames().last().unwrap());
        tap.inject(&from(1000, TcpControl::None, 8, Some(first.wrapping_add(1))));
        tap.frames();
        let fin = from(1000, TcpControl::Fin, 8, Some(first.wrapping_add(2)));
        tap.inject(&fin);
        assert_eq!(tap.frames().len(), 1, "it is acknowledged");
        // Another connection uses the listener's only place, and the last slot.
        tap.inject(&from(1001, TcpControl::Syn, 7, None));
        assert_eq!(tap.frames().len(), 1);
        tap.inject(&from(1002, TcpControl::Syn, 7, None));
        assert_eq!(tap.frames().len(), usize::from(syn_cookies));
        let counters = tap.host.stack.counters();
        let counts = (counters.tx_syn_cookies, counters.rx_syn_dropped, counters.time_wait_recycled);
        assert_eq!(counts, (syn_cookies.into(), (!syn_cookies).into(), 0));
        tap.inject(&fin);
        let answers = tap.frames();
        assert_eq!((answers.len(), flags(&answers[0])), (1, 0x10), "the old connection is there");
        // When the place is free, the next SYN becomes a connection, and ends the connection in TIME-WAIT.
        tap.inject(&from(1001, TcpControl::Rst, 8, None));
        tap.inject(&from(1003, TcpControl::Syn, 7, None));
        assert_eq!(flags(tap.frames().last().unwrap()), SYN_ACK);
    }
}

#[test]
fn a_listener_that_goes_drops_what_is_half_open() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let listener = tap.host.stack.listen(80).unwrap();
    tap.inject(&craft::segment(TO_A, (B, 1000), (A, 80), TcpControl::Syn));
    tap.host.stack.unlisten(listener);
    tap.host.stack.unlisten(listener);
    tap.inject(&craft::segment(TO_A, (B, 1001), (A, 80), TcpControl::Syn));
    // The RST is sent back to the sender of the SYN, without address resolution.
    let frames = tap.frames();
    let tcp: Vec<_> = frames.iter().filter(|f| f[12..14] == [8, 0]).collect();
    assert_eq!(tcp.len(), 1);
    assert_eq!((flags(tcp[0]) & 0x04, &tcp[0][0..6]), (0x04, &MAC_B.0[..]));
    assert!(tap.host.stack.listen(80).is_ok());
}

#[test]
fn limits_have_errors() {
    let mut limited = config(MAC_A, 1);
    limited.limits.connections = 2;
    limited.limits.listeners = 1;
    limited.addresses.pop();
    let mut tap = Tap::new(limited);
    let now = tap.now();
    let stack = &mut tap.host.stack;
    assert!(stack.listen(80).is_ok());
    assert_eq!(stack.listen(80), Err(ListenError::InUse(80)));
    assert_eq!(stack.listen(81), Err(ListenError::NoListener(1)));
    let to = |remote: &str| remote.parse().unwrap();
    assert!(stack.connect(now, to("10.0.0.2:1"), Some(5)).is_ok());
    assert_eq!(stack.connect(now, to("10.0.0.2:1"), Some(5)), Err(ConnectError::InUse));
    for nowhere in
        ["192.0.2.1:1", "[2001:db8::2]:1", "10.0.0.255:1", "10.0.0.1:1", "224.0.0.1:1", "0.0.0.0:1"]
    {
        let error = stack.connect(now, to(nowhere), None);
        assert!(matches!(error, Err(ConnectError::NoRoute(_))), "{nowhere}: {error:?}");
    }
    assert!(stack.connect(now, to("10.0.0.2:1"), None).is_ok());
    assert_eq!(stack.connect(now, to("10.0.0.2:1"), None), Err(ConnectError::NoConnection(2)));
}

#[test]
fn while_too_many_events_wait_a_syn_is_lost() {
    let mut limited = config(MAC_A, 1);
    limited.limits.events = 2;
    let mut tap = Tap::new(limited);
    tap.host.stack.listen(80).unwrap();
    tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
    let segment = |port, control, seq, ack| craft::answer(TO_A, (B, port), (A, 80), control, (seq, ack), &[]);
    tap.inject(&segment(1000, TcpControl::Syn, 7, None));
    let first = seq(tap.frames().last().unwrap());
    tap.inject(&segment(1000, TcpControl::None, 8, Some(first.wrapping_add(1))));
    tap.inject(&segment(1000, TcpControl::Rst, 8, None));
    for (dropped, answers) in [(1, 0), (1, 1)] {
        tap.inject(&segment(1001, TcpControl::Syn, 7, None));
        assert_eq!(tap.host.stack.counters().rx_syn_dropped, dropped);
        assert_eq!(tap.frames().len(), answers);
    }
}

#[test]
fn a_dead_id_does_nothing() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let now = tap.now();
    let stack = &mut tap.host.stack;
    let conn = stack.connect(now, "10.0.0.2:1".parse().unwrap(), None).unwrap();
    assert!(stack.info(conn).is_some());
    stack.abort(now, conn);
    assert!(stack.info(conn).is_none());
    stack.close(now, conn);
    stack.abort(now, conn);
    stack.release(conn, 5);
    assert!(stack.sender(now, conn).is_err());
    assert!(stack.send(now, conn, &[1]).is_err());
    let events: Vec<_> = std::iter::from_fn(|| stack.event()).collect();
    assert_eq!(events.len(), 1);
    let other = stack.connect(now, "10.0.0.2:1".parse().unwrap(), None).unwrap();
    assert_ne!(other, conn);
}

#[test]
fn a_listener_admits_whom_its_filter_admits_and_counts_the_others() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let filter = AddressFilter {
        allow: vec!["10.0.0.0/24".parse().unwrap()],
        deny: vec!["10.0.0.64/26".parse().unwrap()],
    };
    let listener =
        tap.host.stack.listen_with(80, ListenConfig { filter, ..ListenConfig::default() }).unwrap();
    let from = |last: u8| craft::segment(TO_A, (address(last), 1000), (A, 80), TcpControl::Syn);
    for (last, admitted) in [(2, true), (64, false), (127, false), (128, true)] {
        tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, v4(last), A4));
        tap.frames();
        tap.inject(&from(last));
        // A refusal is silent: no RST is sent.
        assert_eq!(tap.frames().len(), usize::from(admitted), "10.0.0.{last}");
    }
    let (counters, half_open) = tap.host.stack.listener_counters(listener).unwrap();
    assert_eq!((counters.filtered, half_open), (2, 2));
    assert_eq!(tap.host.stack.counters().rx_syn_dropped, 2);
}

#[test]
fn a_barred_address_is_not_answered_until_its_time_is_over_and_others_are() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let listener = tap.host.stack.listen(80).unwrap();
    for last in [2, 3] {
        tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, v4(last), A4));
    }
    tap.frames();
    let now = tap.now();
    tap.host.stack.block_address(now, listener, address(2).into(), now + Duration::from_millis(500));
    let answered = |tap: &mut Tap, last: u8| {
        tap.inject(&craft::segment(TO_A, (address(last), 1000), (A, 80), TcpControl::Syn));
        !tap.frames().is_empty()
    };
    assert!(!answered(&mut tap, 2));
    assert!(answered(&mut tap, 3), "another address");
    tap.now_us += 499_999;
    assert!(!answered(&mut tap, 2));
    tap.now_us += 1;
    assert!(answered(&mut tap, 2), "the same SYN again");
    let (counters, half_open) = tap.host.stack.listener_counters(listener).unwrap();
    assert_eq!((counters.blocked, half_open), (2, 2));
}

#[test]
fn one_address_leaves_room_for_others_in_the_backlog() {
    let mut tap = Tap::new(config(MAC_A, 1));
    let config =
        ListenConfig { half_open: Some(6), half_open_per_address: Some(4), ..ListenConfig::default() };
    let listener = tap.host.stack.listen_with(80, config).unwrap();
    let syn = |last, port| craft::segment(TO_A, (address(last), port), (A, 80), TcpControl::Syn);
    for port in 1000..1010 {
        tap.inject(&syn(2, port));
    }
    for port in 1000..1003 {
        tap.inject(&syn(3, port));
    }
    let (counters, half_open) = tap.host.stack.listener_counters(listener).unwrap();
    assert_eq!((counters.half_open_address_full, counters.half_open_full, half_open), (6, 1, 6));
    // The end of a connection makes space, also under the limit of its address.
    let mut reset = craft::segment(TO_A, (address(2), 1000), (A, 80), TcpControl::Rst);
    craft::set_tcp_seq(&mut reset, 8);
    tap.inject(&reset);
    tap.inject(&syn(2, 2000));
    let (counters, half_open) = tap.host.stack.listener_counters(listener).unwrap();
    assert_eq!((counters.half_open_address_full, counters.half_open_full, half_open), (6, 1, 6));
    tap.host.stack.unlisten(listener);
    assert_eq!(tap.host.stack.listener_counters(listener), None);
}

fn v4(last: u8) -> Ipv4Address {
    Ipv4Address::new(10, 0, 0, last)
}

fn address(last: u8) -> IpAddress {
    IpAddress::Ipv4(v4(last))
}

/// A SYN cookie is sent back to the source of its SYN. Therefore a connection may begin although its next hop
/// does not answer address resolution. The RST of such a connection cannot be sent, and is dropped together
/// with the connection.
#[test]
fn a_reset_to_an_unresolved_neighbour_is_dropped_with_its_connection() {
    let mut limited = config(MAC_A, 1);
    limited.limits.backlog = 1;
    let mut tap = Tap::new(limited);
    tap.host.stack.listen(80).unwrap();
    tap.inject(&craft::segment(TO_A, (IpAddress::v4(10, 0, 0, 3), 1000), (A, 80), TcpControl::Syn));
    tap.inject(&craft::segment(TO_A, (B, 1001), (A, 80), TcpControl::Syn));
    let answers = tap.frames();
    let cookie = answers.iter().find(|frame| frame.len() > 38 && frame[36..38] == 1001_u16.to_be_bytes());
    let next = seq(cookie.expect("a SYN-ACK")).wrapping_add(1);
    tap.inject(&craft::answer(TO_A, (B, 1001), (A, 80), TcpControl::None, (8, Some(next)), &[]));
    tap.frames();
    assert!(tap.host.streams[0].established);
    let (now, conn) = (tap.now(), tap.host.streams[0].conn);
    tap.host.stack.abort(now, conn);
    tap.frames_for(60_000_000);
    assert_eq!(tap.host.stack.usage().connections, 0);
}
