//! Connections whose peer vanishes or ends the connection, with InfiniBand's semantics and without. With
//! InfiniBand's semantics, if the peer is silent, the oldest send request fails because its retries are used
//! up, and all other requests are flushed, as on InfiniBand. In the other cases, all requests that have not
//! completed are flushed.

use arrayvec::ArrayVec;

use crate::common::{Connected, Pair, Testbed, agreeing};
use iwarp::verbs::{
    AsyncEventKind, CmEventKind, ConnParam, ConnectionError, QpState, RecvRequest, SendOp, SendRequest,
    WcStatus,
};
use tcp_lite::{CloseReason, Instant};

use crate::common::raw::ib_request;
use crate::common::served::{Served, Setup};

const FLUSHED: WcStatus = WcStatus::WrFlushError;
const FAILED: WcStatus = WcStatus::RetryExceeded;

fn connected(param: &ConnParam) -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(param);
    (pair, c)
}

/// Posts a receive with `wr_id` 9, and `sends` Sends without bytes, for which the peer has no receive.
fn post(c: &Connected, sends: u64) {
    c.qp_a.post_recv(&RecvRequest { wr_id: 9, sg_list: ArrayVec::new() }).unwrap();
    for wr_id in 1..=sends {
        c.qp_a.post_send(&SendRequest::empty(wr_id, SendOp::Send)).unwrap();
    }
}

/// Polls only the engine of A, for at most a minute, as if the other host had vanished.
fn poll_a_alone(pair: &mut Pair, until: impl Fn(&Pair) -> bool) {
    let end_us = pair.now_us + 60_000_000;
    while !until(pair) {
        assert!(pair.now_us < end_us, "the peer is not given up");
        let now = Instant::from_micros(pair.now_us);
        let busy = pair.a.engine.poll_at(now);
        let next = if busy { None } else { pair.a.engine.next_deadline(now) };
        pair.now_us = next.map_or(pair.now_us + 1, |at| at.total_micros().max(pair.now_us + 1));
    }
}

fn ended(pair: &Pair) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Checks the events, the error and the state at A, and that later requests are flushed.
fn check_end(pair: &mut Pair, c: &Connected, reason: CloseReason) {
    let event = pair.a.channel.poll().expect("an event");
    let error = ConnectionError::Tcp(reason);
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(why), .. } if why == error),
        "{event:?}"
    );
    assert_eq!(c.qp_a.cause(), Some(error));
    assert_eq!(c.qp_a.state(), QpState::Error);
    let fatal = pair.a.context.async_events().poll().unwrap();
    assert!(fatal.is_some_and(|event| event.kind == AsyncEventKind::QpFatal));
    post(c, 1);
    let mut late = ended(pair);
    late.sort_by_key(|&(wr_id, _)| wr_id);
    assert_eq!(late, [(1, FLUSHED), (9, FLUSHED)]);
}

/// The peer is silent. With InfiniBand's semantics, the oldest request fails in the same way with
/// `outlives_peer` and without.
#[test]
fn a_silent_peer_fails_the_oldest_request() {
    let by_gid = ConnParam { outlives_peer: true, ..agreeing() };
    for (param, first) in [(agreeing(), FAILED), (by_gid, FAILED), (ConnParam::default(), FLUSHED)] {
        let (mut pair, c) = connected(&param);
        pair.run_us(50_000);
        post(&c, 3);
        poll_a_alone(&mut pair, |pair| !pair.a.channel.is_empty());
        let mut ended = ended(&pair);
        // Without the agreement, a Send completes when TCP has accepted its bytes.
        if first == FLUSHED {
            let sent: Vec<_> = ended.drain(..3).collect();
            assert_eq!(sent, [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
            assert_eq!(ended, [(9, FLUSHED)]);
        } else {
            assert_eq!(ended, [(1, first), (2, FLUSHED), (3, FLUSHED), (9, FLUSHED)]);
        }
        check_end(&mut pair, &c, CloseReason::TimedOut);
    }
}

/// If the peer resets the connection, all requests are flushed, whether they were sent or not: the peer has
/// ended the connection and does not count as lost.
#[test]
fn a_reset_flushes_all_requests() {
    for is_begun in [true, false] {
        for sends in [0, 1, 3] {
            let (mut pair, c) = connected(&agreeing());
            pair.run_us(50_000);
            if is_begun {
                post(&c, sends);
                pair.run_us(50_000);
            }
            c.qp_b.modify(QpState::Error).unwrap();
            pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
            if !is_begun {
                post(&c, sends);
            }
            pair.run_us(50_000);
            let mut expected: Vec<_> = (1..=sends).map(|wr_id| (wr_id, FLUSHED)).collect();
            expected.push((9, FLUSHED));
            assert_eq!(ended(&pair), expected, "{is_begun}");
            check_end(&mut pair, &c, CloseReason::Reset);
        }
    }
}

/// If this side ends the connection, the peer does not count as lost, and all requests are flushed.
#[test]
fn an_end_by_the_user_flushes_all_requests() {
    let (mut pair, c) = connected(&agreeing());
    pair.run_us(50_000);
    post(&c, 2);
    pair.run_us(50_000);
    c.qp_a.modify(QpState::Error).unwrap();
    pair.run_us(50_000);
    assert_eq!(ended(&pair), [(1, FLUSHED), (2, FLUSHED), (9, FLUSHED)]);
}

/// The peer sends a FIN while a Read waits for its response. No response can arrive any more, and all
/// requests are flushed.
#[test]
fn a_fin_in_place_of_a_response_flushes_all_requests() {
    let ib = || Setup { request: ib_request(), accept: agreeing(), ..Setup::default() }.ready();
    for mut served in [ib(), Served::new()] {
        served.post_recv(64, 8);
        for wr_id in [1, 2] {
            served.post(&served.read(wr_id));
        }
        served.run(10_000);
        served.pair.close();
        served.run(50_000);
        assert_eq!(served.completions(), [(1, FLUSHED), (2, FLUSHED), (64, FLUSHED)]);
    }
}
