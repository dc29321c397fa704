//! The administrator decides whether CRCs are used. Applications cannot change this decision, and do not see
//! it (RFC 5044 section 4.4).

use crate::common::{ALL, Testbed, pattern, read_bytes, remote_addr};
use std::time::Duration;

use crate::common::initiator::Initiator;
use crate::common::raw::{peer_to_peer_request, request};
use crate::common::responder::Responder;
use dp::link::{LinkConfig, pair};
use iwarp::engine::EngineConfig;
use iwarp::mpa::RtrKinds;
use iwarp::verbs::{ConnParam, KeepalivePolicy, RecvRequest, SendOp, SendRequest};

/// Whether a startup frame asks for CRCs (the C bit).
fn asks(frame: &[u8]) -> bool {
    frame[16] & 0x40 != 0
}

/// Returns the default connection parameters, and parameters that differ from the default in a setting of an
/// application.
fn settings() -> Vec<ConnParam> {
    let with = |change: fn(&mut ConnParam)| {
        let mut param = ConnParam::default();
        change(&mut param);
        param
    };
    vec![
        ConnParam::default(),
        with(|param| param.private_data.push(0)),
        with(|param| (param.responder_resources, param.initiator_depth) = (0, 0)),
        with(|param| param.depths_left_to_ulp = true),
        with(|param| param.markers = true),
        with(|param| (param.mpa_revision, param.peer_to_peer) = (1, false)),
        with(|param| param.peer_to_peer = false),
        with(|param| param.rtr = RtrKinds::WRITE | RtrKinds::SEND),
        with(|param| param.fallback = true),
        with(|param| param.tolerate_early_fpdus = false),
        with(|param| param.await_first_fpdu = false),
        with(|param| param.timeout = Duration::from_secs(99)),
        with(|param| param.idle_timeout = Some(Duration::from_secs(99))),
        with(|param| param.keepalive = KeepalivePolicy::Off),
        with(|param| (param.engine, param.local_port) = (Some(0), Some(40_000))),
    ]
}

// Proves MPA-080: whatever an application sets, Requests and Replies ask for CRCs until the administrator has
// switched CRCs off. After that, no Request asks for CRCs, and a Reply asks for CRCs only if the peer's
// Request does.
#[test]
fn only_the_administrator_suppresses_crcs() {
    let engine = |crc: Option<bool>| {
        Testbed::new().configure(|config: &mut EngineConfig| config.crc = crc.unwrap_or(config.crc)).peer()
    };
    for (switch, expected) in [(None, true), (Some(true), true), (Some(false), false)] {
        for param in settings() {
            let d = Initiator::on(engine(switch), &param);
            assert_eq!(asks(&d.pair.inbox), expected, "a Request, {switch:?}, {param:?}");
        }
        for theirs in [request(true), request(false), peer_to_peer_request([0x80, 0x80])] {
            for param in settings() {
                let mut d = Responder::over(engine(switch), |_| {});
                let id = d.connect_request(&theirs).id;
                let _qp = d.accept(&id, &param);
                assert_eq!(asks(&d.pair.inbox), expected || asks(&theirs), "a Reply, {switch:?}, {param:?}");
            }
        }
    }
}

// Proves MPA-307: CRCs are on unless the administrator switches them off. The documentation of the switch
// states the condition for doing so. Each connection without CRCs is counted.
#[test]
fn the_switch_is_off_and_its_use_is_counted() {
    let (port, _other) = pair(&LinkConfig::default());
    assert!(EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap().crc);
    for crc in [true, false] {
        let mut pair = Testbed::new().configure(|config| config.crc = crc).hosts();
        let _first = pair.connect(&ConnParam::default());
        let _second = pair.connect(&ConnParam::default());
        for host in [&pair.a, &pair.b] {
            let counters = host.engine.counters();
            assert_eq!(counters.connections, 2);
            assert_eq!(counters.connections_without_crc, if crc { 0 } else { 2 });
        }
    }
}

/// Runs a program that connects, sends, writes, reads and closes. Returns everything that the program sees,
/// as text.
fn program(crc: bool) -> Vec<String> {
    let mut pair = Testbed::new().configure(|config| config.crc = crc).hosts();
    let mut told = Vec::new();
    let listener = pair.listen();
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.qp());
    let id = pair.a.context.create_id(&pair.a.channel);
    id.connect(&qp_a, pair.b.address, &ConnParam::default().with_private_data(b"hello").unwrap()).unwrap();
    let asked = pair.event_b();
    told.push(format!("{:?}", asked.kind));
    asked.id.accept(&qp_b, &ConnParam::default()).unwrap();
    told.push(format!("{:?}", pair.event_a().kind));
    told.push(format!("{:?}", pair.event_b().kind));
    let (from, to) = (pair.a.pd.reg_mr(9000, ALL).unwrap(), pair.b.pd.reg_mr(9000, ALL).unwrap());
    from.write_at(0, &pattern(5, 9000)).unwrap();
    let remote = remote_addr(&to, 0);
    qp_b.post_recv(&RecvRequest::new(9, to.sge(0, 4000))).unwrap();
    for (wr_id, op) in
        [SendOp::Write { remote }, SendOp::Send, SendOp::Read { remote }].into_iter().enumerate()
    {
        qp_a.post_send(&SendRequest::new(wr_id as u64, op, from.sge(0, 4000))).unwrap();
        told.push(format!("{:?}", pair.wc_a()));
    }
    told.push(format!("{:?} {:?} {:?}", pair.wc_b(), qp_a.query(), qp_b.query()));
    id.disconnect();
    told.push(format!("{:?}", pair.event_a().kind));
    told.push(format!("{:?}", pair.event_b().kind));
    let bytes = read_bytes(&to, 0, 9000);
    told.push(format!("{bytes:?} {:?} {:?}", pair.a.context.usage(), listener.listener_stats()));
    assert_eq!(pair.a.engine.counters().connections_without_crc, u64::from(!crc));
    told
}

// Proves MPA-084: a program sees the same results and events with CRCs and without.
#[test]
fn applications_do_not_see_whether_crcs_are_used() {
    let with = program(true);
    assert_eq!(with.len(), 10);
    assert_eq!(with, program(false));
}
