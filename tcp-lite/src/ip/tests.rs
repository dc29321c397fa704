use proptest::prelude::*;

use super::*;

/// Returns an IPv6 packet with the bytes `rest` after the fixed header.
fn ipv6(next_header: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, rest.len() as u8, next_header, 64];
    packet.extend([0x20; 32]);
    packet.extend(rest);
    packet
}

fn ipv4(flags: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[6..8].copy_from_slice(&flags.to_be_bytes());
    let mut checksum = InternetChecksum::new();
    checksum.add(&packet);
    packet[10..12].copy_from_slice(&checksum.finish().to_be_bytes());
    packet.extend([1, 2, 3, 4, 0, 0]);
    packet
}

#[test]
fn padding_is_not_payload() {
    let packet = ipv4(0x4000);
    let header = parse_ipv4(&packet, packet.len()).unwrap();
    assert_eq!(header.total_bytes, 24);
    assert_eq!(header.upper, Upper::Whole { protocol: 6, header_bytes: 20 });
    assert_eq!(header.dst, IpAddress::v4(10, 0, 0, 2));
}

#[test]
fn ipv4_fragments_and_damage_are_told_apart() {
    for flags in [0x2000, 0x0001, 0x1fff] {
        let packet = ipv4(flags);
        assert!(matches!(parse_ipv4(&packet, packet.len()).unwrap().upper, Upper::Fragment(_)));
    }
    let mut packet = ipv4(0);
    packet[8] ^= 1;
    assert_eq!(parse_ipv4(&packet, packet.len()), Err(Refused::Checksum));
    assert_eq!(parse_ipv4(&ipv4(0), 23), Err(Refused::Malformed));
}

#[test]
fn harmless_extensions_are_stepped_over() {
    let mut rest = vec![IPV6_DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
    rest.extend([PROTOCOL_TCP, 0, 0, 0, 0, 0, 0, 0]);
    rest.extend([9; 20]);
    let packet = ipv6(IPV6_HOP_BY_HOP, &rest);
    let header = parse_ipv6(&packet, packet.len()).unwrap();
    assert_eq!(header.upper, Upper::Whole { protocol: PROTOCOL_TCP, header_bytes: 56 });
}

#[test]
fn an_option_that_forbids_skipping_is_opaque() {
    let packet = ipv6(IPV6_HOP_BY_HOP, &[PROTOCOL_TCP, 0, 0xc2, 4, 0, 0, 0, 0, 9, 9]);
    assert_eq!(parse_ipv6(&packet, packet.len()).unwrap().upper, Upper::Opaque);
}

#[test]
fn an_ipv6_fragment_is_described() {
    let packet = ipv6(IPV6_FRAGMENT, &[PROTOCOL_TCP, 0, 0x05, 0xa9, 0, 0, 0, 7, 1, 2, 3]);
    let Upper::Fragment(fragment) = parse_ipv6(&packet, packet.len()).unwrap().upper else { panic!() };
    assert_eq!((fragment.offset, fragment.more, fragment.identification), (0x05a8, true, 7));
    assert_eq!((fragment.next_header, fragment.header_bytes), (PROTOCOL_TCP, 48));
}

proptest! {
    #[test]
    fn any_bytes_are_survived(head: Vec<u8>, more in 0usize..2000) {
        let bytes = head.len() + more;
        for parsed in [parse_ipv4(&head, bytes), parse_ipv6(&head, bytes)].into_iter().flatten() {
            prop_assert!(parsed.total_bytes <= bytes);
            if let Upper::Whole { header_bytes, .. } = parsed.upper {
                prop_assert!(header_bytes <= parsed.total_bytes);
            }
        }
    }
}
