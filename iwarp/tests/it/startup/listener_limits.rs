//! Tests what a listener admits, for example the limits for all connections and for each address, the
//! counters of refusals, and the resources that a stranger can reserve. Also tests the timeouts of accepted
//! connections.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::hooked::Hooks;
use crate::common::raw::{RawPair, fpdu, frame};
use crate::common::responder::Responder;
use crate::common::testbed::engine;
use crate::common::ulpdu::untagged;
use crate::common::{PORT, Pair, Testbed};
use dp::link::LinkConfig;
use dp::{Burst, Port};
use iwarp::mpa::Framer;
use iwarp::rdmap::{Terminate, TerminateError};
use iwarp::verbs::{
    CmEventKind, CmId, ConnParam, ConnectionError, Context, ContextUsage, KeepalivePolicy, ListenOptions,
    QpState, VerbsError,
};
use tcp_lite::{AddressFilter, CloseReason, Instant};

fn request() -> Vec<u8> {
    frame("Req", 0x50, 2, &[0, 8, 0, 8])
}

/// Connects once more from A to B's listener. Returns A's identifier and queue pair, and B's connect request
/// if it arrives.
fn ask(pair: &mut Pair) -> (CmId, iwarp::verbs::QueuePair, Option<CmId>) {
    let (qp, id) = pair.dial(&ConnParam::default());
    let mut asked = None;
    let mut over = false;
    pair.until(|pair| {
        asked = asked.take().or_else(|| pair.b.channel.poll().map(|event| event.id));
        over |= pair.a.channel.poll().is_some();
        (asked.is_some() || over).then_some(())
    });
    (id, qp, asked)
}

fn listening(options: &ListenOptions) -> (Pair, CmId) {
    let mut pair = Pair::new(&LinkConfig::default());
    let listener = pair.b.context.create_id(&pair.b.channel);
    listener.listen_with(options).unwrap();
    pair.poll();
    (pair, listener)
}

// Proves SEC-047, SEC-122, SEC-123, SEC-126: each of four limits of a listener refuses one more connection,
// and counts the refusal under the limit's name. The listener admits connections again when there is space. A
// refused connection uses no queue pair and no slot for a Read.
#[test]
fn each_bound_refuses_and_is_counted() {
    let base = ListenOptions::new(PORT);
    for (options, counter) in [
        (ListenOptions { backlog: 2, ..base.clone() }, 0),
        (ListenOptions { backlog_per_address: Some(2), ..base.clone() }, 1),
        (ListenOptions { max_connections: 2, ..base.clone() }, 2),
        (ListenOptions { max_per_address: Some(2), ..base }, 3),
    ] {
        let (mut pair, listener) = listening(&options);
        let mut asked = vec![ask(&mut pair), ask(&mut pair)];
        assert!(asked.iter().all(|(_, _, id)| id.is_some()));
        let before = pair.b.context.usage();
        for refused in 1..4 {
            let (_, _, id) = ask(&mut pair);
            assert!(id.is_none());
            let stats = listener.listener_stats().unwrap();
            let counts = [
                stats.backlog_full,
                stats.backlog_address_full,
                stats.connections_full,
                stats.connections_address_full,
            ];
            let mut expected = [0; 4];
            expected[counter] = refused;
            assert_eq!(counts, expected);
            assert_eq!((stats.connections, stats.undecided, stats.accepted), (2, 2, 2));
        }
        assert_eq!(pair.b.engine.counters().connections_refused, 3);
        let after = pair.b.context.usage();
        assert_eq!((after.qp.used, after.read_slots.used), (before.qp.used, before.read_slots.used));
        // The reject frees one place in the backlog and one place under the limit of connections.
        let (_, _, id) = asked.pop().unwrap();
        id.unwrap().reject(b"").unwrap();
        pair.run_us(1_000_000);
        while pair.a.channel.poll().is_some() {}
        assert_eq!(listener.listener_stats().unwrap().undecided, 1);
        let (_, _, id) = ask(&mut pair);
        assert!(id.is_some());
    }
}

/// A listener limits the number of connections per second from one address. In each of three seconds, the
/// listener admits two connections from the address, and refuses and counts all further connections.
#[test]
fn an_address_begins_so_many_connections_a_second() {
    let (mut pair, listener) =
        listening(&ListenOptions { rate_per_address: Some(2), ..ListenOptions::new(PORT) });
    let mut asked = Vec::new();
    for second in 1..4 {
        for n in 0..4 {
            let (id, qp, request) = ask(&mut pair);
            assert_eq!(request.is_some(), n < 2, "connection {n} of second {second}");
            asked.push((id, qp, request));
        }
        let stats = listener.listener_stats().unwrap();
        assert_eq!((stats.rate_address_full, stats.accepted), (2 * second, 2 * second));
        // The hosts are polled all the time. The limit is per second of the engine's time. This time leaves
        // out the time in which a poll was due and did not come.
        let end_us = second as i64 * 1_000_000;
        assert!(pair.now_us < end_us);
        while pair.now_us < end_us {
            pair.poll();
            pair.now_us = pair.now_us.min(end_us);
        }
    }
    assert_eq!(pair.b.engine.counters().connections_refused, 6);
}

/// An address whose connections fail repeatedly is blocked for the rest of the second. The peer retransmits
/// its SYN after that second, and the connection is established. A connection that ends without the peer's
/// fault is not counted as a failure.
#[test]
fn an_address_may_fail_so_often_in_a_second() {
    let mut d = Responder::with(|options| options.failures_per_address = Some(3));
    // The event of the previous connection may arrive first.
    let asked = |d: &mut Responder| {
        loop {
            let event = d.event();
            if let CmEventKind::ConnectRequest { .. } = event.kind {
                return event.id;
            }
        }
    };
    let established = |d: &mut Responder| {
        d.open(&request());
        let id = asked(d);
        d.accept(&id, &ConnParam::default())
    };
    for _ in 0..5 {
        let _qp = established(&mut d);
        d.pair.close();
        assert!(d.is_over());
    }
    // Three failures: an invalid Request, an unknown opcode, and a Terminate.
    d.open(&[0x55; 24]);
    assert!(d.is_over());
    for opcode in [0xf, 0x7] {
        let _qp = established(&mut d);
        let terminate = Terminate::bare(TerminateError::StreamCatastrophic).to_bytes();
        let ulpdu = untagged([0x41, 0x40 | opcode], 0, [2, 1, 0], &terminate);
        d.pair.send(&fpdu(&mut Framer::new(false, true), &ulpdu));
        assert!(d.is_over(), "{opcode:#x}");
    }
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.accepted, stats.syns.blocked), (8, 0));
    d.pair.connect();
    d.pair.until(990_000 - d.pair.now_us, |_| false);
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.accepted, stats.syns.blocked), (8, 1));
    d.pair.send(&request());
    asked(&mut d);
    assert!((1_000_000..2_000_000).contains(&d.pair.now_us), "{}", d.pair.now_us);
}

// Proves SEC-122: when clients of one listener have used up its limit, another listener still admits
// connections.
#[test]
fn listeners_do_not_share_their_bounds() {
    let (mut pair, _first) = listening(&ListenOptions { max_connections: 1, ..ListenOptions::new(PORT) });
    let second = pair.b.context.create_id(&pair.b.channel);
    second.listen(PORT + 1, 4, Duration::from_secs(5)).unwrap();
    pair.poll();
    let _held = ask(&mut pair);
    assert!(ask(&mut pair).2.is_none());
    pair.b.address.set_port(PORT + 1);
    assert!(ask(&mut pair).2.is_some());
}

// Proves SEC-123, SEC-053, SEC-058: half-open connections are limited in total and for each address. A SYN
// reserves nothing but one of these half-open connections.
#[test]
fn half_open_connections_are_bounded() {
    for (options, per_address) in [
        (ListenOptions { half_open: Some(0), ..ListenOptions::new(PORT) }, false),
        (ListenOptions { half_open_per_address: Some(0), ..ListenOptions::new(PORT) }, true),
    ] {
        let (mut pair, listener) = listening(&options);
        let param = ConnParam { timeout: Duration::from_secs(2), ..ConnParam::default() };
        let (_qp, _id) = pair.dial(&param);
        assert!(matches!(pair.event_a().kind, CmEventKind::ConnectError { .. }));
        let stats = listener.listener_stats().unwrap();
        let (all, one) = (stats.syns.half_open_full, stats.syns.half_open_address_full);
        assert!(if per_address { one > 0 && all == 0 } else { all > 0 && one == 0 });
        assert_eq!((stats.accepted, stats.connections), (0, 0));
        assert_eq!(pair.b.context.usage().read_slots.used, 0);
    }
}

// Proves SEC-123: the context's usage has the number of connections in startup, and the limits of this
// number. It includes each connection from its first SYN until it is accepted, rejected or ended.
#[test]
fn connections_on_their_way_in_show_in_the_usage() {
    let mut d = Responder::with(|options| {
        (options.half_open, options.backlog) = (Some(4), 2);
        options.responder.startup_timeout = Duration::from_secs(1);
    });
    let usage = |pair: &RawPair| {
        let ContextUsage { half_open, backlog, .. } = pair.context.usage();
        [half_open, backlog].map(|usage| (usage.used, usage.limit, usage.refused))
    };
    d.pair.poll();
    assert_eq!(usage(&d.pair), [(0, 4, 0), (0, 2, 0)]);
    d.pair.connect();
    assert!(d.pair.until(10_000, |pair| usage(pair) == [(1, 4, 0), (0, 2, 0)]), "the SYN has come");
    assert!(d.pair.until(10_000, |pair| usage(pair) == [(0, 4, 0), (1, 2, 0)]), "no Request yet");
    let asked = {
        d.pair.connect_beside();
        d.pair.until(2_000, |_| false);
        d.pair.send(&request());
        d.event()
    };
    assert_eq!(usage(&d.pair), [(0, 4, 0), (2, 2, 0)]);
    d.pair.connect_beside();
    assert!(d.pair.until(10_000, |pair| usage(pair) == [(0, 4, 0), (2, 2, 1)]), "one too many");
    asked.id.reject(b"").unwrap();
    assert!(d.pair.until(2_000_000, |pair| usage(pair) == [(0, 4, 0), (0, 2, 1)]), "too late");
    d.pair.connect();
    assert!(d.pair.until(10_000, |pair| usage(pair)[0].0 == 1));
    d.listener.disconnect();
    assert!(d.pair.until(10_000, |pair| usage(pair) == [(0, 0, 0); 2]), "nobody listens any more");
}

// Proves SEC-062, SEC-076: the address is checked before anything is allocated. The user sees address and
// private data before granting anything.
#[test]
fn addresses_are_filtered_before_accept() {
    let deny = AddressFilter { deny: vec!["10.0.0.1/32".parse().unwrap()], ..AddressFilter::default() };
    let (mut pair, listener) = listening(&ListenOptions { filter: deny, ..ListenOptions::new(PORT) });
    let param = ConnParam { timeout: Duration::from_secs(2), ..ConnParam::default() };
    let (_qp, _id) = pair.dial(&param);
    assert!(matches!(pair.event_a().kind, CmEventKind::ConnectError { .. }));
    assert!(listener.listener_stats().unwrap().syns.filtered > 0);
    assert!(pair.b.channel.poll().is_none());

    let allow = AddressFilter { allow: vec!["10.0.0.0/30".parse().unwrap()], ..AddressFilter::default() };
    let (mut pair, _listener) = listening(&ListenOptions { filter: allow, ..ListenOptions::new(PORT) });
    let (_qp, _id) = pair.dial(&ConnParam::default().with_private_data(b"who").unwrap());
    let event = pair.event_b();
    let CmEventKind::ConnectRequest { private_data, remote, .. } = &event.kind else { panic!("{event:?}") };
    assert_eq!((&private_data[..], remote.ip().to_string()), (&b"who"[..], "10.0.0.1".to_string()));
    assert_eq!(event.id.addresses().map(|(_, remote)| remote), Some(*remote));
    event.id.reject(b"nobody").unwrap();
    assert_eq!(pair.b.context.usage().read_slots.used, 0);
}

// Proves SEC-123: connections that are stuck in startup end after a timeout.
#[test]
fn stuck_startups_make_room() {
    let mut d = Responder::with(|options| {
        options.backlog = 1;
        options.responder.startup_timeout = Duration::from_secs(1);
    });
    d.open(b"MPA");
    assert_eq!(d.listener.listener_stats().unwrap().undecided, 1);
    d.pair.until(1_100_000, |_| false);
    assert_eq!(d.listener.listener_stats().unwrap().undecided, 0);
    d.connect_request(&request());
}

/// If the user does not decide in time, the peer receives a reject, and the request is dropped.
#[test]
fn an_undecided_request_is_rejected_in_time() {
    let mut d = Responder::with(|options| options.responder.decision_timeout = Some(Duration::from_secs(3)));
    let id = d.connect_request(&request()).id;
    let start = d.pair.now_us;
    assert!(d.pair.until(10_000_000, |pair| pair.inbox.len() == 24));
    assert_eq!(d.pair.inbox[16] & 0x20, 0x20);
    assert!((2_900_000..3_100_000).contains(&(d.pair.now_us - start)));
    told!(d.event(), ConnectError { error: ConnectionError::DecisionTimeout, .. });
    assert_eq!(id.cause(), Some(ConnectionError::DecisionTimeout));
    assert!(matches!(id.accept(&d.qp(), &ConnParam::default()), Err(VerbsError::Invalid(_))));
    assert_eq!(d.listener.listener_stats().unwrap().decision_timeouts, 1);
}

/// Runs a call of the engine's user once, when the engine polls the port at or after a given time. The call
/// runs in the middle of a poll: the engine has already checked for calls of users, and has not yet read the
/// clock.
struct Midway(Arc<Mutex<Option<Then>>>);

type Then = (u64, Box<dyn FnOnce() + Send>);

impl Hooks for Midway {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        if let Some((_, act)) = self.0.lock().unwrap().take_if(|(at, _)| *at <= now_us) {
            act();
        }
        port.rx_burst(now_us, frames)
    }
}

/// The user decides in the poll in which the decision timeout ends. The decision takes effect, and there is
/// no other event of an end.
#[test]
fn a_decision_in_the_last_poll_before_the_timeout_counts() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    for accepts in [true, false] {
        let then = Arc::default();
        let mut pair = Testbed::new().hook_b(Midway(Arc::clone(&then))).hosts();
        let listener = pair.b.context.create_id(&pair.b.channel);
        let mut options = ListenOptions::new(PORT);
        options.responder.decision_timeout = Some(TIMEOUT);
        listener.listen_with(&options).unwrap();
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.qp());
        let id_a = pair.a.context.create_id(&pair.a.channel);
        id_a.connect(&qp_a, pair.b.address, &ConnParam { timeout: TIMEOUT * 2, ..ConnParam::default() })
            .unwrap();
        let (asked_us, id) = pair.until(|pair| {
            let at = pair.now_us;
            pair.poll();
            pair.b.channel.poll().map(|event| (at, event.id))
        });
        let (decided, qp) = (id.clone(), qp_b.clone());
        let decide = move || {
            if accepts {
                decided.accept(&qp, &ConnParam::default()).unwrap();
            } else {
                decided.reject(b"no").unwrap();
            }
        };
        let over_us = asked_us as u64 + TIMEOUT.as_micros() as u64;
        *then.lock().unwrap() = Some((over_us, Box::new(decide)));
        let event = pair.event_a();
        assert!(then.lock().unwrap().is_none() && pair.now_us as u64 >= over_us);
        if accepts {
            assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
            let _event = told!(pair.event_b(), Established { .. });
            assert_eq!((qp_a.state(), qp_b.state()), (QpState::Rts, QpState::Rts));
        } else {
            let CmEventKind::Rejected { private_data, .. } = &event.kind else { panic!("{event:?}") };
            assert_eq!(&private_data[..], b"no");
        }
        pair.run_us(1_000_000);
        assert!(pair.b.channel.poll().is_none(), "a second end");
        assert_eq!(listener.listener_stats().unwrap().decision_timeouts, 0);
    }
}

/// A listener may reject the Requests of peers that want markers.
#[test]
fn markers_are_the_listeners_policy() {
    let mut d = Responder::with(|options| options.responder.refuse_markers = true);
    d.open(&frame("Req", 0xd0, 2, &[0, 8, 0, 8]));
    assert!(d.pair.until(200_000, |pair| pair.inbox.len() == 24));
    assert_eq!(d.pair.inbox[16] & 0x20, 0x20);
    d.pair.close();
    d.pair.until(200_000, |_| false);
    assert!(d.channel.poll().is_none());
    // The connection is counted as rejected, but not as lost.
    let stats = d.listener.listener_stats().unwrap();
    assert_eq!((stats.rejected, stats.startup_lost, stats.connections), (1, 0, 0));
}

// Proves SEC-127: the age and the idle time of a connection are readable. The idle timeout is off by default,
// and ends only connections that were idle for this time.
#[test]
fn idle_connections_end_where_that_is_asked_for() {
    let mut pair = Pair::new(&LinkConfig::default());
    let idle = ConnParam { idle_timeout: Some(Duration::from_secs(30)), ..ConnParam::default() };
    let c = pair.connect_with(&idle, &ConnParam::default());
    pair.run_us(20_000_000);
    let (age, idle) = c.id_a.activity().map(|activity| (activity.age, activity.idle)).unwrap();
    assert!((19..=21).contains(&age.as_secs()) && (19..=21).contains(&idle.as_secs()), "{age:?} {idle:?}");
    // A message is sent, so the idle time starts again.
    c.qp_a
        .post_send(&iwarp::verbs::SendRequest::empty(
            1,
            iwarp::verbs::SendOp::Write { remote: iwarp::verbs::RemoteAddr { addr: 0, rkey: 1 } },
        ))
        .unwrap();
    let start = pair.now_us;
    pair.run_us(20_000_000);
    for id in [&c.id_a, &c.id_b] {
        assert!(id.activity().unwrap().idle < Duration::from_secs(21));
    }
    assert!(pair.a.channel.poll().is_none());
    told!(pair.event_a(), Disconnected { error: Some(ConnectionError::IdleTimeout), .. });
    assert!((29_900_000..30_500_000).contains(&(pair.now_us - start)), "{}", pair.now_us - start);
    // The peer sees a graceful close.
    assert!(matches!(pair.event_b().kind, CmEventKind::Disconnected { error: None, .. }));
    assert_eq!(c.id_a.activity(), None);
}

/// A close that waits for a silent peer has a limit of its own. The idle timeout does not end such a close.
#[test]
fn a_connection_that_closes_is_not_idle() {
    let mut pair = Pair::new(&LinkConfig::default());
    let idle = ConnParam { idle_timeout: Some(Duration::from_secs(1)), ..ConnParam::default() };
    let c = pair.connect_with(&idle, &ConnParam::default());
    c.id_a.disconnect();
    let start = pair.now_us;
    // From here on the test does not poll B.
    let event = loop {
        assert!(pair.now_us - start < 60_000_000);
        pair.a.engine.poll_at(Instant::from_micros(pair.now_us));
        if let Some(event) = pair.a.channel.poll() {
            break event;
        }
        pair.now_us += 10_000;
    };
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. }),
        "{event:?}"
    );
}

/// The keepalive policy of a connection determines when a silent peer is detected. The policy works for the
/// connecting side and for the accepting side.
#[test]
fn keepalive_is_the_connections() {
    let probe = KeepalivePolicy::Probe {
        idle: Duration::from_secs(1),
        interval: Duration::from_millis(500),
        probes: 2,
    };
    for (accepted, (keepalive, silent_for)) in [false, true].into_iter().flat_map(|accepted| {
        [(probe, Some(2_600_000)), (KeepalivePolicy::Off, None)].map(|case| (accepted, case))
    }) {
        let mut pair = Pair::new(&LinkConfig::default());
        let param = ConnParam { keepalive, ..ConnParam::default() };
        let _c = match accepted {
            false => pair.connect_with(&param, &ConnParam::default()),
            true => pair.connect_with(&ConnParam::default(), &param),
        };
        // After this time, all bytes are acknowledged.
        pair.run_us(100_000);
        let start = pair.now_us;
        let mut noticed = None;
        // From here on the other host is not polled.
        let host = if accepted { &mut pair.b } else { &mut pair.a };
        while noticed.is_none() && pair.now_us - start < 40_000_000 {
            host.engine.poll_at(Instant::from_micros(pair.now_us));
            noticed = host.channel.poll().map(|_| pair.now_us - start);
            pair.now_us += 10_000;
        }
        match (noticed, silent_for) {
            (Some(after), Some(most)) => assert!(after <= most, "{after}, accepted {accepted}"),
            (noticed, expected) => assert_eq!(noticed, expected, "accepted {accepted}"),
        }
    }
}

/// An engine that is created after the call of `listen` also listens.
#[test]
fn engines_made_later_join() {
    let d = Responder::new();
    let Responder { pair, channel, listener, .. } = d;
    let RawPair { context, .. } = &pair;
    let (port_a, port_b) = dp::link::pair(&LinkConfig::default());
    let mut later = engine(context, port_a, "10.0.1.1/24", 8);
    let dialling = Context::new(Default::default()).unwrap();
    let mut peer = engine(&dialling, port_b, "10.0.1.2/24", 9);
    let pd = dialling.alloc_pd().unwrap();
    let cq = dialling.create_cq(8, None).unwrap();
    let qp = pd.create_qp(&iwarp::verbs::QpInit::new(&cq)).unwrap();
    let events = dialling.create_event_channel().unwrap();
    let id = dialling.create_id(&events);
    id.connect(&qp, format!("10.0.1.1:{PORT}").parse().unwrap(), &ConnParam::default()).unwrap();
    let mut asked = None;
    for now in 0..20_000 {
        let now = Instant::from_micros(now * 10);
        later.poll_at(now);
        peer.poll_at(now);
        asked = asked.or_else(|| channel.poll());
    }
    let asked = asked.expect("no connect request");
    assert_eq!(asked.listener, Some(listener));
}

/// A listener or a connect request ends with its last handle, because nobody could stop this listener or
/// decide on this request any more.
#[test]
fn listeners_and_requests_end_with_their_last_handle() {
    let mut d = Responder::new();
    let asked = d.connect_request(&request());
    drop(asked);
    assert!(d.pair.until(100_000, |pair| pair.inbox.len() == 24), "not rejected");
    assert_eq!(d.pair.inbox[16] & 0x20, 0x20);
    // A connect request that waits in the channel does not keep its listener alive.
    d.open(&request());
    d.pair.until(10_000, |_| false);
    assert_eq!(d.channel.usage().0, 1);
    let Responder { mut pair, channel, listener, .. } = d;
    drop(listener);
    pair.until(10_000, |_| false);
    pair.connect();
    assert!(pair.until(100_000, |pair| pair.closed == Some(CloseReason::Refused)), "still listening");
    let event = channel.poll().unwrap();
    assert!(event.listener.is_some_and(|listener| listener.listener_stats().is_none()));
    // The port is free again.
    let again = pair.context.create_id(&channel);
    again.listen(PORT, 1, Duration::from_secs(1)).unwrap();
}

/// If nobody reads an event channel, the channel holds events up to its limit, counts lost events, and blocks
/// nothing. Connect requests are refused before they displace events of existing connections. Dropping the
/// channel rejects the requests in it.
#[test]
fn an_event_channel_is_bounded() {
    let config = iwarp::verbs::ContextConfig {
        limits: iwarp::verbs::ContextLimits { max_cm_events: 8, ..Default::default() },
        seed: Some([3; 32]),
        ..Default::default()
    };
    let mut pair = Testbed::new().context(Context::new(config).unwrap()).peer();
    let channel = pair.context.create_event_channel().unwrap();
    let listener = pair.context.create_id(&channel);
    listener.listen(PORT, 100, Duration::from_secs(5)).unwrap();
    for _ in 0..80 {
        pair.connect_beside();
        pair.send(&request());
        pair.until(2_000, |_| false);
    }
    assert_eq!((channel.usage(), channel.lost()), ((6, 8), 74));
    let stats = listener.listener_stats().unwrap();
    assert_eq!((stats.undecided, stats.rejected), (6, 74));
    drop(channel);
    pair.until(10_000, |_| false);
    assert_eq!(listener.listener_stats().unwrap().undecided, 0);
}
