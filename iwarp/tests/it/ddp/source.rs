//! The segments that a data source sends (RFC 5041 sections 4, 5.2, 5.3), checked byte by byte at the peer.

use super::{ready_for, setup, tagged};
use crate::common::raw::{EMPTY_WRITE, fpdu, request};
use crate::common::served::{Served, Setup};
use crate::common::{Testbed, pattern};
use iwarp::engine::EngineConfig;
use iwarp::mpa::Framer;
use iwarp::verbs::{RemoteAddr, SendOp, SendRequest, Sge, VerbsError};

/// Maximum number of bytes of a segment's header and payload on this link, whose EMSS is 1448.
const MULPDU: usize = 1442;
const STAG: u32 = 0xDEAD_BEEF;
/// A tagged offset that is odd and needs more than 32 bits.
const TO: u64 = 0x0102_0304_0506_0709;

/// A received message: the header of its first segment, the sizes of its segments, and its payload.
struct Message {
    header: Vec<u8>,
    sizes: Vec<usize>,
    payload: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Returns the bytes of TO or MO in a header.
fn place(segment: &[u8]) -> u64 {
    if segment[0] & 0x80 != 0 {
        u64::from_be_bytes(segment[6..14].try_into().unwrap())
    } else {
        word(segment, 14).into()
    }
}

/// Joins segments into messages, and checks that the headers of a message's segments agree.
fn messages(segments: &[Vec<u8>]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut under_way: Option<Message> = None;
    for segment in segments {
        assert!(segment.len() <= MULPDU, "a segment of {} bytes", segment.len());
        assert_eq!(segment[0] & 0x3F, 1, "reserved bits are 0, the version is 1");
        let is_tagged = segment[0] & 0x80 != 0;
        let (header_len, place_at) = if is_tagged { (14, 6) } else { (18, 14) };
        let message = under_way.get_or_insert_with(|| Message {
            header: segment[..header_len].to_vec(),
            sizes: Vec::new(),
            payload: Vec::new(),
        });
        assert_eq!(segment[0] & 0xBF, message.header[0] & 0xBF);
        assert_eq!(segment[1..place_at], message.header[1..place_at], "one message, one header");
        assert_eq!(place(segment), place(&message.header).wrapping_add(message.payload.len() as u64));
        message.sizes.push(segment.len());
        message.payload.extend(&segment[header_len..]);
        if segment[0] & 0x40 != 0 {
            messages.extend(under_way.take());
        }
    }
    assert!(under_way.is_none(), "the last segment of a message says so");
    messages
}

/// Posts six requests of three kinds at once. Returns the data, the segments that the engine sends, and their
/// messages.
fn six_requests() -> (Vec<u8>, Vec<Vec<u8>>, Vec<Message>) {
    let mut peer = setup().ready();
    let data = pattern(1, 9000);
    peer.region.write_at(0, &data).unwrap();
    let write = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
    let read = SendOp::Read { remote: RemoteAddr { addr: TO, rkey: STAG } };
    for (wr_id, (op, len)) in
        [(write, 5000), (SendOp::Send, 9000), (SendOp::Send, 0), (write, 0), (read, 100), (SendOp::Send, 1)]
            .into_iter()
            .enumerate()
    {
        peer.qp.post_send(&SendRequest::new(wr_id as u64, op, peer.region.sge(0, len))).unwrap();
    }
    // `received` checks every byte: the length, header, payload, pad and CRC of each FPDU, and the sequence
    // of FPDUs.
    let heard = peer.received(100_000);
    let messages = messages(&heard);
    assert_eq!(messages.len(), 6);
    (data, heard, messages)
}

fn is_tagged(segment: &[u8]) -> bool {
    segment[0] & 0x80 != 0
}

fn is_last(segment: &[u8]) -> bool {
    segment[0] & 0x40 != 0
}

// Proves DDP-017, DDP-021, DDP-022, DDP-037, DDP-055, DDP-057, DDP-059, DDP-076, DDP-096, DDP-097, MPA-008,
// MPA-022, MPA-038: each FPDU has one segment. The segment begins with the header, and the payload fills the
// rest. The header has 14 bytes if T is set, else 18; the version is 1, and the reserved bits are 0.
#[test]
fn each_segment_is_a_header_and_payload() {
    let (data, heard, messages) = six_requests();
    assert_eq!(heard.len(), messages.iter().map(|message| message.sizes.len()).sum::<usize>());
    for segment in &heard {
        assert_eq!(segment[0] & 0x03, 1, "the version");
        assert_eq!(segment[0] & 0x3c, 0, "reserved bits");
        assert_eq!(is_tagged(segment), segment[1] == 0x40, "only Writes are tagged here");
        // The payload of a Send or Write has to equal the data from the segment's offset on, which proves the
        // length of the header.
        if segment[1] != 0x41 {
            let (header, from) =
                if is_tagged(segment) { (14, place(segment) - TO) } else { (18, place(segment)) };
            let payload = &segment[header..];
            assert!(*payload == data[from as usize..][..payload.len()]);
        }
    }
}

// Proves DDP-049, DDP-050, DDP-051, DDP-052, DDP-065, DDP-066, DDP-072, DDP-073, DDP-082, DDP-086, DDP-087,
// DDP-092, DDP-093, DDP-094, DDP-095, DDP-099, DDP-108, DDP-111, DDP-116, DDP-118, DDP-125, DDP-126: the
// segments of a message have the same control byte of RDMAP, and the same STag or queue and number. Each
// offset continues where the previous segment ended, and only the last segment has the last flag.
#[test]
fn the_segments_of_a_message_go_on_from_each_other() {
    let (data, heard, messages) = six_requests();
    let mut rest = &heard[..];
    for (message, (start, bytes)) in
        messages.iter().zip([(TO, 5000), (0, 9000), (0, 0), (TO, 0), (0, 28), (0, 1)])
    {
        let (segments, behind) = rest.split_at(message.sizes.len());
        rest = behind;
        let lasts: Vec<bool> = segments.iter().map(|segment| is_last(segment)).collect();
        assert!(lasts.iter().rev().skip(1).all(|last| !last) && lasts.ends_with(&[true]), "{lasts:?}");
        let same = if is_tagged(&segments[0]) { 1..6 } else { 1..14 };
        let mut at = 0;
        for segment in segments {
            assert_eq!(segment[same.clone()], segments[0][same.clone()]);
            assert_eq!(place(segment), start + at, "goes on where the last one ended");
            at += (segment.len() - if is_tagged(segment) { 14 } else { 18 }) as u64;
        }
        assert_eq!((at, message.payload.len()), (bytes, bytes as usize), "all of it");
        assert!(bytes == 28 || message.payload == data[..bytes as usize]);
        assert!(bytes > 0 || segments.len() == 1, "one of no bytes is one segment");
    }
    assert!(rest.is_empty());
}

// Proves DDP-070, DDP-074, DDP-075, DDP-089, DDP-090, DDP-124: messages are sent in the order posted. Tagged
// messages have the STag and the odd offset that were posted. Untagged messages have the numbers of their
// queue, from 1 on.
#[test]
fn messages_leave_in_order_and_numbered() {
    let (_, _, messages) = six_requests();
    for (at, opcode, qn, msn, len) in
        [(1, 0x43, 0, 1, 9000), (2, 0x43, 0, 2, 0), (4, 0x41, 1, 1, 28), (5, 0x43, 0, 3, 1)]
    {
        let Message { header, payload, .. } = &messages[at];
        assert_eq!((header[1], word(header, 6), word(header, 10)), (opcode, qn, msn), "message {at}");
        assert_eq!(payload.len(), len, "message {at}");
    }
    for (at, len) in [(0, 5000), (3, 0)] {
        let Message { header, payload, .. } = &messages[at];
        assert_eq!((header[1], payload.len()), (0x40, len));
        assert_eq!((word(header, 2), place(header)), (STAG, TO));
        assert_eq!(header[2..6], [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(header[6..14], [1, 2, 3, 4, 5, 6, 7, 9]);
    }
}

// Proves DDP-105, DDP-106, MPA-003, MPA-024, MPA-026, MPA-107: a message is cut into the smallest possible
// number of segments. Each segment except the last is as long as MULPDU allows: 1442 bytes if MSS is 1460 and
// timestamps take 12 bytes.
#[test]
fn messages_are_cut_by_mulpdu() {
    let (_, heard, messages) = six_requests();
    assert!(heard.iter().all(|segment| segment.len() <= MULPDU));
    assert_eq!(MULPDU, Framer::new(false, true).mulpdu(1460 - 12));
    assert_eq!(messages[0].sizes, [MULPDU, MULPDU, MULPDU, 5000 - 3 * 1428 + 14]);
    assert_eq!(messages[1].sizes, [[MULPDU; 6].as_slice(), &[9000 - 6 * 1424 + 18]].concat());
    assert_eq!((messages[2].sizes.as_slice(), messages[3].sizes.as_slice()), (&[18][..], &[14][..]));
}

// Proves MPA-111: if less than 128 bytes are left in a TCP segment, no FPDU is cut to fit into these bytes.
#[test]
fn no_room_is_too_small_to_be_left() {
    for markers in [false, true] {
        for first in (1100..1442).step_by(6) {
            let mut peer = ready_for(asking(markers));
            let write = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
            for (wr_id, len) in [first, 4000].into_iter().enumerate() {
                peer.qp.post_send(&SendRequest::new(wr_id as u64, write, peer.region.sge(0, len))).unwrap();
            }
            let heard = peer.received(100_000);
            assert_eq!(heard.iter().filter(|segment| is_last(segment)).count(), 2);
            for segment in heard.iter().filter(|segment| !is_last(segment)) {
                assert!(segment.len() >= 128, "{} bytes behind {first}", segment.len());
            }
        }
    }
}

// Proves MPA-004, MPA-025, MPA-112, MPA-118, MPA-119, MPA-265, MPA-294: every TCP segment contains complete
// FPDUs, for bulk data, small messages and sizes just above half a segment, with markers and without.
#[test]
fn tcp_segments_hold_whole_fpdus() {
    for markers in [false, true] {
        let mut peer = ready_for(asking(markers));
        peer.pair.segments.clear();
        for (wr_id, len) in [40_000, 100, 100, 100, 760, 760, 1, 0, 3000].into_iter().enumerate() {
            let op = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
            peer.qp.post_send(&SendRequest::new(wr_id as u64, op, peer.region.sge(0, len))).unwrap();
        }
        peer.pair.until(1_000_000, |_| false);
        let bytes = std::mem::take(&mut peer.pair.inbox);
        // The end of each FPDU is computed from the lengths. A marker in front of an FPDU belongs to the
        // FPDU.
        let (mut at, mut ends) = (0, vec![0]);
        while at < bytes.len() {
            let header = if markers && at % 512 == 0 { at + 4 } else { at };
            let len = usize::from(u16::from_be_bytes([bytes[header], bytes[header + 1]]));
            let framer = Framer::at(at as u64, markers, true);
            at += framer.wire_len(len);
            ends.push(at);
        }
        let mut end = 0;
        for size in &peer.pair.segments {
            end += size;
            assert!(ends.contains(&end), "a segment ends at {end} in an FPDU, markers {markers}");
        }
        assert_eq!((at, end), (bytes.len(), bytes.len()));
        assert!(peer.pair.segments.len() < ends.len() - 1, "small ones share a segment");
    }
}

// Proves DDP-027, DDP-029, MPA-009, MPA-030, MPA-108, MPA-121, MPA-266, MPA-267, MPA-269, MPA-288, MPA-306:
// when the path MTU drops, FPDUs that TCP has already accepted arrive unchanged in more segments, and each
// later FPDU fits into a segment. The test runs with markers and without.
#[test]
fn mulpdu_follows_the_path() {
    // `wide` is the MULPDU for an EMSS of 1448, and `narrow` for an EMSS of 1000 - 20 - 32.
    for (markers, wide, narrow) in [(false, MULPDU, 942), (true, 1430, 934)] {
        let mut peer = ready_for(asking(markers));
        let len = 3 * (wide - 14) - 100;
        let data = pattern(1, len);
        peer.region.write_at(0, &data).unwrap();
        let write = |peer: &mut Served| {
            let op = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
            peer.qp.post_send(&SendRequest::new(1, op, peer.region.sge(0, len))).unwrap();
            peer.pair.segments.clear();
            let heard = peer.received(2_000_000);
            let payload: Vec<u8> = heard.iter().flat_map(|ulpdu| &ulpdu[14..]).copied().collect();
            assert!(payload == data, "markers {markers}");
            (heard.iter().map(Vec::len).collect::<Vec<_>>(), std::mem::take(&mut peer.pair.segments))
        };
        // With markers, all FPDUs except the last have the same length on the wire. The lengths of their
        // ULPDUs differ by at most four bytes, because an FPDU may have one more marker.
        let all_but_the_last_have = |most: usize, (ulpdus, segments): (Vec<usize>, Vec<usize>)| {
            let sizes = if markers { most - 4..=most } else { most..=most };
            let full = &ulpdus[..ulpdus.len() - 1];
            assert!(full.iter().all(|size| sizes.contains(size)), "markers {markers}: {ulpdus:?}");
            assert!(segments[..full.len()].iter().all(|&bytes| bytes == segments[0]), "{segments:?}");
            (ulpdus.len(), segments.len())
        };
        assert_eq!(all_but_the_last_have(wide, write(&mut peer)), (3, 3));
        peer.pair.path_mtu = Some(1000);
        let (ulpdus, segments) = write(&mut peer);
        assert_eq!((ulpdus.len(), segments.len()), (3, 6), "each in two parts");
        assert_eq!(all_but_the_last_have(narrow, write(&mut peer)), (5, 5));
    }
}

// Proves DDP-107: a request of 2^32 bytes is refused because of its length. A request that is one byte
// shorter is not refused for this reason.
#[test]
fn a_message_has_less_than_2_to_the_32_bytes() {
    let mut peer = setup().ready();
    let long = Sge { length: u32::MAX, ..peer.region.sge(0, 1) };
    let write = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
    for op in [SendOp::Send, write] {
        let mut request = SendRequest::new(1, op, long);
        let refused = peer.qp.post_send(&request);
        assert!(matches!(refused, Err(VerbsError::LocalProtection(_))), "no memory is so large: {refused:?}");
        request.sg_list.push(peer.region.sge(0, 1));
        let refused = peer.qp.post_send(&request);
        assert!(
            matches!(refused, Err(VerbsError::TooLong { got: 0x1_0000_0000, max: 0xffff_ffff })),
            "{refused:?}"
        );
    }
    assert!(peer.received(10_000).is_empty());
}

// Proves DDP-004, DDP-104: registering memory and posting receives causes no frame to be sent.
#[test]
fn local_requests_send_nothing() {
    let mut peer = setup().ready();
    for n in 0..10 {
        peer.post_recv(100 * n, 100);
    }
    assert!(peer.received(100_000).is_empty());
}

/// Returns a Request that asks for markers (the M bit) if `markers` is set.
fn asking(markers: bool) -> Vec<u8> {
    let mut request = request(true);
    request[16] |= if markers { 0x80 } else { 0 };
    request
}

// Proves MPA-018, MPA-058, MPA-065, MPA-309, MPA-007: markers are sent if the peer asks for markers, and not
// otherwise.
#[test]
fn markers_are_sent_to_peers_that_ask_for_them() {
    for markers in [false, true] {
        let mut peer = ready_for(asking(markers));
        let data = pattern(2, 1000);
        peer.region.write_at(0, &data).unwrap();
        let op = SendOp::Write { remote: RemoteAddr { addr: TO, rkey: STAG } };
        for wr_id in 0..2 {
            peer.qp.post_send(&SendRequest::new(wr_id, op, peer.region.sge(0, 1000))).unwrap();
        }
        peer.pair.until(100_000, |_| false);
        let mut framer = Framer::new(markers, true);
        let ulpdu = tagged(0xC1, STAG, TO, &data);
        let expected = [fpdu(&mut framer, &ulpdu), fpdu(&mut framer, &ulpdu)].concat();
        assert_eq!(expected.len() > 2048, markers);
        assert!(peer.pair.inbox == expected, "markers {markers}");
    }
}

// Proves MPA-021, MPA-077, MPA-078, MPA-081, MPA-082, MPA-085, MPA-088, MPA-298: every FPDU has a CRC, unless
// the administrator has switched CRCs off and the peer does not ask for CRCs.
#[test]
fn crc_is_used_unless_both_say_no() {
    for (ours, theirs, used) in
        [(None, false, true), (None, true, true), (Some(false), true, true), (Some(false), false, false)]
    {
        let configure = |config: &mut EngineConfig| config.crc = ours.unwrap_or(config.crc);
        let mut peer =
            Setup { pair: Testbed::new().configure(configure).peer(), request: request(theirs), ..setup() }
                .accepted();
        assert_eq!(peer.reply[16] & 0x40 != 0, used, "what the Reply declares");
        peer.send(&EMPTY_WRITE);
        peer.established();
        peer.qp.post_send(&SendRequest::new(1, SendOp::Send, peer.region.sge(0, 42 - 18))).unwrap();
        peer.pair.until(100_000, |_| false);
        let said = std::mem::take(&mut peer.pair.inbox);
        assert_eq!(said.len(), 48, "the field is there in any case");
        let whole = fpdu(&mut Framer::new(false, true), &said[2..44]);
        assert_eq!(said == whole, used);
        // The last FPDU equals the first except for a wrong CRC, which is an error if CRCs are used.
        let mut bad = fpdu(&mut peer.framer, &EMPTY_WRITE);
        *bad.last_mut().unwrap() ^= 1;
        peer.pair.send(&bad);
        peer.pair.until(100_000, |_| false);
        assert_eq!(peer.qp.error().map(|error| (error.layer, error.code)), used.then_some((2, 2)));
    }
}
