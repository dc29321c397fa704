//! Packets built from parts, valid by default: lengths and checksums are filled in last.

use smoltcp::wire::checksum;

use crate::sim::packet::parse;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
/// Bytes of a TCP header without options.
pub(super) const TCP_BYTES: usize = 20;

/// IP protocol numbers.
pub(super) mod protocol {
    #![allow(missing_docs, reason = "the names are IANA's")]
    pub(in super::super) const ICMP: u8 = 1;
    pub(in super::super) const TCP: u8 = 6;
    pub(in super::super) const FRAGMENT: u8 = 44;
    pub(in super::super) const ICMPV6: u8 = 58;
}

/// Source and destination addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// Ethernet, source first.
    pub(super) macs: [[u8; 6]; 2],
    /// IPv4.
    pub(super) v4: [[u8; 4]; 2],
    /// IPv6.
    pub(super) v6: [[u8; 16]; 2],
}

/// The variable fields of an IPv4 header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv4 {
    /// Type of service, ECN in the last two bits.
    pub(super) tos: u8,
    /// Identification.
    pub(super) id: u16,
    /// Flags and fragment offset.
    pub(super) fragment: u16,
    /// Time to live.
    pub(super) ttl: u8,
    /// Protocol of the payload.
    pub(super) protocol: u8,
}

fn ethernet(ends: &Addresses, ethertype: [u8; 2]) -> Vec<u8> {
    [&ends.macs[1][..], &ends.macs[0], &ethertype].concat()
}

/// A frame with any payload.
pub(super) fn raw(ends: &Addresses, ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&ethernet(ends, ethertype)[..], payload].concat()
}

/// An IPv4 packet; `options` are padded to a multiple of four.
pub(super) fn ipv4(ends: &Addresses, header: Ipv4, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(ends, [0x08, 0]);
    let bytes = 20 + options.len().min(40).next_multiple_of(4);
    frame.extend([0x40 | (bytes / 4) as u8, header.tos]);
    frame.extend(((bytes + payload.len()) as u16).to_be_bytes());
    frame.extend(header.id.to_be_bytes());
    frame.extend(header.fragment.to_be_bytes());
    frame.extend([header.ttl, header.protocol, 0, 0]);
    frame.extend(ends.v4[0]);
    frame.extend(ends.v4[1]);
    frame.extend(&options[..options.len().min(40)]);
    frame.resize(ETHERNET + bytes, 0);
    frame.extend(payload);
    finish(&mut frame);
    frame
}

/// An IPv6 packet; extension headers are part of `payload`.
pub(super) fn ipv6(ends: &Addresses, class: u8, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(ends, [0x86, 0xdd]);
    frame.extend([0x60 | class >> 4, class << 4, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, hop_limit]);
    frame.extend(ends.v6[0]);
    frame.extend(ends.v6[1]);
    frame.extend(payload);
    finish(&mut frame);
    frame
}

/// A fragment of `packet`'s payload: `at` and `bytes` count from the end of the IP header.
pub(super) fn fragment(packet: &[u8], id: u16, at: usize, bytes: usize, more: bool) -> Option<Vec<u8>> {
    let offset = at / 8 * 8;
    let cut = |payload: &[u8]| -> Option<Vec<u8>> {
        let payload = payload.get(offset..)?;
        Some(payload[..bytes.min(payload.len())].to_vec())
    };
    let mut frame;
    match packet.get(12..14)? {
        [0x08, 0] => {
            let piece = cut(packet.get(ETHERNET + 20..)?)?;
            frame = packet[..ETHERNET + 20].to_vec();
            frame[ETHERNET] = 0x45;
            frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&((20 + piece.len()) as u16).to_be_bytes());
            frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&id.to_be_bytes());
            let field = (offset / 8) as u16 | u16::from(more) << 13;
            frame[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&field.to_be_bytes());
            frame.extend(piece);
        }
        [0x86, 0xdd] => {
            let piece = cut(packet.get(ETHERNET + 40..)?)?;
            frame = packet[..ETHERNET + 40].to_vec();
            frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&((8 + piece.len()) as u16).to_be_bytes());
            frame[ETHERNET + 6] = protocol::FRAGMENT;
            frame.extend([packet[ETHERNET + 6], 0]);
            frame.extend((offset as u16 | u16::from(more)).to_be_bytes());
            frame.extend([0, 0]);
            frame.extend(id.to_be_bytes());
            frame.extend(piece);
        }
        _ => return None,
    }
    dp::checksum::complete_ipv4_header(&mut frame);
    Some(frame)
}

/// Fills in the checksum of the IPv4 header, and those of TCP, ICMP and ICMPv6 directly after an IP header,
/// if present.
pub(super) fn finish(frame: &mut [u8]) {
    dp::checksum::complete_ipv4_header(frame);
    if dp::checksum::complete(frame) {
        return;
    }
    if let Some((at, pseudo)) = message(frame) {
        frame[at + 2..at + 4].fill(0);
        let sum = !checksum::combine(&[pseudo, checksum::data(&frame[at..])]);
        frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The offset of an ICMP message of either family, and the sum of its pseudo-header.
fn message(frame: &[u8]) -> Option<(usize, u16)> {
    let (at, pseudo) = match (frame.get(12..14)?, frame.get(ETHERNET + 6)?, frame.get(ETHERNET + 9)?) {
        ([0x08, 0], _, &protocol::ICMP) => (ETHERNET + usize::from(frame[ETHERNET] & 15) * 4, 0),
        ([0x86, 0xdd], &protocol::ICMPV6, _) => {
            let addresses = frame.get(ETHERNET + 8..ETHERNET + 40)?;
            let length = (frame.len() - ETHERNET - 40) as u16;
            let rest = [0, 0, (length >> 8) as u8, length as u8, 0, 0, 0, protocol::ICMPV6];
            (ETHERNET + 40, checksum::combine(&[checksum::data(addresses), checksum::data(&rest)]))
        }
        _ => return None,
    };
    (frame.len() >= at + 4).then_some((at, pseudo))
}

/// The answer to `frame`, if it is an ARP request or neighbour solicitation: the Ethernet address of `ends`'
/// source.
pub(super) fn resolution(frame: &[u8], ends: &Addresses) -> Option<Vec<u8>> {
    let [mac, asker] = &ends.macs;
    if frame.get(12..14)? == [8, 6] && frame.get(ETHERNET + 7)? == &1 {
        let (asked, by) =
            (frame.get(ETHERNET + 24..ETHERNET + 28)?, frame.get(ETHERNET + 14..ETHERNET + 18)?);
        return Some(raw(ends, [8, 6], &[&[0, 1, 8, 0, 6, 4, 0, 2][..], mac, asked, asker, by].concat()));
    }
    if frame.get(12..14)? == [0x86, 0xdd] && frame.get(ETHERNET + 40)? == &135 {
        let asked = frame.get(ETHERNET + 48..ETHERNET + 64)?;
        let mut ends = *ends;
        ends.v6[0].copy_from_slice(asked);
        ends.v6[1].copy_from_slice(&frame[ETHERNET + 8..ETHERNET + 24]);
        let message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], asked, &[2, 1], mac].concat();
        return Some(ipv6(&ends, 0, protocol::ICMPV6, 255, &message));
    }
    None
}

/// A frame as text, for traces.
pub(super) struct Shown<'a>(pub(super) &'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(tcp) = parse(self.0) else { return write!(f, "{:02x?}", self.0) };
        let (seq, ack, flags, window) = (tcp.seq, tcp.ack, tcp.flags, tcp.window);
        write!(f, "seq {seq} +{} ack {ack} flags {flags:02x} window {window}", tcp.len())?;
        tcp.options(self.0).try_for_each(|(kind, value)| write!(f, " {kind}:{value:02x?}"))
    }
}

/// Whether a frame is a whole TCP segment with correct checksums.
pub(super) fn is_whole_tcp(frame: &[u8]) -> bool {
    let mut again = frame.to_vec();
    dp::checksum::complete_ipv4_header(&mut again);
    dp::checksum::complete(&mut again) && again == frame
}

/// Whether all checksums in a sent frame are correct.
pub(super) fn is_sound(frame: &[u8]) -> bool {
    let mut again = frame.to_vec();
    if let Some((at, _)) = message(&again) {
        again[at + 2..at + 4].fill(0);
    }
    finish(&mut again);
    again == frame
}
