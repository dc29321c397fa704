//! Messages of queue 4 byte by byte (`iwarp/src/stream/ib_profile/message.rs`), with a bare TCP peer that has
//! agreed on InfiniBand's semantics.

use std::time::Duration;

use crate::common::ALL;
use crate::common::agreeing;
use crate::common::raw::ib_request;
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::{tagged, untagged};
use iwarp::verbs::{ConnParam, ConnectionError, RemoteAddr, SendOp, SendRequest, StreamError, WcStatus};
use tcp_lite::CloseReason;

const LIMIT: u32 = 1;
const NOT_READY: u32 = 2;
const READY: u32 = 3;
const RESUME: u32 = 4;
const ENDS: u32 = 5;

fn message(kind: u32, msn: u32, payload: u64) -> Vec<u8> {
    untagged([0x41, 0x4f], kind, [4, msn, 0], &payload.to_be_bytes())
}

/// Returns a Send of seven bytes.
fn send(msn: u32) -> Vec<u8> {
    untagged([0x41, 0x43], 0, [0, msn, 0], b"message")
}

/// Returns a connection with InfiniBand's semantics, on which messages of the peer may wait for four seconds.
fn agreed() -> Served {
    let accept = ConnParam { rnr_timeout: Some(Duration::from_secs(4)), ..agreeing() };
    Setup { request: ib_request(), accept, ..Setup::default() }.ready()
}

/// Returns a Send of no bytes, as our engine sends it.
fn empty_send(msn: u32) -> Vec<u8> {
    untagged([0x41, 0x43], 0, [0, msn, 0], &[])
}

/// Posts a Send of no bytes, and checks that the peer receives it.
fn sent(served: &mut Served) {
    served.post(&SendRequest::empty(1, SendOp::Send));
    assert_eq!(served.receive(), empty_send(1));
}

/// A message of the peer waits for a receive request. The engine drops the message and the Write behind it.
/// When the peer sends both messages again, with the next MSN, the engine accepts them and reports this to
/// the peer.
#[test]
fn a_message_of_the_peer_that_waits_is_sent_again() {
    let mut served = agreed();
    let write = |byte| tagged([0xc1, 0x40], served.region.rkey(), served.to(100), &[byte; 8]);
    let (first, second) = (write(1), write(2));
    served.send_all(&[send(1), first]);
    assert_eq!(served.receive(), message(NOT_READY, 1, 1));
    served.run(1_000_000);
    served.post_recv(0, 64);
    assert_eq!(served.receive(), message(READY, 2, 0));
    assert_eq!((served.bytes(0, 7), served.bytes(100, 8)), (vec![0; 7], vec![0; 8]));
    served.send_all(&[message(RESUME, 1, 2 << 32 | 1), send(2), second]);
    assert_eq!(served.statuses(), [(0, WcStatus::Success)]);
    assert_eq!((served.bytes(0, 7), served.bytes(100, 8)), (b"message".to_vec(), vec![2; 8]));
    assert_eq!(served.receive(), message(LIMIT, 3, 2));
    // The waiting time of the message is over, but the connection does not end.
    served.run(10_000_000);
    assert!(served.channel.poll().is_none() && served.pair.inbox.is_empty());
}

/// A message of our engine waits for a receive request of the peer. The engine sends the message again, with
/// the next MSN. The message's request completes when the peer sends a limit that covers the message.
#[test]
fn a_message_of_ours_that_waits_is_sent_again() {
    let mut served = agreed();
    sent(&mut served);
    served.send_and_run(&[message(NOT_READY, 1, 1)]);
    assert_eq!(served.received(1_000_000), Vec::<Vec<u8>>::new());
    served.send_and_run(&[message(READY, 2, 0)]);
    assert_eq!(served.received(1_000_000), [message(RESUME, 1, 2 << 32 | 1), empty_send(2)]);
    assert_eq!(served.completions(), []);
    served.send(&message(LIMIT, 3, 1));
    assert_eq!(served.statuses(), []);
    served.send(&message(LIMIT, 4, 2));
    assert_eq!(served.statuses(), [(1, WcStatus::Success)]);
}

/// The peer reports the stream position up to which it has accepted messages. The requests before this
/// position complete, and no later request does, although TCP has acknowledged all bytes.
#[test]
fn requests_before_the_end_of_the_peer_are_done() {
    let mut served = agreed();
    let region = served.reg_mr(64, ALL);
    let remote = RemoteAddr { addr: 0, rkey: 1 };
    for (wr_id, op) in [(1, SendOp::Send), (2, SendOp::Send), (3, SendOp::Write { remote })] {
        served.post(&SendRequest::new(wr_id, op, region.sge(0, 8)));
    }
    served.run(100_000);
    assert_eq!(served.completions(), []);
    // The position is behind the Reply and one FPDU of 32 bytes, which has the length, an 18-byte header,
    // eight bytes of payload and the CRC.
    let position = served.reply.len() as u64 + 32;
    served.send_and_run(&[message(ENDS, 1, position)]);
    assert_eq!(served.completions(), [(1, WcStatus::Success)]);
    served.pair.close();
    let flushed = WcStatus::WrFlushError;
    assert_eq!(served.statuses(), [(2, flushed), (3, flushed)]);
}

/// A message that is malformed, or not allowed at this time, ends the stream.
#[test]
fn a_message_out_of_turn_ends_the_stream() {
    let waits: fn(&mut Served) = |served| {
        served.send(&send(1));
        assert_eq!(served.receive(), message(NOT_READY, 1, 1));
    };
    let has_sent: fn(&mut Served) = sent;
    let is_not_taken: fn(&mut Served) = |served| {
        sent(served);
        served.send(&message(NOT_READY, 1, 1));
    };
    let nothing: fn(&mut Served) = |_| {};
    let with_seven_bytes = untagged([0x41, 0x4f], LIMIT, [4, 1, 0], &[0; 7]);
    let cases = [
        ("Ready to an end that has sent nothing", nothing, message(READY, 1, 0)),
        ("Ready to an end whose message was not refused", has_sent, message(READY, 1, 0)),
        ("Resume, and nothing was refused", nothing, message(RESUME, 1, 1 << 32 | 1)),
        ("Resume before there is a receive request", waits, message(RESUME, 1, 1 << 32 | 1)),
        ("NotReady again", is_not_taken, message(NOT_READY, 2, 1)),
        ("an end beyond what was sent", has_sent, message(ENDS, 1, 1 << 40)),
        ("an unknown kind", nothing, message(6, 1, 0)),
        ("the second message first", nothing, message(LIMIT, 2, 1)),
        ("a byte too few", nothing, with_seven_bytes),
    ];
    for (what, prepare, message) in cases {
        let mut served = agreed();
        prepare(&mut served);
        served.send_and_run(&[message]);
        let error = StreamError { layer: 0, etype: 2, code: 0xff, from_peer: false };
        assert_eq!(served.qp.error(), Some(error), "{what}");
        let heard = served.received(20_000);
        assert_eq!(heard.last().map(|ulpdu| ulpdu[1]), Some(0x47), "{what}: no Terminate");
    }
}

/// TCP withholds the acknowledgement of refused bytes until the peer knows from which position on bytes are
/// refused. Then TCP acknowledges all bytes of the peer, including bytes sent in the meantime, and the
/// connection ends gracefully. The connection also ends gracefully after a Terminate of the peer.
#[test]
fn what_is_not_taken_is_acknowledged_when_the_peer_knows() {
    let write = tagged([0xc1, 0x40], 0, 0, b"bytes");
    let terminate = untagged([0x41, 0x47], 0, [2, 1, 0], &[0, 0, 0, 0]);
    // The peer sends 8 MiB after the Write, which is more than the window.
    for (what, ending, bytes) in [("a Write to no memory", write, 8 << 20), ("a Terminate", terminate, 0)] {
        let mut served = agreed();
        served.send(&ending);
        let start_us = served.pair.now_us;
        assert!(served.pair.until(100_000, |pair| pair.peer_closed), "{what}: no FIN");
        served.pair.send(&vec![0; bytes]);
        served.pair.close();
        assert!(served.pair.until(1_000_000, |pair| pair.closed.is_some()), "{what}: no end");
        assert_eq!(served.pair.closed, Some(CloseReason::Graceful), "{what}");
        let event = told!(served.event(), Disconnected { error: Some(ConnectionError::Stream(_)), .. });
        assert!(served.pair.now_us - start_us < 2_000_000, "{what}: {event:?}");
    }
}
