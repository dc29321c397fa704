//! Tests against the vectors of RFC 5044, RFC 3720, RFC 5041, RFC 5040 and RFC 7306, and against values
//! computed from the layouts in these RFCs.

use super::atomic::{AtomicRequest, CMP_SWAP, decode_response};
use super::describe::hex;
use super::*;

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn framed(position: u64, markers: bool, crc: bool, ulpdus: &[&[u8]]) -> String {
    let mut framer = Framer { markers, crc, position };
    hex(&ulpdus.iter().flat_map(|ulpdu| framer.frame(ulpdu, Fault::default())).collect::<Vec<_>>())
}

#[test]
fn the_crc_is_that_of_rfc_3720() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    assert_eq!(crc32c(&(0..32).rev().collect::<Vec<u8>>()), 0x113f_db5c);
    assert_eq!(crc32c(b"hello"), 0x9a71_bb4c, "the example of TARGET.md");
    assert_eq!(crc32c(b"abcd"), 0x92c8_0a31, "the example of TARGET.md");
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn fpdus_are_those_of_rfc_5044() {
    let send = |msn| Segment::send(msn, &[0; 24]).bytes;
    assert_eq!(
        framed(0, true, true, &[&send(1)]),
        "00000000002a4143000000000000000000000001000000000000000000000000000000000000000000000000000000005\
         2239983"
            .replace(' ', "")
    );
    assert_eq!(
        framed(492, true, true, &[&send(2)]),
        "002a4143000000000000000000000002000000000000001400000000000000000000000000000000000000000000000084925898"
    );
    assert_eq!(framed(0, false, true, &[b"hello"]), "000568656c6c6f009fd73e48");
    assert_eq!(framed(504, true, true, &[b"tiny!"]), "000574696e79210000000008a5de1ceb");
    assert_eq!(
        framed(508, true, true, &[b"abcdefgh"]),
        "0008616200000004636465666768 0000a8512347".replace(' ', "")
    );
    assert_eq!(
        framed(500, true, true, &[b"0123", b"0123"]),
        "00043031323300001a2a453a0000000000043031323300 00cd2d0d9d".replace(' ', "")
    );
    assert_eq!(framed(508, true, true, &[&[1]]), "0001010000000004446281cc");
    assert_eq!(framed(0, false, false, &[b"abc"]), "0003616263000000efbeadde");
}

#[test]
fn what_is_framed_is_found_again_at_every_phase_and_split() {
    for markers in [false, true] {
        for start in (0..512).step_by(4) {
            let mut framer = Framer { markers, crc: true, position: start };
            let mut deframer = Deframer::new(markers, true).starting_at(start);
            let ulpdus: Vec<Vec<u8>> = [1, 2, 5, 18, 600, 1442].map(|n| vec![n as u8; n]).to_vec();
            let mut found = Vec::new();
            for ulpdu in &ulpdus {
                for piece in framer.frame(ulpdu, Fault::default()).chunks(7) {
                    deframer.push(piece);
                    found.extend(deframer.next_fpdu());
                }
            }
            assert!(deframer.is_empty());
            assert!(found.iter().all(|fpdu| fpdu.complaints.is_empty()), "{start}: {found:?}");
            assert_eq!(found.into_iter().map(|fpdu| fpdu.ulpdu).collect::<Vec<_>>(), ulpdus);
        }
    }
}

#[test]
fn faults_are_noticed() {
    let complaints = |fault: Fault, markers: bool| {
        let mut framer = Framer::new(markers, true);
        let mut deframer = Deframer::new(markers, true);
        deframer.push(&framer.frame(b"hello", fault));
        deframer.next_fpdu().unwrap().complaints.len()
    };
    assert_eq!(complaints(Fault::default(), true), 0);
    assert_eq!(complaints(Fault { crc_xor: 1, ..Fault::default() }, false), 1);
    assert_eq!(complaints(Fault { pad: 1, ..Fault::default() }, false), 1);
    assert_eq!(complaints(Fault { marker_xor: 4, ..Fault::default() }, true), 1);
    let longer = Framer::new(false, true).frame(b"hello", Fault { length: Some(50), ..Fault::default() });
    assert_eq!(hex(&longer[..2]), "0032");
}

#[test]
fn startup_frames_are_those_of_rfc_5044_and_6581() {
    let request = Startup::plain(REQUEST_KEY, flag::M | flag::C, b"hi");
    assert_eq!(hex(&request.encode()), "4d504120494420526571204672616d65c00100026869");
    let reply = Startup::plain(REPLY_KEY, flag::C, b"");
    assert_eq!(hex(&reply.encode()), "4d504120494420526570204672616d6540010000");
    let depths = Depths { peer_to_peer: true, by_write: true, by_read: true, ird: 1, ord: 1, by_send: false };
    let enhanced = Startup::enhanced(REQUEST_KEY, 0, depths, b"");
    assert_eq!(hex(&enhanced.encode()[16..]), "100200048001c001");
    let unsaid = Startup::enhanced(REQUEST_KEY, flag::C, Depths::new(0x3fff, 0x3fff), b"hi");
    assert_eq!(hex(&unsaid.encode()[16..]), "500200063fff3fff6869");
    let (back, length) = Startup::decode(&unsaid.encode()).unwrap();
    assert_eq!((back.ulp_data(), length), (&b"hi"[..], 26));
    assert_eq!(back.depths(), Some(Depths::new(0x3fff, 0x3fff)));
    assert!(Startup::decode(&unsaid.encode()[..25]).is_none());
}

#[test]
fn all_depths_decode_to_what_encodes_to_them() {
    for word in (0..=u32::MAX).step_by(65_521) {
        assert_eq!(Depths::decode(word.to_be_bytes()).encode(), word.to_be_bytes());
    }
}

#[test]
fn segments_are_those_of_rfc_5040() {
    let read =
        ReadRequest { sink_stag: 0x101, sink_to: 0x1000, size: 0x800, source_stag: 0x202, source_to: 0x2000 };
    let vectors = [
        (Segment::write(0x1122_3344, 0x1000, b"ABCD"), "c14011223344000000000000100041424344"),
        (Segment::write(0, 0, b""), "c140000000000000000000000000"),
        (
            Segment::read_request(1, &read),
            "41410000000000000001000000010000000000000101000000000000100000000800000002020000000000002000",
        ),
        (
            Segment::tagged(opcode::READ_RESPONSE, 0x101, 0x1000, b"DATA"),
            "c14200000101000000000000100044415441",
        ),
        (Segment::send(1, b"hello"), "41430000000000000000000000010000000068656c6c6f"),
        (
            Segment::untagged(opcode::SEND_INVALIDATE, 0, 2, b"hello").invalidating(0x1122_3344),
            "41441122334400000000000000020000000068656c6c6f",
        ),
        (Segment::terminate(&[0; 4]), "41470000000000000002000000010000000000000000"),
    ];
    for (segment, expected) in vectors {
        assert_eq!(hex(&segment.bytes), expected);
    }
    assert_eq!(Segment::read_request(1, &read).as_read_request(), Some(read));
}

#[test]
fn fields_are_read_where_they_are_written() {
    let tagged = Segment { bytes: bytes("81 42 01020304 0102030405060708 ff") };
    assert_eq!((tagged.stag(), tagged.to()), (0x0102_0304, 0x0102_0304_0506_0708));
    assert!(tagged.is_tagged() && !tagged.is_last() && tagged.payload() == [0xff]);
    let untagged = Segment { bytes: bytes("41 44 0a0b0c0d 00000001 00000002 00000003 ee") };
    assert_eq!((untagged.qn(), untagged.msn(), untagged.mo()), (1, 2, 3));
    assert_eq!((untagged.stag(), untagged.payload()), (0x0a0b_0c0d, &[0xee][..]));
    assert!(!Segment { bytes: bytes("4144") }.is_whole());
}

#[test]
fn a_terminate_is_read_in_both_bit_orders() {
    let write = Segment {
        bytes: bytes("4147000000000000000200000001000000001101c0000012c140112233440000000000001000"),
    };
    let told = write.as_terminate().unwrap();
    assert_eq!((told.code(), told.header_control()), (Code(1, 1, 1), (true, true, false)));
    assert_eq!(told.segment_length(), Some(18));
    assert_eq!(hex(told.ddp_header()), "c140112233440000000000001000");
    let read = Segment {
        bytes: bytes(
            "4147000000000000000200000001000000000101e000002e41410000000000000001000000010000000000000101000000000000\
         100000000800000002020000000000002000",
        ),
    };
    let told = read.as_terminate().unwrap();
    assert_eq!((told.code(), told.header_control()), (Code(0, 1, 1), (true, true, true)));
    assert_eq!(ReadRequest::decode(told.rdmap_header()).unwrap().source_stag, 0x202);
    // Terminates of siw: for a Write with a bad STag, and for an RDMAP version error.
    let told = Terminate::decode(&bytes("11000300")).unwrap();
    assert_eq!((told.swapped_code(), told.any_header_control()), (Code(1, 1, 0), (true, true, false)));
    let told = Terminate::decode(&bytes("20050000")).unwrap();
    assert_eq!(told.swapped_code(), Code(0, 2, 5));
    let answers =
        [Code(2, 0, 5), Code(0, 2, 5), Code(2, 0, 6), Code(0, 2, 6)].map(|code| told.is_any_of(&[code]));
    assert_eq!(answers, [true, true, false, false]);
    assert!(Terminate::decode(&[0; 3]).is_none());
}

#[test]
fn atomics_are_those_of_rfc_7306() {
    let fetch_add = AtomicRequest::fetch_add(0x11, 0x1234_5678, 0x1008, 2, 0);
    let segment = Segment::untagged(opcode::ATOMIC_REQUEST, 1, 1, &fetch_add.encode());
    assert_eq!(
        segment.bytes,
        bytes(
            "41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 11 12 34 56 78 00 00 00 00 00 00 10 08
             00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff"
        )
    );
    let cmp_swap = AtomicRequest {
        operation: CMP_SWAP,
        id: 0x12,
        data: 0xbb,
        mask: 0xff,
        compare: 0xaa00,
        compare_mask: 0xff00,
        ..fetch_add
    };
    assert_eq!(
        cmp_swap.encode(),
        bytes(
            "00000002 00000012 12345678 0000000000001008 00000000000000bb 00000000000000ff 000000000000aa00 000000000000ff00"
        )
    );
    assert_eq!(decode_response(&bytes("00000011 0000000000000001")), Some((0x11, 1)));
    assert_eq!(decode_response(&[0; 11]), None);
}
