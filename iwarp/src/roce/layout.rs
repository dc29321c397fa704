//! Where the parts of a RoCEv2 packet lie.

use std::ops::Range;

use super::{Bth, Fault, ICRC_BYTES};

/// Number of bytes of an IPv4 header without options.
pub(super) const IPV4_BYTES: usize = 20;
/// Number of bytes of an IPv6 header without extension headers.
pub(super) const IPV6_BYTES: usize = 40;
/// Number of bytes of a UDP header.
pub(super) const UDP_BYTES: usize = 8;
/// The protocol number of UDP.
pub(super) const UDP: u8 = 17;
/// The first byte of an IPv4 header without options: version 4, and a header of five words.
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
/// The bits of the flags and the fragment offset of an IPv4 header of which at least one is set in each
/// fragment.
const FRAGMENT: u16 = 0x3FFF;

/// The IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V6,
}

/// The positions in a packet that follow from its IP and UDP headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) version: Version,
    /// Number of bytes of the IP header.
    pub(super) ip_bytes: usize,
    /// Number of bytes of the packet, by its headers.
    packet_bytes: usize,
}

impl Layout {
    /// Reads the headers at the front of `head`, which may end behind the headers. In a valid packet, the UDP
    /// payload has room for a BTH and an ICRC.
    ///
    /// # Errors
    /// [`Fault::Packet`] or [`Fault::Length`].
    pub(super) fn of(head: &[u8]) -> Result<Self, Fault> {
        let (version, ip_bytes, packet_bytes) = match head.first().ok_or(Fault::Packet)? {
            &IPV4_WITHOUT_OPTIONS => {
                let ip: &[u8; IPV4_BYTES] = head.first_chunk().ok_or(Fault::Packet)?;
                if ip[9] != UDP || word(ip, 6) & FRAGMENT != 0 {
                    return Err(Fault::Packet);
                }
                (Version::V4, IPV4_BYTES, usize::from(word(ip, 2)))
            }
            first if first >> 4 == 6 => {
                let ip: &[u8; IPV6_BYTES] = head.first_chunk().ok_or(Fault::Packet)?;
                if ip[6] != UDP {
                    return Err(Fault::Packet);
                }
                (Version::V6, IPV6_BYTES, IPV6_BYTES + usize::from(word(ip, 4)))
            }
            _ => return Err(Fault::Packet),
        };
        let udp: &[u8; UDP_BYTES] = head[ip_bytes..].first_chunk().ok_or(Fault::Packet)?;
        if ip_bytes + usize::from(word(udp, 4)) != packet_bytes {
            return Err(Fault::Packet);
        }
        let bytes = packet_bytes.checked_sub(ip_bytes + UDP_BYTES).ok_or(Fault::Packet)?;
        if bytes < Bth::LEN + ICRC_BYTES {
            return Err(Fault::Length { bytes });
        }
        Ok(Self { version, ip_bytes, packet_bytes })
    }

    /// Reads the headers of a packet, which has to be whole. Bytes behind the packet are ignored.
    ///
    /// # Errors
    /// [`Fault::Packet`] or [`Fault::Length`].
    pub(super) fn of_whole(ip_packet: &[u8]) -> Result<Self, Fault> {
        let layout = Self::of(ip_packet)?;
        if layout.packet_bytes <= ip_packet.len() { Ok(layout) } else { Err(Fault::Packet) }
    }

    /// The position of the BTH.
    pub(super) fn bth(&self) -> usize {
        self.ip_bytes + UDP_BYTES
    }

    /// The bytes behind the UDP header.
    pub(super) fn udp_payload(&self) -> Range<usize> {
        self.bth()..self.packet_bytes
    }

    /// The bytes between BTH and ICRC.
    pub(super) fn behind_bth(&self) -> Range<usize> {
        self.bth() + Bth::LEN..self.icrc().start
    }

    /// The bytes of the ICRC.
    pub(super) fn icrc(&self) -> Range<usize> {
        self.packet_bytes - ICRC_BYTES..self.packet_bytes
    }
}

fn word(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}
