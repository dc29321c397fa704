//! Terminates that the engine sends or receives, and other ends of a stream by an error.

use iwarp::mpa::Framer;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest,
    StreamError, WcStatus,
};

use super::peer::{REGION, of_segment, send, served, served_with, tagged, untagged};
use crate::common::raw::fpdu;

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x1122_3344 };

/// With much data left to send, the Terminate is the next message after the current FPDU, and is the last
/// message. Unsent requests and later posts are flushed in order, and TCP ends with a FIN.
// Proves RDMAP-022, RDMAP-055, RDMAP-107, RDMAP-132, RDMAP-133, RDMAP-252 to RDMAP-254, RDMAP-260, RDMAP-261,
// RDMAP-309, RDMAP-311, RDMAP-314, RDMAP-316, RDMAP-317, RDMAP-318, RDMAP-321, RDMAP-323, RDMAP-324,
// RDMAP-327: the bytes of the Terminate prove RDMAP-022 to RDMAP-133. Nothing is sent after the Terminate,
// which proves RDMAP-252 to RDMAP-254 and RDMAP-318. The flushed requests prove RDMAP-260 and RDMAP-261. The
// FIN after the Terminate, without an RST, proves RDMAP-309 to RDMAP-321. The count of FPDUs proves
// RDMAP-327.
#[test]
fn a_terminate_overtakes_what_waits_and_is_the_last() {
    let mut peer = served();
    for n in 1..=100 {
        peer.qp.post_send(&SendRequest::new(n, SendOp::Send, peer.region.sge(0, 50_000))).unwrap();
    }
    // Some of the messages are sent.
    assert!(peer.pair.until(1_000_000, |pair| pair.inbox.len() > 100_000));
    let bad = send(1, b"nobody receives");
    peer.pair.offer(&fpdu(&mut Framer::new(false, true), &bad));
    // The number of FPDUs that the engine sends before the poll in which it finds the error.
    let mut sent = 0;
    let is_found = peer.pair.until(1_000_000, |pair| {
        let is_found = peer.qp.error().is_some();
        if !is_found {
            sent = pair.engine.counters().tx_fpdus;
        }
        is_found
    });
    assert!(is_found);
    let heard = peer.received(20_000);
    assert_eq!(peer.pair.engine.counters().tx_fpdus, sent + 1, "the next FPDU is the Terminate");
    let (terminate, sends) = heard.split_last().unwrap();
    assert_eq!(*terminate, untagged(0x41, 0x47, 0, 2, 1, 0, &of_segment(0x12, 2, &bad)));
    let whole = sends.iter().filter(|segment| segment[0] & 0x40 != 0).count() as u64;
    assert!(whole < 90, "{whole} Sends left");
    assert!(peer.pair.peer_closed && peer.pair.closed.is_none(), "FIN, no RST");
    let done = peer.statuses();
    assert_eq!(done.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    let succeeded = done.iter().take_while(|(_, status)| *status == WcStatus::Success).count() as u64;
    assert!(succeeded <= whole, "{succeeded} of {whole} succeeded");
    assert!(done[succeeded as usize + 1..].iter().all(|(_, status)| *status == WcStatus::WrFlushError));
    // These requests are posted after the error.
    peer.qp.post_send(&SendRequest::new(101, SendOp::Send, peer.region.sge(0, 8))).unwrap();
    peer.qp.post_recv(&RecvRequest::new(102, peer.region.sge(0, 8))).unwrap();
    assert!(peer.received(20_000).is_empty());
    peer.pair.close();
    let error = StreamError { layer: 1, etype: 2, code: 2, from_peer: false };
    let told = peer.ended().unwrap().kind;
    assert!(
        matches!(told, CmEventKind::Disconnected { error: Some(ConnectionError::Stream(e)), .. } if e == error)
    );
    let late = peer.statuses();
    assert_eq!(late, [(101, WcStatus::WrFlushError), (102, WcStatus::WrFlushError)]);
    assert_eq!(peer.qp.state(), QpState::Error);
}

/// The first of several errors is reported. Messages after the message with the first error are neither
/// delivered nor placed.
// Proves RDMAP-317, RDMAP-331.
#[test]
fn the_first_error_is_told() {
    let mut peer = served_with(ConnParam::default(), 2);
    let first = untagged(0x41, 0x83, 0, 0, 1, 0, b"bad version");
    let second = tagged(0xc1, 0x40, 0xdead_beef, 0, b"bad STag");
    let write = tagged(0xc1, 0x40, peer.region.rkey(), peer.to(0), b"late");
    peer.send_and_run(&[first.clone(), second, write, send(2, b"late")]);
    peer.expect_terminate(&of_segment(0x02, 5, &first), "the first");
    assert_eq!(peer.statuses(), [(1000, WcStatus::WrFlushError), (1001, WcStatus::WrFlushError)]);
    assert_eq!(peer.bytes(0, REGION), vec![0; REGION]);
}

/// The peer's Terminate arrives, and other messages behind it. The user receives the Terminate's content,
/// open requests complete in order with an error, and the engine does not answer the Terminate.
// Proves RDMAP-062, RDMAP-078, RDMAP-107, RDMAP-148, RDMAP-151 to RDMAP-154, RDMAP-156, RDMAP-168, RDMAP-174,
// RDMAP-255 to RDMAP-258, RDMAP-262, RDMAP-313 to RDMAP-315, RDMAP-322.
#[test]
fn the_peers_terminate_is_told_and_not_answered() {
    for (payload, layer, etype, code) in [
        (&[0x12, 0x02, 0, 0][..], 1, 2, 2),
        (&[0x00, 0x77, 0, 0], 0, 0, 0x77),
        (&[0x01, 0xff, 0, 0], 0, 1, 0xff),
        (&[0x02, 0xff, 0, 0], 0, 2, 0xff),
        (&[0x01, 0x09, 0x1f, 0xff], 0, 1, 9),
        (&[0x02, 0x09, 0, 0], 0, 2, 9),
        (&[0x02, 0x07, 0, 0], 0, 2, 7),
        (&[0x02, 0x08, 0, 0], 0, 2, 8),
        (&[0x10, 0x00, 0, 0], 1, 0, 0),
        (&[0xf7, 0xaa, 0, 0], 0xf, 7, 0xaa),
        (&[0x13, 0x05, 0, 0], 1, 3, 5),
    ] {
        let mut peer = served_with(ConnParam::default(), 2);
        let read = SendOp::Read { remote: REMOTE };
        for n in 1..=5 {
            peer.qp.post_send(&SendRequest::new(n, read, peer.region.sge(0, 8))).unwrap();
        }
        assert_eq!(peer.received(20_000).len(), 5);
        let terminate = |msn| untagged(0x41, 0x47, 0, 2, msn, 0, payload);
        let write = tagged(0xc1, 0x40, peer.region.rkey(), peer.to(0), b"late");
        peer.send_and_run(&[terminate(1), terminate(2), send(1, b"late"), write]);
        let error = StreamError { layer, etype, code, from_peer: true };
        assert_eq!(peer.qp.error(), Some(error));
        assert!(peer.received(20_000).is_empty(), "no answer to a Terminate");
        assert!(peer.pair.peer_closed && peer.pair.closed.is_none(), "FIN, no RST");
        let done = peer.statuses();
        let ids: Vec<u64> = done.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 1000, 1001]);
        assert!(done.iter().all(|(_, status)| *status != WcStatus::Success), "{done:?}");
        assert_eq!(peer.bytes(0, REGION), vec![0; REGION]);
        peer.pair.close();
        let told = peer.ended().unwrap().kind;
        assert!(
            matches!(told, CmEventKind::Disconnected { error: Some(ConnectionError::Stream(e)), .. } if e == error)
        );
    }
}

/// A malformed Terminate also ends the stream, and the engine does not answer it.
// Proves RDMAP-259, RDMAP-334.
#[test]
fn a_bad_terminate_is_told_and_not_answered() {
    for (what, segment) in [
        ("two bytes", untagged(0x41, 0x47, 0, 2, 1, 0, &[0, 0])),
        ("RV 3", untagged(0x41, 0xc7, 0, 2, 1, 0, &[0; 4])),
        ("cut short", untagged(0x41, 0x47, 0, 2, 1, 0, &[0x01, 0, 0xe0, 0, 0, 46])),
    ] {
        let mut peer = served_with(ConnParam::default(), 1);
        peer.send_and_run(&[segment]);
        assert!(peer.received(20_000).is_empty(), "{what}: no answer");
        assert!(peer.qp.error().is_some(), "{what}");
        assert_eq!(peer.statuses(), [(1000, WcStatus::WrFlushError)], "{what}");
        assert!(peer.pair.peer_closed, "{what}");
    }
}

/// If the memory of a request's payload is invalid when the payload is to be sent, a Terminate without a
/// header is sent instead.
// Proves RDMAP-017, RDMAP-141, RDMAP-181, RDMAP-191, RDMAP-324 to RDMAP-326.
#[test]
fn a_local_fault_stands_in_place_of_the_request() {
    let mut peer = served();
    let lost = peer.pd.reg_mr(64, iwarp::memory::Access::empty()).unwrap();
    peer.qp.post_send(&SendRequest::new(1, SendOp::Send, peer.region.sge(0, 3))).unwrap();
    peer.qp.post_send(&SendRequest::new(2, SendOp::Write { remote: REMOTE }, lost.sge(0, 8))).unwrap();
    peer.qp.post_send(&SendRequest::new(3, SendOp::Send, peer.region.sge(0, 3))).unwrap();
    lost.deregister().unwrap();
    let heard = peer.received(20_000);
    assert_eq!(heard, [send(1, &[0; 3]), untagged(0x41, 0x47, 0, 2, 1, 0, &[0; 4])]);
    let done = peer.statuses();
    assert_eq!(
        done,
        [(1, WcStatus::Success), (2, WcStatus::LocalProtectionError), (3, WcStatus::WrFlushError)]
    );
}

/// On a TCP reset, no Terminate is sent, all open requests complete with an error, and the user receives the
/// event.
// Proves RDMAP-170, RDMAP-310, RDMAP-312, RDMAP-323.
#[test]
fn a_reset_is_told_without_terminate() {
    let mut peer = served_with(ConnParam::default(), 1);
    let read = SendOp::Read { remote: REMOTE };
    peer.qp.post_send(&SendRequest::new(1, read, peer.region.sge(0, 8))).unwrap();
    assert_eq!(peer.received(20_000).len(), 1);
    peer.pair.abort();
    assert!(peer.received(20_000).is_empty());
    assert_eq!(peer.statuses(), [(1, WcStatus::WrFlushError), (1000, WcStatus::WrFlushError)]);
    let told = peer.ended().unwrap().kind;
    assert!(
        matches!(told, CmEventKind::Disconnected { error: Some(ConnectionError::Tcp(_)), .. }),
        "{told:?}"
    );
}

/// TCP or DDP ends the stream in the middle of a Write. The content of the Write's sink is then undefined.
// Proves RDMAP-063: the user receives an error, and no byte outside the Write's range has changed.
#[test]
fn a_write_that_is_aborted_touches_nothing_outside_its_range() {
    for by_tcp in [true, false] {
        let mut peer = served();
        let (stag, to) = (peer.region.rkey(), peer.to(100));
        // The peer sends two of three segments.
        peer.send_and_run(&[
            tagged(0x81, 0x40, stag, to, &[7; 50]),
            tagged(0x81, 0x40, stag, to + 50, &[7; 50]),
        ]);
        if by_tcp {
            peer.pair.abort();
        } else {
            // The third segment has a version that DDP does not know.
            peer.send_and_run(&[tagged(0xc2, 0x40, stag, to + 100, &[7; 50])]);
            peer.pair.close();
        }
        told!(peer.ended().expect("an event"), Disconnected { error: Some(_), .. });
        assert_eq!((peer.bytes(0, 100), peer.bytes(200, 1000)), (vec![0; 100], vec![0; 1000]));
    }
}
