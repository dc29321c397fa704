//! The packets of UD messages in RoCEv2, and the messages of connection managers in them. Some inputs are
//! arbitrary bytes. Other inputs are a packet of a message, in which bits change on the way.
//!
//! Rules: whatever is accepted has the lengths of its headers; a sent message is received; an ICRC covers
//! exactly the bits that do not change on the way; the answer to a message goes to its sender; a message of a
//! connection manager that is accepted is the message that is sent again.

use std::net::IpAddr;

use iwarp::roce::{self, CmAddresses, Icrc, MAD_BYTES, Qpn, SidrMessage, SidrReply, UdSend};

use crate::input::Input;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.one_in(4) {
        any_bytes(input.bytes(128));
    } else {
        message(&mut input);
    }
    management(&mut input);
}

/// A management datagram whose header is close to that of a message, and whose other bytes repeat a few
/// bytes.
fn management(input: &mut Input<'_>) {
    let seed = [input.bytes(44), &[0]].concat();
    let mut mad: Vec<u8> = seed.iter().copied().cycle().take(MAD_BYTES).collect();
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&[0, 0x17 + input.u8() % 3]);
    if input.one_in(2) {
        mad[input.below(18)] ^= input.u8();
    }
    if input.one_in(8) {
        mad.truncate(input.below(MAD_BYTES + 1));
    }
    let Ok(message) = SidrMessage::parse(&mad) else { return };
    assert_eq!(mad.len(), MAD_BYTES);
    let sent = message.to_bytes();
    assert_eq!(SidrMessage::parse(&sent), Ok(message));
    match message {
        SidrMessage::Request(request) => {
            assert_eq!(request.private_data, mad[40..]);
            let refusal = request.refusal(SidrReply::REJECTED);
            assert_eq!((refusal.request_id, refusal.transaction), (request.request_id, request.transaction));
            if let Some(port) = request.port() {
                assert_eq!(request.service.to_be_bytes()[4..], [[1, 0x11], port.to_be_bytes()].concat());
            }
            let header = request.private_data.first_chunk().expect("a longer field");
            if let Some(addresses) = CmAddresses::parse(header) {
                assert_eq!(addresses.source.is_ipv4(), addresses.destination.is_ipv4());
                assert_eq!(CmAddresses::parse(&addresses.to_bytes()), Some(addresses));
            }
        }
        SidrMessage::Reply(reply) => assert_eq!(reply.private_data, mad[120..]),
    }
}

fn any_bytes(bytes: &[u8]) {
    if let Ok((send, payload)) = UdSend::parse(bytes) {
        assert_eq!(payload.start, send.header_bytes());
        assert_eq!(send.frame_bytes(payload.len()), bytes.len());
    }
    let mut packet = bytes.to_vec();
    let sealed = roce::seal(&mut packet);
    assert_eq!(sealed, roce::check(&packet), "sealed, and not right");
    assert_eq!(roce::icrc(bytes), roce::icrc(&packet), "the ICRC depends on its own field");
    if let Ok((_, payload)) = UdSend::of_packet(&packet) {
        assert!(payload.end + roce::ICRC_BYTES <= packet.len());
    }
    if let Ok(grh) = roce::grh(bytes) {
        assert!(roce::source_of(&grh).is_some());
    }
    if let Some((grh, _)) = bytes.split_first_chunk() {
        let _ = roce::source_of(grh);
    }
    if let Ok((_, rest)) = Icrc::begin(bytes) {
        assert!(rest.start <= bytes.len() && rest.start <= rest.end);
    }
}

fn message(input: &mut Input<'_>) {
    let send = send(input);
    let v6 = input.one_in(2);
    let payload = input.bytes(80);
    let (ip_bytes, mut packet) = headers(input, v6, &send, payload.len());
    let addresses = addresses(&packet);
    let udp_payload = packet.len();
    packet.resize(udp_payload + send.frame_bytes(payload.len()), 0xee);
    let at = send.write(payload.len(), &mut packet[udp_payload..]);
    packet[udp_payload..][at].copy_from_slice(payload);
    roce::seal(&mut packet).expect("a whole packet");
    let whole = packet.len();
    packet.extend(input.bytes(8));

    let (received, range) = UdSend::of_packet(&packet).expect("a valid message");
    assert_eq!((received, &packet[range]), (send, payload));
    let grh = roce::grh(&packet).expect("a valid message");
    let source = roce::source_of(&grh).expect("the headers of a valid message");
    assert_eq!((source.source, source.destination), addresses);

    // Masked bits may change; then another bit, or the end of the packet.
    for _ in 0..input.below(4) {
        let at = input.below(whole);
        packet[at] ^= input.u8() & mask(ip_bytes, at);
    }
    assert_eq!(UdSend::of_packet(&packet).map(|(received, _)| received), Ok(send));
    let at = input.below(whole);
    let changed = input.u8() & !mask(ip_bytes, at);
    packet[at] ^= changed;
    assert_eq!(UdSend::of_packet(&packet).is_ok(), changed == 0, "{changed:#x} at {at}");
    packet[at] ^= changed;
    packet.truncate(input.below(whole));
    assert!(UdSend::of_packet(&packet).is_err());
}

fn send(input: &mut Input<'_>) -> UdSend {
    let mut qpn = || {
        let number = match input.below(8) {
            0 => Qpn::MULTICAST.get(),
            1 => 1,
            _ => input.u32() >> 8,
        };
        Qpn::new(number.max(1)).expect("24 bits")
    };
    let (dest_qp, src_qp) = (qpn(), qpn());
    UdSend {
        solicited: input.one_in(2),
        pkey: if input.one_in(4) { 0x7fff } else { roce::DEFAULT_PKEY },
        dest_qp,
        psn: input.u32() >> 8,
        qkey: if dest_qp == Qpn::GSI { roce::GSI_QKEY } else { input.u32() },
        src_qp,
        immediate: input.one_in(2).then(|| input.u32().to_be_bytes()),
    }
}

/// Returns the number of bytes of the IP header, and the headers up to UDP.
fn headers(input: &mut Input<'_>, v6: bool, send: &UdSend, payload_bytes: usize) -> (usize, Vec<u8>) {
    let udp_bytes = (8 + send.frame_bytes(payload_bytes)) as u16;
    let to_group = send.dest_qp == Qpn::MULTICAST;
    let mut headers;
    if v6 {
        headers = (0x6000_0000 | input.u32() >> 4).to_be_bytes().to_vec();
        headers.extend(udp_bytes.to_be_bytes());
        headers.extend([17, input.u8()]);
        headers.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, input.u8()]);
        headers.extend([
            if to_group { 0xff } else { 0xfe },
            2,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            input.u8(),
        ]);
    } else {
        headers = vec![0x45, input.u8()];
        headers.extend((20 + udp_bytes).to_be_bytes());
        headers.extend([input.u8(), input.u8(), 0x40, 0, input.u8(), 17, input.u8(), input.u8()]);
        headers.extend([10, input.u8(), input.u8(), input.u8()]);
        headers.extend([if to_group { 239 } else { 10 }, input.u8(), input.u8(), input.u8()]);
    }
    let ip_bytes = headers.len();
    headers.extend(input.u16().to_be_bytes());
    headers.extend(roce::UDP_PORT.to_be_bytes());
    headers.extend(udp_bytes.to_be_bytes());
    headers.extend(input.u16().to_be_bytes());
    (ip_bytes, headers)
}

/// Returns the source and the destination of a packet.
fn addresses(packet: &[u8]) -> (IpAddr, IpAddr) {
    let v6 = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).expect("16 bytes").into();
    let v4 = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).expect("4 bytes").into();
    if packet[0] >> 4 == 6 { (v6(8), v6(24)) } else { (v4(12), v4(16)) }
}

/// Returns the bits of a byte that may change on the way.
fn mask(ip_bytes: usize, at: usize) -> u8 {
    let whole = match ip_bytes {
        20 => matches!(at, 1 | 8 | 10 | 11),
        _ => matches!(at, 1..=3 | 7),
    };
    if whole || matches!(at.checked_sub(ip_bytes), Some(6 | 7 | 12)) {
        0xff
    } else if ip_bytes == 40 && at == 0 {
        0x0f
    } else {
        0
    }
}
