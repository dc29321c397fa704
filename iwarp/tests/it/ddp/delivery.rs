//! Tests of what a data sink places and delivers, and of how a data sink refuses segments (RFC 5041 sections
//! 1.2, 4, 5.4, 7). Each test sends segments to an engine, and checks completions and memory.

use super::{REGION, setup, tagged, untagged};
use crate::common::pattern;
use crate::common::raw::fpdu;
use crate::common::served::Served;
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, CmEventKind, ConnectionError, MrOptions, RemoteAddr, SendOp, SendRequest, StreamError,
    WcOpcode, WcStatus,
};

const SEND: u8 = 3;

/// Returns `wr_id`, status and length of the completions of receives.
fn received(peer: &mut Served) -> Vec<(u64, WcStatus, u32)> {
    let all = peer.done();
    assert!(all.iter().all(|wc| wc.opcode == WcOpcode::Recv));
    all.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
}

// Proves DDP-001, DDP-006, DDP-008, DDP-009, DDP-047, DDP-048, DDP-109, DDP-119 to DDP-121, DDP-139: a Write
// consumes no receive buffer. A Send consumes the oldest receive buffer, and fills all or a part of it. A
// Write of no bytes may have any STag and offset.
#[test]
fn both_models_on_one_stream() {
    let mut peer = setup().ready();
    for at in [0, 1000, 2000] {
        peer.post_recv(at, 100);
    }
    let (stag, base) = (peer.region.rkey(), peer.region.addr());
    let data = pattern(3, 40);
    peer.send(&tagged(0xC1, stag, base + 5000, &data[..16]));
    peer.send(&untagged(0x41, SEND, [0, 1, 0], &data));
    peer.send(&tagged(0xC1, u32::MAX, u64::MAX, b""));
    peer.send(&tagged(0xC1, 0, 0, b""));
    peer.send(&untagged(0x41, SEND, [0, 2, 0], b""));
    peer.send(&untagged(0x41, SEND, [0, 3, 0], b"third"));
    assert_eq!(
        received(&mut peer),
        [(0, WcStatus::Success, 40), (1000, WcStatus::Success, 0), (2000, WcStatus::Success, 5)]
    );
    assert_eq!(peer.bytes(0, 41), [data.as_slice(), &[0xEE]].concat());
    assert_eq!(peer.bytes(1000, 100), [0xEE; 100]);
    assert_eq!(peer.bytes(2000, 6), b"third\xEE");
    assert_eq!(peer.bytes(4999, 18), [&[0xEE], &data[..16], &[0xEE]].concat());
}

// Proves DDP-010, DDP-067, DDP-100, DDP-101, DDP-166, DDP-168: one STag serves a hundred messages, at
// different offsets and at equal offsets; a receive buffer serves one message.
#[test]
fn an_stag_serves_many_messages_and_a_buffer_one() {
    let mut peer = setup().ready();
    peer.post_recv(0, 100);
    let (stag, base) = (peer.region.rkey(), peer.region.addr());
    for n in 0..100_u8 {
        peer.send(&tagged(0xC1, stag, base + 1000 + u64::from(n % 10), &[n]));
    }
    peer.send(&untagged(0x41, SEND, [0, 1, 0], b"one"));
    assert_eq!(received(&mut peer), [(0, WcStatus::Success, 3)]);
    assert_eq!(peer.bytes(1000, 11), [90, 91, 92, 93, 94, 95, 96, 97, 98, 99, 0xEE]);
    peer.send(&untagged(0x41, SEND, [0, 2, 0], b"two"));
    peer.pair.until(10_000, |_| false);
    assert_eq!(peer.qp.error(), Some(StreamError { layer: 1, etype: 2, code: 2, from_peer: false }));
    assert_eq!(peer.pair.engine.counters().tx_terminates, 1, "and is counted");
}

// Proves DDP-054, DDP-134 to DDP-136, DDP-140, DDP-139: all bytes are placed, but the message is delivered
// only when the segment with L=1 has arrived. The end of this segment determines the message's length.
#[test]
fn the_last_flag_delivers() {
    let mut peer = setup().ready();
    peer.post_recv(0, 100);
    peer.post_recv(1000, 100);
    peer.send(&untagged(0x01, SEND, [0, 1, 0], &[1; 20]));
    peer.send(&untagged(0x01, SEND, [0, 1, 20], &[2; 20]));
    assert!(received(&mut peer).is_empty());
    assert_eq!(peer.bytes(0, 41), [&[1; 20][..], &[2; 20], &[0xEE]].concat());
    peer.send(&untagged(0x41, SEND, [0, 1, 40], b"end"));
    assert_eq!(received(&mut peer), [(0, WcStatus::Success, 43)]);
    peer.pair.until(1_000_000, |_| false);
    assert!(received(&mut peer).is_empty(), "delivered once");
}

// Proves DDP-122: each segment of a Write is placed separately. The segments may leave a gap and need not be
// in order, since no completion reports the complete Write.
#[test]
fn a_write_may_have_gaps() {
    let mut peer = setup().ready();
    let (stag, base) = (peer.region.rkey(), peer.region.addr());
    peer.send_all(&[&tagged(0x81, stag, base + 8, b"two"), &tagged(0xC1, stag, base, b"one ")]);
    peer.pair.until(10_000, |_| false);
    assert_eq!(peer.bytes(0, 12), b"one \xEE\xEE\xEE\xEEtwo\xEE");
    assert_eq!(peer.qp.error(), None);
}

/// A gap or an overlap in an untagged message, on any queue, ends the stream, as with Linux's siw: otherwise
/// the message would contain bytes that the peer never sent. The error is an invalid MO (1/2/04), but a bad
/// Terminate is not answered. The message is not delivered. A segment that arrives in order and leaves a gap
/// or overlaps is not placed.
#[test]
fn an_untagged_message_has_no_gaps() {
    const READ_REQUEST: u8 = 1;
    const TERMINATE: u8 = 7;
    let whole = |opcode, queue, len: usize| (opcode, queue, vec![0x77; len]);
    for (opcode, queue, payload) in
        [whole(SEND, 0, 12), whole(READ_REQUEST, 1, 28), whole(TERMINATE, 2, 20), whole(0xB, 3, 12)]
    {
        // Each case has the length of the first segment, and the offset of the second segment.
        for (first, second) in [(0, 4), (0, 1), (8, 9), (8, 7), (8, 0)] {
            let mut peer = setup().ready();
            peer.post_recv(0, 100);
            if queue == 3 {
                let op = SendOp::Atomic {
                    remote: RemoteAddr { addr: 8, rkey: 1 },
                    op: AtomicOp::FetchAdd { add: 1, mask: 0 },
                };
                peer.qp.post_send(&SendRequest::new(1, op, peer.region.sge(4096, 8))).unwrap();
                assert_eq!(peer.received(10_000).len(), 1);
            }
            if first > 0 {
                peer.send(&untagged(0x01, opcode, [queue, 1, 0], &payload[..first]));
            }
            let rest = &payload[..payload.len() - first.max(second)];
            let bad = untagged(0x41, opcode, [queue, 1, second as u32], rest);
            peer.send(&bad);
            let heard = peer.received(100_000);
            let what = format!("queue {queue}, {first} bytes, then from {second}");
            if opcode == TERMINATE {
                assert!(heard.is_empty(), "{what}: a Terminate is not answered");
                assert!(peer.qp.error().is_some_and(|error| error.from_peer), "{what}");
            } else {
                assert_eq!(heard[0][18..22], [0x12, 0x04, 0xC0, 0], "{what}");
                assert_eq!(heard[0][24..], bad[..18], "{what}");
                let error = StreamError { layer: 1, etype: 2, code: 4, from_peer: false };
                assert_eq!(peer.qp.error(), Some(error), "{what}");
            }
            assert!(peer.done().iter().all(|wc| wc.status != WcStatus::Success), "{what}");
            let placed = if opcode == SEND { first } else { 0 };
            assert_eq!(peer.bytes(0, 100), [&vec![0x77; placed][..], &vec![0xEE; 100 - placed]].concat());
        }
    }
}

/// Messages follow each other (RFC 5041 section 5.3). If a segment for another queue arrives in the middle of
/// a message, it ends the stream with an invalid MO. The sink does not treat this segment as the rest of the
/// current message or as a new message.
#[test]
fn messages_of_the_control_queues_are_not_mixed() {
    let mut peer = setup().ready();
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let atomic = SendOp::Atomic { remote: RemoteAddr { addr: 8, rkey: 1 }, op };
    peer.qp.post_send(&SendRequest::new(1, atomic, peer.region.sge(0, 8))).unwrap();
    assert_eq!(peer.received(10_000).len(), 1);
    peer.send(&untagged(0x01, 1, [1, 1, 0], &[0; 16]));
    let answer = untagged(0x41, 0xB, [3, 1, 0], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]);
    peer.send(&answer);
    let heard = peer.received(100_000);
    assert_eq!((&heard[0][18..22], &heard[0][24..]), (&[0x12, 0x04, 0xC0, 0][..], &answer[..18]));
    assert_eq!(peer.bytes(0, 8), [0xEE; 8]);
}

// Proves DDP-088, DDP-110, DDP-202: each queue numbers its messages separately, in both directions.
#[test]
fn queues_count_for_themselves() {
    let mut peer = setup().ready();
    peer.post_recv(0, 100);
    peer.post_recv(1000, 100);
    let (stag, base) = (peer.region.rkey(), peer.region.addr());
    let mut ask = vec![0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 4];
    ask.extend(stag.to_be_bytes());
    ask.extend((base + 1000).to_be_bytes());
    peer.send(&untagged(0x41, SEND, [0, 1, 0], b"one"));
    peer.send(&untagged(0x41, 1, [1, 1, 0], &ask));
    peer.send(&untagged(0x41, SEND, [0, 2, 0], b"two"));
    assert_eq!(received(&mut peer), [(0, WcStatus::Success, 3), (1000, WcStatus::Success, 3)]);
    // The peer receives a Read Response to STag 9 at offset 7, and then the Terminate, which is the first
    // message of queue 2.
    let heard = peer.received(10_000);
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0][..14], [0xC1, 0x42, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 7]);
    peer.send(&untagged(0x41, SEND, [u32::MAX, 1, 0], b"x"));
    let heard = peer.received(10_000);
    assert_eq!(heard[0][..18], [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(heard[0][18..20], [0x12, 0x01]);
}

// Proves DDP-007, DDP-039, DDP-144, DDP-157, DDP-160, DDP-161, DDP-163, DDP-169, DDP-179, DDP-183, DDP-189 to
// DDP-195, DDP-210, DDP-222: each of these errors ends reception at once (DDP-163, DDP-169) and places
// nothing (DDP-007, DDP-210). The user receives the error (DDP-157, DDP-222). The peer receives one more
// message, with the error's numbers, the header and the length (DDP-189 to DDP-195); DDP alone ends the
// stream without this message (DDP-144, DDP-160, DDP-161). Later segments are dropped silently, and our
// engine sends no more requests (DDP-039).
#[test]
fn an_error_ends_reception_and_is_told_once() {
    let probe = setup().ready();
    let (stag, base) = (probe.region.rkey(), probe.region.addr());
    let end = base + REGION as u64;
    drop(probe);
    let cases = [
        (tagged(0xC1, stag ^ 0x100, base, b"x"), [0x11, 0x00]),
        (tagged(0xC1, stag, base.wrapping_sub(1), b"xy"), [0x11, 0x01]),
        (tagged(0xC1, stag, end - 4, b"12345"), [0x11, 0x01]),
        (tagged(0xC1, stag, u64::MAX, b"xy"), [0x11, 0x03]),
        (tagged(0xC0, stag, base, b"x"), [0x11, 0x04]),
        (untagged(0x41, SEND, [4, 1, 0], b"x"), [0x12, 0x01]),
        (untagged(0x41, SEND, [0, 3, 0], b"x"), [0x12, 0x02]),
        (untagged(0x41, SEND, [0, 0, 0], b"x"), [0x12, 0x03]),
        (untagged(0x41, SEND, [0, 1, 101], b"x"), [0x12, 0x04]),
        (untagged(0x41, SEND, [0, 1, 0], &[7; 150]), [0x12, 0x05]),
        (untagged(0x43, SEND, [0, 1, 0], b"x"), [0x12, 0x06]),
    ];
    for (bad, control) in cases {
        let mut peer = setup().ready();
        // The seeds are equal, so the region has the same STag and address as in the first run. With other
        // values, the cases would prove nothing.
        assert_eq!((peer.region.rkey(), REGION), (stag, REGION));
        let moved = peer.region.addr().wrapping_sub(base);
        let mut bad = bad;
        if bad[0] & 0x80 != 0 && control[1] != 3 {
            let to = u64::from_be_bytes(bad[6..14].try_into().unwrap()).wrapping_add(moved);
            bad[6..14].copy_from_slice(&to.to_be_bytes());
        }
        peer.post_recv(0, 100);
        peer.post_recv(1000, 100);
        let placed = tagged(0xC1, stag, peer.region.addr() + 5000, b"late");
        let sent = untagged(0x41, SEND, [0, 1, 0], b"late");
        peer.send_all(&[&bad, &placed, &sent, &bad]);
        let heard = peer.received(100_000);
        assert_eq!(heard.len(), 1, "one Terminate, and nothing else: {bad:02x?}");
        let told = &heard[0][18..];
        assert_eq!(told[..2], control, "{bad:02x?}");
        let header = if bad[0] & 0x80 != 0 { 14 } else { 18 };
        assert_eq!(told[2] & 0xC0, 0xC0, "length and header are there");
        assert_eq!(told[4..6], (bad.len() as u16).to_be_bytes());
        assert_eq!(told[6..6 + header], bad[..header]);
        let error = peer.qp.error().expect("the user is told");
        assert_eq!(
            (error.layer << 4 | error.etype, error.code, error.from_peer),
            (control[0], control[1], false)
        );
        told!(peer.event(), Disconnected { error: Some(ConnectionError::Stream(told)), .. } if told == error);
        // From now on our engine sends no request.
        let late = SendRequest::new(1, SendOp::Send, peer.region.sge(0, 8));
        let refused = peer.qp.post_send(&late).is_err();
        assert!(peer.received(10_000).is_empty());
        let mut completions = peer.done();
        completions.retain(|wc| wc.opcode == WcOpcode::Recv || wc.status == WcStatus::Success);
        let flushed: Vec<_> = completions.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert!(!refused, "flushed, not refused");
        assert_eq!(flushed.len(), 2);
        assert!(flushed.iter().all(|(_, status)| *status != WcStatus::Success), "{flushed:?}");
        assert!(peer.bytes(0, REGION) == [0xEE; REGION], "nothing is placed: {bad:02x?}");
    }
}

// Proves DDP-155, DDP-159: when the TCP connection is lost, each outstanding request completes once, with an
// error. The requests are receives, one of which has a part of its message, and Reads, of which some were
// sent and some were not.
#[test]
fn a_lost_connection_completes_all_that_is_outstanding() {
    let mut peer = setup().ready();
    for at in [0, 1000, 2000] {
        peer.post_recv(at, 100);
    }
    peer.send(&untagged(0x01, SEND, [0, 1, 0], b"begun"));
    let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
    // The number of Reads is larger than the peer's IRD.
    for wr_id in 0..12 {
        peer.qp.post_send(&SendRequest::new(wr_id, read, peer.region.sge(4000, 100))).unwrap();
    }
    assert_eq!(peer.received(10_000).len(), 8);
    assert!(peer.done().is_empty());
    peer.pair.abort();
    let event = peer.event();
    let lost = Some(ConnectionError::Tcp(tcp_lite::CloseReason::Reset));
    assert!(matches!(event.kind, CmEventKind::Disconnected { error, .. } if error == lost), "{event:?}");
    let (received, sent): (Vec<_>, Vec<_>) =
        peer.done().into_iter().partition(|wc| wc.opcode == WcOpcode::Recv);
    assert!(received.iter().chain(&sent).all(|wc| wc.status != WcStatus::Success));
    assert_eq!(received.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1000, 2000]);
    assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
}

// Proves MPA-225, MPA-226, DDP-153, MPA-036, MPA-227: a FIN after a complete FPDU ends the connection
// gracefully. A FIN in the middle of an FPDU counts as a lost connection, and the FPDU is dropped.
#[test]
fn a_fin_cuts_an_fpdu_or_does_not() {
    for cut in [0, 1, 10] {
        let mut peer = setup().ready();
        peer.post_recv(0, 100);
        let mut bytes = fpdu(&mut peer.framer, &untagged(0x41, SEND, [0, 1, 0], b"the last"));
        bytes.truncate(bytes.len() - cut);
        peer.pair.send(&bytes);
        peer.pair.until(10_000, |_| false);
        peer.pair.close();
        let event = peer.event();
        let expected = if cut == 0 { None } else { Some(ConnectionError::PeerClosed) };
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error, .. } if error == expected),
            "{event:?}"
        );
        let status = if cut == 0 { WcStatus::Success } else { WcStatus::WrFlushError };
        assert_eq!(received(&mut peer).iter().map(|wc| wc.1).collect::<Vec<_>>(), [status]);
        // The engine either closes its half of the connection or resets the connection.
        assert!(peer.pair.until(10_000_000, |raw| raw.closed.is_some()));
        assert!(
            cut > 0 || peer.pair.closed == Some(tcp_lite::CloseReason::Graceful),
            "{:?}",
            peer.pair.closed
        );
        assert_eq!(peer.bytes(0, 1), if cut == 0 { b"t" } else { b"\xEE" });
    }
}

// Proves DDP-084: if segments of a message differ in the bytes that DDP reserves for its ULP, the sink uses
// the bytes of one segment. In this test, two segments have the STags of two regions, and exactly one region
// is invalidated.
#[test]
fn the_reserved_bytes_of_one_segment_count() {
    for alike in [true, false] {
        let mut peer = setup().ready();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let options = MrOptions { qp: Some(&peer.qp), ..MrOptions::new(all) };
        let lent = [0, 1].map(|_| peer.pd.reg_mr_with(64, &options).unwrap());
        peer.post_recv(0, 100);
        let segment = |control: u8, stag: u32, mo: u32| {
            let mut ulpdu = vec![control, 0x44];
            for word in [stag, 0, 1, mo] {
                ulpdu.extend(word.to_be_bytes());
            }
            ulpdu.extend([5; 20]);
            ulpdu
        };
        let second = if alike { 0 } else { 1 };
        peer.send(&segment(0x01, lent[0].rkey(), 0));
        peer.send(&segment(0x41, lent[second].rkey(), 20));
        let told = peer.done();
        let [wc] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 40));
        let valid = lent.each_ref().map(|region| region.is_valid());
        let invalidated = wc.invalidated;
        assert_eq!(valid, lent.each_ref().map(|region| Some(region.rkey()) != invalidated), "{wc:?}");
        assert!(valid == [false, true] || (valid == [true, false] && !alike), "{valid:?}");
        assert_eq!(peer.qp.error(), None);
    }
}

// Proves DDP-145, DDP-146, RDMAP-321: the stream and its TCP connection end together, whether our
// application, the peer's application or TCP causes the end. After that, our posts and the peer's segments
// have no effect.
#[test]
fn after_teardown_nothing_is_sent_or_placed() {
    for by in ["ours", "peer", "reset"] {
        let mut peer = setup().ready();
        let (stag, base) = (peer.region.rkey(), peer.region.addr());
        // The responder may send after the first FPDU of the initiator has arrived.
        peer.pair.until(10_000, |_| false);
        match by {
            "ours" => peer.id.disconnect(),
            "peer" => peer.pair.close(),
            _ => peer.pair.abort(),
        }
        peer.pair.until(100_000, |_| false);
        // Our half of the connection is closed; the peer may still send.
        if by == "ours" {
            assert!(peer.pair.until(1_000_000, |raw| raw.peer_closed), "FIN");
            peer.send(&tagged(0xC1, stag, base, b"late"));
            peer.pair.close();
        }
        let event = peer.event();
        assert!(matches!(event.kind, CmEventKind::Disconnected { .. }), "{by}: {event:?}");
        peer.pair.until(5_000_000, |raw| raw.closed.is_some());
        assert!(peer.pair.closed.is_some(), "{by}: TCP is gone too");
        assert_eq!(peer.bytes(0, 4), [0xEE; 4], "{by}");
        peer.done();
        let sent = peer.pair.engine.counters().tx_fpdus;
        let refused = peer.qp.post_send(&SendRequest::empty(9, SendOp::Send)).is_err();
        let told = peer.done();
        assert!(refused || told.iter().all(|wc| wc.status == WcStatus::WrFlushError), "{by}: {told:?}");
        assert_eq!(peer.pair.engine.counters().tx_fpdus, sent, "{by}");
    }
}

// Proves DDP-132: a request completes when TCP has accepted the last segment of its message, even without an
// acknowledgement. A request for whose message TCP has no space does not complete.
#[test]
fn a_message_is_complete_when_tcp_has_its_last_segment() {
    let mut peer = setup().ready();
    peer.pair.deaf = true;
    let request = |wr_id, len| SendRequest::new(wr_id, SendOp::Send, peer.region.sge(0, len));
    peer.qp.post_send(&request(1, 10)).unwrap();
    assert!(peer.cq.poll_one().is_none(), "the engine has not been polled");
    peer.pair.poll();
    assert_eq!(peer.cq.poll_one().map(|wc| wc.wr_id), Some(1), "nothing of it is acknowledged");
    // There is more data than TCP accepts. Requests for which TCP has no space are not complete.
    let all = 200;
    for wr_id in 2..all {
        if peer.qp.post_send(&request(wr_id, REGION)).is_err() {
            break;
        }
    }
    peer.pair.until(20_000, |_| false);
    let done = std::iter::from_fn(|| peer.cq.poll_one()).count();
    let waiting = peer.qp.query().send_outstanding;
    assert!(done > 0 && waiting > 0, "{done} complete, {waiting} not");
    let taken = peer.pair.engine.counters().tx_fetched_bytes;
    assert_eq!(done as u64, (taken - 10) / REGION as u64, "whole messages that TCP has, of {taken} bytes");
}
