//! Messages that wait for a receive request, when both peers have agreed on InfiniBand's semantics.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{
    ALL, Connected, PORT, Pair, Testbed, agreeing, expect_terminate, pattern, read_bytes, remote_addr,
};
use arrayvec::ArrayVec;
use dp::link::{LinkConfig, LinkPlan};
use iwarp::engine::ThreadOptions;
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, MemoryRegion, QpInit, QpState, QueuePair, RecvRequest, SendOp,
    SendRequest, SharedReceiveQueue, SrqInit, WcOpcode, WcStatus,
};
use tcp_lite::CloseReason;

fn send(wr_id: u64, region: &MemoryRegion, at: usize, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Send, region.sge(at, len))
}

fn recv(qp: &QueuePair, wr_id: u64, region: &MemoryRegion, at: usize, len: usize) {
    qp.post_recv(&RecvRequest::new(wr_id, region.sge(at, len))).unwrap();
}

/// Returns the number of received bytes that the engine holds in packet buffers.
fn held(host: &crate::common::Host) -> u64 {
    host.engine.counters().stack.out_of_order.held_bytes
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

/// Checks that the engines are idle for a minute, except for keepalives.
fn expect_idle(pair: &mut Pair) {
    let busy = |pair: &Pair| pair.a.engine.counters().busy_polls + pair.b.engine.counters().busy_polls;
    let before = busy(pair);
    pair.run_us(60_000_000);
    let polls = busy(pair) - before;
    assert!(polls < 5000, "{polls} polls with something to do");
}

/// Messages of different kinds wait for receives. They are received in order, each when its receive is
/// posted. A Write before the messages is placed earlier. While messages wait, the other direction works, and
/// the engines are idle.
#[test]
fn messages_wait_for_receives() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(4096);
    local.write_at(0, b"one two three").unwrap();
    let to = remote_addr(&remote, 0);
    c.qp_a
        .post_send_list(&[
            SendRequest::new(0, SendOp::Write { remote: to }, local.sge(0, 3)),
            send(1, &local, 0, 3),
            SendRequest::new(2, SendOp::SendImmediate { data: *b"data" }, local.sge(4, 3)),
            SendRequest::empty(3, SendOp::Immediate { data: *b"8 bytes!" }),
            SendRequest::new(4, SendOp::WriteImmediate { remote: to, data: [7; 8] }, local.sge(8, 5)),
            send(5, &local, 0, 0),
        ])
        .unwrap();
    expect_idle(&mut pair);
    assert!(pair.b.cq.poll_one().is_none());
    assert_eq!((read_bytes(&remote, 0, 4), c.qp_b.error()), (b"one\0".to_vec(), None));
    assert_eq!(held(&pair.b), 0, "what is not taken is dropped");
    assert_eq!(pair.b.engine.counters().rx_not_ready, 1);
    assert_eq!(pair.wc_a().wr_id, 0);
    assert!(pair.a.cq.poll_one().is_none());
    // The other direction works as before: a Send of B is received while A's messages wait.
    recv(&c.qp_a, 9, &local, 1024, 64);
    c.qp_b.post_send(&send(8, &remote, 0, 3)).unwrap();
    assert_eq!((pair.wc_b().wr_id, pair.wc_a().wr_id), (8, 9));
    let (recv_op, immediate) = (WcOpcode::Recv, WcOpcode::RecvImmediate);
    let expected = [
        (recv_op, 3, None, &b"one"[..]),
        (recv_op, 3, Some(*b"data\0\0\0\0"), b"two"),
        (immediate, 0, Some(*b"8 bytes!"), b""),
        (immediate, 0, Some([7; 8]), b""),
        (recv_op, 0, None, b""),
    ];
    for (number, (opcode, len, data, bytes)) in expected.into_iter().enumerate() {
        pair.run_us(1000);
        assert!(pair.b.cq.poll_one().is_none(), "{number}");
        recv(&c.qp_b, number as u64, &remote, 2048, 64);
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.immediate), (number as u64, opcode, len, data));
        assert_eq!(read_bytes(&remote, 2048, bytes.len()), bytes);
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status), (number as u64 + 1, WcStatus::Success));
    }
    assert_eq!((held(&pair.b), read_bytes(&remote, 0, 5)), (0, b"three".to_vec()));
    // The connection continues: one message finds a receive that was posted in advance, and the next message
    // waits for its receive.
    recv(&c.qp_b, 10, &remote, 2048, 64);
    c.qp_a.post_send_list(&[send(6, &local, 0, 3), send(7, &local, 0, 3)]).unwrap();
    assert_eq!(pair.wc_b().wr_id, 10);
    pair.run_us(1000);
    recv(&c.qp_b, 11, &remote, 2048, 64);
    assert_eq!((pair.wc_b().wr_id, c.qp_a.error(), c.qp_b.error()), (11, None, None));
    // The receiver counts the FPDUs of a message that has waited once, when the message is received.
    assert_eq!(pair.b.engine.counters().rx_fpdus, pair.a.engine.counters().tx_fpdus);
}

/// Unless both sides want InfiniBand's semantics, a message without a receive ends the stream at once.
#[test]
fn nothing_waits_without_an_agreement() {
    for (a, b) in [(true, false), (false, true), (false, false)] {
        let mut pair = Testbed::new().hosts();
        let param = |ib_semantics| ConnParam { ib_semantics, ..ConnParam::default() };
        let c = pair.connect_with(&param(a), &param(b));
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        c.qp_a.post_send(&send(1, &local, 0, 8)).unwrap();
        expect_terminate(&mut pair, &c, 1, 2, 2);
    }
}

/// A sender is far ahead of its receiver, and has to wait. The receiver holds no bytes in this time, and all
/// bytes arrive in the end. The test runs with markers and without, on a good wire, and on wires that lose,
/// reorder and repeat frames.
#[test]
fn a_fast_sender_waits_for_its_receiver() {
    const COUNT: usize = 60;
    const LEN: usize = 100_000;
    let plan = LinkPlan {
        drop_ppm: 10_000,
        duplicate_ppm: 5_000,
        reorder_ppm: 30_000,
        reorder_us: 300,
        delay_us: 50,
        ..LinkPlan::default()
    };
    for (seed, markers) in [(0, false), (1, false), (2, true), (3, true), (4, false), (5, true)] {
        let faults = if seed == 0 { LinkPlan::default() } else { plan.clone() };
        let link = LinkConfig { seed, a_to_b: faults.clone(), b_to_a: faults, ..LinkConfig::default() };
        let mut pair =
            Testbed::on(&link).configure(|config| config.stack.tcp.recv_window_bytes = 1 << 20).hosts();
        let c = pair.connect(&ConnParam { markers, ..agreeing() });
        let source = pair.a.pd.reg_mr(COUNT * LEN, Access::empty()).unwrap();
        let target = pair.b.pd.reg_mr(COUNT * LEN, Access::LOCAL_WRITE).unwrap();
        let content = pattern(seed, COUNT * LEN);
        source.write_at(0, &content).unwrap();
        for number in 0..COUNT {
            c.qp_a.post_send(&send(number as u64, &source, number * LEN, LEN)).unwrap();
        }
        pair.run_us(3_000_000);
        assert_eq!(held(&pair.b), 0);
        assert!(pair.a.cq.query().waiting < COUNT, "the sender is held up");
        // Some receives are posted one after the other, and others several at once.
        let mut posted = 0;
        for (round, count) in [1, 1, 1, 5, 1, 20, 1, 30].into_iter().enumerate() {
            for _ in 0..count {
                recv(&c.qp_b, posted, &target, posted as usize * LEN, LEN);
                posted += 1;
            }
            for number in posted - count..posted {
                let wc = pair.wc_b();
                assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (number, WcStatus::Success, LEN));
            }
            pair.run_us(if round % 2 == 0 { 10_000 } else { 1 });
            // Bytes are held only beyond a hole, and no message waits.
            assert!(held(&pair.b) <= 1 << 20);
        }
        assert_eq!(posted as usize, COUNT);
        assert_eq!(read_bytes(&target, 0, COUNT * LEN), content, "{seed}");
        for number in 0..COUNT as u64 {
            assert_eq!(pair.wc_a().wr_id, number);
        }
        pair.run_us(1_000_000);
        assert_eq!((held(&pair.b), c.qp_b.error()), (0, None));
        pair.b.engine.check_invariants().unwrap();
    }
}

/// A message waits for minutes, longer than TCP's user timeout and its probes, whether the peer fills the
/// window or is silent.
#[test]
fn a_message_waits_for_minutes() {
    for fills_window in [false, true] {
        let keepalive = iwarp::verbs::KeepalivePolicy::Probe {
            idle: Duration::from_secs(2),
            interval: Duration::from_secs(1),
            probes: 3,
        };
        let mut pair =
            Testbed::new().configure(|config| config.stack.tcp.recv_window_bytes = 1 << 17).hosts();
        let c = pair.connect(&ConnParam { keepalive, ..agreeing() });
        let (local, remote) = pair.regions(1 << 18);
        let len = if fills_window { 1 << 18 } else { 8 };
        for wr_id in 0..2 {
            c.qp_a.post_send(&send(wr_id, &local, 0, len)).unwrap();
        }
        pair.run_us(300_000_000);
        assert_eq!((c.qp_a.state(), c.qp_b.state()), (QpState::Rts, QpState::Rts));
        for wr_id in 0..2 {
            recv(&c.qp_b, wr_id, &remote, 0, len);
            assert_eq!(pair.wc_b().status, WcStatus::Success);
        }
    }
}

/// The limit of the waiting time applies to each message separately, and only while the message waits for a
/// receive. After this time, the stream ends as without the agreement.
#[test]
fn a_message_may_be_made_to_wait_for_a_limited_time() {
    let mut pair = Testbed::new().hosts();
    let param = ConnParam { rnr_timeout: Some(Duration::from_millis(100)), ..agreeing() };
    let c = pair.connect(&param);
    let (local, remote) = pair.regions(64);
    for wr_id in 0..4 {
        c.qp_a.post_send(&send(wr_id, &local, 0, 8)).unwrap();
    }
    for wr_id in 0..3 {
        run_exactly(&mut pair, 80_000);
        recv(&c.qp_b, wr_id, &remote, 0, 8);
        assert_eq!(pair.wc_b().wr_id, wr_id);
    }
    run_exactly(&mut pair, 90_000);
    assert_eq!(c.qp_b.error(), None);
    let before = pair.now_us;
    expect_terminate(&mut pair, &c, 1, 2, 2);
    assert!(pair.now_us - before < 20_000);
    // The limit has no effect while no message waits.
    let c = pair.connect(&param);
    pair.run_us(1_000_000);
    assert_eq!(c.qp_b.error(), None);
}

/// A FIN arrives behind waiting messages. Each message is received when a receive is posted, and then the
/// connection closes gracefully.
#[test]
fn a_close_of_the_peer_comes_behind_its_messages() {
    for later in [true, false] {
        let (mut pair, c) = Pair::agreeing();
        let (local, remote) = pair.regions(64);
        for wr_id in 0..3 {
            c.qp_a.post_send(&send(wr_id, &local, 0, 8)).unwrap();
        }
        if later {
            pair.run_us(1000);
        }
        c.id_a.disconnect();
        run_exactly(&mut pair, 100_000);
        assert_eq!((c.qp_b.state(), pair.b.channel.usage().0), (QpState::Rts, 0), "B knows nothing of it");
        for wr_id in 0..3 {
            run_exactly(&mut pair, 1_000_000);
            recv(&c.qp_b, wr_id, &remote, 0, 8);
            assert_eq!(pair.wc_b().status, WcStatus::Success);
        }
        for event in [pair.event_a(), pair.event_b()] {
            assert!(matches!(event.kind, CmEventKind::Disconnected { error: None, .. }), "{event:?}");
        }
    }
}

/// Nobody posts a receive for the message, and the sender closes the connection behind it. After the close
/// timeout, both sides report the loss of the message as an error, and the engine holds no bytes.
#[test]
fn a_close_behind_a_message_that_nobody_takes_ends() {
    let (mut pair, c) = Pair::agreeing();
    let local = pair.a.pd.reg_mr(64, ALL).unwrap();
    c.qp_a.post_send(&send(1, &local, 0, 8)).unwrap();
    c.id_a.disconnect();
    let event = pair.event_b();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
    let event = pair.event_a();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
    assert!((4_500_000..7_000_000).contains(&pair.now_us), "{} us", pair.now_us);
    assert_eq!((held(&pair.b), c.qp_b.state()), (0, QpState::Error));
    pair.b.engine.check_invariants().unwrap();
}

/// The user has posted more messages than TCP's window accepts, so the FIN waits behind unsent messages. This
/// close also ends in an error.
#[test]
fn a_close_with_more_to_send_than_the_peer_takes_ends() {
    let (mut pair, c) = Pair::agreeing();
    let local = pair.a.pd.reg_mr(1 << 20, ALL).unwrap();
    for wr_id in 0..32 {
        c.qp_a.post_send(&send(wr_id, &local, 0, 1 << 20)).unwrap();
    }
    pair.run_us(100_000);
    c.id_a.disconnect();
    let event = pair.event_a();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
    let event = pair.event_b();
    assert!(matches!(event.kind, CmEventKind::Disconnected { error: Some(_), .. }), "{event:?}");
    assert!((4_500_000..12_000_000).contains(&pair.now_us), "{} us", pair.now_us);
    assert_eq!((held(&pair.b), c.qp_b.state()), (0, QpState::Error));
    pair.b.engine.check_invariants().unwrap();
}

/// Our own close does not wait for a receive request: posted requests are sent, and then the FIN.
#[test]
fn our_close_does_not_wait_for_a_receive() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(4096);
    recv(&c.qp_a, 3, &local, 0, 8);
    c.qp_a.post_send(&send(1, &local, 0, 8)).unwrap();
    pair.run_us(1000);
    c.qp_b.post_send(&send(2, &remote, 0, 8)).unwrap();
    c.id_b.disconnect();
    for event in [pair.event_b(), pair.event_a()] {
        assert!(matches!(event.kind, CmEventKind::Disconnected { error: None, .. }), "{event:?}");
    }
    assert_eq!((pair.wc_b().status, pair.wc_a().wr_id), (WcStatus::Success, 3));
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status, held(&pair.b)), (1, WcStatus::WrFlushError, 0));
}

/// The connection of a waiting message is reset by either side. The message is dropped. Held memory and the
/// order of waiting connections at the shared receive queue are as before.
#[test]
fn an_abort_drops_what_waits() {
    for (by_peer, shared) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut pair = Testbed::new().hosts();
        let listener = pair.listen();
        let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
        let init = QpInit { srq: shared.then_some(&srq), ..QpInit::new(&pair.b.cq) };
        let (first, second) = (pair.b.pd.create_qp(&init).unwrap(), pair.b.pd.create_qp(&init).unwrap());
        let qp_a = pair.a.qp();
        let c = pair.connect_qps(qp_a, first, &agreeing(), &agreeing());
        let qp_a = pair.a.qp();
        let other = pair.connect_qps(qp_a, second, &agreeing(), &agreeing());
        listener.disconnect();
        let (local, remote) = pair.regions(4096);
        for wr_id in 0..3 {
            c.qp_a.post_send(&send(wr_id, &local, 0, 1000)).unwrap();
        }
        pair.run_us(1000);
        other.qp_a.post_send(&send(9, &local, 0, 8)).unwrap();
        pair.run_us(1000);
        if by_peer {
            c.id_a.abort()
        } else {
            c.id_b.abort()
        }
        let event = pair.event_b();
        let reason = if by_peer { CloseReason::Reset } else { CloseReason::Aborted };
        let expected = ConnectionError::Tcp(reason);
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error: Some(error), .. } if error == expected),
            "{event:?}"
        );
        // The next receive, also of the shared receive queue, is used for the other connection's message.
        let request = RecvRequest::new(7, remote.sge(0, 64));
        if shared {
            srq.post_recv(&request).unwrap()
        } else {
            other.qp_b.post_recv(&request).unwrap()
        }
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.qp_num, wc.byte_len), (7, other.qp_b.qp_num(), 8));
        assert_eq!(held(&pair.b), 0);
        pair.b.engine.check_invariants().unwrap();
    }
}

/// Connects `count` queue pairs of A to queue pairs of B that share the receive queue `srq`.
fn with_shared_queue(pair: &mut Pair, srq: &SharedReceiveQueue, count: usize) -> Vec<Connected> {
    let listener = pair.listen();
    let all = (0..count)
        .map(|_| {
            let init = QpInit { srq: Some(srq), ..QpInit::new(&pair.b.cq) };
            let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
            pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing())
        })
        .collect();
    listener.disconnect();
    all
}

/// Many connections wait at one shared receive queue. Each receive goes to the connection that has waited
/// longest. A connection with more messages then waits behind the others again.
#[test]
fn connections_take_turns_at_a_shared_queue() {
    const QPS: usize = 20;
    const EACH: usize = 5;
    let mut pair = Testbed::new().hosts();
    let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let all = with_shared_queue(&mut pair, &srq, QPS);
    let (local, remote) = pair.regions(4096);
    for c in &all {
        for wr_id in 0..EACH as u64 {
            c.qp_a.post_send(&send(wr_id, &local, 0, 8)).unwrap();
        }
        // The connections begin to wait in the order of the loop.
        pair.run_us(100);
    }
    expect_idle(&mut pair);
    let numbers: Vec<u32> = all.iter().map(|c| c.qp_b.qp_num()).collect();
    for _ in 0..EACH {
        let served: Vec<u32> = (0..QPS)
            .map(|_| {
                srq.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
                pair.wc_b().qp_num
            })
            .collect();
        assert_eq!(served, numbers);
    }
    // Several receives are posted at once. No receive is left over, and no stream waits for a receive that is
    // available.
    for c in &all {
        for wr_id in 0..EACH as u64 {
            c.qp_a.post_send(&send(wr_id, &local, 0, 8)).unwrap();
        }
    }
    pair.run_us(10_000);
    let mut served = BTreeMap::<u32, usize>::new();
    for count in [1, 10, 30, 59] {
        for _ in 0..count {
            srq.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
        }
        for _ in 0..count {
            *served.entry(pair.wc_b().qp_num).or_default() += 1;
        }
    }
    assert_eq!(served.values().copied().collect::<Vec<_>>(), [EACH; QPS]);
    assert_eq!((srq.query().posted, held(&pair.b)), (0, 0));
}

/// A queue pair already holds its maximum number of shared buffers. The next message for this queue pair does
/// not wait, because only the user's poll would free a buffer. The stream ends as without the agreement.
#[test]
fn a_message_beyond_the_limit_of_shared_buffers_does_not_wait() {
    let (mut pair, _listener) = Pair::listening();
    let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let init = QpInit { srq: Some(&srq), max_recv_wr: 2, ..QpInit::new(&pair.b.cq) };
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
    let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
    let (local, remote) = pair.regions(64);
    for wr_id in 0..3 {
        srq.post_recv(&RecvRequest::new(wr_id, remote.sge(0, 8))).unwrap();
        c.qp_a.post_send(&send(wr_id, &local, 0, 8)).unwrap();
    }
    expect_terminate(&mut pair, &c, 1, 2, 2);
}

/// If a receive is too small for the waiting message, the stream fails as it does without a wait.
#[test]
fn a_message_that_has_waited_may_still_fail() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(64);
    c.qp_a.post_send(&send(1, &local, 0, 9)).unwrap();
    pair.run_us(1000);
    recv(&c.qp_b, 2, &remote, 0, 8);
    expect_terminate(&mut pair, &c, 1, 2, 5);
    assert_eq!(pair.wc_b().status, WcStatus::LocalLengthError);
}

#[test]
fn empty_messages_take_empty_receives() {
    let (mut pair, c) = Pair::agreeing();
    let local = pair.a.pd.reg_mr(64, ALL).unwrap();
    c.qp_a.post_send(&send(1, &local, 0, 0)).unwrap();
    pair.run_us(1000);
    c.qp_b.post_recv(&RecvRequest { wr_id: 2, sg_list: ArrayVec::new() }).unwrap();
    let wc = pair.wc_b();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (2, WcStatus::Success, 0));
}

/// A thread posts receives to separate queues or to a shared receive queue, while messages arrive and the
/// engines run in other threads. No wake-up is lost. A lost wake-up would stop the test for ever. To
/// distinguish a lost wake-up from a slow machine, the test limits the time since the last completion, and
/// not the whole time.
#[test]
fn no_receive_is_overlooked() {
    const QPS: usize = 4;
    const EACH: u64 = 1500;
    const PATIENCE: Duration = Duration::from_secs(30);
    for shared in [false, true] {
        let mut pair = Testbed::new().hosts();
        let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
        let listener = pair.b.context.create_id(&pair.b.channel);
        listener.listen(PORT, 16, Duration::from_secs(10)).unwrap();
        pair.poll();
        let mut all = Vec::new();
        for _ in 0..QPS {
            let init = QpInit { srq: shared.then_some(&srq), ..QpInit::new(&pair.b.cq) };
            let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
            all.push(pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing()));
        }
        let (local, remote) = pair.regions(64);
        let Pair { a, b, .. } = pair;
        let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
        let mut received = BTreeMap::<u32, u64>::new();
        let total = QPS as u64 * EACH;
        let mut last = Instant::now();
        let (mut posted, mut count, mut sent) = (0, 0, 0);
        while count < total {
            assert!(last.elapsed() < PATIENCE, "{count} of {posted} receives completed, {sent} sent");
            // The sender is ahead by some messages, and the receives are posted one by one.
            while sent < total && sent < posted + 8 {
                let c = &all[sent as usize % QPS];
                c.qp_a.post_send(&send(sent, &local, 0, 8)).unwrap();
                sent += 1;
            }
            if posted == count {
                let request = RecvRequest::new(posted, remote.sge(0, 8));
                match shared {
                    true => srq.post_recv(&request).unwrap(),
                    false => all[posted as usize % QPS].qp_b.post_recv(&request).unwrap(),
                }
                posted += 1;
            }
            while let Some(wc) = b.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
                *received.entry(wc.qp_num).or_default() += 1;
                count += 1;
                last = Instant::now();
            }
            while let Some(wc) = a.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
            }
            if count < posted {
                std::thread::yield_now();
            }
        }
        assert_eq!(received.values().copied().collect::<Vec<_>>(), [EACH; QPS]);
        drop(engines);
    }
}

/// A Read is answered although an earlier message of the peer waits for a receive.
#[test]
fn a_read_of_ours_does_not_wait_for_a_receive() {
    let (mut pair, c) = Pair::agreeing();
    let (local, remote) = pair.regions(4096);
    c.qp_b.post_send(&send(1, &remote, 0, 8)).unwrap();
    pair.run_us(1000);
    let read = SendOp::Read { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(2, read, local.sge(0, 8))).unwrap();
    let done = pair.wc_a();
    assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    recv(&c.qp_a, 3, &local, 64, 8);
    assert_eq!(
        [pair.wc_a(), pair.wc_b()].map(|wc| (wc.wr_id, wc.status)),
        [3, 1].map(|id| (id, WcStatus::Success))
    );
}

/// Each side sends first. One side has one receive request from the beginning. Apart from this request, each
/// side posts a receive only when its own Send is complete. Both sides succeed, whatever the length of the
/// other side's message is.
#[test]
fn two_ends_that_send_first_do_not_wait_for_each_other() {
    for len in [8, 1 << 20] {
        let (mut pair, c) = Pair::agreeing();
        let (local, remote) = pair.regions(2 << 20);
        recv(&c.qp_b, 10, &remote, 1 << 20, 8);
        c.qp_b.post_send(&send(1, &remote, 0, len)).unwrap();
        pair.run_us(1000);
        c.qp_a.post_send(&send(2, &local, 0, 8)).unwrap();
        assert_eq!((pair.wc_a().wr_id, pair.wc_b().wr_id), (2, 10), "{len}");
        recv(&c.qp_a, 11, &local, 1 << 20, len);
        assert_eq!((pair.wc_a().wr_id, pair.wc_b().wr_id), (11, 1), "{len}");
    }
}
