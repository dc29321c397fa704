//! An engine that several callers poll in turns.

use dp::link::{LinkConfig, pair};
use iwarp::engine::{SharedEngine, SharedOptions};
use iwarp::verbs::{
    CmEventKind, CmId, ConnParam, Context, ContextConfig, ListenOptions, QueuePair, RecvRequest, SendOp,
    SendRequest,
};
use tcp_lite::AddressProbing;

use crate::common::{Host, PORT};

/// Maximum number of turns that each step may take.
const TURNS: usize = 100_000;

type End = Host<SharedEngine>;

fn end(number: u8, port: Box<dyn dp::Port>) -> End {
    let context = Context::new(ContextConfig::default()).unwrap();
    let host = Host::new(context, port, &[&format!("10.0.0.{number}/24")], 64, |config| {
        config.stack.address_probing = AddressProbing::Off;
    });
    host.with_engine(|engine| {
        SharedEngine::without_thread(engine, SharedOptions::default(), Box::new(|| {})).unwrap()
    })
}

fn tx_frames(end: &End) -> u64 {
    end.engine.counters().port.tx_frames
}

fn turn(ends: &[End; 2]) {
    for end in ends {
        end.engine.turn();
    }
}

/// Connects two hosts with one queue pair each. The connection exists as long as the returned `CmId`s.
fn connected() -> ([End; 2], [QueuePair; 2], [CmId; 2]) {
    let (port_a, port_b) = pair(&LinkConfig::default());
    connect([end(1, port_a), end(2, port_b)], false)
}

fn connect(ends: [End; 2], ib_semantics: bool) -> ([End; 2], [QueuePair; 2], [CmId; 2]) {
    let param = ConnParam { ib_semantics, ..ConnParam::default() };
    let qps = [ends[0].qp(), ends[1].qp()];
    let listener = ends[1].context.create_id(&ends[1].channel);
    listener.listen_with(&ListenOptions::new(PORT)).unwrap();
    let id = ends[0].context.create_id(&ends[0].channel);
    id.connect(&qps[0], ends[1].address, &param).unwrap();
    let mut accepted = None;
    for _ in 0..TURNS {
        turn(&ends);
        match ends[1].channel.poll() {
            Some(event) if matches!(event.kind, CmEventKind::ConnectRequest { .. }) => {
                event.id.accept(&qps[1], &param).unwrap();
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

/// `send_posted` sends a posted request in the same call, without a turn of the engine.
#[test]
fn a_post_leaves_without_a_turn() {
    let (ends, qps, _ids) = connected();
    let [client, server] = &ends;
    for round in 0..10 {
        qps[1].post_recv(&RecvRequest { wr_id: round, ..RecvRequest::default() }).unwrap();
        assert!(!qps[0].has_open_sends(), "round {round}");
        let before = tx_frames(client);
        qps[0].post_send(&SendRequest::empty(round, SendOp::Send)).unwrap();
        assert!(qps[0].has_open_sends());
        assert_eq!(tx_frames(client), before, "a post alone sends nothing");
        client.engine.send_posted();
        assert_eq!(tx_frames(client), before + 1);
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

/// An engine was just polled only for a few microseconds. A thread may lose its processor after a turn, so
/// the test tries often.
#[test]
fn an_engine_was_just_polled_for_a_short_time() {
    let ([end, _other], ..) = connected();
    let is_seen = || {
        end.engine.turn();
        end.engine.was_just_polled()
    };
    assert!((0..TURNS).any(|_| is_seen()));
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert!(!end.engine.was_just_polled());
    end.engine.send_posted();
    assert!(!end.engine.was_just_polled(), "nothing was received");
}

/// Makes a host on a local wire, whose engine has a thread.
#[cfg(target_os = "linux")]
fn end_on_local_wire(folder: &testkit::folder::Folder, station: u8) -> End {
    use dp::local::{self, LocalConfig};
    let config = LocalConfig { station: Some(u16::from(station)), ..LocalConfig::new(folder.to_path_buf()) };
    let port = Box::new(local::open(&config).unwrap());
    let context = Context::new(ContextConfig::default()).unwrap();
    let host = Host::new(context, port, &[&format!("100.64.0.{station}/10")], 64, |config| {
        config.stack.derived_neighbors = Some([2, 0]);
        config.stack.address_probing = AddressProbing::Off;
    });
    let mut host = host.with_engine(|engine| {
        SharedEngine::spawn(engine, SharedOptions::default(), Box::new(|| {})).unwrap()
    });
    host.address = format!("100.64.0.{station}:{PORT}").parse().unwrap();
    host
}

/// The answer of a program that waits carries the acknowledgement of the message. So the first poll of the
/// next wait does not send this acknowledgement, since that wait may end at once, and the program may answer
/// then. Later polls send it, and the caller cannot sleep before.
#[cfg(target_os = "linux")]
#[test]
fn the_first_poll_of_a_wait_leaves_an_acknowledgement_to_the_answer() {
    use iwarp::engine::Sleep;
    let folder = testkit::folder::Folder::absent("iwarp-shared");
    let (ends, qps, _ids) = connect([1, 2].map(|station| end_on_local_wire(&folder, station)), true);
    let [client, server] = &ends;
    let rounds = 300;
    let mut held = 0;
    for round in 0..rounds {
        qps[1].post_recv(&RecvRequest { wr_id: round, ..RecvRequest::default() }).unwrap();
        qps[0].post_send(&SendRequest::empty(round, SendOp::Send)).unwrap();
        client.engine.turn();
        let wait = server.engine.begin_wait().unwrap();
        let arrived = (0..TURNS).find_map(|_| {
            server.engine.poll_waiting(wait);
            server.cq.poll_one()
        });
        assert_eq!(arrived.map(|wc| wc.wr_id), Some(round));
        server.engine.end_wait(wait);
        let state = || {
            let counters = server.engine.counters();
            (counters.polls, counters.port.tx_frames)
        };
        let wait = server.engine.begin_wait().unwrap();
        let (polls, frames) = state();
        server.engine.poll_at_start(wait);
        let at_start = state();
        let is_busy = matches!(server.engine.begin_sleep(wait), Sleep::Busy);
        server.engine.poll_waiting(wait);
        // The thread may have polled at any time, or may have had the engine's lock.
        if at_start == (polls + 1, frames) && state() == (polls + 2, frames + 1) {
            assert!(is_busy, "an acknowledgement is owed");
            held += 1;
        }
        server.engine.end_wait(wait);
        let sent = (0..TURNS).find_map(|_| {
            turn(&ends);
            client.cq.poll_one()
        });
        assert_eq!(sent.map(|wc| wc.wr_id), Some(round));
    }
    assert!(held > rounds / 10, "{held} of {rounds}");
}

/// While another thread uses the engine, `send_posted` returns at once, and the request is sent later.
#[test]
fn a_post_waits_for_nobody() {
    let (ends, qps, _ids) = connected();
    let client = &ends[0].engine;
    let before = tx_frames(&ends[0]);
    client.with(|_engine| {
        qps[0].post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        std::thread::scope(|scope| drop(scope.spawn(|| client.send_posted()).join()));
    });
    assert_eq!(tx_frames(&ends[0]), before);
    client.turn();
    assert_eq!(tx_frames(&ends[0]), before + 1);
}
