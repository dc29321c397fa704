//! Messages that arrive between the segments of another message, messages whose segments have different
//! opcodes, and the counter of placed bytes for an atomic.

use crate::common::ext::{ADD_ONE, atomic_response, piece, untagged, word};
use crate::common::served::Served;
use iwarp::memory::Access;
use iwarp::rdmap::{BitOrder, Terminate};
use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, StreamError, TerminateOrigin, WcOpcode, WcStatus};

/// If an Atomic Request does not fit into one segment, the requester may fail between the two segments. The
/// sink then receives the requester's Terminate, in one segment or in two, and does not join it with the
/// unfinished request.
#[test]
fn a_terminate_ends_a_request_that_is_half_there() {
    for cut in [0, 2] {
        let mut peer = Served::new();
        peer.send(&piece(0x4a, 1, 1, 0, false, &[0; 28]));
        let payload = [0x12, 0x02, 0, 0];
        if cut > 0 {
            peer.send(&piece(0x47, 2, 1, 0, false, &payload[..cut]));
        }
        peer.send_and_run(&[piece(0x47, 2, 1, cut as u32, true, &payload[cut..])]);
        let told = StreamError { layer: 1, etype: 2, code: 2, from_peer: true };
        assert_eq!(peer.qp.error(), Some(told), "cut at {cut}");
        let report = peer.qp.terminate().unwrap();
        assert_eq!(report.origin, TerminateOrigin::Received);
        let Terminate { bit_order, control, .. } = report.terminate;
        assert_eq!((bit_order, control), (BitOrder::Standard, Some(payload)));
        assert!(peer.received(20_000).is_empty(), "a Terminate is not answered");
    }
}

/// A sink need not compare the segments of a message (RFC 5041 section 4.3, DDP-083 and DDP-084). Here the
/// last segment is that of a Send, so the message is received as a Send.
#[test]
fn the_last_segment_says_what_a_message_is() {
    let mut peer = Served::new();
    peer.post_recv(0, 100);
    peer.post_recv(100, 100);
    peer.send(&piece(0x48, 0, 1, 0, false, &[1; 4]));
    peer.send(&piece(0x43, 0, 1, 4, true, &[2; 4]));
    let wc = peer.wc();
    assert_eq!((wc.opcode, wc.byte_len, wc.immediate), (WcOpcode::Recv, 8, None));
    assert_eq!(peer.bytes(0, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
    // No state of the interrupted message is left for the next message.
    peer.send(&untagged(0x48, 0, 2, &[3; 8]));
    let wc = peer.wc();
    assert_eq!((wc.opcode, wc.byte_len, wc.immediate), (WcOpcode::RecvImmediate, 8, Some([3; 8])));
}

/// The value that an atomic returns is placed in registered memory, and `rx_placed_bytes` includes its eight
/// bytes.
#[test]
fn the_value_of_an_atomic_counts_as_placed() {
    let mut peer = Served::new();
    let local = peer.reg_mr(8, Access::LOCAL_WRITE);
    let remote = RemoteAddr { addr: 0x1008, rkey: 0x1234_5678 };
    peer.post(&SendRequest::new(1, SendOp::Atomic { remote, op: ADD_ONE }, local.sge(0, 8)));
    let request = peer.receive();
    let id = u32::from_be_bytes(request[22..26].try_into().unwrap());
    let before = peer.pair.engine.counters().rx_placed_bytes;
    peer.send(&atomic_response(1, id, 7));
    assert_eq!((peer.wc().status, word(&local, 0)), (WcStatus::Success, 7));
    assert_eq!(peer.pair.engine.counters().rx_placed_bytes - before, 8);
}
