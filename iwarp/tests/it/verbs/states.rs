//! Tests queue pair states: the effect of posts and of `modify` in each state, and draining. Also tests
//! requests that are signaled or unsignaled, inline, or fenced, and the limits of a queue pair.

use crate::common::raw::ulpdus;
use crate::common::served::Served;
use crate::common::{ALL, Pair, read_bytes, remote_addr};
use iwarp::memory::{Access, WindowKind};
use iwarp::mpa::Framer;
use iwarp::verbs::{
    AsyncEventKind, ConnParam, Context, ContextConfig, MAX_INLINE, MAX_SGE, QpInit, QpState, QueuePair,
    RecvRequest, SendFlags, SendOp, SendRequest, Sge, VerbsError, WcStatus,
};

const STATES: [QpState; 5] =
    [QpState::Idle, QpState::Rts, QpState::Closing, QpState::Terminate, QpState::Error];

/// Returns a connection whose queue pair is in `state` and stays there while the peer is silent. For `Idle`,
/// the returned queue pair is not that of the connection.
fn in_state(state: QpState) -> (Served, QueuePair) {
    let mut served = Served::new();
    match state {
        QpState::Idle => {
            let qp = served.pd.create_qp(&QpInit::new(&served.cq)).unwrap();
            return (served, qp);
        }
        QpState::Rts => {}
        QpState::Closing => {
            // The close waits for the answer to this Read.
            served.qp.post_send(&served.read(100)).unwrap();
            served.pair.until(1000, |_| false);
            served.qp.modify(QpState::Closing).unwrap();
        }
        QpState::Terminate => served.qp.modify(QpState::Terminate).unwrap(),
        QpState::Error => served.qp.modify(QpState::Error).unwrap(),
        QpState::Orphaned => unreachable!("this state has tests of its own: ext/outlives_peer.rs"),
    }
    served.pair.until(10_000, |_| false);
    served.completions();
    let qp = served.qp.clone();
    assert_eq!(qp.state(), state);
    (served, qp)
}

/// What happens to a request within 10 ms after the post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostOutcome {
    Refused,
    Waits,
    Done,
    Flushed,
}

fn fate(served: &mut Served, posted: Result<(), VerbsError>) -> PostOutcome {
    match posted {
        Err(VerbsError::InvalidState(_)) => return PostOutcome::Refused,
        other => other.unwrap(),
    }
    served.pair.until(10_000, |_| false);
    match served.completions()[..] {
        [] => PostOutcome::Waits,
        [(7, WcStatus::Success)] => PostOutcome::Done,
        [(7, WcStatus::WrFlushError)] => PostOutcome::Flushed,
        ref other => panic!("{other:?}"),
    }
}

// Proves RDMAP-261: the test posts a send and a receive in each state. In `Terminate`, after the Terminate
// was sent, posted requests are not sent.
#[test]
fn what_a_post_does_in_each_state() {
    use PostOutcome::{Done, Flushed, Refused, Waits};
    let expected = [
        (QpState::Idle, Refused, false, Waits),
        (QpState::Rts, Done, true, Waits),
        (QpState::Closing, Refused, false, Waits),
        (QpState::Terminate, Flushed, false, Flushed),
        (QpState::Error, Flushed, false, Flushed),
    ];
    for (state, on_send, is_sent, on_recv) in expected {
        for list in [false, true] {
            let (mut served, qp) = in_state(state);
            let before = served.pair.inbox.len();
            let send = SendRequest::new(7, SendOp::Send, served.region.sge(0, 8));
            let posted = if list {
                qp.post_send_list(&[send]).map_err(|(_, error)| error)
            } else {
                qp.post_send(&send)
            };
            assert_eq!(fate(&mut served, posted), on_send, "post_send in {state:?}");
            assert_eq!(served.pair.inbox.len() > before, is_sent, "{state:?}: bytes on the wire");

            let (mut served, qp) = in_state(state);
            let recv = RecvRequest::new(7, served.region.sge(0, 8));
            let posted = if list {
                qp.post_recv_list(&[recv]).map_err(|(_, error)| error)
            } else {
                qp.post_recv(&recv)
            };
            assert_eq!(fate(&mut served, posted), on_recv, "post_recv in {state:?}");
        }
    }
}

/// A user requests a change from each state to each state. Only the changes below are allowed.
#[test]
fn what_modify_does_in_each_state() {
    for from in STATES {
        for to in STATES {
            let (mut served, qp) = in_state(from);
            let changed = qp.modify(to);
            let allowed = match (from, to) {
                _ if from == to => true,
                (QpState::Rts, QpState::Closing) => true,
                (QpState::Rts | QpState::Closing, QpState::Terminate) => true,
                (_, QpState::Error) => true,
                _ => false,
            };
            assert_eq!(changed.is_ok(), allowed, "{from:?} to {to:?}");
            if !allowed {
                assert!(matches!(changed, Err(VerbsError::InvalidState(state)) if state == from));
            }
            served.pair.until(10_000, |_| false);
            let now = match (from, to) {
                _ if !allowed => from,
                // If nothing is left to send, the FIN is sent. The state stays until the peer's FIN arrives.
                _ => to,
            };
            assert_eq!(qp.state(), now, "{from:?} to {to:?}");
        }
    }
}

/// If a queue pair is moved to the error state before it is connected, a connect is refused. If a queue pair
/// is moved to the error state during a connect, the connect stops.
#[test]
fn error_before_the_connection() {
    let (mut pair, _listener) = Pair::listening();
    let qp = pair.a.qp();
    let memory = pair.a.pd.reg_mr(64, ALL).unwrap();
    qp.post_recv(&RecvRequest::new(1, memory.sge(0, 8))).unwrap();
    qp.modify(QpState::Error).unwrap();
    assert_eq!(pair.a.cq.poll_one().map(|wc| (wc.wr_id, wc.status)), Some((1, WcStatus::WrFlushError)));
    let id = pair.a.context.create_id(&pair.a.channel);
    let refused = id.connect(&qp, pair.b.address, &ConnParam::default());
    assert!(matches!(refused, Err(VerbsError::InvalidState(QpState::Error))));
    let qp = pair.a.qp();
    id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
    qp.modify(QpState::Error).unwrap();
    let event = pair.event_a();
    assert!(matches!(event.kind, iwarp::verbs::CmEventKind::ConnectError { .. }), "{event:?}");
    assert_eq!(qp.state(), QpState::Error);
}

/// The event of a drained send queue occurs once when all posted requests, including Reads, are complete, and
/// not earlier. If no request is open, the event occurs at once.
#[test]
fn draining_the_send_queue() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(1 << 20);
    let to = remote_addr(&remote, 0);
    let events = pair.a.context.async_events();
    let told = || events.poll().unwrap().map(|event| (event.kind, event.number));
    let drained = Some((AsyncEventKind::SqDrained, c.qp_a.qp_num()));
    assert_eq!(told(), None);
    c.qp_a.drain();
    assert_eq!((told(), told()), (drained, None), "nothing was open");
    for wr_id in 0..20 {
        let read = SendRequest::new(wr_id, SendOp::Read { remote: to }, local.sge(0, 50_000));
        // Half of the requests are unsignaled.
        let flags = if wr_id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        c.qp_a.post_send(&read.flags(flags)).unwrap();
    }
    c.qp_a.drain();
    let mut before = 0;
    let event = pair.until(|_| {
        before = c.qp_a.query().send_open;
        told()
    });
    assert_eq!((Some(event), before, told()), (drained, 0, None));
    let attr = c.qp_a.query();
    assert_eq!((attr.send_open, attr.send_outstanding), (0, 10), "completed, and not reaped");
    // The user has not called `drain` again, so there is no event.
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote: to }, local.sge(0, 8))).unwrap();
    pair.run_us(1000);
    assert_eq!(told(), None);
    // A flush also drains the queue.
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Read { remote: to }, local.sge(0, 50_000))).unwrap();
    c.qp_a.drain();
    c.qp_a.modify(QpState::Error).unwrap();
    assert_eq!(Some(pair.until(|_| told())), drained);
}

// Proves RDMAP-034, RDMAP-045, RDMAP-260: ten requests are queued when the stream ends. After an abort, the
// requests that TCP has accepted complete, and the other requests are flushed in order. After a graceful
// close, all requests complete.
#[test]
fn an_abort_flushes_in_order_and_a_close_does_not_flush() {
    for abort in [true, false] {
        let (mut pair, c) = Pair::connected();
        let (local, remote) = pair.regions(1 << 20);
        for wr_id in 0..10 {
            c.qp_b.post_recv(&RecvRequest::new(wr_id, remote.sge(0, 1 << 20))).unwrap();
            c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Send, local.sge(0, 1 << 20))).unwrap();
        }
        let first = pair.wc_b();
        assert_eq!((first.wr_id, first.byte_len), (0, 1 << 20));
        c.qp_a.modify(if abort { QpState::Error } else { QpState::Closing }).unwrap();
        pair.until(|_| (c.qp_a.state() == QpState::Error).then_some(()));
        let completions: Vec<_> =
            std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert!(completions.iter().map(|&(wr_id, _)| wr_id).eq(0..10), "in order: {completions:?}");
        let done = completions.iter().take_while(|&&(_, status)| status == WcStatus::Success).count();
        assert!(completions[done..].iter().all(|&(_, status)| status == WcStatus::WrFlushError));
        assert_eq!(done == 10, !abort, "{done} were done");
        pair.run_us(100_000);
        let arrived =
            std::iter::from_fn(|| pair.b.cq.poll_one()).filter(|wc| wc.status == WcStatus::Success).count();
        assert_eq!(arrived == 9, !abort, "{arrived} arrived");
    }
}

/// A successful request generates a completion only if the request or the queue pair asks for one.
#[test]
fn selective_signalling() {
    for sq_sig_all in [false, true] {
        let (mut pair, _listener) = Pair::listening();
        let qp_a = pair.a.pd.create_qp(&QpInit { sq_sig_all, ..QpInit::new(&pair.a.cq) }).unwrap();
        let qp_b = pair.b.qp();
        let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        let (local, remote) = pair.regions(64);
        let to = remote_addr(&remote, 0);
        for wr_id in 0..9 {
            let op = if wr_id % 2 == 0 { SendOp::Write { remote: to } } else { SendOp::Read { remote: to } };
            let flags = if wr_id % 3 == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
            c.qp_a.post_send(&SendRequest::new(wr_id, op, local.sge(0, 8)).flags(flags)).unwrap();
        }
        pair.run_us(10_000);
        let got: Vec<_> = std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| wc.wr_id).collect();
        let expected: &[u64] = if sq_sig_all { &[0, 1, 2, 3, 4, 5, 6, 7, 8] } else { &[2, 5, 8] };
        assert_eq!(got, expected);
        // An unsignaled request also generates a completion if it fails.
        c.qp_a.modify(QpState::Error).unwrap();
        pair.run_us(1000);
        let write = SendRequest::new(9, SendOp::Write { remote: to }, local.sge(0, 8));
        c.qp_a.post_send(&write.flags(SendFlags::empty())).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::WrFlushError);
    }
}

/// Inline bytes are copied at the post, and other bytes are read when they are sent.
#[test]
fn inline_data_is_taken_at_the_post() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(64);
    for (flags, expected) in
        [(SendFlags::SIGNALED, b"later"), (SendFlags::SIGNALED | SendFlags::INLINE, b"first")]
    {
        c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
        local.write_at(0, b"first").unwrap();
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 5)).flags(flags)).unwrap();
        local.write_at(0, b"later").unwrap();
        assert_eq!(pair.wc_b().byte_len, 5);
        let got = read_bytes(&remote, 0, 5);
        assert_eq!(&got, expected);
    }
}

/// A fenced request waits for the Reads before it, and sends the bytes that these Reads have placed. A
/// request without a fence does not wait.
#[test]
fn a_fence_waits_for_reads() {
    for fenced in [false, true] {
        let (mut pair, c) = Pair::connected();
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        let remote = pair.b.pd.reg_mr(128, ALL).unwrap();
        local.write_at(0, b"stale").unwrap();
        remote.write_at(0, b"fresh").unwrap();
        c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(64, 64))).unwrap();
        let from = remote_addr(&remote, 0);
        let flags = if fenced { SendFlags::SIGNALED | SendFlags::FENCE } else { SendFlags::SIGNALED };
        c.qp_a
            .post_send_list(&[
                SendRequest::new(1, SendOp::Read { remote: from }, local.sge(0, 5)),
                SendRequest::new(2, SendOp::Send, local.sge(0, 5)).flags(flags),
            ])
            .unwrap();
        pair.wc_b();
        let got = read_bytes(&remote, 64, 5);
        assert_eq!(&got, if fenced { b"fresh" } else { b"stale" });
    }
}

/// A fence also works for a request whose bytes come from the caller: when the peer has the message, the Read
/// before it has its bytes.
#[test]
fn a_fence_holds_inline_bytes_of_the_caller() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(128);
    local.write_at(0, b"stale").unwrap();
    remote.write_at(0, b"fresh").unwrap();
    c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(64, 64))).unwrap();
    let read = SendOp::Read { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, read, local.sge(0, 5))).unwrap();
    let flags = SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::INLINE;
    let send = SendRequest::empty(2, SendOp::Send).flags(flags);
    c.qp_a.send_batch().push_inline(&send, &[b"by", b"tes"]).unwrap();
    pair.wc_b();
    assert_eq!(read_bytes(&remote, 64, 5), b"bytes");
    assert_eq!(read_bytes(&local, 0, 5), b"fresh");
}

/// A queue pair whose requests may have at most 0 elements refuses a request with an element.
#[test]
fn no_element_is_a_limit() {
    let (pair, c) = Pair::connected();
    drop(c);
    let init = QpInit { max_send_sge: 0, early_sends: true, ..QpInit::new(&pair.a.cq) };
    let qp = pair.a.pd.create_qp(&init).unwrap();
    let local = pair.a.pd.reg_mr(64, ALL).unwrap();
    let refused = qp.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap_err();
    assert!(matches!(refused, VerbsError::TooManySge { got: 1, max: 0 }), "{refused}");
}

/// Each limit of a queue pair allows exactly its value, and the query returns this value.
#[test]
fn limits_of_a_queue_pair() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let init = QpInit {
        max_send_wr: 3,
        max_recv_wr: 2,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline: 16,
        ..QpInit::new(&cq)
    };
    for (name, wrong) in [
        ("MAX_SGE", QpInit { max_send_sge: MAX_SGE + 1, ..init }),
        ("MAX_SGE", QpInit { max_recv_sge: MAX_SGE + 1, ..init }),
        ("MAX_INLINE", QpInit { max_inline: MAX_INLINE + 1, ..init }),
        ("max_qp_wr", QpInit { max_send_wr: 32_769, ..init }),
        ("max_qp_wr", QpInit { max_recv_wr: 32_769, ..init }),
    ] {
        assert!(
            matches!(pd.create_qp(&wrong), Err(VerbsError::Limit { name: n, .. }) if n == name),
            "{name}"
        );
    }
    let qp = pd.create_qp(&init).unwrap();
    let attr = qp.query();
    assert_eq!(
        (attr.max_send_wr, attr.max_recv_wr, attr.max_send_sge, attr.max_recv_sge, attr.max_inline),
        (3, 2, 2, 1, 16)
    );
    assert_eq!((attr.state, attr.ord, attr.ird, attr.cause), (QpState::Idle, None, None, None));
    assert_eq!((attr.send_cq, attr.recv_cq), (cq.cq_num(), cq.cq_num()));
    let memory = pd.reg_mr(64, ALL).unwrap();
    let sge = |count: usize| {
        std::iter::repeat_n(memory.sge(0, 8), count).collect::<arrayvec::ArrayVec<Sge, MAX_SGE>>()
    };
    // A queue pair in `Error` makes all checks of a post. If a request passes these checks, the queue pair
    // accepts and flushes the request.
    qp.modify(QpState::Error).unwrap();
    let send = |count, flags| {
        qp.post_send(&SendRequest { sg_list: sge(count), ..SendRequest::empty(1, SendOp::Send) }.flags(flags))
    };
    assert!(matches!(send(3, SendFlags::empty()), Err(VerbsError::TooManySge { got: 3, max: 2 })));
    send(2, SendFlags::INLINE).unwrap();
    let recv = |count| qp.post_recv(&RecvRequest { wr_id: 1, sg_list: sge(count) });
    assert!(matches!(recv(2), Err(VerbsError::TooManySge { got: 2, max: 1 })));
    let long = SendRequest::new(1, SendOp::Send, memory.sge(0, 17)).flags(SendFlags::INLINE);
    assert!(matches!(qp.post_send(&long), Err(VerbsError::TooLong { got: 17, max: 16 })));
    // A request uses an entry of its queue until its completion is polled.
    send(1, SendFlags::empty()).unwrap();
    send(0, SendFlags::empty()).unwrap();
    assert!(matches!(send(1, SendFlags::empty()), Err(VerbsError::QueueFull("send"))));
    recv(1).unwrap();
    recv(0).unwrap();
    assert!(matches!(recv(1), Err(VerbsError::QueueFull("receive"))));
    let (posted, error) = qp.post_recv_list(&[RecvRequest::new(1, memory.sge(0, 8))]).unwrap_err();
    assert!(matches!((posted, error), (0, VerbsError::QueueFull("receive"))));
    assert_eq!((qp.query().send_outstanding, qp.query().recv_outstanding), (3, 2));
    while cq.poll_one().is_some() {}
    assert_eq!((qp.query().send_outstanding, qp.query().recv_outstanding), (0, 0));
    let (posted, _) = qp
        .post_recv_list(&std::array::from_fn::<_, 3, _>(|_| RecvRequest::new(1, memory.sge(0, 8))))
        .unwrap_err();
    assert_eq!(posted, 2);
    // A queue of depth 0 accepts no request.
    let none = pd.create_qp(&QpInit { max_send_wr: 0, max_recv_wr: 0, ..init }).unwrap();
    assert!(matches!(none.post_recv(&RecvRequest::new(1, memory.sge(0, 8))), Err(VerbsError::QueueFull(_))));
}

/// After our user has closed gracefully, the send queue accepts no more requests. The engine need not have
/// processed the close, and the connection may end in any way. Earlier requests are sent. Receives are still
/// accepted and used.
// Proves DDP-149: the test closes through the identifier or through the queue pair. The test posts before the
// engine's next poll, while the close waits for an answer, and after the end. Nothing is sent, and no entry
// of the queue is used.
#[test]
fn nothing_is_posted_behind_a_graceful_close() {
    type Act = fn(&Served);
    let asks: [Act; 2] =
        [|served| served.id.disconnect(), |served| served.qp.modify(QpState::Closing).unwrap()];
    let ends: [(Act, QpState); 4] = [
        (|_| {}, QpState::Closing),
        (|served| served.qp.modify(QpState::Terminate).unwrap(), QpState::Terminate),
        (|served| served.qp.modify(QpState::Error).unwrap(), QpState::Error),
        (|served| served.id.abort(), QpState::Error),
    ];
    for ask in asks {
        for (end, last) in ends {
            let mut served = Served::new();
            let window = served.pd.alloc_mw(WindowKind::Type1).unwrap();
            // The close waits for the Read Response.
            served.qp.post_send(&served.read(1)).unwrap();
            served.qp.post_send(&SendRequest::new(2, SendOp::Send, served.region.sge(0, 3))).unwrap();
            ask(&served);
            let refused = |served: &Served| {
                let send = SendRequest::new(7, SendOp::Send, served.region.sge(0, 3));
                let (qp, whole) = (&served.qp, (&served.region, 0, 64));
                [
                    qp.post_send(&send),
                    qp.post_send_list(&[send.clone(), send]).map_err(|(_, error)| error),
                    qp.post_send(&SendRequest::empty(7, SendOp::LocalInvalidate { rkey: 1 })),
                    qp.bind_mw(7, &window, whole, Access::REMOTE_READ).map(drop),
                ]
                .iter()
                .all(|posted| matches!(posted, Err(VerbsError::InvalidState(QpState::Closing))))
            };
            assert_eq!(served.qp.state(), QpState::Rts, "the engine has not heard of it");
            assert!(refused(&served));
            served.pair.until(10_000, |_| false);
            assert_eq!(served.qp.state(), QpState::Closing);
            assert!(refused(&served));
            assert_eq!((served.qp.query().send_open, served.qp.query().send_outstanding), (2, 2));
            let sent = std::mem::take(&mut served.pair.inbox);
            assert_eq!(
                ulpdus(&mut Framer::new(false, true), &mut sent.clone()).len(),
                2,
                "the Read and the Send"
            );

            served.qp.post_recv(&RecvRequest::new(3, served.region.sge(8, 8))).unwrap();
            served.send(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, b'x']);
            served.pair.until(10_000, |_| false);
            assert_eq!(served.completions(), [(3, WcStatus::Success)]);

            end(&served);
            served.pair.until(10_000, |_| false);
            assert_eq!(served.qp.state(), last);
            let send = SendRequest::new(7, SendOp::Send, served.region.sge(0, 3));
            assert!(matches!(served.qp.post_send(&send), Err(VerbsError::InvalidState(_))), "{last:?}");
            served.pair.until(10_000, |_| false);
            assert!(served.completions().iter().all(|&(wr_id, _)| wr_id < 7), "{last:?}");
        }
    }
}

/// After the peer's FIN, the send queue also accepts no more requests. Requests that were posted before are
/// sent.
#[test]
fn nothing_is_posted_behind_the_peers_fin() {
    let mut served = Served::new();
    served.qp.post_send(&SendRequest::new(2, SendOp::Send, served.region.sge(0, 3))).unwrap();
    served.pair.close();
    assert!(served.pair.until(10_000, |_| served.qp.state() == QpState::Closing));
    let send = SendRequest::new(7, SendOp::Send, served.region.sge(0, 3));
    assert!(matches!(served.qp.post_send(&send), Err(VerbsError::InvalidState(QpState::Closing))));
    served.pair.until(10_000, |_| false);
    assert_eq!(served.completions(), [(2, WcStatus::Success)]);
}
