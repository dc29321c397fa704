//! The limit of an event channel that nobody reads: the events that the channel may lose, and the events that
//! it never loses.

use std::time::Duration;

use crate::common::{Connected, PORT, Pair, Testbed};
use iwarp::verbs::{
    CmEvent, CmEventKind, ConnParam, ConnectionError, Context, ContextConfig, ContextLimits, QpState,
};
use tcp_lite::CloseReason;

/// Returns two hosts. `max_cm_events` is the limit of the context that owns A's channel.
fn pair(max_cm_events: usize) -> Pair {
    let limits = ContextLimits { max_cm_events, ..ContextLimits::default() };
    let context = Context::new(ContextConfig { limits, ..ContextConfig::default() }).unwrap();
    let mut pair = Testbed::new().hosts();
    pair.a.channel = context.create_event_channel().unwrap();
    pair
}

fn connections(pair: &mut Pair, count: usize) -> Vec<Connected> {
    let listener = pair.listen();
    let made = (0..count).map(|_| pair.connect_again(&ConnParam::default(), &ConnParam::default())).collect();
    listener.disconnect();
    made
}

/// All connections of A end while nobody reads A's channel. The limit of the channel is smaller than the
/// number of connections. Nevertheless the channel has an event of the end, with its cause, for each
/// connection.
#[test]
fn no_end_is_lost_however_many_come_at_once() {
    for limit in [1, 2, 512] {
        let mut pair = pair(limit);
        let count = if limit == 512 { 600 } else { 40 };
        let made = connections(&mut pair, count);
        for c in &made {
            c.id_b.abort();
        }
        pair.run_us(5_000_000);
        assert_eq!((pair.a.channel.usage(), pair.a.channel.lost()), ((count, limit), 0));
        let events: Vec<CmEvent> = std::iter::from_fn(|| pair.a.channel.poll()).collect();
        assert!(pair.a.channel.is_empty() && events.len() == count);
        for c in &made {
            let mut own = events.iter().filter(|event| event.id == c.id_a);
            let reset = ConnectionError::Tcp(CloseReason::Reset);
            told!(
                own.next().expect("it has ended"),
                Disconnected { error: Some(error), .. } if error == reset
            );
            assert_eq!((own.next().is_none(), c.id_a.cause()), (true, Some(reset)));
        }
    }
}

/// For each connection, the event of the end follows the event of the start, even if both exceed the limit.
#[test]
fn events_beyond_the_limit_keep_their_order() {
    let mut pair = pair(1);
    let _listener = pair.listen();
    let dialed: Vec<_> = (0..10).map(|_| pair.dial(&ConnParam::default())).collect();
    let mut accepted = Vec::new();
    while accepted.len() < dialed.len() {
        let event = pair.event_b();
        match event.kind {
            CmEventKind::ConnectRequest { .. } => {
                let qp = pair.b.qp();
                event.id.accept(&qp, &ConnParam::default()).unwrap();
                accepted.push((qp, event.id));
            }
            CmEventKind::Established { .. } => {}
            kind => panic!("{kind:?}"),
        }
    }
    pair.run_us(1_000_000);
    for (_, id) in &accepted {
        id.disconnect();
    }
    pair.run_us(1_000_000);
    for (_, id) in &dialed {
        id.disconnect();
    }
    pair.run_us(5_000_000);
    let events: Vec<CmEvent> = std::iter::from_fn(|| pair.a.channel.poll()).collect();
    assert_eq!((events.len(), pair.a.channel.lost()), (20, 0));
    for (_, id) in &dialed {
        let own: Vec<&CmEventKind> =
            events.iter().filter(|event| event.id == *id).map(|event| &event.kind).collect();
        assert!(
            matches!(own[..], [CmEventKind::Established { .. }, CmEventKind::Disconnected { .. }]),
            "{own:?}"
        );
    }
}

/// A connect request that waits is held only by its event in the channel: without this event, the request
/// would be lost. So the ends of many connections do not displace the event.
#[test]
fn ends_of_connections_do_not_displace_a_request() {
    let mut pair = pair(8);
    let made = connections(&mut pair, 20);
    // A also listens.
    let listener = pair.a.context.create_id(&pair.a.channel);
    listener.listen(PORT, 16, Duration::from_secs(10)).unwrap();
    pair.poll();
    let (qp, id) = (pair.b.qp(), pair.b.context.create_id(&pair.b.channel));
    id.connect(&qp, pair.a.address, &ConnParam::default()).unwrap();
    pair.run_us(100_000);
    assert_eq!(pair.a.channel.usage().0, 1);
    for c in &made {
        c.id_b.abort();
    }
    pair.run_us(100_000);
    assert_eq!((pair.a.channel.usage().0, pair.a.channel.lost()), (21, 0));
    let request = told!(pair.a.channel.poll().unwrap(), ConnectRequest { .. });
    let accepting = pair.a.qp();
    request.id.accept(&accepting, &ConnParam::default()).unwrap();
    pair.run_us(100_000);
    assert_eq!((qp.state(), accepting.state()), (QpState::Rts, QpState::Rts));
}

/// A program connects and drops all handles of the connection, many times, without reading its event channel.
/// The number of waiting events is limited, and lost events are counted.
#[test]
fn events_of_identifiers_that_nobody_holds_are_bounded() {
    const LIMIT: usize = 8;
    let mut pair = pair(LIMIT);
    let held = connections(&mut pair, 1).pop().unwrap();
    let _listener = pair.listen();
    let mut most = 0;
    for _ in 0..100 {
        let dialed = pair.dial(&ConnParam::default());
        let request = pair.event_b();
        let qp = pair.b.qp();
        request.id.accept(&qp, &ConnParam::default()).unwrap();
        pair.event_b();
        drop(dialed);
        pair.run_us(100_000);
        most = most.max(pair.a.channel.usage().0);
        while pair.b.channel.poll().is_some() {}
    }
    assert!((LIMIT..=2 * (LIMIT + 1)).contains(&most), "{most} events");
    held.id_b.abort();
    pair.run_us(5_000_000);
    let events: Vec<CmEvent> = std::iter::from_fn(|| pair.a.channel.poll()).collect();
    assert_eq!(events.iter().filter(|event| event.id == held.id_a).count(), 1, "it is held");
    // Each of the 100 dropped `CmId`s had two events, and the held `CmId` has one event.
    assert_eq!(pair.a.channel.lost() + events.len() as u64, 201);
}
