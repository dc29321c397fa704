//! Requests that are posted to the send queue before the connection exists (`QpInit::early_sends`). Such
//! requests wait until the connection is established, and are then sent. If the connection is not
//! established, they are flushed.

use std::time::{Duration, Instant};

use crate::common::{ALL, Connected, Host, PORT, Pair, Testbed, remote_addr};
use dp::link::LinkConfig;
use iwarp::engine::ThreadOptions;
use iwarp::memory::{Access, WindowKind};
use iwarp::rdmap::AtomicOp;
use iwarp::verbs::{
    CmEventKind, CompletionQueue, ConnParam, FastOptions, MemoryRegion, QpGrants, QpInit, QpState, QueuePair,
    RecvRequest, SendFlags, SendOp, SendRequest, VerbsError, WcOpcode, WcStatus,
};

const RIGHTS: Access = ALL.union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

fn early_qp(host: &Host) -> QueuePair {
    let init = QpInit { early_sends: true, grants: QpGrants::all(), ..QpInit::new(&host.cq) };
    host.pd.create_qp(&init).unwrap()
}

fn send(wr_id: u64, region: &MemoryRegion, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Send, region.sge(0, len))
}

/// Returns `wr_id` and status of all completions in the queue.
fn statuses(cq: &CompletionQueue) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Posts four requests. The second request is unsignaled.
fn post_four(qp: &QueuePair, region: &MemoryRegion) {
    for wr_id in 0..4 {
        let flags = if wr_id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        qp.post_send(&send(wr_id, region, 8).flags(flags)).unwrap();
    }
    assert_eq!((qp.state(), qp.query().send_open), (QpState::Idle, 4));
}

const FLUSHED: [(u64, WcStatus); 4] = {
    let flushed = WcStatus::WrFlushError;
    [(0, flushed), (1, flushed), (2, flushed), (3, flushed)]
};

/// Without the option, a post before the connection is refused because of the queue pair's state.
#[test]
fn only_a_queue_pair_that_asks_for_it_takes_requests_early() {
    let pair = Pair::new(&LinkConfig::default());
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    let refused = pair.a.qp().post_send(&send(1, &region, 8));
    assert!(matches!(refused, Err(VerbsError::InvalidState(QpState::Idle))));
    let qp = early_qp(&pair.a);
    assert!(qp.query().early_sends && !pair.a.qp().query().early_sends);
    qp.post_send(&send(1, &region, 8)).unwrap();
    qp.post_send_list(&[send(2, &region, 8), send(3, &region, 8)]).unwrap();
    assert_eq!(statuses(&pair.a.cq), [], "they wait");
}

/// Either the connecting side or the accepting side posts requests of many kinds, which are executed in
/// order. An inline request sends the bytes that were in memory at the time of the post.
#[test]
fn requests_of_every_kind_leave_when_the_connection_is_established() {
    for (poster_connects, peer_to_peer) in [(true, true), (false, true), (false, false), (true, false)] {
        let (mut pair, _listener) = Pair::listening();
        let (near, far) = if poster_connects { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
        let local = near.pd.reg_mr(4096, RIGHTS).unwrap();
        let remote = far.pd.reg_mr(4096, RIGHTS).unwrap();
        let (window_1, window_2) =
            (near.pd.alloc_mw(WindowKind::Type1).unwrap(), near.pd.alloc_mw(WindowKind::Type2).unwrap());
        let fast = near.pd.alloc_fast_mr(4096, &FastOptions::default()).unwrap();
        let (qp, peer) = (early_qp(near), far.qp());
        let (cq, far_cq) = (near.cq.clone(), far.cq.clone());
        for wr_id in 0..4 {
            peer.post_recv(&RecvRequest::new(wr_id, remote.sge(2048 + 64 * wr_id as usize, 64))).unwrap();
        }
        remote.write_at(512, b"to read!").unwrap();
        local.write_at(0, b"first").unwrap();
        let at = |offset| remote_addr(&remote, offset);
        let atomic = AtomicOp::FetchAdd { add: 5, mask: 0 };
        let inline = SendFlags::SIGNALED | SendFlags::INLINE;
        qp.post_send(&send(0, &local, 5).flags(inline)).unwrap();
        local.write_at(0, b"later").unwrap();
        qp.bind_mw(1, &window_1, (&local, 0, 64), Access::REMOTE_READ).unwrap();
        let bind = window_2.bind(&local, 0, 64, Access::REMOTE_READ);
        let register = fast.register(0, 4096, Access::LOCAL_WRITE);
        qp.post_send_list(&[
            send(2, &local, 5),
            SendRequest::new(3, SendOp::Write { remote: at(0) }, local.sge(0, 5)),
            SendRequest::new(4, SendOp::Read { remote: at(512) }, local.sge(64, 8)),
            SendRequest::empty(5, SendOp::Immediate { data: *b"8 bytes!" }),
            SendRequest::new(6, SendOp::Atomic { remote: at(1024), op: atomic }, local.sge(128, 8)),
            SendRequest::empty(7, SendOp::BindWindow(bind)),
            SendRequest::empty(8, SendOp::LocalInvalidate { rkey: bind.rkey }),
            SendRequest::empty(9, SendOp::FastRegister(register)),
            SendRequest::new(
                10,
                SendOp::WriteImmediate { remote: at(8), data: *b"and more" },
                local.sge(0, 5),
            ),
            // Request 9 registers the memory of this request.
            SendRequest::new(11, SendOp::Read { remote: at(512) }, fast.sge(0, 8))
                .flags(inline & !SendFlags::INLINE),
        ])
        .unwrap();
        let param = ConnParam { peer_to_peer, ..ConnParam::default() };
        let (qp_a, qp_b) =
            if poster_connects { (qp.clone(), peer.clone()) } else { (peer.clone(), qp.clone()) };
        let c = pair.connect_qps(qp_a, qp_b, &param, &param);
        if !poster_connects && !peer_to_peer {
            // RFC 5044 section 7.1.2: a responder waits for the first message of its peer before it sends.
            pair.run_us(10_000);
            assert_eq!(statuses(&cq), []);
            peer.post_send(&SendRequest::empty(99, SendOp::Write { remote: Default::default() })).unwrap();
            pair.until(|_| far_cq.poll_one());
        }
        let done: Vec<_> = (0..12).map(|_| pair.until(|_| cq.poll_one())).collect();
        let brief: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let expected: Vec<_> = (0..12).map(|wr_id| (wr_id, WcStatus::Success)).collect();
        assert_eq!(brief, expected, "{poster_connects} {peer_to_peer}");
        let received: Vec<_> = (0..4).map(|_| pair.until(|_| far_cq.poll_one())).collect();
        let kinds: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
        let (recv, immediate) = (WcOpcode::Recv, WcOpcode::RecvImmediate);
        assert_eq!(kinds, [(0, recv), (1, recv), (2, immediate), (3, immediate)]);
        let bytes = |at, len| crate::common::read_bytes(&remote, at, len);
        assert_eq!((&bytes(2048, 5)[..], &bytes(2112, 5)[..]), (&b"first"[..], &b"later"[..]));
        assert_eq!(bytes(0, 13), b"later\0\0\0later");
        assert_eq!(crate::common::read_bytes(&local, 64, 8), b"to read!");
        assert!(window_1.is_bound() && !window_2.is_bound() && fast.is_valid());
        assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
    }
}

/// If the connection fails, for whatever reason, the requests are flushed in order.
#[test]
fn requests_are_flushed_when_there_will_be_no_connection() {
    // Nobody listens.
    let mut pair = Pair::new(&LinkConfig::default());
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    let qp = early_qp(&pair.a);
    post_four(&qp, &region);
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
    told!(pair.event_a(), ConnectError { .. });
    assert_eq!((statuses(&pair.a.cq), qp.state()), (FLUSHED.to_vec(), QpState::Error));
    qp.post_send(&send(7, &region, 8)).unwrap();
    assert_eq!(statuses(&pair.a.cq), [(7, WcStatus::WrFlushError)]);

    // The peer's user rejects the request, or aborts it, while the connecting side waits.
    for rejects in [true, false] {
        let (mut pair, _listener) = Pair::listening();
        let region = pair.a.pd.reg_mr(64, ALL).unwrap();
        let qp = early_qp(&pair.a);
        post_four(&qp, &region);
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
        let request = pair.event_b();
        if rejects {
            request.id.reject(b"no").unwrap();
        } else {
            request.id.abort();
        }
        pair.event_a();
        assert_eq!(statuses(&pair.a.cq), FLUSHED, "{rejects}");
    }

    // The user that has posted the requests gives up the connection, before the connect or during it.
    for connects in [false, true] {
        for act in [|qp: &QueuePair| qp.modify(QpState::Error).unwrap(), |_: &QueuePair| {}] {
            let (mut pair, _listener) = Pair::listening();
            let region = pair.a.pd.reg_mr(64, ALL).unwrap();
            let qp = early_qp(&pair.a);
            post_four(&qp, &region);
            let id = pair.a.context.create_id(&pair.a.channel);
            if connects {
                id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
            }
            act(&qp);
            drop(qp);
            pair.run_us(10_000);
            assert_eq!(statuses(&pair.a.cq), FLUSHED, "{connects}");
        }
    }

    // The engine is dropped.
    let (pair, _listener) = Pair::listening();
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    let qp = early_qp(&pair.a);
    post_four(&qp, &region);
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
    let Pair { a: Host { engine, cq, .. }, .. } = pair;
    drop(engine);
    assert_eq!(statuses(&cq), FLUSHED);
}

/// The accepting side needs more Reads than its peer serves, and rejects. The requests of the accepting side
/// are flushed.
#[test]
fn requests_of_the_accepting_end_are_flushed_when_the_depths_do_not_fit() {
    let (mut pair, _listener) = Pair::listening();
    let region = pair.b.pd.reg_mr(64, ALL).unwrap();
    let none = ConnParam { responder_resources: 0, ..ConnParam::default() };
    let (_qp, _id) = pair.dial(&none);
    let request = pair.event_b();
    let qp = early_qp(&pair.b);
    post_four(&qp, &region);
    request.id.accept(&qp, &ConnParam { min_initiator_depth: 1, ..ConnParam::default() }).unwrap();
    told!(pair.event_b(), ConnectError { .. });
    assert_eq!(statuses(&pair.b.cq), FLUSHED);
}

/// The requests stay posted if the initiator makes a second attempt with MPA revision 1.
#[test]
fn a_second_attempt_keeps_the_requests() {
    let mut pair = Pair::new(&LinkConfig::default());
    let listener = pair.b.context.create_id(&pair.b.channel);
    let mut options = iwarp::verbs::ListenOptions::new(PORT);
    options.responder.enhanced = false;
    listener.listen_with(&options).unwrap();
    pair.poll();
    let (local, remote) = pair.regions(64);
    let (qp_a, qp_b) = (early_qp(&pair.a), pair.b.qp());
    qp_b.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
    qp_a.post_send(&send(2, &local, 8)).unwrap();
    let param = ConnParam { fallback: true, ..ConnParam::default() };
    let Connected { established_a, .. } = pair.connect_qps(qp_a, qp_b, &param, &param);
    assert!(matches!(established_a.kind, CmEventKind::Established { fell_back: true, .. }));
    assert_eq!((pair.wc_a().status, pair.wc_b().wr_id), (WcStatus::Success, 1));
}

/// Whether Reads and atomics are allowed is known only when the connection is established. If a Read or
/// atomic that was posted earlier is not allowed, it fails and ends the stream.
#[test]
fn an_early_read_that_the_connection_does_not_allow_ends_it() {
    for is_read in [true, false] {
        let (mut pair, _listener) = Pair::listening();
        let (local, remote) = pair.regions(64);
        let (qp_a, qp_b) = (early_qp(&pair.a), pair.b.qp());
        let remote = remote_addr(&remote, 0);
        let op = match is_read {
            true => SendOp::Read { remote },
            false => SendOp::Atomic { remote, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
        };
        qp_a.post_send_list(&[
            SendRequest::new(1, SendOp::Write { remote }, local.sge(0, 8)),
            SendRequest::new(2, op, local.sge(8, 8)),
            SendRequest::new(3, SendOp::Write { remote }, local.sge(0, 8)),
        ])
        .unwrap();
        let none = ConnParam { initiator_depth: 0, ..ConnParam::default() };
        let c = pair.connect_qps(qp_a, qp_b, &none, &ConnParam::default());
        told!(pair.event_a(), Disconnected { error: Some(_), .. });
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::LocalQpOperationError), (3, WcStatus::WrFlushError)];
        assert_eq!(statuses(&pair.a.cq), expected);
        assert_eq!(c.qp_a.state(), QpState::Error);
    }
}

/// Two threads post on both sides while engine threads establish the connection. No request is lost, and no
/// request waits for a later post.
#[test]
fn posts_that_race_with_the_connection_are_all_sent() {
    const ROUNDS: u16 = 40;
    const POSTS: u64 = 60;
    const PATIENCE: Duration = Duration::from_secs(30);
    let pair = Testbed::new().hosts();
    let (local, remote) = pair.regions(64);
    let listener = pair.b.context.create_id(&pair.b.channel);
    let Pair { a, b, .. } = pair;
    let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
    listener.listen(PORT, 16, Duration::from_secs(10)).unwrap();
    for round in 0..ROUNDS {
        let init = |cq| QpInit { early_sends: true, ..QpInit::new(cq) };
        let qp_a = a.pd.create_qp(&init(&a.cq)).unwrap();
        let qp_b = b.pd.create_qp(&init(&b.cq)).unwrap();
        let id = a.context.create_id(&a.channel);
        let to_b = SendOp::Write { remote: remote_addr(&remote, 0) };
        let to_a = SendOp::Write { remote: remote_addr(&local, 0) };
        let mut accepted = None;
        std::thread::scope(|scope| {
            for (qp, op, from) in [(&qp_a, to_b, &local), (&qp_b, to_a, &remote)] {
                scope.spawn(move || {
                    for wr_id in 0..POSTS {
                        qp.post_send(&SendRequest::new(wr_id, op, from.sge(0, 8))).unwrap();
                        // In each round, the posts occur at a different moment of the setup.
                        (0..u64::from(round) * 20).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
            id.connect(&qp_a, b.address, &ConnParam::default()).unwrap();
            let deadline = Instant::now() + PATIENCE;
            while accepted.is_none() {
                assert!(Instant::now() < deadline, "no connect request");
                if let Some(event) = b.channel.wait(PATIENCE).unwrap()
                    && matches!(event.kind, CmEventKind::ConnectRequest { .. })
                {
                    event.id.accept(&qp_b, &ConnParam::default()).unwrap();
                    accepted = Some(event.id);
                }
            }
        });
        for (cq, end) in [(&a.cq, "a"), (&b.cq, "b")] {
            let deadline = Instant::now() + PATIENCE;
            for wr_id in 0..POSTS {
                let wc = loop {
                    match cq.poll_one() {
                        Some(wc) => break wc,
                        None if Instant::now() < deadline => std::thread::yield_now(),
                        None => panic!("round {round}: {wr_id} completions at {end}"),
                    }
                };
                assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
            }
        }
    }
    drop(engines);
}
