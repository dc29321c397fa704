//! Tests of a stack that connects to its own addresses, on a port that returns such frames to the stack.

use dp::Loopback;
use dp::link::{LinkConfig, pair};
use smoltcp::wire::TcpControl;
use tcp_lite::facade::Ipv4Address;
use tcp_lite::{CloseReason, ConnectError, StackConfig};

use crate::craft;
use crate::harness::{Host, MAC_A, MAC_B, World, config};
use crate::relay::Tap;

/// Returns two hosts. `a` may connect to itself.
fn world() -> World {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let a = StackConfig { loopback: true, ..config(MAC_A, 1) };
    World {
        a: Host::new(a, Box::new(Loopback::new(port_a))),
        b: Host::new(config(MAC_B, 2), port_b),
        now_us: 1_000_000,
    }
}

/// Both endpoints are streams of `a`: the stream that connects, and the stream that its listener accepts.
fn exchange(remote: &str) {
    let mut world = world();
    world.a.stack.listen(4000).unwrap();
    world.a.serve = 300_000;
    let now = world.now();
    world.a.connect(now, remote.parse().unwrap(), 500_000);
    let over = |world: &mut World| {
        world.a.streams.len() == 2 && world.a.streams.iter().all(|stream| stream.closed.is_some())
    };
    assert!(world.run(5_000_000, over), "{remote}");
    assert_eq!([0, 1].map(|stream| world.a.received(stream)), [300_000, 500_000]);
    for stream in &world.a.streams {
        assert_eq!((stream.closed, stream.peer_closed), (Some(CloseReason::Graceful), true));
    }
    let counters = world.a.stack.counters();
    assert_eq!((counters.rx_not_ours, counters.tx_retransmits, counters.rx_malformed), (0, 0, 0));
    assert_eq!(world.b.port.counters().rx_frames, 0, "nothing reaches the wire, no query either");
}

#[test]
fn a_stack_connects_to_its_own_address() {
    exchange("10.0.0.1:4000");
}

#[test]
fn a_stack_connects_to_its_own_address_of_ipv6() {
    exchange("[2001:db8::1]:4000");
}

#[test]
fn peers_on_the_wire_are_reached_as_before() {
    let mut world = world();
    world.exchange("10.0.0.2:4000", 100_000, 200_000, 5_000_000);
}

/// A connection needs two control blocks, so a socket cannot connect to itself. A SYN whose source and
/// destination are the same socket is dropped. (Such SYNs are known as the LAND attack.)
#[test]
fn no_connection_has_one_socket_at_both_ends() {
    let mut tap = Tap::new(StackConfig { loopback: true, ..config(MAC_A, 1) });
    tap.host.stack.listen(4000).unwrap();
    let (now, own) = (tap.now(), Ipv4Address::new(10, 0, 0, 1));
    let refused = tap.host.stack.connect(now, "10.0.0.1:4000".parse().unwrap(), Some(4000));
    assert_eq!(refused, Err(ConnectError::InUse));
    let ends =
        |from: u16| craft::segment([MAC_A, MAC_A], (own.into(), from), (own.into(), 4000), TcpControl::Syn);
    tap.inject(&ends(4000));
    assert_eq!(tap.host.stack.counters().rx_syn_dropped, 1);
    assert_eq!(tap.host.stack.usage().connections, 0);
    tap.inject(&ends(4001));
    assert_eq!(tap.host.stack.usage().connections, 1);
}

#[test]
fn without_loopback_our_addresses_are_no_peers() {
    let mut world = World::standard(&LinkConfig::default());
    let now = world.now();
    let refused = world.a.stack.connect(now, "10.0.0.1:4000".parse().unwrap(), None);
    assert_eq!(refused, Err(ConnectError::NoRoute([10, 0, 0, 1].into())));
}
