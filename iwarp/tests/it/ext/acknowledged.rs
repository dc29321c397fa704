//! With InfiniBand's semantics, requests complete when the peer has acknowledged them.

use crate::common::{Connected, Pair, Testbed, agreeing, pattern, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    CmEvent, CmEventKind, ConnectionError, MemoryRegion, QpInit, QpState, RecvRequest, RemoteAddr, SendFlags,
    SendOp, SendRequest, Sge, SrqInit, WcStatus,
};
use tcp_lite::Instant;

/// Returns a Write of eight bytes from `from` to offset `at` of `to`.
fn write(wr_id: u64, from: &MemoryRegion, to: &MemoryRegion, at: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Write { remote: remote_addr(to, at) }, from.sge(at, 8))
}

/// Returns `wr_id` and status of the next `N` completions of `a`.
fn statuses<const N: usize>(pair: &mut Pair) -> [(u64, WcStatus); N] {
    [(); N].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status))
}

/// The engine of the target has to place the bytes before the Write completes. This engine acknowledges the
/// bytes at once: the test leaves no time for the timer of delayed acknowledgements.
#[test]
fn a_completed_write_is_in_the_peers_memory() {
    let (mut pair, c) = Pair::agreeing();
    let (source, target) = pair.regions(64);
    pair.run_us(50_000);
    for round in 0..100 {
        let bytes = pattern(round, 8);
        source.write_at(0, &bytes).unwrap();
        c.qp_a.post_send(&write(round, &source, &target, 0)).unwrap();
        for _ in 0..20 {
            pair.a.engine.poll_at(Instant::from_micros(pair.now_us));
        }
        assert!(pair.a.cq.poll_one().is_none(), "the peer has not even seen it");
        let start_us = pair.now_us;
        assert_eq!(statuses(&mut pair), [(round, WcStatus::Success)]);
        assert_eq!(read_bytes(&target, 0, 8), bytes);
        let took_us = pair.now_us - start_us;
        assert!(took_us < 100, "it took {took_us} us");
    }
}

/// If the peer answers in time, the acknowledgement is sent together with the answer.
#[test]
fn an_answer_in_time_needs_no_frame_for_the_acknowledgement() {
    let (mut pair, c) = Pair::agreeing();
    let (local, other) = pair.regions(64);
    pair.run_us(50_000);
    let frames = |pair: &Pair| pair.b.engine.counters().port.tx_frames;
    let before = frames(&pair);
    for round in 0..50 {
        c.qp_a.post_recv(&RecvRequest::new(round, local.sge(0, 8))).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(round, other.sge(0, 8))).unwrap();
        c.qp_a.post_send(&SendRequest::new(round, SendOp::Send, local.sge(8, 8))).unwrap();
        pair.wc_b();
        let answer = SendRequest::new(round, SendOp::Send, other.sge(8, 8)).flags(SendFlags::empty());
        c.qp_b.post_send(&answer).unwrap();
        let both = [pair.wc_a(), pair.wc_a()].map(|wc| wc.status);
        assert_eq!(both, [WcStatus::Success; 2]);
    }
    assert_eq!(frames(&pair) - before, 50);
}

/// With `acknowledge_at_once`, an engine acknowledges a request in the poll in which the request arrives,
/// because the engine may not be polled again. Without this option, the engine needs one more poll.
#[test]
fn one_poll_of_the_peer_is_enough_if_it_is_told_so() {
    for (at_once, polls) in [(true, 1), (false, 2)] {
        let mut pair = Testbed::new().configure(|config| config.acknowledge_at_once = at_once).hosts();
        let c = pair.connect(&agreeing());
        let (source, target) = pair.regions(64);
        pair.run_us(50_000);
        c.qp_a.post_send(&write(1, &source, &target, 0)).unwrap();
        let now = Instant::from_micros(pair.now_us);
        pair.a.engine.poll_at(now);
        for poll in 1..=polls {
            pair.a.engine.poll_at(now);
            assert!(pair.a.cq.poll_one().is_none(), "after {} polls of the peer", poll - 1);
            pair.b.engine.poll_at(now);
        }
        pair.a.engine.poll_at(now);
        assert_eq!(pair.a.cq.poll_one().map(|wc| wc.status), Some(WcStatus::Success), "{at_once}");
    }
}

/// On InfiniBand, a Send is acknowledged before its answer arrives. So programs whose send queue has space
/// for one Send post the next Send as soon as the answer has arrived.
#[test]
fn a_send_completes_before_its_answer() {
    let (mut pair, c) = Pair::agreeing();
    let (local, other) = pair.regions(64);
    for round in 0..20 {
        c.qp_a.post_recv(&RecvRequest::new(100, local.sge(0, 8))).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(round, other.sge(0, 8))).unwrap();
        c.qp_a.post_send(&SendRequest::new(round, SendOp::Send, local.sge(8, 8))).unwrap();
        pair.wc_b();
        let answer = SendRequest::new(round, SendOp::Send, other.sge(8, 8)).flags(SendFlags::empty());
        c.qp_b.post_send(&answer).unwrap();
        assert_eq!([pair.wc_a(), pair.wc_a()].map(|wc| wc.wr_id), [round, 100]);
    }
}

/// The request that the peer refuses fails with its own error. Earlier requests succeed, and later requests
/// are flushed.
#[test]
fn a_refused_request_is_named() {
    for refused in 0..6 {
        for len in [8, 4000] {
            let (mut pair, c) = Pair::agreeing();
            let (source, target) = pair.regions(8000);
            let requests: Vec<_> = (0..6)
                .map(|wr_id| {
                    let remote = remote_addr(&target, wr_id as usize * 8);
                    let rkey = if wr_id == refused { remote.rkey ^ 0x100 } else { remote.rkey };
                    let op = SendOp::Write { remote: RemoteAddr { rkey, ..remote } };
                    SendRequest::new(wr_id, op, source.sge(0, len))
                })
                .collect();
            c.qp_a.post_send_list(&requests).unwrap();
            let expected = [0, 1, 2, 3, 4, 5].map(|wr_id| {
                let status = match wr_id {
                    _ if wr_id < refused => WcStatus::Success,
                    _ if wr_id == refused => WcStatus::RemoteAccessError,
                    _ => WcStatus::WrFlushError,
                };
                (wr_id, status)
            });
            assert_eq!(statuses::<6>(&mut pair), expected, "{len} bytes");
        }
    }
}

/// The peer accepts some Sends and refuses a later Send, because the receive request is too short. Only the
/// refused Send fails with the reason.
#[test]
fn a_refused_send_is_named() {
    let (mut pair, c) = Pair::agreeing();
    let (source, target) = pair.regions(64);
    for (wr_id, len) in [(0, 8), (1, 8), (2, 4), (3, 8)] {
        c.qp_b.post_recv(&RecvRequest::new(wr_id, target.sge(0, len))).unwrap();
    }
    let requests = [0, 1, 2, 3].map(|wr_id| SendRequest::new(wr_id, SendOp::Send, source.sge(0, 8)));
    c.qp_a.post_send_list(&requests).unwrap();
    let (done, flushed) = (WcStatus::Success, WcStatus::WrFlushError);
    let expected = [(0, done), (1, done), (2, WcStatus::RemoteInvalidRequest), (3, flushed)];
    assert_eq!(statuses::<4>(&mut pair), expected);
}

/// A refused Read also fails with its own reason, even if the acknowledgement of the Write before it arrives
/// together with the Terminate.
#[test]
fn a_refused_read_is_named() {
    let (mut pair, c) = Pair::agreeing();
    let (source, target) = pair.regions(64);
    let remote = remote_addr(&target, 0);
    let bad = RemoteAddr { rkey: remote.rkey ^ 0x100, ..remote };
    let read = SendRequest::new(1, SendOp::Read { remote: bad }, source.sge(8, 8));
    c.qp_a.post_send_list(&[write(0, &source, &target, 0), read, write(2, &source, &target, 16)]).unwrap();
    let flushed = WcStatus::WrFlushError;
    assert_eq!(
        statuses::<3>(&mut pair),
        [(0, WcStatus::Success), (1, WcStatus::RemoteAccessError), (2, flushed)]
    );
}

/// A request whose bytes are not acknowledged when the connection ends fails.
#[test]
fn unacknowledged_requests_of_a_lost_connection_fail() {
    let (mut pair, c) = Pair::agreeing();
    let (source, target) = pair.regions(64);
    c.qp_a.post_send(&write(1, &source, &target, 0)).unwrap();
    pair.a.engine.poll_at(Instant::from_micros(pair.now_us));
    c.qp_a.modify(QpState::Error).unwrap();
    assert_eq!(statuses(&mut pair), [(1, WcStatus::WrFlushError)]);
    let event = pair.event_a();
    let CmEventKind::Disconnected { error: Some(ConnectionError::Tcp(_)), .. } = event.kind else {
        panic!("{event:?}")
    };
}

/// All requests that were posted before a graceful close succeed in order. The wire is bad, the send queue
/// has few entries, and some requests are Reads.
#[test]
fn requests_complete_in_order_on_a_bad_wire() {
    let plan = LinkPlan {
        drop_ppm: 20_000,
        reorder_ppm: 20_000,
        reorder_us: 100,
        delay_us: 20,
        ..LinkPlan::default()
    };
    let link = LinkConfig { seed: 5, a_to_b: plan.clone(), b_to_a: plan, ..LinkConfig::default() };
    let mut pair = Testbed::on(&link).hosts();
    let c = pair.connect(&agreeing());
    let (source, target) = pair.regions(8 * 400);
    let bytes = pattern(3, 8 * 400);
    source.write_at(0, &bytes).unwrap();
    let mut next = 0;
    for wr_id in 0..400 {
        let at = wr_id as usize * 8;
        let request = match wr_id % 7 {
            3 => SendRequest::new(wr_id, SendOp::Read { remote: remote_addr(&target, 0) }, source.sge(0, 8)),
            _ => write(wr_id, &source, &target, at),
        };
        let signaled = wr_id % 3 != 1;
        let request = if signaled { request } else { request.flags(SendFlags::empty()) };
        while c.qp_a.post_send(&request).is_err() {
            let wc = pair.wc_a();
            assert_eq!((wc.status, wc.wr_id >= next), (WcStatus::Success, true));
            next = wc.wr_id + 1;
        }
    }
    c.qp_a.modify(QpState::Closing).unwrap();
    while next < 400 {
        let wc = pair.wc_a();
        assert_eq!((wc.status, wc.wr_id >= next), (WcStatus::Success, true));
        next = wc.wr_id + 1;
    }
    for at in (0..400).filter(|wr_id| wr_id % 7 != 3).map(|wr_id| wr_id * 8) {
        assert_eq!(read_bytes(&target, at, 8), bytes[at..at + 8], "at {at}");
    }
}

/// The wire delivers each frame twice. TCP answers the duplicate with an immediate acknowledgement, before
/// the Terminate is sent. This acknowledgement does not cover the refused bytes, so the request does not
/// complete until the Terminate arrives with the reason.
#[test]
fn a_refused_write_that_comes_twice_fails() {
    let twice = LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() };
    let mut pair = Testbed::on(&LinkConfig { a_to_b: twice, ..LinkConfig::default() }).hosts();
    let c = pair.connect(&agreeing());
    let (source, target) = pair.regions(64);
    let beyond = RemoteAddr { addr: remote_addr(&target, 0).addr + 64, ..remote_addr(&target, 0) };
    let refused = SendRequest::new(2, SendOp::Write { remote: beyond }, source.sge(0, 8));
    c.qp_a.post_send(&write(1, &source, &target, 0)).unwrap();
    assert_eq!(statuses(&mut pair), [(1, WcStatus::Success)]);
    c.qp_a.post_send(&refused).unwrap();
    let [(wr_id, status)] = statuses(&mut pair);
    assert_eq!((wr_id, status), (2, WcStatus::RemoteAccessError));
    for event in [pair.event_a(), pair.event_b()] {
        assert!(matches!(event.kind, CmEventKind::Disconnected { .. }), "{event:?}");
    }
}

/// A Send also fails if its receive request names deregistered memory, although this is not the sender's
/// fault.
#[test]
fn a_send_without_memory_that_comes_twice_fails() {
    let twice = LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() };
    let mut pair = Testbed::on(&LinkConfig { a_to_b: twice, ..LinkConfig::default() }).hosts();
    let c = pair.connect(&agreeing());
    let (source, target) = pair.regions(64);
    c.qp_b.post_recv(&RecvRequest::new(1, target.sge(0, 64))).unwrap();
    drop(target);
    c.qp_a.post_send(&SendRequest::new(2, SendOp::Send, source.sge(0, 8))).unwrap();
    assert_eq!(statuses(&mut pair), [(2, WcStatus::RemoteOperationError)]);
}

/// TCP must not acknowledge bytes that the engine has not checked, whatever makes TCP send in the same poll.
/// Otherwise the acknowledgement, which precedes the Terminate, would complete a refused request.
#[test]
fn a_refused_write_fails_whatever_else_is_acknowledged() {
    type Step = fn(&mut Pair, &Connected, &MemoryRegion, &MemoryRegion);
    let steps: [(&str, Step); 4] = [
        ("nothing", |_, _, _, _| {}),
        ("an acknowledgement is owed", |pair, c, source, target| {
            c.qp_a.post_send(&write(1, source, target, 0)).unwrap();
            poll_a_then_b(pair);
        }),
        ("the timer of delayed acknowledgements is due", |pair, c, source, target| {
            c.qp_a.post_send(&write(1, source, target, 0)).unwrap();
            poll_a_then_b(pair);
            pair.now_us += 20_000;
        }),
        ("the peer has much to send", |pair, c, source, target| {
            let back = SendOp::Write { remote: remote_addr(source, 0) };
            c.qp_b.post_send(&SendRequest::new(9, back, target.sge(0, 1 << 20))).unwrap();
            pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
        }),
    ];
    for (name, step) in steps {
        // The second segment of the longer message is refused.
        for (len, inside) in [(8, 0), (4000, 2000)] {
            let (mut pair, c) = Pair::agreeing();
            let (source, target) = pair.regions(1 << 20);
            pair.run_us(50_000);
            step(&mut pair, &c, &source, &target);
            let inside_of = remote_addr(&target, 0);
            let remote = RemoteAddr { addr: inside_of.addr + (1 << 20) - inside, ..inside_of };
            let refused = SendRequest::new(2, SendOp::Write { remote }, source.sge(0, len));
            c.qp_a.post_send(&refused).unwrap();
            poll_a_then_b(&mut pair);
            let wc = pair.until(|pair| pair.a.cq.poll_one().filter(|wc| wc.wr_id == 2));
            assert_eq!(wc.status, WcStatus::RemoteAccessError, "{len} bytes, before: {name}");
        }
    }
}

/// The peer accepts a Send although it has not announced a receive request, and closes before it announces
/// that it has accepted the Send. The Send succeeds.
#[test]
fn a_send_that_is_taken_succeeds_although_the_peer_closes_at_once() {
    for shared in [false, true] {
        let mut pair = Testbed::new().hosts();
        let listener = pair.listen();
        let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
        let init = QpInit { srq: shared.then_some(&srq), ..QpInit::new(&pair.b.cq) };
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
        let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
        listener.disconnect();
        let (local, remote) = pair.regions(64);
        let recv = RecvRequest::new(7, remote.sge(0, 64));
        if shared {
            srq.post_recv(&recv).unwrap()
        } else {
            c.qp_b.post_recv(&recv).unwrap()
        }
        pair.run_us(50_000);
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
        poll_a_then_b(&mut pair);
        let wc = pair.b.cq.poll_one().expect("one poll of each is enough");
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
        assert!(pair.a.cq.poll_one().is_none(), "it does not know yet");
        c.qp_b.modify(QpState::Closing).unwrap();
        assert_eq!(statuses(&mut pair), [(1, WcStatus::Success)], "shared: {shared}");
    }
}

/// Two messages of the peer are lost: the report that the peer has accepted a Send, and the FIN. Another Send
/// then arrives, which the peer refuses with a reset. The sequence number of the reset is beyond the bytes of
/// the lost frames.
#[test]
fn a_send_that_is_taken_succeeds_although_a_later_one_is_refused() {
    let run = |lost: &[u64]| {
        let b_to_a = LinkPlan { drop_exactly: lost.into(), ..LinkPlan::default() };
        let mut pair = Testbed::on(&LinkConfig { b_to_a, ..LinkConfig::default() }).hosts();
        let c = pair.connect(&agreeing());
        pair.run_us(50_000);
        c.qp_b.post_recv(&RecvRequest::new(7, Sge::default())).unwrap();
        c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        poll_a_then_b(&mut pair);
        assert_eq!(pair.b.cq.poll_one().map(|wc| wc.wr_id), Some(7));
        let frames = |pair: &Pair| pair.b.engine.counters().port.tx_frames;
        let before = frames(&pair);
        c.qp_b.modify(QpState::Closing).unwrap();
        for _ in 0..3 {
            pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
        }
        let sent = before..frames(&pair);
        c.qp_a.post_send(&SendRequest::empty(2, SendOp::Send)).unwrap();
        let ended = statuses::<2>(&mut pair);
        pair.event_a();
        pair.event_b();
        (sent.collect::<Vec<_>>(), ended)
    };
    let expected = [(1, WcStatus::Success), (2, WcStatus::WrFlushError)];
    let (sent, ended) = run(&[]);
    assert_eq!(ended, expected);
    assert!(!sent.is_empty(), "the limit and FIN");
    assert_eq!(run(&sent).1, expected);
}

/// The peer closes. A Write that was posted before the peer's FIN arrived is not accepted by the peer, and is
/// flushed.
#[test]
fn a_write_that_arrives_after_the_peers_close_fails() {
    let (mut pair, c) = Pair::agreeing();
    let (source, target) = pair.regions(64);
    pair.run_us(50_000);
    source.write_at(0, &pattern(1, 8)).unwrap();
    c.qp_b.modify(QpState::Closing).unwrap();
    // This poll sends the peer's FIN.
    pair.b.engine.poll_at(Instant::from_micros(pair.now_us));
    c.qp_a.post_send(&write(1, &source, &target, 0)).unwrap();
    poll_a_then_b(&mut pair);
    let wc = pair.wc_a();
    let closed = ConnectionError::PeerClosed;
    assert_eq!((wc.wr_id, wc.status, wc.cause), (1, WcStatus::WrFlushError, Some(closed)));
    assert_eq!(read_bytes(&target, 0, 8), [0; 8]);
    let ended = |event: CmEvent| match event.kind {
        CmEventKind::Disconnected { error, .. } => error,
        _ => panic!("{event:?}"),
    };
    assert_eq!([ended(pair.event_a()), ended(pair.event_b())], [None, None]);
}

/// Polls `a`, and then `b`. So `b` receives the frames of `a` and answers in one poll.
fn poll_a_then_b(pair: &mut Pair) {
    let now = Instant::from_micros(pair.now_us);
    pair.a.engine.poll_at(now);
    pair.b.engine.poll_at(now);
}
