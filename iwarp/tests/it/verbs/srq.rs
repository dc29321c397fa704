//! Shared receive queues, for example their order, their limits, and the effect of one stream on other
//! streams.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::raw::{fpdu, request};
use crate::common::responder::Responder;
use crate::common::testbed::engine;
use crate::common::{Connected, PORT, Pair, Testbed};
use dp::link::{LinkConfig, pair};
use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{
    AsyncEvent, AsyncEventKind, CmEventKind, ConnParam, Context, ContextConfig, CqOptions, MemoryRegion,
    QpInit, QpState, QueuePair, RecvRequest, SendOp, SendRequest, SharedReceiveQueue, SrqInit, StreamError,
    VerbsError, WcStatus, WorkCompletion, cqe_for,
};
use tcp_lite::Instant;

/// Size of one buffer in bytes.
const SLOT: usize = 16;

/// The error of a message without a buffer.
const NO_BUFFER: StreamError = StreamError { layer: 1, etype: 2, code: 2, from_peer: false };

/// B's side: a shared receive queue, and memory for all its buffers.
struct Server {
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
}

impl Server {
    fn new(pair: &Pair, depth: usize) -> Self {
        let srq = pair.b.pd.create_srq(&SrqInit { max_wr: depth, ..SrqInit::default() }).unwrap();
        let memory = pair.b.pd.reg_mr(depth * SLOT, Access::LOCAL_WRITE).unwrap();
        let server = Self { srq, memory };
        for slot in 0..depth {
            server.post(slot as u64);
        }
        server
    }

    fn post(&self, slot: u64) {
        self.srq.post_recv(&RecvRequest::new(slot, self.memory.sge(slot as usize * SLOT, SLOT))).unwrap();
    }

    fn number(&self, wc: &WorkCompletion) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_at(wc.wr_id as usize * SLOT, &mut bytes).unwrap();
        u64::from_be_bytes(bytes)
    }

    /// Returns a connection that may hold at most `cap` buffers of the shared receive queue.
    fn connect(&self, pair: &mut Pair, cap: usize, high_water: usize) -> Connected {
        let init = QpInit { srq: Some(&self.srq), max_recv_wr: cap, high_water, ..QpInit::new(&pair.b.cq) };
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
        pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default())
    }
}

/// Sends a message that contains `number`.
fn send(qp: &QueuePair, memory: &MemoryRegion, number: u64) {
    memory.write_at(0, &number.to_be_bytes()).unwrap();
    let flags = iwarp::verbs::SendFlags::INLINE;
    qp.post_send(&SendRequest::new(number, SendOp::Send, memory.sge(0, 8)).flags(flags)).unwrap();
}

fn events(context: &Context) -> Vec<AsyncEvent> {
    let events = context.async_events();
    std::iter::from_fn(|| events.poll().unwrap()).collect()
}

// Proves SEC-043, SEC-134, SEC-135, SEC-136, SEC-183, RDMAP-371, DDP-038, DDP-239: one stream floods, and a
// hundred streams behave well. The flooding stream ends at its cap with 1/2/02, after the event of its
// high-water mark. The messages of all other streams arrive in order, with fewer buffers than a queue for
// each stream would need.
#[test]
fn a_flood_ends_at_its_cap_and_costs_the_others_nothing() {
    const HONEST: usize = 100;
    const CAP: usize = 4;
    const ROUNDS: u64 = 10;
    let mut pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, 128);
    const { assert!(128 < CAP * (HONEST + 1), "sharing saves memory") };
    let _listener = pair.listen();
    let flood = server.connect(&mut pair, CAP, CAP - 1);
    let honest: Vec<Connected> = (0..HONEST).map(|_| server.connect(&mut pair, CAP, CAP - 1)).collect();
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    // No completion is polled at first, so the flood is limited to its cap.
    for number in 0..100 {
        send(&flood.qp_a, &memory, number);
    }
    pair.until(|_| flood.qp_b.error());
    assert_eq!((flood.qp_b.error(), flood.qp_b.state()), (Some(NO_BUFFER), QpState::Terminate));
    let attacker = flood.qp_b.query();
    assert_eq!((attacker.recv_taken, attacker.recv_outstanding), (CAP as u64, CAP));
    let told: Vec<_> = events(&pair.b.context).iter().map(|event| (event.kind, event.number)).collect();
    assert_eq!(told[0], (AsyncEventKind::QpHighWater, flood.qp_b.qp_num()), "{told:?}");
    assert!(told.iter().all(|&(_, number)| number == flood.qp_b.qp_num()), "{told:?}");
    // From now on the application polls completions and posts buffers again.
    let mut got = vec![Vec::new(); HONEST];
    let mut reap = |pair: &mut Pair| {
        let mut held = BTreeSet::new();
        while let Some(wc) = pair.b.cq.poll_one() {
            assert!(held.insert(wc.wr_id), "buffer {} was used twice", wc.wr_id);
            if let Some(index) = honest.iter().position(|c| c.qp_b.qp_num() == wc.qp_num) {
                assert_eq!(wc.status, WcStatus::Success);
                got[index].push(server.number(&wc));
            }
        }
        for slot in held {
            server.post(slot);
        }
        got.iter().all(|numbers| numbers.len() == ROUNDS as usize).then_some(())
    };
    for round in 0..ROUNDS {
        for c in &honest {
            send(&c.qp_a, &memory, round);
        }
        pair.run_us(50);
        reap(&mut pair);
    }
    pair.until(reap);
    for (c, numbers) in honest.iter().zip(&got) {
        assert!(numbers.iter().copied().eq(0..ROUNDS), "{numbers:?}");
        assert_eq!((c.qp_b.state(), c.qp_b.error()), (QpState::Rts, None));
    }
    assert_eq!(server.srq.query().posted, 128, "every buffer came back");
}

// Proves SEC-130: without limits, one stream can take all buffers.
#[test]
fn without_a_cap_one_stream_starves_the_others() {
    const DEPTH: usize = 32;
    let mut pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, DEPTH);
    let _listener = pair.listen();
    let flood = server.connect(&mut pair, DEPTH, 0);
    let victim = server.connect(&mut pair, DEPTH, 0);
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    for number in 0..DEPTH as u64 {
        send(&flood.qp_a, &memory, number);
    }
    pair.until(|_| (flood.qp_b.query().recv_taken == DEPTH as u64).then_some(()));
    send(&victim.qp_a, &memory, 0);
    pair.until(|_| victim.qp_b.error());
    assert_eq!((victim.qp_b.error(), flood.qp_b.error()), (Some(NO_BUFFER), None));
}

// Proves SEC-131, SEC-132: the low-water event occurs once, early enough to end the stream that has taken
// most buffers, and the victim loses nothing. The rate of the flood is a number of messages per poll, for
// which the queue is sized. A line rate is not measured.
#[test]
fn the_limit_event_comes_in_time_to_end_the_flood() {
    // The size is the number of the flood's messages per poll, times the number of polls until the
    // application acts, plus the mark.
    const BURST: usize = 32;
    const MARK: usize = 8 * BURST;
    let depth = 8 * BURST + MARK;
    let mut pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, depth);
    let _listener = pair.listen();
    let flood = server.connect(&mut pair, depth, 0);
    let victim = server.connect(&mut pair, depth, 0);
    server.srq.arm_limit(MARK).unwrap();
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    let qps = [&flood.qp_b, &victim.qp_b];
    let (mut ended, mut sent, mut told) = (false, 0, 0);
    for round in 0..400 {
        if !ended {
            for number in 0..BURST as u64 {
                send(&flood.qp_a, &memory, number);
            }
        }
        if round % 10 == 0 {
            send(&victim.qp_a, &memory, sent);
            sent += 1;
        }
        pair.poll();
        while pair.a.cq.poll_one().is_some() {}
        for event in events(&pair.b.context) {
            if event.kind == AsyncEventKind::SrqLimitReached {
                assert_eq!(event.number, server.srq.srq_num());
                told += 1;
                let greedy = qps.iter().max_by_key(|qp| qp.query().recv_taken).unwrap();
                assert_eq!(greedy.qp_num(), flood.qp_b.qp_num());
                greedy.modify(QpState::Error).unwrap();
                ended = true;
            }
        }
    }
    assert_eq!(told, 1, "once armed, told once");
    pair.until(|_| (victim.qp_b.query().recv_taken == sent).then_some(()));
    assert_eq!((victim.qp_b.state(), flood.qp_b.state()), (QpState::Rts, QpState::Error));
    assert!(server.srq.query().posted > 0, "it never ran dry");
    let numbers = std::iter::from_fn(|| pair.b.cq.poll_one())
        .filter(|wc| wc.qp_num == victim.qp_b.qp_num())
        .map(|wc| server.number(&wc));
    assert!(numbers.eq(0..sent));
}

/// The limit can be armed again, and disarmed. The event of a limit that is already reached occurs at once.
#[test]
fn the_limit_is_armed_anew() {
    let mut pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, 8);
    let limit = |pair: &Pair| {
        events(&pair.b.context).iter().filter(|e| e.kind == AsyncEventKind::SrqLimitReached).count()
    };
    let _listener = pair.listen();
    let c = server.connect(&mut pair, 8, 0);
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    server.srq.arm_limit(8).unwrap();
    assert_eq!((limit(&pair), server.srq.query().limit), (0, 8), "eight are not fewer than eight");
    send(&c.qp_a, &memory, 0);
    pair.wc_b();
    assert_eq!((limit(&pair), server.srq.query().limit), (1, 0));
    send(&c.qp_a, &memory, 1);
    pair.wc_b();
    assert_eq!(limit(&pair), 0, "not armed");
    server.srq.arm_limit(7).unwrap();
    assert_eq!(limit(&pair), 1, "six are fewer than seven: at once");
    server.srq.arm_limit(6).unwrap();
    server.srq.arm_limit(0).unwrap();
    send(&c.qp_a, &memory, 2);
    pair.wc_b();
    assert_eq!(limit(&pair), 0, "taken back");
    assert!(matches!(server.srq.arm_limit(9), Err(VerbsError::Invalid(_))));
}

// Proves SEC-133: a message that begins and never ends holds one buffer, which is counted. When the stream
// ends, the buffer is returned with its wr_id, and then the event for the last buffer occurs.
#[test]
fn a_begun_message_holds_one_buffer_and_gives_it_back() {
    let mut door = Responder::new();
    let (pd, cq) = (door.pd.clone(), door.cq.clone());
    let srq = pd.create_srq(&SrqInit { max_wr: 4, ..SrqInit::default() }).unwrap();
    let memory = pd.reg_mr(400, Access::LOCAL_WRITE).unwrap();
    let buffers: Vec<_> =
        (0..4).map(|slot| RecvRequest::new(slot, memory.sge(slot as usize * 100, 100))).collect();
    srq.post_recv_list(&buffers).unwrap();
    let (posted, error) = srq.post_recv_list(&buffers).unwrap_err();
    assert!(matches!((posted, error), (0, VerbsError::QueueFull("shared receive"))));
    let qp = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
    let id = door.connect_request(&request(true)).id;
    door.accept_for(&qp, &id, &ConnParam::default());
    let pair = &mut door.pair;
    assert_eq!((srq.query().posted, qp.query().recv_taken), (4, 0), "an idle stream holds none");
    let mut framer = Framer::new(false, true);
    // The peer sends the first segments of a Send, but never the last segment.
    for offset in [0_u8, 4, 8] {
        let mut ulpdu = vec![0x01, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, offset];
        ulpdu.extend([0xee; 4]);
        let bytes = fpdu(&mut framer, &ulpdu);
        pair.send(&bytes);
    }
    pair.until(10_000, |_| false);
    let attr = qp.query();
    assert_eq!((attr.recv_taken, attr.recv_in_process, attr.recv_outstanding), (1, 1, 1));
    assert_eq!((srq.query().posted, srq.query().outstanding), (3, 4));
    pair.close();
    assert!(pair.until(10_000_000, |_| qp.state() == QpState::Error));
    let wc = cq.poll_one().unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (0, WcStatus::WrFlushError, qp.qp_num()));
    assert!(cq.poll_one().is_none(), "what it had not taken stays in the shared queue");
    assert_eq!((srq.query().posted, srq.query().outstanding), (3, 3));
    assert_eq!(qp.query().recv_in_process, 0);
    let kinds: Vec<_> = events(&pair.context).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [AsyncEventKind::LastWqeReached], "a FIN between two FPDUs is no error");
}

/// Requests whose completions are lost use no entries of the queue any more, like requests whose completions
/// were polled. The queue has space for new requests in their place.
#[test]
fn lost_completions_take_nothing_from_the_queue() {
    const DEPTH: usize = 8;
    let (mut pair, _listener) = Pair::listening();
    let server = Server::new(&pair, DEPTH);
    let small = pair.b.context.create_cq(2, None).unwrap();
    let init = QpInit { srq: Some(&server.srq), recv_cq: &small, ..QpInit::new(&pair.b.cq) };
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
    let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    for number in 0..5 {
        send(&c.qp_a, &memory, number);
    }
    pair.until(|_| c.qp_b.error());
    pair.run_us(100_000);
    let lost = small.query().lost as usize;
    assert!(lost > 0, "nothing was lost");
    let left = server.srq.query().posted;
    assert_eq!(server.srq.query().outstanding, left + 2, "two wait to be polled");
    while small.poll_one().is_some() {}
    assert_eq!(server.srq.query().outstanding, left);
    for slot in left..DEPTH {
        server.post(slot as u64);
    }
    let more = server.srq.post_recv(&RecvRequest::new(0, server.memory.sge(0, SLOT)));
    assert!(matches!(more, Err(VerbsError::QueueFull(_))), "{more:?}");
}

// Proves SEC-006, SEC-046, SEC-050, SEC-052: a queue pair uses a shared receive queue only if its creator
// passes this queue in `QpInit::srq`. `QueuePair::query` shows the number of the queue, or `None`. By
// default, only queue pairs of one protection domain can share a queue.
#[test]
fn sharing_is_explicit_and_within_one_protection_domain() {
    let pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, 4);
    let own = pair.b.pd.create_qp(&QpInit::new(&pair.b.cq)).unwrap();
    assert_eq!(own.query().srq, None);
    let init = QpInit { srq: Some(&server.srq), ..QpInit::new(&pair.b.cq) };
    let shared = pair.b.pd.create_qp(&init).unwrap();
    let (own, attr) = (own.query(), shared.query());
    assert_eq!(attr.srq, Some(server.srq.srq_num()));
    assert_eq!((attr.pd_num, attr.recv_cq), (own.pd_num, own.recv_cq));
    let other = pair.b.context.alloc_pd().unwrap();
    assert_ne!(other.pd_num(), attr.pd_num);
    assert!(matches!(other.create_qp(&init), Err(VerbsError::Invalid(_))));
    // The queue pair has no receive queue of its own.
    let buffer = RecvRequest::new(9, server.memory.sge(0, SLOT));
    assert!(matches!(shared.post_recv(&buffer), Err(VerbsError::Invalid(_))));
    // Buffers of another protection domain are refused.
    let foreign = other.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let buffer = RecvRequest::new(9, foreign.sge(0, SLOT));
    assert!(matches!(server.srq.post_recv(&buffer), Err(VerbsError::LocalProtection(_))));
    assert!(matches!(
        pair.b.pd.create_srq(&SrqInit { max_wr: 0, ..SrqInit::default() }),
        Err(VerbsError::Invalid(_))
    ));
    let narrow = pair.b.pd.create_srq(&SrqInit { max_wr: 1, max_sge: 0, ..SrqInit::default() }).unwrap();
    let buffer = RecvRequest::new(9, server.memory.sge(0, SLOT));
    assert!(matches!(narrow.post_recv(&buffer), Err(VerbsError::TooManySge { got: 1, max: 0 })));
}

/// Queue pairs of two engines share a receive queue and a completion queue. The completions of each stream
/// are in the order of the stream, and each buffer is used once.
#[test]
fn queue_pairs_of_two_engines_share_one_queue() {
    const MESSAGES: u64 = 200;
    let clients = Context::new(ContextConfig { seed: Some([1; 32]), ..Default::default() }).unwrap();
    let host = Context::new(ContextConfig { seed: Some([2; 32]), ..Default::default() }).unwrap();
    let mut engines = Vec::new();
    for net in 0..2_u8 {
        let (port_a, port_b) = pair(&LinkConfig::default());
        for (context, port, number) in [(&clients, port_a, 1), (&host, port_b, 2)] {
            engines.push(engine(context, port, &format!("10.0.{net}.{number}/24"), 10 * net + number));
        }
    }
    let (pd_a, pd_b) = (clients.alloc_pd().unwrap(), host.alloc_pd().unwrap());
    let srq = pd_b.create_srq(&SrqInit { max_wr: 16, ..SrqInit::default() }).unwrap();
    let memory_a = pd_a.reg_mr(64, Access::empty()).unwrap();
    let memory_b = pd_b.reg_mr(16 * SLOT, Access::LOCAL_WRITE).unwrap();
    let buffer = |slot: u64| RecvRequest::new(slot, memory_b.sge(slot as usize * SLOT, SLOT));
    srq.post_recv_list(&(0..16).map(buffer).collect::<Vec<_>>()).unwrap();
    let cq_a = clients.create_cq(1024, None).unwrap();
    let strict = Some(true);
    let cq_b = host.create_cq_with(&CqOptions { strict, ..CqOptions::new(cqe_for([128, 128, 16])) }).unwrap();
    let (channel_a, channel_b) =
        (clients.create_event_channel().unwrap(), host.create_event_channel().unwrap());
    let listener = host.create_id(&channel_b);
    listener.listen(PORT, 8, Duration::from_secs(10)).unwrap();
    let mut now_us = 0;
    let mut poll_both = || {
        now_us += 10;
        for engine in &mut engines {
            engine.poll_at(Instant::from_micros(now_us));
        }
    };
    poll_both();
    let mut ends = Vec::new();
    for net in 0..2_usize {
        let qp_a = pd_a.create_qp(&QpInit::new(&cq_a)).unwrap();
        let qp_b = pd_b.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq_b) }).unwrap();
        let id = clients.create_id(&channel_a);
        let param = ConnParam { engine: Some(net), ..ConnParam::default() };
        id.connect(&qp_a, format!("10.0.{net}.2:{PORT}").parse().unwrap(), &param).unwrap();
        let mut accepted = None;
        for _ in 0..10_000 {
            poll_both();
            if let Some(event) = channel_b.poll()
                && matches!(event.kind, CmEventKind::ConnectRequest { .. })
            {
                event.id.accept(&qp_b, &ConnParam::default()).unwrap();
                accepted = Some(event.id);
            }
            if qp_a.state() == QpState::Rts && qp_b.state() == QpState::Rts {
                break;
            }
        }
        ends.push((qp_a, qp_b, id, accepted.unwrap()));
    }
    let mut got = [Vec::new(), Vec::new()];
    let mut sent = 0;
    for _ in 0..100_000 {
        // The number of messages under way is never larger than the number of buffers.
        if sent < MESSAGES && got.iter().all(|numbers| sent - (numbers.len() as u64) < 8) {
            ends.iter().for_each(|(qp_a, ..)| send(qp_a, &memory_a, sent));
            sent += 1;
        }
        poll_both();
        while cq_a.poll_one().is_some() {}
        while let Some(wc) = cq_b.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            let index = ends.iter().position(|(_, qp_b, ..)| qp_b.qp_num() == wc.qp_num).unwrap();
            let mut bytes = [0; 8];
            memory_b.read_at(wc.wr_id as usize * SLOT, &mut bytes).unwrap();
            got[index].push(u64::from_be_bytes(bytes));
            srq.post_recv(&buffer(wc.wr_id)).unwrap();
        }
        if got.iter().all(|numbers| numbers.len() as u64 == MESSAGES) {
            break;
        }
    }
    for numbers in got {
        assert!(numbers.into_iter().eq(0..MESSAGES));
    }
}

/// A shared receive queue that is not limited to one domain serves queue pairs of other domains. The buffers
/// of the receive queue have to belong to the receive queue's own domain.
#[test]
fn queue_pairs_of_other_domains_are_served_if_the_queue_says_so() {
    for is_own in [true, false] {
        let mut pair = Testbed::new().late_memory_checks().hosts();
        let other = pair.b.context.alloc_pd().unwrap();
        let init = |one_pd| SrqInit { max_wr: 8, one_pd, ..SrqInit::default() };
        let strict = other.create_srq(&init(true)).unwrap();
        let of = |srq| pair.b.pd.create_qp(&QpInit { srq: Some(srq), ..QpInit::new(&pair.b.cq) });
        assert!(matches!(of(&strict), Err(VerbsError::Invalid(_))));
        let srq = other.create_srq(&init(false)).unwrap();
        let (qp_a, qp_b) = (pair.a.qp(), of(&srq).unwrap());
        let param = ConnParam::default();
        let listener = pair.listen();
        let _c = pair.connect_qps(qp_a.clone(), qp_b, &param, &param);
        listener.disconnect();
        let domain = if is_own { &other } else { &pair.b.pd };
        let buffer = domain.reg_mr(64, Access::LOCAL_WRITE).unwrap();
        srq.post_recv(&RecvRequest::new(7, buffer.sge(0, 64))).unwrap();
        let source = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
        qp_a.post_send(&SendRequest::new(1, SendOp::Send, source.sge(0, 64))).unwrap();
        let expected = if is_own { WcStatus::Success } else { WcStatus::LocalProtectionError };
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.status), (7, expected));
    }
}

/// A queue that serves all protection domains of its context serves no other context.
#[test]
fn queue_pairs_of_another_context_are_refused() {
    let pair = Pair::new(&LinkConfig::default());
    for one_pd in [true, false] {
        let srq = pair.b.pd.create_srq(&SrqInit { max_wr: 8, one_pd, ..SrqInit::default() }).unwrap();
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&pair.a.cq) };
        assert!(matches!(pair.a.pd.create_qp(&init), Err(VerbsError::Invalid(_))), "{one_pd}");
    }
}

/// If a mark is set when the queue pair already holds more buffers, its event occurs at once. If the queue
/// pair does not hold more buffers, no event occurs.
#[test]
fn the_high_water_mark_is_armed_late() {
    let mut pair = Pair::new(&LinkConfig::default());
    let server = Server::new(&pair, 8);
    let _listener = pair.listen();
    let c = server.connect(&mut pair, 8, 0);
    let memory = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    (0..3).for_each(|number| send(&c.qp_a, &memory, number));
    // Buffers whose completions nobody has polled still count as held.
    pair.until(|_| (c.qp_b.query().recv_outstanding == 3).then_some(()));
    let told = || events(&pair.b.context).iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(told(), []);
    c.qp_b.arm_high_water(3);
    assert_eq!(told(), [], "three are not more than three");
    c.qp_b.arm_high_water(2);
    assert_eq!(told(), [AsyncEventKind::QpHighWater]);
}
