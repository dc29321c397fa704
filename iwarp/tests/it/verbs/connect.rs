//! Connections as seen by each side, for example connecting, accepting, rejecting and timing out.

use std::time::Duration;

use crate::common::{PORT, Pair, connect_error};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{CmEventKind, ConnParam, ConnectionError, QpState, VerbsError};
use tcp_lite::CloseReason;

fn private(bytes: &[u8]) -> ConnParam {
    ConnParam::default().with_private_data(bytes).unwrap()
}

/// Private data up to the limit is sent in both directions. IRD and ORD follow RFC 6581 section 9.1.
// Proves RDMAP-304.
#[test]
fn private_data_and_depths_are_exchanged() {
    for len in [0, 1, 508] {
        let mut pair = Pair::new(&LinkConfig::default());
        let a = ConnParam { responder_resources: 3, initiator_depth: 40, ..private(&vec![1; len]) };
        let b = ConnParam { responder_resources: 5, initiator_depth: 9, ..private(&vec![2; len]) };
        let c = pair.connect_with(&a, &b);
        let CmEventKind::Established { private_data, ord, ird, ready, .. } = &c.established_a.kind else {
            panic!("{:?}", c.established_a)
        };
        assert_eq!((&private_data[..], *ord, *ird, *ready), (&vec![2; len][..], 5, 3, true));
        let CmEventKind::Established { private_data, ord, ird, .. } = &c.established_b.kind else {
            panic!("{:?}", c.established_b)
        };
        assert_eq!((&private_data[..], *ord, *ird), (&vec![1; len][..], 3, 5));
    }
}

/// The user that receives a connect request reads its private data, and the connecting user reads the private
/// data of the reject.
#[test]
fn a_reject_is_told_with_its_private_data() {
    let (mut pair, _listener) = Pair::listening();
    let (_qp, _id) = pair.dial(&private(b"please"));
    let request = pair.event_b();
    let CmEventKind::ConnectRequest { private_data, remote, .. } = &request.kind else {
        panic!("{request:?}")
    };
    assert_eq!(&private_data[..], b"please");
    assert_eq!(remote.ip().to_string(), "10.0.0.1");
    request.id.reject(b"no").unwrap();
    let event = pair.event_a();
    assert!(
        matches!(&event.kind, CmEventKind::Rejected { private_data, .. } if &private_data[..] == b"no"),
        "{event:?}"
    );
}

/// A connect to a port without a listener is refused. A connect to an address without a host fails as
/// unreachable.
#[test]
fn nobody_answers() {
    let mut pair = Pair::new(&LinkConfig::default());
    let (_qp, _id) = pair.dial(&ConnParam::default());
    let event = pair.event_a();
    let refused = ConnectionError::Tcp(CloseReason::Refused);
    assert!(matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == refused), "{event:?}");

    // One address on our network does not answer, and another address has no route.
    let silent = ConnectionError::Tcp(CloseReason::NoNeighbor);
    for (failed, nobody, why) in [(2, "10.0.0.77", silent), (3, "192.0.2.1", ConnectionError::NoRoute)] {
        let qp = pair.a.qp();
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp, format!("{nobody}:{PORT}").parse().unwrap(), &ConnParam::default()).unwrap();
        told!(pair.event_a(), ConnectError { error, .. } if error == why);
        assert_eq!((qp.state(), pair.a.engine.counters().connections_failed), (QpState::Error, failed));
    }
}

/// If the timeout ends before TCP's handshake does, the error says which answer is missing.
#[test]
fn a_short_timeout_has_the_cause_as_well() {
    let mut pair = Pair::new(&LinkConfig::default());
    let param = ConnParam { timeout: Duration::from_secs(2), ..ConnParam::default() };
    // In the second round, B's Ethernet address is known, but B does not answer.
    for (remote, why) in [
        (format!("10.0.0.77:{PORT}").parse().unwrap(), CloseReason::NoNeighbor),
        (pair.b.address, CloseReason::TimedOut),
    ] {
        if why == CloseReason::TimedOut {
            let (_qp, _id) = pair.dial(&ConnParam::default());
            let refused = connect_error(pair.event_a());
            assert_eq!(refused, ConnectionError::Tcp(CloseReason::Refused));
        }
        let qp = pair.a.qp();
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp, remote, &param).unwrap();
        let start = pair.now_us;
        let event = loop {
            // The test does not poll B.
            pair.now_us += 1000;
            pair.a.engine.poll_at(tcp_lite::Instant::from_micros(pair.now_us));
            if let Some(event) = pair.a.channel.poll() {
                break event;
            }
            assert!(pair.now_us - start < 3_000_000, "not told");
        };
        assert_eq!(connect_error(event), ConnectionError::Tcp(why));
        assert!((1_900_000..2_100_000).contains(&(pair.now_us - start)));
        assert_eq!(qp.state(), QpState::Error);
    }
}

/// If the accepting application does not decide, the connecting side times out.
#[test]
fn an_undecided_request_times_out() {
    let (mut pair, _listener) = Pair::listening();
    let qp = pair.a.qp();
    let id = pair.a.context.create_id(&pair.a.channel);
    let param = ConnParam { timeout: Duration::from_secs(3), ..ConnParam::default() };
    id.connect(&qp, pair.b.address, &param).unwrap();
    let _request = pair.event_b();
    let start = pair.now_us;
    told!(pair.event_a(), ConnectError { error: ConnectionError::StartupTimeout, .. });
    assert!((2_900_000..3_100_000).contains(&(pair.now_us - start)), "{} us", pair.now_us - start);
}

/// If a peer falls silent, keepalives end an idle connection within ten seconds.
#[test]
fn a_silent_peer_is_noticed() {
    let mut pair = Pair::new(&LinkConfig { b_to_a: LinkPlan::default(), ..LinkConfig::default() });
    let _c = pair.connect(&ConnParam::default());
    let start = pair.now_us;
    // From here on the test does not poll B.
    loop {
        let now = tcp_lite::Instant::from_micros(pair.now_us);
        pair.a.engine.poll_at(now);
        if let Some(event) = pair.a.channel.poll() {
            let timed_out = ConnectionError::Tcp(CloseReason::TimedOut);
            assert!(
                matches!(event.kind, CmEventKind::Disconnected { error: Some(e), .. } if e == timed_out),
                "{event:?}"
            );
            break;
        }
        pair.now_us += 1000;
        assert!(pair.now_us - start < 10_500_000, "not noticed within ten seconds");
    }
}

/// A listener accepts many connections one after another, more than its backlog, and each connection can be
/// closed.
#[test]
fn a_listener_serves_many() {
    let (mut pair, _listener) = Pair::listening();
    let mut all = Vec::new();
    for _ in 0..50 {
        all.push(pair.connect_again(&ConnParam::default(), &ConnParam::default()));
    }
    for c in &all {
        c.id_b.disconnect();
    }
    for _ in &all {
        told!(pair.event_a(), Disconnected { error: None, .. });
    }
}

/// If a listener or a connection already uses a port, the error says so.
#[test]
fn a_port_in_use_is_named() {
    let (mut pair, _listener) = Pair::listening();
    let second = pair.b.context.create_id(&pair.b.channel);
    let refused = second.listen(PORT, 1, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(refused, VerbsError::PortInUse(PORT)), "{refused:?}");
    assert!(refused.to_string().contains("choose another port"), "{refused}");

    let param = ConnParam { local_port: Some(4_000), ..ConnParam::default() };
    let _c = pair.connect_again(&param, &ConnParam::default());
    let (_qp, _id) = pair.dial(&param);
    assert_eq!(connect_error(pair.event_a()), ConnectionError::PortInUse);
}
