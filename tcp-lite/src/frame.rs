//! Frames around TCP segments: Ethernet, IP and TCP headers in front of a payload that stays where it is.
//!
//! The retained payload of a segment is never changed. Headers go into a buffer of their own, with a view of the payload
//! chained behind it, or a copy where it is short or the port sends one buffer a frame.

use arrayvec::ArrayVec;
use dp::{Mbuf, Mempool, Offloads, TxOffload};

use crate::checksum::{Sum, pseudo_header};
use crate::ethernet;
use crate::facade::{EthernetAddress, IpAddress};
use crate::ip::{Ecn, IPV4_OCTETS, IPV6_OCTETS, PROTOCOL_TCP};
use crate::tcp::header::TcpHeader;

/// Payloads of up to so many octets are copied behind their headers: that costs less than another buffer.
const COPIED_OCTETS: usize = 512;

/// Where the TCP header has its checksum.
const TCP_CHECKSUM_AT: usize = 16;

/// What all frames of a stack have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) mac: EthernetAddress,
    pub(crate) vlan: Option<u16>,
    pub(crate) hop_limit: u8,
    pub(crate) offloads: Offloads,
}

/// The headers of one frame, not written yet.
pub(crate) struct Headers<'a> {
    pub(crate) framing: &'a Framing,
    pub(crate) dst_mac: EthernetAddress,
    pub(crate) src: IpAddress,
    pub(crate) dst: IpAddress,
    pub(crate) ecn: Ecn,
    pub(crate) tcp: &'a TcpHeader,
}

impl Headers<'_> {
    /// A frame without payload; `None` when the pool is empty.
    pub(crate) fn bare(&self, pool: &Mempool) -> Option<Mbuf> {
        let mut frame = pool.alloc()?;
        self.emit(frame.append(self.octets())?, 0, &Sum::new());
        frame.set_tx_offload(self.offload());
        Some(frame)
    }

    /// A frame with `payload`; `view` gives it as a buffer. `None` when a pool is empty.
    pub(crate) fn with_payload(
        &self,
        pool: &Mempool,
        payload: &[u8],
        view: impl FnOnce() -> Option<Mbuf>,
    ) -> Option<Mbuf> {
        let octets = self.octets();
        let mut sum = Sum::new();
        if !self.framing.offloads.contains(Offloads::TX_TCP_CHECKSUM) {
            sum.add(payload);
        }
        let copies =
            payload.len() <= COPIED_OCTETS || !self.framing.offloads.contains(Offloads::TX_MULTI_SEGMENT);
        let mut frame = pool.alloc()?;
        if copies {
            // A segment fills a buffer at most, whose headroom is for headers.
            frame.append(payload.len())?.copy_from_slice(payload);
            self.emit(frame.prepend(octets)?, payload.len(), &sum);
        } else {
            self.emit(frame.append(octets)?, payload.len(), &sum);
            // One segment more than the view has, and that has one.
            frame.chain(view()?).ok()?;
        }
        frame.set_tx_offload(self.offload());
        Some(frame)
    }

    /// A frame with several segments, which lie one behind the other in `views`; the port cuts it at `segment_octets`. For
    /// ports with [`Offloads::TX_TSO`]. `None` when the pool is empty.
    pub(crate) fn with_train<const N: usize>(
        &self,
        pool: &Mempool,
        views: ArrayVec<Mbuf, N>,
        segment_octets: usize,
    ) -> Option<Mbuf> {
        // From the far end, so that no chain is walked.
        let joined = views.into_iter().rev().try_fold(None, |behind: Option<Mbuf>, mut view| {
            if let Some(behind) = behind {
                view.chain(behind).ok()?;
            }
            Some(Some(view))
        });
        let train = joined??;
        let mut frame = pool.alloc()?;
        self.emit(frame.append(self.octets())?, train.len(), &Sum::new());
        // A train has one buffer less than a chain may have.
        frame.chain(train).ok()?;
        frame.set_tx_offload(TxOffload { tso_segment_octets: segment_octets as u16, ..self.offload() });
        Some(frame)
    }

    /// Octets of all headers.
    pub(crate) fn octets(&self) -> usize {
        ethernet::header_octets(self.framing.vlan) + self.ip_octets() + self.tcp.emitted_len()
    }

    fn ip_octets(&self) -> usize {
        if self.is_ipv6() { IPV6_OCTETS } else { IPV4_OCTETS }
    }

    fn is_ipv6(&self) -> bool {
        matches!(self.src, IpAddress::Ipv6(_))
    }

    fn offload(&self) -> TxOffload {
        let offloads = self.framing.offloads;
        TxOffload {
            ipv4_checksum: offloads.contains(Offloads::TX_IPV4_CHECKSUM) && !self.is_ipv6(),
            tcp_checksum: offloads.contains(Offloads::TX_TCP_CHECKSUM),
            ipv6: self.is_ipv6(),
            tso_segment_octets: 0,
            l2_octets: ethernet::header_octets(self.framing.vlan) as u8,
            l3_octets: self.ip_octets() as u8,
            l4_octets: self.tcp.emitted_len() as u8,
        }
    }

    /// Writes all headers. `payload` is the sum of the payload, which the device takes itself where it fills in.
    pub(crate) fn emit(&self, out: &mut [u8], payload_octets: usize, payload: &Sum) {
        let Self { framing, dst_mac, src, dst, ecn, tcp } = self;
        let tcp_octets = tcp.emitted_len() + payload_octets;
        let (ethernet, out) = out.split_at_mut(ethernet::header_octets(framing.vlan));
        let (ip, out) = out.split_at_mut(self.ip_octets());
        let ethertype = match (src, dst) {
            (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) => {
                ip[0..2].copy_from_slice(&[0x45, *ecn as u8]);
                ip[2..4].copy_from_slice(&((IPV4_OCTETS + tcp_octets) as u16).to_be_bytes());
                // Identification 0 and don't-fragment: an atomic datagram (RFC 6864).
                ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
                ip[8..12].copy_from_slice(&[framing.hop_limit, PROTOCOL_TCP, 0, 0]);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                if !framing.offloads.contains(Offloads::TX_IPV4_CHECKSUM) {
                    let mut sum = Sum::new();
                    sum.add(ip);
                    ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
                }
                ethernet::ETHERTYPE_IPV4
            }
            (IpAddress::Ipv6(src), IpAddress::Ipv6(dst)) => {
                ip[0..4].copy_from_slice(&[0x60, (*ecn as u8) << 4, 0, 0]);
                ip[4..6].copy_from_slice(&(tcp_octets as u16).to_be_bytes());
                ip[6..8].copy_from_slice(&[PROTOCOL_TCP, framing.hop_limit]);
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                ethernet::ETHERTYPE_IPV6
            }
            // Connections and answers keep to one family.
            _ => unreachable!("a 4-tuple of two families"),
        };
        ethernet::emit(ethernet, *dst_mac, framing.mac, framing.vlan, ethertype);
        tcp.emit(out);
        let mut sum = pseudo_header(src, dst, PROTOCOL_TCP, tcp_octets);
        let checksum = if framing.offloads.contains(Offloads::TX_TCP_CHECKSUM) {
            sum.partial()
        } else {
            sum.add(&out[..tcp.emitted_len()]);
            // TCP headers are a multiple of 4 octets, so the payload's sum is at an even place.
            sum.add_u16(payload.partial());
            sum.finish()
        };
        out[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Whether the TCP segment of `octets` octets that starts at `offset` of the frame has a right checksum.
pub(crate) fn checksum_is_right(
    frame: &Mbuf,
    offset: usize,
    octets: usize,
    src: &IpAddress,
    dst: &IpAddress,
) -> bool {
    let mut sum = pseudo_header(src, dst, PROTOCOL_TCP, octets);
    let mut skip = offset;
    let mut left = octets;
    for segment in frame.segments() {
        let Some(body) = segment.get(skip..) else {
            skip -= segment.len();
            continue;
        };
        skip = 0;
        let n = body.len().min(left);
        sum.add(&body[..n]);
        left -= n;
    }
    left == 0 && sum.finish() == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facade::{Ipv4Address, Ipv6Address, TcpSeqNumber};
    use crate::ip;
    use crate::tcp::header::{Flags, Options};

    #[test]
    fn the_codepoint_is_read_as_it_was_written_in_both_families() {
        let pool = Mempool::heap("test", 4, 2048);
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let framing = Framing { mac, vlan: None, hop_limit: 64, offloads: Offloads::empty() };
        let tcp = TcpHeader {
            src_port: 1,
            dst_port: 2,
            seq: TcpSeqNumber(3),
            ack: None,
            flags: Flags::empty(),
            window: 4,
            options: Options::default(),
        };
        let v4 = |last| IpAddress::Ipv4(Ipv4Address::new(10, 0, 0, last));
        let v6 = |last| IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            for (src, dst) in [(v4(1), v4(2)), (v6(1), v6(2))] {
                let headers = Headers { framing: &framing, dst_mac: mac, src, dst, ecn, tcp: &tcp };
                let frame = headers.bare(&pool).unwrap();
                let packet = &frame.head()[ethernet::HEADER_OCTETS..];
                let parsed = match src {
                    IpAddress::Ipv4(_) => ip::parse_ipv4(packet, packet.len()),
                    IpAddress::Ipv6(_) => ip::parse_ipv6(packet, packet.len()),
                };
                assert_eq!(parsed.unwrap().ecn, ecn, "{src}");
            }
        }
    }
}
