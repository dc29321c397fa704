//! The effects of the peer's Sends and Writes.

use iwarp::memory::Access;
use iwarp::verbs::{ConnParam, MrOptions, QpInit, RecvRequest, WcStatus};

use super::peer::{REGION, of_segment, send, served_with, tagged, untagged};
use crate::common::ALL;
use crate::common::served::Served;

fn ready(receives: u64) -> Served {
    served_with(ConnParam::default(), receives)
}

/// Each Send consumes one receive, in order and whatever its length. The completion contains the length of
/// the Send. Bytes of the buffer behind the message do not change. Writes consume no receive request and
/// generate no completion.
// Proves RDMAP-001, RDMAP-005, RDMAP-039, RDMAP-051, RDMAP-058, RDMAP-071, RDMAP-082, RDMAP-197, RDMAP-199,
// RDMAP-200, RDMAP-205, RDMAP-235 to RDMAP-237, RDMAP-239, RDMAP-245, RDMAP-246, RDMAP-276, RDMAP-277: the
// bytes of all memory around the Writes prove the rows about Writes (RDMAP-001, RDMAP-039, RDMAP-071,
// RDMAP-197 to RDMAP-205). The bytes in the receive buffers, and the `wr_id`s and lengths of the completions,
// prove the rows about Sends. No header contains these `wr_id`s and lengths.
#[test]
fn each_send_takes_one_receive() {
    let mut peer = ready(4);
    let (stag, to) = (peer.region.rkey(), peer.to(50));
    peer.send_and_run(&[
        send(1, b"a"),
        tagged(0xc1, 0x40, stag, to, b"middle"),
        send(2, b""),
        send(3, &[3; 100]),
        tagged(0xc1, 0x40, 0xdead_beef, u64::MAX, b""),
        send(4, &[4; 99]),
    ]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    let ok = WcStatus::Success;
    assert_eq!(done, [(1000, ok, 1), (1001, ok, 0), (1002, ok, 100), (1003, ok, 99)]);
    let mut expected = vec![0; 1400];
    expected[50..56].copy_from_slice(b"middle");
    expected[1000] = b'a';
    expected[1200..1300].fill(3);
    expected[1300..1399].fill(4);
    assert_eq!(peer.bytes(0, 1400), expected);
    assert!(peer.received(20_000).is_empty() && peer.ended().is_none());
}

/// A message of several segments, in a buffer of several elements, has one completion.
// Proves RDMAP-030, RDMAP-038, RDMAP-051, RDMAP-056, RDMAP-058.
#[test]
fn a_message_of_several_segments_is_one() {
    let mut peer = ready(0);
    let mut receive = RecvRequest::new(1, peer.region.sge(100, 7));
    receive.sg_list.push(peer.region.sge(200, 8));
    peer.qp.post_recv(&receive).unwrap();
    let part = |ddp, mo, bytes: &[u8]| untagged(ddp, 0x43, 0, 0, 1, mo, bytes);
    peer.send_and_run(&[part(0x01, 0, b"hello "), part(0x01, 6, b"wo")]);
    assert!(peer.done().is_empty(), "its last segment is missing");
    peer.send_and_run(&[part(0x41, 8, b"rld")]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(done, [(1, 11)]);
    assert_eq!([peer.bytes(100, 8), peer.bytes(200, 5)].concat(), b"hello w\0orld\0");
}

/// Only the two kinds of Send that ask for a solicited event cause this event. If a Send invalidates an STag,
/// its completion contains the STag.
// Proves RDMAP-005, RDMAP-012 to RDMAP-014, RDMAP-049, RDMAP-060, RDMAP-066, RDMAP-068, RDMAP-240, RDMAP-250.
#[test]
fn each_kind_of_send_tells_what_it_is() {
    for (control, solicited, invalidates) in
        [(0x43, false, false), (0x44, false, true), (0x45, true, false), (0x46, true, true)]
    {
        let mut peer = ready(2);
        let lent = peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&peer.qp), ..MrOptions::new(ALL) }).unwrap();
        peer.cq.req_notify(true).unwrap();
        let named = if invalidates { lent.rkey() } else { 0 };
        peer.send_and_run(&[untagged(0x41, control, named, 0, 1, 0, b"hello")]);
        assert_eq!(peer.notified(), u64::from(solicited), "{control:x}");
        let wc = peer.done()[0];
        let told = (wc.status, wc.byte_len, wc.solicited, wc.invalidated);
        assert_eq!(told, (WcStatus::Success, 5, solicited, invalidates.then_some(lent.rkey())));
        assert_eq!(lent.is_valid(), !invalidates);
        // The peer notices that the STag is invalid.
        let write = tagged(0xc1, 0x40, lent.rkey(), lent.addr(), b"later");
        peer.send_and_run(std::slice::from_ref(&write));
        if invalidates {
            peer.expect_terminate(&of_segment(0x11, 0, &write), "invalidated");
        } else {
            assert!(peer.ended().is_none());
        }
    }
}

/// Ten plain Sends and one Send with Solicited Event cause one event and eleven completions.
// Proves RDMAP-013, RDMAP-042, RDMAP-049.
#[test]
fn solicited_events_alone() {
    let mut peer = ready(11);
    peer.cq.req_notify(true).unwrap();
    let plain: Vec<_> = (1..=10).map(|msn| send(msn, b"x")).collect();
    peer.send_and_run(&plain);
    assert_eq!(peer.notified(), 0);
    peer.send_and_run(&[untagged(0x41, 0x45, 0, 0, 11, 0, b"x")]);
    assert_eq!(peer.notified(), 1);
    assert_eq!(peer.done().len(), 11);
}

/// The engine ignores reserved bits, and the Invalidate STag in messages that do not invalidate.
// Proves RDMAP-095, RDMAP-097, RDMAP-099.
#[test]
fn what_is_reserved_is_ignored() {
    let mut peer = ready(3);
    let lent = peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&peer.qp), ..MrOptions::new(ALL) }).unwrap();
    peer.send_and_run(&[
        untagged(0x7d, 0x73, lent.rkey(), 0, 1, 0, b"one"),
        untagged(0x41, 0x45, lent.rkey(), 0, 2, 0, b"two"),
        untagged(0x41, 0x43, 0xdead_beef, 0, 3, 0, b"three"),
        untagged(0x41, 0x71, lent.rkey(), 1, 1, 0, &super::peer::read_header((1, 2), 0, (3, 4))),
    ]);
    let done = peer.done();
    assert!(
        done.len() == 3 && done.iter().all(|wc| wc.status == WcStatus::Success && wc.invalidated.is_none())
    );
    assert!(lent.is_valid());
    assert_eq!(peer.received(20_000), [tagged(0xc1, 0x42, 1, 2, b"")]);
}

/// Wrong versions and opcodes arrive in tagged and in untagged messages. The Terminate contains the header of
/// the segment, and nothing is delivered.
// Proves DDP-064, DDP-141, MPA-297, RDMAP-108, RDMAP-115, RDMAP-149, RDMAP-150, RDMAP-193, RDMAP-198,
// RDMAP-241, RDMAP-324, RDMAP-328, RDMAP-333, RDMAP-334.
#[test]
fn a_wrong_version_or_opcode_is_told() {
    let peer = ready(0);
    let (stag, to) = (peer.region.rkey(), peer.to(0));
    let mut cases = vec![
        ("Write on RV 2", tagged(0xc1, 0x80, stag, to, b"no"), 5),
        ("Write on RV 3", tagged(0xc1, 0xc0, stag, to, b"no"), 5),
        ("Write on RV 0", tagged(0xc1, 0x00, stag, to, b"no"), 5),
        ("Send on RV 2", untagged(0x41, 0x83, 0, 0, 1, 0, b"no"), 5),
        ("Send on RV 3", untagged(0x41, 0xc3, 0, 0, 1, 0, b"no"), 5),
        ("Read Response on RV 2", tagged(0xc1, 0x82, stag, to, b"no"), 5),
        ("tagged Send", tagged(0xc1, 0x43, stag, to, b"no"), 6),
        ("untagged Write", untagged(0x41, 0x40, 0, 0, 1, 0, b"no"), 6),
        ("Terminate on queue 0", untagged(0x41, 0x47, 0, 0, 1, 0, &[0; 4]), 6),
    ];
    for opcode in 8..16 {
        cases.push(("reserved, tagged", tagged(0xc1, 0x40 | opcode, stag, to, b"no"), 6));
        cases.push(("reserved, untagged", untagged(0x41, 0x40 | opcode, 0, 0, 1, 0, b"no"), 6));
    }
    for (what, segment, code) in cases {
        let mut peer = ready(1);
        let segment = retarget(&segment, stag, &peer);
        peer.send_and_run(std::slice::from_ref(&segment));
        peer.expect_terminate(&of_segment(0x02, code, &segment), what);
        assert_eq!(peer.bytes(0, REGION), vec![0; REGION], "{what}: nothing is placed");
        assert_eq!(peer.statuses(), [(1000, WcStatus::WrFlushError)], "{what}");
    }
}

/// Converts a segment for the region of another run.
fn retarget(segment: &[u8], stag: u32, peer: &Served) -> Vec<u8> {
    if segment[0] & 0x80 == 0 {
        return segment.to_vec();
    }
    assert_eq!(segment[2..6], stag.to_be_bytes());
    tagged(segment[0], segment[1], peer.region.rkey(), peer.to(0), &segment[14..])
}

/// Each of DDP's own checks has its error code, and the Terminate contains the segment's length and header.
/// Nothing of the failing segment is placed.
// Proves DDP-222, MPA-297, RDMAP-001, RDMAP-062, RDMAP-069, RDMAP-072, RDMAP-114, RDMAP-121, RDMAP-124,
// RDMAP-157 to RDMAP-167, RDMAP-178 to RDMAP-180, RDMAP-182, RDMAP-194, RDMAP-238, RDMAP-332, RDMAP-345,
// RDMAP-350 to RDMAP-352.
#[test]
fn ddp_errors_are_passed_up_with_their_segment() {
    for (what, layer_type, code) in [
        ("unknown STag", 0x11, 0),
        ("no right", 0x11, 0),
        ("bounds", 0x11, 1),
        ("another domain", 0x11, 2),
        ("another stream", 0x11, 2),
        ("wrap", 0x11, 3),
        ("tagged DV", 0x11, 4),
        ("queue 3", 0x12, 1),
        ("no buffer", 0x12, 2),
        ("MSN again", 0x12, 3),
        ("MO", 0x12, 4),
        ("too long", 0x12, 5),
        ("untagged DV", 0x12, 6),
    ] {
        let mut peer = ready(2);
        let other_pd = peer.pair.context.alloc_pd().unwrap();
        let other_qp = peer.pd.create_qp(&QpInit::new(&peer.cq)).unwrap();
        let read_only = peer.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        let foreign = other_pd.reg_mr(64, ALL).unwrap();
        let bound =
            peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&other_qp), ..MrOptions::new(ALL) }).unwrap();
        let (stag, to) = (peer.region.rkey(), peer.to(0));
        let segment = match what {
            "unknown STag" => tagged(0xc1, 0x40, stag ^ 0x0100_0000, to, b"x"),
            "no right" => tagged(0xc1, 0x40, read_only.rkey(), read_only.addr(), b"x"),
            "bounds" => tagged(0xc1, 0x40, stag, to + REGION as u64, b"x"),
            "another domain" => tagged(0xc1, 0x40, foreign.rkey(), foreign.addr(), b"x"),
            "another stream" => tagged(0xc1, 0x40, bound.rkey(), bound.addr(), b"x"),
            "wrap" => tagged(0xc1, 0x40, stag, u64::MAX, b"xx"),
            "tagged DV" => tagged(0xc0, 0x40, stag, to, b"x"),
            "queue 3" => untagged(0x41, 0x43, 0, 3, 1, 0, b"x"),
            "no buffer" => send(3, b"x"),
            "MSN again" => send(1, b"x"),
            "MO" => untagged(0x41, 0x43, 0, 0, 2, 101, b"x"),
            "too long" => send(2, &[9; 101]),
            _ => untagged(0x43, 0x43, 0, 0, 2, 0, b"x"),
        };
        let mut said = vec![send(1, b"first")];
        if what == "no buffer" {
            said.push(send(2, b"second"));
        }
        said.push(segment.clone());
        peer.send_and_run(&said);
        peer.expect_terminate(&of_segment(layer_type, code, &segment), what);
        let mut expected = vec![0; REGION];
        expected[1000..1005].copy_from_slice(b"first");
        if what == "no buffer" {
            expected[1100..1106].copy_from_slice(b"second");
        }
        assert_eq!(peer.bytes(0, REGION), expected, "{what}");
        let last = match what {
            "no buffer" => WcStatus::Success,
            "too long" => WcStatus::LocalLengthError,
            _ => WcStatus::WrFlushError,
        };
        assert_eq!(peer.statuses(), [(1000, WcStatus::Success), (1001, last)], "{what}");
        for region in [&read_only, &foreign, &bound] {
            let mut bytes = [9; 64];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 64], "{what}");
        }
    }
}

/// The peer can invalidate only STags of its own stream. For other STags, the Terminate contains the reason,
/// and the STag stays valid.
// Proves RDMAP-147, RDMAP-183, RDMAP-192, RDMAP-249, RDMAP-251, RDMAP-335, RDMAP-336, RDMAP-356.
#[test]
fn only_what_is_the_streams_own_is_invalidated() {
    for control in [0x44, 0x46] {
        for (what, code) in [("unknown", 0), ("shared", 9), ("another stream", 9), ("another domain", 9)] {
            let mut peer = ready(1);
            let other_pd = peer.pair.context.alloc_pd().unwrap();
            let other_qp = peer.pd.create_qp(&QpInit::new(&peer.cq)).unwrap();
            let foreign = other_pd.reg_mr(64, ALL).unwrap();
            let bound =
                peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&other_qp), ..MrOptions::new(ALL) }).unwrap();
            let named = match what {
                "unknown" => peer.region.rkey() ^ 0x0100_0000,
                "shared" => peer.region.rkey(),
                "another stream" => bound.rkey(),
                _ => foreign.rkey(),
            };
            let segment = untagged(0x41, control, named, 0, 1, 0, b"hello");
            peer.send_and_run(std::slice::from_ref(&segment));
            peer.expect_terminate(&of_segment(0x01, code, &segment), what);
            assert!(peer.region.is_valid() && bound.is_valid() && foreign.is_valid(), "{what}");
            assert_eq!(peer.statuses(), [(1000, WcStatus::LocalProtectionError)], "{what}");
        }
    }
}
