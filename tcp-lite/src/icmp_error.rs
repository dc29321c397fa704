//! Parses ICMP errors (RFC 792, RFC 4443) that quote a TCP segment of ours.
//!
//! Any host can send such errors, so the stack believes an error only if the quoted sequence number was sent
//! and is not acknowledged (RFC 5927). A report of a smaller MTU may also quote a path MTU probe in flight.

use crate::checksum::{InternetChecksum, pseudo_header};
use crate::facade::{IpAddress, Ipv4Address, Ipv6Address, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::ip::{self, IpHeader, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, Upper};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// The destination does not support the protocol, its port is not in use, or a router forbids the packet
    /// (RFC 1122 section 4.2.3.9, RFC 5461 section 2.1). Such an error ends a connection in SYN-SENT.
    Hard,
    /// The cause may be transient, such as a missing route or an exceeded hop limit. Such an error ends a
    /// connection only in SYN-SENT, and only if our SYN was sent more than once.
    Soft,
    /// The packet was larger than the MTU of a link. `mtu` is this MTU, but at least the smallest MTU that an
    /// error can set.
    TooBig { mtu: usize },
}

/// An ICMP error and the segment that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// The 4-tuple of the quoted segment; our address is `local`, because we sent the segment.
    pub(crate) tuple: FourTuple,
    /// Sequence number of the quoted segment.
    pub(crate) seq: TcpSeqNumber,
    pub(crate) kind: IcmpErrorKind,
}

/// The smallest MTU that an ICMP error can set, so that a forged error cannot make segments tiny. For IPv4,
/// this is the packet size that every host must accept (RFC 791); for IPv6, it is the minimum MTU (RFC 8200).
pub(crate) const IPV4_MIN_MTU: usize = 576;
pub(crate) const IPV6_MIN_MTU: usize = 1280;

/// MTU plateaus, for IPv4 routers that do not report their MTU (RFC 1191 section 7.1), down to the smallest
/// MTU that an error can set. The value 0 ends the search for a plateau. If the search reaches 0, the result
/// is raised to this smallest MTU.
const PLATEAUS: [usize; 9] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 576, 0];

/// Parses `packet`, whose IP header was parsed as `header`; `None` if the packet is no valid ICMP error about
/// a TCP segment.
pub(crate) fn parse(packet: &[u8], header: &IpHeader) -> Option<IcmpError> {
    let Upper::Whole { protocol, header_bytes } = header.upper else { return None };
    let message = packet.get(header_bytes..header.total_bytes)?;
    let mut checksum = match protocol {
        PROTOCOL_ICMP => InternetChecksum::new(),
        PROTOCOL_ICMPV6 => pseudo_header(&header.src, &header.dst, PROTOCOL_ICMPV6, message.len()),
        _ => return None,
    };
    checksum.add(message);
    let fixed = message.first_chunk::<8>()?;
    let quoted = &message[8..];
    if checksum.finish() != 0 {
        return None;
    }
    if protocol == PROTOCOL_ICMP { parse_v4(fixed, quoted) } else { parse_v6(fixed, quoted) }
}

fn parse_v4(fixed: &[u8; 8], quoted: &[u8]) -> Option<IcmpError> {
    let head = quoted.first_chunk::<{ ip::IPV4_BYTES }>()?;
    let header_bytes = usize::from(head[0] & 0x0f) * 4;
    let is_tcp = head[0] >> 4 == 4 && header_bytes >= ip::IPV4_BYTES && head[9] == PROTOCOL_TCP;
    // Only the first fragment has a TCP header.
    let first = u16::from_be_bytes([head[6], head[7]]) & 0x1fff == 0;
    if !is_tcp || !first {
        return None;
    }
    let kind = match (fixed[0], fixed[1]) {
        // Fragmentation needed (RFC 1191).
        (3, 4) => {
            let sent = usize::from(u16::from_be_bytes([head[2], head[3]]));
            let mtu = match usize::from(u16::from_be_bytes([fixed[6], fixed[7]])) {
                0 => *PLATEAUS.iter().find(|p| **p < sent)?,
                // The error is contradictory, because the packet was not larger than this MTU.
                mtu if mtu >= sent => return None,
                mtu => mtu,
            };
            IcmpErrorKind::TooBig { mtu: mtu.max(IPV4_MIN_MTU) }
        }
        // The protocol or port does not exist, or communication is administratively prohibited (RFC 1122
        // section 3.2.2.1, RFC 1812 section 5.2.7.1).
        (3, 2 | 3 | 9 | 10 | 13) => IcmpErrorKind::Hard,
        // Other codes of "destination unreachable", and all codes of "time exceeded" and "parameter problem".
        (3 | 11 | 12, _) => IcmpErrorKind::Soft,
        // Source quench (4) is obsolete (RFC 6633). No other type concerns TCP connections.
        _ => return None,
    };
    let address =
        |at: usize| IpAddress::Ipv4(Ipv4Address::new(head[at], head[at + 1], head[at + 2], head[at + 3]));
    quoted_tcp(address(12), address(16), quoted.get(header_bytes..)?, kind)
}

fn parse_v6(fixed: &[u8; 8], quoted: &[u8]) -> Option<IcmpError> {
    let head = quoted.first_chunk::<{ ip::IPV6_BYTES }>()?;
    // We send no extension headers.
    if head[0] >> 4 != 6 || head[6] != PROTOCOL_TCP {
        return None;
    }
    let kind = match (fixed[0], fixed[1]) {
        // Communication is prohibited, the port does not exist, or the source address or route is rejected
        // (RFC 4443 section 3.1).
        (1, 1 | 4 | 5 | 6) => IcmpErrorKind::Hard,
        (1 | 3 | 4, _) => IcmpErrorKind::Soft,
        (2, _) => {
            let mtu = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]) as usize;
            let sent = ip::IPV6_BYTES + usize::from(u16::from_be_bytes([head[4], head[5]]));
            // Every link carries packets of the minimum MTU, so a smaller value is discarded (RFC 8201
            // section 4). A reported MTU that is not below the packet's length is contradictory.
            if !(IPV6_MIN_MTU..sent).contains(&mtu) {
                return None;
            }
            IcmpErrorKind::TooBig { mtu }
        }
        _ => return None,
    };
    let address = |at: usize| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&head[at..at + 16]);
        IpAddress::Ipv6(Ipv6Address::from(bytes))
    };
    quoted_tcp(address(8), address(24), &quoted[ip::IPV6_BYTES..], kind)
}

/// The error of this kind about a segment whose TCP header begins with `tcp`. Ports and sequence number are
/// in the first 8 bytes, which every quotation has. `None` if `tcp` is shorter.
fn quoted_tcp(src: IpAddress, dst: IpAddress, tcp: &[u8], kind: IcmpErrorKind) -> Option<IcmpError> {
    let tcp = tcp.first_chunk::<8>()?;
    let tuple = FourTuple {
        local: src,
        local_port: u16::from_be_bytes([tcp[0], tcp[1]]),
        remote: dst,
        remote_port: u16::from_be_bytes([tcp[2], tcp[3]]),
    };
    let seq = TcpSeqNumber(i32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]));
    Some(IcmpError { tuple, seq, kind })
}
