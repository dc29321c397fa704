//! Compares the framer and the deframer with the independent reference (`reference/mpa_ref.py`).

use super::support::{DECODE, ENCODE, Receiver, reference};
use crate::common::oracle::hex;
use crate::common::ulpdu::from_hex;
use iwarp::mpa::{Framer, MpaError};
use testkit::dice::Dice;

fn line(markers: bool, crc: bool, position: u64, ulpdus: &[Vec<u8>]) -> String {
    let ulpdus: Vec<String> = ulpdus.iter().map(|ulpdu| hex(ulpdu)).collect();
    format!("{} {} {position} {}\n", u8::from(markers), u8::from(crc), ulpdus.join(" "))
}

fn ours(markers: bool, crc: bool, position: u64, ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut framer = Framer::at(position, markers, crc);
    let mut wire = Vec::new();
    for ulpdu in ulpdus {
        let at = wire.len();
        wire.resize(at + framer.wire_len(ulpdu.len()), 0xee);
        framer.frame(&mut wire[at..], ulpdu);
    }
    wire
}

/// Returns random ULPDUs of at most `largest` bytes, of which most are small.
fn ulpdus(dice: &mut Dice, count: usize, largest: usize) -> Vec<Vec<u8>> {
    let sizes = [1, 2, 3, 4, 14, 18, 46, 500, 508, 1442];
    (0..count)
        .map(|_| {
            let bytes = match dice.index(3) {
                0 => sizes[dice.index(sizes.len())],
                1 => 1 + dice.index(64),
                _ => 1 + dice.index(largest),
            };
            dice.bytes(bytes.min(largest))
        })
        .collect()
}

#[test]
fn the_reference_passes_its_own_test() {
    let output = reference("mpa_ref.self_test()\nprint('passed')\n", "");
    assert_eq!(output.trim(), "passed");
}

// Proves MPA-015, MPA-041, MPA-059 to MPA-061, MPA-063 to MPA-069, MPA-049, MPA-070, MPA-091 to MPA-094: the
// framer's bytes equal those of the reference at all 128 phases of the marker interval.
#[test]
fn the_framer_agrees_at_every_phase() {
    let mut dice = Dice::split_mix(5044);
    let cases: Vec<_> = (0..128)
        .flat_map(|word| [(word, true), (word, false)])
        .map(|(word, crc)| (4 * word, crc, ulpdus(&mut dice, 12, 2500)))
        .collect();
    let input: String =
        cases.iter().map(|(position, crc, ulpdus)| line(true, *crc, *position, ulpdus)).collect();
    let output = reference(ENCODE, &input);
    for ((position, crc, ulpdus), wire) in cases.iter().zip(output.lines()) {
        assert_eq!(hex(&ours(true, *crc, *position, ulpdus)), wire, "phase {position}");
    }
    assert_eq!(output.lines().count(), 256);
}

#[test]
fn the_framer_agrees_without_markers_and_with_the_longest_ulpdu() {
    let mut dice = Dice::split_mix(6581);
    let mut cases: Vec<_> = (0..20)
        .map(|case| {
            (case % 2 == 0, case % 4 < 2, 4 * dice.index(1 << 28) as u64, ulpdus(&mut dice, 10, 9000))
        })
        .collect();
    for markers in [true, false] {
        cases.push((markers, true, 508, vec![dice.bytes(64_768), dice.bytes(64_767)]));
    }
    let input: String =
        cases.iter().map(|(m, c, position, ulpdus)| line(*m, *c, *position, ulpdus)).collect();
    let output = reference(ENCODE, &input);
    assert_eq!(output.lines().count(), cases.len());
    for ((markers, crc, position, ulpdus), wire) in cases.iter().zip(output.lines()) {
        assert!(hex(&ours(*markers, *crc, *position, ulpdus)) == wire, "at {position}");
    }
}

/// Cuts a stream at random points. Returns the start and the end of each piece.
fn cut(dice: &mut Dice, bytes: usize, smallest: usize, largest: usize) -> Vec<(usize, usize)> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + smallest + dice.index(largest - smallest + 1));
        segments.push((at, end));
        at = end;
    }
    segments
}

/// A stream that the reference has framed, and the ULPDUs in it.
struct Stream {
    markers: bool,
    crc: bool,
    ulpdus: Vec<Vec<u8>>,
    wire: Vec<u8>,
}

fn streams(dice: &mut Dice, count: usize) -> Vec<Stream> {
    let cases: Vec<_> =
        (0..count).map(|case| (case % 3 != 0, case % 5 != 0, ulpdus(dice, 25, 3000))).collect();
    let input: String = cases.iter().map(|(markers, crc, ulpdus)| line(*markers, *crc, 0, ulpdus)).collect();
    let output = reference(ENCODE, &input);
    assert_eq!(output.lines().count(), count);
    let streams = cases.into_iter().zip(output.lines()).map(|((markers, crc, ulpdus), wire)| Stream {
        markers,
        crc,
        ulpdus,
        wire: from_hex(wire),
    });
    streams.collect()
}

// Proves MPA-020, MPA-023, MPA-033 to MPA-035, MPA-064, MPA-075, MPA-076, MPA-095, MPA-123, MPA-124, MPA-126,
// MPA-129 to MPA-131, MPA-133, MPA-280, MPA-282, DDP-032, DDP-034, DDP-043, DDP-128, DDP-130, DDP-131: for
// any cut and any order, exactly the ULPDUs that were sent are delivered, in order and once. A ULPDU that is
// placed early has a position, and is delivered in order by its header. Repeated segments have different
// bytes the second time. The receiver in this test drops such segments, as TCP does.
#[test]
fn the_deframer_agrees_in_any_order() {
    let mut dice = Dice::split_mix(1);
    let streams = streams(&mut dice, 150);
    let mut early = 0;
    for (case, Stream { markers, crc, ulpdus, wire }) in streams.into_iter().enumerate() {
        let start = 20 + dice.index(1 << 20) as u64;
        let mut receiver = Receiver::new(start, markers, crc);
        let (smallest, largest) = [(1, 5), (1, 60), (1, 600), (400, 1460), (1460, 1460)][case % 5];
        let mut segments = cut(&mut dice, wire.len(), smallest, largest);
        match case % 4 {
            0 => {}
            1 => dice.shuffle(&mut segments),
            2 => segments.reverse(),
            _ => {
                // In each window of ten segments, one segment is lost and arrives last, as with a fast
                // retransmit.
                for window in segments.chunks_mut(10) {
                    window.rotate_left(1);
                }
            }
        }
        for (at, (from, to)) in segments.iter().enumerate() {
            let chunk = if dice.index(2) == 0 { 2048 } else { 1 + to.saturating_sub(*from) / 2 };
            receiver.segment(start + *from as u64, &wire[*from..*to], chunk).unwrap();
            if dice.index(8) == 0 {
                let (from, to) = segments[dice.index(at + 1)];
                let other = dice.bytes(to - from);
                receiver.segment(start + from as u64, &other, 2048).unwrap();
            }
        }
        assert!(receiver.deframer.at_boundary(), "case {case}");
        let counters = receiver.deframer.counters();
        assert_eq!(counters.fpdus, ulpdus.len() as u64);
        assert!(case % 4 != 0 || counters.early_fpdus == 0, "in order nothing is early");
        assert!(markers || counters.early_fpdus == 0, "no markers, nothing early");
        assert_eq!(counters.early_unsound, 0, "case {case}");
        early += counters.early_fpdus;
        let sink = receiver.finish();
        assert!(sink.ulpdus == ulpdus, "case {case}");
    }
    assert!(early > 300, "{early} FPDUs placed early");
}

// The test runs with markers and without. Segments that were discarded are sent again, cut as before, and are
// delivered exactly once. Segments that were placed are not needed again.
#[test]
fn what_was_given_up_and_comes_again_arrives_once() {
    let mut dice = Dice::split_mix(9);
    let streams = streams(&mut dice, 120);
    let (mut gone, mut early) = ([0, 0], 0);
    for (case, Stream { markers, crc, ulpdus, wire }) in streams.into_iter().enumerate() {
        let start = 20 + dice.index(1 << 20) as u64;
        let mut receiver = Receiver::new(start, markers, crc);
        let (smallest, largest) = [(1, 60), (1, 600), (400, 1460)][case % 3];
        let mut segments = cut(&mut dice, wire.len(), smallest, largest);
        dice.shuffle(&mut segments);
        // Each round sends every segment once. The rounds end when no byte is missing.
        for round in 0.. {
            for (from, to) in &segments {
                receiver.segment(start + *from as u64, &wire[*from..*to], 2048).unwrap();
                if round < 3 && dice.index(6) == 0 {
                    let pinned = receiver.deframer.pinned_bytes();
                    let went = receiver.give_up(1 + dice.index(3000));
                    gone[usize::from(markers)] += went;
                    assert_eq!(went > 0, receiver.deframer.pinned_bytes() < pinned);
                }
            }
            if receiver.frontier() == start + wire.len() as u64 {
                break;
            }
            assert!(round < 5, "case {case}");
        }
        assert!(receiver.deframer.at_boundary(), "case {case}");
        early += receiver.deframer.counters().early_fpdus;
        assert!(receiver.finish().ulpdus == ulpdus, "case {case}");
    }
    assert!(gone.iter().all(|bytes| *bytes > 100_000) && early > 100, "{gone:?}, {early} early");
}

// Proves MPA-033, MPA-131, MPA-278, MPA-282, DDP-033: each FPDU is in a segment of its own, and the first
// segment is lost. All FPDUs behind the loss are placed before the hole is filled, whether a marker or the
// length of the previous FPDU shows where they begin. The bytes of placed FPDUs are released.
#[test]
fn aligned_segments_behind_a_loss_are_placed() {
    let mut dice = Dice::split_mix(2);
    let mut framer = Framer::new(true, true);
    let emss = 1460;
    let ulpdus: Vec<_> = (0..40).map(|_| framer.mulpdu(emss)).map(|bytes| dice.bytes(bytes)).collect();
    let mut receiver = Receiver::new(0, true, true);
    let mut segments = Vec::new();
    for ulpdu in &ulpdus {
        let at = framer.position();
        let mut wire = vec![0; framer.wire_len(ulpdu.len())];
        framer.frame(&mut wire, ulpdu);
        segments.push((at, wire));
    }
    for (at, wire) in &segments[1..] {
        receiver.segment(*at, wire, 2048).unwrap();
    }
    assert_eq!((receiver.sink.placed, receiver.sink.ulpdus.len()), (39, 0));
    assert_eq!((receiver.ahead, receiver.slab.buffers().0, receiver.slab.early_fpdus().0), (0, 0, 39));
    receiver.segment(0, &segments[0].1, 2048).unwrap();
    assert!(receiver.deframer.at_boundary());
    assert!(receiver.finish().ulpdus == ulpdus);
}

/// Returns the deframer's result for a stream: the delivered ULPDUs, the error code or 0, and the ULPDUs that
/// were placed early and not delivered.
fn decode(
    wire: &[u8],
    segments: &[(usize, usize)],
    markers: bool,
    crc: bool,
) -> (Vec<Vec<u8>>, u8, Vec<Vec<u8>>) {
    let mut receiver = Receiver::new(0, markers, crc);
    let mut code = 0;
    for (from, to) in segments {
        if let Err(error) = receiver.segment(*from as u64, &wire[*from..*to], 2048) {
            assert_eq!(code, 0, "an error is raised once");
            code = error.code();
        }
    }
    let sink = receiver.finish();
    (sink.ulpdus, code, sink.early.into_values().collect())
}

// Proves MPA-056, MPA-128, MPA-132, MPA-044, MPA-096, DDP-035: with one wrong bit, the delivered ULPDUs are
// those of the reference, in any order of arrival. The error code is also that of the reference; only if the
// segments arrive out of order, it may be 3 instead. Every ULPDU that was placed early had been sent.
#[test]
fn a_wrong_bit_is_met_at_the_frontier_only() {
    let mut dice = Dice::split_mix(3);
    let streams = streams(&mut dice, 120);
    let streams: Vec<_> = streams
        .into_iter()
        .map(|Stream { markers, ulpdus, mut wire, .. }| {
            let bit = dice.index(8 * wire.len());
            wire[bit / 8] ^= 1 << (bit % 8);
            (markers, ulpdus, wire)
        })
        .collect();
    let input: String =
        streams.iter().map(|(m, _, wire)| format!("{} 1 0 {}\n", u8::from(*m), hex(wire))).collect();
    let output = reference(DECODE, &input);
    let mut errors = 0;
    for (case, ((markers, ulpdus, wire), line)) in streams.iter().zip(output.lines()).enumerate() {
        let mut words = line.split(' ');
        let code: u8 = words.next().unwrap().parse().unwrap();
        let expected: Vec<Vec<u8>> = words.map(from_hex).collect();
        let mut segments = cut(&mut dice, wire.len(), 300, 1460);
        // If the segments arrive in order, the ULPDUs and the error code are exactly those of the reference.
        let (got, our_code, _) = decode(wire, &segments, *markers, true);
        assert!(got == expected, "case {case}");
        // The streams of the cases without CRC contain no CRCs, so their first FPDU causes code 2.
        assert_eq!(our_code, code, "case {case}");
        dice.shuffle(&mut segments);
        let (got, our_code, early) = decode(wire, &segments, *markers, true);
        assert!(got == expected, "case {case}");
        // Out of order, a wrong length may make an FPDU overlap a placed FPDU. The error then has code 3, and
        // is found earlier.
        assert!(our_code == code || our_code == 3, "case {case}: {our_code}, not {code}");
        assert!(early.iter().all(|early| ulpdus.contains(early)), "case {case}");
        errors += usize::from(code != 0);
    }
    assert!(errors > 60, "{errors} errors");
}

// Proves MPA-045, MPA-158, MPA-160: without CRC, the CRC field is ignored, but markers are still checked.
#[test]
fn without_crc_any_field_will_do() {
    let mut wire = ours(true, false, 0, &[vec![7; 600], vec![8; 10]]);
    let end = wire.len();
    wire[end - 4..].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(decode(&wire, &[(0, end)], true, false).0, [vec![7; 600], vec![8; 10]]);
    wire[515] ^= 4;
    let mut receiver = Receiver::new(0, true, false);
    assert_eq!(receiver.segment(0, &wire, 2048), Err(MpaError::Marker { position: 0 }));
    assert!(receiver.finish().ulpdus.is_empty());
}
