use proptest::prelude::*;

use super::UdSend;
use crate::roce::captures::{self, bytes};
use crate::roce::samples::{packet, sends};
use crate::roce::{DEFAULT_PKEY, Fault, GSI_QKEY, Qpn, check, icrc, seal};

fn qpn(number: u32) -> Qpn {
    Qpn::new(number).unwrap()
}

fn send() -> UdSend {
    UdSend {
        solicited: true,
        pkey: DEFAULT_PKEY,
        dest_qp: qpn(0x00b1_b2b3),
        psn: 0x00c1_c2c3,
        qkey: 0xd1d2_d3d4,
        src_qp: qpn(0x00e1_e2e3),
        immediate: None,
    }
}

/// Returns the UDP payload of a message, without ICRC.
fn frame(send: &UdSend, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; send.frame_bytes(payload.len())];
    let at = send.write(payload.len(), &mut frame);
    frame[at].copy_from_slice(payload);
    frame
}

#[test]
fn golden_bytes() {
    let plain = "64e0ffff00b1b2b300c1c2c3d1d2d3d400e1e2e3616200000000 0000";
    let with_immediate = "65c07fff00b1b2b300c1c2c3d1d2d3d400e1e2e3f1f2f3f4 00000000";
    let immediate = UdSend { pkey: 0x7fff, immediate: Some([0xf1, 0xf2, 0xf3, 0xf4]), ..send() };
    for (send, payload, digits) in [(send(), &b"ab"[..], plain), (immediate, b"", with_immediate)] {
        let golden = bytes(&digits.replace(' ', ""));
        assert_eq!(frame(&send, payload), golden);
        let (parsed, at) = UdSend::parse(&golden).unwrap();
        assert_eq!((parsed, &golden[at]), (send, payload));
    }
}

#[test]
fn lengths_are_rounded_to_words() {
    let with_immediate = UdSend { immediate: Some([0; 4]), ..send() };
    assert_eq!((send().header_bytes(), with_immediate.header_bytes()), (20, 24));
    let lengths = [0, 1, 2, 3, 4, 5, 1024].map(|payload| send().frame_bytes(payload));
    assert_eq!(lengths, [24, 28, 28, 28, 28, 32, 1048]);
    assert_eq!(with_immediate.frame_bytes(1), 32);
}

/// Only headers and pad are written, in a buffer that may be longer than the frame.
#[test]
fn payload_and_icrc_are_left_to_the_caller() {
    let mut buffer = [0xee; 40];
    let payload = send().write(5, &mut buffer);
    assert_eq!(payload, 20..25);
    assert_eq!(buffer[20..25], [0xee; 5]);
    assert_eq!(buffer[25..28], [0; 3]);
    assert_eq!(buffer[28..], [0xee; 12]);
}

/// The messages of the connection managers of rxe and of a NIC.
#[test]
fn captured_messages_are_read() {
    let rxe = UdSend {
        solicited: false,
        pkey: DEFAULT_PKEY,
        dest_qp: Qpn::GSI,
        psn: 0x12,
        qkey: GSI_QKEY,
        src_qp: Qpn::GSI,
        immediate: None,
    };
    let later = UdSend { psn: 0x14, ..rxe };
    let nic = UdSend { psn: 0x1cc, ..rxe };
    for (digits, expected) in
        [(captures::RXE_CONNECT, rxe), (captures::RXE_DISCONNECT, later), (captures::CONNECTX_CONNECT, nic)]
    {
        let packet = bytes(digits);
        assert_eq!(UdSend::of_packet(&packet), Ok((expected, 48..304)));
    }
    for (digits, opcode) in [
        (captures::CONNECTX_ACK, 0x11),
        (captures::CONNECTX_CNP, 0x81),
        (captures::SCAPY_IPV4, 0x24),
        (captures::SCAPY_IPV6, 0x24),
    ] {
        assert_eq!(UdSend::of_packet(&bytes(digits)), Err(Fault::Opcode(opcode)));
    }
}

/// A message of a NIC is written again: all bytes are equal, with the migration bit.
#[test]
fn a_message_is_written_like_a_nics() {
    let captured = bytes(captures::CONNECTX_CONNECT);
    let (send, payload) = UdSend::of_packet(&captured).unwrap();
    let mut written = captured[..28].to_vec();
    written.extend(frame(&send, &captured[payload]));
    seal(&mut written).unwrap();
    assert_eq!(written, captured);
}

#[test]
fn each_fault_is_found() {
    let whole = frame(&send(), b"abcd");
    let parse = |at: usize, byte: u8| {
        let mut frame = whole.clone();
        frame[at] = byte;
        UdSend::parse(&frame).map(|_| ())
    };
    assert_eq!(parse(1, 0xc1), Err(Fault::Version(1)));
    for opcode in (0..=0xff).filter(|opcode| !matches!(opcode, 0x64 | 0x65)) {
        assert_eq!(parse(0, opcode), Err(Fault::Opcode(opcode)));
    }
    assert_eq!(parse(2, 0x7f), Ok(()));
    assert_eq!(parse(2, 0xfe), Err(Fault::Pkey(0xfeff)));
    assert_eq!(parse(3, 0xfe), Err(Fault::Pkey(0xfffe)));
    let to = |dest_qp: u32, qkey: u32| {
        UdSend::parse(&frame(&UdSend { dest_qp: qpn(dest_qp), qkey, ..send() }, b"")).map(|_| ())
    };
    assert_eq!(to(0, 5), Err(Fault::QpZero));
    let from_zero = UdSend { src_qp: qpn(0), ..send() };
    assert_eq!(UdSend::parse(&frame(&from_zero, b"")).map(|_| ()), Err(Fault::QpZero));
    assert_eq!(to(1, 5), Err(Fault::GsiQkey(5)));
    assert_eq!((to(1, GSI_QKEY), to(2, 5), to(2, GSI_QKEY)), (Ok(()), Ok(()), Ok(())));
}

#[test]
fn lengths_that_do_not_fit_are_found() {
    let with_immediate = UdSend { immediate: Some([0; 4]), ..send() };
    for (send, headers) in [(send(), 20), (with_immediate, 24)] {
        let frame = frame(&send, b"abcdefgh");
        for bytes in 0..frame.len() {
            let result = UdSend::parse(&frame[..bytes]).map(|(_, payload)| payload);
            if bytes < headers + 4 || bytes % 4 != 0 {
                assert_eq!(result, Err(Fault::Length { bytes }));
            } else {
                assert_eq!(result, Ok(headers..bytes - 4));
            }
        }
    }
}

#[test]
fn a_pad_is_at_most_the_bytes_behind_the_headers() {
    for (payload, pad, result) in [
        (0, 0, Ok(20..20)),
        (0, 1, Err(Fault::Pad { pad: 1, bytes: 0 })),
        (0, 3, Err(Fault::Pad { pad: 3, bytes: 0 })),
        (4, 0, Ok(20..24)),
        (4, 1, Ok(20..23)),
        (4, 3, Ok(20..21)),
        (8, 2, Ok(20..26)),
    ] {
        let mut frame = frame(&send(), &vec![7; payload]);
        frame[1] = frame[1] & 0xcf | pad << 4;
        assert_eq!(UdSend::parse(&frame).map(|(_, range)| range), result);
    }
}

#[test]
fn multicast_needs_both_address_and_queue_pair() {
    for v6 in [false, true] {
        let to_group = UdSend { dest_qp: Qpn::MULTICAST, ..send() };
        let group = packet(v6, &to_group, b"all", [1; 16]);
        assert_eq!(UdSend::of_packet(&group).map(|(send, _)| send), Ok(to_group));
        let unicast = packet(v6, &send(), b"one", [1; 16]);
        assert!(UdSend::of_packet(&unicast).is_ok());

        // Swaps the addresses of the two packets.
        let destination = if v6 { 24..40 } else { 16..20 };
        let (mut to_one, mut to_all) = (group.clone(), unicast.clone());
        to_one[destination.clone()].copy_from_slice(&unicast[destination.clone()]);
        to_all[destination.clone()].copy_from_slice(&group[destination]);
        seal(&mut to_one).unwrap();
        seal(&mut to_all).unwrap();
        assert_eq!(UdSend::of_packet(&to_one), Err(Fault::Multicast(Qpn::MULTICAST)));
        assert_eq!(UdSend::of_packet(&to_all), Err(Fault::Multicast(send().dest_qp)));
    }
}

#[test]
fn a_packet_needs_its_icrc() {
    let mut packet = packet(false, &send(), b"abc", [3; 16]);
    *packet.last_mut().unwrap() ^= 1;
    assert_eq!(UdSend::of_packet(&packet), Err(Fault::Icrc));
    packet.pop();
    assert_eq!(UdSend::of_packet(&packet), Err(Fault::Packet));
}

proptest! {
    #[test]
    fn a_sent_message_is_received(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..300), seed: [u8; 16],
        behind in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut packet = packet(v6, &send, &payload, seed);
        packet.extend(behind);
        let (received, range) = UdSend::of_packet(&packet).unwrap();
        prop_assert_eq!((received, &packet[range]), (send, &payload[..]));
    }

    #[test]
    fn any_bytes_may_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok((send, payload)) = UdSend::parse(&bytes) {
            prop_assert_eq!(send.frame_bytes(payload.len()), bytes.len());
        }
        let _ = (UdSend::of_packet(&bytes), icrc(&bytes), check(&bytes), seal(&mut bytes.clone()));
    }

    /// Bytes that are close to a message, so that some of them pass each check.
    #[test]
    fn changed_messages_may_be_parsed(
        v6: bool, send in sends(), payload in prop::collection::vec(any::<u8>(), 0..20), seed: [u8; 16],
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut: prop::sample::Index,
    ) {
        let mut packet = packet(v6, &send, &payload, seed);
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        let _ = UdSend::of_packet(&packet);
        let _ = UdSend::of_packet(&packet[..cut.index(packet.len() + 1)]);
        if seal(&mut packet).is_ok() && let Ok((_, range)) = UdSend::of_packet(&packet) {
            prop_assert!(range.start >= 48 && range.end + 4 <= packet.len());
        }
    }
}
