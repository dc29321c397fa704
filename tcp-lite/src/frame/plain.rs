//! The headers of nearly every frame of a connection over IPv4: Ethernet without a tag, and TCP without
//! other options than timestamps. Each field has a constant offset, and sums are made of the fields and not
//! of bytes that were just stored. All other headers are written by [`Headers::write`].

use dp::{Offloads, TxOffload};

use super::{Headers, Piece};
use crate::checksum::fold;
use crate::ethernet;
use crate::facade::{IpAddress, Ipv4Address};
use crate::ip::{IPV4_BYTES, PROTOCOL_TCP};
use crate::tcp::header::{MIN_HEADER_BYTES, Options, TIMESTAMPS_WORD};

/// Bytes of all headers without timestamps.
const BYTES: usize = ethernet::HEADER_BYTES + IPV4_BYTES + MIN_HEADER_BYTES;
/// Bytes of the timestamps option, with two NOPs.
const TIMESTAMPS_BYTES: usize = 12;

/// Such headers.
#[derive(Clone, Copy)]
pub(super) struct PlainHeaders<'a> {
    headers: &'a Headers<'a>,
    src: Ipv4Address,
    dst: Ipv4Address,
    timestamps: Option<(u32, u32)>,
}

impl<'a> PlainHeaders<'a> {
    /// `None` if `headers` are of another kind.
    #[inline]
    pub(super) fn of(headers: &'a Headers<'a>) -> Option<Self> {
        let (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) = (headers.src, headers.dst) else {
            return None;
        };
        let Options { mss: None, window_scale: None, sack_permitted: false, ref sack, timestamps } =
            headers.tcp.options
        else {
            return None;
        };
        (sack.is_empty() && headers.framing.vlan.is_none()).then_some(Self { headers, src, dst, timestamps })
    }

    /// Bytes of the TCP header.
    #[inline]
    fn tcp_bytes(&self) -> usize {
        MIN_HEADER_BYTES + if self.timestamps.is_some() { TIMESTAMPS_BYTES } else { 0 }
    }

    /// The lengths, and the sums that the port makes.
    #[inline]
    pub(super) fn offload(&self) -> TxOffload {
        let offloads = self.headers.framing.offloads;
        TxOffload {
            ipv4_checksum: offloads.contains(Offloads::TX_IPV4_CHECKSUM),
            tcp_checksum: offloads.contains(Offloads::TX_TCP_CHECKSUM),
            ipv6: false,
            tso_segment_bytes: 0,
            l2_bytes: ethernet::HEADER_BYTES as u8,
            l3_bytes: IPV4_BYTES as u8,
            l4_bytes: self.tcp_bytes() as u8,
        }
    }

    /// Writes the headers of a single frame with the payload `piece` to all of `out`.
    #[inline]
    pub(super) fn write(&self, offload: TxOffload, out: &mut [u8], piece: &Piece) {
        let Some((out, options)) = out.split_first_chunk_mut::<BYTES>() else {
            unreachable!("the room for headers is as long as the headers")
        };
        let Headers { framing, dst_mac, ecn, tcp, .. } = self.headers;
        out[..6].copy_from_slice(&dst_mac.0);
        out[6..12].copy_from_slice(&framing.mac.0);
        out[12..14].copy_from_slice(&ethernet::ETHERTYPE_IPV4.to_be_bytes());

        let tcp_bytes = (self.tcp_bytes() + piece.bytes) as u16;
        let [src, dst] = [self.src, self.dst].map(Ipv4Address::to_bits);
        let lengths = 0x4500_0000 | (*ecn as u32) << 16 | u32::from(IPV4_BYTES as u16 + tcp_bytes);
        // Identification 0 and don't-fragment: an atomic datagram (RFC 6864).
        let fragment = 0x4000;
        let mut life = u32::from(framing.hop_limit) << 24 | u32::from(PROTOCOL_TCP) << 16;
        if !offload.ipv4_checksum {
            life |= u32::from(!fold(sum(&[lengths, fragment, life, src, dst])));
        }
        put(out, 14, &[lengths, fragment, life, src, dst]);

        let ports = u32::from(tcp.src_port) << 16 | u32::from(tcp.dst_port);
        let offset = ((self.tcp_bytes() / 4) as u32) << 28;
        let control = offset | u32::from(tcp.control_bits()) << 16 | u32::from(tcp.window);
        let ack = tcp.ack.map_or(0, |ack| ack.0 as u32);
        let pseudo = [src, dst, u32::from(PROTOCOL_TCP), u32::from(tcp_bytes)];
        let fields = [ports, tcp.seq.0 as u32, ack, control];
        let timestamps = self.timestamps.map_or([0; 3], |(value, echo)| [TIMESTAMPS_WORD, value, echo]);
        let checksum = if offload.tcp_checksum {
            fold(sum(&pseudo))
        } else {
            !fold(sum(&pseudo) + sum(&fields) + sum(&timestamps) + u64::from(piece.sum.partial()))
        };
        put(out, 34, &fields);
        // The urgent pointer is 0.
        put(out, 50, &[u32::from(checksum) << 16]);
        if let Some(options) = options.first_chunk_mut::<TIMESTAMPS_BYTES>() {
            put(options, 0, &timestamps);
        }
    }
}

#[inline]
fn sum(words: &[u32]) -> u64 {
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

    use super::super::{Framing, header_bytes};
    use super::*;
    use crate::checksum::Sum;
    use crate::facade::{EthernetAddress, TcpSeqNumber};
    use crate::ip::Ecn;
    use crate::tcp::header::{Flags, TcpHeader};

    /// Headers with these numbers in their fields.
    fn headers(
        numbers: [u32; 8],
        flags: u8,
        [ack, timestamps]: [bool; 2],
    ) -> (Framing, TcpHeader, [IpAddress; 2], Ecn) {
        let [src, dst, ports, seq, acked, window, value, echo] = numbers;
        let framing = Framing {
            mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            vlan: None,
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
            let mut sum = Sum::new();
            sum.add(&payload);
            let piece = Piece { sum, ..Piece::whole(payload.len()) };
            let plain = PlainHeaders::of(&headers).expect("no option other than timestamps");
            prop_assert_eq!(plain.offload(), headers.general_offload());
            let offload = plain.offload();
            let mut bytes = vec![0xff; header_bytes(offload)];
            plain.write(offload, &mut bytes, &piece);
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
            assert!(PlainHeaders::of(&headers).is_none(), "change {number}");
        }
        let (framing, tcp, _, ecn) = headers([1; 8], 0, [true; 2]);
        let [src, dst] = [1, 2].map(|last| IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, last));
        let dst_mac = EthernetAddress([4, 5, 6, 7, 8, 9]);
        let headers = Headers { framing: &framing, dst_mac, src, dst, ecn, tcp: &tcp };
        assert!(PlainHeaders::of(&headers).is_none());
    }
}
