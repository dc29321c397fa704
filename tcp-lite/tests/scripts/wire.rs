//! Frames that contain a TCP segment in an IP packet, in both directions, ICMP errors about such a packet,
//! and the peer's ARP and neighbour discovery frames. This file does not use the code under test, which has
//! its own parsers and builders.

use smoltcp::wire::{IpAddress, TcpPacket, checksum};

use crate::segment::Codepoint;

pub(crate) const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
pub(crate) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

/// The addresses of both hosts.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) ours: IpAddress,
    pub(crate) peers: IpAddress,
}

impl Addresses {
    pub(crate) fn new(version: u8) -> Self {
        let [ours, peers] = match version {
            4 => ["10.0.0.1", "10.0.0.2"],
            _ => ["2001:db8::1", "2001:db8::2"],
        };
        Self { ours: ours.parse().unwrap(), peers: peers.parse().unwrap() }
    }

    pub(crate) fn is_v4(&self) -> bool {
        matches!(self.ours, IpAddress::Ipv4(_))
    }
}

/// A segment on the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) codepoint: Codepoint,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// Kind and body of each option.
    pub(crate) options: Vec<(u8, Vec<u8>)>,
    pub(crate) payload: Vec<u8>,
}

const CODEPOINTS: [Codepoint; 4] = [Codepoint::Plain, Codepoint::Ect1, Codepoint::Ect0, Codepoint::Ce];

impl Raw {
    /// Builds a frame from the peer to our host.
    pub(crate) fn emit(&self, addresses: &Addresses) -> Vec<u8> {
        let mut options = Vec::new();
        for (kind, body) in &self.options {
            options.extend([*kind, body.len() as u8 + 2]);
            options.extend(body);
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = Vec::new();
        tcp.extend(self.src_port.to_be_bytes());
        tcp.extend(self.dst_port.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((20 + options.len()) as u8 / 4) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(options);
        tcp.extend(&self.payload);
        TcpPacket::new_unchecked(&mut tcp).fill_checksum(&addresses.peers, &addresses.ours);
        let ecn = CODEPOINTS.iter().position(|it| *it == self.codepoint).unwrap_or(0) as u8;
        packet(addresses.peers, addresses.ours, 6, ecn, &tcp)
    }

    /// Parses a frame that our host has sent. Returns `None` if the frame is not TCP.
    pub(crate) fn parse(frame: &[u8], addresses: &Addresses) -> Option<Result<Self, String>> {
        let (ecn, protocol, total) = match (&frame[12..14], frame.get(14..)?) {
            ([0x08, 0x00], ip) => (ip[1] & 3, ip[9], usize::from(u16::from_be_bytes([ip[2], ip[3]]))),
            ([0x86, 0xdd], ip) => {
                (ip[1] >> 4 & 3, ip[6], 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])))
            }
            _ => return None,
        };
        let header = if addresses.is_v4() { 20 } else { 40 };
        (protocol == 6).then(|| {
            let tcp = frame.get(14 + header..14 + total).ok_or("the IP packet is longer than its frame")?;
            let packet = TcpPacket::new_checked(tcp).map_err(|error| error.to_string())?;
            if !packet.verify_checksum(&addresses.ours, &addresses.peers) {
                return Err("the TCP checksum is wrong".into());
            }
            let bytes = usize::from(packet.header_len());
            Ok(Self {
                codepoint: CODEPOINTS[usize::from(ecn)],
                src_port: packet.src_port(),
                dst_port: packet.dst_port(),
                seq: packet.seq_number().0 as u32,
                ack: packet.ack_number().0 as u32,
                flags: tcp[13],
                window: packet.window_len(),
                urgent: packet.urgent_at(),
                options: parse_options(&tcp[20..bytes])?,
                payload: tcp[bytes..].to_vec(),
            })
        })
    }

    /// Returns the bytes of the option of this kind; `None` if the segment has no such option.
    pub(crate) fn option(&self, kind: u8) -> Option<&[u8]> {
        self.options.iter().find(|(it, _)| *it == kind).map(|(_, body)| &body[..])
    }
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<(u8, Vec<u8>)>, String> {
    let mut options = Vec::new();
    loop {
        bytes = match bytes {
            [] | [0, ..] => return Ok(options),
            [1, rest @ ..] => rest,
            [kind, len, ..] if (2..=bytes.len()).contains(&usize::from(*len)) => {
                let (option, rest) = bytes.split_at(usize::from(*len));
                options.push((*kind, option[2..].to_vec()));
                rest
            }
            _ => return Err(format!("its options make no sense: {bytes:?}")),
        };
    }
}

/// Returns a frame from the peer with an IP packet, which contains `body` of `protocol`.
fn packet(src: IpAddress, dst: IpAddress, protocol: u8, ecn: u8, body: &[u8]) -> Vec<u8> {
    let ethertype = if matches!(src, IpAddress::Ipv4(_)) { [0x08, 0x00] } else { [0x86, 0xdd] };
    let mut frame = [&OUR_MAC[..], &PEER_MAC, &ethertype].concat();
    frame.extend(ip(src, dst, protocol, ecn, body.len()));
    frame.extend(body);
    frame
}

/// Returns an IP header for a payload of `len` bytes.
fn ip(src: IpAddress, dst: IpAddress, protocol: u8, ecn: u8, len: usize) -> Vec<u8> {
    let mut header = Vec::new();
    match (src, dst) {
        (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) => {
            header.extend([0x45, ecn]);
            header.extend((20 + len as u16).to_be_bytes());
            header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            header.extend(src.octets());
            header.extend(dst.octets());
            let checksum = !checksum::data(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddress::Ipv6(src), IpAddress::Ipv6(dst)) => {
            header.extend([0x60, ecn << 4, 0, 0]);
            header.extend((len as u16).to_be_bytes());
            header.extend([protocol, 64]);
            header.extend(src.octets());
            header.extend(dst.octets());
        }
        _ => unreachable!("both are of one family"),
    }
    header
}

/// ICMP errors: name, type and code for IPv4, and type and code for IPv6.
const ICMP: [(&str, [u8; 2], [u8; 2]); 8] = [
    ("too-big", [3, 4], [2, 0]),
    ("net-unreachable", [3, 0], [1, 0]),
    ("host-unreachable", [3, 1], [1, 3]),
    ("protocol-unreachable", [3, 2], [4, 1]),
    ("port-unreachable", [3, 3], [1, 4]),
    ("source-quench", [4, 0], [100, 0]),
    ("time-exceeded", [11, 0], [3, 0]),
    ("parameter-problem", [12, 0], [4, 0]),
];

/// Returns an ICMP error that quotes 28 bytes (48 bytes with IPv6) of `quoted`, an IP packet of ours; `None`
/// if `what` is no known error.
pub(crate) fn icmp(addresses: &Addresses, what: &str, mtu: u16, quoted: &[u8]) -> Option<Vec<u8>> {
    let (_, v4, v6) = ICMP.iter().find(|(name, ..)| *name == what)?;
    let [kind, code] = if addresses.is_v4() { *v4 } else { *v6 };
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    let header = if addresses.is_v4() { 20 } else { 40 };
    message.extend(&quoted[..quoted.len().min(header + 8)]);
    let (src, dst) = (addresses.peers, addresses.ours);
    let protocol = if addresses.is_v4() { 1 } else { 58 };
    let mut parts = vec![checksum::data(&message)];
    if !addresses.is_v4() {
        parts.push(checksum::pseudo_header(&src, &dst, 58.into(), message.len() as u32));
    }
    let checksum = !checksum::combine(&parts);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Some(packet(src, dst, protocol, 0, &message))
}

/// Returns an IP packet like our packets, with the first bytes of a segment that was never sent.
pub(crate) fn made_up(addresses: &Addresses, ports: [u16; 2], seq: u32) -> Vec<u8> {
    let mut tcp = [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.resize(20, 0);
    let mut packet = ip(addresses.ours, addresses.peers, 6, 0, tcp.len());
    packet.extend(tcp);
    packet
}

/// Returns the frame with which the peer announces its Ethernet address: an ARP reply or a neighbour
/// solicitation.
pub(crate) fn neighbor(addresses: &Addresses) -> Vec<u8> {
    match (addresses.peers, addresses.ours) {
        (IpAddress::Ipv4(peers), IpAddress::Ipv4(ours)) => {
            let mut frame = [&OUR_MAC[..], &PEER_MAC, &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]].concat();
            frame.extend(PEER_MAC);
            frame.extend(peers.octets());
            frame.extend(OUR_MAC);
            frame.extend(ours.octets());
            frame
        }
        _ => discovery(addresses, SOLICITATION, 0, addresses.ours, 1),
    }
}

/// Returns the answer to a request of our host for the peer's Ethernet address.
pub(crate) fn neighbor_answer(addresses: &Addresses) -> Vec<u8> {
    match addresses.is_v4() {
        true => neighbor(addresses),
        // The flags are Solicited and Override.
        false => discovery(addresses, ADVERTISEMENT, 0x60, addresses.peers, 2),
    }
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Returns a message of RFC 4861 section 4.3 or 4.4, with the peer's Ethernet address in an option.
fn discovery(addresses: &Addresses, kind: u8, flags: u8, target: IpAddress, option: u8) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    if let IpAddress::Ipv6(target) = target {
        message.extend(target.octets());
    }
    message.extend([option, 1]);
    message.extend(PEER_MAC);
    let (src, dst) = (addresses.peers, addresses.ours);
    let pseudo = checksum::pseudo_header(&src, &dst, 58.into(), message.len() as u32);
    let checksum = !checksum::combine(&[checksum::data(&message), pseudo]);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = packet(src, dst, 58, 0, &message);
    // Hop limit 255 proves that no router has forwarded the packet.
    frame[14 + 7] = 255;
    frame
}

/// Whether a frame that our host has sent is an ARP frame or an ICMPv6 message.
pub(crate) fn is_discovery(frame: &[u8]) -> bool {
    matches!(frame[12..14], [0x08, 0x06]) || matches!(frame[12..14], [0x86, 0xdd]) && frame[14 + 6] == 58
}

/// Whether a frame that our host has sent asks for an Ethernet address.
pub(crate) fn asks_for_neighbor(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x06] => frame[14 + 7] == 1,
        _ => is_discovery(frame) && frame[14 + 40] == SOLICITATION,
    }
}
