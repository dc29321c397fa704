//! Plain headers: Ethernet without a tag, IPv4, and TCP with timestamps or without options. Most frames of a
//! connection over IPv4 have such headers if the stack has no VLAN id. Each field has a constant offset, and
//! sums are computed from the fields, not from bytes that were just stored. [`Headers::write`] writes all
//! other headers.

use dp::{Offloads, TxOffload};

use super::{Framing, Headers, Piece};
use crate::checksum::fold;
use crate::ethernet;
use crate::facade::{EthernetAddress, IpAddress, Ipv4Address};
use crate::ip::{Ecn, IPV4_BYTES, PROTOCOL_TCP};
use crate::tcp::header::{MIN_HEADER_BYTES, Options, TIMESTAMPS_WORD, TcpHeader};

/// Number of bytes of all headers without timestamps.
const BYTES: usize = ethernet::HEADER_BYTES + IPV4_BYTES + MIN_HEADER_BYTES;
/// Number of bytes of the timestamps option, with two NOPs.
const TIMESTAMPS_BYTES: usize = 12;

/// The headers of the frames of one connection, which are written and checksummed once, except for the fields
/// that differ from frame to frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainTemplate {
    /// The headers without timestamps, and with 0 for the fields that differ from frame to frame.
    bytes: [u8; BYTES],
    offload: TxOffload,
    /// The first four bytes of the IPv4 header, with 0 for ECN and length.
    version_and_class: u32,
    /// The partial checksum of the fields of the IPv4 header that do not differ. Unused if the port computes
    /// the IPv4 checksum.
    ip_checksum: u64,
    /// The partial checksum of the pseudo-header and, if software computes the TCP checksum, of the ports and
    /// of the first word of the timestamps option.
    tcp_checksum: u64,
}

/// The fields that differ from frame to frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFields {
    pub(crate) ecn: Ecn,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// All control bits, as in the header.
    pub(crate) control_bits: u8,
    pub(crate) window: u16,
    /// Unused in a template without timestamps.
    pub(crate) timestamps: (u32, u32),
    pub(crate) payload_bytes: usize,
    /// Unused if the port computes the TCP checksum.
    pub(crate) payload_checksum: u16,
}

impl PlainTemplate {
    /// A template for these addresses and ports, with or without timestamps.
    pub(crate) fn new(
        framing: &Framing,
        dst_mac: EthernetAddress,
        [src, dst]: [Ipv4Address; 2],
        [src_port, dst_port]: [u16; 2],
        timestamps: bool,
    ) -> Self {
        let mut bytes = [0; BYTES];
        bytes[..6].copy_from_slice(&dst_mac.0);
        bytes[6..12].copy_from_slice(&framing.mac.0);
        bytes[12..14].copy_from_slice(&ethernet::ETHERTYPE_IPV4.to_be_bytes());
        let [src, dst] = [src, dst].map(Ipv4Address::to_bits);
        // Identification 0 and don't-fragment: an atomic datagram (RFC 6864).
        let fragment = 0x4000;
        let version_and_class = 0x4500_0000 | u32::from(framing.traffic_class) << 16;
        let life = u32::from(framing.hop_limit) << 24 | u32::from(PROTOCOL_TCP) << 16;
        let ports = u32::from(src_port) << 16 | u32::from(dst_port);
        put(&mut bytes, 18, &[fragment, life, src, dst, ports]);
        let option_bytes = if timestamps { TIMESTAMPS_BYTES } else { 0 };
        let offload = TxOffload {
            ipv4_checksum: framing.offloads.contains(Offloads::TX_IPV4_CHECKSUM),
            tcp_checksum: framing.offloads.contains(Offloads::TX_TCP_CHECKSUM),
            ipv6: false,
            tso_segment_bytes: 0,
            l2_bytes: ethernet::HEADER_BYTES as u8,
            l3_bytes: IPV4_BYTES as u8,
            l4_bytes: (MIN_HEADER_BYTES + option_bytes) as u8,
        };
        let ip_checksum = partial_checksum(&[fragment, life, src, dst]);
        let mut tcp_checksum = partial_checksum(&[src, dst, u32::from(PROTOCOL_TCP)]);
        if !offload.tcp_checksum {
            tcp_checksum += u64::from(ports) + if timestamps { u64::from(TIMESTAMPS_WORD) } else { 0 };
        }
        Self { bytes, offload, version_and_class, ip_checksum, tcp_checksum }
    }

    /// The template for `headers`; `None` if the frame has a VLAN tag, IPv6 addresses, or TCP options other
    /// than timestamps.
    #[inline]
    pub(super) fn of(headers: &Headers<'_>) -> Option<Self> {
        let (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) = (headers.src, headers.dst) else {
            return None;
        };
        let Options { mss: None, window_scale: None, sack_permitted: false, ref sack, timestamps } =
            headers.tcp.options
        else {
            return None;
        };
        let Headers { framing, dst_mac, tcp, .. } = *headers;
        (sack.is_empty() && framing.vlan.is_none()).then(|| {
            Self::new(framing, dst_mac, [src, dst], [tcp.src_port, tcp.dst_port], timestamps.is_some())
        })
    }

    /// The lengths of the headers, and the checksums that the port computes.
    #[inline]
    pub(crate) fn offload(&self) -> TxOffload {
        self.offload
    }

    /// Number of bytes of all headers.
    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        ethernet::HEADER_BYTES + IPV4_BYTES + usize::from(self.offload.l4_bytes)
    }

    /// Writes the headers of a single frame to all of `out`.
    #[inline(always)]
    pub(crate) fn write(&self, out: &mut [u8], fields: &PlainFields) {
        let Some((out, options)) = out.split_first_chunk_mut::<BYTES>() else {
            unreachable!("the room for headers is as long as the headers")
        };
        *out = self.bytes;
        let tcp_bytes = usize::from(self.offload.l4_bytes) + fields.payload_bytes;
        let lengths = self.version_and_class | (fields.ecn as u32) << 16 | (IPV4_BYTES + tcp_bytes) as u32;
        put(out, 14, &[lengths]);
        if !self.offload.ipv4_checksum {
            let checksum = !fold(self.ip_checksum + u64::from(lengths));
            out[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        // The length of the header is in units of 4 bytes.
        let control = u32::from(self.offload.l4_bytes) << 26
            | u32::from(fields.control_bits) << 16
            | u32::from(fields.window);
        let numbers = [fields.seq, fields.ack, control];
        let (value, echo) = fields.timestamps;
        let mut all = self.tcp_checksum + tcp_bytes as u64;
        let mut times = [0; 2];
        if let Some(options) = options.first_chunk_mut::<TIMESTAMPS_BYTES>() {
            times = [value, echo];
            put(options, 0, &[TIMESTAMPS_WORD, value, echo]);
        }
        let checksum = if self.offload.tcp_checksum {
            fold(all)
        } else {
            all += partial_checksum(&numbers) + partial_checksum(&times) + u64::from(fields.payload_checksum);
            !fold(all)
        };
        put(out, 38, &numbers);
        // The urgent pointer is 0.
        out[50..52].copy_from_slice(&checksum.to_be_bytes());
    }
}

impl PlainFields {
    /// The fields of `tcp`, with the payload of `piece`.
    #[inline]
    pub(super) fn of(tcp: &TcpHeader, ecn: Ecn, piece: &Piece) -> Self {
        Self {
            ecn,
            seq: tcp.seq.0 as u32,
            ack: tcp.ack.map_or(0, |ack| ack.0 as u32),
            control_bits: tcp.control_bits(),
            window: tcp.window,
            timestamps: tcp.options.timestamps.unwrap_or_default(),
            payload_bytes: piece.bytes,
            payload_checksum: piece.checksum.partial(),
        }
    }
}

#[inline]
fn partial_checksum(words: &[u32]) -> u64 {
    words.iter().map(|word| u64::from(*word)).sum()
}

#[inline]
fn put<const N: usize, const ROOM: usize>(out: &mut [u8; ROOM], at: usize, words: &[u32; N]) {
    for (word, bytes) in words.iter().zip(out[at..at + 4 * N].chunks_exact_mut(4)) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use dp::TsoLimits;
    use proptest::prelude::*;

    use super::super::header_bytes;
    use super::*;
    use crate::checksum::InternetChecksum;
    use crate::facade::TcpSeqNumber;
    use crate::tcp::header::Flags;

    /// Headers whose fields have the values `numbers`, which the test chooses at random.
    fn headers(
        numbers: [u32; 8],
        flags: u8,
        [ack, timestamps]: [bool; 2],
    ) -> (Framing, TcpHeader, [IpAddress; 2], Ecn) {
        let [src, dst, ports, seq, acked, window, value, echo] = numbers;
        let framing = Framing {
            mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            vlan: None,
            traffic_class: value as u8 & !Ecn::MASK,
            hop_limit: window as u8,
            offloads: Offloads::empty(),
            tso: TsoLimits::default(),
        };
        let tcp = TcpHeader {
            src_port: ports as u16,
            dst_port: (ports >> 16) as u16,
            seq: TcpSeqNumber(seq as i32),
            ack: ack.then_some(TcpSeqNumber(acked as i32)),
            flags: Flags::from_bits_truncate(flags),
            window: (window >> 16) as u16,
            options: Options { timestamps: timestamps.then_some((value, echo)), ..Options::default() },
        };
        let addresses = [src, dst].map(|bits| IpAddress::Ipv4(Ipv4Address::from_bits(bits)));
        (framing, tcp, addresses, [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce][flags as usize % 4])
    }

    proptest! {
        #[test]
        fn they_are_the_bytes_of_the_general_way(
            numbers in any::<[u32; 8]>(),
            (flags, presence) in any::<(u8, [bool; 2])>(),
            sums in 0_u8..4,
            payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let (mut framing, tcp, [src, dst], ecn) = headers(numbers, flags, presence);
            framing.offloads.set(Offloads::TX_IPV4_CHECKSUM, sums & 1 != 0);
            framing.offloads.set(Offloads::TX_TCP_CHECKSUM, sums & 2 != 0);
            let dst_mac = EthernetAddress([4, 5, 6, 7, 8, 9]);
            let headers = Headers { framing: &framing, dst_mac, src, dst, ecn, tcp: &tcp };
            let mut checksum = InternetChecksum::new();
            checksum.add(&payload);
            let piece = Piece { checksum, ..Piece::whole(payload.len()) };
            let plain = PlainTemplate::of(&headers).expect("no option other than timestamps");
            prop_assert_eq!(plain.offload(), headers.offload());
            let offload = plain.offload();
            prop_assert_eq!(plain.header_bytes(), header_bytes(offload));
            let mut bytes = vec![0xff; header_bytes(offload)];
            plain.write(&mut bytes, &PlainFields::of(&tcp, ecn, &piece));
            let mut general = vec![0xff; header_bytes(offload)];
            headers.write(offload, &mut general).complete(&mut general, &piece);
            prop_assert_eq!(bytes, general);
        }
    }

    #[test]
    fn other_headers_are_not_plain() {
        type Change = fn(&mut Framing, &mut TcpHeader);
        let changes: [Change; 5] = [
            |framing, _| framing.vlan = Some(5),
            |_, tcp| tcp.options.mss = Some(1460),
            |_, tcp| tcp.options.window_scale = Some(7),
            |_, tcp| tcp.options.sack_permitted = true,
            |_, tcp| tcp.options.sack.push((TcpSeqNumber(1), TcpSeqNumber(2))),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let (mut framing, mut tcp, [src, dst], ecn) = headers([1; 8], 0, [true; 2]);
            change(&mut framing, &mut tcp);
            let dst_mac = EthernetAddress([4, 5, 6, 7, 8, 9]);
            let headers = Headers { framing: &framing, dst_mac, src, dst, ecn, tcp: &tcp };
            assert!(PlainTemplate::of(&headers).is_none(), "change {number}");
        }
        let (framing, tcp, _, ecn) = headers([1; 8], 0, [true; 2]);
        let [src, dst] = [1, 2].map(|last| IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, last));
        let dst_mac = EthernetAddress([4, 5, 6, 7, 8, 9]);
        let headers = Headers { framing: &framing, dst_mac, src, dst, ecn, tcp: &tcp };
        assert!(PlainTemplate::of(&headers).is_none());
    }
}
