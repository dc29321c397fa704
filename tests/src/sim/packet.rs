//! Frames as the simulator sees them: Ethernet, IPv4 or IPv6 without extension headers, TCP. It has a parser
//! of its own, so that it shares no fault with the stack under test.

use std::ops::Range;

const ETHERNET_BYTES: usize = 14;

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

/// Corruption of a frame on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// Nothing.
    #[default]
    None,
    /// A flipped bit that makes the checksum wrong.
    WrongChecksum,
    /// A flipped bit in the payload, with a recomputed checksum.
    CorrectChecksum,
    /// The whole frame is forged.
    Forged,
}

/// A frame on its way.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// Its corruption by the link.
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
    /// Range of its options.
    pub options: Range<usize>,
    /// Range of the payload.
    pub payload: Range<usize>,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The TCP segment in `frame`; `None` for anything else.
pub fn parse(frame: &[u8]) -> Option<Tcp> {
    let l3 = ETHERNET_BYTES;
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

    /// Neither payload nor SYN, FIN or RST: an acknowledgement or a probe.
    pub fn is_bare(&self) -> bool {
        self.is_empty() && self.flags & (flag::SYN | flag::FIN | flag::RST) == 0
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// The options, as kind and value.
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

    /// The window scale option of a SYN.
    pub fn window_scale(&self, frame: &[u8]) -> Option<u8> {
        self.options(frame).find(|(kind, _)| *kind == 3).and_then(|(_, value)| value.first().copied())
    }

    /// SACK blocks, as sequence numbers.
    pub fn sack_blocks(&self, frame: &[u8]) -> Vec<(u32, u32)> {
        let mut blocks = Vec::new();
        for (_, value) in self.options(frame).filter(|(kind, _)| *kind == 5) {
            for block in value.chunks_exact(8) {
                blocks.extend(be32(block, 0).zip(be32(block, 4)));
            }
        }
        blocks
    }

    /// The sequence number from which on acknowledged bytes are not taken: the experiment `uw` of RFC 6994.
    pub fn untaken(&self, frame: &[u8]) -> Option<u32> {
        let ours = |&(kind, value): &(u8, &[u8])| kind == 253 && value.len() == 6 && value.starts_with(b"uw");
        be32(self.options(frame).find(ours)?.1, 2)
    }

    /// Offset of the timestamp option's value in the frame.
    pub fn timestamp_at(&self, frame: &[u8]) -> Option<usize> {
        let mut at = self.options.start;
        for (kind, value) in self.options(frame) {
            // There are no-operations between options.
            at += frame[at..].iter().take_while(|byte| **byte == 1).count();
            if kind == 8 && value.len() == 8 {
                return Some(at + 2);
            }
            at += 2 + value.len();
        }
        None
    }

    /// The timestamp value (TSval).
    pub fn timestamp(&self, frame: &[u8]) -> Option<u32> {
        be32(frame, self.timestamp_at(frame)?)
    }

    /// The echoed timestamp (TSecr).
    pub fn echoed_timestamp(&self, frame: &[u8]) -> Option<u32> {
        be32(frame, self.timestamp_at(frame)? + 4)
    }

    /// The frame with a timestamp that is `by` older, if it has one. Its checksum is not updated.
    pub fn with_older_timestamp(&self, frame: &[u8], by: u32) -> Vec<u8> {
        let mut bytes = frame.to_vec();
        if let Some(at) = self.timestamp_at(frame)
            && let Some(value) = be32(frame, at)
        {
            bytes[at..at + 4].copy_from_slice(&value.wrapping_sub(by).to_be_bytes());
        }
        bytes
    }

    /// The frame of a bare acknowledgement with one more SACK block behind the others. `None` if it has no
    /// SACK option, or no space.
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
        let l3 = ETHERNET_BYTES;
        let (field, length) =
            if self.ipv6 { (l3 + 4, frame.len() - l3 - 40) } else { (l3 + 2, frame.len() - l3) };
        frame[field..field + 2].copy_from_slice(&(length as u16).to_be_bytes());
    }

    /// The ECN field of the IP header: 0 not capable, 1 or 2 capable, 3 congestion experienced.
    pub fn ecn(&self, frame: &[u8]) -> u8 {
        if self.ipv6 { frame[ETHERNET_BYTES + 1] >> 4 & 3 } else { frame[ETHERNET_BYTES + 1] & 3 }
    }

    /// A frame like this one with another part of the stream and correct checksums.
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

/// Computes the checksums.
pub fn complete(frame: &mut [u8]) {
    dp::checksum::complete_ipv4_header(frame);
    dp::checksum::complete(frame);
}

/// Sets congestion experienced in a frame of a capable flow (RFC 3168 section 5).
pub fn mark_congestion(frame: &mut [u8], tcp: &Tcp) {
    if tcp.ipv6 {
        frame[ETHERNET_BYTES + 1] |= 0x30;
    } else {
        frame[ETHERNET_BYTES + 1] |= 3;
        dp::checksum::complete_ipv4_header(frame);
    }
}

fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A router's report to the sender of `frame` that its packet is larger than `mtu` (RFC 1191 section 4, RFC
/// 4443 section 3.2). The router's address is that of the destination.
pub fn too_big(frame: &[u8], tcp: &Tcp, mtu: u16) -> Vec<u8> {
    icmp(frame, tcp, (3, 4), (2, 0), mtu)
}

/// A router's report that the destination host of `frame` is unreachable (RFC 792, RFC 4443 section 3.1).
pub fn unreachable(frame: &[u8], tcp: &Tcp) -> Vec<u8> {
    icmp(frame, tcp, (3, 1), (1, 0), 0)
}

/// An ICMP error about `frame`: type and code for both families, and the MTU field.
fn icmp(frame: &[u8], tcp: &Tcp, v4: (u8, u8), v6: (u8, u8), mtu: u16) -> Vec<u8> {
    let l3 = ETHERNET_BYTES;
    let mut out = Vec::new();
    out.extend_from_slice(&frame[6..12]);
    out.extend_from_slice(&frame[..6]);
    out.extend_from_slice(&frame[12..14]);
    if tcp.ipv6 {
        let (src, dst) = (&frame[l3 + 8..l3 + 24], &frame[l3 + 24..l3 + 40]);
        let mut message = vec![v6.0, v6.1, 0, 0];
        message.extend(u32::from(mtu).to_be_bytes());
        message.extend_from_slice(&frame[l3..frame.len().min(l3 + 1232)]);
        let length = (message.len() as u32).to_be_bytes();
        let sum = internet_checksum(&[dst, src, &length, &[0, 0, 0, 58], &message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        out.extend([0x60, 0, 0, 0]);
        out.extend((message.len() as u16).to_be_bytes());
        out.extend([58, 64]);
        out.extend_from_slice(dst);
        out.extend_from_slice(src);
        out.extend(message);
    } else {
        let (src, dst) = (&frame[l3 + 12..l3 + 16], &frame[l3 + 16..l3 + 20]);
        let mut message = vec![v4.0, v4.1, 0, 0, 0, 0];
        message.extend(mtu.to_be_bytes());
        message.extend_from_slice(&frame[l3..frame.len().min(l3 + 68)]);
        let sum = internet_checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        out.extend([0x45, 0]);
        out.extend((20 + message.len() as u16).to_be_bytes());
        out.extend([0, 0, 0, 0, 64, 1, 0, 0]);
        out.extend_from_slice(dst);
        out.extend_from_slice(src);
        out.extend(message);
        dp::checksum::complete_ipv4_header(&mut out);
    }
    out
}
