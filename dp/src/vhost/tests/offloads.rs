//! Checksums and uncut TCP frames, with drivers that accept them and with drivers that do not.

use testkit::folder::Folder;

use super::super::device::FROM_DRIVER;
use super::super::features;
use super::driver::{ALL, BUFFER_BYTES, Driver};
use super::{build, config, flat, open, pattern, receive, send, wait_for_link};
use crate::{Checksum, Link, LinkState, Offloads, Port, Statistics, TxOffload, checksum, vhost};

/// An IPv4 TCP frame with the sum of the pseudo-header in its checksum field.
fn tcp_frame(bytes: usize, tcp_flags: u8) -> Vec<u8> {
    let mut frame = pattern(1, bytes);
    let ip_bytes = (bytes - 14) as u16;
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
    frame[46] = 0x50;
    frame[47] = tcp_flags;
    let sum = 0x0a00 * 2 + 3 + 6 + u32::from(ip_bytes - 20);
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[50..52].copy_from_slice(&(folded as u16).to_be_bytes());
    frame
}

fn offload(tso_segment_bytes: u16) -> TxOffload {
    TxOffload {
        tcp_checksum: true,
        tso_segment_bytes,
        l2_bytes: 14,
        l3_bytes: 20,
        l4_bytes: 20,
        ..TxOffload::default()
    }
}

fn word(header: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

#[test]
fn a_partial_checksum_is_reported_as_partial() {
    let folder = Folder::new("vhost-partial");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    for (flags, state) in [(0, Checksum::Unknown), (1, Checksum::Partial), (2, Checksum::Unknown)] {
        let mut header = [0; 12];
        header[0] = flags;
        // The flags are behind the first descriptor's byte if the header is split.
        for lengths in [&[][..], &[1, 1, 20]] {
            driver.send(0, &header, &tcp_frame(100, 0x10), lengths);
            assert_eq!(receive(&mut port)[0].rx_checksum(), state, "{flags}");
            driver.take_used(FROM_DRIVER);
        }
    }
}

#[test]
fn a_superframe_of_the_driver_arrives_whole() {
    let folder = Folder::new("vhost-superframe");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let frame = tcp_frame(14 + 65_535, 0x10);
    let mut header = [0; 12];
    (header[0], header[1]) = (1, 1);
    driver.send(0, &header, &frame, &[12 + 66, 30_000, 30_000]);
    let received = receive(&mut port);
    assert_eq!((received[0].segment_count(), received[0].rx_checksum()), (1, Checksum::Partial));
    assert!(flat(&received[0]) == frame);
}

#[test]
fn checksums_and_cuts_are_left_to_a_driver_that_accepts_them() {
    let folder = Folder::new("vhost-offloads");
    for (cut, flags, gso) in [(0, 0x10, 0), (1000, 0x10, 1), (1000, 0x90, 0x81)] {
        let mut port = open(&folder);
        let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
        wait_for_link(&mut port, LinkState::Up);
        assert!(port.passes_large_frames());
        let bytes = if cut == 0 { 1514 } else { 20_000 };
        let frame = tcp_frame(bytes, flags);
        let mut sent = build(&port, &frame, 9000);
        sent.set_tx_offload(offload(cut));
        (0..20).for_each(|nr| driver.post(nr, 1526));
        assert!(send(&mut port, sent));
        let arrived = driver.arrived();
        let (header, data) = &arrived[0];
        assert!(*data == frame);
        assert_eq!((header[0], header[1]), (1, gso));
        let expected = [54, cut, 34, 16, (bytes + 12).div_ceil(1526) as u16];
        assert_eq!([2, 4, 6, 8, 10].map(|at| word(header, at)), expected);
    }
}

#[test]
fn a_driver_without_offloads_gets_complete_pieces() {
    let folder = Folder::new("vhost-software");
    for missing in [
        features::GUEST_CSUM | features::GUEST_TSO4 | features::GUEST_TSO6,
        features::GUEST_TSO4,
        features::GUEST_TSO6,
        features::MRG_RXBUF,
    ] {
        let mut port = open(&folder);
        let mut driver = Driver::start(&folder.join("wire.sock"), ALL & !missing);
        wait_for_link(&mut port, LinkState::Up);
        assert!(!port.passes_large_frames());
        let frame = tcp_frame(54 + 3500, 0x18);
        let mut sent = build(&port, &frame, 900);
        sent.set_tx_offload(offload(1000));
        (0..3).for_each(|nr| driver.post(nr, 2048));
        let refused = build_again(&port, &frame);
        assert!(!send(&mut port, refused), "four pieces need four buffers");
        driver.post(3, 2048);
        assert!(send(&mut port, sent));
        let arrived = driver.arrived();
        let lengths: Vec<usize> = arrived.iter().map(|(_, data)| data.len()).collect();
        assert_eq!(lengths, [1054, 1054, 1054, 554], "{missing:#x}");
        let mut payload = Vec::new();
        for (header, data) in &arrived {
            assert_eq!((header[0], header[1]), (0, 0), "the checksums are complete");
            let mut again = data.clone();
            assert!(checksum::complete(&mut again) && again == *data);
            payload.extend_from_slice(&data[54..]);
        }
        assert!(payload == frame[54..]);
        assert_eq!(port.counters().tx_frames, 4);
    }
}

fn build_again(port: &vhost::VhostPort, frame: &[u8]) -> crate::Mbuf {
    let mut sent = build(port, frame, 900);
    sent.set_tx_offload(offload(1000));
    sent
}

#[test]
fn a_driver_without_checksums_gets_complete_ones() {
    let folder = Folder::new("vhost-sums");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL & !features::GUEST_CSUM);
    wait_for_link(&mut port, LinkState::Up);
    driver.post(0, BUFFER_BYTES);
    let mut frame = tcp_frame(1514, 0x10);
    let mut sent = build(&port, &frame, 1514);
    sent.set_tx_offload(offload(0));
    assert!(send(&mut port, sent));
    assert!(checksum::complete(&mut frame) && checksum::complete_ipv4_header(&mut frame));
    let arrived = driver.arrived();
    assert!(arrived[0].1 == frame && arrived[0].0[..10] == [0; 10]);
}

#[test]
fn the_options_choose_the_offered_features() {
    let offered = features::offered;
    let all = offered(Offloads::all());
    assert_eq!(all & ALL, ALL);
    let without = |offload: Offloads| all & !offered(Offloads::all() - offload);
    let tso = features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
    let lro = features::HOST_TSO4 | features::HOST_TSO6 | features::HOST_ECN;
    assert_eq!(without(Offloads::TX_TSO), tso);
    assert_eq!(without(Offloads::TX_TCP_CHECKSUM), tso | features::GUEST_CSUM);
    assert_eq!(without(Offloads::TX_MULTI_SEGMENT), tso | features::MRG_RXBUF);
    assert_eq!(without(Offloads::RX_LRO), lro);
    assert_eq!(without(Offloads::RX_TCP_CHECKSUM), lro | features::CSUM);
    // A driver may not accept what was not offered.
    let folder = Folder::new("vhost-offered");
    let config = vhost::VhostConfig { offloads: Offloads::empty(), ..config(&folder) };
    let port = vhost::open(&config).unwrap();
    assert_eq!(port.info().offloads & Offloads::RX_LRO, Offloads::empty());
    let driver = Driver::connect(&config.path);
    let accepted = super::driver::words(&[features::VERSION_1 | features::CSUM]);
    assert!(!driver.ask(super::driver::message::SET_FEATURES, &accepted, &[]));
    assert!(driver.is_closed());
}
