//! The invariant CRC of a RoCEv2 packet (annex A17, section A17.3.3).
//!
//! The CRC is that of Ethernet. It covers eight bytes in place of InfiniBand's local route header, and the
//! packet from the IP header to the pad. Some fields may change on the way: the ICRC covers ones in place of
//! these fields. The ICRC is sent with its least significant byte first, like the CRC of Ethernet.
//!
//! | header | covered as ones |
//! |---|---|
//! | local route header | all eight bytes, which RoCEv2 does not send |
//! | IPv4 | type of service, time to live, header checksum |
//! | IPv6 | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | the byte with FECN, BECN and six reserved bits |

use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};

use super::Fault;
use super::bth::Bth;
use super::layout::{IPV6_BYTES, Layout, UDP_BYTES, Version};

/// Number of bytes of the ICRC.
pub const ICRC_BYTES: usize = 4;

/// Number of bytes of InfiniBand's local route header.
const LRH_BYTES: usize = 8;

/// Number of bytes of the longest headers from the local route header to the BTH.
const MAX_BYTES: usize = LRH_BYTES + IPV6_BYTES + UDP_BYTES + Bth::LEN;

/// A running ICRC. It serves packets that lie in several buffers. [`icrc`] is for packets in one buffer.
#[derive(Clone, Copy, Debug)]
pub struct Icrc {
    digest: Digest,
}

impl Icrc {
    /// Begins the ICRC of a packet. `head` are the headers from the IP header to the BTH; bytes behind the
    /// BTH are ignored. Returns the running ICRC, and the range of the packet that has to be added to it. The
    /// field of the ICRC is behind this range.
    ///
    /// # Errors
    /// [`Fault::Packet`] if the headers are not those of a RoCEv2 packet, or if `head` ends before the end of
    /// the BTH. [`Fault::Length`] if the packet has no room for a BTH and an ICRC.
    pub fn begin(head: &[u8]) -> Result<(Self, Range<usize>), Fault> {
        let layout = Layout::of(head)?;
        Ok((Self::of_headers(head, layout)?, layout.behind_bth()))
    }

    fn of_headers(head: &[u8], layout: Layout) -> Result<Self, Fault> {
        let headers = head.get(..layout.behind_bth().start).ok_or(Fault::Packet)?;
        let mut covered = [0xFF; MAX_BYTES];
        let covered = &mut covered[..LRH_BYTES + headers.len()];
        let (_, copy) = covered.split_at_mut(LRH_BYTES);
        copy.copy_from_slice(headers);
        let (ip, rest) = copy.split_at_mut(layout.ip_bytes);
        match layout.version {
            Version::V4 => {
                ip[1] = 0xFF;
                ip[8] = 0xFF;
                ip[10..12].fill(0xFF);
            }
            Version::V6 => {
                ip[0] |= 0x0F;
                ip[1..4].fill(0xFF);
                ip[7] = 0xFF;
            }
        }
        rest[6..8].fill(0xFF);
        rest[UDP_BYTES + Bth::RESERVED_BYTE] = 0xFF;
        let mut digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        digest.update(covered);
        Ok(Self { digest })
    }

    /// Adds the next bytes of the packet.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// Returns the ICRC of all bytes so far. The field of the ICRC has the least significant byte first.
    pub fn finish(&self) -> u32 {
        self.digest.finalize() as u32
    }
}

/// Returns the ICRC of a packet. The ICRC field of the packet is not read, nor are bytes behind the packet.
///
/// # Errors
/// [`Fault::Packet`] or [`Fault::Length`] if `ip_packet` is not a RoCEv2 packet, of any opcode.
pub fn icrc(ip_packet: &[u8]) -> Result<u32, Fault> {
    Ok(of_packet(ip_packet)?.0)
}

/// Writes the ICRC of a packet into its field.
///
/// # Errors
/// The errors of [`icrc`].
pub fn seal(ip_packet: &mut [u8]) -> Result<(), Fault> {
    let (icrc, field) = of_packet(ip_packet)?;
    ip_packet[field].copy_from_slice(&icrc.to_le_bytes());
    Ok(())
}

/// Checks the ICRC of a packet.
///
/// # Errors
/// [`Fault::Icrc`] if the ICRC is wrong. The errors of [`icrc`].
pub fn check(ip_packet: &[u8]) -> Result<(), Fault> {
    let (icrc, field) = of_packet(ip_packet)?;
    if ip_packet[field] == icrc.to_le_bytes() { Ok(()) } else { Err(Fault::Icrc) }
}

/// Returns the ICRC of a packet, and the range of its field.
fn of_packet(ip_packet: &[u8]) -> Result<(u32, Range<usize>), Fault> {
    let layout = Layout::of_whole(ip_packet)?;
    let mut icrc = Icrc::of_headers(ip_packet, layout)?;
    icrc.update(&ip_packet[layout.behind_bth()]);
    Ok((icrc.finish(), layout.icrc()))
}

#[cfg(test)]
mod tests;
