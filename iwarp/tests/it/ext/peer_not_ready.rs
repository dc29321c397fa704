//! With InfiniBand's semantics, a request completes when the peer has accepted its message. The request fails
//! if the peer does not post a receive request in time.

use crate::common::{Connected, Pair, Testbed, agreeing, pattern, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, MemoryRegion, QpInit, QpState, QueuePair, RecvRequest, SendOp,
    SendRequest, SrqInit, VerbsError, WcStatus, WorkCompletion,
};

const RNR: WcStatus = WcStatus::RnrRetryExceeded;
const DONE: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushError;

/// The timer code for 10.24 ms.
const TIMER: u8 = 20;
const TIMER_US: i64 = 10_240;

fn send(wr_id: u64, region: &MemoryRegion, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Send, region.sge(0, len))
}

fn recv(qp: &QueuePair, wr_id: u64, region: &MemoryRegion, len: usize) {
    qp.post_recv(&RecvRequest::new(wr_id, region.sge(0, len))).unwrap();
}

fn outcome(wc: &WorkCompletion) -> (u64, WcStatus) {
    (wc.wr_id, wc.status)
}

/// Returns `wr_id` and status of the completions that A has now.
fn completed(pair: &mut Pair) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| outcome(&wc)).collect()
}

/// Returns two connected queue pairs. Each wait for a receive request takes a multiple of [`TIMER_US`].
fn connected() -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(&ConnParam { min_rnr_timer: TIMER, ..agreeing() });
    (pair, c)
}

/// Runs the pair like [`Pair::run_us`], but stops exactly after `us` microseconds, not at the first deadline
/// after this time.
fn run_exactly(pair: &mut Pair, us: i64) {
    let end = pair.now_us + us;
    while pair.now_us < end {
        pair.poll();
        pair.now_us = pair.now_us.min(end);
    }
}

/// Waits for the next completion of A, which has to be `expected`. Returns the time until the completion.
fn await_outcome(pair: &mut Pair, expected: (u64, WcStatus)) -> i64 {
    let begun = pair.now_us;
    assert_eq!(outcome(&pair.wc_a()), expected);
    pair.now_us - begun
}

/// For each kind of message, the request completes when a receive request has accepted the message, and not
/// before. An earlier Write completes without waiting for a receive, and later requests wait. TCP
/// acknowledges the bytes long before the receive is posted, so this acknowledgement alone does not complete
/// the request.
#[test]
fn a_request_completes_when_a_receive_took_its_message() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(4096);
    let to = remote_addr(&remote, 0);
    let write = |wr_id| SendRequest::new(wr_id, SendOp::Write { remote: to }, local.sge(0, 8));
    c.qp_a
        .post_send_list(&[
            write(0),
            send(1, &local, 8),
            write(2),
            SendRequest::new(3, SendOp::SendImmediate { data: *b"data" }, local.sge(0, 8)),
            SendRequest::empty(4, SendOp::Immediate { data: *b"8 bytes!" }),
            SendRequest::new(5, SendOp::WriteImmediate { remote: to, data: [7; 8] }, local.sge(0, 8)),
            send(6, &local, 3000),
            send(7, &local, 0),
        ])
        .unwrap();
    pair.run_us(2_000_000);
    assert_eq!(completed(&mut pair), [(0, DONE)]);
    let sends: [&[u64]; 6] = [&[1, 2], &[3], &[4], &[5], &[6], &[7]];
    for (number, expected) in sends.into_iter().enumerate() {
        recv(&c.qp_b, number as u64, &remote, 4096);
        assert_eq!(outcome(&pair.wc_b()), (number as u64, DONE));
        run_exactly(&mut pair, 200);
        let expected: Vec<_> = expected.iter().map(|wr_id| (*wr_id, DONE)).collect();
        assert_eq!(completed(&mut pair), expected);
        pair.run_us(300_000);
        assert_eq!(completed(&mut pair), []);
    }
    // After these messages, the connection works as before.
    recv(&c.qp_b, 9, &remote, 8);
    c.qp_a.post_send(&send(9, &local, 8)).unwrap();
    assert!(await_outcome(&mut pair, (9, DONE)) < 100);
    pair.a.engine.check_invariants().unwrap();
    pair.b.engine.check_invariants().unwrap();
}

/// A message waits for the number of tries multiplied by the peer's time per try. Then the request of the
/// message fails, later requests are flushed, and the peer's user receives no part of the message.
#[test]
fn a_request_fails_after_its_tries() {
    for retry in 0..7 {
        for len in [8, 3000] {
            let (mut pair, c) = connected();
            let (local, remote) = pair.regions(4096);
            c.qp_a.set_rnr_retry(retry).unwrap();
            recv(&c.qp_a, 7, &local, 8);
            recv(&c.qp_b, 0, &remote, 4096);
            let requests = [1, 2, 3].map(|wr_id| send(wr_id, &local, len));
            c.qp_a.post_send_list(&requests).unwrap();
            await_outcome(&mut pair, (1, DONE));
            let took = await_outcome(&mut pair, (2, RNR));
            let expected = TIMER_US * i64::from(retry);
            assert!((expected - 200..expected + 500).contains(&took), "{retry} tries: {took} us");
            assert_eq!(completed(&mut pair), [(3, FLUSHED), (7, FLUSHED)]);
            assert_eq!(c.qp_a.state(), QpState::Error);
            let event = pair.event_a();
            let CmEventKind::Disconnected { error: Some(ConnectionError::ReceiverNotReady), .. } = event.kind
            else {
                panic!("{event:?}")
            };
            let event = pair.event_b();
            assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
            assert_eq!(outcome(&pair.wc_b()), (0, DONE));
            recv(&c.qp_b, 5, &remote, 4096);
            assert_eq!(outcome(&pair.wc_b()), (5, FLUSHED));
            c.qp_a.post_send(&requests[0]).unwrap();
            assert_eq!(completed(&mut pair), [(1, FLUSHED)]);
        }
    }
}

/// If the number of tries is seven, the engine tries without a limit.
#[test]
fn seven_tries_never_end() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(4096);
    c.qp_a.set_rnr_retry(7).unwrap();
    c.qp_a.post_send(&send(1, &local, 8)).unwrap();
    pair.run_us(300_000_000);
    assert_eq!(completed(&mut pair), []);
    recv(&c.qp_b, 1, &remote, 8);
    assert!(await_outcome(&mut pair, (1, DONE)) < 200);
}

/// The peer accepts each message before the next message waits, so each message has all tries.
#[test]
fn each_message_has_the_whole_time() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(4096);
    c.qp_a.set_rnr_retry(3).unwrap();
    for wr_id in 0..6 {
        c.qp_a.post_send(&send(wr_id, &local, 8)).unwrap();
    }
    for wr_id in 0..5 {
        run_exactly(&mut pair, 25_000);
        recv(&c.qp_b, wr_id, &remote, 8);
        await_outcome(&mut pair, (wr_id, DONE));
    }
    let took = await_outcome(&mut pair, (5, RNR));
    assert!((30_500..31_500).contains(&took), "{took} us");
}

/// As in InfiniBand's connection manager, a peer announces the number of tries for the messages that it
/// receives. A number that the sender's user sets takes precedence. Numbers above seven are invalid.
#[test]
fn the_peer_tells_how_often_it_is_tried() {
    for (own, told, fails) in [(None, 7, false), (None, 1, true), (Some(7), 1, false), (Some(1), 7, true)] {
        for a_accepts in [false, true] {
            let mut pair = Testbed::new().hosts();
            let of_receiver = ConnParam { min_rnr_timer: TIMER, rnr_retry: told, ..agreeing() };
            let of_sender = ConnParam { min_rnr_timer: 31, rnr_retry: 0, ..agreeing() };
            let (c, local) = match a_accepts {
                false => (pair.connect_with(&of_sender, &of_receiver), pair.regions(64).0),
                true => (pair.connect_with(&of_receiver, &of_sender), pair.regions(64).1),
            };
            let qp = if a_accepts { &c.qp_b } else { &c.qp_a };
            if let Some(own) = own {
                qp.set_rnr_retry(own).unwrap();
            }
            qp.post_send(&send(1, &local, 8)).unwrap();
            run_exactly(&mut pair, TIMER_US - 500);
            let cq = if a_accepts { pair.b.cq.clone() } else { pair.a.cq.clone() };
            assert!(cq.poll_one().is_none());
            run_exactly(&mut pair, 1_000);
            let ended = cq.poll_one().map(|wc| outcome(&wc));
            assert_eq!(ended, fails.then_some((1, RNR)), "{own:?} {told} {a_accepts}");
        }
    }
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(&agreeing());
    assert!(matches!(c.qp_a.set_rnr_retry(8), Err(VerbsError::Invalid(_))));
    for param in
        [ConnParam { rnr_retry: 8, ..agreeing() }, ConnParam { min_rnr_timer: 32, ..ConnParam::default() }]
    {
        let qp = pair.a.qp();
        let id = pair.a.context.create_id(&pair.a.channel);
        let refused = id.connect(&qp, "10.0.0.2:1".parse().unwrap(), &param);
        assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{refused:?}");
    }
}

/// A message that is longer than the peer's window is never sent completely. Its request also fails after the
/// tries.
#[test]
fn a_message_that_is_still_sent_fails_too() {
    let (mut pair, c) = connected();
    let local = pair.a.pd.reg_mr(8 << 20, crate::common::ALL).unwrap();
    c.qp_a.set_rnr_retry(2).unwrap();
    for wr_id in 0..2 {
        c.qp_a.post_send(&send(wr_id, &local, 8 << 20)).unwrap();
    }
    await_outcome(&mut pair, (0, RNR));
    assert_eq!(completed(&mut pair), [(1, FLUSHED)]);
}

/// Compares the number of frames that both hosts send while they exchange messages. Each message takes one
/// frame, which also acknowledges the other host's message. A acknowledges each answer separately, since its
/// user posts the next message later. A message that waits is sent twice, and needs three more frames: for
/// the report that there is no receive request, for the confirmation of this report, and for the report that
/// there is a receive request.
#[test]
fn only_a_message_that_waits_takes_more_frames() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(4096);
    let frames = |pair: &Pair| [&pair.a, &pair.b].map(|host| host.engine.counters().port.tx_frames);
    let exchange = |pair: &mut Pair, waits: bool| {
        pair.run_us(50_000);
        let before = frames(pair);
        for round in 0..20 {
            recv(&c.qp_a, 100, &local, 8);
            if !waits {
                recv(&c.qp_b, 100, &remote, 8);
            }
            c.qp_a.post_send(&send(round, &local, 8)).unwrap();
            if waits {
                run_exactly(pair, 1000);
                recv(&c.qp_b, 100, &remote, 8);
            }
            pair.wc_b();
            c.qp_b.post_send(&send(200, &remote, 8)).unwrap();
            assert_eq!([pair.wc_a(), pair.wc_a()].map(|wc| wc.wr_id), [round, 100]);
            pair.wc_b();
        }
        let after = frames(pair);
        [after[0] - before[0], after[1] - before[1]]
    };
    assert_eq!(exchange(&mut pair, false), [40, 20]);
    assert_eq!(exchange(&mut pair, true), [80, 60]);
    assert_eq!(exchange(&mut pair, false), [40, 20]);
}

/// Messages of both sides wait. Each side receives the reports about its own messages, even while messages
/// that the other side sent before these reports still wait.
#[test]
fn messages_of_both_ends_may_wait() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(1 << 20);
    for wr_id in 0..3 {
        c.qp_a.post_send(&send(wr_id, &local, 100_000)).unwrap();
        c.qp_b.post_send(&send(wr_id, &remote, 100_000)).unwrap();
    }
    pair.run_us(1_000_000);
    assert!(pair.a.cq.poll_one().is_none() && pair.b.cq.poll_one().is_none());
    for wr_id in 0..3 {
        recv(&c.qp_b, 10 + wr_id, &remote, 100_000);
        assert_eq!(outcome(&pair.wc_b()), (10 + wr_id, DONE));
        assert!(await_outcome(&mut pair, (wr_id, DONE)) < 200);
    }
    pair.run_us(1_000_000);
    assert!(pair.b.cq.poll_one().is_none(), "A has taken nothing");
    for wr_id in 0..3 {
        recv(&c.qp_a, 10 + wr_id, &local, 100_000);
        assert_eq!(outcome(&pair.wc_a()), (10 + wr_id, DONE));
        assert_eq!(outcome(&pair.wc_b()), (wr_id, DONE));
    }
}

/// The messages of two connections wait at one empty shared receive queue. One message is accepted, and the
/// other message fails.
#[test]
fn messages_wait_at_a_shared_queue() {
    let mut pair = Testbed::new().hosts();
    let listener = pair.listen();
    let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let mut connect = || {
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&pair.b.cq) };
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
        let param = ConnParam { min_rnr_timer: TIMER, ..agreeing() };
        pair.connect_qps(qp_a, qp_b, &param, &param)
    };
    let (first, second) = (connect(), connect());
    listener.disconnect();
    let (local, remote) = pair.regions(64);
    for (c, wr_id) in [(&first, 1), (&second, 2)] {
        c.qp_a.set_rnr_retry(5).unwrap();
        c.qp_a.post_send(&send(wr_id, &local, 8)).unwrap();
        run_exactly(&mut pair, 1000);
    }
    run_exactly(&mut pair, 20_000);
    assert_eq!(completed(&mut pair), []);
    srq.post_recv(&RecvRequest::new(7, remote.sge(0, 64))).unwrap();
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.qp_num), (7, first.qp_b.qp_num()));
    await_outcome(&mut pair, (1, DONE));
    await_outcome(&mut pair, (2, RNR));
    // The failed message no longer waits in front of others, and the first queue pair continues.
    srq.post_recv(&RecvRequest::new(8, remote.sge(0, 64))).unwrap();
    first.qp_a.post_send(&send(3, &local, 8)).unwrap();
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.qp_num), (8, first.qp_b.qp_num()));
    await_outcome(&mut pair, (3, DONE));
    assert_eq!((first.qp_a.state(), second.qp_a.state()), (QpState::Rts, QpState::Error));
}

/// If the peer ends the connection, gracefully or not, while a message waits, the request of the message
/// fails.
#[test]
fn a_message_that_waits_is_lost_with_the_peer() {
    for end in [QpState::Closing, QpState::Error] {
        for outlives_peer in [false, true] {
            let mut pair = Testbed::new().hosts();
            let c = pair.connect(&ConnParam { outlives_peer, ..agreeing() });
            let (local, _) = pair.regions(64);
            for wr_id in 1..3 {
                c.qp_a.post_send(&send(wr_id, &local, 8)).unwrap();
            }
            pair.run_us(10_000);
            c.qp_b.modify(end).unwrap();
            let first = if outlives_peer { WcStatus::RetryExceeded } else { FLUSHED };
            await_outcome(&mut pair, (1, first));
            await_outcome(&mut pair, (2, FLUSHED));
            assert!(pair.now_us < 1_000_000, "{} us", pair.now_us);
            pair.a.engine.check_invariants().unwrap();
        }
    }
}

/// If our side resets the connection while its message waits at the peer, our request is flushed, and the
/// peer's connection ends with an error.
#[test]
fn our_reset_drops_the_message() {
    let (mut pair, c) = connected();
    let (local, _) = pair.regions(64);
    c.qp_a.post_send(&send(1, &local, 8)).unwrap();
    pair.run_us(1_000);
    c.qp_a.modify(QpState::Error).unwrap();
    await_outcome(&mut pair, (1, FLUSHED));
    let event = pair.event_b();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
    pair.b.engine.check_invariants().unwrap();
}

/// A graceful close waits for receive requests of the peer. If the peer posts them in time, messages that
/// were posted before the close are accepted. Otherwise their requests are flushed, and the close ends with a
/// timeout.
#[test]
fn a_close_waits_for_receives_of_the_peer() {
    for takes in [true, false] {
        let (mut pair, c) = connected();
        let (local, remote) = pair.regions(64);
        for wr_id in 1..3 {
            c.qp_a.post_send(&send(wr_id, &local, 8)).unwrap();
        }
        pair.run_us(1_000);
        c.id_a.disconnect();
        pair.run_us(2_000_000);
        let error = if takes {
            for wr_id in 1..3 {
                recv(&c.qp_b, wr_id, &remote, 8);
                assert_eq!(outcome(&pair.wc_b()), (wr_id, DONE));
                await_outcome(&mut pair, (wr_id, DONE));
            }
            None
        } else {
            await_outcome(&mut pair, (1, FLUSHED));
            await_outcome(&mut pair, (2, FLUSHED));
            Some(ConnectionError::CloseTimeout)
        };
        let event = pair.event_a();
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error: told, .. } if told == error),
            "{event:?}"
        );
    }
}

/// A close with more data than the peer accepts has a separate deadline, and is no longer limited by the
/// number of tries.
#[test]
fn a_close_outlasts_the_tries() {
    let (mut pair, c) = connected();
    let local = pair.a.pd.reg_mr(8 << 20, crate::common::ALL).unwrap();
    c.qp_a.set_rnr_retry(2).unwrap();
    c.qp_a.post_send(&send(1, &local, 8)).unwrap();
    c.qp_a.post_send(&send(2, &local, 8 << 20)).unwrap();
    run_exactly(&mut pair, 10_000);
    c.id_a.disconnect();
    await_outcome(&mut pair, (1, FLUSHED));
    assert!((4_500_000..12_000_000).contains(&pair.now_us), "{} us", pair.now_us);
    await_outcome(&mut pair, (2, FLUSHED));
    let event = pair.event_a();
    let CmEventKind::Disconnected { error: Some(ConnectionError::CloseTimeout), .. } = event.kind else {
        panic!("{event:?}")
    };
}

/// The wire loses, repeats and reorders frames, both sides send, and receives are posted at any time. No
/// request completes before the receive of its message, all requests complete in the end, and all bytes are
/// right.
#[test]
fn no_request_is_done_before_its_receive_on_a_bad_wire() {
    const COUNT: u64 = 150;
    let plan = LinkPlan {
        drop_ppm: 60_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 80_000,
        reorder_us: 400,
        delay_us: 30,
        ..LinkPlan::default()
    };
    for (seed, markers) in [(1, false), (2, true), (3, false), (4, false), (5, true)] {
        let link = LinkConfig { seed, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
        let mut pair = Testbed::on(&link).hosts();
        let c = pair.connect(&ConnParam { markers, ..agreeing() });
        let (local, remote) = pair.regions(1 << 16);
        let content = pattern(seed, 1 << 15);
        local.write_at(0, &content).unwrap();
        remote.write_at(0, &content).unwrap();
        // For each side: the number of receives posted, of receives completed, and of requests completed.
        let mut counts = [[0; 3]; 2];
        let mut sent = 0;
        let mut step = 0;
        while counts.iter().any(|[_, _, done]| *done < COUNT) {
            step += 1;
            assert!(step < 1_000_000, "{seed}: {counts:?}");
            let len = 1 + (sent as usize * 797) % 5000;
            if sent < COUNT && step % 3 == 0 {
                c.qp_a.post_send(&send(sent, &local, len)).unwrap();
                c.qp_b.post_send(&send(sent, &remote, len)).unwrap();
                sent += 1;
            }
            for (side, (qp, region)) in [(&c.qp_a, &local), (&c.qp_b, &remote)].into_iter().enumerate() {
                let [posted, received, _] = counts[side];
                let is_time = (step + 40 * side) % 200 < 20 || received < posted && step % 7 == 0;
                if is_time && posted < COUNT && posted < received + 4 {
                    let at = (1 << 15) + 5000 * (posted as usize % 5);
                    qp.post_recv(&RecvRequest::new(1000 + posted, region.sge(at, 5000))).unwrap();
                    counts[side][0] += 1;
                }
            }
            run_exactly(&mut pair, 37);
            // The receives are read first, because a request completes together with or after the receive at
            // the other side.
            let ended =
                [&pair.a.cq, &pair.b.cq].map(|cq| std::iter::from_fn(|| cq.poll_one()).collect::<Vec<_>>());
            for (side, all) in ended.iter().enumerate() {
                for wc in all.iter().filter(|wc| wc.wr_id >= 1000) {
                    let number = wc.wr_id - 1000;
                    assert_eq!((number, wc.status), (counts[side][1], DONE));
                    counts[side][1] += 1;
                    let at = (1 << 15) + 5000 * (number as usize % 5);
                    let region = if side == 0 { &local } else { &remote };
                    let len = 1 + (number as usize * 797) % 5000;
                    assert_eq!(
                        (wc.byte_len as usize, read_bytes(region, at, len)),
                        (len, content[..len].into())
                    );
                }
            }
            for (side, all) in ended.iter().enumerate() {
                for wc in all.iter().filter(|wc| wc.wr_id < 1000) {
                    assert_eq!(outcome(wc), (counts[side][2], DONE), "{seed}");
                    counts[side][2] += 1;
                    assert!(counts[side][2] <= counts[1 - side][1], "{seed}: done before its receive");
                }
            }
        }
        assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
        pair.a.engine.check_invariants().unwrap();
        pair.b.engine.check_invariants().unwrap();
    }
}

/// The time of a limited number of tries is long enough also on a bad wire: a message that is accepted in
/// time does not fail, although the report of the acceptance may be lost.
#[test]
fn lost_news_fail_no_request() {
    let plan = LinkPlan { drop_ppm: 100_000, delay_us: 30, ..LinkPlan::default() };
    for seed in 0..10 {
        let link = LinkConfig { seed, b_to_a: plan.clone(), ..LinkConfig::default() };
        let mut pair = Testbed::on(&link).hosts();
        let c = pair.connect(&agreeing());
        let (local, remote) = pair.regions(64);
        c.qp_a.set_rnr_retry(6).unwrap();
        for wr_id in 0..20 {
            c.qp_a.post_send(&send(wr_id, &local, 8)).unwrap();
            run_exactly(&mut pair, 5_000);
            recv(&c.qp_b, wr_id, &remote, 8);
            await_outcome(&mut pair, (wr_id, DONE));
        }
    }
}
