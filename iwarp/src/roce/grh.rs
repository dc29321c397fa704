//! The Global Route Header: the 40 bytes in front of each payload that a UD queue pair receives.
//!
//! RoCEv2 puts the IP header there (annex A17, section A17.4.5.2). A program gets the address for its answer
//! from these bytes, with `ibv_init_ah_from_wc`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Fault;
use super::layout::{IPV4_BYTES, IPV6_BYTES, Layout, UDP, Version};

/// Number of bytes of a GRH.
pub const GRH_BYTES: usize = 40;

/// The position of an IPv4 header in a GRH.
const IPV4_AT: usize = GRH_BYTES - IPV4_BYTES;

/// What a GRH tells of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address that has sent the packet.
    pub source: IpAddr,
    /// The address that has received the packet. It may be a multicast address, from which no program may
    /// answer.
    pub destination: IpAddr,
    /// IPv6's traffic class, or IPv4's type of service.
    pub traffic_class: u8,
    /// IPv6's flow label, 20 bits. It is 0 for IPv4.
    pub flow_label: u32,
    /// IPv6's hop limit, or IPv4's time to live, as received.
    pub hop_limit: u8,
}

/// Returns the GRH for the payload of a received packet. An IPv6 header fills the GRH. An IPv4 header is in
/// the last 20 bytes. The first 20 bytes are then undefined by the annex, and zeros here, as in rxe.
///
/// # Errors
/// [`Fault::Packet`] or [`Fault::Length`] if `ip_packet` is not a RoCEv2 packet.
pub fn grh(ip_packet: &[u8]) -> Result<[u8; GRH_BYTES], Fault> {
    let layout = Layout::of(ip_packet)?;
    let header = &ip_packet[..layout.ip_bytes];
    let mut grh = [0; GRH_BYTES];
    grh[GRH_BYTES - header.len()..].copy_from_slice(header);
    Ok(grh)
}

/// Returns the addresses and the other fields of a GRH. Returns `None` if the bytes contain no IP header of a
/// RoCEv2 packet.
///
/// The first 20 bytes may be any bytes if the packet was an IPv4 packet. If they look like IPv6, the packet
/// was an IPv4 packet if an IPv4 header with a correct checksum follows. libibverbs uses the same rule.
pub fn source_of(grh: &[u8; GRH_BYTES]) -> Option<Source> {
    match version(grh)? {
        Version::V4 => {
            let [_, tos, .., ttl, _, _, _, s0, s1, s2, s3, d0, d1, d2, d3]: [u8; IPV4_BYTES] =
                *grh[IPV4_AT..].first_chunk()?;
            Some(Source {
                source: Ipv4Addr::new(s0, s1, s2, s3).into(),
                destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
                traffic_class: tos,
                flow_label: 0,
                hop_limit: ttl,
            })
        }
        Version::V6 => {
            let ([v0, v1, v2, v3, _, _, UDP, hop_limit], addresses) = grh.split_first_chunk()? else {
                return None;
            };
            let first = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            let (source, destination) = addresses.split_first_chunk::<16>()?;
            Some(Source {
                source: Ipv6Addr::from(*source).into(),
                destination: Ipv6Addr::from(*destination.first_chunk::<16>()?).into(),
                traffic_class: (first >> 20) as u8,
                flow_label: first & 0xF_FFFF,
                hop_limit: *hop_limit,
            })
        }
    }
}

fn version(grh: &[u8; GRH_BYTES]) -> Option<Version> {
    let ipv4 = &grh[IPV4_AT..];
    match grh[0] >> 4 {
        6 if ipv4[0] == 0x45 && checksum_is_right(ipv4) => Some(Version::V4),
        6 => Some(Version::V6),
        _ if ipv4[0] >> 4 == 4 => Some(Version::V4),
        _ => None,
    }
}

/// Whether the checksum of an IPv4 header is right: the sum of all its words has all bits set.
fn checksum_is_right(header: &[u8]) -> bool {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    // The carry of ten words is at most 9, so adding it causes a second carry only for a wrong sum.
    (sum & 0xFFFF) + (sum >> 16) == 0xFFFF
}

const _: () = assert!(IPV6_BYTES == GRH_BYTES);

#[cfg(test)]
mod tests;
