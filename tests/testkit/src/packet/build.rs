//! Builds packets from parts. Packets are valid unless a test changes them, since lengths and checksums are
//! filled in last.

/// Length in bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Length in bytes of a TCP header without options.
pub const TCP_BYTES: usize = 20;

/// IP protocol numbers.
pub mod protocol {
    #![allow(missing_docs, reason = "the names are IANA's")]
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
}

/// Source and destination addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// Ethernet addresses, source first.
    pub macs: [[u8; 6]; 2],
    /// IPv4 addresses, source first.
    pub v4: [[u8; 4]; 2],
    /// IPv6 addresses, source first.
    pub v6: [[u8; 16]; 2],
}

impl Addresses {
    /// Returns the addresses of an answer to `frame`, which has a whole IP header of this family.
    pub(super) fn of_answer(frame: &[u8], is_ipv6: bool) -> Self {
        let mut answer = Self { macs: pair(frame), ..Self::default() };
        let packet = &frame[ETHERNET..];
        if is_ipv6 {
            answer.v6 = pair(&packet[8..]);
            answer.v6.reverse();
        } else {
            answer.v4 = pair(&packet[12..]);
            answer.v4.reverse();
        }
        answer
    }
}

/// Returns the first two addresses in `bytes`.
fn pair<const N: usize>(bytes: &[u8]) -> [[u8; N]; 2] {
    [0, N].map(|at| *bytes[at..].first_chunk().expect("a whole header"))
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpHeader<'a> {
    /// Source and destination port.
    pub ports: [u16; 2],
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags, see [`flag`](super::flag).
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options, of which the first 40 bytes are used. These bytes are padded to a multiple of four bytes.
    pub options: &'a [u8],
}

impl TcpHeader<'_> {
    /// Returns a segment with this payload, without its checksum.
    pub fn segment(&self, payload: &[u8]) -> Vec<u8> {
        let options = &self.options[..self.options.len().min(40)];
        let header_bytes = TCP_BYTES + options.len().next_multiple_of(4);
        let mut segment = Vec::with_capacity(header_bytes + payload.len());
        segment.extend(self.ports.map(u16::to_be_bytes).as_flattened());
        segment.extend(self.seq.to_be_bytes());
        segment.extend(self.ack.to_be_bytes());
        segment.extend([(header_bytes as u8 / 4) << 4, self.flags]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0, 0]);
        segment.extend(self.urgent.to_be_bytes());
        segment.extend(options);
        segment.resize(header_bytes, 0);
        segment.extend(payload);
        segment
    }
}

/// The variable fields of an IPv4 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4 {
    /// Type of service. The last two bits are the ECN field.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset.
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
}

fn ethernet(addresses: &Addresses, ethertype: [u8; 2]) -> Vec<u8> {
    [&addresses.macs[1][..], &addresses.macs[0], &ethertype].concat()
}

/// Returns a frame with any payload.
pub fn raw(addresses: &Addresses, ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
    [&ethernet(addresses, ethertype)[..], payload].concat()
}

/// Returns a frame with an IPv4 packet and correct checksums. `options` are padded to a multiple of four
/// bytes.
pub fn ipv4(addresses: &Addresses, header: Ipv4, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(addresses, [0x08, 0]);
    let bytes = 20 + options.len().min(40).next_multiple_of(4);
    frame.extend([0x40 | (bytes / 4) as u8, header.tos]);
    frame.extend(((bytes + payload.len()) as u16).to_be_bytes());
    frame.extend(header.id.to_be_bytes());
    frame.extend(header.fragment.to_be_bytes());
    frame.extend([header.ttl, header.protocol, 0, 0]);
    frame.extend(addresses.v4[0]);
    frame.extend(addresses.v4[1]);
    frame.extend(&options[..options.len().min(40)]);
    frame.resize(ETHERNET + bytes, 0);
    frame.extend(payload);
    complete(&mut frame);
    frame
}

/// Returns a frame with an IPv6 packet and correct checksums. Extension headers are part of `payload`.
pub fn ipv6(addresses: &Addresses, class: u8, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(addresses, [0x86, 0xdd]);
    frame.extend([0x60 | class >> 4, class << 4, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, hop_limit]);
    frame.extend(addresses.v6[0]);
    frame.extend(addresses.v6[1]);
    frame.extend(payload);
    complete(&mut frame);
    frame
}

/// Returns a fragment of `packet`: at most `bytes` bytes of the IP payload, from offset `at` on, which is
/// rounded down to a multiple of eight. Returns `None` if the packet has no whole IP header, or if `at` is
/// beyond its payload.
pub fn fragment(packet: &[u8], id: u16, at: usize, bytes: usize, more: bool) -> Option<Vec<u8>> {
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

/// Fills in the checksum of the IPv4 header, and the checksum of TCP, ICMP or ICMPv6 if it directly follows
/// an IP header.
pub fn complete(frame: &mut [u8]) {
    dp::checksum::complete_ipv4_header(frame);
    if dp::checksum::complete(frame) {
        return;
    }
    if let Some((at, pseudo)) = message(frame) {
        frame[at + 2..at + 4].fill(0);
        let checksum = internet_checksum(&[&pseudo, &frame[at..]]);
        frame[at + 2..at + 4].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns the offset of an ICMP or ICMPv6 message, and its pseudo-header, or `None` for any other frame.
fn message(frame: &[u8]) -> Option<(usize, Vec<u8>)> {
    let (at, pseudo) = match (frame.get(12..14)?, frame.get(ETHERNET + 6)?, frame.get(ETHERNET + 9)?) {
        ([0x08, 0], _, &protocol::ICMP) => (ETHERNET + usize::from(frame[ETHERNET] & 15) * 4, Vec::new()),
        ([0x86, 0xdd], &protocol::ICMPV6, _) => {
            let addresses = frame.get(ETHERNET + 8..ETHERNET + 40)?;
            let bytes = (frame.len() - ETHERNET - 40) as u32;
            let pseudo = [addresses, &bytes.to_be_bytes(), &[0, 0, 0, protocol::ICMPV6]].concat();
            (ETHERNET + 40, pseudo)
        }
        _ => return None,
    };
    (frame.len() >= at + 4).then_some((at, pseudo))
}

/// Returns the Internet checksum (RFC 1071) of parts. Each part except the last has an even length.
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

/// Returns the answer to `frame` if it is an ARP request or a neighbour solicitation. The answer has the
/// source Ethernet address of `addresses`.
pub fn resolution(frame: &[u8], addresses: &Addresses) -> Option<Vec<u8>> {
    let [mac, asker] = &addresses.macs;
    if frame.get(12..14)? == [8, 6] && frame.get(ETHERNET + 7)? == &1 {
        let (asked, by) =
            (frame.get(ETHERNET + 24..ETHERNET + 28)?, frame.get(ETHERNET + 14..ETHERNET + 18)?);
        return Some(raw(
            addresses,
            [8, 6],
            &[&[0, 1, 8, 0, 6, 4, 0, 2][..], mac, asked, asker, by].concat(),
        ));
    }
    if frame.get(12..14)? == [0x86, 0xdd] && frame.get(ETHERNET + 40)? == &135 {
        let asked = frame.get(ETHERNET + 48..ETHERNET + 64)?;
        let mut addresses = *addresses;
        addresses.v6[0].copy_from_slice(asked);
        addresses.v6[1].copy_from_slice(&frame[ETHERNET + 8..ETHERNET + 24]);
        let message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], asked, &[2, 1], mac].concat();
        return Some(ipv6(&addresses, 0, protocol::ICMPV6, 255, &message));
    }
    None
}

/// Whether a frame is a whole TCP segment with correct checksums.
pub fn is_whole_tcp(frame: &[u8]) -> bool {
    let mut again = frame.to_vec();
    dp::checksum::complete_ipv4_header(&mut again);
    dp::checksum::complete(&mut again) && again == frame
}

/// Whether all checksums in a sent frame are correct.
pub fn is_sound(frame: &[u8]) -> bool {
    let mut again = frame.to_vec();
    if let Some((at, _)) = message(&again) {
        again[at + 2..at + 4].fill(0);
    }
    complete(&mut again);
    again == frame
}
