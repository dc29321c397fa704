//! The Read Responses to the peer's Reads.

use iwarp::memory::Access;
use iwarp::mpa::Framer;
use iwarp::verbs::{ConnParam, MrOptions, QpInit, SendOp, SendRequest};

use super::peer::{
    REGION, of_segment, read_header, read_request, send, served, served_with, tagged, untagged,
};
use crate::common::ALL;
use crate::common::raw::fpdu;

/// The STag and the tagged offset of the peer's sink. The engine copies both values and does not interpret
/// them.
const SINK: (u32, u64) = (0xdead_beef, 0x7f00_0000_1003);

/// Responses are sent in the order of the requests. Each response is complete and names the sink of its
/// request; the test compares each segment byte for byte. The application does not notice the Reads.
// Proves RDMAP-020, RDMAP-074, RDMAP-112, RDMAP-120, RDMAP-122, RDMAP-123, RDMAP-125, RDMAP-126, RDMAP-127,
// RDMAP-129, RDMAP-206, RDMAP-208 to RDMAP-210, RDMAP-214, RDMAP-217, RDMAP-218, RDMAP-221 to RDMAP-225,
// RDMAP-230, RDMAP-232, RDMAP-292, RDMAP-400, RDMAP-431: the bytes of each segment, header and data, prove
// RDMAP-112 to RDMAP-129 and RDMAP-400. Our user makes no call and gets no completion, which proves
// RDMAP-020, RDMAP-209, RDMAP-210 and RDMAP-224. The order of the answers proves RDMAP-292 and RDMAP-431.
// Each request gets exactly the answer for which it asks, which proves the other rows.
#[test]
fn reads_are_answered_whole_and_in_order() {
    let mut peer = served();
    let data: Vec<u8> = (0..REGION).map(|n| (n % 251) as u8).collect();
    peer.region.write_at(0, &data).unwrap();
    peer.cq.req_notify(false).unwrap();
    let stag = peer.region.rkey();
    // The four Reads: a long Read, a Read of one byte, a Read of no bytes from invalid memory, and a Read
    // that ends at the last byte of the region.
    let reads = [
        (SINK, 10_000, (stag, peer.to(5)), 5..10_005),
        ((SINK.0, 3), 1, (stag, peer.to(7)), 7..8),
        (SINK, 0, (u32::MAX, u64::MAX), 0..0),
        ((9, u64::MAX - 99), 50, (stag, peer.to(REGION - 50)), REGION - 50..REGION),
    ];
    let requests: Vec<_> = reads
        .iter()
        .zip(1..)
        .map(|((sink, size, source, _), msn)| read_request(msn, *sink, *size, *source))
        .collect();
    peer.send_and_run(&requests);
    let heard = peer.received(20_000);
    let mut rest = &heard[..];
    for (sink, size, _, range) in reads {
        let bytes = &data[range];
        let mut offset = 0;
        loop {
            let (segment, after) = rest.split_first().expect("a response for each request");
            let len = segment.len() - 14;
            let last = offset + len == size as usize;
            let ddp = if last { 0xc1 } else { 0x81 };
            assert_eq!(
                *segment,
                tagged(ddp, 0x42, sink.0, sink.1 + offset as u64, &bytes[offset..offset + len])
            );
            offset += len;
            rest = after;
            if last {
                break;
            }
        }
    }
    assert!(rest.is_empty());
    assert!(peer.done().is_empty() && peer.notified() == 0 && peer.ended().is_none());
    // The buffers of queue 1 are free again, and the message numbers continue.
    peer.send_and_run(&(5..13).map(|msn| read_request(msn, SINK, 1, (stag, peer.to(0)))).collect::<Vec<_>>());
    assert_eq!(peer.received(20_000).len(), 8);
}

/// A Read of more than one segment is one request. The answer has several segments: the last segment contains
/// the rest, and all segments before it are as long as MULPDU allows.
// Proves RDMAP-018.
#[test]
fn a_long_answer_is_cut_into_segments() {
    let mut peer = served();
    peer.send_and_run(&[read_request(1, SINK, 10_000, (peer.region.rkey(), peer.to(0)))]);
    let heard = peer.received(20_000);
    let lens: Vec<usize> = heard.iter().map(|segment| segment.len() - 14).collect();
    assert_eq!(lens, [1428, 1428, 1428, 1428, 1428, 1428, 1428, 4], "the ULPDUs of FPDUs of 1448 bytes");
    let last: Vec<bool> = heard.iter().map(|segment| segment[0] & 0x40 != 0).collect();
    assert_eq!(last, [false, false, false, false, false, false, false, true]);
}

/// The engine serves as many Reads at a time as were negotiated. One more Read has no buffer, and is not
/// parsed.
// Proves RDMAP-163, RDMAP-226, RDMAP-299, RDMAP-300, RDMAP-301, RDMAP-306, RDMAP-361, RDMAP-370.
#[test]
fn reads_beyond_ird_have_no_buffer() {
    for count in [2, 3] {
        let mut peer = served_with(ConnParam { responder_resources: 2, ..ConnParam::default() }, 0);
        assert_eq!(peer.depths, (8, 2));
        let source = (peer.region.rkey(), peer.to(0));
        let requests: Vec<_> = (1..=count).map(|msn| read_request(msn, SINK, 8, source)).collect();
        peer.send_and_run(&requests);
        if count == 2 {
            assert_eq!(peer.received(20_000).len(), 2);
        } else {
            peer.expect_terminate(&of_segment(0x12, 2, &requests[2]), "the third");
        }
    }
}

/// Each reason for refusing a Read has its code, and the Terminate contains the request. Other Reads are
/// answered, even at the last byte of the region.
// Proves RDMAP-075, RDMAP-114, RDMAP-121, RDMAP-128, RDMAP-142 to RDMAP-146, RDMAP-177, RDMAP-183, RDMAP-185,
// RDMAP-192, RDMAP-211, RDMAP-220, RDMAP-324, RDMAP-329, RDMAP-330, RDMAP-340 to RDMAP-345, RDMAP-350,
// RDMAP-403.
#[test]
fn a_refused_read_is_brought_back() {
    let len = REGION as u64;
    // The columns: name, offset into the region, size, error code. Some of the names stand for a fault of the
    // STag.
    for (what, at, size, code) in [
        ("unknown STag", 0, 1, Some(0)),
        ("below the base", u64::MAX, 1, Some(1)),
        ("behind the end", len, 1, Some(1)),
        ("over the end", len - 8, 9, Some(1)),
        ("no right", 0, 1, Some(2)),
        ("another domain", 0, 1, Some(3)),
        ("another stream", 0, 1, Some(3)),
        ("wrap", 0, 16, Some(4)),
        ("to the end", len - 8, 8, None),
    ] {
        let mut peer = served();
        let other_pd = peer.pair.context.alloc_pd().unwrap();
        let other_qp = peer.pd.create_qp(&QpInit::new(&peer.cq)).unwrap();
        let write_only = peer.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let foreign = other_pd.reg_mr(64, ALL).unwrap();
        let bound =
            peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&other_qp), ..MrOptions::new(ALL) }).unwrap();
        let source = match what {
            "unknown STag" => (peer.region.rkey() ^ 0x0100_0000, peer.to(0)),
            "no right" => (write_only.rkey(), write_only.addr()),
            "another domain" => (foreign.rkey(), foreign.addr()),
            "another stream" => (bound.rkey(), bound.addr()),
            "wrap" => (peer.region.rkey(), u64::MAX - 7),
            _ => (peer.region.rkey(), peer.region.addr().wrapping_add(at)),
        };
        let request = read_request(1, SINK, size, source);
        peer.send_and_run(std::slice::from_ref(&request));
        let Some(code) = code else {
            assert_eq!(peer.received(20_000), [tagged(0xc1, 0x42, SINK.0, SINK.1, &[0; 8])]);
            continue;
        };
        let mut payload = of_segment(0x01, code, &request);
        payload[2] = 0xe0;
        payload.extend(read_header(SINK, size, source));
        assert_eq!(payload.len(), 52);
        peer.expect_terminate(&payload, what);
    }
}

/// Malformed Read Requests end the stream with a Terminate.
// Proves RDMAP-111, RDMAP-193, RDMAP-328, RDMAP-337 to RDMAP-339, RDMAP-149, RDMAP-150, RDMAP-154.
#[test]
fn a_malformed_read_request_is_told() {
    let peer = served();
    let header = read_header(SINK, 8, (peer.region.rkey(), peer.to(0)));
    let long = [&header[..], &[0]].concat();
    for (what, request, layer_type, code) in [
        ("RV 3", untagged(0x41, 0xc1, 0, 1, 1, 0, &header), 0x02, 5),
        ("RV 2", untagged(0x41, 0x81, 0, 1, 1, 0, &header), 0x02, 5),
        ("queue 0", untagged(0x41, 0x41, 0, 0, 1, 0, &header), 0x02, 6),
        ("queue 2", untagged(0x41, 0x41, 0, 2, 1, 0, &header), 0x02, 6),
        ("queue 3", untagged(0x41, 0x41, 0, 3, 1, 0, &header), 0x12, 1),
        ("MSN behind", untagged(0x41, 0x41, 0, 1, 0, 0, &header), 0x12, 3),
        ("MO", untagged(0x41, 0x41, 0, 1, 1, 29, &header), 0x12, 4),
        ("DV", untagged(0x42, 0x41, 0, 1, 1, 0, &header), 0x12, 6),
        ("29 bytes", untagged(0x41, 0x41, 0, 1, 1, 0, &long), 0x12, 5),
        ("27 bytes", untagged(0x41, 0x41, 0, 1, 1, 0, &header[..27]), 0x02, 0xff),
    ] {
        let mut peer = served_with(ConnParam::default(), 1);
        peer.send_and_run(std::slice::from_ref(&request));
        peer.expect_terminate(&of_segment(layer_type, code, &request), what);
    }
}

/// A source is invalidated while the engine reads it. The Terminate contains exactly the range that was not
/// sent.
// Proves RDMAP-186 to RDMAP-189.
#[test]
fn a_source_revoked_midway_is_told_with_the_rest() {
    let mut peer = served();
    let region = peer.pd.reg_mr(8 << 20, ALL).unwrap();
    let source = (region.rkey(), region.addr() + 8);
    let size = region.len() as u32 - 8;
    let request = read_request(1, SINK, size, source);
    let framed = fpdu(&mut Framer::new(false, true), &request);
    peer.pair.send(&framed);
    assert!(peer.pair.until(1_000_000, |pair| pair.inbox.len() > 20_000));
    region.invalidate();
    let heard = peer.received(20_000);
    let (terminate, responses) = heard.split_last().unwrap();
    let sent: u32 = responses.iter().map(|response| response.len() as u32 - 14).sum();
    assert!(sent >= 20_000 - 1500 && sent < size, "{sent} bytes were sent");
    let mut payload = of_segment(0x01, 0, &request);
    payload[2] = 0xe0;
    let moved = u64::from(sent);
    payload.extend(read_header((SINK.0, SINK.1 + moved), size - sent, (source.0, source.1 + moved)));
    assert_eq!(*terminate, untagged(0x41, 0x47, 0, 2, 1, 0, &payload));
}

/// An STag stays valid for any number of Writes and Reads, until the peer invalidates it.
// Proves RDMAP-016, RDMAP-021, RDMAP-043, RDMAP-025.
#[test]
fn an_stag_lives_until_it_is_invalidated() {
    let mut peer = served_with(ConnParam::default(), 1);
    let lent = peer.pd.reg_mr_with(64, &MrOptions { qp: Some(&peer.qp), ..MrOptions::new(ALL) }).unwrap();
    let source = (lent.rkey(), lent.addr());
    let write = |byte: u8| tagged(0xc1, 0x40, source.0, source.1, &[byte]);
    peer.send_and_run(&[
        write(1),
        read_request(1, SINK, 1, source),
        write(2),
        read_request(2, SINK, 1, source),
    ]);
    // Reads are answered after all messages that arrived with them were handled.
    let heard = peer.received(20_000);
    assert!(heard.len() == 2 && heard.iter().all(|response| response[14] != 0), "{heard:?}");
    let last = read_request(3, SINK, 1, source);
    peer.send_and_run(&[untagged(0x41, 0x44, source.0, 0, 1, 0, b"thanks"), last.clone()]);
    let mut payload = of_segment(0x01, 0, &last);
    payload[2] = 0xe0;
    payload.extend(read_header(SINK, 1, source));
    peer.expect_terminate(&payload, "invalidated");
}

/// A Read behind a Write returns the written bytes. A Send behind a Read may be delivered before the answer
/// to the Read is sent.
// Proves RDMAP-282, RDMAP-283, RDMAP-289, RDMAP-290.
#[test]
fn a_read_sees_what_was_written_before_it() {
    let mut peer = served_with(ConnParam::default(), 1);
    let (stag, to) = (peer.region.rkey(), peer.to(0));
    let read = read_request(1, SINK, 4, (stag, to));
    peer.send_and_run(&[tagged(0xc1, 0x40, stag, to, b"new!"), read, send(1, b"later")]);
    assert_eq!(peer.received(20_000), [tagged(0xc1, 0x42, SINK.0, SINK.1, b"new!")]);
    assert_eq!(peer.done().len(), 1);
}

/// Answers to the peer and requests of our own user alternate, message by message, so that neither kind
/// starves the other.
#[test]
fn answers_and_requests_take_turns() {
    const EACH: usize = 8;
    let mut peer = served();
    let source = (peer.region.rkey(), peer.to(0));
    let asked: Vec<u8> = (1..=EACH as u32)
        .flat_map(|msn| fpdu(&mut Framer::new(false, true), &read_request(msn, SINK, 50_000, source)))
        .collect();
    peer.pair.send(&asked);
    assert!(peer.pair.until(1_000_000, |pair| !pair.inbox.is_empty()), "the first is being answered");
    for n in 0..EACH as u64 {
        peer.qp.post_send(&SendRequest::new(n, SendOp::Send, peer.region.sge(0, 50_000))).unwrap();
    }
    // `order` has an entry for the last segment of each message: whether the message is an answer.
    let heard = peer.received(20_000);
    let ends = heard.iter().filter(|segment| segment[0] & 0x40 != 0);
    let order: Vec<bool> = ends.map(|segment| segment[1] == 0x42).collect();
    assert_eq!(order.iter().filter(|is_answer| **is_answer).count(), EACH);
    assert_eq!(order.len(), 2 * EACH);
    // Between these two positions, messages of both kinds are waiting.
    let first_send = order.iter().position(|is_answer| !is_answer).unwrap();
    let last_answer = order.iter().rposition(|is_answer| *is_answer).unwrap();
    assert!(first_send + EACH <= last_answer, "{order:?}");
    assert!(order[first_send..=last_answer].windows(2).all(|two| two[0] != two[1]), "{order:?}");
}
