//! The answers to a peer's Atomic Requests, byte for byte, for valid and for wrong requests.

use crate::common::ext::{
    ADD_ONE, ALL, ATOMIC, atomic_request, atomic_response, cas, piece, read_request, receiving, set_word,
    tagged, untagged, word,
};
use crate::common::served::{Served, Setup};
use iwarp::memory::Stag;
use iwarp::rdmap::AtomicRequest;
use iwarp::verbs::{
    AtomicOp, Extensions, MemoryRegion, ProtectionDomain, QpInit, QueuePair, StreamError, WcOpcode,
};

fn ask(id: u32, region: &MemoryRegion, at: u64, op: AtomicOp) -> AtomicRequest {
    AtomicRequest { id, stag: Stag(region.rkey()), to: region.addr() + at, op }
}

/// Returns the control word of a Terminate that `segment` caused, followed by the segment's length and DDP
/// header.
fn terminate_of(codes: [u8; 2], segment: &[u8]) -> Vec<u8> {
    let header = if segment[0] & 0x80 == 0 { 18 } else { 14 };
    [&codes[..], &[0xc0, 0, 0, segment.len() as u8], &segment[..header]].concat()
}

/// Atomic Requests are answered on queue 3, and in the order of arrival also among Read Requests. The MSNs of
/// queue 3 count only atomics. Each answer has the identifier of its request.
// Proves EXT-005, EXT-019, EXT-021, EXT-025, EXT-060, EXT-061, EXT-070, EXT-090, EXT-093 to EXT-097, EXT-102,
// EXT-113, EXT-168, EXT-175: three requests get three answers, each with the 12 bytes of the response header,
// byte for byte.
#[test]
fn answers_are_on_queue_3_in_the_order_asked() {
    let mut peer = Served::new();
    let words = peer.reg_mr(16, ALL);
    set_word(&words, 0, 5);
    let add = AtomicOp::FetchAdd { add: 3, mask: 0 };
    let ids = [0xCAFE_BABE, 0, u32::MAX];
    let mut requests: Vec<_> = (0..3).map(|n| ask(ids[n as usize], &words, 0, add)).collect();
    requests[2].op = AtomicOp::Swap { swap: 1 };
    // MSN 2 belongs to a Read Request.
    peer.send_all(&[
        &atomic_request(1, &requests[0]),
        &read_request(2, 8, words.rkey(), words.addr() + 8),
        &atomic_request(3, &requests[1]),
        &atomic_request(4, &requests[2]),
    ]);
    assert_eq!(peer.receive(), atomic_response(1, ids[0], 5));
    assert_eq!(peer.receive(), tagged(0x42, 9, 0, &[0; 8]));
    assert_eq!(peer.receive(), atomic_response(2, ids[1], 8));
    assert_eq!(peer.receive(), atomic_response(3, ids[2], 11));
    assert_eq!(word(&words, 0), 1);
    peer.run(1000);
    assert!(peer.pair.inbox.is_empty() && peer.cq.poll_one().is_none(), "and nothing else");
}

/// Reserved bits, the header's Invalidate STag and fields that an operation does not use may have any value.
// Proves EXT-020, EXT-065, EXT-077, EXT-079, EXT-081, EXT-169.
#[test]
fn unused_fields_of_an_atomic_request_are_ignored() {
    let mut peer = Served::new();
    let words = peer.reg_mr(8, ATOMIC);
    let mut msn = 0;
    let mut expected = 0;
    for op in [ADD_ONE, AtomicOp::Swap { swap: 77 }, ADD_ONE] {
        msn += 1;
        let mut segment = atomic_request(msn, &ask(msn, &words, 0, op));
        segment[2..6].fill(0xA5);
        segment[18..21].fill(0xFF);
        segment[21] |= 0xF0;
        segment[18 + 36..].fill(0x5A);
        if matches!(op, AtomicOp::Swap { .. }) {
            segment[18 + 28..18 + 36].fill(0);
        }
        peer.send_all(&[&segment]);
        assert_eq!(peer.receive(), atomic_response(msn, msn, expected));
        expected = op.apply(expected);
        assert_eq!(word(&words, 0), expected);
    }
    assert_eq!(expected, 78);
}

/// A request may arrive in several segments, and is executed when the last segment has arrived.
// Proves EXT-021, EXT-107, EXT-157.
#[test]
fn a_request_may_come_in_pieces() {
    let mut peer = Served::new();
    let words = peer.reg_mr(8, ATOMIC);
    for (n, step) in [42, 26, 1].into_iter().enumerate() {
        let msn = n as u32 + 1;
        let payload = ask(msn, &words, 0, ADD_ONE).to_bytes();
        for (k, part) in payload.chunks(step).enumerate() {
            let mo = k * step;
            let last = mo + part.len() == payload.len();
            peer.run(1000);
            assert_eq!(word(&words, 0), n as u64, "before the end of the request");
            peer.send_all(&[&piece(0x4a, 1, msn, mo as u32, last, part)]);
        }
        assert_eq!(peer.receive(), atomic_response(msn, msn, n as u64));
    }
}

/// Queue 1 has as many buffers for atomics as for Reads: IRD of each. Requests of one kind do not use the
/// buffers of the other kind.
// Proves EXT-083, EXT-098, EXT-191.
#[test]
fn queue_1_holds_ird_reads_and_as_many_atomics() {
    let mut peer = Served::new();
    let words = peer.reg_mr(16, ALL);
    let read = |peer: &mut Served, msn| {
        read_request(msn, 8, words.rkey(), words.addr() + peer.pair.inbox.len() as u64)
    };
    for round in 0..3 {
        // All requests arrive in one TCP segment, so no request is answered before the last request has
        // arrived.
        let segments: Vec<_> = (1..=16)
            .map(|n| {
                let msn = round * 16 + n;
                if n % 2 == 0 {
                    atomic_request(msn, &ask(msn, &words, 0, ADD_ONE))
                } else {
                    read(&mut peer, msn)
                }
            })
            .collect();
        peer.send_all(&segments.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for n in 1..=16 {
            let heard = peer.receive();
            assert_eq!(heard[1], if n % 2 == 0 { 0x4b } else { 0x42 });
        }
    }
    assert_eq!(word(&words, 0), 24);

    for atomics in [true, false] {
        let mut peer = Served::new();
        let words = peer.reg_mr(16, ALL);
        let segments: Vec<_> = (1..=9)
            .map(|msn| {
                if atomics {
                    atomic_request(msn, &ask(msn, &words, 0, ADD_ONE))
                } else {
                    read_request(msn, 8, words.rkey(), words.addr())
                }
            })
            .collect();
        peer.send_all(&segments.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(peer.receive_terminate(), terminate_of([0x12, 0x02], &segments[8]), "atomics: {atomics}");
    }
}

/// Each wrong request causes the right Terminate, and the word does not change. Of an Atomic Request, the
/// Terminate contains only the DDP header.
// Proves EXT-009, EXT-014, EXT-026, EXT-043, EXT-069, EXT-086, EXT-145, EXT-146, EXT-148 to EXT-152,
// EXT-154, EXT-168, EXT-180, EXT-185, EXT-190, EXT-202, EXT-203.
#[test]
fn every_wrong_request_has_its_terminate() {
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let byte = |at: usize, value: u8| -> Change { Box::new(move |segment| segment[at] = value) };
    let mut cases: Vec<(String, [u8; 2], Change)> = Vec::new();
    let mut case = |name: &str, codes, change| cases.push((name.to_owned(), codes, change));
    case("DDP version 2", [0x12, 0x06], byte(0, 0x42));
    for control in [0x0a, 0x8a, 0xca] {
        case("RDMAP version", [0x02, 0x05], byte(1, control));
    }
    for opcode in 0xc..=0xf {
        case(
            "no opcode",
            [0x02, 0x06],
            Box::new(move |segment: &mut Vec<u8>| {
                segment[1] = 0x40 | opcode;
                segment.truncate(18 + 28);
            }),
        );
    }
    case("on queue 2", [0x02, 0x06], byte(9, 2));
    case("on queue 4", [0x12, 0x01], byte(9, 4));
    case("on queue 3", [0x12, 0x02], byte(9, 3));
    case("MSN 0", [0x12, 0x03], byte(13, 0));
    case("MSN far ahead", [0x12, 0x02], byte(13, 200));
    case("MSN 2, before 1", [0x12, 0x03], byte(13, 2));
    case("MO behind the buffer", [0x12, 0x04], byte(14, 1));
    case("MO leaves a gap", [0x12, 0x04], byte(17, 4));
    for len in [0, 1, 51, 53, 60] {
        case(&format!("{len} bytes"), [0x02, 0xFF], Box::new(move |segment| segment.resize(18 + len, 0)));
    }
    case("65 bytes", [0x12, 0x05], Box::new(|segment| segment.resize(18 + 65, 0)));
    for aopcode in 3..=15 {
        case("AOpCode", [0x02, 0x06], byte(18 + 3, aopcode));
    }
    case("STag", [0x01, 0x00], Box::new(|segment| segment[18 + 11] ^= 1));
    case("bounds", [0x01, 0x01], Box::new(|segment| segment[18 + 17] ^= 1));
    case("wrap", [0x01, 0x04], Box::new(|segment| segment[18 + 12..18 + 20].fill(0xFF)));
    for offset in 1..8 {
        case("alignment", [0x02, 0x07], Box::new(move |segment| segment[18 + 19] += offset));
    }
    for (name, codes, change) in &cases {
        for op in [cas(0, 1), ADD_ONE] {
            let mut peer = Served::new();
            let words = peer.reg_mr(32, ATOMIC);
            let mut segment = atomic_request(1, &ask(1, &words, 8, op));
            change(&mut segment);
            peer.send_all(&[&segment]);
            assert_eq!(peer.receive_terminate(), terminate_of(*codes, &segment), "{name}, {op:?}");
            assert!((0..32).step_by(8).all(|at| word(&words, at) == 0), "{name}");
            let [first, code] = *codes;
            let found = StreamError { layer: first >> 4, etype: first & 0xF, code, from_peer: false };
            assert_eq!(peer.qp.error(), Some(found), "{name}");
        }
    }
}

/// The opcodes of the extensions are refused in tagged messages, and on a queue that is not their own.
// Proves EXT-015 to EXT-019, EXT-150.
#[test]
fn opcodes_belong_to_one_queue() {
    let wrong = [
        tagged(0x48, 0, 0, &[]),
        tagged(0x49, 0, 0, &[]),
        tagged(0x4a, 0, 0, &[]),
        tagged(0x4b, 0, 0, &[]),
        untagged(0x48, 1, 1, &[0; 8]),
        untagged(0x49, 1, 1, &[0; 8]),
        untagged(0x4a, 0, 1, &[0; 52]),
        untagged(0x4b, 0, 1, &[0; 12]),
        untagged(0x4b, 1, 1, &[0; 12]),
        untagged(0x43, 1, 1, &[0; 8]),
    ];
    for segment in wrong {
        let mut peer = receiving(&[100], Setup::default());
        peer.send_all(&[&segment]);
        assert_eq!(peer.receive_terminate(), terminate_of([0x02, 0x06], &segment));
    }
}

/// The STag is invalidated after the request has arrived and before it is executed. The Terminate contains
/// only the DDP header of the request.
// Proves EXT-148, EXT-155.
#[test]
fn a_word_revoked_before_its_turn_is_not_touched() {
    let mut peer = receiving(&[8], Setup::default());
    let words = peer.own_region(8, ATOMIC);
    let request = atomic_request(1, &ask(1, &words, 0, ADD_ONE));
    let mut invalidate = untagged(0x44, 0, 1, &[]);
    invalidate[2..6].copy_from_slice(&words.rkey().to_be_bytes());
    // Both messages arrive in one TCP segment: the engine handles the Send before it answers the atomic.
    peer.send_all(&[&request, &invalidate]);
    assert_eq!(peer.receive_terminate(), terminate_of([0x01, 0x00], &request));
    assert_eq!(word(&words, 0), 0);
}

/// Atomics behind a long Read Response are executed after the Response has been sent, one at a time.
// Proves EXT-110, EXT-112, EXT-137, EXT-140, EXT-141, EXT-144, EXT-201.
#[test]
fn an_atomic_is_carried_out_in_its_turn() {
    const LONG: u32 = 3_000_000;
    let mut peer = receiving(&[8], Setup::default());
    let words = peer.reg_mr(8, ATOMIC);
    let long = peer.reg_mr(LONG as usize, ALL);
    peer.send_all(&[
        &atomic_request(1, &ask(1, &words, 0, ADD_ONE)),
        &read_request(2, LONG, long.rkey(), long.addr()),
        &atomic_request(3, &ask(3, &words, 0, ADD_ONE)),
        &atomic_request(4, &ask(4, &words, 0, ADD_ONE)),
        &untagged(0x48, 0, 1, &[1; 8]),
    ]);
    // The Immediate Data completes when only the first atomic has been executed.
    assert_eq!((peer.wc().opcode, word(&words, 0)), (WcOpcode::RecvImmediate, 1));
    let mut waited = 0;
    assert!(peer.pair.until(10_000_000, |pair| {
        let fetched = pair.engine.counters().tx_fetched_bytes;
        // The data source fetches 12 bytes for the first answer, and then the bytes of the Read Response.
        let expected = if fetched < 12 + u64::from(LONG) { u64::from(fetched > 0) } else { 3 };
        assert!(word(&words, 0) <= expected, "{fetched} bytes fetched");
        waited += u32::from(fetched > 12 && expected == 1);
        word(&words, 0) == 3
    }));
    assert!(waited > 3, "the Read Response took {waited} polls");
    assert_eq!(peer.receive(), atomic_response(1, 1, 0));
    let mut heard = 0;
    while heard < LONG as usize {
        let segment = peer.receive();
        assert_eq!(segment[1], 0x42);
        heard += segment.len() - 14;
    }
    assert_eq!([peer.receive(), peer.receive()], [atomic_response(2, 3, 1), atomic_response(3, 4, 2)]);
}

/// Without extensions, queue 3 is not open, and the opcodes of atomics and Immediate Data are unknown.
// Proves EXT-027, EXT-168.
#[test]
fn a_stream_without_atomics_has_three_queues() {
    let plain = |init: QpInit<'_>, pd: &ProtectionDomain| -> QueuePair {
        pd.create_qp(&QpInit { extensions: Extensions::empty(), ..init }).unwrap()
    };
    for (segment, codes) in [
        (atomic_response(1, 1, 1), [0x12, 0x01]),
        (untagged(0x4a, 1, 1, &[0; 52]), [0x02, 0x06]),
        (untagged(0x48, 0, 1, &[0; 8]), [0x02, 0x06]),
        (untagged(0x49, 0, 1, &[0; 8]), [0x02, 0x06]),
    ] {
        let mut peer = receiving(&[8], Setup { make_qp: &plain, ..Setup::default() });
        peer.send_all(&[&segment]);
        assert_eq!(peer.receive_terminate(), terminate_of(codes, &segment));
    }
}

/// Startup is the same with all extensions and with none. No message of the extensions is sent before it is
/// posted.
// Proves EXT-028, EXT-162.
#[test]
fn nothing_is_negotiated_on_the_wire() {
    let replies = [Extensions::empty(), Extensions::all()].map(|extensions| {
        let made =
            |init: QpInit<'_>, pd: &ProtectionDomain| pd.create_qp(&QpInit { extensions, ..init }).unwrap();
        let mut peer = Setup { make_qp: &made, ..Setup::default() }.ready();
        peer.run(1_000_000);
        assert!(peer.pair.inbox.is_empty(), "{extensions:?}");
        peer.reply
    });
    assert_eq!(replies[0], replies[1]);
}
