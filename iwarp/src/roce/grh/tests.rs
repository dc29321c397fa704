use std::net::IpAddr;

use proptest::prelude::*;

use super::{GRH_BYTES, IPV4_AT, Source, checksum_is_right, grh, source_of};
use crate::roce::Fault;
use crate::roce::captures::{self, bytes};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_ipv4_header_is_behind_twenty_zeros() {
    let packet = bytes(captures::CONNECTX_CONNECT);
    let grh = grh(&packet).unwrap();
    assert_eq!(grh[..IPV4_AT], [0; 20]);
    assert_eq!(grh[IPV4_AT..], packet[..20]);
    let source = Source {
        source: ip("192.170.1.2"),
        destination: ip("192.170.1.50"),
        traffic_class: 2,
        flow_label: 0,
        hop_limit: 64,
    };
    assert_eq!(source_of(&grh), Some(source));
}

#[test]
fn an_ipv6_header_fills_the_grh() {
    let packet = bytes(captures::SCAPY_IPV6);
    let grh = grh(&packet).unwrap();
    assert_eq!(grh[..], packet[..40]);
    let source = Source {
        source: ip("2022::1023"),
        destination: ip("2023::1024"),
        traffic_class: 226,
        flow_label: 0x1_face,
        hop_limit: 255,
    };
    assert_eq!(source_of(&grh), Some(source));
}

/// A receive buffer keeps its bytes in front of an IPv4 header on some NICs, for example an IPv6 header of an
/// earlier packet.
#[test]
fn old_bytes_do_not_hide_an_ipv4_header() {
    let packet = bytes(captures::RXE_CONNECT);
    let mut bytes_of_both = grh(&bytes(captures::SCAPY_IPV6)).unwrap();
    bytes_of_both[IPV4_AT..].copy_from_slice(&packet[..20]);
    assert_eq!(source_of(&bytes_of_both).map(|source| source.source), Some(ip("192.170.1.2")));

    // With a wrong checksum, the bytes are an IPv6 header.
    bytes_of_both[39] ^= 1;
    assert_eq!(source_of(&bytes_of_both).map(|source| source.source), Some(ip("2022::4500:134")));
    // If the first bytes are no IPv6 header, the checksum does not matter.
    bytes_of_both[0] = 0xff;
    assert_eq!(source_of(&bytes_of_both).map(|source| source.source), Some(ip("192.170.1.2")));
}

#[test]
fn other_bytes_have_no_source() {
    assert_eq!(source_of(&[0; GRH_BYTES]), None);
    assert_eq!(source_of(&[0xff; GRH_BYTES]), None);
    // RoCEv1 has the next header 0x1b.
    let mut grh = grh(&bytes(captures::SCAPY_IPV6)).unwrap();
    grh[6] = 0x1b;
    assert_eq!(source_of(&grh), None);
}

#[test]
fn other_packets_have_no_grh() {
    let packet = bytes(captures::RXE_CONNECT);
    assert_eq!(grh(&packet[..27]), Err(Fault::Packet));
    assert_eq!(grh(&[]), Err(Fault::Packet));
    let mut options = packet.clone();
    options[0] = 0x46;
    assert_eq!(grh(&options), Err(Fault::Packet));
}

#[test]
fn a_checksum_adds_its_carry() {
    let words = |words: [u16; 10]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    assert!(checksum_is_right(&words([0xffff; 10])));
    assert!(checksum_is_right(&words([0xffff, 0xffff, 0xfffe, 1, 0, 0, 0, 0, 0, 0])));
    assert!(!checksum_is_right(&words([0xffff, 0xffff, 0xfffe, 2, 0, 0, 0, 0, 0, 0])));
    assert!(!checksum_is_right(&words([0xffff, 1, 0, 0, 0, 0, 0, 0, 0, 0])));
    assert!(!checksum_is_right(&words([0; 10])));
}

proptest! {
    #[test]
    fn any_bytes_may_be_looked_at(mut bytes: [u8; GRH_BYTES], version in 0_u8..16) {
        let _ = source_of(&bytes);
        bytes[0] = version << 4 | bytes[0] & 0x0f;
        let _ = source_of(&bytes);
        let _ = grh(&bytes);
    }
}
