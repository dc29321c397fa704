//! The Internet checksum (RFC 1071). This module computes the checksum of bytes, and fills in checksums that
//! the sender has left to the device (RFC 9293 section 3.1, RFC 8200 section 8.1).
//!
//! [`complete`] is for frames that need a right checksum although no device will fill it in, for example
//! captured frames, the pieces of a large TCP frame, and frames that a link corrupts. The function is not
//! meant for the data path.

mod partial;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use partial::Avx2Lanes;
pub use partial::{copy_partial, partial};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// IPv6 extension headers that may precede a whole TCP segment or UDP datagram. The second byte of each
/// header is the header's length in 8-byte units, without the first 8 bytes (RFC 8200 sections 4.3, 4.4,
/// 4.6).
const IPV6_EXTENSIONS: [u8; 3] = [0, 43, 60];

/// Fills in the TCP or UDP checksum of an Ethernet `frame`. The old value of the field does not matter.
/// Returns `false`, and changes nothing, for other protocols, for fragments, for IPv6 packets whose routing
/// header has segments left, and for frames with a wrong IP version or wrong lengths.
///
/// ```
/// let mut arp = [0_u8; 60];
/// assert!(!dp::checksum::complete(&mut arp));
/// ```
pub fn complete(frame: &mut [u8]) -> bool {
    try_complete(frame).is_some()
}

/// Fills in the IPv4 header checksum of an Ethernet `frame`. Returns `false` if the frame does not have a
/// whole IPv4 header.
pub fn complete_ipv4_header(frame: &mut [u8]) -> bool {
    try_complete_ipv4_header(frame).is_some()
}

fn try_complete(frame: &mut [u8]) -> Option<()> {
    let (ethertype, packet) = network_layer(frame)?;
    let (mut sum, segment, protocol) = match ethertype {
        ETHERTYPE_IPV4 => ipv4_transport(packet)?,
        ETHERTYPE_IPV6 => ipv6_transport(packet)?,
        _ => return None,
    };
    let field = match protocol {
        PROTOCOL_TCP if segment.len() >= 20 => 16,
        PROTOCOL_UDP if segment.len() >= 8 => 6,
        _ => return None,
    };
    segment[field..field + 2].fill(0);
    sum += u64::from(protocol) + segment.len() as u64 + folded(segment);
    let checksum = match !fold(sum) {
        // A UDP checksum of 0 means that the sender has computed no checksum (RFC 768).
        0 if protocol == PROTOCOL_UDP => 0xffff,
        checksum => checksum,
    };
    segment[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

fn try_complete_ipv4_header(frame: &mut [u8]) -> Option<()> {
    let (ethertype, packet) = network_layer(frame)?;
    if ethertype != ETHERTYPE_IPV4 {
        return None;
    }
    let header_bytes = ipv4_header_bytes(packet)?;
    let header = &mut packet[..header_bytes];
    header[10..12].fill(0);
    let checksum = !fold(folded(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// Returns the EtherType after any VLAN tags, and the bytes after the EtherType. Returns `None` if the frame
/// is too short.
fn network_layer(frame: &mut [u8]) -> Option<(u16, &mut [u8])> {
    let mut at = 12;
    loop {
        let ethertype = u16_at(frame, at)?;
        match ethertype {
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => at += 4,
            _ => return Some((ethertype, frame.get_mut(at + 2..)?)),
        }
    }
}

fn ipv4_header_bytes(packet: &[u8]) -> Option<usize> {
    let first = *packet.first()?;
    let bytes = usize::from(first & 0x0f) * 4;
    (first >> 4 == 4 && bytes >= 20 && bytes <= packet.len()).then_some(bytes)
}

/// Returns the sum of the IP addresses, the transport segment, and the protocol number of the segment.
/// Returns `None` for fragments, and for packets with a wrong version or wrong lengths.
fn ipv4_transport(packet: &mut [u8]) -> Option<(u64, &mut [u8], u8)> {
    let header_bytes = ipv4_header_bytes(packet)?;
    let total_bytes = usize::from(u16_at(packet, 2)?);
    // A fragment has only a part of the bytes that its checksum covers.
    if u16_at(packet, 6)? & 0x3fff != 0 {
        return None;
    }
    let addresses = folded(&packet[12..20]);
    let protocol = packet[9];
    Some((addresses, packet.get_mut(header_bytes..total_bytes)?, protocol))
}

/// Returns the sum of the IP addresses, the transport segment, and the protocol number after the extension
/// headers. (The protocol number of a fragment is 44, the fragment header.) Returns `None` for packets with a
/// wrong version or wrong lengths, and for a packet whose routing header has segments left. The checksum of
/// the latter packet covers the address of the final destination instead of the destination address in the IP
/// header.
fn ipv6_transport(packet: &mut [u8]) -> Option<(u64, &mut [u8], u8)> {
    if *packet.first()? >> 4 != 6 || packet.len() < 40 {
        return None;
    }
    let end = 40 + usize::from(u16_at(packet, 4)?);
    let addresses = folded(&packet[8..40]);
    let mut protocol = packet[6];
    let mut at = 40;
    while IPV6_EXTENSIONS.contains(&protocol) {
        let header = packet.get(at..at + 8)?;
        if protocol == 43 && header[3] != 0 {
            return None;
        }
        protocol = header[0];
        at += (usize::from(header[1]) + 1) * 8;
    }
    Some((addresses, packet.get_mut(at..end)?, protocol))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the sum of the 16-bit words, folded into 16 bits. If the number of bytes is odd, the last byte is
/// padded with zero.
fn folded(bytes: &[u8]) -> u64 {
    // `partial` adds words in memory order, so the folded word is converted from network byte order like any
    // other word.
    u64::from(u16::from_be(fold(partial(bytes))))
}

/// Folds a sum in ones' complement into 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
