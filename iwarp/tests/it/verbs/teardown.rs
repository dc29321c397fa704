//! Ends of connections in different phases. For example, each request completes once, each identifier
//! receives one event, and no end waits forever.

use crate::common::{ALL, PORT, Pair, Testbed, remote_addr};
use std::time::Duration;

use crate::common::raw::{RawPair, peer_to_peer_request};
use crate::common::served::{Served, Setup};
use dp::link::LinkConfig;
use iwarp::mpa::RtrKinds;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, QpInit, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest,
    VerbsError, WcStatus, WorkCompletion,
};
use tcp_lite::{CloseReason, Instant};

/// The bits in IRD and ORD of a Request that offers a Send without bytes as the RTR.
const OFFER_SEND: [u8; 2] = [0xc0, 0];
const OFFER_WRITE: [u8; 2] = [0x80, 0x80];

/// A Send of no bytes with MSN 1.
const EMPTY_SEND: [u8; 18] = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

/// Length in bytes of the region of [`setup`].
const REGION: usize = 1 << 16;

/// Returns how the engine accepts a connection from a bare TCP peer, with two posted receives of 100 bytes.
fn setup() -> Setup<'static> {
    Setup {
        listen: &|options| {
            options.responder.startup_timeout = Duration::from_secs(5);
            options.responder.rtr = RtrKinds::all();
        },
        region: REGION,
        prepare: &|qp, region| {
            for wr_id in 0..2 {
                qp.post_recv(&RecvRequest::new(wr_id, region.sge(wr_id as usize * 100, 100))).unwrap();
            }
        },
        ..Setup::default()
    }
}

/// Connects as [`setup`] says, but with `request` as the peer's Request.
fn accepted(request: Vec<u8>, accept: ConnParam) -> Served {
    Setup { request, accept, ..setup() }.accepted()
}

fn brief(wc: WorkCompletion) -> (u64, WcStatus) {
    (wc.wr_id, wc.status)
}

/// A Send that has begun holds a receive request. If we close before the Send ends, the close also flushes
/// this request.
#[test]
fn a_receive_under_way_is_flushed_when_we_close() {
    let mut c = setup().ready();
    let mut part = EMPTY_SEND.to_vec();
    part[0] = 0x01;
    part.extend([7; 10]);
    c.send(&part);
    c.id.disconnect();
    assert!(c.pair.until(1_000_000, |pair| pair.peer_closed), "no FIN");
    c.pair.close();
    assert!(matches!(c.event().kind, CmEventKind::Disconnected { error: None, .. }));
    assert_eq!(c.completions(), [(0, WcStatus::WrFlushError), (1, WcStatus::WrFlushError)]);
}

/// If a connection ends at its deadline, the user receives the event of the end, although another connection
/// uses the slot of the ended connection at once.
#[test]
fn an_end_is_told_though_another_takes_the_place() {
    let mut pair = Testbed::new().peer();
    pair.listen();
    let pd = pair.context.alloc_pd().unwrap();
    let cq = pair.context.create_cq(64, None).unwrap();
    let region = pd.reg_mr(100, ALL).unwrap();
    let channel = pair.context.create_event_channel().unwrap();
    let param = ConnParam { timeout: Duration::from_secs(1), ..ConnParam::default() };
    let connect = |pair: &RawPair| {
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        qp.post_recv(&RecvRequest::new(qp.qp_num().into(), region.sge(0, 100))).unwrap();
        let id = pair.context.create_id(&channel);
        id.connect(&qp, ([10, 0, 0, 2], PORT).into(), &param).unwrap();
        (id, qp)
    };
    let (first, qp) = connect(&pair);
    let number = u64::from(qp.qp_num());
    // The peer accepts the TCP connection and sends nothing. The poll at the deadline resets the connection.
    let start_us = pair.now_us;
    while pair.now_us <= start_us + 1_000_000 {
        pair.poll();
    }
    let _second = connect(&pair);
    let event = pair.next_event(&channel, 10_000).expect("the first one's end");
    assert!(event.id == first && matches!(event.kind, CmEventKind::ConnectError { .. }), "{event:?}");
    let flushed = cq.poll_one().map(|wc| (wc.wr_id, wc.status));
    assert_eq!(flushed, Some((number, WcStatus::WrFlushError)));
}

/// If the RTR does not arrive in time, the buffers of an incomplete FPDU are freed.
#[test]
fn a_missing_rtr_keeps_no_buffers() {
    let param = ConnParam { timeout: Duration::from_secs(1), ..ConnParam::default() };
    let mut c = accepted(peer_to_peer_request(OFFER_WRITE), param);
    let mut part = vec![0; 1000];
    part[0] = 5;
    c.pair.send(&part);
    told!(c.event(), ConnectError { error: ConnectionError::StartupTimeout, .. });
    c.pair.until(1_000_000, |_| false);
    assert_eq!(c.pair.pool.available(), c.pair.pool.capacity());
}

// Proves MPA2-111, MPA2-136: a Send of length 0 is the RTR only if the Reply named a Send as the RTR.
// Otherwise a Send of length 0 is a message of the peer's user. A second Send of length 0 is always such a
// message.
#[test]
fn an_empty_send_is_an_rtr_only_where_agreed() {
    for (offer, completes) in [(OFFER_SEND, false), (OFFER_WRITE, true)] {
        let mut c = accepted(peer_to_peer_request(offer), ConnParam::default());
        c.send(&EMPTY_SEND);
        assert!(matches!(c.event().kind, CmEventKind::Established { .. }));
        let expected: &[_] = if completes { &[(0, WcStatus::Success)] } else { &[] };
        assert_eq!(c.completions(), expected, "{offer:02x?}");
        let mut second = EMPTY_SEND;
        second[13] = 2;
        c.send(&second);
        c.pair.until(10_000, |_| false);
        let wr_id = u64::from(completes);
        assert_eq!(c.completions(), [(wr_id, WcStatus::Success)], "{offer:02x?}");
    }
}

/// An RTR is the first message of its queue. An empty Send with another message number ends the stream, as a
/// later message with a wrong number does.
// Proves MPA2-111.
#[test]
fn an_rtr_by_send_has_the_first_number() {
    for (msn, code) in [(0, 3), (2, 2), (u32::MAX, 3)] {
        let mut c = accepted(peer_to_peer_request(OFFER_SEND), ConnParam::default());
        let mut send = EMPTY_SEND;
        send[10..14].copy_from_slice(&u32::to_be_bytes(msn));
        c.send(&send);
        c.pair.until(10_000, |_| false);
        let error = c.qp.error().map(|error| (error.layer, error.etype, error.code, error.from_peer));
        assert_eq!(error, Some((1, 2, code, false)), "MSN {msn}");
        assert!(c.completions().iter().all(|(_, status)| *status == WcStatus::WrFlushError));
    }
}

/// The peer's application reads no more bytes, not even the Terminate, while the peer's TCP still answers.
/// The end waits for the peer only for a limited time, whether or not our user has begun to close.
#[test]
fn a_terminate_that_the_peer_does_not_take_has_its_time() {
    for closes in [false, true] {
        let mut c = setup().ready();
        c.pair.stopped_reading = true;
        for wr_id in 10..74 {
            let write = SendOp::Write { remote: RemoteAddr { addr: 0, rkey: 1 } };
            let mut request = SendRequest::new(wr_id, write, c.region.sge(0, REGION));
            request.sg_list.extend([c.region.sge(0, REGION); 7]);
            c.qp.post_send(&request).unwrap();
        }
        // TCP does not accept all these bytes, so the Terminate has to wait as well.
        assert!(
            !c.pair.until(60_000_000, |pair| pair.is_over()),
            "a window that stays closed is no end by itself"
        );
        if closes {
            c.id.disconnect();
        }
        c.send(&[0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, b'x']);
        let start = c.pair.now_us;
        let event = c.event();
        let CmEventKind::Disconnected { error: Some(ConnectionError::Stream(error)), .. } = event.kind else {
            panic!("{event:?}")
        };
        assert_eq!((error.layer, error.etype, error.code), (1, 1, 0));
        let us = c.pair.now_us - start;
        // The limit is the engine's `close_timeout`.
        assert!((5_000_000..5_100_000).contains(&us), "after {us} us");
        assert_eq!(c.pair.closed, Some(CloseReason::Reset));
    }
}

/// A graceful close waits for Read Responses, but not forever.
#[test]
fn reads_that_nobody_answers_do_not_hold_up_a_close() {
    for peer_closes in [false, true] {
        let mut c = setup().ready();
        let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
        if peer_closes {
            c.pair.close();
            c.pair.poll();
        }
        c.qp.post_send(&SendRequest::new(9, read, c.region.sge(0, 8))).unwrap();
        if !peer_closes {
            c.id.disconnect();
        }
        let start = c.pair.now_us;
        told!(c.event(), Disconnected { error: Some(_), .. });
        assert!(c.pair.now_us - start < 6_000_000, "{} us", c.pair.now_us - start);
        assert!(c.completions().contains(&(9, WcStatus::WrFlushError)));
    }
}

/// If a Terminate is requested when a close has just timed out, the Terminate is not reported as sent, and
/// the connection is reset.
#[test]
fn a_terminate_behind_the_time_of_a_close_is_none() {
    let mut c = setup().ready();
    let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
    c.qp.post_send(&SendRequest::new(9, read, c.region.sge(0, 8))).unwrap();
    c.id.disconnect();
    // The engine's `close_timeout` of 5 s starts in the poll after which nothing is left to send.
    let started = c.pair.now_us;
    c.pair.poll();
    // The engine is polled during this time, because the engine does not count pauses.
    c.pair.until(4_900_000, |_| false);
    c.pair.now_us = started + 5_000_000;
    c.qp.modify(QpState::Terminate).unwrap();
    let CmEventKind::Disconnected { error, terminate } = c.event().kind else { panic!("no end") };
    assert_eq!((error, terminate), (Some(ConnectionError::CloseTimeout), None));
    assert_eq!((c.qp.error(), c.pair.closed), (None, Some(CloseReason::Reset)));
}

/// A graceful close waits for the next Read Response as long as Read Responses arrive.
#[test]
fn reads_that_are_answered_slowly_are_answered_before_a_close() {
    let mut c = setup().ready();
    for n in 0..3 {
        let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
        c.qp.post_send(&SendRequest::new(n, read, c.region.sge(8 * n as usize, 8))).unwrap();
    }
    c.id.disconnect();
    for n in 0..3 {
        // The engine's `close_timeout` is 5 s.
        c.pair.until(4_000_000, |_| false);
        let (stag, to) = (c.region.rkey(), c.region.addr() + 8 * n);
        c.send(&[&[0xc1, 0x42], &stag.to_be_bytes()[..], &to.to_be_bytes(), &[7; 8]].concat());
        c.pair.until(10_000, |_| false);
        assert_eq!(c.completions(), [(n, WcStatus::Success)]);
    }
    assert!(c.pair.until(1_000_000, |pair| pair.peer_closed), "no FIN");
}

/// After the FIN, the queue pair is not needed any more. Dropping the queue pair does not turn the close into
/// a reset.
#[test]
fn dropping_the_queue_pair_leaves_a_close_under_way_alone() {
    let mut c = setup().ready();
    c.id.disconnect();
    assert!(c.pair.until(1_000_000, |pair| pair.peer_closed), "no FIN");
    c.qp = c.pd.create_qp(&QpInit::new(&c.cq)).unwrap();
    c.pair.until(100_000, |_| false);
    assert_eq!(c.pair.closed, None);
    c.pair.close();
    assert!(matches!(c.event().kind, CmEventKind::Disconnected { error: None, .. }));
}

/// If a queue pair is dropped before its connection has started, the identifier still receives its event.
#[test]
fn dropping_the_queue_pair_at_once_is_told() {
    let mut pair = Pair::new(&LinkConfig::default());
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect(&pair.a.qp(), pair.b.address, &ConnParam::default()).unwrap();
    let event = pair.event_a();
    let aborted = ConnectionError::Tcp(CloseReason::Aborted);
    assert!(matches!(event.kind, CmEventKind::ConnectError { error, .. } if error == aborted), "{event:?}");
}

/// If an engine is dropped during an accept, it reports one event for the identifier.
#[test]
fn an_engine_that_goes_tells_once() {
    let (mut pair, _listener) = Pair::listening();
    let qp_a = pair.a.qp();
    let id_a = pair.a.context.create_id(&pair.a.channel);
    id_a.connect(&qp_a, pair.b.address, &ConnParam::default()).unwrap();
    let request = pair.event_b();
    let qp_b = pair.b.qp();
    request.id.accept(&qp_b, &ConnParam::default()).unwrap();
    drop(pair.b.engine);
    let kinds: Vec<_> = std::iter::from_fn(|| pair.b.channel.poll()).map(|event| event.kind).collect();
    assert!(matches!(kinds[..], [CmEventKind::ConnectError { .. }]), "{kinds:?}");
}

/// A request that cannot be executed fails with its own error. A Read that still waits is flushed, and does
/// not fail with this error.
#[test]
fn a_local_fault_is_blamed_on_its_request() {
    for invalidates in [false, true] {
        let (mut pair, c) = Pair::connected();
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        let (lost, remote) = pair.regions(64);
        let to = remote_addr(&remote, 0);
        let write = SendOp::Write { remote: to };
        let culprit = if invalidates {
            SendRequest::empty(2, SendOp::LocalInvalidate { rkey: lost.rkey() })
        } else {
            SendRequest::new(2, write, lost.sge(0, 8))
        };
        let read = SendRequest::new(1, SendOp::Read { remote: to }, local.sge(0, 8));
        c.qp_a.post_send_list(&[read, culprit, SendRequest::new(3, write, local.sge(0, 8))]).unwrap();
        lost.deregister().unwrap();
        let wcs = [pair.wc_a(), pair.wc_a(), pair.wc_a()].map(brief);
        let flushed = |wr_id| (wr_id, WcStatus::WrFlushError);
        assert_eq!(wcs, [flushed(1), (2, WcStatus::LocalProtectionError), flushed(3)]);
    }
}

/// The call that rejects a connection refuses private data that is too long for some peers. Therefore a peer
/// always receives its reject.
#[test]
fn a_reject_takes_what_every_reply_can_carry() {
    let (mut pair, _listener) = Pair::listening();
    let (_qp, _id) = pair.dial(&ConnParam::default());
    let request = pair.event_b();
    assert!(matches!(request.id.reject(&[0; 509]), Err(VerbsError::TooLong { got: 509, max: 508 })));
    request.id.reject(&[0; 508]).unwrap();
    told!(pair.event_a(), Rejected { .. });
}

/// Deadlines end with their connection: a short connection with long timeouts leaves no deadline behind.
#[test]
fn an_ended_connection_has_no_deadline() {
    let hour = Duration::from_secs(3600);
    let mut pair = Pair::new(&LinkConfig::default());
    let c = pair.connect(&ConnParam { idle_timeout: Some(hour), ..ConnParam::default() });
    c.id_a.disconnect();
    pair.event_a();
    pair.event_b();
    // TCP has also left TIME-WAIT after these polls.
    for _ in 0..100 {
        pair.now_us += 600_000;
        pair.poll();
    }
    let now = Instant::from_micros(pair.now_us);
    let soon = now + tcp_lite::Duration::from_secs(600);
    for engine in [&mut pair.a.engine, &mut pair.b.engine] {
        let next = engine.next_deadline(now);
        assert!(next.is_none_or(|at| at < soon), "{next:?} at {now:?}");
    }
}
