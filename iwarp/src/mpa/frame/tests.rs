use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn frame(kind: FrameKind, rest: &str) -> Vec<u8> {
    [&kind.key()[..], &hex(rest)].concat()
}

fn parse(bytes: &[u8], kind: FrameKind) -> Frame {
    match Frame::parse(bytes, kind) {
        Ok(Parsed::Frame(frame, used)) if used == bytes.len() => frame,
        other => panic!("{other:?}"),
    }
}

use FrameKind::{Reply, Request};

// Proves MPA-146, MPA-147, MPA-148, MPA-150, MPA-164, MPA-167: the Request and Reply Frames of revision 1
// have these bytes.
#[test]
fn golden_frames_of_revision_1() {
    assert_eq!(Request.key()[..], hex("4d504120 49442052 65712046 72616d65"));
    assert_eq!(Reply.key()[..], hex("4d504120 49442052 65702046 72616d65"));
    let request = parse(&frame(Request, "c0010002 6869"), Request);
    assert_eq!(
        (request.markers, request.crc, request.revision, &request.private_data[..]),
        (true, true, 1, &b"hi"[..])
    );
    let reply = parse(&frame(Reply, "40010000"), Reply);
    assert_eq!((reply.markers, reply.crc, reply.reject), (false, true, false));
    let reject = parse(&frame(Reply, "60010002 6e6f"), Reply);
    assert_eq!((reject.crc, reject.reject, &reject.private_data[..]), (true, true, &b"no"[..]));
    for golden in [request, reply, reject] {
        assert_eq!(parse(&golden.encode().unwrap(), golden.kind), golden);
    }
}

// Proves MPA2-020, MPA2-045, MPA2-047, MPA2-075, MPA2-076, MPA2-148, MPA2-149, MPA2-150: frames of revision 2
// are parsed and encoded correctly, including frames as Linux's siw sends them.
#[test]
fn golden_frames_of_revision_2() {
    let enhanced =
        |peer_to_peer, rtr, ird, ord| Some(Enhanced { peer_to_peer, rtr, depths: Depths { ird, ord } });
    let (none, write, read) = (RtrKinds::empty(), RtrKinds::WRITE, RtrKinds::READ);
    let left = Depths::LEFT_TO_ULP;
    for (kind, bytes, crc, reject, fields, data) in [
        (Request, "10020004 00010001", false, false, enhanced(false, none, 1, 1), ""),
        (Reply, "10020004 00010001", false, false, enhanced(false, none, 1, 1), ""),
        (Request, "50020004 00010001", true, false, enhanced(false, none, 1, 1), ""),
        (Request, "10020004 8001c001", false, false, enhanced(true, write | read, 1, 1), ""),
        (Reply, "10020004 80018001", false, false, enhanced(true, write, 1, 1), ""),
        (Reply, "10020004 80014001", false, false, enhanced(true, read, 1, 1), ""),
        (Request, "10020004 c001c001", false, false, enhanced(true, RtrKinds::all(), 1, 1), ""),
        (Request, "50020006 3fff3fff 6869", true, false, enhanced(false, none, left, left), "hi"),
        (Reply, "50020004 3fff3fff", true, false, enhanced(false, none, left, left), ""),
        (Reply, "70020006 00010001 6e6f", true, true, enhanced(false, none, 1, 1), "no"),
        (Reply, "30020004 00010008", false, true, enhanced(false, none, 1, 8), ""),
    ] {
        let bytes = frame(kind, bytes);
        let expected = Frame {
            kind,
            markers: false,
            crc,
            reject,
            revision: 2,
            enhanced: fields,
            private_data: data.bytes().collect(),
        };
        assert_eq!(parse(&bytes, kind), expected);
        assert_eq!(expected.encode().unwrap()[..], bytes);
    }
}

// Proves MPA2-049, MPA2-050, MPA2-051, MPA2-052: the bits A to D have these positions.
#[test]
fn each_bit_is_in_its_place() {
    let rtr = |peer_to_peer, rtr| Enhanced { peer_to_peer, rtr, depths: Depths { ird: 5, ord: 7 } }.encode();
    assert_eq!(rtr(true, RtrKinds::empty()), [0x80, 5, 0, 7]);
    assert_eq!(rtr(true, RtrKinds::SEND), [0xc0, 5, 0, 7]);
    assert_eq!(rtr(true, RtrKinds::WRITE), [0x80, 5, 0x80, 7]);
    assert_eq!(rtr(true, RtrKinds::READ), [0x80, 5, 0x40, 7]);
    let all = Enhanced::decode([0xff; 4]);
    assert_eq!(
        (all.peer_to_peer, all.rtr, all.depths.ird, all.depths.ord),
        (true, RtrKinds::all(), 0x3fff, 0x3fff)
    );
}

// Proves MPA2-092: without bit A, the bits B, C and D are sent as 0.
#[test]
fn client_server_sends_no_rtr_bits() {
    let enhanced = Enhanced { peer_to_peer: false, rtr: RtrKinds::all(), depths: Depths { ird: 5, ord: 7 } };
    assert_eq!(enhanced.encode(), [0, 5, 0, 7]);
}

// Proves MPA-139, MPA-168, MPA-169, MPA-172, MPA-202: a frame is complete only at its last byte. More than
// 512 bytes of private data are refused as soon as the header has arrived.
#[test]
fn every_prefix_needs_more() {
    for length in [0_u16, 1, 511, 512] {
        let mut bytes = frame(Request, "4001");
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; usize::from(length)]);
        for end in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..end], Request), Ok(Parsed::NeedMore));
        }
        bytes.extend(b"behind");
        assert!(
            matches!(Frame::parse(&bytes, Request), Ok(Parsed::Frame(_, used)) if used == bytes.len() - 6)
        );
    }
    for length in ["0201", "ffff"] {
        let bytes = frame(Request, &format!("4001{length}"));
        assert!(matches!(Frame::parse(&bytes, Request), Err(Malformed::PrivateDataLength)));
    }
}

// Proves MPA-149, MPA-151, MPA-152, MPA-200: a wrong byte of the key is found as soon as the byte arrives, at
// every position of the key.
#[test]
fn a_wrong_key_shows_at_its_first_wrong_byte() {
    for (at, key) in Request.key().iter().enumerate() {
        let mut bytes = Request.key()[..=at].to_vec();
        bytes[at] = key ^ 0x20;
        let wrong = Frame::parse(&bytes, Request).unwrap_err();
        assert_eq!(wrong, Malformed::Key);
        bytes[at] = *key;
        assert_eq!(Frame::parse(&bytes, Request), Ok(Parsed::NeedMore));
    }
    assert_eq!(Frame::parse(Request.key(), Reply), Err(Malformed::OtherKey));
    assert_eq!(Frame::parse(Reply.key(), Request), Err(Malformed::OtherKey));
}

// Proves MPA-161, MPA-163, MPA2-023, MPA2-107, MPA2-124, MPA2-126, MPA2-156: reserved bits are ignored, and
// so are bit R of a Request and bit S of revision 1. A frame of revision 2 with bit S but without its depths
// is malformed, unless it is a reject.
#[test]
fn reserved_bits_are_ignored_and_s_belongs_to_revision_2() {
    let request = parse(&frame(Request, "7f010004 01020304"), Request);
    assert!(!request.reject && request.enhanced.is_none() && request.private_data.len() == 4);
    assert!(parse(&frame(Request, "1f020004 00010001"), Request).enhanced.is_some());
    assert_eq!(Frame::parse(&frame(Request, "10020003"), Request), Err(Malformed::NoDepths));
    assert_eq!(Frame::parse(&frame(Reply, "10020000"), Reply), Err(Malformed::NoDepths));
    // Reserved bits are sent as 0.
    for (kind, revision, reserved) in
        [(Request, 1, 0x3f), (Reply, 1, 0x1f), (Request, 2, 0x2f), (Reply, 2, 0x0f)]
    {
        let enhanced = (revision == 2).then(Enhanced::default);
        let private_data = PrivateData::default();
        let all = Frame { kind, markers: true, crc: true, reject: true, revision, enhanced, private_data };
        assert_eq!(all.encode().unwrap()[16] & reserved, 0);
    }
    // Linux's siw sends such a reject.
    let reject = parse(&frame(Reply, "30020000"), Reply);
    assert!(reject.reject && reject.enhanced.is_none());
}

// Proves MPA2-046: in an enhanced frame, the ULP has at most 508 bytes of private data.
#[test]
fn the_depths_take_four_bytes_of_private_data() {
    let mut frame = Frame {
        kind: Request,
        markers: false,
        crc: true,
        reject: false,
        revision: 2,
        enhanced: Some(Enhanced::default()),
        private_data: std::iter::repeat_n(1, 508).collect(),
    };
    assert_eq!(frame.encode().unwrap().len(), MAX_FRAME);
    frame.private_data.push(1);
    assert_eq!(frame.encode(), Err(PrivateDataTooLong { bytes: 509, limit: 508 }));
    frame.enhanced = None;
    assert_eq!(frame.encode().unwrap().len(), MAX_FRAME - 3);
}

proptest! {
    // Proves MPA2-048: all values of the four bytes can be decoded.
    #[test]
    fn depths_survive_both_ways(bytes: [u8; 4]) {
        let enhanced = Enhanced::decode(bytes);
        prop_assert!(enhanced.depths.ird <= 0x3fff && enhanced.depths.ord <= 0x3fff);
        if enhanced.peer_to_peer {
            prop_assert_eq!(enhanced.encode(), bytes);
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..700), with_key: bool, reply: bool, length in 0_u16..600,
    ) {
        let kind = if reply { Reply } else { Request };
        let mut bytes = bytes;
        if with_key && bytes.len() >= HEADER_BYTES {
            bytes[..16].copy_from_slice(kind.key());
            bytes[18..20].copy_from_slice(&length.to_be_bytes());
        }
        if let Ok(Parsed::Frame(frame, used)) = Frame::parse(&bytes, kind) {
            prop_assert!(used <= bytes.len() && used <= MAX_FRAME);
            let again = frame.encode().unwrap();
            let lost = frame.reject && frame.enhanced.is_none() && bytes[16] & 0x10 != 0;
            prop_assert!(again.len() == used);
            prop_assert!(lost || parse(&again, kind).private_data == frame.private_data);
        }
    }
}
