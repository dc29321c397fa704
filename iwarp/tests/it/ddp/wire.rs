//! DDP's bytes on the wire: golden headers, parsing, how messages are cut, and the numbers of errors.

use crate::common::ulpdu::from_hex;
use iwarp::ddp::{DdpError, Header, HeaderError, Segmenter, TaggedHeader, UntaggedHeader};
use iwarp::memory::Stag;
use iwarp::rdmap::Opcode;
use proptest::prelude::*;
use testkit::dice::Dice;

/// Compares the segments of a tagged and an untagged message of 10000 bytes, at a MULPDU of 1454 bytes, with
/// golden headers.
// Proves DDP-045, DDP-055, DDP-057, DDP-060, DDP-077, DDP-096, RDMAP-090, DDP-044, DDP-046, DDP-085, DDP-094.
#[test]
fn ten_thousand_bytes_are_cut_as_the_golden_headers_say() {
    let tagged = [
        (1440, "8140123456780000000000001000"),
        (1440, "81401234567800000000000015a0"),
        (1440, "8140123456780000000000001b40"),
        (1440, "81401234567800000000000020e0"),
        (1440, "8140123456780000000000002680"),
        (1440, "8140123456780000000000002c20"),
        (1360, "c1401234567800000000000031c0"),
    ];
    let mut segmenter = Segmenter::tagged(10_000);
    for (len, header) in tagged {
        let cut = segmenter.next(1454).unwrap();
        let to = 0x1000 + u64::from(cut.offset);
        let built = Header::from(Opcode::Write.tagged_header(Stag(0x1234_5678), to, cut.last));
        assert_eq!((cut.len, built.to_bytes().to_vec()), (len, from_hex(header)));
        assert_eq!(Header::parse(&from_hex(header)), Ok(built));
    }
    assert!(segmenter.is_done() && segmenter.next(1454).is_none());

    let untagged = [
        (1436, "014300000000000000000000000100000000"),
        (1436, "01430000000000000000000000010000059c"),
        (1436, "014300000000000000000000000100000b38"),
        (1436, "0143000000000000000000000001000010d4"),
        (1436, "014300000000000000000000000100001670"),
        (1436, "014300000000000000000000000100001c0c"),
        (1384, "4143000000000000000000000001000021a8"),
    ];
    let mut segmenter = Segmenter::untagged(10_000);
    for (len, header) in untagged {
        let cut = segmenter.next(1454).unwrap();
        let built = Header::from(Opcode::Send.untagged_header(Stag(0), 1, cut.offset, cut.last));
        assert_eq!((cut.len, built.to_bytes().to_vec()), (len, from_hex(header)));
        assert_eq!(Header::parse(&from_hex(header)), Ok(built));
    }
    assert!(segmenter.is_done());
}

/// Each field has different bytes, so that the test notices if two fields are swapped.
// Proves DDP-061 to DDP-064, DDP-078 to DDP-081.
#[test]
fn each_field_is_in_its_place() {
    let (stag, to) = (Stag(0xB1B2_B3B4), 0xC1C2_C3C4_C5C6_C7C8);
    let tagged = Header::Tagged(TaggedHeader { last: false, rsvd_ulp: 0xA1, stag, to });
    let rsvd_ulp = [0xA1, 0xA2, 0xA3, 0xA4, 0xA5];
    let (qn, msn, mo) = (0xB1B2_B3B4, 0xC1C2_C3C4, 0xD1D2_D3D4);
    let untagged = Header::Untagged(UntaggedHeader { last: true, rsvd_ulp, qn, msn, mo });
    for (header, bytes) in [
        (tagged, from_hex("81 a1 b1b2b3b4 c1c2c3c4c5c6c7c8")),
        (untagged, from_hex("41 a1a2a3a4a5 b1b2b3b4 c1c2c3c4 d1d2d3d4")),
    ] {
        assert_eq!(header.to_bytes().to_vec(), bytes);
        assert_eq!(Header::parse(&bytes), Ok(header));
    }
}

/// The examples of RFC 5041 sections 5.1 and 5.2: 2048 bytes with a MULPDU of 1500 bytes.
// Proves DDP-112, DDP-117.
#[test]
fn the_examples_of_the_rfc_come_out() {
    let cut = |mut s: Segmenter| {
        std::iter::from_fn(move || s.next(1500)).map(|c| (c.offset, c.len, c.last)).collect::<Vec<_>>()
    };
    assert_eq!(cut(Segmenter::untagged(2048)), [(0, 1482, false), (1482, 566, true)]);
    assert_eq!(cut(Segmenter::tagged(2048)), [(0, 1486, false), (1486, 562, true)]);
    // If a message begins at tagged offset 16384, its second piece begins at 17870.
    let second = Header::from(Opcode::Write.tagged_header(Stag(1), 16_384 + 1486, true)).to_bytes();
    assert_eq!(second[6..], 17_870_u64.to_be_bytes());
}

// Proves DDP-012, DDP-049, RDMAP-205, RDMAP-245.
#[test]
fn an_empty_message_is_one_last_segment() {
    for mut segmenter in [Segmenter::tagged(0), Segmenter::untagged(0)] {
        let cut = segmenter.next(1454).unwrap();
        assert_eq!((cut.offset, cut.len, cut.last), (0, 0, true));
        assert!(segmenter.next(1454).is_none());
    }
    let empty = Header::from(Opcode::Write.tagged_header(Stag(0), 0, true));
    assert_eq!(empty.to_bytes().to_vec(), from_hex("c1400000000000000000000000 00"));
}

/// A MULPDU without space for a header and one byte yields no segment, and causes no panic. A later call with
/// a larger MULPDU continues.
#[test]
fn too_small_a_mulpdu_cuts_nothing() {
    let mut segmenter = Segmenter::tagged(3);
    assert!((0..=14).all(|mulpdu| segmenter.next(mulpdu).is_none()));
    assert_eq!(segmenter.next(15).map(|c| c.len), Some(1));
    assert_eq!(segmenter.next(u32::MAX).map(|c| (c.offset, c.len, c.last)), Some((1, 2, true)));
}

/// Segments that are shorter than the header that their T bit announces are refused. Segments with a wrong
/// version are also refused.
// Proves DDP-058, DDP-098.
#[test]
fn runts_and_versions_are_refused() {
    assert_eq!(Header::parse(&[]), Err(HeaderError::Runt { bytes: 0 }));
    let tagged = from_hex("c140112233440000000000001000");
    let untagged = from_hex("414300000000000000000000000100000000");
    for whole in [&tagged, &untagged] {
        for bytes in 1..whole.len() {
            assert_eq!(Header::parse(&whole[..bytes]), Err(HeaderError::Runt { bytes }));
        }
        for version in [0, 2, 3] {
            let mut bad = whole.clone();
            bad[0] = bad[0] & !3 | version;
            let tagged = bad[0] & 0x80 != 0;
            assert_eq!(Header::parse(&bad), Err(HeaderError::Version { tagged, version }));
        }
    }
}

// Proves DDP-056.
#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = from_hex("c140112233440000000000001000");
    let plain = Header::parse(&bytes);
    bytes[0] |= 0x3C;
    assert_eq!(Header::parse(&bytes), plain);
}

/// Ten thousand random strings cause no panic. A string that parses is emitted unchanged, except for the
/// reserved bits.
#[test]
fn random_bytes_never_panic() {
    let mut dice = Dice::linear(0x5041);
    let mut next = || dice.number() as u8;
    for _ in 0..10_000 {
        let bytes: Vec<u8> = (0..next() % 40).map(|_| next()).collect();
        if let Ok(header) = Header::parse(&bytes) {
            let mut expected = bytes[..header.wire_len()].to_vec();
            expected[0] &= !0x3C;
            assert_eq!(header.to_bytes().to_vec(), expected);
        }
    }
}

fn any_header() -> impl Strategy<Value = Header> {
    let tagged =
        (any::<bool>(), any::<u8>(), any::<u32>(), any::<u64>()).prop_map(|(last, rsvd_ulp, stag, to)| {
            Header::Tagged(TaggedHeader { last, rsvd_ulp, stag: Stag(stag), to })
        });
    let untagged = (any::<bool>(), any::<[u8; 5]>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
        |(last, rsvd_ulp, qn, msn, mo)| Header::Untagged(UntaggedHeader { last, rsvd_ulp, qn, msn, mo }),
    );
    prop_oneof![tagged, untagged]
}

/// The error types and codes are those of RFC 5041 section 7.2.
// Proves DDP-196 to DDP-207: the test compares all error numbers; `sink.rs` tests the causes of each error.
#[test]
fn errors_have_the_numbers_of_the_document() {
    let numbers = [
        (DdpError::LocalCatastrophic, (0, 0)),
        (DdpError::InvalidStag, (1, 0)),
        (DdpError::BaseOrBounds, (1, 1)),
        (DdpError::NotAssociated, (1, 2)),
        (DdpError::ToWrap, (1, 3)),
        (DdpError::TaggedVersion, (1, 4)),
        (DdpError::InvalidQn, (2, 1)),
        (DdpError::NoBuffer, (2, 2)),
        (DdpError::MsnRange, (2, 3)),
        (DdpError::InvalidMo, (2, 4)),
        (DdpError::TooLong, (2, 5)),
        (DdpError::UntaggedVersion, (2, 6)),
    ];
    assert_eq!(numbers.map(|(error, _)| error), DdpError::ALL);
    for (error, pair) in numbers {
        assert_eq!((error.pair(), error.etype(), error.code()), (pair, pair.0, pair.1), "{error}");
    }
}

proptest! {
    #[test]
    fn every_header_survives_the_wire(header in any_header(), payload in any::<[u8; 3]>()) {
        let mut bytes = [0; Header::MAX_LEN + 3];
        let len = header.emit(&mut bytes);
        prop_assert_eq!(len, header.wire_len());
        bytes[len..len + 3].copy_from_slice(&payload);
        prop_assert_eq!(Header::parse(&bytes[..len + 3]), Ok(header));
    }

    // Proves DDP-020, DDP-028, DDP-050 to DDP-052, DDP-030, RDMAP-031: MULPDU may differ from segment to
    // segment.
    #[test]
    fn the_pieces_of_a_message_tile_it(len in 0_u32..20_000, tagged in any::<bool>(),
                                       mulpdus in prop::collection::vec(0_u32..2000, 1..50)) {
        let mut segmenter = if tagged { Segmenter::tagged(len) } else { Segmenter::untagged(len) };
        let header = if tagged { 14 } else { 18 };
        let (mut offset, mut lasts) = (0, 0);
        for mulpdu in mulpdus.iter().copied().chain(std::iter::repeat_n(1454, 20)) {
            prop_assert_eq!(segmenter.peek(mulpdu), segmenter.clone().next(mulpdu));
            let Some(cut) = segmenter.next(mulpdu) else { continue };
            prop_assert_eq!(cut.offset, offset);
            prop_assert!(cut.len + header <= mulpdu);
            prop_assert!(cut.len > 0 || len == 0);
            offset += cut.len;
            prop_assert_eq!(cut.last, offset == len);
            lasts += u32::from(cut.last);
        }
        prop_assert!(segmenter.is_done() && lasts == 1 && offset == len);
        prop_assert_eq!(segmenter.cut_bytes(), segmenter.message_bytes());
    }
}
