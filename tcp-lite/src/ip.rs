//! Parser of received IP headers (RFC 791, RFC 8200). The parser checks the header, walks the extension
//! headers, and returns the upper protocol, or the fields of a fragment. The stack checks the addresses.

use crate::checksum::InternetChecksum;
use crate::facade::{IpAddress, Ipv4Address, Ipv6Address};

pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_IGMP: u8 = 2;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
const IPV6_HOP_BY_HOP: u8 = 0;
const IPV6_ROUTING: u8 = 43;
const IPV6_FRAGMENT: u8 = 44;
const IPV6_DESTINATION_OPTIONS: u8 = 60;

/// Number of bytes of an IPv4 header without options.
pub(crate) const IPV4_BYTES: usize = 20;
/// Number of bytes of an IPv6 header without extensions.
pub(crate) const IPV6_BYTES: usize = 40;

/// A received header that passed all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpHeader {
    pub(crate) src: IpAddress,
    pub(crate) dst: IpAddress,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    pub(crate) ecn: Ecn,
    /// Number of bytes of the whole packet. All bytes of the frame after the packet are padding.
    pub(crate) total_bytes: usize,
    /// The content after the header.
    pub(crate) upper: Upper,
}

/// The last two bits of the traffic class (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ecn {
    /// Routers must not mark the packet.
    NotEct = 0,
    Ect1 = 1,
    /// Routers may mark the packet.
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    /// The mask of ECN's bits in a traffic class.
    pub(crate) const MASK: u8 = 3;

    /// The codepoint in a traffic class.
    fn of(class: u8) -> Self {
        match class & Self::MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// Content of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    /// A whole payload, which begins after `header_bytes` bytes of IP header and extensions.
    Whole { protocol: u8, header_bytes: usize },
    /// A fragment of a packet.
    Fragment(Fragment),
    /// A payload after an extension or option that only the slow path handles, or after extensions that are
    /// longer than the parsed bytes.
    Opaque,
}

/// Header fields of a fragment (RFC 791 section 3.1, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The identification, which names the packet together with both addresses.
    pub(crate) identification: u32,
    /// Offset of the fragment's bytes in the fragmentable part.
    pub(crate) offset: usize,
    /// True if further fragments follow.
    pub(crate) more: bool,
    /// The protocol at the start of the fragmentable part. With IPv4 every fragment has this field. With IPv6
    /// only the field of the first fragment is used.
    pub(crate) next_header: u8,
    /// Number of bytes of headers before the fragment's bytes.
    pub(crate) header_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The header is cut short or inconsistent.
    Malformed,
    /// The IPv4 header checksum is wrong.
    Checksum,
}

/// Parses the IPv4 header at the front of `head`. `bytes` is the length of the frame from this header on,
/// including padding; `head` may be shorter.
pub(crate) fn parse_ipv4(head: &[u8], bytes: usize) -> Result<IpHeader, Refused> {
    let fixed = head.first_chunk::<IPV4_BYTES>().ok_or(Refused::Malformed)?;
    let header_bytes = usize::from(fixed[0] & 0x0f) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if fixed[0] >> 4 != 4
        || header_bytes < IPV4_BYTES
        || head.len() < header_bytes
        || total_bytes < header_bytes
        || total_bytes > bytes
    {
        return Err(Refused::Malformed);
    }
    let mut checksum = InternetChecksum::new();
    checksum.add(&head[..header_bytes]);
    if checksum.finish() != 0 {
        return Err(Refused::Checksum);
    }
    let word = u16::from_be_bytes([fixed[6], fixed[7]]);
    let (more, offset) = (word & 0x2000 != 0, usize::from(word & 0x1fff) * 8);
    let upper = if more || offset > 0 {
        let identification = u32::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        Upper::Fragment(Fragment { identification, offset, more, next_header: fixed[9], header_bytes })
    } else {
        Upper::Whole { protocol: fixed[9], header_bytes }
    };
    let address =
        |at: usize| IpAddress::Ipv4(Ipv4Address::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]));
    let (hop_limit, ecn) = (fixed[8], Ecn::of(fixed[1]));
    Ok(IpHeader { src: address(12), dst: address(16), hop_limit, ecn, total_bytes, upper })
}

/// Parses the IPv6 header at the front of `head`, and the extension headers that `head` contains. `bytes` is
/// the length of the frame from this header on, including padding.
pub(crate) fn parse_ipv6(head: &[u8], bytes: usize) -> Result<IpHeader, Refused> {
    let fixed = head.first_chunk::<IPV6_BYTES>().ok_or(Refused::Malformed)?;
    let total_bytes = IPV6_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if fixed[0] >> 4 != 6 || total_bytes > bytes {
        return Err(Refused::Malformed);
    }
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&fixed[at..at + 16]);
        IpAddress::Ipv6(Ipv6Address::from(bytes))
    };
    let head = &head[..head.len().min(total_bytes)];
    let upper = walk(head, fixed[6], total_bytes)?;
    let (hop_limit, ecn) = (fixed[7], Ecn::of(fixed[1] >> 4));
    Ok(IpHeader { src: address(8), dst: address(24), hop_limit, ecn, total_bytes, upper })
}

/// Skips extension headers that require no action from us, up to the payload or to a header for the slow
/// path.
fn walk(head: &[u8], mut next_header: u8, total_bytes: usize) -> Result<Upper, Refused> {
    let mut at = IPV6_BYTES;
    loop {
        match next_header {
            IPV6_HOP_BY_HOP | IPV6_ROUTING | IPV6_DESTINATION_OPTIONS => {}
            IPV6_FRAGMENT => return fragment(head, at, total_bytes),
            protocol => return Ok(Upper::Whole { protocol, header_bytes: at }),
        }
        let Some(&[following, length]) = head.get(at..).and_then(|h| h.first_chunk::<2>()) else {
            return if at + 2 > total_bytes { Err(Refused::Malformed) } else { Ok(Upper::Opaque) };
        };
        let extension_bytes = (usize::from(length) + 1) * 8;
        if at + extension_bytes > total_bytes {
            return Err(Refused::Malformed);
        }
        let Some(body) = head.get(at + 2..at + extension_bytes) else { return Ok(Upper::Opaque) };
        let harmless = match next_header {
            // `Segments Left` is 0: we are the final destination.
            IPV6_ROUTING => body[1] == 0,
            _ => options_may_be_skipped(body),
        };
        if !harmless {
            return Ok(Upper::Opaque);
        }
        next_header = following;
        at += extension_bytes;
    }
}

/// Whether the options are well-formed, and the highest two bits of every option say "skip over" (RFC 8200
/// section 4.2).
fn options_may_be_skipped(mut options: &[u8]) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        if kind == 0 {
            options = rest;
            continue;
        }
        let Some((&length, rest)) = rest.split_first() else { return false };
        let Some(rest) = rest.get(usize::from(length)..) else { return false };
        if kind >> 6 != 0 {
            return false;
        }
        options = rest;
    }
    true
}

fn fragment(head: &[u8], at: usize, total_bytes: usize) -> Result<Upper, Refused> {
    if at + 8 > total_bytes {
        return Err(Refused::Malformed);
    }
    let Some(header) = head.get(at..).and_then(|h| h.first_chunk::<8>()) else { return Ok(Upper::Opaque) };
    let word = u16::from_be_bytes([header[2], header[3]]);
    let fragment = Fragment {
        identification: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        offset: usize::from(word & !7),
        more: word & 1 != 0,
        next_header: header[0],
        header_bytes: at + 8,
    };
    // An atomic fragment (a fragment header on a packet that is whole, RFC 6946) is handled like a packet
    // without a fragment header, unless more extensions follow.
    let extension = matches!(fragment.next_header, IPV6_HOP_BY_HOP | IPV6_ROUTING | IPV6_DESTINATION_OPTIONS);
    if fragment.offset == 0 && !fragment.more && !extension {
        return Ok(Upper::Whole { protocol: fragment.next_header, header_bytes: at + 8 });
    }
    Ok(Upper::Fragment(fragment))
}

#[cfg(test)]
mod tests;
