//! Frames as tests see them: Ethernet, IPv4 or IPv6 without extension headers, TCP. This module has its own
//! parser and builders, so that it does not share their defects with the stack under test. Only the checksums
//! of IPv4 and TCP come from `dp`.

mod build;

use std::ops::Range;

pub use build::{
    Addresses, ETHERNET, Ipv4, TCP_BYTES, TcpHeader, complete, fragment, ipv4, ipv6, is_sound, is_whole_tcp,
    protocol, raw, resolution,
};

/// TCP flags.
pub mod flag {
    #![allow(missing_docs, reason = "the names are RFC 9293's")]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// Corruption of a frame on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// No corruption.
    #[default]
    None,
    /// A flipped bit that makes the checksum wrong.
    WrongChecksum,
    /// A flipped bit in the payload, with a recomputed checksum.
    CorrectChecksum,
    /// The whole frame is forged.
    Forged,
}

/// A frame on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// The corruption of the frame by the link.
    pub damage: Damage,
}

/// A TCP segment in a frame.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, meaningful with [`flag::ACK`].
    pub ack: u32,
    /// Flags, see [`flag`].
    pub flags: u8,
    /// Window field, not scaled.
    pub window: u16,
    /// Offset of the TCP header.
    pub l4: usize,
    /// Range of the TCP options in the frame.
    pub options: Range<usize>,
    /// Range of the payload in the frame.
    pub payload: Range<usize>,
    /// Whether the packet is IPv6; otherwise it is IPv4.
    pub ipv6: bool,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the TCP segment in `frame`; `None` if there is no TCP segment.
pub fn parse(frame: &[u8]) -> Option<Tcp> {
    let l3 = ETHERNET;
    let (l4, end, ipv6) = match be16(frame, 12)? {
        0x0800
            if frame.get(l3)? >> 4 == 4 && *frame.get(l3 + 9)? == 6 && be16(frame, l3 + 6)? & 0x3fff == 0 =>
        {
            (l3 + usize::from(frame[l3] & 15) * 4, l3 + usize::from(be16(frame, l3 + 2)?), false)
        }
        0x86dd if *frame.get(l3 + 6)? == 6 => (l3 + 40, l3 + 40 + usize::from(be16(frame, l3 + 4)?), true),
        _ => return None,
    };
    let payload = l4 + usize::from(frame.get(l4 + 12)? >> 4) * 4;
    if payload < l4 + 20 || payload > end || end > frame.len() {
        return None;
    }
    Some(Tcp {
        src_port: be16(frame, l4)?,
        dst_port: be16(frame, l4 + 2)?,
        seq: be32(frame, l4 + 4)?,
        ack: be32(frame, l4 + 8)?,
        flags: frame[l4 + 13],
        window: be16(frame, l4 + 14)?,
        l4,
        options: l4 + 20..payload,
        payload: payload..end,
        ipv6,
    })
}

impl Tcp {
    /// Whether this flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether the segment has no payload, SYN, FIN and RST: it is an acknowledgement or a probe.
    pub fn is_bare(&self) -> bool {
        self.is_empty() && self.flags & (flag::SYN | flag::FIN | flag::RST) == 0
    }

    /// Returns the length in bytes of the payload.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Returns the kind and the value of each option.
    pub fn options<'a>(&self, frame: &'a [u8]) -> impl Iterator<Item = (u8, &'a [u8])> {
        let mut rest = &frame[self.options.clone()];
        std::iter::from_fn(move || {
            loop {
                let (&kind, tail) = rest.split_first()?;
                match kind {
                    0 => return None,
                    1 => rest = tail,
                    _ => {
                        let bytes = usize::from(*tail.first()?);
                        let value = rest.get(2..bytes)?;
                        rest = &rest[bytes..];
                        return Some((kind, value));
                    }
                }
            }
        })
    }

    /// Returns the value of the window scale option, or `None` if there is no such option.
    pub fn window_scale(&self, frame: &[u8]) -> Option<u8> {
        self.options(frame).find(|(kind, _)| *kind == 3).and_then(|(_, value)| value.first().copied())
    }

    /// Returns the SACK blocks, as sequence numbers.
    pub fn sack_blocks(&self, frame: &[u8]) -> Vec<(u32, u32)> {
        let mut blocks = Vec::new();
        for (_, value) in self.options(frame).filter(|(kind, _)| *kind == 5) {
            for block in value.chunks_exact(8) {
                blocks.extend(be32(block, 0).zip(be32(block, 4)));
            }
        }
        blocks
    }

    /// Returns the offset in the frame of the timestamps option's value, or `None` if there is no such
    /// option.
    pub fn timestamp_at(&self, frame: &[u8]) -> Option<usize> {
        let mut at = self.options.start;
        for (kind, value) in self.options(frame) {
            // There may be no-operation options between options.
            at += frame[at..].iter().take_while(|byte| **byte == 1).count();
            if kind == 8 && value.len() == 8 {
                return Some(at + 2);
            }
            at += 2 + value.len();
        }
        None
    }

    /// Returns the timestamp value (TSval), or `None` if there is no timestamps option.
    pub fn timestamp(&self, frame: &[u8]) -> Option<u32> {
        be32(frame, self.timestamp_at(frame)?)
    }

    /// Returns the echoed timestamp (TSecr), or `None` if there is no timestamps option.
    pub fn echoed_timestamp(&self, frame: &[u8]) -> Option<u32> {
        be32(frame, self.timestamp_at(frame)? + 4)
    }

    /// Returns the frame with a timestamp that is older by `by`, if it has a timestamp. The checksum is not
    /// updated.
    pub fn with_older_timestamp(&self, frame: &[u8], by: u32) -> Vec<u8> {
        let mut bytes = frame.to_vec();
        if let Some(at) = self.timestamp_at(frame)
            && let Some(value) = be32(frame, at)
        {
            bytes[at..at + 4].copy_from_slice(&value.wrapping_sub(by).to_be_bytes());
        }
        bytes
    }

    /// Returns the frame of a bare acknowledgement with one more SACK block after the others. Returns `None`
    /// if the frame has no SACK option, or no space for another block.
    pub fn with_sack_block(&self, frame: &[u8], (start, end): (u32, u32)) -> Option<Vec<u8>> {
        let header_bytes = self.payload.start - self.l4;
        if self.sack_blocks(frame).is_empty() || header_bytes + 8 > 60 || !self.is_empty() {
            return None;
        }
        let mut at = self.options.start;
        let mut options = Vec::new();
        for (kind, value) in self.options(frame) {
            let pads = frame[at..].iter().take_while(|byte| **byte == 1).count();
            options.extend(std::iter::repeat_n(1, pads));
            at += pads + 2 + value.len();
            let mut value = value.to_vec();
            if kind == 5 {
                value.extend(start.to_be_bytes());
                value.extend(end.to_be_bytes());
            }
            options.extend([kind, 2 + value.len() as u8]);
            options.extend(value);
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let mut bytes = frame[..self.options.start].to_vec();
        bytes[self.l4 + 12] = ((20 + options.len()) as u8 / 4) << 4;
        bytes.extend(options);
        self.set_length(&mut bytes);
        complete(&mut bytes);
        Some(bytes)
    }

    /// Writes the length of `frame` into its IP header.
    fn set_length(&self, frame: &mut [u8]) {
        let l3 = ETHERNET;
        let (field, length) =
            if self.ipv6 { (l3 + 4, frame.len() - l3 - 40) } else { (l3 + 2, frame.len() - l3) };
        frame[field..field + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }

    /// Returns the ECN field of the IP header: 0 (not capable), 1 or 2 (capable), 3 (congestion experienced).
    pub fn ecn(&self, frame: &[u8]) -> u8 {
        if self.ipv6 { frame[ETHERNET + 1] >> 4 & 3 } else { frame[ETHERNET + 1] & 3 }
    }

    /// Returns a frame with the headers of `frame`, another part of the stream, and correct checksums.
    pub fn rebuilt(&self, frame: &[u8], seq: u32, payload: &[u8], flags: u8) -> Vec<u8> {
        let mut bytes = frame[..self.payload.start].to_vec();
        bytes[self.l4 + 4..self.l4 + 8].copy_from_slice(&seq.to_be_bytes());
        bytes[self.l4 + 13] = flags;
        bytes.extend_from_slice(payload);
        self.set_length(&mut bytes);
        complete(&mut bytes);
        bytes
    }
}

/// Sets "congestion experienced" in a frame of an ECN-capable flow (RFC 3168 section 5).
pub fn mark_congestion(frame: &mut [u8], tcp: &Tcp) {
    if tcp.ipv6 {
        frame[ETHERNET + 1] |= 0x30;
    } else {
        frame[ETHERNET + 1] |= 3;
        dp::checksum::complete_ipv4_header(frame);
    }
}

/// Returns a router's report to the sender of `frame` that its packet is larger than `mtu` (RFC 1191 section
/// 4, RFC 4443 section 3.2). The router has the address of the packet's destination.
pub fn too_big(frame: &[u8], tcp: &Tcp, mtu: u16) -> Vec<u8> {
    icmp(frame, tcp, (3, 4), (2, 0), mtu)
}

/// Returns a router's report that the destination host of `frame` is unreachable (RFC 792, RFC 4443 section
/// 3.1).
pub fn unreachable(frame: &[u8], tcp: &Tcp) -> Vec<u8> {
    icmp(frame, tcp, (3, 1), (1, 0), 0)
}

/// Returns an ICMP error about `frame`. `v4` and `v6` are the type and code for each family, and `mtu` is the
/// MTU field.
fn icmp(frame: &[u8], tcp: &Tcp, v4: (u8, u8), v6: (u8, u8), mtu: u16) -> Vec<u8> {
    let addresses = Addresses::of_answer(frame, tcp.ipv6);
    if tcp.ipv6 {
        let mut message = vec![v6.0, v6.1, 0, 0];
        message.extend(u32::from(mtu).to_be_bytes());
        message.extend_from_slice(&frame[ETHERNET..frame.len().min(ETHERNET + 1232)]);
        return ipv6(&addresses, 0, protocol::ICMPV6, 64, &message);
    }
    let mut message = vec![v4.0, v4.1, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend_from_slice(&frame[ETHERNET..frame.len().min(ETHERNET + 68)]);
    let header = Ipv4 { tos: 0, id: 0, fragment: 0, ttl: 64, protocol: protocol::ICMP };
    ipv4(&addresses, header, &[], &message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments are built, parsed, cut and reported on for IPv4 and IPv6, and their checksums are correct.
    #[test]
    fn built_segments_are_what_the_parser_reads() {
        let addresses = Addresses {
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            v4: [[10, 0, 0, 1], [10, 0, 0, 2]],
            v6: [[0xfd; 16], [0xfe; 16]],
        };
        let options = [2, 4, 5, 0xb4, 4, 2];
        let header = TcpHeader {
            ports: [1000, 80],
            seq: 7,
            ack: 8,
            flags: flag::ACK,
            window: 9,
            urgent: 0,
            options: &options,
        };
        let segment = header.segment(b"odd");
        let ip = Ipv4 { tos: 0, id: 0, fragment: 0x4000, ttl: 64, protocol: protocol::TCP };
        let frames = [ipv4(&addresses, ip, &[], &segment), ipv6(&addresses, 0, protocol::TCP, 64, &segment)];
        for frame in frames {
            let tcp = parse(&frame).expect("a segment");
            assert!(is_whole_tcp(&frame) && is_sound(&frame));
            let fields = (tcp.src_port, tcp.dst_port, tcp.seq, tcp.ack, tcp.flags, tcp.window);
            assert_eq!(fields, (1000, 80, 7, 8, flag::ACK, 9));
            assert_eq!(&frame[tcp.payload.clone()], b"odd");
            let read: Vec<_> = tcp.options(&frame).collect();
            assert_eq!(read, [(2, &[5, 0xb4][..]), (4, &[][..])]);
            let mut wrong = frame.clone();
            wrong[tcp.payload.start] ^= 1;
            assert!(!is_whole_tcp(&wrong) && !is_sound(&wrong));
            // The report goes back to the sender and quotes the packet.
            let report = too_big(&frame, &tcp, 1280);
            assert!(is_sound(&report));
            assert_eq!((&report[..6], &report[6..12]), (&frame[6..12], &frame[..6]));
            let (header, at) = if tcp.ipv6 { (40, ETHERNET + 8) } else { (20, ETHERNET + 12) };
            let bytes = if tcp.ipv6 { 16 } else { 4 };
            let (to, from) = (at + bytes..at + 2 * bytes, at..at + bytes);
            assert_eq!((&report[from.clone()], &report[to.clone()]), (&frame[to], &frame[from]));
            assert_eq!(report[ETHERNET + header + 8..], frame[ETHERNET..]);
        }
    }
}
