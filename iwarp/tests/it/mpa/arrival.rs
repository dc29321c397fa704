//! How FPDUs arrive, for example with any content, and cut by TCP at any byte (RFC 5044 sections 2.1, 4.5,
//! A.5.2, B.1, B.2.1).

use super::support::{Receiver, Sink};
use dp::Mempool;
use iwarp::ddp::{Segment, Segmenter, TaggedHeader, UntaggedHeader};
use iwarp::mpa::{Framer, MIN_MULPDU, MpaError};
use testkit::dice::Dice;

/// Position of the first byte of the stream.
const START: u64 = 40;

/// Returns the stream of the FPDUs of `ulpdus`, and the position where each FPDU ends.
fn stream(markers: bool, crc: bool, ulpdus: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut framer = Framer::new(markers, crc);
    let mut wire = Vec::new();
    let ends = ulpdus.iter().map(|ulpdu| {
        let at = wire.len();
        wire.resize(at + framer.wire_len(ulpdu.len()), 0);
        framer.frame(&mut wire[at..], ulpdu);
        wire.len()
    });
    let ends = ends.collect();
    (wire, ends)
}

/// Returns the result of a stream that arrives in order, cut into segments at `cuts`.
fn arrive(markers: bool, crc: bool, wire: &[u8], cuts: &[usize]) -> Result<Sink, MpaError> {
    let pool = Mempool::heap("arrival", 1024, 512);
    let mut receiver = Receiver::with_pool(pool, START, markers, crc);
    let mut from = 0;
    for to in cuts.iter().copied().filter(|cut| (1..wire.len()).contains(cut)).chain([wire.len()]) {
        receiver.segment(START + from as u64, &wire[from..to], 512)?;
        from = to;
    }
    Ok(receiver.finish())
}

/// Returns payloads that imitate bytes of MPA.
fn imitations() -> Vec<Vec<u8>> {
    let mut framer = Framer::new(true, true);
    let fpdu = |framer: &mut Framer, ulpdu: &[u8]| {
        let mut bytes = vec![0; framer.wire_len(ulpdu.len())];
        framer.frame(&mut bytes, ulpdu);
        bytes
    };
    vec![
        b"MPA ID Req Frame\xd0\x02\x00\x04\x00\x08\x00\x08".to_vec(),
        b"MPA ID Rep Frame\x40\x01\x00\x00".to_vec(),
        fpdu(&mut framer, b"hello"),
        [fpdu(&mut framer, &[0; 600]), fpdu(&mut framer, &[1; 30])].concat(),
        // Markers with different pointers, repeated so that each marker position has one of them.
        [[0, 0, 0, 0], [0, 0, 0, 4], [0, 0, 2, 0], [0xff; 4]].concat().repeat(80),
        vec![0; 700],
        vec![0xff; 700],
        // These bytes are not a DDP header, because the version does not exist.
        vec![0x3c; 3],
        vec![0],
    ]
}

// Proves MPA-011, MPA-289: ULPDUs that imitate lengths, markers, CRCs and startup frames, and ULPDUs that
// have no DDP header, are delivered unchanged, in any segmentation.
#[test]
fn what_imitates_framing_is_payload() {
    let mut dice = Dice::split_mix(11);
    for markers in [false, true] {
        for crc in [false, true] {
            for _ in 0..40 {
                let mut ulpdus = [imitations(), imitations()].concat();
                dice.shuffle(&mut ulpdus);
                let (wire, _) = stream(markers, crc, &ulpdus);
                let mut cuts: Vec<usize> = (0..20).map(|_| dice.index(wire.len())).collect();
                cuts.sort_unstable();
                cuts.dedup();
                let sink = arrive(markers, crc, &wire, &cuts).unwrap();
                assert_eq!(sink.ulpdus, ulpdus);
            }
        }
    }
}

/// Returns ULPDUs around a marker. With markers, the FPDU of the second ULPDU has 140 bytes: as many as the
/// FPDU of a ULPDU of 128 bytes that contains one marker.
fn around_a_marker() -> Vec<Vec<u8>> {
    let mut dice = Dice::split_mix(291);
    [430, 127, 1, 300].map(|bytes| dice.bytes(bytes)).to_vec()
}

// Proves MPA-291, MPA-287: each FPDU is split over two segments, at every possible byte, and also arrives
// byte by byte. The receiver joins the FPDU, checks the CRC over both parts, and finds a wrong byte in either
// part. With markers, one of the FPDUs has 140 bytes, the least size that a receiver has to be able to hold.
#[test]
fn an_fpdu_is_joined_wherever_it_is_cut() {
    let ulpdus = around_a_marker();
    for markers in [false, true] {
        let (wire, ends) = stream(markers, true, &ulpdus);
        let lengths: Vec<usize> = [0].iter().chain(&ends).zip(&ends).map(|(from, to)| to - from).collect();
        assert_eq!(lengths.contains(&140), markers, "{lengths:?}");
        for cut in 0..wire.len() {
            assert_eq!(arrive(markers, true, &wire, &[cut]).unwrap().ulpdus, ulpdus, "cut at {cut}");
            // The FPDUs are also cut where they end, so that only the FPDU around `cut` is not aligned.
            let mut cuts = [ends.as_slice(), &[cut]].concat();
            cuts.sort_unstable();
            cuts.dedup();
            assert_eq!(arrive(markers, true, &wire, &cuts).unwrap().ulpdus, ulpdus, "cut at {cut}");
        }
        let every: Vec<usize> = (0..wire.len()).collect();
        assert_eq!(arrive(markers, true, &wire, &every).unwrap().ulpdus, ulpdus);
        // The test changes each byte of the second FPDU behind its length field, in either part.
        let (from, to) = (ends[0], ends[1]);
        for at in from + 2..to {
            for cut in [from + 1, at, at + 1, to - 1] {
                let mut bad = wire.clone();
                bad[at] ^= 0x10;
                let told = arrive(markers, true, &bad, &[from, cut]);
                assert!(told.is_err(), "byte {at} differs, cut at {cut}");
            }
        }
    }
}

// Proves MPA-275: the peer sends other bytes with correct CRCs for the same positions. Earlier bytes stay
// unchanged, whether they are FPDUs that arrived in order, an FPDU that was placed early, or a part of an
// FPDU that is held.
#[test]
fn bytes_that_come_again_are_not_looked_at() {
    let payload = |byte: u8| vec![byte; 600];
    let (wire, ends) = stream(true, true, &[1, 2, 3].map(payload));
    let (other, _) = stream(true, true, &[7, 8, 9].map(payload));
    let mut receiver = Receiver::with_pool(Mempool::heap("again", 64, 512), START, true, true);
    let piece = ends[1] + 300;
    let parts = [(ends[0], ends[1]), (0, ends[0]), (ends[1], piece), (piece, ends[2])];
    for (n, (from, to)) in parts.into_iter().enumerate() {
        receiver.segment(START + from as u64, &wire[from..to], 512).unwrap();
        for (from, to) in &parts[..=n] {
            receiver.again(START + *from as u64, &other[*from..*to]).unwrap();
        }
    }
    assert_eq!(receiver.sink.placed, 1, "ahead");
    assert!(receiver.finish().ulpdus == [1, 2, 3].map(payload));
}

// Proves MPA-113: the smallest MULPDU has space for user data and a tagged or untagged header.
#[test]
fn the_smallest_mulpdu_has_room_for_a_header_and_data() {
    let smallest = Framer::new(true, true).mulpdu(0) as u32;
    assert_eq!((smallest as usize, MIN_MULPDU), (128, 128));
    let lengths = |mut message: Segmenter| {
        std::iter::from_fn(|| message.next(smallest)).map(|it: Segment| it.len).collect::<Vec<_>>()
    };
    assert_eq!((TaggedHeader::LEN, UntaggedHeader::LEN), (14, 18));
    assert_eq!(lengths(Segmenter::tagged(250)), [114, 114, 22]);
    assert_eq!(lengths(Segmenter::untagged(250)), [110, 110, 30]);
}
