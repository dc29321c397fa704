//! Tests of checksums: for example, of known frames, of frames that [`complete`] refuses, and of random
//! bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// An IPv4 SYN 192.0.2.1:4660 -> 192.0.2.2:80 whose checksum fields are zero. The sum of the words of the
/// IPv4 header is 0x0934, and the sum of the pseudo-header and the TCP segment is 0xeaa5. Both sums were
/// computed by hand.
const SYN_V4: &str = "0200000000020200000000010800\
    450000280001000040060000c0000201c0000202\
    12340050000000010000000050020400\
    00000000";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Whether the transport checksum is right: the sum of all words and of the pseudo-header is 0xffff (RFC 1071
/// section 1).
fn verifies(addresses: &[u8], protocol: u8, segment: &[u8]) -> bool {
    let mut pseudo = addresses.to_vec();
    pseudo.extend((segment.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    fold(folded(&pseudo) + folded(segment)) == 0xffff
}

#[test]
fn tcp_over_ipv4_is_completed_whatever_the_field_held() {
    for garbage in [[0, 0], [0xde, 0xad]] {
        let mut frame = bytes(SYN_V4);
        frame[50..52].copy_from_slice(&garbage);
        assert!(complete(&mut frame) && complete_ipv4_header(&mut frame));
        assert!(verifies(&frame[26..34], 6, &frame[34..]));
        assert_eq!(fold(folded(&frame[14..34])), 0xffff);
        assert_eq!((u16_at(&frame, 24), u16_at(&frame, 50)), (Some(!0x0934), Some(!0xeaa5)));
    }
}

#[test]
fn vlan_tags_odd_payloads_and_padding_behind_the_packet_are_understood() {
    let mut frame = bytes(SYN_V4);
    frame[16..18].copy_from_slice(&43_u16.to_be_bytes());
    frame.extend(b"odd");
    frame.extend([0xff; 7]);
    frame.splice(12..12, bytes("88a8000a8100000b"));
    assert!(complete(&mut frame));
    assert!(verifies(&frame[34..42], 6, &frame[42..65]));
    assert_eq!(frame[65..], [0xff; 7]);
}

#[test]
fn tcp_and_udp_over_ipv6_are_completed_behind_extension_headers() {
    for (protocol, segment_bytes) in [(6_u8, 33_usize), (17, 9)] {
        let mut frame = bytes("02000000000202000000000186dd");
        let payload = 16 + segment_bytes as u16;
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(payload.to_be_bytes());
        frame.extend([0, 64]);
        frame.extend((0..32).map(|i| i * 7));
        frame.extend([60, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend((0..segment_bytes).map(|i| i as u8 ^ 0x3c));
        assert!(complete(&mut frame));
        assert!(verifies(&frame[22..54], protocol, &frame[70..]));
    }
}

#[test]
fn fragments_short_frames_and_other_protocols_are_left_alone() {
    let whole = bytes(SYN_V4);
    for (at, value) in [(12, 0x08), (20, 0x20), (21, 0x01), (23, 1), (14, 0x65), (14, 0x44), (17, 60)] {
        let mut frame = whole.clone();
        frame[at] = if at == 12 { 0x09 } else { value };
        let before = frame.clone();
        assert!(!complete(&mut frame), "byte {at}");
        assert_eq!(frame, before);
    }
    for cut in 0..whole.len() {
        assert!(!complete(&mut whole[..cut].to_vec()));
    }
}

proptest! {
    #[test]
    fn no_frame_makes_it_panic(start in 0..3_usize, mut tail in vec(any::<u8>(), 0..120)) {
        let starts = ["", "0200000000020200000000010800", "02000000000202000000000186dd"];
        let mut frame = bytes(starts[start]);
        if let (1.., Some(first)) = (start, tail.first_mut()) {
            *first = if start == 1 { 0x45 } else { 0x60 };
        }
        frame.extend(tail);
        complete(&mut frame);
        complete_ipv4_header(&mut frame);
    }
}
