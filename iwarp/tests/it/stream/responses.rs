//! The effects of the Read Responses to our Reads.

use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, WcOpcode, WcStatus};

use super::peer::{of_segment, served, tagged};
use crate::common::ALL;
use crate::common::served::Served;

const SIZE: usize = 8;

/// Returns a connection with `reads` outstanding Reads. Each Read has its own eight bytes of sink, from
/// offset 100 on.
fn reading(reads: u64) -> Served {
    let mut peer = served();
    let read = SendOp::Read { remote: RemoteAddr { addr: 1, rkey: 2 } };
    for n in 0..reads {
        let sink = peer.region.sge(100 + SIZE * n as usize, SIZE);
        peer.qp.post_send(&SendRequest::new(1 + n, read, sink)).unwrap();
    }
    assert_eq!(peer.received(20_000).len(), reads as usize);
    peer
}

fn response(peer: &Served, n: usize, bytes: &[u8]) -> Vec<u8> {
    tagged(0xc1, 0x42, peer.region.rkey(), peer.to(100 + SIZE * n), bytes)
}

/// Each answer completes its own Read, in order, and is placed in this Read's sink and nowhere else.
// Proves RDMAP-227, RDMAP-229, RDMAP-233, RDMAP-278, RDMAP-279, RDMAP-294.
#[test]
fn answers_complete_their_reads() {
    let mut peer = reading(8);
    for n in 0..8 {
        let answer = response(&peer, n, &[n as u8 + 1; SIZE]);
        peer.send_and_run(&[answer]);
        let done: Vec<_> =
            peer.done().iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
        assert_eq!(done, [(n as u64 + 1, WcStatus::Success, WcOpcode::Read, SIZE as u32)]);
        assert_eq!(peer.bytes(100 + SIZE * n, SIZE), [n as u8 + 1; SIZE]);
        assert_eq!(peer.bytes(100 + SIZE * (n + 1), SIZE), [0; SIZE]);
    }
    assert_eq!(peer.bytes(0, 100), [0; 100]);
}

/// A wrong Read Response ends the stream, for example one that does not belong to the oldest Read, or is too
/// short for it. Only the bytes of the short response may be placed, and no Read completes.
// Proves RDMAP-124, RDMAP-160, RDMAP-228, RDMAP-231, RDMAP-317.
#[test]
fn a_wrong_answer_ends_the_stream() {
    for (what, layer_type, code) in [
        ("RV 2", 0x02, 5),
        ("no Read", 0x02, 6),
        ("another STag", 0x11, 0),
        ("another region's STag", 0x11, 0),
        ("in front of the sink", 0x11, 1),
        ("the second first", 0x11, 1),
        ("too long", 0x11, 1),
        ("wrap", 0x11, 3),
        ("too short", 0x02, 0xff),
    ] {
        let reads = if what == "no Read" { 0 } else { 2 };
        let mut peer = reading(reads);
        let mut answer = response(&peer, usize::from(what == "the second first"), &[9; SIZE]);
        let other = peer.pd.reg_mr(SIZE, ALL).unwrap();
        match what {
            "RV 2" => answer[1] = 0x82,
            "another STag" => answer[2] ^= 1,
            "another region's STag" => answer[2..6].copy_from_slice(&other.rkey().to_be_bytes()),
            "in front of the sink" => answer = response(&peer, 0, &[9; 1]),
            "too long" => answer.push(9),
            "wrap" => answer[6..14].fill(0xff),
            "too short" => answer.truncate(answer.len() - 1),
            _ => {}
        }
        if what == "in front of the sink" {
            let to = peer.to(99).to_be_bytes();
            answer[6..14].copy_from_slice(&to);
        }
        peer.send_and_run(std::slice::from_ref(&answer));
        peer.expect_terminate(&of_segment(layer_type, code, &answer), what);
        let done = peer.statuses();
        assert_eq!(done.len() as u64, reads, "{what}");
        assert!(done.iter().all(|(_, status)| *status != WcStatus::Success), "{what}: {done:?}");
        if what != "too short" {
            assert_eq!(peer.bytes(0, 200), [0; 200], "{what}: nothing is placed");
        }
    }
}
