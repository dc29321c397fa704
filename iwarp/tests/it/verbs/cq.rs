//! Completion queues, for example their overflow and how to prevent it, their resizing, and their solicited
//! events.

use crate::common::{ALL, Connected, Pair, read_bytes, remote_addr};
use std::time::Duration;

use dp::link::LinkConfig;
use iwarp::verbs::{
    AsyncEvent, AsyncEventKind, CompletionQueue, ConnParam, Context, ContextConfig, ContextLimits, CqAttr,
    CqOptions, MemoryRegion, QpInit, QpState, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest,
    SrqInit, StreamError, VerbsError, WcOpcode, WcStatus, WorkCompletion, cqe_for,
};

/// The error of a stream that has lost a completion: local catastrophic.
const CATASTROPHIC: StreamError = StreamError { layer: 0, etype: 0, code: 0, from_peer: false };

fn events(context: &Context) -> Vec<AsyncEvent> {
    let events = context.async_events();
    std::iter::from_fn(|| events.poll().unwrap()).collect()
}

fn connect(pair: &mut Pair, init: &QpInit<'_>) -> Connected {
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(init).unwrap());
    pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default())
}

fn post_recv(qp: &QueuePair, memory: &MemoryRegion, wr_id: u64) -> Result<(), VerbsError> {
    qp.post_recv(&RecvRequest::new(wr_id, memory.sge(0, 8)))
}

fn post_send(qp: &QueuePair, memory: &MemoryRegion, wr_id: u64, length: usize) -> Result<(), VerbsError> {
    qp.post_send(&SendRequest::new(wr_id, SendOp::Send, memory.sge(0, length)))
}

fn drain(cq: &CompletionQueue) -> Vec<WorkCompletion> {
    std::iter::from_fn(|| cq.poll_one()).collect()
}

// Proves SEC-033, SEC-137, SEC-158, SEC-159, SEC-163, RDMAP-360: the completion queue has four entries, for
// 64 receives and 64 Sends. The queue pairs that use this queue end with events. A stream that uses another
// queue of the same engine loses no completion.
#[test]
fn an_overflow_ends_its_users_and_nobody_else() {
    let (mut pair, _listener) = Pair::listening();
    let small = pair.b.context.create_cq(4, None).unwrap();
    let other = pair.b.context.create_cq(4096, None).unwrap();
    let large = pair.b.cq.clone();
    let doomed = connect(&mut pair, &QpInit { recv_cq: &small, ..QpInit::new(&large) });
    let idle = pair.b.pd.create_qp(&QpInit::new(&small)).unwrap();
    let safe = connect(&mut pair, &QpInit::new(&other));
    let (local, remote) = pair.regions(64 << 10);
    for wr_id in 0..64 {
        post_recv(&doomed.qp_b, &remote, wr_id).unwrap();
        post_recv(&safe.qp_b, &remote, wr_id).unwrap();
    }
    post_recv(&idle, &remote, 7).unwrap();
    for wr_id in 0..64 {
        post_send(&doomed.qp_a, &local, wr_id, 8).unwrap();
        post_send(&safe.qp_a, &local, wr_id, 8).unwrap();
    }
    pair.until(|_| {
        (doomed.qp_a.state() == QpState::Error && doomed.qp_b.state() == QpState::Error).then_some(())
    });
    // The error is local catastrophic, and the peer receives a Terminate.
    assert_eq!(doomed.qp_b.error(), Some(CATASTROPHIC));
    assert_eq!(doomed.qp_a.error(), Some(StreamError { from_peer: true, ..CATASTROPHIC }));
    let told = events(&pair.b.context);
    let kinds: Vec<_> = told.iter().map(|event| (event.kind, event.number)).collect();
    assert_eq!(kinds[0], (AsyncEventKind::CqError, small.cq_num()));
    assert!(kinds.contains(&(AsyncEventKind::QpFatal, doomed.qp_b.qp_num())), "{kinds:?}");
    assert!(kinds.contains(&(AsyncEventKind::QpFatal, idle.qp_num())), "{kinds:?}");
    assert_eq!(kinds.len(), 3, "one event each: {kinds:?}");
    assert_eq!(idle.state(), QpState::Error, "who only waits on that queue ends as well");
    // The completions that fit into the queue are in it; all others are counted as lost.
    let attr = small.query();
    assert_eq!((small.overflowed(), attr.waiting, attr.lost), (true, 4, 64 + 1 - 4));
    let first: Vec<_> = drain(&small).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(first, (0..4).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
    assert!(matches!(pair.b.pd.create_qp(&QpInit::new(&small)), Err(VerbsError::CqOverflowed)));
    // On the other stream, everything has arrived, and the stream continues.
    let arrived = pair.until(|_| (other.query().waiting == 64).then(|| drain(&other)));
    assert!(arrived.iter().zip(0..).all(|(wc, n)| (wc.wr_id, wc.status) == (n, WcStatus::Success)));
    post_recv(&safe.qp_b, &remote, 64).unwrap();
    post_send(&safe.qp_a, &local, 64, 8).unwrap();
    let last = pair.until(|_| other.poll_one());
    assert_eq!((last.wr_id, last.status, safe.qp_b.error()), (64, WcStatus::Success, None));
}

#[test]
fn an_overflow_by_sends_ends_the_stream_too() {
    let (mut pair, _listener) = Pair::listening();
    let small = pair.b.context.create_cq(4, None).unwrap();
    let large = pair.b.cq.clone();
    let c = connect(&mut pair, &QpInit { send_cq: &small, ..QpInit::new(&large) });
    let local = pair.b.pd.reg_mr(64, ALL).unwrap();
    let remote = pair.a.pd.reg_mr(64, ALL).unwrap();
    let to = remote_addr(&remote, 0);
    // The responder may send after it has received the first FPDU of the initiator.
    for wr_id in 0..5 {
        c.qp_b.post_send(&SendRequest::new(wr_id, SendOp::Write { remote: to }, local.sge(0, 8))).unwrap();
    }
    pair.until(|_| c.qp_a.error());
    assert_eq!(c.qp_b.error(), Some(CATASTROPHIC));
    assert_eq!(small.query().lost, 1);
}

/// Creates a queue pair whose completion queue has `entries` entries. Posts as many requests as possible to
/// its send queue and its receive queue (or shared receive queue), and polls no completion in this time. If
/// the completion queue does not overflow, also checks that no more requests can be posted until a completion
/// is polled.
fn fill(entries: usize, with_srq: bool) -> (Pair, Connected, CompletionQueue) {
    const DEPTH: usize = 8;
    let (mut pair, _listener) = Pair::listening();
    let cq = pair.b.context.create_cq(entries, None).unwrap();
    let srq = pair.b.pd.create_srq(&SrqInit { max_wr: DEPTH, ..SrqInit::default() }).unwrap();
    let init =
        QpInit { max_send_wr: DEPTH, max_recv_wr: DEPTH, srq: with_srq.then_some(&srq), ..QpInit::new(&cq) };
    let c = connect(&mut pair, &init);
    let (local, remote) = pair.regions(64);
    let to = remote_addr(&local, 0);
    let post = |wr_id| {
        if with_srq {
            srq.post_recv(&RecvRequest::new(wr_id, remote.sge(0, 8)))
        } else {
            post_recv(&c.qp_b, &remote, wr_id)
        }
    };
    for wr_id in 0..DEPTH as u64 {
        post(wr_id).unwrap();
        post_send(&c.qp_a, &local, wr_id, (wr_id % 2) as usize).unwrap();
        c.qp_b.post_send(&SendRequest::new(wr_id, SendOp::Write { remote: to }, remote.sge(0, 8))).unwrap();
    }
    pair.run_us(10_000);
    // All requests are complete and no completion is polled, so no more requests can be posted.
    if c.qp_b.error().is_none() {
        assert!(matches!(post(99), Err(VerbsError::QueueFull(_))));
        let more = SendRequest::new(99, SendOp::Write { remote: to }, remote.sge(0, 8));
        assert!(matches!(c.qp_b.post_send(&more), Err(VerbsError::QueueFull("send"))));
        assert_eq!(cq.query().waiting, 2 * DEPTH);
        // The polled completion allows one more request of its kind.
        let wc = cq.poll_one().unwrap();
        match wc.opcode {
            WcOpcode::Recv => post(99).unwrap(),
            _ => c.qp_b.post_send(&more).unwrap(),
        }
        pair.run_us(10_000);
    }
    (pair, c, cq)
}

// Proves SEC-143, SEC-144, SEC-162, SEC-184, SEC-185: at exactly the computed size the queue does not
// overflow, however much is posted and sent, and however late completions are polled. With one entry less,
// the queue overflows. Posting beyond a declared limit is refused. No completion is polled until all requests
// are posted: a program that pauses for a second polls earlier.
#[test]
fn the_computed_size_is_enough_and_no_more_than_that() {
    for with_srq in [false, true] {
        let size = cqe_for([8, 8]);
        let (_pair, c, cq) = fill(size, with_srq);
        assert_eq!((cq.overflowed(), cq.query().needed, c.qp_b.error()), (false, size, None));
        let (_pair, c, cq) = fill(size - 1, with_srq);
        assert_eq!((cq.overflowed(), c.qp_b.error()), (true, Some(CATASTROPHIC)));
    }
    assert_eq!((cqe_for([]), cqe_for([usize::MAX, 1])), (0, usize::MAX));
}

// Proves SEC-140, SEC-146: a flood of empty and one-byte Sends goes to a queue of eight streams. The queue
// has the computed size and is polled once per simulated second. The stream of the flood ends, and no
// completion of the other streams is missing.
#[test]
fn a_flood_does_not_overflow_a_queue_of_the_right_size() {
    const STREAMS: usize = 8;
    const DEPTH: usize = 16;
    let (mut pair, _listener) = Pair::listening();
    let size = cqe_for([DEPTH; 2 * STREAMS]);
    let cq =
        pair.b.context.create_cq_with(&CqOptions { strict: Some(true), ..CqOptions::new(size) }).unwrap();
    let init = QpInit { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpInit::new(&cq) };
    let ends: Vec<_> = (0..STREAMS).map(|_| connect(&mut pair, &init)).collect();
    let (local, remote) = pair.regions(64);
    let mut expected = 0;
    for round in 0..20 {
        for (index, c) in ends.iter().enumerate() {
            let flood = index == 0;
            if !flood || round == 0 {
                for wr_id in 0..DEPTH as u64 {
                    post_recv(&c.qp_b, &remote, wr_id).unwrap();
                }
            }
            let count = if !flood {
                DEPTH
            } else if round == 0 {
                1000
            } else {
                0
            };
            for wr_id in 0..count as u64 {
                post_send(&c.qp_a, &local, wr_id, (wr_id % 2) as usize).unwrap();
            }
            expected += if flood { 0 } else { DEPTH };
        }
        pair.run_us(1_000_000);
        while pair.a.cq.poll_one().is_some() {}
        let (flood, honest): (Vec<_>, Vec<_>) =
            drain(&cq).into_iter().partition(|wc| wc.qp_num == ends[0].qp_b.qp_num());
        assert_eq!(flood.len(), if round == 0 { DEPTH } else { 0 });
        assert!(honest.iter().all(|wc| wc.status == WcStatus::Success));
        expected -= honest.len();
    }
    assert_eq!((expected, cq.overflowed()), (0, false));
    assert_eq!(ends[0].qp_b.error(), Some(StreamError { layer: 1, etype: 2, code: 2, from_peer: false }));
}

// Proves SEC-141, SEC-145: if the check is on, a queue pair that could make the queue overflow is refused. By
// default, the check is on as soon as queue pairs of two protection domains share the queue.
#[test]
fn a_queue_pair_that_could_overflow_is_refused_where_that_is_checked() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let (pd, other) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let with = |strict| context.create_cq_with(&CqOptions { strict, ..CqOptions::new(40) }).unwrap();
    fn init(cq: &CompletionQueue) -> QpInit<'_> {
        QpInit { max_send_wr: 10, max_recv_wr: 10, ..QpInit::new(cq) }
    }
    let refused = |result: Result<QueuePair, VerbsError>| {
        matches!(result, Err(VerbsError::CqTooSmall { cqe: 40, needed: 60 }))
    };
    let strict = with(Some(true));
    let first = pd.create_qp(&init(&strict)).unwrap();
    let second = pd.create_qp(&init(&strict)).unwrap();
    assert!(refused(pd.create_qp(&init(&strict))));
    drop(first);
    let third = pd.create_qp(&init(&strict)).unwrap();
    assert_eq!(strict.query().needed, 40, "what is gone needs nothing");
    // Sends may complete to another queue. A shared receive queue counts once, however many queue pairs use
    // it.
    drop((second, third));
    let elsewhere = with(Some(false));
    let srq = pd.create_srq(&SrqInit { max_wr: 30, ..SrqInit::default() }).unwrap();
    let shared = QpInit { srq: Some(&srq), send_cq: &elsewhere, ..init(&strict) };
    let users: Vec<_> = (0..5).map(|_| pd.create_qp(&shared).unwrap()).collect();
    assert_eq!((strict.query().needed, elsewhere.query().needed), (30, 50));
    let larger = pd.create_srq(&SrqInit { max_wr: 11, ..SrqInit::default() }).unwrap();
    assert!(pd.create_qp(&QpInit { srq: Some(&larger), ..shared }).is_err());
    drop(users);
    assert_eq!(strict.query().needed, 0);

    let lax = with(Some(false));
    let many: Vec<_> = [&pd, &pd, &other].map(|pd| pd.create_qp(&init(&lax)).unwrap()).into();
    assert_eq!(lax.query().needed, 60);
    drop(many);
    // By default, queue pairs of a single protection domain are not checked.
    let default = with(None);
    let own: Vec<_> = (0..2).map(|_| pd.create_qp(&init(&default)).unwrap()).collect();
    assert!(refused(other.create_qp(&init(&default))));
    let third = pd.create_qp(&init(&default)).unwrap();
    drop((own, third));
    let both = [pd.create_qp(&init(&default)).unwrap(), other.create_qp(&init(&default)).unwrap()];
    assert!(refused(pd.create_qp(&init(&default))));
    // After the queue has grown, more queue pairs fit. The queue cannot shrink below the needed size.
    default.resize(60).unwrap();
    let third = pd.create_qp(&init(&default)).unwrap();
    assert!(matches!(default.resize(59), Err(VerbsError::CqTooSmall { cqe: 59, needed: 60 })));
    drop((both, third));
}

// Proves SEC-142: the queue is resized repeatedly under load, and every completion is delivered in order. A
// refused resize changes nothing.
#[test]
fn resizing_loses_nothing() {
    let (mut pair, _listener) = Pair::listening();
    let cq = pair.b.context.create_cq(64, None).unwrap();
    let c = connect(&mut pair, &QpInit { max_recv_wr: 64, ..QpInit::new(&cq) });
    let (local, remote) = pair.regions(64);
    let (mut posted, mut reaped, mut resized, mut refused) = (0, 0, 0, 0);
    for round in 0..600_u64 {
        while posted - reaped < 48 {
            post_recv(&c.qp_b, &remote, posted).unwrap();
            post_send(&c.qp_a, &local, posted, 8).unwrap();
            posted += 1;
        }
        pair.poll();
        let CqAttr { cqe: before, waiting, .. } = cq.query();
        // In every fifth round, the size is too small for the waiting completions if there are at least two,
        // so the resize is refused.
        let size = match waiting {
            2.. if round % 5 == 0 => waiting - 1,
            _ => 48 + (round * 7 % 50) as usize,
        };
        match cq.resize(size) {
            Ok(()) => resized += 1,
            Err(VerbsError::Invalid(_)) => {
                refused += 1;
                assert_eq!(cq.query().cqe, before);
            }
            Err(other) => panic!("{other}"),
        }
        for wc in std::iter::from_fn(|| cq.poll_one()).take(20) {
            assert_eq!((wc.wr_id, wc.status), (reaped, WcStatus::Success));
            reaped += 1;
        }
        while pair.a.cq.poll_one().is_some() {}
    }
    assert!(resized > 100 && refused > 0 && reaped > 500, "{resized} {refused} {reaped}");
    assert_eq!((cq.overflowed(), cq.query().lost), (false, 0));
}

// Proves SEC-139, RDMAP-368: the size of a queue and the total number of entries are limited, at creation and
// at a resize.
#[test]
fn entries_are_limited_in_all() {
    let limits = ContextLimits { max_cq: 3, max_cqe: 100, max_cqe_total: 150, ..ContextLimits::default() };
    let context = Context::new(ContextConfig { limits, ..ContextConfig::default() }).unwrap();
    let limit = |result: Result<(), VerbsError>| match result {
        Err(VerbsError::Limit { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(context.create_cq(101, None).map(drop)), "max_cqe");
    let first = context.create_cq(100, None).unwrap();
    assert_eq!(limit(context.create_cq(51, None).map(drop)), "max_cqe_total");
    let second = context.create_cq(40, None).unwrap();
    assert_eq!(limit(second.resize(101)), "max_cqe");
    assert_eq!(limit(second.resize(51)), "max_cqe_total");
    assert_eq!(second.query().cqe, 40);
    second.resize(50).unwrap();
    first.resize(90).unwrap();
    let third = context.create_cq(10, None).unwrap();
    assert_eq!(limit(context.create_cq(1, None).map(drop)), "max_cq");
    let usage = context.usage();
    assert_eq!((usage.cq.used, usage.cq.refused, usage.cqe.used, usage.cqe.refused), (3, 1, 150, 2));
    drop((first, second, third));
    assert_eq!((context.usage().cq.used, context.usage().cqe.used), (0, 0));
    assert!(matches!(context.create_cq(0, None), Err(VerbsError::Invalid(_))));
}

// Proves RDMAP-013, RDMAP-014, RDMAP-042, RDMAP-049, RDMAP-068, RDMAP-240: if the queue is armed for
// solicited events, ten plain Sends cause no event. A solicited Send causes one event, after its completion.
// If the queue is not armed, no Send causes an event. The completion of a Send with Invalidate contains the
// STag, which is then invalid.
#[test]
fn solicited_events() {
    let (mut pair, _listener) = Pair::listening();
    let channel = pair.b.context.create_comp_channel().unwrap();
    let cq = pair.b.context.create_cq(64, Some(&channel)).unwrap();
    let c = connect(&mut pair, &QpInit::new(&cq));
    let (local, remote) = pair.regions(64);
    let lent = pair
        .b
        .pd
        .reg_mr_with(64, &iwarp::verbs::MrOptions { qp: Some(&c.qp_b), ..iwarp::verbs::MrOptions::new(ALL) })
        .unwrap();
    for wr_id in 0..32 {
        post_recv(&c.qp_b, &remote, wr_id).unwrap();
    }
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let events = || channel.wait(Some(Duration::ZERO)).unwrap();
    // The queue is not armed, so there is no event.
    c.qp_a.post_send(&SendRequest::new(0, SendOp::Send, local.sge(0, 8)).flags(solicited)).unwrap();
    pair.run_us(1000);
    assert_eq!((events(), drain(&cq).len()), (0, 1));
    cq.req_notify(true).unwrap();
    for wr_id in 0..10 {
        post_send(&c.qp_a, &local, wr_id, 8).unwrap();
    }
    pair.run_us(1000);
    assert_eq!((events(), cq.query().waiting), (0, 10));
    c.qp_a.post_send(&SendRequest::new(0, SendOp::Send, local.sge(0, 8)).flags(solicited)).unwrap();
    pair.until(|_| (events() == 1).then_some(()));
    let got = drain(&cq);
    assert_eq!(
        (got.len(), got[10].solicited, got[9].solicited),
        (11, true, false),
        "the completion is there before its event"
    );
    // Arming the queue once allows one event.
    c.qp_a.post_send(&SendRequest::new(0, SendOp::Send, local.sge(0, 8)).flags(solicited)).unwrap();
    pair.run_us(1000);
    assert_eq!((events(), drain(&cq).len()), (0, 1));
    // A solicited Send with Invalidate also causes an event.
    cq.req_notify(true).unwrap();
    let invalidate = SendOp::SendInvalidate { rkey: lent.rkey() };
    c.qp_a.post_send(&SendRequest::new(0, invalidate, local.sge(0, 8)).flags(solicited)).unwrap();
    pair.until(|_| (events() == 1).then_some(()));
    let wc = cq.poll_one().unwrap();
    assert_eq!((wc.byte_len, wc.invalidated, wc.solicited), (8, Some(lent.rkey()), true));
    assert!(got.iter().all(|wc| wc.invalidated.is_none()));
    let to = remote_addr(&lent, 0);
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Write { remote: to }, local.sge(0, 8))).unwrap();
    let error = pair.until(|_| c.qp_b.error());
    assert_eq!((error.layer, error.etype, error.code), (1, 1, 0));
}

/// Two threads may arm one queue. If one thread asks for all completions, a second call for solicited
/// completions does not weaken the first call.
#[test]
fn arming_for_solicited_completions_leaves_one_for_all() {
    for (order, plain_makes_one) in
        [(&[false, true][..], true), (&[true, false], true), (&[false, false], true), (&[true, true], false)]
    {
        let (mut pair, _listener) = Pair::listening();
        let channel = pair.b.context.create_comp_channel().unwrap();
        let cq = pair.b.context.create_cq(64, Some(&channel)).unwrap();
        let c = connect(&mut pair, &QpInit::new(&cq));
        let (local, remote) = pair.regions(64);
        for wr_id in 0..3 {
            post_recv(&c.qp_b, &remote, wr_id).unwrap();
        }
        for &solicited_only in order {
            cq.req_notify(solicited_only).unwrap();
        }
        let events = || channel.wait(Some(Duration::ZERO)).unwrap();
        let mut made = Vec::new();
        for flags in [SendFlags::SIGNALED, SendFlags::SIGNALED | SendFlags::SOLICITED, SendFlags::SIGNALED] {
            c.qp_a.post_send(&SendRequest::new(0, SendOp::Send, local.sge(0, 8)).flags(flags)).unwrap();
            pair.run_us(1000);
            made.push(events());
        }
        // The queue generates one event for the two requests. The first completion of the requested kind
        // causes the event.
        let plain = u64::from(plain_makes_one);
        assert_eq!(made, [plain, 1 - plain, 0], "{order:?}");
    }
}

/// A program may arm a queue with [`CompletionQueue::req_notify_with_missed`] and then wait without a further
/// poll: the queue generates an event for a completion that arrived after the program's last poll.
#[test]
fn an_event_for_a_missed_completion() {
    let (mut pair, _listener) = Pair::listening();
    let channel = pair.b.context.create_comp_channel().unwrap();
    let cq = pair.b.context.create_cq(64, Some(&channel)).unwrap();
    let c = connect(&mut pair, &QpInit::new(&cq));
    let (local, remote) = pair.regions(64);
    for wr_id in 0..32 {
        post_recv(&c.qp_b, &remote, wr_id).unwrap();
    }
    let events = || channel.wait(Some(Duration::ZERO)).unwrap();
    let mut send = |count: usize, solicited: bool| {
        let flags = if solicited { SendFlags::SIGNALED | SendFlags::SOLICITED } else { SendFlags::SIGNALED };
        for _ in 0..count {
            c.qp_a.post_send(&SendRequest::new(0, SendOp::Send, local.sge(0, 8)).flags(flags)).unwrap();
        }
        pair.run_us(1000);
    };
    let arm = |solicited_only| cq.req_notify_with_missed(solicited_only).unwrap();
    // No completion waits, so the next one generates the event.
    arm(false);
    assert_eq!(events(), 0);
    send(2, false);
    assert_eq!(events(), 1);
    // The program knows of these completions, so arming the queue generates no event, but a poll must follow.
    arm(false);
    assert_eq!(events(), 0);
    send(1, false);
    assert_eq!(events(), 1, "the queue was armed");
    // The program has polled since the event, and has left completions.
    assert!(cq.poll_one().is_some());
    cq.req_notify(false).unwrap();
    assert_eq!(events(), 0, "the program polls after this call");
    arm(false);
    assert_eq!(events(), 1);
    send(1, false);
    assert_eq!(events(), 0, "arming the queue once allows one event");
    arm(false);
    assert_eq!((events(), drain(&cq).len()), (0, 3), "the program has not polled since the event");
    send(1, false);
    assert_eq!((events(), drain(&cq).len()), (1, 1), "the queue was armed");
    // The queue was empty at the last poll.
    send(1, false);
    arm(false);
    assert_eq!((events(), drain(&cq).len()), (1, 1));
    // Completions that are not solicited wait. Neither the request nor further completions of this kind
    // generate an event.
    send(3, false);
    arm(true);
    send(1, false);
    assert_eq!(events(), 0);
    send(1, true);
    assert_eq!(events(), 1);
    // The event was generated behind other completions, none of which the program has polled.
    arm(true);
    assert_eq!(events(), 0);
    assert_eq!(drain(&cq).len(), 5);
    arm(true);
    assert_eq!(events(), 0, "no completion waits");
    send(1, true);
    assert_eq!((events(), drain(&cq).len()), (1, 1));
    // A solicited completion waits behind the last poll.
    send(1, true);
    send(1, false);
    arm(true);
    assert_eq!((events(), drain(&cq).len()), (1, 2));
    send(1, false);
    arm(true);
    assert_eq!((events(), drain(&cq).len()), (0, 1), "the solicited completion was polled");
}

/// If the queue is armed for solicited events, the flush at the end also causes an event.
#[test]
fn a_failed_completion_is_solicited() {
    let mut pair = Pair::new(&LinkConfig::default());
    let channel = pair.b.context.create_comp_channel().unwrap();
    let cq = pair.b.context.create_cq(64, Some(&channel)).unwrap();
    let qp = pair.b.pd.create_qp(&QpInit::new(&cq)).unwrap();
    let memory = pair.b.pd.reg_mr(64, ALL).unwrap();
    post_recv(&qp, &memory, 1).unwrap();
    cq.req_notify(true).unwrap();
    qp.modify(QpState::Error).unwrap();
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), 1);
    pair.poll();
    assert_eq!(drain(&cq).len(), 1);
}

// Proves SEC-032, SEC-039, RDMAP-071, RDMAP-074, RDMAP-197, RDMAP-210: Writes and Reads have no effect on the
// target's completion queue and receive queue. The test sends a thousand Writes and a thousand Reads; a
// million would take minutes.
#[test]
fn tagged_messages_complete_nothing_at_their_target() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(8192);
    let to = remote_addr(&remote, 0);
    for wr_id in 0..4 {
        post_recv(&c.qp_b, &remote, wr_id).unwrap();
    }
    local.write_at(0, &crate::common::pattern(1, 4096)).unwrap();
    for wr_id in 0..1000 {
        c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Write { remote: to }, local.sge(0, 4096))).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        c.qp_a
            .post_send(&SendRequest::new(wr_id, SendOp::Read { remote: to }, local.sge(4096, 4096)))
            .unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
    }
    let bytes = read_bytes(&remote, 0, 4096);
    assert_eq!(bytes, crate::common::pattern(1, 4096), "they arrived");
    let attr = c.qp_b.query();
    assert_eq!((pair.b.cq.query().waiting, attr.recv_taken, attr.recv_outstanding), (0, 0, 4));
    assert!(events(&pair.b.context).is_empty());
}

// Proves SEC-051, SEC-129: two streams have no common object. A fault of one peer (a Write to the other
// stream's memory, or a Send without a buffer) ends only the peer's own stream. Memory, receive buffers,
// completions and Reads of the other stream do not change.
#[test]
fn streams_without_common_objects_do_not_reach_each_other() {
    for send in [false, true] {
        let (mut pair, _listener) = Pair::listening();
        let pd = pair.b.context.alloc_pd().unwrap();
        let cq = pair.b.context.create_cq(64, None).unwrap();
        let qp_b = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let qp_a = pair.a.qp();
        let victim = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        let attacker = pair.connect_again(&ConnParam::default(), &ConnParam::default());
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        local.write_at(0, &[0xee; 64]).unwrap();
        let remote = pd.reg_mr(64, ALL).unwrap();
        let to = remote_addr(&remote, 0);
        for wr_id in 0..4 {
            post_recv(&victim.qp_b, &remote, wr_id).unwrap();
        }
        let op = if send { SendOp::Send } else { SendOp::Write { remote: to } };
        attacker.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, 8))).unwrap();
        let error = pair.until(|_| attacker.qp_b.error());
        let expected = if send { (1, 2, 2) } else { (1, 1, 2) };
        assert_eq!((error.layer, error.etype, error.code), expected);
        let mut bytes = [0; 64];
        remote.read_at(0, &mut bytes).unwrap();
        let attr = victim.qp_b.query();
        assert_eq!((bytes, attr.recv_taken, attr.recv_outstanding), ([0; 64], 0, 4));
        assert_eq!((cq.query().waiting, cq.query().needed, victim.qp_b.error()), (0, 256, None));
        while pair.a.cq.poll_one().is_some() {}
        // All Reads of the other stream, which are posted at once, and its Send succeed.
        for wr_id in 0..128 {
            victim
                .qp_a
                .post_send(&SendRequest::new(wr_id, SendOp::Read { remote: to }, local.sge(0, 8)))
                .unwrap();
        }
        for wr_id in 0..128 {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        post_send(&victim.qp_a, &local, 1, 8).unwrap();
        assert_eq!(pair.until(|_| cq.poll_one()).status, WcStatus::Success);
    }
}
