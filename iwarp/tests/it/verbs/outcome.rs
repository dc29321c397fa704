//! Tests the effects of errors on a queue pair, and the events of the errors: errors that the peer reports,
//! errors that our side finds, and the loss of TCP. Also tests the limit of events that nobody reads.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::raw::{EMPTY_WRITE, fpdu};
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::{self, read_request, tagged};
use crate::common::{Pair, Testbed};
use iwarp::memory::Access;
use iwarp::rdmap::{Terminate, TerminateError};
use iwarp::verbs::{
    AsyncEventKind, ConnectionError, Context, ContextConfig, ContextLimits, QpInit, QpState, RecvRequest,
    SendOp, SendRequest, SrqInit, StreamError, TerminateOrigin, WcStatus,
};
use tcp_lite::CloseReason;

/// Returns a message for queue `qn`: control bytes, MSN and payload.
fn untagged(control: [u8; 2], qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    ulpdu::untagged(control, 0, [qn, msn, 0], payload)
}

/// The kind, the object number and the cause of an event.
type EventSummary = (AsyncEventKind, u32, Option<ConnectionError>);

fn told(served: &Served) -> Vec<EventSummary> {
    served.events().iter().map(|event| (event.kind, event.number, event.cause)).collect()
}

/// Posts two Reads and a receive, and runs `act`, which has to end the stream. Returns the statuses of the
/// Reads and of the receive, the events, and the state right after the end.
fn ends(
    served: &mut Served,
    act: impl FnOnce(&mut Served),
) -> ([WcStatus; 2], WcStatus, Vec<EventSummary>, QpState) {
    served.qp.post_recv(&RecvRequest::new(3, served.region.sge(0, 8))).unwrap();
    for wr_id in 1..3 {
        served.qp.post_send(&served.read(wr_id)).unwrap();
    }
    served.pair.until(10_000, |_| false);
    assert!(served.completions().is_empty());
    act(served);
    let mut at_once = QpState::Rts;
    let ended = served.pair.until(1_000_000, |_| {
        at_once = served.qp.state();
        at_once != QpState::Rts
    });
    assert!(ended, "the stream goes on");
    // The completions of the receive queue are ordered separately.
    let mut completions = served.completions();
    completions.sort_by_key(|&(wr_id, _)| wr_id == 3);
    let [(1, first), (2, second), (3, receive)] = completions[..] else { panic!("{completions:?}") };
    ([first, second], receive, told(served), at_once)
}

// Proves RDMAP-258, RDMAP-314: for every error that a Terminate can report, the oldest open request fails
// with the Terminate's error, and later requests are flushed in order. The application receives layer, type,
// code and headers.
#[test]
fn every_terminate_of_the_peer() {
    for &error in TerminateError::ALL {
        let mut served = Served::new();
        let (layer, etype, code) = error.codes();
        let head = [0xc1, 0x40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        let terminate = Terminate::of_segment(error, &head, 22, None);
        let (reads, receive, events, at_once) = ends(&mut served, |served| {
            served.send(&untagged([0x41, 0x47], 2, 1, &terminate.to_bytes()));
        });
        let blame = match (layer, etype) {
            (0 | 1, 1) => WcStatus::RemoteAccessError,
            _ => WcStatus::RemoteOperationError,
        };
        assert_eq!(reads, [blame, WcStatus::WrFlushError], "{error}");
        assert_eq!((receive, at_once), (WcStatus::WrFlushError, QpState::Terminate), "{error}");
        let told = StreamError { layer, etype, code, from_peer: true };
        let event = (AsyncEventKind::QpFatal, served.qp.qp_num(), Some(told.into()));
        assert_eq!(events, [event], "{error}");
        let report = served.qp.terminate().unwrap();
        assert_eq!((served.qp.error(), report.origin), (Some(told), TerminateOrigin::Received), "{error}");
        assert_eq!(Terminate { control: None, ..report.terminate.clone() }, terminate, "{error}");
        served.pair.close();
        assert!(served.pair.until(1_000_000, |_| served.qp.state() == QpState::Error), "{error}");
        assert!(served.events().is_empty(), "{error}: told once");
    }
}

// Proves RDMAP-323: for errors of 13 kinds that our side finds, the test compares the event, the state and
// the Terminate. The Reads of our user are flushed, because the peer has caused the error.
#[test]
fn every_kind_of_error_found_here() {
    use AsyncEventKind::{QpAccessError, QpFatal, QpRequestError};
    type Case = (&'static str, Vec<u8>, (u8, u8, u8), AsyncEventKind);
    let cases: [Case; 13] = [
        ("Write to no STag", tagged([0xc1, 0x40], 0x0123_4500, 0, &[1; 8]), (1, 1, 0), QpAccessError),
        ("Read from no STag", read_request(1, (9, 0), 8, (0x0123_4500, 0)), (0, 1, 0), QpAccessError),
        ("tagged DDP version", tagged([0xc0, 0x40], 0, 0, &[1; 8]), (1, 1, 4), QpAccessError),
        ("RDMAP version", tagged([0xc1, 0x00], 0, 0, &[]), (0, 2, 5), QpRequestError),
        ("opcode", tagged([0xc1, 0x4f], 0, 0, &[]), (0, 2, 6), QpRequestError),
        ("a Read Response nobody waits for", tagged([0xc1, 0x42], 0, 0, &[]), (0, 2, 6), QpRequestError),
        ("queue", untagged([0x41, 0x43], 9, 1, &[]), (1, 2, 1), QpRequestError),
        ("too long", untagged([0x41, 0x43], 0, 1, &[1; 9]), (1, 2, 5), QpRequestError),
        ("message number", untagged([0x41, 0x43], 0, 0, &[]), (1, 2, 3), QpRequestError),
        ("untagged DDP version", untagged([0x40, 0x43], 0, 1, &[]), (1, 2, 6), QpRequestError),
        ("Read Request cut short", untagged([0x41, 0x41], 1, 1, &[0; 27]), (0, 2, 0xff), QpRequestError),
        ("invalidation", invalidate(), (0, 1, 0), QpAccessError),
        ("CRC", Vec::new(), (2, 0, 2), QpFatal),
    ];
    for (name, ulpdu, (layer, etype, code), kind) in cases {
        let mut served = Served::new();
        // The response is unexpected only if no Read is outstanding.
        let nobody_waits = name == "a Read Response nobody waits for";
        let crc = name == "CRC";
        let say = |served: &mut Served| {
            if crc {
                let mut bytes = fpdu(&mut served.framer, &EMPTY_WRITE);
                *bytes.last_mut().unwrap() ^= 1;
                served.pair.send(&bytes);
            } else {
                served.send(&ulpdu);
            }
        };
        let (events, at_once) = if nobody_waits {
            say(&mut served);
            assert!(served.pair.until(1_000_000, |_| served.qp.state() != QpState::Rts), "{name}");
            (told(&served), served.qp.state())
        } else {
            let (reads, receive, events, at_once) = ends(&mut served, say);
            assert_eq!(reads, [WcStatus::WrFlushError; 2], "{name}");
            let own = match name {
                "too long" => WcStatus::LocalLengthError,
                "invalidation" => WcStatus::LocalProtectionError,
                _ => WcStatus::WrFlushError,
            };
            assert_eq!(receive, own, "{name}");
            (events, at_once)
        };
        let told = StreamError { layer, etype, code, from_peer: false };
        assert_eq!(events, [(kind, served.qp.qp_num(), Some(told.into()))], "{name}");
        assert_eq!((served.qp.error(), at_once), (Some(told), QpState::Terminate), "{name}");
        // The Terminate on the wire equals the Terminate that the application can read.
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed), "{name}: no FIN");
        let sent = served.qp.terminate().unwrap().terminate.to_bytes();
        let inbox = &served.pair.inbox;
        assert!(inbox.windows(sent.len()).any(|bytes| bytes == &sent[..]), "{name}: {inbox:02x?}");
        served.pair.close();
        assert!(served.pair.until(1_000_000, |_| served.qp.state() == QpState::Error), "{name}");
    }
}

/// Returns a Send with Invalidate whose STag names nothing.
fn invalidate() -> Vec<u8> {
    let mut ulpdu = untagged([0x41, 0x44], 0, 1, &[1; 8]);
    ulpdu[2..6].copy_from_slice(&0x0123_4500_u32.to_be_bytes());
    ulpdu
}

/// If a message arrives without a posted receive, the stream ends with error 1/2/02, and the event blames the
/// peer.
#[test]
fn no_buffer_is_the_peers_fault() {
    let mut served = Served::new();
    served.send(&untagged([0x41, 0x43], 0, 1, &[1; 8]));
    assert!(served.pair.until(1_000_000, |_| served.qp.error().is_some()));
    let told = StreamError { layer: 1, etype: 2, code: 2, from_peer: false };
    assert_eq!(served.qp.error(), Some(told));
    assert_eq!(served.events()[0].kind, AsyncEventKind::QpRequestError);
}

// Proves RDMAP-323: TCP ends with a FIN while Reads wait, or with a reset. All requests are flushed. The
// application receives the error, and the peer receives no Terminate.
#[test]
fn tcp_is_gone() {
    // The peer sends a FIN while Reads wait.
    let mut served = Served::new();
    let (reads, receive, events, at_once) = ends(&mut served, |served| served.pair.close());
    assert_eq!((reads, receive), ([WcStatus::WrFlushError; 2], WcStatus::WrFlushError));
    let lost = StreamError { layer: 2, etype: 0, code: 1, from_peer: false };
    let number = served.qp.qp_num();
    assert_eq!(events, [(AsyncEventKind::QpFatal, number, Some(ConnectionError::PeerClosed))]);
    assert_eq!((served.qp.error(), at_once), (Some(lost), QpState::Error));
    // The peer resets the connection.
    let reset = ConnectionError::Tcp(CloseReason::Reset);
    let mut served = Served::new();
    let (reads, receive, events, at_once) = ends(&mut served, |served| served.pair.connect());
    assert_eq!((reads, receive), ([WcStatus::WrFlushError; 2], WcStatus::WrFlushError));
    assert_eq!(events, [(AsyncEventKind::QpFatal, served.qp.qp_num(), Some(reset))]);
    assert_eq!((served.qp.terminate(), at_once), (None, QpState::Error));
}

/// A request of our own user fails because of an error of its own, and all other requests are flushed. In the
/// second case, our user requests a Terminate.
#[test]
fn local_errors() {
    let catastrophic = StreamError { layer: 0, etype: 0, code: 0, from_peer: false };
    let mut served = Served::new();
    let gone = served.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    served.qp.post_send(&served.read(1)).unwrap();
    served.qp.post_send(&SendRequest::new(2, SendOp::Send, gone.sge(0, 8))).unwrap();
    served.qp.post_send(&served.read(3)).unwrap();
    drop(gone);
    assert!(served.pair.until(1_000_000, |_| served.qp.error().is_some()));
    let expected =
        [(1, WcStatus::WrFlushError), (2, WcStatus::LocalProtectionError), (3, WcStatus::WrFlushError)];
    assert_eq!(served.completions(), expected);
    assert_eq!(served.events()[0].kind, AsyncEventKind::QpFatal);
    assert_eq!(served.qp.error(), Some(catastrophic));

    let mut served = Served::new();
    let (reads, receive, events, at_once) =
        ends(&mut served, |served| served.qp.modify(QpState::Terminate).unwrap());
    assert_eq!((reads, receive), ([WcStatus::WrFlushError; 2], WcStatus::WrFlushError));
    let number = served.qp.qp_num();
    assert_eq!(events, [(AsyncEventKind::QpFatal, number, Some(catastrophic.into()))]);
    assert_eq!(at_once, QpState::Terminate);
}

/// A queue pair whose own user closes, aborts or drops it causes no event.
#[test]
fn an_end_that_was_asked_for_is_no_event() {
    for how in 0..3 {
        let (mut pair, c) = Pair::connected();
        let (qp_a, id_a) = (c.qp_a, c.id_a);
        match how {
            0 => id_a.disconnect(),
            1 => qp_a.modify(QpState::Error).unwrap(),
            _ => drop(qp_a),
        }
        pair.event_a();
        assert_eq!(pair.a.context.async_events().poll().unwrap(), None, "{how}");
    }
}

/// Causes `count` events. A queue pair with a shared receive queue reports its last buffer when it enters
/// `Error`.
fn make_events(context: &Context, count: usize) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(1, None).unwrap();
    let srq = pd.create_srq(&SrqInit::default()).unwrap();
    for _ in 0..count {
        let qp = pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
        qp.modify(QpState::Error).unwrap();
        qp.modify(QpState::Error).unwrap();
    }
}

fn is_readable(events: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(events, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

// Proves SEC-034, SEC-035: far more events occur than the queue holds, and nobody reads them. Events that do
// not fit are counted, and a stream continues at the same pace, which is measured in polls. After the events
// are read, the queue accepts events again.
#[test]
fn unread_events_are_bounded_and_hold_nobody_up() {
    let limits = ContextLimits { max_async_events: 8, ..ContextLimits::default() };
    let context =
        Context::new(ContextConfig { limits, seed: Some([3; 32]), ..ContextConfig::default() }).unwrap();
    let events = context.async_events();
    assert!(!is_readable(&events));
    let mut served = Setup::on(Testbed::new().context(context).peer()).ready();
    for round in 0..100 {
        make_events(served.context(), 10);
        served.qp.post_recv(&RecvRequest::new(round, served.region.sge(0, 8))).unwrap();
        let before = served.pair.engine.counters().polls;
        served.send(&untagged([0x41, 0x43], 0, round as u32 + 1, &[1; 8]));
        served.pair.until(1000, |_| served.cq.query().waiting > 0);
        assert!(served.pair.engine.counters().polls - before < 20, "the stream waits for somebody");
        assert_eq!(served.completions(), [(round, WcStatus::Success)]);
    }
    assert_eq!(events.lost(), 1000 - 8);
    let usage = served.context().usage().async_events;
    assert_eq!((usage.limit, usage.used, usage.refused), (8, 8, 992));
    assert!(is_readable(&events));
    assert_eq!(std::iter::from_fn(|| events.wait(Duration::ZERO).unwrap()).count(), 8);
    assert!(!is_readable(&events));
    make_events(served.context(), 1);
    assert!(is_readable(&events));
    let last = events.poll().unwrap().unwrap();
    assert_eq!((last.kind, last.cause), (AsyncEventKind::LastWqeReached, None));
    assert!(!is_readable(&events));
}
