//! Tests of the stack's limits. The event queue does not grow after the connections are created, even if the
//! user takes no events. No connection is opened while too many events wait. A stack without packet buffers
//! is polled rarely.

use std::net::SocketAddr;

use dp::Mempool;

use super::{ConnectError, Stack};
use crate::{AddressProbing, CloseReason, Event, Instant, Limits, StackConfig, TcpConfig};

const LIMIT: usize = 16;
const CONNECTIONS: usize = 3000;

/// Returns a stack alone on its link, and the time.
fn stack() -> (Stack, Instant) {
    stack_of(1500)
}

fn stack_of(mtu: u16) -> (Stack, Instant) {
    let config = StackConfig {
        mac: crate::facade::EthernetAddress([2, 0, 0, 0, 0, 1]),
        vlan: None,
        addresses: ["10.0.0.1/16".parse().expect("an address")].into_iter().collect(),
        gateways: Default::default(),
        address_probing: AddressProbing::Off,
        derived_neighbors: None,
        loopback: false,
        mtu,
        offloads: Default::default(),
        limits: Limits { events: LIMIT, connections: CONNECTIONS, ..Limits::default() },
        tcp: TcpConfig::default(),
        seed: [1; 32],
    };
    (Stack::new(config, Mempool::heap("events", 64, 2048)), Instant::from_secs(1))
}

/// Returns the `n`th endpoint. No host answers queries for its address.
fn remote(n: usize) -> SocketAddr {
    let [.., high, low] = n.to_be_bytes();
    ([10, 0, 1 + high, low], 80).into()
}

#[test]
fn connections_that_end_at_once_are_all_told_of_in_memory_taken_when_they_began() {
    let (mut stack, now) = stack();
    let connect = |n| stack.connect(now, remote(n), None).expect("a connection");
    let conns: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let capacity = stack.events.capacity();
    for conn in conns {
        stack.abort(now, conn);
    }
    assert_eq!(stack.usage().events, CONNECTIONS);
    assert_eq!(stack.events.capacity(), capacity);
    let closed = std::iter::from_fn(|| stack.event())
        .filter(|event| matches!(event, Event::Closed { reason: CloseReason::Aborted, .. }));
    assert_eq!(closed.count(), CONNECTIONS);
}

/// A segment has to fit a buffer. Large buffers count if each long message gets such a buffer.
#[test]
fn the_announced_mss_fits_the_buffers() {
    let bulk = || Mempool::heap("bulk", 8, 65_100);
    let remote = "10.0.0.2".parse::<std::net::IpAddr>().expect("an address").into();
    for (mtu, with_bulk, mss) in [
        (1500, None, 1460),
        (2088, None, 2048),
        (65_000, None, 2048),
        (65_000, Some(None), 2048),
        (1500, Some(Some(4096)), 1460),
        (65_000, Some(Some(4096)), 64_960),
    ] {
        let (mut stack, _) = stack_of(mtu);
        if let Some(long_message) = with_bulk {
            stack.set_bulk_pool(bulk(), long_message);
        }
        assert_eq!(stack.own_mss(&remote), mss, "{mtu} {with_bulk:?}");
    }
}

#[test]
fn nobody_connects_while_too_many_events_wait() {
    let (mut stack, now) = stack();
    let begin_and_end = |stack: &mut Stack| {
        let conn = stack.connect(now, remote(0), Some(1))?;
        stack.abort(now, conn);
        Ok(())
    };
    for _ in 0..LIMIT {
        assert_eq!(begin_and_end(&mut stack), Ok(()));
    }
    assert_eq!(begin_and_end(&mut stack), Err(ConnectError::EventsWait(LIMIT)));
    assert!(stack.event().is_some());
    assert_eq!(begin_and_end(&mut stack), Ok(()));
}

/// No event reports that a buffer is free again. The stack tries to send less and less often, and connections
/// time out as usual.
#[test]
fn without_buffers_few_polls_are_requested_and_connections_end() {
    let (mut stack, start) = stack();
    let conn = stack.connect(start, remote(0), None).expect("a connection");
    let held: Vec<_> = std::iter::from_fn(|| stack.pool.alloc()).collect();
    assert!(!held.is_empty());
    let (mut now, mut polls) = (start, 0);
    let reason = loop {
        let mut out = dp::Burst::new();
        stack.poll(now);
        assert!(!stack.transmit(now, &mut out), "nothing can be sent");
        assert!(out.is_empty());
        if let Some(Event::Closed { conn: closed, reason }) = stack.event() {
            assert_eq!(closed, conn);
            break reason;
        }
        polls += 1;
        now = stack.next_deadline(now).expect("something waits");
        assert!(now <= start + crate::Duration::from_secs(11), "it does not end");
    };
    // Address resolution also failed, because there were no buffers. The close reason is that of the timeout
    // that expired first.
    assert!(matches!(reason, CloseReason::TimedOut | CloseReason::NoNeighbor), "{reason:?}");
    let most = (now - start).total_millis() * 11 / 10 + 200;
    assert!(polls < most, "{polls} polls in {} ms", (now - start).total_millis());
    drop(held);
    assert!(stack.next_deadline(now).is_none_or(|at| at >= now));
}
