//! Limits of a context, with their names, values, usages and counts of refusals. No call and no message
//! exceeds a limit, with many threads at once and with any behaviour of the peer.

use crate::common::{ALL, Connected, Pair, Testbed, remote_addr};
use std::any::Any;
use std::sync::Barrier;

use crate::common::initiator::Initiator;
use crate::common::raw::frame;
use crate::common::served::Setup;
use crate::common::ulpdu::untagged;
use dp::link::LinkConfig;
use iwarp::verbs::{
    CompletionQueue, ConnParam, Context, ContextConfig, ContextLimits, ContextUsage, Extensions,
    ProtectionDomain, QpInit, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest, SrqInit, Usage,
    VerbsError, WcStatus, WindowKind,
};

/// Small limits. The limits of the numbers of objects are all different.
const LIMITS: fn() -> ContextLimits = || ContextLimits {
    max_pd: 2,
    max_mr: 3,
    max_mw: 4,
    max_qp: 5,
    max_cq: 6,
    max_srq: 7,
    max_cqe: 64,
    max_cqe_total: 1000,
    max_qp_wr: 32,
    max_srq_wr: 16,
    max_read_slots: 100,
    max_async_events: 16,
    max_cm_events: 8,
};

fn context() -> Context {
    Context::new(ContextConfig { limits: LIMITS(), ..ContextConfig::default() }).unwrap()
}

type Made = Result<Box<dyn Any + Send>, VerbsError>;
type Make = fn(&Context, &ProtectionDomain, &CompletionQueue) -> Made;
type Read = fn(&ContextUsage) -> Usage;

fn boxed<T: Any + Send>(made: Result<T, VerbsError>) -> Made {
    made.map(|object| Box::new(object) as Box<dyn Any + Send>)
}

/// The kinds of objects: the name of the limit, how to create an object, and how to read the usage.
const KINDS: [(&str, Make, Read); 6] = [
    ("max_pd", |context, _, _| boxed(context.alloc_pd()), |usage| usage.pd),
    ("max_mr", |_, pd, _| boxed(pd.reg_mr(64, ALL)), |usage| usage.mr),
    ("max_mw", |_, pd, _| boxed(pd.alloc_mw(WindowKind::Type2)), |usage| usage.mw),
    (
        "max_qp",
        |_, pd, cq| boxed(pd.create_qp(&QpInit { max_send_wr: 1, max_recv_wr: 1, ..QpInit::new(cq) })),
        |usage| usage.qp,
    ),
    ("max_cq", |context, _, _| boxed(context.create_cq(1, None)), |usage| usage.cq),
    (
        "max_srq",
        |_, pd, _| boxed(pd.create_srq(&SrqInit { max_wr: 1, ..SrqInit::default() })),
        |usage| usage.srq,
    ),
];

// Proves DDP-235, SEC-012, SEC-018, SEC-048, SEC-049, SEC-120, RDMAP-363, RDMAP-365: no object is created
// beyond its limit. A further object is refused with the name of the limit, and the refusal is counted.
// Existing objects stay, and dropping one makes space.
#[test]
fn every_kind_of_object_has_its_limit() {
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, None).unwrap());
    for (name, make, read) in KINDS {
        let before = read(&context.usage());
        assert_eq!((before.name, before.refused), (name, 0));
        let mut objects = Vec::new();
        for count in before.used..before.limit {
            assert_eq!(read(&context.usage()).used, count, "{name}");
            objects.push(make(&context, &pd, &cq).unwrap());
        }
        for times in 1..4 {
            let refused = make(&context, &pd, &cq).map(drop);
            let told = refused.as_ref().map_err(VerbsError::to_string);
            assert_eq!(told, Err(format!("limit reached: {name} = {}", before.limit)));
            let usage = read(&context.usage());
            assert_eq!((usage.used, usage.refused), (usage.limit, times), "{name}");
        }
        objects.pop();
        objects.push(make(&context, &pd, &cq).unwrap());
        drop(objects);
        assert_eq!(read(&context.usage()).used, before.used, "{name}");
    }
    let names: Vec<_> = context.usage().all().iter().map(|usage| usage.name).collect();
    assert_eq!(
        names,
        [
            "max_pd",
            "max_mr",
            "max_mw",
            "max_qp",
            "max_cq",
            "max_cqe_total",
            "max_srq",
            "max_read_slots",
            "half_open",
            "backlog",
            "max_async_events"
        ]
    );
    let wr = |result: Result<(), VerbsError>, expected| matches!(result, Err(VerbsError::Limit { name, .. }) if name == expected);
    let srq = SrqInit { max_wr: 17, ..SrqInit::default() };
    assert!(wr(pd.create_srq(&srq).map(drop), "max_srq_wr"));
    assert!(wr(pd.create_qp(&QpInit { max_send_wr: 33, ..QpInit::new(&cq) }).map(drop), "max_qp_wr"));
    assert!(wr(context.create_cq(65, None).map(drop), "max_cqe"));
}

/// A user creates objects until a call fails because of a limit. An existing stream continues, and the limits
/// of another context are not affected.
// Proves SEC-008, RDMAP-369.
#[test]
fn a_greedy_caller_meets_its_limits_and_harms_nobody() {
    let limits = ContextLimits { max_cqe: 256, max_qp_wr: 128, max_read_slots: 1000, ..LIMITS() };
    let context = Context::new(ContextConfig { limits, seed: Some([3; 32]), ..ContextConfig::default() });
    let mut served = Setup::on(Testbed::new().context(context.unwrap()).peer()).ready();
    let greedy = served.context().clone();
    let modest = self::context();
    let mut held = Vec::new();
    for (msn, (name, make, read)) in (1..).zip(KINDS) {
        let before = read(&greedy.usage());
        let room = before.limit - before.used;
        held.extend((0..room).map(|_| make(&greedy, &served.pd, &served.cq).unwrap()));
        let refused = make(&greedy, &served.pd, &served.cq).map(drop);
        let told = refused.as_ref().map_err(VerbsError::to_string);
        assert_eq!(told, Err(format!("limit reached: {name} = {}", before.limit)));
        served.qp.post_recv(&RecvRequest::new(msn, served.region.sge(0, 8))).unwrap();
        served.send(&untagged([0x41, 0x43], 0, [0, msn as u32, 0], b"message!"));
        assert!(
            served.pair.until(10_000, |_| served.cq.query().waiting > 0),
            "{name}: the stream stands still"
        );
        assert_eq!(served.completions(), [(msn, WcStatus::Success)]);
        let (pd, cq) = (modest.alloc_pd().unwrap(), modest.create_cq(64, None).unwrap());
        let room = read(&modest.usage());
        let theirs: Vec<_> = (room.used..room.limit).map(|_| make(&modest, &pd, &cq).unwrap()).collect();
        drop(theirs);
    }
}

// Proves DDP-238, SEC-121, SEC-047: eight threads allocate as fast as they can. Together the threads never
// have more objects than the limit allows, and another context is not affected.
#[test]
fn threads_together_do_not_pass_a_limit() {
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, None).unwrap());
    let barrier = Barrier::new(8);
    for (name, make, read) in KINDS {
        let start = read(&context.usage());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..200 {
                        let held: Vec<_> = (0..=start.limit).map(|_| make(&context, &pd, &cq)).collect();
                        let usage = read(&context.usage());
                        assert!(usage.used <= usage.limit, "{name}: {usage:?}");
                        drop(held);
                    }
                });
            }
        });
        let end = read(&context.usage());
        assert_eq!(end.used, start.used, "{name}");
        assert!(end.refused > start.refused, "{name}: the limit was not met");
    }
    self::context().alloc_pd().unwrap();
}

// Proves SEC-037: a hundred thousand objects of each kind are created and dropped. The usage is then the same
// as before.
#[test]
fn usage_is_zero_after_all_objects_are_dropped() {
    let context = context();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, None).unwrap());
    let before = context.usage();
    for (name, make, _) in KINDS {
        for _ in 0..100_000 {
            drop(make(&context, &pd, &cq).unwrap());
        }
        assert_eq!(context.usage(), before, "{name}");
    }
    assert_eq!(cq.query().needed, 0);
}

// Proves SEC-124: by default, the limits allow a protection domain for each queue pair. The limits also allow
// read slots for each connection with the default depth, for Reads and for atomics.
#[test]
fn the_defaults_fit_each_other() {
    let limits = ContextLimits::default();
    assert!(limits.max_pd >= limits.max_qp);
    let of_one = 2 * usize::from(ConnParam::default().responder_resources);
    assert!(limits.max_read_slots >= limits.max_qp * of_one, "Reads and atomics");
    assert!(limits.max_cq >= limits.max_qp && limits.max_srq >= limits.max_qp);
}

fn depths(ird: u16, ord: u16) -> ConnParam {
    ConnParam { responder_resources: ird, initiator_depth: ord, ..ConnParam::default() }
}

fn slots(pair: &Pair) -> Usage {
    pair.b.context.usage().read_slots
}

// Proves SEC-128, SEC-138, SEC-149, SEC-152, SEC-165 to SEC-167, SEC-186, RDMAP-370: only connect and accept
// reserve slots, at most as many as are free. A greedy connection leaves the slots of other connections.
// Slots that the peer does not need are returned, and all slots are returned at the end. If atomics are
// enabled, as many slots are reserved for atomics as for Reads.
#[test]
fn read_slots_are_granted_within_their_total() {
    let limits = ContextLimits { max_read_slots: 300, ..ContextLimits::default() };
    let mut pair = Pair::new(&LinkConfig::default());
    let context = Context::new(ContextConfig { limits, ..ContextConfig::default() }).unwrap();
    // A connect for which too few slots are free is refused with the name of the limit, and its queue pair
    // does not change.
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let channel = context.create_event_channel().unwrap();
    let (port, _other) = dp::link::pair(&LinkConfig::default());
    let config = iwarp::engine::EngineConfig::new(&*port, &["10.0.0.9/24"]).unwrap();
    let _engine = iwarp::engine::Engine::new(&context, port, config).unwrap();
    // The second connection asks for one slot. The peer may raise this number to 128, so 128 slots are
    // reserved.
    let ends: Vec<_> = [160, 1]
        .map(|ird| {
            let extensions = Extensions::empty();
            let qp = pd.create_qp(&QpInit { extensions, ..QpInit::new(&cq) }).unwrap();
            let id = context.create_id(&channel);
            id.connect(&qp, "10.0.0.2:7".parse().unwrap(), &depths(ird, 1)).unwrap();
            (qp, id)
        })
        .into();
    let third = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let id = context.create_id(&channel);
    let refused = id.connect(&third, "10.0.0.2:7".parse().unwrap(), &depths(1, 1));
    assert!(matches!(refused, Err(VerbsError::Limit { name: "max_read_slots", limit: 300 })));
    let usage = context.usage().read_slots;
    assert_eq!((usage.used, usage.refused, third.state()), (288, 1, QpState::Idle));
    drop((ends, third));

    // If a peer asks for everything, it receives the configured depth, and only this depth is reserved.
    let greedy = pair.connect_with(&depths(1, 1024), &depths(8, 8));
    assert_eq!((slots(&pair).used, greedy.qp_b.query().ird), (2 * 8, Some(8)));
    // If a peer asks for less, the other slots are returned.
    let modest = pair.connect_with(&depths(1, 2), &depths(50, 50));
    let Connected { qp_a, qp_b, .. } = &modest;
    assert_eq!((qp_b.query().ird, qp_b.query().ord), (Some(2), Some(1)));
    assert_eq!((qp_a.query().ord, slots(&pair).used), (Some(2), 2 * (8 + 2)));
    // Posting reserves no slots.
    let (local, remote) = pair.regions(64);
    let from = remote_addr(&remote, 0);
    for wr_id in 0..40 {
        qp_a.post_send(&SendRequest::new(wr_id, SendOp::Read { remote: from }, local.sge(0, 8))).unwrap();
    }
    for _ in 0..40 {
        assert_eq!(pair.wc_a().status, WcStatus::Success);
    }
    assert_eq!(slots(&pair).used, 2 * 10);
    for c in [&greedy, &modest] {
        c.id_a.disconnect();
        pair.until(|_| (c.qp_b.state() == QpState::Error).then_some(()));
    }
    assert_eq!(slots(&pair).used, 0);
}

// Proves SEC-125, SEC-138, SEC-161: whatever a peer does (connect, transfer, fail), the numbers of objects
// and their limits stay as the application has set them.
#[test]
fn a_peer_makes_no_objects() {
    let mut pair = Pair::new(&LinkConfig::default());
    let _qps = [pair.b.qp(), pair.b.qp()];
    let _listener = pair.listen();
    let objects = |pair: &Pair| {
        let ContextUsage { pd, mr, mw, cq, cqe, srq, .. } = pair.b.context.usage();
        [pd, mr, mw, cq, cqe, srq]
    };
    let before = objects(&pair);
    let (entries, limit) = (pair.b.cq.query().cqe, pair.b.context.usage().all().map(|usage| usage.limit));
    for round in 0..20 {
        let c = pair.connect_again(&depths(128, 128), &ConnParam::default());
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        let wrong = RemoteAddr { addr: 0, rkey: round };
        let op = if round % 2 == 0 { SendOp::Write { remote: wrong } } else { SendOp::Send };
        c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, 8))).unwrap();
        pair.until(|_| c.qp_b.error());
        let attr = c.qp_b.query();
        assert_eq!((attr.max_recv_wr, attr.max_send_wr), (1024, 1024));
        pair.event_a();
        pair.event_b();
    }
    assert_eq!((objects(&pair), pair.b.cq.query().cqe), (before, entries));
    assert_eq!(pair.b.context.usage().all().map(|usage| usage.limit), limit);
}

/// A Reply with an ORD above our IRD raises our IRD. The slots were reserved before, so the total limit
/// holds.
#[test]
fn a_raised_depth_was_set_aside_before() {
    let param = ConnParam { peer_to_peer: false, ..depths(1, 1) };
    let mut initiator = Initiator::new(&param);
    assert_eq!(initiator.pair.context.usage().read_slots.used, 2 * 128, "before the peer has answered");
    // The Reply has IRD 1 and ORD 50.
    initiator.pair.send(&frame("Rep", 0x50, 2, &[0, 1, 0, 50]));
    initiator.established();
    assert_eq!(initiator.qp.query().ird, Some(50), "the peer had it raised");
    assert_eq!(initiator.pair.context.usage().read_slots.used, 2 * 50);
    initiator.qp.modify(QpState::Error).unwrap();
    assert!(initiator.pair.until(1_000_000, |pair| pair.context.usage().read_slots.used == 0));
}

/// A channel for less than one event is refused.
#[test]
fn a_channel_holds_an_event_at_least() {
    let limits = ContextLimits { max_cm_events: 0, ..ContextLimits::default() };
    let context = Context::new(ContextConfig { limits, ..ContextConfig::default() }).unwrap();
    let refused = context.create_event_channel().err();
    assert!(matches!(refused, Some(VerbsError::Limit { name: "max_cm_events", limit: 0 })), "{refused:?}");
}
