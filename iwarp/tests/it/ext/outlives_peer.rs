//! Queue pairs that outlive the peer's end of the connection (`ConnParam::outlives_peer`).

use std::time::Duration;

use crate::common::{Connected, Pair, Testbed, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, AtomicOp, CmEventKind, ConnParam, QpInit, QpState, QueuePair, RecvRequest, SendOp,
    SendRequest, Sge, SrqInit, WcStatus,
};
use tcp_lite::Instant;

fn outliving() -> ConnParam {
    ConnParam { ib_semantics: true, outlives_peer: true, ..ConnParam::default() }
}

fn connected_with(param: &ConnParam) -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(param);
    (pair, c)
}

/// Waits for the end of the connection at `a`.
fn await_end(pair: &mut Pair) {
    told!(pair.event_a(), Disconnected { .. });
}

/// How the peer ends the connection: `Closing` sends a FIN, `Error` sends an RST.
const ENDS: [QpState; 2] = [QpState::Closing, QpState::Error];

#[test]
fn receives_stay_and_the_first_send_fails() {
    for end in ENDS {
        let (mut pair, c) = connected_with(&outliving());
        let (local, _) = pair.regions(64);
        c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
        c.qp_b.modify(end).unwrap();
        await_end(&mut pair);
        assert_eq!(c.qp_a.state(), QpState::Orphaned);
        c.qp_a.post_recv(&RecvRequest::new(8, local.sge(0, 8))).unwrap();
        pair.run_us(50_000);
        assert!(pair.a.cq.poll_one().is_none(), "nothing is flushed");
        let sends = [1, 2].map(|wr_id| SendRequest::new(wr_id, SendOp::Send, local.sge(0, 8)));
        c.qp_a.post_send_list(&sends).unwrap();
        let ended = [(); 4].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
        let flushed = WcStatus::WrFlushError;
        assert_eq!(
            ended,
            [(1, WcStatus::RetryExceeded), (2, flushed), (7, flushed), (8, flushed)],
            "{end:?}"
        );
        assert_eq!(c.qp_a.state(), QpState::Error);
        c.qp_a.post_send(&sends[0]).unwrap();
        assert_eq!(pair.wc_a().status, flushed);
    }
}

#[test]
fn its_user_can_still_end_it() {
    for end in ENDS {
        for own_end in [QpState::Closing, QpState::Error] {
            let (mut pair, c) = connected_with(&outliving());
            let (local, _) = pair.regions(64);
            c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
            c.qp_b.modify(end).unwrap();
            await_end(&mut pair);
            c.qp_a.modify(own_end).unwrap();
            assert_eq!(c.qp_a.state(), QpState::Error, "at once: no engine has it any more");
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushError));
        }
    }
    // The second case drops the queue pair.
    let (mut pair, c) = connected_with(&outliving());
    c.qp_b.modify(QpState::Error).unwrap();
    await_end(&mut pair);
    let (local, _) = pair.regions(64);
    c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
    drop(c);
    assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);
}

/// A Read that the peer no longer answers fails, and its queue pair also fails.
#[test]
fn an_open_request_fails() {
    let (mut pair, c) = connected_with(&outliving());
    let (local, remote) = pair.regions(64);
    c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
    for wr_id in [1, 2] {
        let read = SendOp::Read { remote: remote_addr(&remote, 0) };
        c.qp_a.post_send(&SendRequest::new(wr_id, read, local.sge(8 * wr_id as usize, 8))).unwrap();
    }
    // The peer's engine ends the connection before it receives the requests.
    c.qp_b.modify(QpState::Error).unwrap();
    pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
    let ended = [(); 3].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
    let flushed = WcStatus::WrFlushError;
    assert_eq!(ended, [(1, WcStatus::RetryExceeded), (2, flushed), (7, flushed)]);
    assert_eq!(c.qp_a.state(), QpState::Error);
}

/// A request that is posted while the connection ends completes exactly once: either it is sent, or it fails.
#[test]
fn a_send_in_between_completes_once() {
    for steps in 0..40 {
        let (mut pair, c) = connected_with(&outliving());
        let (local, remote) = pair.regions(64);
        c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(0, 8))).unwrap();
        c.qp_b.modify(QpState::Closing).unwrap();
        (0..steps).for_each(|_| pair.poll());
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
        let wc = pair.wc_a();
        assert_eq!(wc.wr_id, 1);
        assert!(matches!(wc.status, WcStatus::Success | WcStatus::RetryExceeded), "{steps}: {wc:?}");
        pair.run_us(50_000);
        assert!(pair.a.cq.poll_one().is_none());
    }
}

const RETRY: Duration = Duration::from_millis(500);

/// Waits for the next completion of A. Returns the completion and the time since `start_us`.
fn next_after(pair: &mut Pair, start_us: i64) -> ((u64, WcStatus), i64) {
    let wc = pair.wc_a();
    ((wc.wr_id, wc.status), pair.now_us - start_us)
}

/// Connects A to a queue pair of B with a shared receive queue, which has one receive request. A retries
/// requests for half a second.
fn retrying() -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let listener = pair.listen();
    let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::new(&pair.b.cq) };
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
    qp_a.set_retry_time(RETRY);
    let c = pair.connect_qps(qp_a, qp_b, &outliving(), &outliving());
    listener.disconnect();
    srq.post_recv(&RecvRequest::new(7, Sge::default())).unwrap();
    pair.run_us(50_000);
    (pair, c)
}

/// The peer accepts one Send and then ends the connection. The next Send is posted before or after this side
/// receives the peer's FIN or RST. The first Send succeeds at once. The next Send fails when the retry time
/// is over, so that a program that waits for other completions gets these first. Requests behind the failed
/// Send are flushed.
#[test]
fn a_send_to_a_peer_that_has_ended_is_retried() {
    let (flushed, failed) = (WcStatus::WrFlushError, WcStatus::RetryExceeded);
    for end in ENDS {
        for after_us in [0, 1, 2, 3, 5, 10, 40, 10_000] {
            let (mut pair, c) = retrying();
            c.qp_a.post_recv(&RecvRequest::new(9, Sge::default())).unwrap();
            c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::Success);
            c.qp_b.modify(end).unwrap();
            let start_us = pair.now_us;
            pair.run_us(after_us);
            for wr_id in [2, 3] {
                c.qp_a.post_send(&SendRequest::empty(wr_id, SendOp::Send)).unwrap();
            }
            let (first, took_us) = next_after(&mut pair, start_us);
            assert_eq!(first, (2, failed), "{end:?} after {after_us} us");
            assert!((490_000..600_000).contains(&took_us), "{end:?} after {after_us} us: {took_us} us");
            let rest = [(); 2].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
            assert_eq!(rest, [(3, flushed), (9, flushed)]);
            assert_eq!(c.qp_a.state(), QpState::Error);
            pair.a.engine.check_invariants().unwrap();
        }
    }
}

/// Two Reads are outstanding when the peer ends the connection. The first Read fails when the retry time is
/// over, and the second Read is flushed. A Send that is posted after the retry time fails at once.
#[test]
fn reads_are_retried_and_late_sends_are_not() {
    let (mut pair, c) = connected_with(&outliving());
    c.qp_a.set_retry_time(RETRY);
    let (local, remote) = pair.regions(64);
    for wr_id in [1, 2] {
        let read = SendOp::Read { remote: remote_addr(&remote, 0) };
        c.qp_a.post_send(&SendRequest::new(wr_id, read, local.sge(8 * wr_id as usize, 8))).unwrap();
    }
    c.qp_b.modify(QpState::Error).unwrap();
    pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
    let start_us = pair.now_us;
    let (first, took_us) = next_after(&mut pair, start_us);
    assert_eq!(first, (1, WcStatus::RetryExceeded));
    assert!((490_000..600_000).contains(&took_us), "{took_us} us");
    assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);

    let (mut pair, c) = retrying();
    c.qp_b.modify(QpState::Closing).unwrap();
    await_end(&mut pair);
    pair.run_us(2 * RETRY.as_micros() as i64);
    assert_eq!(c.qp_a.state(), QpState::Orphaned);
    c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
    let wc = pair.a.cq.poll_one().expect("it fails at once");
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RetryExceeded));
}

/// While requests are retried, the user can end or drop the queue pair, and the engine can stop. The requests
/// then fail at once.
#[test]
fn retries_end_with_their_user() {
    let (flushed, failed) = (WcStatus::WrFlushError, WcStatus::RetryExceeded);
    for (way, expected) in [("close", flushed), ("abort", flushed), ("drop", flushed), ("stop", failed)] {
        let (mut pair, c) = retrying();
        c.qp_b.modify(QpState::Closing).unwrap();
        await_end(&mut pair);
        c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        pair.run_us(10_000);
        assert!(pair.a.cq.poll_one().is_none(), "it waits");
        match way {
            "close" => c.qp_a.modify(QpState::Closing).unwrap(),
            "abort" => c.qp_a.modify(QpState::Error).unwrap(),
            "drop" => drop(c),
            _ => {
                let a = pair.a;
                drop(a.engine);
                let wc = a.cq.poll_one().expect("at once");
                assert_eq!((wc.wr_id, wc.status), (1, expected), "{way}");
                continue;
            }
        }
        let wc = pair.a.cq.poll_one().expect("at once");
        assert_eq!((wc.wr_id, wc.status), (1, expected), "{way}");
        pair.run_us(2 * RETRY.as_micros() as i64);
        assert!(pair.a.cq.poll_one().is_none());
    }
}

/// A queue pair ends with its connection if the peers have not agreed on InfiniBand's semantics, if
/// `outlives_peer` is not set, or after an error of the stream.
#[test]
fn otherwise_it_ends_with_its_peer() {
    let plain = ConnParam { ib_semantics: false, ..outliving() };
    let other = ConnParam { outlives_peer: false, ..outliving() };
    for param in [plain, other] {
        for end in ENDS {
            let (mut pair, c) = connected_with(&param);
            let (local, _) = pair.regions(64);
            c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
            c.qp_b.modify(end).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);
            assert_eq!(c.qp_a.state(), QpState::Error);
        }
    }
    let (mut pair, c) = connected_with(&outliving());
    c.qp_b.modify(QpState::Terminate).unwrap();
    await_end(&mut pair);
    assert_eq!(c.qp_a.state(), QpState::Error);
    let fatal = pair.a.context.async_events().poll().unwrap();
    assert!(fatal.is_some_and(|event| event.kind == AsyncEventKind::QpFatal));
}

/// Returns a queue pair of A that accepts sends before its connection is established.
fn early(pair: &Pair) -> QueuePair {
    pair.a.pd.create_qp(&QpInit { early_sends: true, ..QpInit::new(&pair.a.cq) }).unwrap()
}

/// If the peer rejects the connect request or nobody listens, the queue pair waits like a queue pair whose
/// peer has ended the connection.
#[test]
fn without_a_connection_receives_stay_and_the_first_send_fails() {
    for is_rejected in [true, false] {
        let mut pair = Testbed::new().hosts();
        let _listener = is_rejected.then(|| pair.listen());
        let (local, _) = pair.regions(64);
        let qp = early(&pair);
        qp.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp, pair.b.address, &outliving()).unwrap();
        if is_rejected {
            let event = told!(pair.event_b(), ConnectRequest { .. });
            event.id.reject(b"").unwrap();
        }
        told!(pair.event_a(), Rejected { .. } | CmEventKind::ConnectError { .. });
        pair.run_us(50_000);
        assert_eq!(qp.state(), QpState::Orphaned);
        assert!(pair.a.cq.poll_one().is_none(), "nothing is flushed");
        qp.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
        let ended = [(); 2].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
        assert_eq!(ended, [(1, WcStatus::RetryExceeded), (7, WcStatus::WrFlushError)]);
        assert_eq!(qp.state(), QpState::Error);
    }
}

#[test]
fn a_peer_that_does_not_answer_can_be_given_up() {
    for is_connecting in [true, false] {
        let mut pair = Testbed::new().hosts();
        let (local, _) = pair.regions(64);
        let qp = early(&pair);
        qp.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
        let sends = [1, 2].map(|wr_id| SendRequest::new(wr_id, SendOp::Send, local.sge(0, 8)));
        qp.post_send_list(&sends).unwrap();
        let _listener = pair.listen();
        let id = pair.a.context.create_id(&pair.a.channel);
        if is_connecting {
            id.connect(&qp, pair.b.address, &outliving()).unwrap();
        }
        pair.run_us(50_000);
        assert!(qp.give_up());
        let ended = [(); 3].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
        let flushed = WcStatus::WrFlushError;
        assert_eq!(ended, [(1, WcStatus::RetryExceeded), (2, flushed), (7, flushed)]);
        pair.run_us(50_000);
        assert_eq!(qp.state(), QpState::Error);
        assert!(!qp.give_up(), "once");
    }
    let (_pair, c) = connected_with(&outliving());
    assert!(!c.qp_a.give_up());
    assert_eq!(c.qp_a.state(), QpState::Rts);
}

/// The user has ended the queue pair before the peer ends. The queue pair then ends like a queue pair without
/// `outlives_peer`, and outstanding requests are flushed, whether the engine has already seen the user's
/// command or not.
#[test]
fn one_that_its_user_has_ended_does_not_outlive_its_peer() {
    for own_end in [QpState::Closing, QpState::Error] {
        for is_seen in [true, false] {
            let (mut pair, c) = connected_with(&outliving());
            let (local, remote) = pair.regions(64);
            c.qp_a.post_recv(&RecvRequest::new(7, local.sge(0, 8))).unwrap();
            let read = SendOp::Read { remote: remote_addr(&remote, 0) };
            c.qp_a.post_send(&SendRequest::new(1, read, local.sge(8, 8))).unwrap();
            if is_seen {
                c.qp_a.modify(own_end).unwrap();
                pair.a.engine.poll_at(Instant::from_micros(pair.now_us));
            }
            // B resets the connection before it has received the Read.
            c.qp_b.modify(QpState::Error).unwrap();
            pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
            if !is_seen {
                c.qp_a.modify(own_end).unwrap();
            }
            let ended = [(); 2].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
            let flushed = WcStatus::WrFlushError;
            assert_eq!(ended, [(1, flushed), (7, flushed)], "{own_end:?}, seen: {is_seen}");
            assert_eq!(c.qp_a.state(), QpState::Error);
        }
    }
}

/// As soon as the peer has ended the connection, other connections can use the slots that were reserved for
/// the peer's Reads.
#[test]
fn without_a_peer_it_has_no_read_slots() {
    let (mut pair, c) = connected_with(&outliving());
    assert_ne!(pair.a.context.usage().read_slots.used, 0);
    c.qp_b.modify(QpState::Closing).unwrap();
    await_end(&mut pair);
    assert_eq!(c.qp_a.state(), QpState::Orphaned);
    assert_eq!(pair.a.context.usage().read_slots.used, 0);
}

/// If a peer accepts a connection that the user has given up, the connection is reset at once, and the queue
/// pair stays in the error state.
#[test]
fn a_connection_that_was_given_up_does_not_come_about() {
    let (mut pair, _listener) = Pair::listening();
    let (local, _) = pair.regions(64);
    let qp = early(&pair);
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect(&qp, pair.b.address, &outliving()).unwrap();
    let request = pair.event_b();
    assert!(qp.give_up());
    let qp_b = pair.b.qp();
    request.id.accept(&qp_b, &outliving()).unwrap();
    told!(
        pair.until(|pair| {
            pair.b.channel.poll().filter(|event| !matches!(event.kind, CmEventKind::Established { .. }))
        }),
        Disconnected { .. } | CmEventKind::ConnectError { .. }
    );
    pair.run_us(50_000);
    assert_eq!(qp.state(), QpState::Error);
    qp.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
    assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);
}

/// A request fails at this side, either before it is sent or because of its response. This failure ends the
/// connection without a Terminate, and the peer's queue pair outlives the connection.
#[test]
fn a_request_that_fails_at_home_leaves_the_peer_alone() {
    for is_atomic in [true, false] {
        let mut pair = Testbed::new().late_memory_checks().hosts();
        let c = pair.connect(&outliving());
        let rights = Access::LOCAL_WRITE | Access::REMOTE;
        let [local, remote] = [&pair.a.pd, &pair.b.pd].map(|pd| pd.reg_mr(64, rights).unwrap());
        c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(0, 8))).unwrap();
        let wrong = Sge { lkey: !local.lkey(), ..local.sge(0, 8) };
        let remote_addr = remote_addr(&remote, 8);
        let op = match is_atomic {
            true => SendOp::Atomic { remote: remote_addr, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
            false => SendOp::Write { remote: remote_addr },
        };
        c.qp_a.post_send(&SendRequest::new(1, op, wrong)).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::LocalProtectionError);
        pair.run_us(50_000);
        assert_ne!(c.qp_a.state(), QpState::Rts);
        assert_eq!(c.qp_b.state(), QpState::Orphaned);
        assert!(pair.b.cq.poll_one().is_none(), "nothing is flushed");
        // The Write was not executed. The atomic was executed, but its value could not be placed.
        assert_eq!(read_bytes(&remote, 8, 8), u64::from(is_atomic).to_ne_bytes());
    }
}

/// If the response of a Read or atomic cannot be placed, a later Write is flushed, although the peer has
/// accepted the Write: no request succeeds after a failed request.
#[test]
fn nothing_succeeds_behind_a_request_whose_response_finds_no_place() {
    for is_atomic in [true, false] {
        let mut pair = Testbed::new().late_memory_checks().hosts();
        let c = pair.connect(&outliving());
        let rights = Access::LOCAL_WRITE | Access::REMOTE;
        let [local, remote] = [&pair.a.pd, &pair.b.pd].map(|pd| pd.reg_mr(64, rights).unwrap());
        local.write_at(8, b"behind..").unwrap();
        let wrong = Sge { lkey: !local.lkey(), ..local.sge(0, 8) };
        let from = remote_addr(&remote, 8);
        let op = match is_atomic {
            true => SendOp::Atomic { remote: from, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
            false => SendOp::Read { remote: from },
        };
        let write = SendOp::Write { remote: remote_addr(&remote, 16) };
        let requests = [SendRequest::new(1, op, wrong), SendRequest::new(2, write, local.sge(8, 8))];
        c.qp_a.post_send_list(&requests).unwrap();
        let ended = [(); 2].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
        assert_eq!(ended, [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)], "{op:?}");
        assert_eq!(read_bytes(&remote, 16, 8), *b"behind..", "the peer has taken it");
    }
}
