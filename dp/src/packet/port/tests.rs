//! Tests of the decisions of a port that need no interface. `tests/tests/devices/af_packet` tests ports on
//! interfaces.

use super::*;
use crate::packet::open;

fn config() -> PacketConfig {
    PacketConfig::new("lo", ["10.0.0.1".parse().unwrap()])
}

#[test]
fn sizes_beyond_their_bounds_are_refused_before_anything_is_opened() {
    const MIB: usize = 1 << 20;
    type Field = fn(&mut PacketConfig) -> &mut usize;
    let fields: [(&str, Field, usize, usize); 5] = [
        ("mbufs", |config| &mut config.mbufs, 64, MIB),
        ("bulk_mbufs", |config| &mut config.bulk_mbufs, 0, MIB),
        ("rx_slots", |config| &mut config.rx_slots, 1, 65_536),
        ("rx_bytes", |config| &mut config.rx_bytes, 0, 512 * MIB),
        ("tx_bytes", |config| &mut config.tx_bytes, 0, 512 * MIB),
    ];
    for (name, field, least, most) in fields {
        for value in [least, most] {
            let mut config = config();
            *field(&mut config) = value;
            assert_eq!(check_sizes(&config), Ok(()), "{name}: {value}");
        }
        for value in [least.checked_sub(1), Some(most + 1)].into_iter().flatten() {
            let mut config = config();
            *field(&mut config) = value;
            let refused = open(&config).unwrap_err();
            assert_eq!(refused, PacketError::Size { what: name, value, least, most });
            assert_eq!(refused.to_string(), format!("{name} of {value}: give from {least} to {most}"));
        }
    }
}

#[test]
fn offloads_are_those_of_the_kernel_and_a_cut_needs_what_it_is_made_of() {
    let of = |offloads| super::offloads(&PacketConfig { offloads, ..config() });
    let known = VNET_OFFLOADS
        | Offloads::TX_MULTI_SEGMENT
        | Offloads::TX_EXTERNAL
        | Offloads::RX_SCATTER
        | Offloads::RX_TCP_CHECKSUM
        | Offloads::RX_LRO;
    assert_eq!(of(Offloads::all()), known, "nothing that the kernel has not");
    assert_eq!(of(Offloads::empty()), Offloads::empty());
    for missing in [Offloads::TX_TCP_CHECKSUM, Offloads::TX_MULTI_SEGMENT] {
        assert_eq!(of(known - missing), known - missing - Offloads::TX_TSO);
    }
    assert_eq!(of(known - Offloads::TX_TSO), known - Offloads::TX_TSO);
}

#[test]
fn the_kernel_tells_what_is_known_of_a_checksum() {
    use libc::{TP_STATUS_COPY, TP_STATUS_CSUM_VALID, TP_STATUS_CSUMNOTREADY, TP_STATUS_USER};
    for (status, known) in [
        (TP_STATUS_USER, Checksum::Unknown),
        (TP_STATUS_USER | TP_STATUS_COPY, Checksum::Unknown),
        (TP_STATUS_USER | TP_STATUS_CSUM_VALID, Checksum::Good),
        (TP_STATUS_USER | TP_STATUS_CSUMNOTREADY, Checksum::Partial),
        // The checksum has to be filled in, whatever the other flags say.
        (TP_STATUS_CSUM_VALID | TP_STATUS_CSUMNOTREADY, Checksum::Partial),
    ] {
        assert_eq!(checksum_state(status), known, "{status:#x}");
    }
}

#[test]
fn a_tag_goes_behind_the_ethernet_addresses_if_they_are_there() {
    let pool = Mempool::heap("tag", 4, 64);
    let frame = |bytes: usize| {
        let mut frame = pool.alloc().unwrap();
        let content: Vec<u8> = (1..=bytes as u8).collect();
        assert!(frame.append_slice(&content));
        frame
    };
    let mut tagged = frame(14);
    assert!(put_tag(&mut tagged, [0x8100, 0x6007]));
    assert_eq!(tagged.head(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0x60, 7, 13, 14]);
    let mut addresses = frame(12);
    assert!(put_tag(&mut addresses, [0x88a8, 1]));
    assert_eq!(addresses.head(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x88, 0xa8, 0, 1]);
    let mut short = frame(11);
    assert!(!put_tag(&mut short, [0x8100, 7]));
    let mut full = frame(14);
    while full.prepend(1).is_some() {}
    assert!(!put_tag(&mut full, [0x8100, 7]), "without room in front");
}
