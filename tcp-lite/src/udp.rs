//! UDP datagrams (RFC 768): their headers, and the queue of datagrams to send. `stack/udp.rs` has the calls
//! of users.

use std::collections::VecDeque;
use std::net::SocketAddr;

use dp::{BURST, Mbuf};

use crate::checksum::{InternetChecksum, pseudo_header};
use crate::facade::{Duration, EthernetAddress, Instant, IpAddress};
use crate::ip::{IPV4_BYTES, IPV6_BYTES, PROTOCOL_UDP};

/// Maximum number of UDP ports that a stack has open at the same time.
pub const MAX_UDP_PORTS: usize = 4;

/// Number of bytes of the UDP header.
pub(crate) const UDP_BYTES: usize = 8;
/// Offset of the checksum in the IPv4 header.
const IPV4_CHECKSUM_AT: usize = 10;
/// Offset of the checksum in the UDP header.
const CHECKSUM_AT: usize = 6;

/// Maximum number of datagrams that wait to be sent, like the answers of TCP: an engine may send up to four
/// bursts before it transmits.
const READY: usize = 4 * BURST;
/// Maximum number of datagrams that wait for the Ethernet addresses of their next hops.
const WAITING: usize = 64;
/// Maximum time for which a datagram waits for the Ethernet address of its next hop. The neighbour table
/// sends three queries in this time.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Maximum time for which further datagrams to unknown next hops are refused while the maximum number of
/// datagrams waits. A neighbour usually answers much sooner. After this time the oldest datagrams give way.
const REFUSED_FOR: Duration = Duration::from_millis(250);

/// The headers of a datagram to send ([`Stack::send_datagram`](crate::Stack::send_datagram)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The source: one of our addresses, and any port.
    pub local: SocketAddr,
    /// The destination: a unicast address or a multicast group of the same family, and any port.
    pub remote: SocketAddr,
    /// Traffic class (IPv6) or type of service (IPv4), including the two bits of ECN.
    pub traffic_class: u8,
    /// Hop limit / TTL.
    pub hop_limit: u8,
    /// Flow label (IPv6): the lowest 20 bits are sent. Ignored with IPv4.
    pub flow_label: u32,
    /// True if the stack computes the UDP checksum. False if the checksum field is 0, which means that there
    /// is no checksum. With IPv6, only protocols with a checksum of their own may leave it out (RFC 6936).
    pub checksum: bool,
}

/// Why a datagram was not sent. `E` is the error of the caller's function that writes the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendDatagramError<E> {
    /// There is no path to the destination, or the destination can be neither a peer nor a group.
    #[error("there is no path to the address")]
    NoRoute,
    /// The source is not one of our addresses, or may not be used yet.
    #[error("the source address is not one of ours")]
    NoAddress,
    /// The datagram does not fit into one packet. The stack sends no fragments.
    #[error("the payload is too long: at most {max} bytes fit into a packet")]
    TooLong {
        /// The maximum number of payload bytes.
        max: usize,
    },
    /// No packet buffer is free, or too many datagrams wait to be sent.
    #[error("no packet buffer is free")]
    NoBuffer,
    /// Too many datagrams wait for the Ethernet addresses of their next hops, and none of them has waited for
    /// long.
    #[error("too many datagrams wait for the Ethernet addresses of their next hops")]
    Unresolved,
    /// The caller's function that writes the payload failed.
    #[error("{0}")]
    Fill(E),
}

/// Why a UDP port was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenUdpError {
    /// The port is open already, or is 0.
    #[error("the UDP port is open already, or is 0")]
    InUse,
    /// [`MAX_UDP_PORTS`] ports are open.
    #[error("{MAX_UDP_PORTS} UDP ports are open already")]
    Full,
}

/// Number of bytes of the IP header and the UDP header in front of the payload of a datagram to `remote`.
pub(crate) fn header_bytes(remote: &IpAddress) -> usize {
    UDP_BYTES + if matches!(remote, IpAddress::Ipv6(_)) { IPV6_BYTES } else { IPV4_BYTES }
}

/// A received UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpHeader {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    /// Number of bytes of the datagram, including this header; at least [`UDP_BYTES`].
    pub(crate) bytes: usize,
    /// False if the checksum field is 0, so that there is no checksum.
    pub(crate) has_checksum: bool,
}

impl UdpHeader {
    /// Reads the header of a datagram in an IP packet with `bytes` bytes after the IP header. Returns `None`
    /// if the length is less than that of a header, or if the packet is shorter than the datagram.
    pub(crate) fn parse(header: &[u8; UDP_BYTES], bytes: usize) -> Option<Self> {
        let [a, b, c, d, e, f, g, h] = *header;
        let length = usize::from(u16::from_be_bytes([e, f]));
        (UDP_BYTES..=bytes).contains(&length).then_some(Self {
            src_port: u16::from_be_bytes([a, b]),
            dst_port: u16::from_be_bytes([c, d]),
            bytes: length,
            has_checksum: [g, h] != [0, 0],
        })
    }
}

/// The destination port in a UDP header.
pub(crate) fn dst_port(header: &[u8; UDP_BYTES]) -> u16 {
    u16::from_be_bytes([header[2], header[3]])
}

/// Writes the IP header and the UDP header to the front of `packet`, which is the whole IP packet. The UDP
/// checksum is 0. `src` and `dst` are the addresses in `header`, which are of one family.
pub(crate) fn emit(packet: &mut [u8], header: &DatagramHeader, (src, dst): (&IpAddress, &IpAddress)) {
    let class = header.traffic_class;
    let udp_at = header_bytes(dst) - UDP_BYTES;
    let total_bytes = packet.len() as u16;
    let udp_bytes = (packet.len() - udp_at) as u16;
    let (ip, udp) = packet.split_at_mut(udp_at);
    match (src, dst) {
        (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) => {
            ip[0..2].copy_from_slice(&[0x45, class]);
            put(ip, 2, total_bytes);
            // Identification 0 and don't-fragment: an atomic datagram (RFC 6864).
            ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            ip[8..12].copy_from_slice(&[header.hop_limit, PROTOCOL_UDP, 0, 0]);
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let mut sum = InternetChecksum::new();
            sum.add(ip);
            put(ip, IPV4_CHECKSUM_AT, sum.finish());
        }
        (IpAddress::Ipv6(src), IpAddress::Ipv6(dst)) => {
            let first = 0x6000_0000 | u32::from(class) << 20 | header.flow_label & 0x000f_ffff;
            ip[0..4].copy_from_slice(&first.to_be_bytes());
            put(ip, 4, udp_bytes);
            ip[6..8].copy_from_slice(&[PROTOCOL_UDP, header.hop_limit]);
            ip[8..24].copy_from_slice(&src.octets());
            ip[24..40].copy_from_slice(&dst.octets());
        }
        // The caller has checked the families.
        _ => unreachable!("a datagram of two families"),
    }
    put(udp, 0, header.local.port());
    put(udp, 2, header.remote.port());
    put(udp, 4, udp_bytes);
    put(udp, CHECKSUM_AT, 0);
}

/// Computes the UDP checksum of a datagram whose checksum field is 0. `udp` is the UDP header with the
/// payload.
pub(crate) fn fill_in_checksum(udp: &mut [u8], (src, dst): (&IpAddress, &IpAddress)) {
    let mut sum = pseudo_header(src, dst, PROTOCOL_UDP, udp.len());
    sum.add(udp);
    // 0 would mean that there is no checksum. All ones is the same number in one's complement (RFC 768).
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    put(udp, CHECKSUM_AT, checksum);
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// A datagram that waits for the Ethernet address of its next hop.
pub(crate) struct Waiting {
    pub(crate) next_hop: IpAddress,
    deadline: Instant,
    frame: Mbuf,
}

impl Waiting {
    /// The frame to the next hop, whose Ethernet address is `mac`; `None` if the frame has another owner.
    pub(crate) fn addressed_to(mut self, mac: EthernetAddress) -> Option<Mbuf> {
        self.frame.head_mut()?.get_mut(..mac.0.len())?.copy_from_slice(&mac.0);
        Some(self.frame)
    }
}

/// The datagrams to send.
pub(crate) struct Outbox {
    /// Datagrams whose Ethernet headers are complete.
    ready: VecDeque<Mbuf>,
    /// Datagrams to next hops whose Ethernet addresses are not known yet, oldest first.
    waiting: VecDeque<Waiting>,
    /// Maximum numbers of datagrams in `ready` and in `waiting`.
    limits: (usize, usize),
}

impl Outbox {
    /// An empty outbox for datagrams in buffers of a pool with `buffers` buffers. Datagrams that wait occupy
    /// at most three eighths of the buffers, because the queries for Ethernet addresses and received frames
    /// need buffers as well.
    pub(crate) fn new(buffers: usize) -> Self {
        let limits = (READY.min(buffers / 4).max(1), WAITING.min(buffers / 8).max(1));
        Self { ready: VecDeque::with_capacity(limits.0), waiting: VecDeque::with_capacity(limits.1), limits }
    }

    /// Whether a datagram can be added that needs not wait for an Ethernet address.
    pub(crate) fn has_room(&self) -> bool {
        self.ready.len() < self.limits.0
    }

    /// Whether a datagram can be sent now.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes and returns the next datagram to send; `None` if no datagram can be sent now.
    pub(crate) fn pop_ready(&mut self) -> Option<Mbuf> {
        self.ready.pop_front()
    }

    /// Adds a datagram that can be sent. Returns `false`, and drops the datagram, if there is no room.
    pub(crate) fn push_ready(&mut self, frame: Mbuf) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.ready.push_back(frame);
        }
        has_room
    }

    /// Whether a datagram can wait for an Ethernet address: there is room, or the oldest datagram has waited
    /// for so long that it may be dropped.
    pub(crate) fn may_wait(&self, now: Instant) -> bool {
        let is_old = |first: &Waiting| first.deadline <= now + (MAX_WAIT - REFUSED_FOR);
        self.waiting.len() < self.limits.1 || self.waiting.front().is_some_and(is_old)
    }

    /// Adds a datagram that waits for the Ethernet address of `next_hop`. Returns `false` if the oldest such
    /// datagram was dropped to make room.
    pub(crate) fn push_waiting(&mut self, now: Instant, next_hop: IpAddress, frame: Mbuf) -> bool {
        let dropped = if self.waiting.len() < self.limits.1 { None } else { self.waiting.pop_front() };
        self.waiting.push_back(Waiting { next_hop, deadline: now + MAX_WAIT, frame });
        dropped.is_none()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Number of datagrams that wait for Ethernet addresses.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Removes and returns the oldest datagram that waits for an Ethernet address.
    pub(crate) fn pop_waiting(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Returns a datagram that still has to wait. A caller removes and returns all waiting datagrams, so that
    /// their order stays the same.
    pub(crate) fn return_waiting(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Drops the datagrams that have waited for [`MAX_WAIT`]. Returns their number.
    pub(crate) fn expire(&mut self, now: Instant) -> u64 {
        let mut expired = 0;
        while self.waiting.front().is_some_and(|first| first.deadline <= now) {
            self.waiting.pop_front();
            expired += 1;
        }
        expired
    }

    /// The time of the next [`expire`](Self::expire) that drops a datagram; `None` if no datagram waits.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.deadline)
    }

    /// Drops all datagrams. Returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = self.len();
        self.ready.clear();
        self.waiting.clear();
        dropped as u64
    }

    /// Number of datagrams to send.
    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, UdpPacket, UdpRepr};

    use super::*;

    fn header(local: &str, remote: &str) -> DatagramHeader {
        DatagramHeader {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            traffic_class: 0xb9,
            hop_limit: 7,
            flow_label: 0xfff1_2345,
            checksum: true,
        }
    }

    /// Writes a datagram over a buffer that is not empty, and returns the IP packet.
    fn packet(header: &DatagramHeader, payload: &[u8]) -> Vec<u8> {
        let (src, dst) = (header.local.ip().into(), header.remote.ip().into());
        let payload_at = header_bytes(&dst);
        let mut packet = vec![0xee; payload_at + payload.len()];
        emit(&mut packet, header, (&src, &dst));
        packet[payload_at..].copy_from_slice(payload);
        if header.checksum {
            fill_in_checksum(&mut packet[payload_at - UDP_BYTES..], (&src, &dst));
        }
        packet
    }

    #[test]
    fn smoltcp_reads_what_is_written_in_ipv4() {
        let header = header("10.0.0.1:4791", "10.0.0.2:5000");
        for payload in [&b""[..], b"odd", b"even"] {
            let packet = packet(&header, payload);
            let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
            let repr = Ipv4Repr::parse(&ip, &ChecksumCapabilities::default()).unwrap();
            let (src, dst) = (repr.src_addr.into(), repr.dst_addr.into());
            assert_eq!((repr.hop_limit, repr.payload_len), (7, UDP_BYTES + payload.len()));
            assert_eq!((ip.dscp() << 2 | ip.ecn(), ip.dont_frag(), ip.ident()), (0xb9, true, 0));
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            assert_ne!(udp.checksum(), 0);
            let ports = UdpRepr::parse(&udp, &src, &dst, &ChecksumCapabilities::default()).unwrap();
            assert_eq!((ports.src_port, ports.dst_port, udp.payload()), (4791, 5000, payload));
        }
    }

    #[test]
    fn smoltcp_reads_what_is_written_in_ipv6() {
        let header = header("[fd00::1]:4791", "[fd00::2]:5000");
        for payload in [&b""[..], b"odd", b"even"] {
            let packet = packet(&header, payload);
            let ip = Ipv6Packet::new_checked(&packet[..]).unwrap();
            let repr = Ipv6Repr::parse(&ip).unwrap();
            let (src, dst) = (repr.src_addr.into(), repr.dst_addr.into());
            assert_eq!((repr.hop_limit, repr.payload_len), (7, UDP_BYTES + payload.len()));
            assert_eq!((ip.traffic_class(), ip.flow_label()), (0xb9, 0x0001_2345));
            let udp = UdpPacket::new_checked(ip.payload()).unwrap();
            assert_ne!(udp.checksum(), 0);
            let ports = UdpRepr::parse(&udp, &src, &dst, &ChecksumCapabilities::default()).unwrap();
            assert_eq!((ports.src_port, ports.dst_port, udp.payload()), (4791, 5000, payload));
        }
    }

    /// With some payload of two bytes, the sum is all ones, so that its complement is 0.
    #[test]
    fn a_checksum_is_never_0() {
        let header = header("10.0.0.1:4791", "10.0.0.2:5000");
        let checksum = |value: u16| {
            let packet = packet(&header, &value.to_be_bytes());
            u16::from_be_bytes([packet[IPV4_BYTES + CHECKSUM_AT], packet[IPV4_BYTES + CHECKSUM_AT + 1]])
        };
        // The payload that equals the checksum of a payload of zeros makes the sum all ones.
        assert_eq!(checksum(checksum(0)), 0xffff);
        let without = packet(&DatagramHeader { checksum: false, ..header }, b"payload");
        assert_eq!(without[IPV4_BYTES + CHECKSUM_AT..][..2], [0, 0]);
    }

    #[test]
    fn lengths_of_less_than_a_header_or_more_than_the_packet_are_refused() {
        let parse = |length: u16, bytes| {
            let [e, f] = length.to_be_bytes();
            UdpHeader::parse(&[0x12, 0xb7, 0x13, 0x88, e, f, 0, 0], bytes)
        };
        assert_eq!([0, 7, 13].map(|length| parse(length, 12)), [None; 3]);
        let whole = UdpHeader { src_port: 0x12b7, dst_port: 0x1388, bytes: 12, has_checksum: false };
        assert_eq!(parse(12, 12), Some(whole));
        assert_eq!(parse(8, 12), Some(UdpHeader { bytes: 8, ..whole }), "padding");
    }

    #[test]
    fn a_small_pool_keeps_most_of_its_buffers() {
        assert_eq!(Outbox::new(1 << 20).limits, (READY, WAITING));
        assert_eq!(Outbox::new(64).limits, (16, 8));
        assert_eq!(Outbox::new(1).limits, (1, 1));
    }
}
