//! A UD message, from the BTH to the ICRC.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::bth::{Bth, Deth, Qpn};
use super::icrc::ICRC_BYTES;
use super::keys::{GSI_QKEY, is_own_partition};
use super::layout::{Layout, Version};
use super::{Fault, icrc};

/// UD SEND only.
const SEND_ONLY: u8 = 0x64;
/// UD SEND only with immediate.
const SEND_ONLY_WITH_IMMEDIATE: u8 = 0x65;
/// Number of bytes of immediate data.
const IMMEDIATE_BYTES: usize = 4;
/// The pad makes the number of bytes of the payload a multiple of this number.
const WORD_BYTES: usize = 4;

/// A UD message without its payload: all fields of its headers that have a meaning in UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdSend {
    /// Whether the message is a solicited event at the receiver.
    pub solicited: bool,
    /// The partition, usually [`DEFAULT_PKEY`](super::DEFAULT_PKEY).
    pub pkey: u16,
    /// The queue pair that receives the message. [`Qpn::MULTICAST`] for a multicast group.
    pub dest_qp: Qpn,
    /// Packet sequence number, modulo 2^24. A receiver does not check the number.
    pub psn: u32,
    /// The Q_Key that the receiving queue pair must have.
    pub qkey: u32,
    /// The queue pair that has sent the message.
    pub src_qp: Qpn,
    /// Immediate data, in the order of the wire.
    pub immediate: Option<[u8; IMMEDIATE_BYTES]>,
}

impl UdSend {
    /// Number of bytes of the longest headers.
    pub const MAX_HEADER_BYTES: usize = Bth::LEN + Deth::LEN + IMMEDIATE_BYTES;

    /// Number of bytes of the headers: 20, or 24 with immediate data.
    pub const fn header_bytes(&self) -> usize {
        if self.immediate.is_some() { Self::MAX_HEADER_BYTES } else { Bth::LEN + Deth::LEN }
    }

    /// Number of bytes of the UDP payload: headers, `payload_bytes` bytes of payload, pad and ICRC.
    pub const fn frame_bytes(&self, payload_bytes: usize) -> usize {
        self.header_bytes() + payload_bytes.next_multiple_of(WORD_BYTES) + ICRC_BYTES
    }

    /// Writes headers and pad of a message with `payload_bytes` bytes of payload. Returns the range of
    /// `udp_payload` for the payload. The bytes of the payload and of the ICRC are not written:
    /// [`seal`](super::seal) writes the ICRC when the packet is complete.
    ///
    /// # Panics
    /// Panics if `udp_payload` is shorter than [`frame_bytes`](Self::frame_bytes).
    pub fn write(&self, payload_bytes: usize, udp_payload: &mut [u8]) -> Range<usize> {
        let Self { solicited, pkey, dest_qp, psn, qkey, src_qp, immediate } = *self;
        let frame = &mut udp_payload[..self.frame_bytes(payload_bytes)];
        let payload = self.header_bytes()..self.header_bytes() + payload_bytes;
        let pad = payload.end..frame.len() - ICRC_BYTES;
        let opcode = if immediate.is_some() { SEND_ONLY_WITH_IMMEDIATE } else { SEND_ONLY };
        let bth = Bth {
            opcode,
            solicited,
            migrated: true,
            pad: pad.len() as u8,
            pkey,
            dest_qp,
            ack_request: false,
            psn,
        };
        let (front, rest) = frame.split_at_mut(Bth::LEN);
        front.copy_from_slice(&bth.to_bytes());
        rest[..Deth::LEN].copy_from_slice(&Deth { qkey, src_qp }.to_bytes());
        if let Some(immediate) = immediate {
            rest[Deth::LEN..][..IMMEDIATE_BYTES].copy_from_slice(&immediate);
        }
        frame[pad].fill(0);
        payload
    }

    /// Parses a UDP payload, and checks all that can be checked without the IP header. Returns the message,
    /// and the range of its payload in `udp_payload`, without pad.
    ///
    /// Like rxe, this function accepts messages of full and limited members of the default partition. A
    /// message for queue pair 1 needs its Q_Key. The caller checks the Q_Key of all other queue pairs.
    ///
    /// # Errors
    /// Any [`Fault`] except [`Fault::Packet`], [`Fault::Multicast`] and [`Fault::Icrc`].
    pub fn parse(udp_payload: &[u8]) -> Result<(Self, Range<usize>), Fault> {
        let length = Fault::Length { bytes: udp_payload.len() };
        let (bth, rest) = udp_payload.split_first_chunk().ok_or(length)?;
        let Bth { opcode, solicited, pad, pkey, dest_qp, psn, .. } = Bth::parse(bth)?;
        if !matches!(opcode, SEND_ONLY | SEND_ONLY_WITH_IMMEDIATE) {
            return Err(Fault::Opcode(opcode));
        }
        if !is_own_partition(pkey) {
            return Err(Fault::Pkey(pkey));
        }
        if dest_qp.get() == 0 {
            return Err(Fault::QpZero);
        }
        let (deth, rest) = rest.split_first_chunk().ok_or(length)?;
        let Deth { qkey, src_qp } = Deth::parse(deth);
        if src_qp.get() == 0 {
            return Err(Fault::QpZero);
        }
        let immediate = match opcode {
            SEND_ONLY_WITH_IMMEDIATE => Some(*rest.first_chunk().ok_or(length)?),
            _ => None,
        };
        let send = Self { solicited, pkey, dest_qp, psn, qkey, src_qp, immediate };
        let padded = udp_payload.len().checked_sub(send.header_bytes() + ICRC_BYTES).ok_or(length)?;
        if !padded.is_multiple_of(WORD_BYTES) {
            return Err(length);
        }
        let payload = padded.checked_sub(usize::from(pad)).ok_or(Fault::Pad { pad, bytes: padded })?;
        if dest_qp == Qpn::GSI && qkey != GSI_QKEY {
            return Err(Fault::GsiQkey(qkey));
        }
        Ok((send, send.header_bytes()..send.header_bytes() + payload))
    }

    /// Parses and checks a received IP packet, with its ICRC. Bytes behind the packet, such as the padding of
    /// Ethernet, are ignored. Returns the message, and the range of its payload in `ip_packet`, without pad.
    ///
    /// The caller has checked the destination address, the UDP destination port and the checksum of an IPv4
    /// header. A UDP checksum need not be checked: the ICRC covers the same bytes.
    ///
    /// # Errors
    /// Any [`Fault`].
    pub fn of_packet(ip_packet: &[u8]) -> Result<(Self, Range<usize>), Fault> {
        let layout = Layout::of_whole(ip_packet)?;
        let (send, payload) = Self::parse(&ip_packet[layout.udp_payload()])?;
        if is_to_group(ip_packet, layout) != (send.dest_qp == Qpn::MULTICAST) {
            return Err(Fault::Multicast(send.dest_qp));
        }
        icrc::check(ip_packet)?;
        Ok((send, layout.bth() + payload.start..layout.bth() + payload.end))
    }
}

/// Whether the destination address of a packet is a multicast address.
fn is_to_group(ip_packet: &[u8], layout: Layout) -> bool {
    let header = &ip_packet[..layout.ip_bytes];
    match layout.version {
        Version::V4 => {
            header.last_chunk().is_some_and(|octets: &[u8; 4]| Ipv4Addr::from(*octets).is_multicast())
        }
        Version::V6 => {
            header.last_chunk().is_some_and(|octets: &[u8; 16]| Ipv6Addr::from(*octets).is_multicast())
        }
    }
}

#[cfg(test)]
mod tests;
