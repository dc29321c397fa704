use proptest::prelude::*;

use super::*;

/// One byte of a direction with markers: part of a marker, or the content byte with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Marker,
    Content(u64),
}

/// Returns the first `bytes` bytes of a direction with markers, found byte by byte.
fn walk(bytes: u64) -> Vec<Byte> {
    let mut content = 0;
    (0..bytes)
        .map(|position| {
            if position % 512 < 4 {
                return Byte::Marker;
            }
            content += 1;
            Byte::Content(content - 1)
        })
        .collect()
}

// Proves MPA-059, MPA-065 to MPA-067: the positions of markers and content are those that a walk byte by byte
// finds.
#[test]
fn content_lies_between_the_markers() {
    let direction = walk(20_000);
    for (position, byte) in direction.iter().enumerate() {
        let position = position as u64;
        assert_eq!(begins_at(position), *byte == Byte::Marker && position & 3 == 0 && position & 511 == 0);
        if let Byte::Content(index) = *byte {
            assert_eq!(nth_content(4, index, true), position);
            assert_eq!(index, position - 4 * (position / 512 + 1));
        }
    }
}

// FPDUs that begin or end near a marker. The columns are start, ULPDU bytes, marker, FPDUPTR and end.
#[test]
fn edge_positions() {
    for (start, ulpdu, marker, pointed, end) in [
        (0, 42, 0, 0, 52),
        (512, 42, 512, 0, 564),
        (508, 8, 512, 4, 528),
        (500, 16, 512, 12, 528),
        (492, 42, 512, 20, 544),
        (504, 5, 512, 8, 520),
        (508, 1, 512, 4, 520),
        (508, 1442, 1536, 1028, 508 + 1448 + 12),
    ] {
        let header = length_field_of(start, true);
        assert_eq!(start_of(header, true), start);
        assert_eq!(pointer(marker, header), pointed);
        assert_eq!(target(marker, pointed), Some(header));
        assert_eq!(fpdu_end(start, ulpdu, true), end);
    }
    // This FPDU ends exactly where a marker is due: the marker belongs to the next FPDU.
    assert_eq!(fpdu_end(500, 4, true), 512);
    assert_eq!(count(500, 512), 0);
}

// Proves MPA-060, MPA-069.
#[test]
fn all_markers_of_an_fpdu_point_to_its_length() {
    let header = 508;
    let pointers: Vec<u64> = [512, 1024, 1536].into_iter().map(|marker| pointer(marker, header)).collect();
    assert_eq!(pointers, [4, 516, 1028]);
    assert!(pointers.iter().zip([512, 1024, 1536]).all(|(p, marker)| target(marker, *p) == Some(header)));
}

// Proves MPA-071: at no position does a marker split a length field and the two bytes after it, the four
// bytes before a CRC, or a CRC.
#[test]
fn a_marker_splits_no_field() {
    for (start, ulpdu) in (0..128).flat_map(|word| (0..=520).map(move |ulpdu| (4 * word, ulpdu))) {
        let (header, end) = (length_field_of(start, true), fpdu_end(start, ulpdu, true));
        let padded = nth_content(header, fpdu_bytes(ulpdu) as u64 - 8, true);
        for word in [header, padded, end - 4] {
            assert!((word..word + 4).all(|at| at % 512 >= 4), "{ulpdu} bytes at {start}: {word}");
        }
        let mut distances = (start..end).filter(|at| begins_at(*at)).map(|at| pointer(at, header));
        assert!(distances.all(|distance| distance % 4 == 0), "{ulpdu} bytes at {start}");
    }
}

#[test]
fn markers_of_emss_sized_ranges() {
    for (range, offsets) in [
        (0..1460, &[0, 512, 1024][..]),
        (1460..2920, &[1536, 2048, 2560]),
        (2920..4380, &[3072, 3584, 4096]),
        (4..512, &[]),
    ] {
        let mut found = Vec::new();
        let mut at = at_or_after(range.start);
        while at < range.end {
            found.push(at);
            at += INTERVAL;
        }
        assert_eq!(found, offsets);
        assert_eq!(count(range.start, range.end), offsets.len() as u64);
    }
}

// Proves MPA-051, MPA-054: reserved bytes and the two low bits are ignored.
#[test]
fn a_received_marker_is_read_tolerantly() {
    assert_eq!(decode([0xff, 0xff, 0x00, 0x17]), 0x14);
    assert_eq!(encode(0x14), [0, 0, 0, 0x14]);
}

#[test]
fn a_pointer_into_a_marker_or_before_the_stream_leads_nowhere() {
    assert_eq!(target(512, 516), None);
    assert_eq!(target(1024, 512), None);
    assert_eq!(target(512, 512), None);
    assert_eq!(target(512, 508), Some(4));
}

// The length of the longest FPDU, which limits FPDUPTR.
#[test]
fn the_longest_fpdu() {
    let longest = (0..128).map(|word| fpdu_end(4 * word, 64_768, true) - 4 * word).max();
    assert_eq!(longest, Some(65_288));
}

proptest! {
    #[test]
    fn the_end_of_an_fpdu_is_where_a_walk_ends(word in 0_u64..2000, ulpdu in 0_usize..9000, markers: bool) {
        let start = 4 * word;
        let mut left = fpdu_bytes(ulpdu);
        let mut position = start;
        let mut seen = 0;
        while left > 0 {
            if markers && position % 512 == 0 {
                position += 4;
                seen += 1;
            } else {
                position += 1;
                left -= 1;
            }
        }
        prop_assert_eq!(fpdu_end(start, ulpdu, markers), position);
        if markers {
            prop_assert_eq!(count(start, position), seen);
        }
        prop_assert_eq!(position % 4, 0);
    }

    #[test]
    fn every_marker_of_an_fpdu_leads_to_it(word in 0_u64..1 << 40, ulpdu in 0_usize..=64_768) {
        let start = 4 * word;
        let (header, end) = (length_field_of(start, true), fpdu_end(start, ulpdu, true));
        let mut at = at_or_after(start);
        while at < end {
            let value = pointer(at, header);
            prop_assert!(value <= 65_280);
            prop_assert_eq!(target(at, decode(encode(value))), Some(header));
            at += INTERVAL;
        }
        prop_assert_eq!(start_of(header, true), if start % 512 == 4 { start - 4 } else { start });
    }
}
