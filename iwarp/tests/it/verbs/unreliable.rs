//! Queue pairs of type UC: messages that the receiver cannot accept are dropped, the stream continues, and
//! the sender's requests succeed.

use crate::common::raw::{fpdu, frame, ib_request};
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::untagged;
use crate::common::{
    ALL, Connected, Host, PORT, Pair, Testbed, agreeing, connect_error, pattern, read_bytes, remote_addr,
};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::memory::Access;
use iwarp::mpa::StartupFault;
use iwarp::verbs::{
    AtomicOp, CmEventKind, ConnParam, ConnectionError, MemoryRegion, ProtectionDomain, QpAttr, QpInit,
    QpState, QpType, QueuePair, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, SrqInit, VerbsError,
    WcOpcode, WcStatus,
};
use tcp_lite::Instant;

/// Length of a message of many segments: longer than TCP's first window.
const LONG: usize = 1 << 20;

fn uc(host: &Host, srq: Option<&iwarp::verbs::SharedReceiveQueue>) -> QueuePair {
    let init = QpInit { qp_type: QpType::Uc, early_sends: true, srq, ..QpInit::new(&host.cq) };
    host.pd.create_qp(&init).unwrap()
}

fn connect_on(mut pair: Pair, param: &ConnParam) -> (Pair, Connected) {
    let listener = pair.listen();
    let (qp_a, qp_b) = (uc(&pair.a, None), uc(&pair.b, None));
    let c = pair.connect_qps(qp_a, qp_b, param, param);
    listener.disconnect();
    (pair, c)
}

fn connected() -> (Pair, Connected) {
    connect_on(Testbed::new().hosts(), &agreeing())
}

fn send(wr_id: u64, region: &MemoryRegion, at: usize, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Send, region.sge(at, len))
}

fn recv(qp: &QueuePair, wr_id: u64, region: &MemoryRegion, at: usize, len: usize) {
    qp.post_recv(&RecvRequest::new(wr_id, region.sge(at, len))).unwrap();
}

/// Waits until the request `wr_id` of A has succeeded.
fn succeeds(pair: &mut Pair, wr_id: u64) {
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
}

/// Waits for a completion of B: its `wr_id`, length and immediate.
fn received(pair: &mut Pair) -> (u64, WcOpcode, u32, Option<[u8; 8]>) {
    let wc = pair.wc_b();
    assert_eq!(wc.status, WcStatus::Success);
    (wc.wr_id, wc.opcode, wc.byte_len, wc.immediate)
}

/// The messages that B has dropped: without a receive, too long, refused Writes.
fn dropped(pair: &Pair) -> [u64; 3] {
    let counters = pair.b.engine.counters();
    [counters.rx_uc_not_ready, counters.rx_uc_too_long, counters.rx_uc_refused]
}

/// Checks that nothing more completes at B, that the connection lives, and that no Terminate was sent.
fn lives(pair: &mut Pair, c: &Connected) {
    pair.run_us(100_000);
    assert!(pair.b.cq.poll_one().is_none() && pair.a.cq.poll_one().is_none());
    assert_eq!([&c.qp_a, &c.qp_b].map(QueuePair::state), [QpState::Rts; 2]);
    let terminates = |host: &Host| host.engine.counters().tx_terminates;
    assert_eq!((terminates(&pair.a), terminates(&pair.b)), (0, 0));
}

/// Without a receive, each kind of message is dropped, and its sender succeeds. The message that follows
/// finds a receive. The data of a Write is written, and only its Immediate Data is dropped.
#[test]
fn a_message_without_a_receive_is_dropped() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(4096);
    local.write_at(0, b"one two three").unwrap();
    let to = remote_addr(&remote, 0);
    let write = SendOp::WriteImmediate { remote: to, data: [7; 8] };
    for (count, request) in [
        send(1, &local, 0, 3),
        send(1, &local, 0, 0),
        SendRequest::new(1, SendOp::SendImmediate { data: *b"data" }, local.sge(4, 3)),
        SendRequest::new(1, write, local.sge(8, 5)),
        SendRequest::empty(1, write),
    ]
    .into_iter()
    .enumerate()
    {
        c.qp_a.post_send(&request).unwrap();
        succeeds(&mut pair, 1);
        assert_eq!(dropped(&pair), [count as u64 + 1, 0, 0]);
        // The message behind the dropped one arrives, with its own Immediate Data.
        recv(&c.qp_b, 2, &remote, 2048, 64);
        let data = [count as u8; 4];
        let next = SendRequest::new(3, SendOp::SendImmediate { data }, local.sge(4, 3));
        c.qp_a.post_send(&next).unwrap();
        succeeds(&mut pair, 3);
        let [n, ..] = data;
        assert_eq!(received(&mut pair), (2, WcOpcode::Recv, 3, Some([n, n, n, n, 0, 0, 0, 0])));
        assert_eq!(read_bytes(&remote, 2048, 3), b"two");
    }
    assert_eq!(read_bytes(&remote, 0, 6), b"three\0");
    lives(&mut pair, &c);
}

/// All segments of a message without a receive are dropped, also if receives are posted in the middle of the
/// message. These receives get the messages that follow.
#[test]
fn a_receive_in_the_middle_of_a_message_waits_for_the_next() {
    for op in [SendOp::Send, SendOp::SendImmediate { data: *b"data" }] {
        let (mut pair, c) = connected();
        let (local, remote) = pair.regions(LONG);
        local.write_at(0, &pattern(1, LONG)).unwrap();
        let long = SendRequest::new(1, op, local.sge(0, LONG));
        c.qp_a.post_send_list(&[long, send(2, &local, 0, 9), send(3, &local, 9, 9)]).unwrap();
        pair.until(|pair| (dropped(pair) == [1, 0, 0]).then_some(()));
        assert!(pair.a.cq.poll_one().is_none(), "the message is still being sent");
        recv(&c.qp_b, 8, &remote, 0, 64);
        recv(&c.qp_b, 9, &remote, 64, 64);
        for wr_id in 1..=3 {
            succeeds(&mut pair, wr_id);
        }
        for wr_id in [8, 9] {
            assert_eq!(received(&mut pair), (wr_id, WcOpcode::Recv, 9, None));
        }
        assert_eq!([0, 64].map(|at| read_bytes(&remote, at, 10)), {
            [0, 9].map(|at| [&pattern(1, LONG)[at..at + 9], &[0]].concat())
        });
        assert_eq!(dropped(&pair), [1, 0, 0]);
        lives(&mut pair, &c);
    }
}

/// A message that is too long for its receive is dropped, whichever of its segments is the first that does
/// not fit. The receive stays posted, and gets the next message, whose Immediate Data is its own.
#[test]
fn a_message_that_is_too_long_leaves_its_receive() {
    for op in [SendOp::Send, SendOp::SendImmediate { data: *b"long" }] {
        for (room, len) in [(8, 9), (8, LONG), (LONG - 1, LONG), (40_000, LONG)] {
            let (mut pair, c) = connected();
            let (local, remote) = pair.regions(LONG);
            local.write_at(0, &pattern(2, LONG)).unwrap();
            recv(&c.qp_b, 7, &remote, 0, room);
            let long = SendRequest::new(1, op, local.sge(0, len));
            c.qp_a.post_send_list(&[long, send(2, &local, 5, 6)]).unwrap();
            succeeds(&mut pair, 1);
            succeeds(&mut pair, 2);
            assert_eq!(received(&mut pair), (7, WcOpcode::Recv, 6, None), "{room} {len}");
            assert_eq!(read_bytes(&remote, 0, 6), pattern(2, LONG)[5..11]);
            assert_eq!(dropped(&pair), [0, 1, 0]);
            lives(&mut pair, &c);
        }
    }
}

/// A shared receive queue: a message without a receive is dropped, and does not wait for a receive that
/// another queue pair posts. A message that is too long leaves its receive to the queue pair. A queue pair
/// that holds as many receives as it may drops messages as well.
#[test]
fn a_shared_receive_queue_drops_too() {
    let mut pair = Testbed::new().hosts();
    let _listener = pair.listen();
    let srq = pair.b.pd.create_srq(&SrqInit::default()).unwrap();
    let qp_a = uc(&pair.a, None);
    let init = QpInit { qp_type: QpType::Uc, srq: Some(&srq), max_recv_wr: 1, ..QpInit::new(&pair.b.cq) };
    let qp_b = pair.b.pd.create_qp(&init).unwrap();
    let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
    let (local, remote) = pair.regions(4096);
    let post = |wr_id| srq.post_recv(&RecvRequest::new(wr_id, remote.sge(0, 8))).unwrap();
    c.qp_a.post_send(&send(1, &local, 0, 3)).unwrap();
    succeeds(&mut pair, 1);
    assert_eq!(dropped(&pair), [1, 0, 0]);
    post(7);
    post(8);
    c.qp_a.post_send_list(&[send(2, &local, 0, 9), send(3, &local, 0, 4)]).unwrap();
    succeeds(&mut pair, 2);
    succeeds(&mut pair, 3);
    // The completion is not polled, so the queue pair may take no other receive.
    c.qp_a.post_send(&send(4, &local, 0, 5)).unwrap();
    succeeds(&mut pair, 4);
    assert_eq!(dropped(&pair), [2, 1, 0]);
    assert_eq!(received(&mut pair), (7, WcOpcode::Recv, 4, None));
    c.qp_a.post_send(&send(5, &local, 0, 5)).unwrap();
    succeeds(&mut pair, 5);
    assert_eq!(received(&mut pair), (8, WcOpcode::Recv, 5, None));
    lives(&mut pair, &c);
}

/// A Write to memory that the peer may not write is dropped, with its Immediate Data, whose receive stays
/// posted. Sends that follow such a Write are received, with their own Immediate Data.
#[test]
fn a_refused_write_is_dropped() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(LONG);
    let read_only = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    local.write_at(0, &pattern(3, LONG)).unwrap();
    let wrong = [
        (RemoteAddr { rkey: remote.rkey() ^ 0xff, ..remote_addr(&remote, 0) }, 8),
        (remote_addr(&read_only, 0), 8),
        (remote_addr(&remote, LONG - 7), 8),
        (RemoteAddr { rkey: remote.rkey() ^ 0xff, ..remote_addr(&remote, 0) }, LONG),
    ];
    let mut refused = 0;
    for (to, len) in wrong {
        for data in [None, Some([5; 8])] {
            let op = match data {
                None => SendOp::Write { remote: to },
                Some(data) => SendOp::WriteImmediate { remote: to, data },
            };
            for next in [SendOp::Send, SendOp::SendImmediate { data: *b"next" }] {
                recv(&c.qp_b, 7, &remote, 0, 64);
                let write = SendRequest::new(1, op, local.sge(0, len));
                c.qp_a.post_send_list(&[write, SendRequest::new(2, next, local.sge(4, 4))]).unwrap();
                succeeds(&mut pair, 1);
                succeeds(&mut pair, 2);
                refused += 1;
                let immediate = (next != SendOp::Send).then_some(*b"next\0\0\0\0");
                assert_eq!(received(&mut pair), (7, WcOpcode::Recv, 4, immediate));
                assert_eq!(dropped(&pair), [0, 0, refused], "{op:?}");
            }
            // A valid Write with Immediate Data that follows is complete as well.
            recv(&c.qp_b, 8, &remote, 0, 64);
            let valid = SendOp::WriteImmediate { remote: remote_addr(&remote, 100), data: [6; 8] };
            let write = SendRequest::new(1, op, local.sge(0, len));
            c.qp_a.post_send_list(&[write, SendRequest::new(3, valid, local.sge(0, 4))]).unwrap();
            succeeds(&mut pair, 1);
            succeeds(&mut pair, 3);
            refused += 1;
            assert_eq!(received(&mut pair), (8, WcOpcode::RecvImmediate, 0, Some([6; 8])));
        }
    }
    // Without the right of the queue pair, every Write is dropped.
    c.qp_b.set_remote_access(Access::empty()).unwrap();
    let write = SendOp::Write { remote: remote_addr(&remote, 200) };
    c.qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 8))).unwrap();
    succeeds(&mut pair, 1);
    assert_eq!((dropped(&pair), read_bytes(&remote, 200, 8)), ([0, 0, refused + 1], vec![0; 8]));
    lives(&mut pair, &c);
}

/// The middle of a Write to which the peer loses its right is dropped up to the end of the Write.
#[test]
fn a_write_that_loses_its_right_is_dropped_to_its_end() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(LONG);
    local.write_at(0, &[9; LONG]).unwrap();
    recv(&c.qp_b, 7, &remote, 0, 64);
    let op = SendOp::WriteImmediate { remote: remote_addr(&remote, 0), data: [5; 8] };
    c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, LONG))).unwrap();
    pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes > 10_000).then_some(()));
    c.qp_b.set_remote_access(Access::empty()).unwrap();
    pair.until(|pair| (dropped(pair) == [0, 0, 1]).then_some(()));
    c.qp_b.set_remote_access(ALL & Access::REMOTE).unwrap();
    succeeds(&mut pair, 1);
    assert_eq!((dropped(&pair), read_bytes(&remote, LONG - 1, 1)), ([0, 0, 1], vec![0]));
    lives(&mut pair, &c);
    c.qp_a.post_send(&send(2, &local, 0, 3)).unwrap();
    succeeds(&mut pair, 2);
    assert_eq!(received(&mut pair), (7, WcOpcode::Recv, 3, None));
}

/// Some of many messages find receives. On bad wires, with markers and without, each message that is received
/// is whole, and the order is that of the sender. Every request succeeds.
#[test]
fn what_is_received_is_whole_and_in_order() {
    const COUNT: usize = 120;
    const MOST: usize = 20_000;
    let plan = LinkPlan {
        drop_ppm: 10_000,
        duplicate_ppm: 5_000,
        reorder_ppm: 30_000,
        reorder_us: 300,
        delay_us: 50,
        ..LinkPlan::default()
    };
    for (seed, markers) in [(1, false), (2, true), (3, false), (4, true)] {
        let link = LinkConfig { seed, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
        let param = ConnParam { markers, ..agreeing() };
        let (mut pair, c) = connect_on(Testbed::on(&link).hosts(), &param);
        let (local, remote) = pair.regions(COUNT * MOST);
        local.write_at(0, &pattern(seed, COUNT * MOST)).unwrap();
        let len_of = |number: usize| (number * 7919) % MOST;
        let (mut sent, mut got, mut posted, mut completed) = (0, Vec::new(), 0_usize, 0);
        while completed < COUNT {
            if sent < COUNT {
                let op = match sent % 3 {
                    0 => SendOp::Send,
                    _ => SendOp::SendImmediate { data: (sent as u32).to_be_bytes() },
                };
                let sge = local.sge(sent * MOST, len_of(sent));
                c.qp_a.post_send(&SendRequest::new(sent as u64, op, sge)).unwrap();
                sent += 1;
                if sent % 4 == 0 {
                    recv(
                        &c.qp_b,
                        posted as u64,
                        &remote,
                        posted * MOST,
                        if sent % 8 == 0 { MOST } else { 9000 },
                    );
                    posted += 1;
                }
            }
            (0..3).for_each(|_| pair.poll());
            while let Some(wc) = pair.a.cq.poll_one() {
                assert_eq!((wc.wr_id, wc.status), (completed as u64, WcStatus::Success));
                completed += 1;
            }
            while let Some(wc) = pair.b.cq.poll_one() {
                assert_eq!((wc.wr_id, wc.status), (got.len() as u64, WcStatus::Success));
                got.push(wc);
            }
        }
        let mut next = 0;
        for (place, wc) in got.iter().enumerate() {
            let bytes = read_bytes(&remote, place * MOST, wc.byte_len as usize);
            let is_it = |&number: &usize| {
                len_of(number) == wc.byte_len as usize
                    && bytes == pattern(seed, COUNT * MOST)[number * MOST..][..bytes.len()]
            };
            let number = (next..COUNT).find(is_it).expect("a message that was sent, in order");
            let [a, b, c, d] = (number as u32).to_be_bytes();
            assert_eq!(wc.immediate, (number % 3 != 0).then_some([a, b, c, d, 0, 0, 0, 0]));
            next = number + 1;
        }
        let [not_ready, too_long, _] = dropped(&pair);
        assert_eq!(got.len() as u64 + not_ready + too_long, COUNT as u64);
        assert!(got.len() > 5 && not_ready > 5, "{} received, {not_ready} dropped", got.len());
        lives(&mut pair, &c);
    }
}

/// Reads, atomics and Sends with Invalidate are refused when they are posted, and Immediate Data alone.
#[test]
fn other_operations_are_refused() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(64);
    let to = remote_addr(&remote, 0);
    let refused = [
        SendOp::Read { remote: to },
        SendOp::Atomic { remote: to, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
        SendOp::SendInvalidate { rkey: remote.rkey() },
    ];
    for op in refused {
        let request = SendRequest::new(1, op, local.sge(0, 8));
        assert!(matches!(c.qp_a.post_send(&request), Err(VerbsError::Invalid(_))), "{op:?}");
    }
    let alone = SendRequest::empty(1, SendOp::Immediate { data: [1; 8] });
    assert!(matches!(c.qp_a.post_send(&alone), Err(VerbsError::Invalid(_))));
    let without = ConnParam::default();
    let id = pair.a.context.create_id(&pair.a.channel);
    assert!(matches!(id.connect(&uc(&pair.a, None), pair.b.address, &without), Err(VerbsError::Invalid(_))));
    lives(&mut pair, &c);
}

/// Both queue pairs have to be of type UC. Otherwise no connection is made, and both users learn the reason.
/// A queue pair of type UC then drops its sends, and the other fails its first send.
#[test]
fn both_ends_have_the_same_type() {
    let outliving = ConnParam { outlives_peer: true, ..agreeing() };
    let plain = ConnParam::default();
    for (a_is_uc, other) in [(true, &outliving), (false, &outliving), (true, &plain), (false, &plain)] {
        let mut pair = Testbed::new().hosts();
        let _listener = pair.listen();
        let (local, _) = pair.regions(64);
        let [qp_a, qp_b] = [(&pair.a, a_is_uc), (&pair.b, !a_is_uc)].map(|(host, is_uc)| {
            let qp_type = if is_uc { QpType::Uc } else { QpType::Rc };
            host.pd.create_qp(&QpInit { qp_type, early_sends: true, ..QpInit::new(&host.cq) }).unwrap()
        });
        qp_a.post_send_list(&[send(1, &local, 0, 8), send(2, &local, 0, 8)]).unwrap();
        let (param_a, param_b) = if a_is_uc { (&agreeing(), other) } else { (other, &agreeing()) };
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp_a, pair.b.address, param_a).unwrap();
        let request = told!(pair.event_b(), ConnectRequest { .. });
        request.id.accept(&qp_b, param_b).unwrap();
        for event in [pair.event_a(), pair.event_b()] {
            assert_eq!(connect_error(event), ConnectionError::Startup(StartupFault::OtherType));
        }
        let statuses = [pair.wc_a(), pair.wc_a()].map(|wc| wc.status);
        let (state, expected) = match (a_is_uc, other.outlives_peer) {
            (true, _) => (QpState::Orphaned, [WcStatus::Success; 2]),
            (false, true) => (QpState::Error, [WcStatus::RetryExceeded, WcStatus::WrFlushError]),
            (false, false) => (QpState::Error, [WcStatus::WrFlushError; 2]),
        };
        assert_eq!((qp_a.state(), statuses), (state, expected), "{a_is_uc}");
        let is_orphan = !a_is_uc || other.outlives_peer;
        assert_eq!(qp_b.state(), if is_orphan { QpState::Orphaned } else { QpState::Error });
    }
}

/// A peer that knows no queue pairs of type UC accepts a connection without them. The queue pair of type UC
/// then gives up the connection.
#[test]
fn a_peer_without_the_type_is_given_up() {
    // The second Reply has the consent of a queue pair of type RC.
    for private_data in [&b""[..], b"uwarp!3\x07"] {
        let mut pair = Testbed::new().peer();
        pair.listen();
        let pd = pair.context.alloc_pd().unwrap();
        let cq = pair.context.create_cq(64, None).unwrap();
        let channel = pair.context.create_event_channel().unwrap();
        let qp = pd.create_qp(&QpInit { qp_type: QpType::Uc, ..QpInit::new(&cq) }).unwrap();
        let param = ConnParam { mpa_revision: 1, peer_to_peer: false, ..agreeing() };
        let id = pair.context.create_id(&channel);
        id.connect(&qp, format!("10.0.0.2:{PORT}").parse().unwrap(), &param).unwrap();
        assert!(pair.until(1_000_000, |pair| pair.inbox.len() >= 32), "no Request");
        assert_eq!(pair.inbox[20..27], *b"uwarp?u");
        pair.send(&frame("Rep", 0x40, 1, private_data));
        let event = pair.next_event(&channel, 30_000_000).expect("no event");
        assert_eq!(connect_error(event), ConnectionError::Startup(StartupFault::OtherType));
        assert_eq!(qp.state(), QpState::Orphaned);
        qp.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        assert_eq!(cq.poll_one().map(|wc| wc.status), Some(WcStatus::Success));
    }
}

/// How the peer ends the connection: `Closing` sends a FIN, `Error` sends an RST.
const ENDS: [QpState; 2] = [QpState::Closing, QpState::Error];

/// After the peer's end, receives stay posted, sends succeed and are dropped, and the user can still end the
/// queue pair, which flushes its requests.
#[test]
fn sends_succeed_after_the_end_of_the_peer() {
    for end in ENDS {
        for own_end in ENDS {
            let (mut pair, c) = connected();
            let (local, _) = pair.regions(64);
            recv(&c.qp_a, 7, &local, 0, 8);
            c.qp_b.modify(end).unwrap();
            told!(pair.event_a(), Disconnected { .. });
            assert_eq!(c.qp_a.state(), QpState::Orphaned);
            let unsignaled = send(2, &local, 0, 8).flags(SendFlags::empty());
            c.qp_a.post_send_list(&[send(1, &local, 0, 8), unsignaled, send(3, &local, 0, 8)]).unwrap();
            succeeds(&mut pair, 1);
            succeeds(&mut pair, 3);
            pair.run_us(50_000);
            assert!(pair.a.cq.poll_one().is_none(), "the receive stays");
            assert_eq!((c.qp_a.state(), c.qp_a.query().send_outstanding), (QpState::Orphaned, 0));
            c.qp_a.hold_sends();
            c.qp_a.post_send(&send(4, &local, 0, 8)).unwrap();
            assert!(pair.a.cq.poll_one().is_none(), "the queue is held");
            c.qp_a.resume_sends();
            succeeds(&mut pair, 4);
            c.qp_a.modify(own_end).unwrap();
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushError), "{end:?} {own_end:?}");
            assert!(pair.a.context.async_events().poll().unwrap().is_none(), "no event tells of the peer");
        }
    }
}

/// Sends that are on their way when the peer ends the connection succeed, exactly once and in order, and also
/// those that are posted at the same time.
#[test]
fn sends_succeed_while_the_peer_ends() {
    for end in ENDS {
        for steps in 0..30 {
            let (mut pair, c) = connected();
            let (local, _) = pair.regions(LONG);
            c.qp_a.post_send_list(&[send(1, &local, 0, LONG), send(2, &local, 0, 8)]).unwrap();
            (0..steps % 6).for_each(|_| pair.poll());
            c.qp_b.modify(end).unwrap();
            (0..steps).for_each(|_| pair.poll());
            c.qp_a.post_send(&send(3, &local, 0, 8)).unwrap();
            (1..=3).for_each(|wr_id| succeeds(&mut pair, wr_id));
            told!(pair.event_a(), Disconnected { .. });
            assert_eq!(c.qp_a.state(), QpState::Orphaned, "{end:?} {steps}");
            assert!(pair.a.cq.poll_one().is_none());
        }
    }
}

/// Polls one engine alone until the connection has ended at its host, as if the other host had vanished.
fn poll_alone(pair: &mut Pair, host: fn(&mut Pair) -> &mut Host) {
    let end_us = pair.now_us + 60_000_000;
    while host(pair).channel.is_empty() {
        assert!(pair.now_us < end_us, "the peer is not given up");
        let now = Instant::from_micros(pair.now_us);
        let busy = host(pair).engine.poll_at(now);
        let next = if busy { None } else { host(pair).engine.next_deadline(now) };
        pair.now_us = next.map_or(pair.now_us + 1, |at| at.total_micros().max(pair.now_us + 1));
    }
}

/// The peer vanishes without an end of the connection, in the middle of a message in each direction. Sends
/// succeed. The receive in which the peer's message had begun is posted as before.
#[test]
fn a_peer_that_vanishes_is_not_told() {
    let (mut pair, c) = connected();
    let (local, remote) = pair.regions(LONG);
    recv(&c.qp_a, 7, &local, 0, LONG);
    c.qp_b.post_send(&send(1, &remote, 0, LONG)).unwrap();
    pair.until(|pair| (pair.a.engine.counters().rx_placed_bytes > 10_000).then_some(()));
    c.qp_a.post_send_list(&[send(1, &local, 0, LONG), send(2, &local, 0, 8)]).unwrap();
    poll_alone(&mut pair, |pair| &mut pair.a);
    for wr_id in [1, 2] {
        let wc = pair.a.cq.poll_one().unwrap();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    assert!(pair.a.cq.poll_one().is_none(), "the receive is not flushed");
    assert_eq!((c.qp_a.state(), c.qp_a.query().recv_outstanding), (QpState::Orphaned, 1));
    assert!(pair.a.context.async_events().poll().unwrap().is_none());
    // The receive can still be flushed, once.
    c.qp_a.modify(QpState::Error).unwrap();
    let wc = pair.a.cq.poll_one().unwrap();
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushError));
    assert!(pair.a.cq.poll_one().is_none());
}

/// A request that fails at its own side, since its memory is not valid, ends the queue pair of its side. The
/// peer gets no Terminate, and its queue pair stays usable. Without a peer such a request fails as well.
#[test]
fn an_error_of_its_own_ends_a_queue_pair() {
    for peer_is_gone in [false, true] {
        let (mut pair, c) = connect_on(Testbed::new().late_memory_checks().hosts(), &agreeing());
        let (local, remote) = pair.regions(64);
        if peer_is_gone {
            c.qp_b.modify(QpState::Closing).unwrap();
            told!(pair.event_a(), Disconnected { .. });
        }
        let mut invalid = send(2, &local, 0, 8);
        invalid.sg_list[0].lkey ^= 0xff;
        c.qp_a.post_send_list(&[send(1, &local, 0, 8), invalid, send(3, &local, 0, 8)]).unwrap();
        let ended = [(); 3].map(|()| pair.wc_a()).map(|wc| (wc.wr_id, wc.status));
        let fault = (2, WcStatus::LocalProtectionError);
        assert_eq!(ended, [(1, WcStatus::Success), fault, (3, WcStatus::WrFlushError)]);
        pair.run_us(50_000);
        assert!(matches!(c.qp_a.state(), QpState::Terminate | QpState::Error));
        assert_eq!(pair.a.engine.counters().tx_terminates, 0);
        if !peer_is_gone {
            c.qp_b.post_send(&send(4, &remote, 0, 8)).unwrap();
            let wc = pair.wc_b();
            assert_eq!((wc.wr_id, wc.status, c.qp_b.state()), (4, WcStatus::Success, QpState::Orphaned));
        }
    }
}

/// A queue pair whose peer is not reached drops its sends when its user gives up the peer, and can still be
/// connected.
#[test]
fn sends_to_a_peer_that_is_not_reached_are_dropped() {
    let mut pair = Testbed::new().hosts();
    let _listener = pair.listen();
    let (local, remote) = pair.regions(64);
    let (qp_a, qp_b) = (uc(&pair.a, None), uc(&pair.b, None));
    recv(&qp_b, 7, &remote, 0, 8);
    qp_a.post_send_list(&[send(1, &local, 0, 8), send(2, &local, 0, 8)]).unwrap();
    assert!(pair.a.cq.poll_one().is_none());
    assert!(qp_a.give_up());
    succeeds(&mut pair, 1);
    succeeds(&mut pair, 2);
    assert_eq!(qp_a.state(), QpState::Idle);
    qp_a.post_send(&send(3, &local, 0, 4)).unwrap();
    let c = pair.connect_qps(qp_a, qp_b, &agreeing(), &agreeing());
    succeeds(&mut pair, 3);
    assert_eq!(received(&mut pair), (7, WcOpcode::Recv, 4, None));
    assert!(!c.qp_a.give_up());
    lives(&mut pair, &c);
}

/// Returns an engine whose queue pair of type UC is connected to a bare TCP peer, with one receive of 64
/// bytes.
fn served() -> Served {
    let mut request = ib_request();
    let kind = request.iter().rposition(|&byte| byte == b'?').unwrap() + 1;
    request[kind] = b'u';
    let make_qp = |init: QpInit<'_>, pd: &ProtectionDomain| {
        pd.create_qp(&QpInit { qp_type: QpType::Uc, ..init }).unwrap()
    };
    let setup = Setup { request, accept: agreeing(), make_qp: &make_qp, ..Setup::default() };
    let served = setup.ready();
    served.post_recv(100, 64);
    served
}

/// A segment of the peer's Send with this MSN.
fn segment(is_last: bool, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    untagged([if is_last { 0x41 } else { 0x01 }, 0x43], 0, [0, msn, mo], payload)
}

/// The peer ends in the middle of a message, or of an FPDU. Its queue pair gets no error and no event, sends
/// succeed, and the receive stays posted.
#[test]
fn a_peer_that_ends_within_a_message_is_not_told() {
    for length in [8, usize::MAX] {
        let mut peer = served();
        let bytes = fpdu(&mut peer.framer, &segment(false, 1, 0, b"begin"));
        peer.pair.send(&bytes[..length.min(bytes.len())]);
        peer.run(20_000);
        peer.pair.close();
        assert!(matches!(peer.event().kind, CmEventKind::Disconnected { .. }));
        peer.post(&SendRequest::empty(1, SendOp::Send));
        assert_eq!(peer.statuses(), [(1, WcStatus::Success)], "{length}");
        let QpAttr { state, recv_outstanding, .. } = peer.qp.query();
        assert_eq!((state, recv_outstanding), (QpState::Orphaned, 1));
        assert_eq!((peer.qp.error(), peer.events().len()), (None, 0));
    }
}

/// An invalid message still ends the stream, also while a message is dropped, and without a Terminate. A
/// Terminate of the peer ends it as well.
#[test]
fn an_invalid_message_ends_the_stream() {
    let terminate = untagged([0x41, 0x47], 0, [2, 1, 0], &[0; 4]);
    let long = segment(false, 1, 0, &[1; 65]);
    for (name, segments) in [
        ("a wrong MSN", vec![segment(true, 3, 0, b"")]),
        ("a middle without a beginning", vec![segment(true, 1, 4, b"")]),
        ("another message inside of a dropped one", vec![long.clone(), segment(true, 2, 0, b"")]),
        ("a message of queue 4 that only the type RC has", {
            vec![untagged([0x41, 0x4f], 2, [4, 1, 0], &[0, 0, 0, 0, 0, 0, 0, 1])]
        }),
        ("a Terminate inside of a dropped message", vec![long, terminate]),
    ] {
        let mut peer = served();
        peer.send_and_run(&segments);
        assert!(matches!(peer.qp.state(), QpState::Terminate | QpState::Error), "{name}");
        assert_eq!(peer.completions(), [(100, WcStatus::WrFlushError)], "{name}");
        assert!(peer.received(20_000).iter().all(|ulpdu| ulpdu[1] != 0x47), "{name}: a Terminate");
        assert!(peer.pair.peer_closed, "{name}");
    }
}

/// A dropped message is dropped to its last segment, whatever its segments contain, and the next message is
/// received.
#[test]
fn segments_of_a_dropped_message_are_not_placed() {
    let mut peer = served();
    peer.send_and_run(&[segment(false, 1, 0, &[1; 65]), segment(false, 1, 65, b"middle")]);
    peer.send_and_run(&[segment(true, 1, 71, b"end"), segment(true, 2, 0, b"next")]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(done, [(100, WcStatus::Success, 4)]);
    assert_eq!(peer.bytes(100, 5), b"next\0");
    let counters = peer.pair.engine.counters();
    assert_eq!((counters.rx_uc_too_long, counters.rx_uc_not_ready), (1, 0));
}
