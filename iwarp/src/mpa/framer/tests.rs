use proptest::prelude::*;

use super::*;
use crate::memory::{Base, MemoryTable, RegisterOptions, Source};
use crate::mpa::{Room, fpdu_bytes, pad_bytes};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn encode(framer: &mut Framer, ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0xee; framer.wire_len(ulpdu.len())];
    framer.frame(&mut out, ulpdu);
    out
}

/// Returns 42 bytes: a Send with this MSN and 24 zero bytes.
fn send(msn: u8) -> Vec<u8> {
    let mut ulpdu = hex("4143 00000000 00000000 000000");
    ulpdu.push(msn);
    ulpdu.extend([0; 28]);
    ulpdu
}

// Proves MPA-039 to MPA-042, MPA-050, MPA-053, MPA-060, MPA-064, MPA-049, MPA-063, MPA-070, MPA-072, MPA-074,
// MPA-088, MPA-089, MPA-091 to MPA-094, MPA-097, MPA-098: every byte of nine examples is correct. The
// examples have pads, CRCs with and without markers, and markers before an FPDU, inside an FPDU, and between
// pad and CRC.
#[test]
fn golden_fpdus() {
    let cases = [
        (
            0,
            true,
            true,
            send(1),
            "00000000 002a4143 00000000 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 52239983",
        ),
        (
            492,
            true,
            true,
            send(2),
            "002a4143 00000000 00000000 00000002 00000000 00000014 00000000 00000000 00000000 00000000 00000000 00000000 84925898",
        ),
        (0, false, true, b"hello".to_vec(), "00056865 6c6c6f00 9fd73e48"),
        (504, true, true, b"tiny!".to_vec(), "00057469 6e792100 00000008 a5de1ceb"),
        (508, true, true, b"abcdefgh".to_vec(), "00086162 00000004 63646566 67680000 a8512347"),
        (
            500,
            true,
            true,
            hex("00112233445566778899aabbccddeeff"),
            "00100011 22334455 66778899 0000000c aabbccdd eeff0000 22f6d86d",
        ),
        (0, false, false, b"abc".to_vec(), "00036162 63000000 00000000"),
        (508, true, true, vec![1], "00010100 00000004 446281cc"),
    ];
    for (position, markers, crc, ulpdu, wire) in cases {
        assert_eq!(encode(&mut Framer::at(position, markers, crc), &ulpdu), hex(wire));
    }
    let mut framer = Framer::at(500, true, true);
    let wire = [encode(&mut framer, b"0123"), encode(&mut framer, b"0123")].concat();
    assert_eq!(wire, hex("00043031 32330000 1a2a453a 00000000 00043031 32330000 cd2d0d9d"));
}

// Proves MPA-052: an FPDU that begins 4 bytes into the stream has markers at 512 and 1024. The distance in
// the second marker includes the bytes of the first marker.
#[test]
fn a_pointer_counts_the_markers_before_it() {
    let wire = encode(&mut Framer::at(4, true, true), &[0xaa; 1442]);
    assert_eq!((wire.len(), &wire[..2]), (1456, &1442_u16.to_be_bytes()[..]));
    assert_eq!(wire[508..512], 508_u32.to_be_bytes());
    assert_eq!(wire[1020..1024], 1020_u32.to_be_bytes());
    assert!(wire[2..508].iter().chain(&wire[512..1020]).chain(&wire[1024..1452]).all(|byte| *byte == 0xaa));
}

// Proves MPA-073: an FPDU that ends where a marker is due does not contain the marker: the next FPDU begins
// with this marker.
#[test]
fn a_marker_behind_a_crc_is_the_next_fpdus() {
    let mut framer = Framer::at(500, true, true);
    assert_eq!(encode(&mut framer, b"0123"), hex("00043031 32330000 1a2a453a"));
    assert_eq!(framer.position(), 512);
    assert_eq!(encode(&mut framer, b"0123"), hex("00000000 00043031 32330000 cd2d0d9d"));
}

// RTR messages (RFC 6581 section 9.2) and Terminates are compared byte by byte.
#[test]
fn golden_fpdus_of_revision_2() {
    for (crc, wire) in [
        (false, "000ec140 00000001 0000000000000000 00000000"),
        (true, "000ec140 00000001 0000000000000000 ebd34c5f"),
        (
            true,
            "002e4141 00000000 00000001 00000001 00000000 00000000 0000000000000000 00000000 00000001 0000000000000000 ba10e3c9",
        ),
        (true, "000ec142 00000000 0000000000000000 6975d6ca"),
        (true, "00124143 00000000 00000000 00000001 00000000 587be8c4"),
        (true, "00164147 00000000 00000002 00000001 00000000 20050000 1680d5f1"),
        (true, "00164147 00000000 00000002 00000001 00000000 20060000 6540fb1b"),
        (true, "00164147 00000000 00000002 00000001 00000000 20070000 1bd2babe"),
        (true, "00164147 00000000 00000002 00000001 00000000 02060000 6f77b973"),
    ] {
        let wire = hex(wire);
        let ulpdu_bytes = usize::from(wire[1]);
        assert_eq!(encode(&mut Framer::new(false, crc), &wire[2..2 + ulpdu_bytes]), wire);
    }
}

// Proves MPA-027, MPA-115, MPA-014, MPA-100 to MPA-104, MPA-109, MPA-116: MULPDU follows from EMSS, with
// markers and without.
#[test]
fn mulpdu_follows_emss() {
    let with = Framer::new(true, true);
    let without = Framer::new(false, false);
    for (emss, markers, none) in [
        (100, 128, 128),
        (140, 130, 134),
        (536, 522, 530),
        (1000, 986, 994),
        (1360, 1342, 1354),
        (1440, 1422, 1434),
        (1448, 1430, 1442),
        (1460, 1442, 1454),
        (1461, 1442, 1454),
        (8948, 8870, 8942),
        (8960, 8882, 8954),
        (65_495, 64_768, 64_768),
        (0, 128, 128),
    ] {
        assert_eq!((with.mulpdu(emss), without.mulpdu(emss)), (markers, none), "EMSS {emss}");
        // MULPDU does not depend on whether CRCs are in use, since every FPDU has a CRC field.
        let other_crc = [Framer::new(true, false), Framer::new(false, true)].map(|it| it.mulpdu(emss));
        assert_eq!(other_crc, [markers, none], "EMSS {emss}");
    }
    // MULPDU leaves room for the maximum number of markers, although an FPDU has that many only at some
    // positions.
    assert_eq!(Framer::at(508, true, true).wire_len(1442), 1460);
    assert_eq!(Framer::at(52, true, true).wire_len(1442), 1456);
}

// Proves MPA-010, MPA-029, MPA-046: FPDUs have the correct pad and length, up to the FPDU of the longest
// ULPDU.
#[test]
fn sizes_without_markers() {
    for (ulpdu, pad, bytes) in [
        (1, 1, 8),
        (2, 0, 8),
        (3, 3, 12),
        (4, 2, 12),
        (5, 1, 12),
        (6, 0, 12),
        (7, 3, 16),
        (8, 2, 16),
        (42, 0, 48),
        (1442, 0, 1448),
        (1454, 0, 1460),
        (64_768, 2, 64_776),
    ] {
        assert_eq!((pad_bytes(ulpdu), fpdu_bytes(ulpdu)), (pad, bytes));
        assert_eq!(Framer::new(false, true).wire_len(ulpdu), bytes);
        let wire = encode(&mut Framer::new(false, true), &vec![0x55; ulpdu]);
        assert_eq!((wire.len(), wire[..2].to_vec()), (bytes, (ulpdu as u16).to_be_bytes().to_vec()));
        assert_eq!(wire[2..bytes - 4], [vec![0x55; ulpdu], vec![0; pad]].concat());
    }
}

// Proves MPA-031: the longest FPDU has at most 65288 bytes at every position, so its FPDUPTRs fit into 16
// bits.
#[test]
fn the_longest_fpdu_has_room_for_its_pointers() {
    let longest = (0..128).map(|word| {
        let framer = Framer::at(4 * word, true, true);
        framer.wire_len(MAX_ULPDU)
    });
    assert_eq!(longest.max(), Some(65_288));
}

// Proves MPA-028: a ULPDU of more than 64768 bytes is not framed.
#[test]
#[should_panic(expected = "a ULPDU of 64769 bytes")]
fn a_ulpdu_longer_than_the_longest_is_not_framed() {
    Framer::new(false, true).frame(&mut [0; 64_776 + 4], &[0; MAX_ULPDU + 1]);
}

#[test]
fn an_abandoned_fpdu_leaves_the_framer_as_it_was() {
    let mut framer = Framer::new(true, true);
    let mut out = vec![0; framer.wire_len(600)];
    {
        let mut writer = framer.begin(&mut out, 600);
        writer.put(b"header");
        assert_eq!(writer.left(), 594);
        assert_eq!(writer.fill(594, |_| Err("revoked")), Err("revoked"));
    }
    assert_eq!(framer.position(), 0);
    assert_eq!(encode(&mut framer, b"x"), encode(&mut Framer::new(true, true), b"x"));
}

#[test]
#[should_panic(expected = "an FPDU without its last bytes")]
fn an_fpdu_is_not_finished_short() {
    let mut out = [0; 12];
    Framer::new(false, true).begin(&mut out, 5).finish();
}

/// Calls `check` with headers of 14 and of 18 bytes. For each header, calls `check` with sources of several
/// lengths in registered memory, together with the bytes of each source.
fn for_payloads(mut check: impl FnMut(&UlpduHead, &Source<'_>, &[u8])) {
    let table = MemoryTable::new(4, [1; 32]);
    let options = RegisterOptions { base: Base::Zero, ..RegisterOptions::default() };
    let region = std::sync::Arc::new(dp::Region::new(16 << 10).unwrap());
    let registration = table.register(region, &options).unwrap();
    let bytes: Vec<u8> = (0..16_384_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    registration.memory().write_at(0, &bytes).unwrap();
    let engine = table.join();
    let guard = engine.enter();
    for third in [None, Some(0x0102_0304)] {
        let head = UlpduHead { first: 0x8140_aabb_ccdd, second: 0x1122_3344_5566_7788, third };
        for (at, len) in [(0, 512), (1, 513), (3, 1442), (8, 4093), (5, 8951)] {
            let source = guard.check_source(registration.stag(), at, len, options.pd).unwrap();
            check(&head, &source, &bytes[at as usize..(at + len) as usize]);
        }
    }
}

/// An FPDU around a payload that is not copied has the same bytes as an FPDU that is completely written.
#[test]
fn an_fpdu_around_its_payload_is_the_same_fpdu() {
    for_payloads(|head, source, payload| {
        let [mut framer, mut whole] = [(); 2].map(|()| Framer::at(400, false, false));
        let plan = framer.plan(head.len() + source.len());
        let around = framer.frame_around(plan, head);
        assert_eq!(framer.position(), 400);
        framer.advance(&plan);
        let fpdu = [&around.before, payload, &around.behind].concat();
        let mut out = vec![0xee; plan.wire_len()];
        whole.frame_source(plan, &mut out, head, source, 0).unwrap();
        assert!(fpdu == out, "{} bytes", payload.len());
        assert_eq!(framer.position(), whole.position());
    });
}

/// For an FPDU with a CRC, the framer computes the Internet checksum while it writes the bytes. The framer
/// writes an FPDU without a CRC in pieces, and does not compute its checksum.
#[test]
fn an_fpdu_is_tallied_as_it_is_framed() {
    for crc in [true, false] {
        for_payloads(|head, source, payload| {
            let mut framer = Framer::at(400, false, crc);
            let plan = framer.plan(head.len() + source.len());
            let mut out = vec![0xee; plan.wire_len()];
            framer.tally(true);
            framer.frame_source(plan, &mut out, head, source, 0).unwrap();
            let checksum = crc.then(|| dp::checksum::partial(&out) % 0xffff);
            assert_eq!(
                framer.take_tally().map(|partial| partial % 0xffff),
                checksum,
                "{} bytes",
                payload.len()
            );
            assert_eq!(framer.take_tally(), None);
        });
    }
}

#[test]
#[should_panic(expected = "a CRC read it")]
fn no_fpdu_with_a_crc_is_made_around_its_payload() {
    let framer = Framer::new(false, true);
    let head = UlpduHead { first: 1, second: 2, third: None };
    framer.frame_around(framer.plan(head.len() + 512), &head);
}

proptest! {
    // The result of `fit` is correct: a ULPDU of this length fits, and a longer ULPDU does not fit.
    #[test]
    fn fit_finds_the_largest(word in 0_u64..256, room in 0_usize..3000, markers: bool) {
        let framer = Framer::at(4 * word, markers, true);
        let fits = |ulpdu: usize| framer.wire_len(ulpdu) <= room;
        match framer.fit(room) {
            Some(largest) => {
                prop_assert!(fits(largest), "{largest}");
                prop_assert!((1..8).all(|more| !fits(largest + more)), "more than {largest}");
            }
            None => prop_assert!(!fits(1)),
        }
    }

    #[test]
    fn fit_is_bounded(room in 0_usize..200_000) {
        prop_assert!(Framer::new(true, true).fit(room).is_none_or(|bytes| bytes <= MAX_ULPDU));
    }

    // At every stream position, the FPDU of a ULPDU of MULPDU bytes fits into one segment.
    #[test]
    fn mulpdu_fits_everywhere(word in 0_u64..128, emss in 140_usize..9300, markers: bool) {
        let framer = Framer::at(4 * word, markers, true);
        prop_assert!(framer.wire_len(framer.mulpdu(emss)) <= emss);
        prop_assert!(framer.fit(emss).is_some_and(|bytes| bytes >= framer.mulpdu(emss)));
    }

    // A ULPDU of `ulpdu_limit` bytes is at most MULPDU bytes long, and its FPDU fits into a segment. With
    // markers, the FPDU has the same length on the wire at every position, unless the FPDU would end in a
    // marker, or `emss` modulo 512 is less than 4.
    #[test]
    fn markers_do_not_change_the_length_on_the_wire(word in 0_u64..128, emss in 140_usize..9300, markers: bool) {
        let framer = Framer::at(4 * word, markers, true);
        let limit = framer.ulpdu_limit(emss);
        let bytes = framer.wire_len(limit);
        prop_assert!(limit <= framer.mulpdu(emss) && bytes <= emss);
        let even = emss / 4 * 4 - 4;
        let ends_in_marker = markers && marker::begins_at(framer.position() + even as u64 - 4);
        if markers && !ends_in_marker && emss % 512 >= 4 {
            prop_assert_eq!(bytes, even);
        }
    }

    // A ULPDU that is written in pieces, by `put` and `fill`, gives the same bytes on the wire as a ULPDU
    // that is framed as a whole.
    #[test]
    fn put_and_fill_agree(
        word in 0_u64..128,
        ulpdu in prop::collection::vec(any::<u8>(), 1..3000),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        markers: bool,
    ) {
        let mut framer = Framer::at(4 * word, markers, true);
        let whole = encode(&mut framer.clone(), &ulpdu);
        let mut out = vec![0xee; framer.wire_len(ulpdu.len())];
        let mut writer = framer.begin(&mut out, ulpdu.len());
        cuts.sort_by_key(|cut| cut.index(ulpdu.len() + 1));
        let ends = cuts.iter().map(|cut| cut.index(ulpdu.len() + 1)).chain([ulpdu.len()]);
        let mut start = 0;
        for (n, end) in ends.enumerate() {
            let part = &ulpdu[start..end];
            // One piece is passed to `put`, then two pieces to `fill`, and so on. Some pieces are empty.
            if n % 3 == 0 {
                writer.put(part);
            } else {
                prop_assert!(writer.fill(part.len(), |room| fill(room, part)).is_ok());
            }
            start = end;
        }
        writer.finish();
        prop_assert_eq!(framer.position(), 4 * word + whole.len() as u64);
        prop_assert_eq!(out, whole);
    }
}

/// Writes `bytes` like a copy from registered memory. Also writes arbitrary bytes into each gap, which such a
/// copy may do.
fn fill(room: Room<'_>, bytes: &[u8]) -> Result<(), ()> {
    match room {
        Room::Whole(room, crc) => crc.copy(room, bytes),
        Room::Runs(room, stride) => {
            let mut bytes = bytes.iter();
            for (at, byte) in room.iter_mut().enumerate() {
                let is_content = stride.content(at + 1) > stride.content(at);
                *byte = if is_content { *bytes.next().expect("a span as asked for") } else { 0xcc };
            }
            assert_eq!(bytes.len(), 0);
        }
    }
    Ok(())
}
