//! An engine that callers poll in turns.

use dp::link::{LinkConfig, pair};
use iwarp::engine::{Engine, EngineConfig, SharedEngine, SharedOptions};
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ListenOptions,
    ProtectionDomain, QpInit, QueuePair, RecvRequest, SendOp, SendRequest,
};
use tcp_lite::AddressProbing;

const PORT: u16 = 7174;

/// Turns in which each step has to come about.
const TURNS: usize = 100_000;

struct End {
    engine: SharedEngine,
    context: Context,
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl End {
    fn new(number: u8, port: Box<dyn dp::Port>) -> Self {
        let context = Context::new(ContextConfig::default()).unwrap();
        let mut config = EngineConfig::new(&*port, &[&format!("10.0.0.{number}/24")]).unwrap();
        config.stack.address_probing = AddressProbing::Off;
        let engine = Engine::new(&context, port, config).unwrap();
        Self {
            engine: SharedEngine::without_thread(engine, SharedOptions::default(), Box::new(|| {})).unwrap(),
            channel: context.create_event_channel().unwrap(),
            pd: context.alloc_pd().unwrap(),
            cq: context.create_cq(64, None).unwrap(),
            context,
        }
    }

    fn qp(&self) -> QueuePair {
        self.pd.create_qp(&QpInit::new(&self.cq)).unwrap()
    }

    fn tx_frames(&self) -> u64 {
        self.engine.counters().port.tx_frames
    }
}

fn turn(ends: &[End; 2]) {
    for end in ends {
        end.engine.turn();
    }
}

/// Two ends and their queue pairs, connected. The identifiers keep the connection.
fn connected() -> ([End; 2], [QueuePair; 2], [CmId; 2]) {
    let (port_a, port_b) = pair(&LinkConfig::default());
    let ends = [End::new(1, port_a), End::new(2, port_b)];
    let qps = [ends[0].qp(), ends[1].qp()];
    let listener = ends[1].context.create_id(&ends[1].channel);
    listener.listen_with(&ListenOptions::new(PORT)).unwrap();
    let id = ends[0].context.create_id(&ends[0].channel);
    let remote = format!("10.0.0.2:{PORT}").parse().unwrap();
    id.connect(&qps[0], remote, &ConnParam::default()).unwrap();
    let mut accepted = None;
    for _ in 0..TURNS {
        turn(&ends);
        match ends[1].channel.poll() {
            Some(event) if matches!(event.kind, CmEventKind::ConnectRequest { .. }) => {
                event.id.accept(&qps[1], &ConnParam::default()).unwrap();
                accepted = Some(event.id);
            }
            Some(event) => {
                assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
                return (ends, qps, [id, accepted.unwrap()]);
            }
            None => {}
        }
    }
    panic!("no connection in {TURNS} turns");
}

/// A turn sends what was posted, and so does a call that does nothing else. Requests that are posted while
/// others are open may leave with them.
#[test]
fn a_post_leaves_without_a_turn() {
    let (ends, qps, _ids) = connected();
    let [client, server] = &ends;
    for round in 0..10 {
        qps[1].post_recv(&RecvRequest { wr_id: round, ..RecvRequest::default() }).unwrap();
        assert!(!qps[0].has_open_sends(), "round {round}");
        let before = client.tx_frames();
        qps[0].post_send(&SendRequest::empty(round, SendOp::Send)).unwrap();
        assert!(qps[0].has_open_sends());
        assert_eq!(client.tx_frames(), before, "a post alone sends nothing");
        client.engine.send_posted();
        assert_eq!(client.tx_frames(), before + 1);
        let arrived = (0..TURNS).find_map(|_| {
            server.engine.turn();
            server.cq.poll_one()
        });
        assert_eq!(arrived.map(|wc| wc.wr_id), Some(round));
        let sent = (0..TURNS).find_map(|_| {
            turn(&ends);
            client.cq.poll_one()
        });
        assert_eq!(sent.map(|wc| wc.wr_id), Some(round));
    }
}

/// While another thread has the engine, the call returns at once, and the post leaves later.
#[test]
fn a_post_waits_for_nobody() {
    let (ends, qps, _ids) = connected();
    let client = &ends[0].engine;
    let before = ends[0].tx_frames();
    client.with(|_engine| {
        qps[0].post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        std::thread::scope(|scope| drop(scope.spawn(|| client.send_posted()).join()));
    });
    assert_eq!(ends[0].tx_frames(), before);
    client.turn();
    assert_eq!(ends[0].tx_frames(), before + 1);
}
