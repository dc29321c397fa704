//! The switch between streaming mode and MPA, with actions of the user, the peer and TCP at the same time.

use std::time::Duration;

use crate::common::raw::{RawPair, frame};
use crate::common::responder::Responder;
use crate::common::{PORT, Testbed};
use iwarp::mpa::StartupFault;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, ConnParam, ConnectionError, EventChannel, KeepalivePolicy, QpInit, QpState,
    ResponderOptions, StreamOptions, StreamRead, VerbsError,
};
use tcp_lite::CloseReason;

/// Connects a bare TCP peer to a listener whose connections begin in streaming mode.
fn streaming() -> (Responder, CmId) {
    let mut d = Responder::with(|options| options.streaming = Some(StreamOptions::default()));
    d.open(&[]);
    let event = told!(d.event(), StreamEstablished { .. });
    (d, event.id)
}

fn mpa_request() -> Vec<u8> {
    frame("Req", 0x50, 2, &[0, 8, 0, 8])
}

/// Returns a Reply that accepts `mpa_request`, and a Reply that rejects it.
fn replies() -> [Vec<u8>; 2] {
    [0x50, 0x70].map(|flags| frame("Rep", flags, 2, &[0, 8, 0, 8]))
}

fn client_server() -> ConnParam {
    ConnParam { peer_to_peer: false, ..ConnParam::default() }
}

/// Returns the next event. Drops events about received bytes or space to send.
fn next_event(pair: &mut RawPair, channel: &EventChannel, us: i64) -> Option<CmEvent> {
    loop {
        let event = pair.next_event(channel, us)?;
        if !matches!(event.kind, CmEventKind::StreamReadable | CmEventKind::StreamWritable) {
            return Some(event);
        }
    }
}

fn expect_error(pair: &mut RawPair, channel: &EventChannel, us: i64, expected: ConnectionError) {
    let event = next_event(pair, channel, us).expect("no event in time");
    assert!(
        matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == expected),
        "{event:?} instead of {expected:?}"
    );
}

/// The peer's FIN arrives before MPA starts. The engine remembers the FIN and ends the start, since no Reply
/// can arrive after the FIN.
#[test]
fn an_initiator_does_not_wait_for_a_peer_that_has_closed() {
    let (mut d, id) = streaming();
    d.pair.close();
    d.pair.until(10_000, |_| false);
    let qp = d.qp();
    id.start_initiator(&qp, &client_server()).unwrap();
    expect_error(&mut d.pair, &d.channel, 100_000, ConnectionError::PeerClosed);
    assert_eq!(qp.state(), QpState::Error);
}

/// A peer that has closed after its Request cannot send an FPDU, so the responder's user receives an error.
#[test]
fn a_responder_does_not_ask_about_a_peer_that_has_closed() {
    let (mut d, id) = streaming();
    d.pair.send(&mpa_request());
    d.pair.close();
    d.pair.until(10_000, |_| false);
    id.start_responder(b"", &ResponderOptions::default()).unwrap();
    expect_error(&mut d.pair, &d.channel, 100_000, ConnectionError::PeerClosed);
    assert!(d.is_over());
}

/// The user starts MPA again before the engine has sent the Reply that rejects the previous Request. Bytes
/// and startup frames are sent in the order of the user's calls.
#[test]
fn a_start_does_not_overtake_the_reply_of_a_reject() {
    for responder in [true, false] {
        let (mut d, id) = streaming();
        id.start_responder(b"", &ResponderOptions::default()).unwrap();
        d.pair.until(10_000, |_| false);
        d.pair.send(&mpa_request());
        let _event =
            told!(next_event(&mut d.pair, &d.channel, 1_000_000).expect("no event"), ConnectRequest { .. });
        assert!(d.pair.inbox.is_empty());
        let qp = d.qp();
        id.reject(b"").unwrap();
        if responder {
            id.start_responder(b"go", &ResponderOptions::default()).unwrap();
        } else {
            id.send_stream(b"go").unwrap();
            id.start_initiator(&qp, &client_server()).unwrap();
        }
        d.pair.until(10_000, |_| false);
        let reply = [&frame("Rep", 0x70, 2, &d.pair.inbox[d.pair.inbox.len().min(20)..][..4])[..], b"go"];
        let request = if responder { vec![] } else { mpa_request()[..16].to_vec() };
        let expected = [&reply.concat()[..], &request].concat();
        assert!(d.pair.inbox.starts_with(&expected), "{:?}", d.pair.inbox.escape_ascii().to_string());
    }
}

/// The user has chosen to refuse markers. An MPA Request that asks for markers is rejected, and the user
/// receives an event.
#[test]
fn a_request_for_markers_that_are_refused_is_reported() {
    let (mut d, id) = streaming();
    let options = ResponderOptions { refuse_markers: true, ..ResponderOptions::default() };
    id.start_responder(b"", &options).unwrap();
    d.pair.until(10_000, |_| false);
    d.pair.send(&frame("Req", 0xd0, 2, &[0, 8, 0, 8]));
    assert!(d.pair.until(100_000, |pair| pair.peer_closed), "no FIN");
    assert_eq!((d.pair.inbox.len(), d.pair.inbox[16] & 0x20), (24, 0x20), "no Reply that rejects");
    d.pair.close();
    let expected = ConnectionError::Startup(StartupFault::Markers);
    expect_error(&mut d.pair, &d.channel, 1_000_000, expected);
}

/// If an initiator's connection began in streaming mode, the keepalive setting of the initiator replaces the
/// setting of streaming mode.
#[test]
fn the_keepalive_of_the_initiator_replaces_that_of_streaming_mode() {
    let (mut d, id) = streaming();
    let keepalive = KeepalivePolicy::Probe {
        idle: Duration::from_secs(1),
        interval: Duration::from_millis(500),
        probes: 2,
    };
    let qp = d.qp();
    id.start_initiator(&qp, &ConnParam { keepalive, ..client_server() }).unwrap();
    d.pair.until(10_000, |_| false);
    let [accept, _] = replies();
    d.pair.send(&accept);
    let _event = told!(next_event(&mut d.pair, &d.channel, 1_000_000).expect("no event"), Established { .. });
    d.pair.until(10_000, |_| false);
    d.pair.deaf = true;
    told!(
        next_event(&mut d.pair, &d.channel, 2_600_000).expect("the silent peer is not noticed"),
        Disconnected { error: Some(_), .. }
    );
}

/// An engine that has connected to a bare TCP peer in streaming mode.
struct StreamDialer {
    pair: RawPair,
    channel: EventChannel,
    id: CmId,
}

impl StreamDialer {
    fn new(param: &ConnParam) -> Self {
        let mut pair = Testbed::new().peer();
        pair.listen();
        let channel = pair.context.create_event_channel().unwrap();
        let id = pair.context.create_id(&channel);
        let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
        id.connect_stream(remote, StreamOptions::default(), param).unwrap();
        let _event =
            told!(pair.next_event(&channel, 1_000_000).expect("not connected"), StreamEstablished { .. });
        Self { pair, channel, id }
    }
}

#[test]
fn streaming_mode_has_its_idle_timeout_again_after_a_reject() {
    let param = ConnParam { idle_timeout: Some(Duration::from_secs(1)), ..ConnParam::default() };
    let StreamDialer { mut pair, channel, id } = StreamDialer::new(&param);
    let pd = pair.context.alloc_pd().unwrap();
    let cq = pair.context.create_cq(64, None).unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    id.start_initiator(&qp, &client_server()).unwrap();
    pair.until(10_000, |_| false);
    let [_, reject] = replies();
    pair.send(&reject);
    told!(next_event(&mut pair, &channel, 1_000_000).expect("no event"), Rejected { .. });
    pair.until(1_200_000, |pair| pair.peer_closed);
    assert!(pair.peer_closed, "no FIN");
    pair.close();
    told!(
        next_event(&mut pair, &channel, 1_000_000).expect("no event"),
        Disconnected { error: Some(ConnectionError::IdleTimeout), .. }
    );
}

/// After closing in streaming mode, the user cannot start MPA or send, but can still read.
#[test]
fn mpa_does_not_start_after_a_close() {
    let (mut d, id) = streaming();
    d.pair.send(b"last");
    d.pair.until(10_000, |_| false);
    id.disconnect();
    let qp = d.qp();
    let refused = id.start_responder(b"", &ResponderOptions::default());
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{refused:?}");
    assert!(matches!(id.send_stream(b"more"), Err(VerbsError::Invalid(_))));
    assert_eq!(id.recv_stream(&mut [0; 8]).unwrap(), StreamRead::Bytes(4));
    let refused = id.start_initiator(&qp, &client_server());
    assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{refused:?}");
    assert!(d.pair.until(100_000, |pair| pair.peer_closed), "no FIN");
    assert!(d.pair.inbox.is_empty());
    d.pair.close();
    told!(
        next_event(&mut d.pair, &d.channel, 1_000_000).expect("no event"),
        Disconnected { error: None, .. }
    );
}

/// Dropping the last handle during `connect_stream` ends the attempt.
#[test]
fn a_dropped_identifier_ends_its_attempt_to_connect() {
    let mut pair = Testbed::new().peer();
    let channel = pair.context.create_event_channel().unwrap();
    let id = pair.context.create_id(&channel);
    // No host has this address.
    let remote = format!("10.0.0.9:{PORT}").parse().unwrap();
    id.connect_stream(remote, StreamOptions::default(), &ConnParam::default()).unwrap();
    pair.poll();
    assert_eq!(pair.engine.stack_usage().connections, 1);
    drop(id);
    pair.until(10_000, |_| false);
    assert_eq!(pair.engine.stack_usage().connections, 0);
    expect_error(&mut pair, &channel, 10_000, ConnectionError::Tcp(CloseReason::Aborted));
}

/// An attempt to connect in streaming mode to an address without a route counts as a failed connection.
#[test]
fn an_attempt_without_a_route_counts_as_failed() {
    let mut pair = Testbed::new().peer();
    let channel = pair.context.create_event_channel().unwrap();
    let id = pair.context.create_id(&channel);
    let remote = format!("192.0.2.1:{PORT}").parse().unwrap();
    id.connect_stream(remote, StreamOptions::default(), &ConnParam::default()).unwrap();
    expect_error(&mut pair, &channel, 10_000, ConnectionError::NoRoute);
    assert_eq!(pair.engine.counters().connections_failed, 1);
}

/// A call that sends no byte does not count as progress.
#[test]
fn a_call_without_bytes_does_not_count_as_progress() {
    let StreamDialer { mut pair, id, .. } = StreamDialer::new(&ConnParam::default());
    pair.until(1_000_000, |_| false);
    id.send_stream(b"").unwrap();
    pair.until(10_000, |_| false);
    let idle = id.activity().unwrap().idle;
    assert!(idle >= Duration::from_millis(990), "{idle:?}");
    id.send_stream(b"x").unwrap();
    pair.until(10_000, |_| false);
    let idle = id.activity().unwrap().idle;
    assert!(idle < Duration::from_millis(20), "{idle:?}");
}
