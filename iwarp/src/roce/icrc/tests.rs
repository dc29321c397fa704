use proptest::prelude::*;

use super::{ICRC_BYTES, Icrc, check, icrc, seal};
use crate::roce::captures::{self, bytes};
use crate::roce::samples::{packet, sends};
use crate::roce::{Fault, UdSend};

/// Computes Ethernet's CRC bit by bit from the polynomial.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// Returns the bits of a packet that an ICRC covers as ones, as a mask for each byte of the packet.
fn masks(packet: &[u8]) -> Vec<u8> {
    let mut masks = vec![0; packet.len()];
    let udp = if packet[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            masks[at] = 0xff;
        }
        20
    } else {
        masks[..4].copy_from_slice(&[0x0f, 0xff, 0xff, 0xff]);
        masks[7] = 0xff;
        40
    };
    // The UDP checksum, and the byte of the BTH with FECN, BECN and reserved bits.
    for at in [udp + 6, udp + 7, udp + 8 + 4] {
        masks[at] = 0xff;
    }
    masks
}

/// The slow model: the CRC of a copy of the packet in which all masked bits are set.
fn model(packet: &[u8]) -> u32 {
    let masked = packet.iter().zip(masks(packet)).map(|(byte, mask)| byte | mask);
    let covered: Vec<u8> = [0xff; 8].into_iter().chain(masked).collect();
    crc32(&covered[..covered.len() - ICRC_BYTES])
}

#[test]
fn the_crc_is_ethernets() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}

/// rxe, two NICs and Scapy have computed the ICRCs of the captured packets.
#[test]
fn captured_packets_have_the_right_icrc() {
    for digits in captures::ALL {
        let packet = bytes(digits);
        let field = *packet.last_chunk::<4>().unwrap();
        assert_eq!(icrc(&packet).map(u32::to_le_bytes), Ok(field), "{digits}");
        assert_eq!(model(&packet).to_le_bytes(), field, "{digits}");
        assert_eq!(check(&packet), Ok(()));
        let mut sealed = packet.clone();
        *sealed.last_chunk_mut().unwrap() = [0; 4];
        assert_eq!(check(&sealed), Err(Fault::Icrc));
        seal(&mut sealed).unwrap();
        assert_eq!(sealed, packet);
    }
}

/// A changed bit that an ICRC covers is noticed. All other bits may change. Bits of lengths, version,
/// protocol and fragments make the packet invalid.
#[test]
fn each_bit_of_the_captured_packets_counts_or_is_masked() {
    for digits in captures::ALL {
        let packet = bytes(digits);
        let masks = masks(&packet);
        for bit in 0..packet.len() * 8 {
            let mut changed = packet.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let is_masked = masks[bit / 8] >> (bit % 8) & 1 == 1;
            assert_eq!(check(&changed).is_ok(), is_masked, "bit {} of byte {}", bit % 8, bit / 8);
        }
    }
}

#[test]
fn bytes_behind_a_packet_are_ignored() {
    let mut packet = bytes(captures::RXE_CONNECT);
    packet.extend([0x55; 9]);
    assert_eq!(check(&packet), Ok(()));
    *packet.last_chunk_mut().unwrap() = [0; 4];
    let before = packet.clone();
    seal(&mut packet).unwrap();
    assert_eq!(packet, before);
}

#[test]
fn other_packets_have_no_icrc() {
    let (v4, v6) = (bytes(captures::RXE_CONNECT), bytes(captures::SCAPY_IPV6));
    for packet in [&v4, &v6] {
        for len in 0..packet.len() {
            assert_eq!(icrc(&packet[..len]), Err(Fault::Packet), "{len} bytes");
        }
    }
    let broken = |packet: &[u8], at: usize, byte: u8| {
        let mut packet = packet.to_vec();
        packet[at] = byte;
        icrc(&packet)
    };
    for (packet, at, byte) in [
        (&v4, 0, 0x46), // options
        (&v4, 0, 0x44),
        (&v4, 0, 0x75),
        (&v4, 6, 0x20), // more fragments
        (&v4, 6, 0x10), // a fragment's offset
        (&v4, 7, 0x01),
        (&v4, 9, 6),    // TCP
        (&v4, 3, 0x33), // lengths of IP and UDP that disagree
        (&v4, 25, 0x1f),
        (&v6, 0, 0x5e),
        (&v6, 6, 44), // a fragment header
        (&v6, 5, 45),
        (&v6, 45, 45),
    ] {
        assert_eq!(broken(packet, at, byte), Err(Fault::Packet), "{byte:#x} at {at}");
    }
    // DF and the reserved flag are no fragments. The ICRC covers both.
    assert!(broken(&v4, 6, 0xc0).is_ok());

    // UDP datagrams that have no room for a BTH and an ICRC.
    for bytes in 0..20 {
        let mut packet = v4[..28 + bytes].to_vec();
        packet[2..4].copy_from_slice(&(28 + bytes as u16).to_be_bytes());
        packet[24..26].copy_from_slice(&(8 + bytes as u16).to_be_bytes());
        let result = icrc(&packet).map(|_| ());
        assert_eq!(result, if bytes < 16 { Err(Fault::Length { bytes }) } else { Ok(()) });
    }
    // A UDP length that is shorter than the UDP header.
    let mut packet = v4[..28].to_vec();
    packet[2..4].copy_from_slice(&24_u16.to_be_bytes());
    packet[24..26].copy_from_slice(&4_u16.to_be_bytes());
    assert_eq!(icrc(&packet), Err(Fault::Packet));
}

#[test]
fn an_icrc_begins_with_whole_headers() {
    let packet = bytes(captures::SCAPY_IPV6);
    for len in 0..60 {
        assert!(Icrc::begin(&packet[..len]).is_err(), "{len} bytes");
    }
    let (_, rest) = Icrc::begin(&packet[..60]).unwrap();
    assert_eq!(rest, 60..80);
}

proptest! {
    #[test]
    fn the_icrc_is_that_of_the_model(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..300), seed: [u8; 16],
    ) {
        let packet = packet(v6, &send, &payload, seed);
        prop_assert_eq!(icrc(&packet), Ok(model(&packet)));
        prop_assert_eq!(check(&packet), Ok(()));
    }

    #[test]
    fn a_packet_may_lie_in_several_buffers(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..300), seed: [u8; 16],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let packet = packet(v6, &send, &payload, seed);
        let (mut running, rest) = Icrc::begin(&packet[..if v6 { 60 } else { 40 }]).unwrap();
        prop_assert_eq!(rest.end + 4, packet.len());
        let rest = &packet[rest];
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(rest.len() + 1)).collect();
        cuts.extend([0, rest.len()]);
        cuts.sort_unstable();
        for cut in cuts.windows(2) {
            running.update(&rest[cut[0]..cut[1]]);
        }
        prop_assert_eq!(Ok(running.finish()), icrc(&packet));
    }

    #[test]
    fn a_changed_bit_is_noticed_unless_it_is_masked(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..300), seed: [u8; 16],
        bit: prop::sample::Index,
    ) {
        let mut packet = packet(v6, &send, &payload, seed);
        let bit = bit.index(packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(check(&packet).is_ok(), masks(&packet)[bit / 8] >> (bit % 8) & 1 == 1);
    }

    /// Routers and congestion may change all masked bits at once.
    #[test]
    fn all_masked_bits_may_change(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..100), seed: [u8; 16],
        noise in prop::collection::vec(any::<u8>(), 200),
    ) {
        let mut packet = packet(v6, &send, &payload, seed);
        let before = UdSend::of_packet(&packet);
        let masks = masks(&packet);
        for (byte, (mask, noise)) in packet.iter_mut().zip(masks.iter().zip(noise)) {
            *byte ^= mask & noise;
        }
        prop_assert_eq!(UdSend::of_packet(&packet), before);
    }
}
