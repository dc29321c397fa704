//! Tests of neighbours whose Ethernet address is derived from their IP address, and of neighbours that have
//! gone according to a port.

use dp::Checksum;
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{CloseReason, StackConfig};

use crate::harness::config;
use crate::relay::{Relay, Tap};

/// Returns the Ethernet address of 10.0.0.n.
fn mac(n: u8) -> EthernetAddress {
    EthernetAddress([2, 7, 10, 0, 0, n])
}

fn derived(n: u8) -> StackConfig {
    StackConfig { derived_neighbors: Some([2, 7]), ..config(mac(n), n) }
}

/// Returns two hosts that have connected without address resolution. The second host listens, and the streams
/// stay open.
fn connected() -> Relay {
    let mut relay = Relay::new(derived(1), derived(2));
    relay.b.host.stack.listen(4000).unwrap();
    relay.a.host.keep_all_open();
    relay.b.host.keep_all_open();
    let now = relay.a.now();
    relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), 100);
    let carry = |from_a: bool, frame: Vec<u8>| {
        let (to, from) = if from_a { (mac(2), mac(1)) } else { (mac(1), mac(2)) };
        assert_eq!((&frame[..6], &frame[6..12], &frame[12..14]), (&to.0[..], &from.0[..], &[8, 0][..]));
        vec![(frame, Checksum::Unknown)]
    };
    let arrived = |relay: &mut Relay| {
        relay.b.host.streams.first().is_some_and(|stream| stream.received.next_offset() == 100)
    };
    assert!(relay.run(1_000_000, carry, arrived));
    relay
}

#[test]
fn the_connections_of_a_neighbor_that_is_gone_end_at_once_and_no_others() {
    let mut relay = connected();
    let now = relay.a.now();
    let a = &mut relay.a.host;
    let other = a.connect(now, "10.0.0.3:4000".parse().unwrap(), 0);
    let again = a.connect(now, "10.0.0.2:4001".parse().unwrap(), 0);
    // No connection sends to these two Ethernet addresses.
    a.stack.end_neighbor(now, mac(9));
    a.stack.end_neighbor(now, EthernetAddress::BROADCAST);
    assert!(!a.stack.has_events());
    a.stack.end_neighbor(now, mac(2));
    let frames = relay.a.frames();
    assert!(frames.iter().all(|frame| frame[..6] == mac(3).0), "nothing more to it, no RST either");
    let closed = |stream: usize| relay.a.host.streams[stream].closed;
    assert_eq!(
        [0, again, other].map(closed),
        [Some(CloseReason::LinkDown), Some(CloseReason::Unreachable), None]
    );
    assert_eq!(relay.a.host.stack.usage().connections, 1);
    // A second report has no effect.
    relay.a.host.stack.end_neighbor(now, mac(2));
    assert!(!relay.a.host.stack.has_events());
    // The accepting side receives the same event.
    let now = relay.b.now();
    relay.b.host.stack.end_neighbor(now, mac(1));
    relay.b.frames();
    assert_eq!(relay.b.host.streams[0].closed, Some(CloseReason::LinkDown));
}

/// Connections in TIME-WAIT also end with their neighbour, because another process may use the neighbour's
/// address later.
#[test]
fn nothing_is_left_of_a_neighbor_that_is_gone() {
    let mut relay = connected();
    for stream in [true, false] {
        let tap = if stream { &mut relay.a } else { &mut relay.b };
        let (now, conn) = (tap.now(), tap.host.streams[0].conn);
        tap.host.stack.close(now, conn);
    }
    let carry = |_: bool, frame: Vec<u8>| vec![(frame, Checksum::Unknown)];
    let closed = |relay: &mut Relay| {
        relay.a.host.streams[0].closed.is_some() && relay.b.host.streams[0].closed.is_some()
    };
    assert!(relay.run(1_000_000, carry, closed));
    assert!(relay.a.host.stack.usage().connections > 0, "in TIME-WAIT");
    let now = relay.a.now();
    relay.a.host.stack.end_neighbor(now, mac(2));
    assert!(relay.a.host.stack.event().is_none());
    assert_eq!(relay.a.host.stack.usage().connections, 0);
}

/// A half-open connection ends without an event, and its place in the backlog is free again.
#[test]
fn a_half_open_connection_ends_with_its_neighbor() {
    let mut relay = Relay::new(derived(1), derived(2));
    let listener = relay.b.host.stack.listen(4000).unwrap();
    let now = relay.a.now();
    relay.a.host.connect(now, "10.0.0.2:4000".parse().unwrap(), 0);
    for syn in relay.a.frames() {
        relay.b.inject(&syn);
    }
    let half_open = |tap: &Tap| tap.host.stack.listener_counters(listener).unwrap().1;
    assert_eq!((half_open(&relay.b), relay.b.host.stack.usage().connections), (1, 1));
    relay.b.host.stack.end_neighbor(now, mac(1));
    assert_eq!((half_open(&relay.b), relay.b.host.stack.usage().connections), (0, 0));
    assert!(!relay.b.host.stack.has_events() && relay.b.frames().is_empty());
}

#[test]
fn without_a_port_each_connection_ends_at_once_and_so_does_a_later_one() {
    let mut relay = connected();
    let now = relay.a.now();
    let a = &mut relay.a.host;
    let waits = a.connect(now, "10.0.0.3:4000".parse().unwrap(), 0);
    a.stack.end_port(now);
    assert!(relay.a.frames().is_empty(), "no RST either");
    let a = &mut relay.a.host;
    let later = a.connect(now, "10.0.0.2:4001".parse().unwrap(), 0);
    assert_eq!(a.stack.next_timer(now), Some(now), "the later one ends in the next poll");
    a.stack.set_link(now, true);
    a.stack.poll(now);
    assert!(relay.a.frames().is_empty(), "nothing can be sent");
    let closed = |stream: usize| relay.a.host.streams[stream].closed;
    assert_eq!([0, waits, later].map(closed), [Some(CloseReason::PortGone); 3]);
    assert_eq!(relay.a.host.stack.usage().connections, 0);
    assert_ne!(relay.a.host.stack.next_timer(now), Some(now), "nothing is left to do");
}
