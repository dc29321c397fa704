//! Frames of TCP segments: Ethernet, IP and TCP headers in front of a payload. The payload is usually not
//! copied.
//!
//! The bytes of a queued segment never change. The headers have a separate buffer, and a view of the payload
//! is chained to that buffer. In three cases the payload is copied after the headers instead: the payload is
//! short, so that a copy costs little; the port sends one buffer per frame; or software computes the
//! checksum, and copies the payload in the same pass. `stack/usual.rs` often writes the headers in front of a
//! long payload, into the payload's own buffer.

mod plain;

use arrayvec::ArrayVec;
use dp::{Checksum, Mbuf, Mempool, Offloads, TsoLimits, TxOffload};

pub(crate) use self::plain::{PlainFields, PlainTemplate};

use crate::StackConfig;
use crate::checksum::{InternetChecksum, fold, pseudo_header};
use crate::ethernet;
use crate::facade::{EthernetAddress, IpAddress, TcpSeqNumber};
use crate::ip::{Ecn, IPV4_BYTES, IPV6_BYTES, PROTOCOL_TCP};
use crate::tcp::header::{Flags, MAX_HEADER_BYTES, TcpHeader};

/// Payloads up to this length are copied after their headers: a copy costs less than a second buffer.
pub(crate) const COPIED_BYTES: usize = 512;

/// Maximum number of bytes of all headers: Ethernet with a tag, IPv6, TCP.
pub(crate) const MAX_HEADERS_BYTES: usize =
    ethernet::HEADER_BYTES + ethernet::TAG_BYTES + IPV6_BYTES + MAX_HEADER_BYTES;

/// Offset of the checksum in the IPv4 header.
pub(crate) const IPV4_CHECKSUM_AT: usize = 10;

/// Offset of the sequence number in the TCP header. [`FLAGS_AT`] and [`TCP_CHECKSUM_AT`] are the offsets of
/// the control bits and of the checksum.
pub(crate) const SEQ_AT: usize = 4;
pub(crate) const FLAGS_AT: usize = 13;
pub(crate) const TCP_CHECKSUM_AT: usize = 16;
/// Offset of the UDP checksum.
pub(crate) const UDP_CHECKSUM_AT: usize = 6;

/// Parameters that all frames of a stack have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) mac: EthernetAddress,
    pub(crate) vlan: Option<u16>,
    /// The traffic class, with 0 for the bits of ECN.
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) offloads: Offloads,
    /// The limits of frames that the port can cut, if it has TSO.
    pub(crate) tso: TsoLimits,
}

impl Framing {
    /// The parameters of a stack with this configuration.
    pub(crate) fn new(config: &StackConfig) -> Self {
        Self {
            mac: config.mac,
            vlan: config.vlan,
            traffic_class: config.tcp.traffic_class & !Ecn::MASK,
            hop_limit: config.tcp.hop_limit,
            offloads: config.offloads,
            tso: TsoLimits::default(),
        }
    }
}

/// The headers of one frame before they are written.
pub(crate) struct Headers<'a> {
    pub(crate) framing: &'a Framing,
    pub(crate) dst_mac: EthernetAddress,
    pub(crate) src: IpAddress,
    pub(crate) dst: IpAddress,
    pub(crate) ecn: Ecn,
    pub(crate) tcp: &'a TcpHeader,
}

impl Headers<'_> {
    /// A frame without payload; `None` if the pool is empty.
    pub(crate) fn bare(&self, pool: &Mempool) -> Option<Mbuf> {
        let offload = self.offload();
        let mut frame = pool.alloc()?;
        self.write_whole(offload, frame.append(header_bytes(offload))?, &Piece::whole(0));
        frame.set_tx_offload(offload);
        Some(frame)
    }

    /// A frame with `payload`; `view` returns a buffer that refers to the payload. `None` if a pool is empty.
    pub(crate) fn with_payload(
        &self,
        pool: &Mempool,
        payload: &[u8],
        view: impl FnOnce() -> Option<Mbuf>,
    ) -> Option<Mbuf> {
        let (piece, offload) = (Piece::whole(payload.len()), self.offload());
        frame_of((self.framing, pool, offload), piece, payload, view, |out, piece| {
            self.write_whole(offload, out, piece);
        })
    }

    /// Returns a frame with the consecutive segments in `views`. The port divides the frame into segments of
    /// `segment_bytes` payload bytes (TSO), unless `segment_bytes` is 0. The port needs
    /// [`Offloads::TX_TCP_CHECKSUM`], [`Offloads::TX_MULTI_SEGMENT`] and, for TSO, [`Offloads::TX_TSO`].
    /// Returns `None` if the pool is empty, or if `views` is empty or too long for one chain.
    pub(crate) fn with_train<const N: usize>(
        &self,
        pool: &Mempool,
        views: ArrayVec<Mbuf, N>,
        segment_bytes: usize,
    ) -> Option<Mbuf> {
        let train = chain_all(views)?;
        let offload = self.offload();
        let mut frame = pool.alloc()?;
        self.write_whole(offload, frame.append(header_bytes(offload))?, &Piece::whole(train.len()));
        // A train has at least one buffer fewer than a chain may have, so the buffer of the headers fits.
        frame.chain(train).ok()?;
        frame.set_tx_offload(TxOffload { tso_segment_bytes: segment_bytes as u16, ..offload });
        Some(frame)
    }

    /// Writes the headers to the front of `out`, for a segment without payload; returns their length in
    /// bytes.
    #[cfg(feature = "bench")]
    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        let offload = self.offload();
        let bytes = header_bytes(offload);
        self.write_whole(offload, &mut out[..bytes], &Piece::whole(0));
        bytes
    }

    fn is_ipv6(&self) -> bool {
        matches!(self.src, IpAddress::Ipv6(_))
    }

    /// The checksums that the port computes, and the lengths of the headers.
    #[inline]
    fn offload(&self) -> TxOffload {
        let offloads = self.framing.offloads;
        TxOffload {
            ipv4_checksum: offloads.contains(Offloads::TX_IPV4_CHECKSUM) && !self.is_ipv6(),
            tcp_checksum: offloads.contains(Offloads::TX_TCP_CHECKSUM),
            ipv6: self.is_ipv6(),
            tso_segment_bytes: 0,
            l2_bytes: ethernet::header_bytes(self.framing.vlan) as u8,
            l3_bytes: if self.is_ipv6() { IPV6_BYTES } else { IPV4_BYTES } as u8,
            l4_bytes: self.tcp.emitted_len() as u8,
        }
    }

    /// A template for several frames with these headers.
    pub(crate) fn template(&self) -> Template {
        let offload = self.offload();
        let mut bytes = Bytes::from([0; MAX_HEADERS_BYTES]);
        bytes.truncate(header_bytes(offload));
        let common = self.write(offload, &mut bytes);
        Template { bytes, common }
    }

    /// Writes the headers of a single frame to all of `out`.
    #[inline]
    fn write_whole(&self, offload: TxOffload, out: &mut [u8], piece: &Piece) {
        match PlainTemplate::of(self) {
            Some(plain) => plain.write(out, &PlainFields::of(self.tcp, self.ecn, piece)),
            None => self.write(offload, out).complete(out, piece),
        }
    }

    /// Writes the headers to all of `out`, except for the fields that depend on the [`Piece`], and computes
    /// the checksums of the headers.
    fn write(&self, offload: TxOffload, out: &mut [u8]) -> CommonHeaders {
        let Self { framing, dst_mac, src, dst, ecn, tcp } = self;
        let [l2, l3] = [offload.l2_bytes, offload.l3_bytes].map(usize::from);
        let (ethernet, out) = out.split_at_mut(l2);
        let (ip, out) = out.split_at_mut(l3);
        let class = framing.traffic_class | *ecn as u8;
        let ethertype = match (src, dst) {
            (IpAddress::Ipv4(src), IpAddress::Ipv4(dst)) => {
                // `CommonHeaders::complete` fills in the length and the checksum.
                ip[0..4].copy_from_slice(&[0x45, class, 0, 0]);
                // Identification 0 and don't-fragment: an atomic datagram (RFC 6864).
                ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
                ip[8..12].copy_from_slice(&[framing.hop_limit, PROTOCOL_TCP, 0, 0]);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                ethernet::ETHERTYPE_IPV4
            }
            (IpAddress::Ipv6(src), IpAddress::Ipv6(dst)) => {
                ip[0..4].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
                ip[4..8].copy_from_slice(&[0, 0, PROTOCOL_TCP, framing.hop_limit]);
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                ethernet::ETHERTYPE_IPV6
            }
            // Both addresses are of one family, because a 4-tuple is made from one IP header or one route.
            _ => unreachable!("a 4-tuple of two families"),
        };
        ethernet::emit(ethernet, *dst_mac, framing.mac, framing.vlan, ethertype);
        tcp.emit(out);
        // `CommonHeaders::complete` fills in the sequence number.
        out[SEQ_AT..SEQ_AT + 4].fill(0);
        out[FLAGS_AT] &= !Flags::PSH.bits();
        let mut ip_checksum = InternetChecksum::new();
        if !self.is_ipv6() && !offload.ipv4_checksum {
            ip_checksum.add(ip);
        }
        let mut tcp_checksum = pseudo_header(src, dst, PROTOCOL_TCP, 0);
        if !offload.tcp_checksum {
            tcp_checksum.add(out);
        }
        let is_pushed = tcp.flags.contains(Flags::PSH);
        CommonHeaders { offload, seq: tcp.seq, is_pushed, ip_checksum, tcp_checksum }
    }
}

/// The part of a payload that belongs to one of several frames with common headers.
struct Piece {
    /// Number of payload bytes in the frames before this frame.
    offset: usize,
    /// Number of payload bytes in this frame.
    bytes: usize,
    /// The checksum of the payload, which is not used if the device computes the checksum.
    checksum: InternetChecksum,
    is_last: bool,
}

impl Piece {
    /// A single frame.
    fn whole(bytes: usize) -> Self {
        Self { offset: 0, bytes, checksum: InternetChecksum::new(), is_last: true }
    }
}

type Bytes = ArrayVec<u8, MAX_HEADERS_BYTES>;

/// State after [`Headers::write`].
struct CommonHeaders {
    offload: TxOffload,
    /// Sequence number of the first frame.
    seq: TcpSeqNumber,
    /// True if the last frame has PSH.
    is_pushed: bool,
    /// Checksum of the IPv4 header, if it is not offloaded.
    ip_checksum: InternetChecksum,
    /// Checksum of the pseudo-header and, if it is not offloaded, of the TCP header.
    tcp_checksum: InternetChecksum,
}

/// Headers of several frames with consecutive bytes of a stream, which are written only once.
pub(crate) struct Template {
    /// The headers, with 0 for lengths, sequence number, PSH and checksums.
    bytes: Bytes,
    common: CommonHeaders,
}

impl Template {
    /// A frame with `payload`. `offset` is the number of payload bytes in the frames before this frame,
    /// `is_last` is true if no frame follows, and `view` returns a buffer that refers to the payload. `None`
    /// if a pool is empty.
    pub(crate) fn frame(
        &self,
        framing: &Framing,
        pool: &Mempool,
        (offset, payload, is_last): (usize, &[u8], bool),
        view: impl FnOnce() -> Option<Mbuf>,
    ) -> Option<Mbuf> {
        let piece = Piece { offset, is_last, ..Piece::whole(payload.len()) };
        let Self { bytes, common } = self;
        frame_of((framing, pool, common.offload), piece, payload, view, |out, piece| {
            out.copy_from_slice(bytes);
            common.complete(out, piece);
        })
    }
}

/// A frame with the headers that `emit` writes, and with `payload`; `None` if a pool is empty.
#[inline]
fn frame_of(
    (framing, pool, offload): (&Framing, &Mempool, TxOffload),
    mut piece: Piece,
    payload: &[u8],
    view: impl FnOnce() -> Option<Mbuf>,
    emit: impl FnOnce(&mut [u8], &Piece),
) -> Option<Mbuf> {
    let in_software = !offload.tcp_checksum;
    let copies = in_software
        || payload.len() <= COPIED_BYTES
        || !framing.offloads.contains(Offloads::TX_MULTI_SEGMENT);
    let mut frame = pool.alloc()?;
    if copies {
        // The headers fit into the headroom, and a segment is at most as long as the rest of the buffer.
        let room = frame.append(payload.len())?;
        if in_software {
            piece.checksum.add_copied(room, payload);
        } else {
            room.copy_from_slice(payload);
        }
        emit(frame.prepend(header_bytes(offload))?, &piece);
    } else {
        emit(frame.append(header_bytes(offload))?, &piece);
        // The view is one buffer, so the chain has two buffers.
        frame.chain(view()?).ok()?;
    }
    frame.set_tx_offload(offload);
    Some(frame)
}

impl CommonHeaders {
    /// Fills in the fields that depend on `piece`.
    fn complete(&self, out: &mut [u8], piece: &Piece) {
        let TxOffload { l2_bytes, l3_bytes, l4_bytes, .. } = self.offload;
        let [l2, l3, l4] = [l2_bytes, l3_bytes, l4_bytes].map(usize::from);
        let (ip, tcp) = out[l2..].split_at_mut(l3);
        let tcp_bytes = l4 + piece.bytes;
        if self.offload.ipv6 {
            put(ip, 4, tcp_bytes as u16);
        } else {
            let total_bytes = (l3 + tcp_bytes) as u16;
            put(ip, 2, total_bytes);
            if !self.offload.ipv4_checksum {
                let mut checksum = self.ip_checksum;
                checksum.add_u16(total_bytes);
                put(ip, IPV4_CHECKSUM_AT, checksum.finish());
            }
        }
        let seq = (self.seq + piece.offset).0 as u32;
        tcp[SEQ_AT..SEQ_AT + 4].copy_from_slice(&seq.to_be_bytes());
        let push = if self.is_pushed && piece.is_last { Flags::PSH.bits() } else { 0 };
        tcp[FLAGS_AT] |= push;
        let mut checksum = self.tcp_checksum;
        checksum.add_u16(tcp_bytes as u16);
        let checksum = if self.offload.tcp_checksum {
            checksum.partial()
        } else {
            checksum.add_u32(seq);
            checksum.add_u16(u16::from(push));
            // TCP headers are a multiple of 4 bytes, so the payload begins at an even offset.
            checksum.add_u16(piece.checksum.partial());
            checksum.finish()
        };
        put(tcp, TCP_CHECKSUM_AT, checksum);
    }
}

/// Length of all headers of a frame in bytes.
fn header_bytes(offload: TxOffload) -> usize {
    [offload.l2_bytes, offload.l3_bytes, offload.l4_bytes].map(usize::from).iter().sum()
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Links `buffers` into one chain. Returns `None` if there are no buffers or too many buffers.
pub(crate) fn chain_all<const N: usize>(buffers: ArrayVec<Mbuf, N>) -> Option<Mbuf> {
    // The buffers are linked from back to front, so that no chain has to be traversed.
    let chain = buffers.into_iter().rev().try_fold(None, |behind: Option<Mbuf>, mut buffer| {
        if let Some(behind) = behind {
            buffer.chain(behind).ok()?;
        }
        Some(Some(buffer))
    });
    chain?
}

/// Whether the TCP segment of `bytes` bytes at `offset` of the frame has a correct checksum. Computes a
/// checksum only if the port has not checked the segment.
pub(crate) fn checksum_is_right(
    frame: &Mbuf,
    offset: usize,
    bytes: usize,
    src: &IpAddress,
    dst: &IpAddress,
) -> bool {
    checksum_fits(frame, offset, bytes, || pseudo_header(src, dst, PROTOCOL_TCP, 0))
}

/// Whether the port found the checksum correct; `None` if the port did not check the checksum. A partial
/// checksum counts as correct.
#[inline]
fn verdict_of_port(frame: &Mbuf) -> Option<bool> {
    match frame.rx_checksum() {
        Checksum::Good | Checksum::Partial => Some(true),
        Checksum::Bad => Some(false),
        Checksum::Unknown => None,
    }
}

/// Like [`checksum_is_right`], but `pseudo` returns the checksum of the pseudo-header without the length.
#[inline]
pub(crate) fn checksum_fits(
    frame: &Mbuf,
    offset: usize,
    bytes: usize,
    pseudo: impl FnOnce() -> InternetChecksum,
) -> bool {
    if let Some(verdict) = verdict_of_port(frame) {
        return verdict;
    }
    let mut checksum = pseudo();
    checksum.add_u16((bytes >> 16) as u16);
    checksum.add_u16(bytes as u16);
    match frame.head().get(offset..offset + bytes) {
        Some(whole) => checksum.add(whole),
        None if add_pieces(&mut checksum, frame, offset, bytes) => {}
        None => return false,
    }
    checksum.finish() == 0
}

/// Whether the TCP segment at `start..end` of the frame has a correct checksum. `headers` returns a partial
/// checksum in memory order, of the pseudo-header without the length and of the segment up to offset
/// `behind`. Both parts have an even number of bytes.
#[inline(always)]
pub(crate) fn checksum_behind_fits(
    frame: &Mbuf,
    (start, behind, end): (usize, usize, usize),
    headers: impl FnOnce() -> u64,
) -> bool {
    if let Some(verdict) = verdict_of_port(frame) {
        return verdict;
    }
    let partial = headers() + u64::from(((end - start) as u32).to_be());
    match end > behind {
        false => fold(partial) == 0xffff,
        true => {
            checksum_within(frame, behind, end).is_some_and(|rest| fold(partial + u64::from(rest)) == 0xffff)
        }
    }
}

/// The partial checksum of the bytes at `start..end` of a frame, in memory order; `None` if the frame is
/// shorter.
#[inline(never)]
fn checksum_within(frame: &Mbuf, start: usize, end: usize) -> Option<u16> {
    if let Some(whole) = frame.head().get(start..end) {
        return Some(fold(dp::checksum::partial(whole)));
    }
    let mut checksum = InternetChecksum::new();
    add_pieces(&mut checksum, frame, start, end - start).then(|| checksum.partial().to_be())
}

/// Adds `bytes` bytes at `offset` of a frame of several buffers to `checksum`. Returns `false` if the frame
/// is shorter.
fn add_pieces(checksum: &mut InternetChecksum, frame: &Mbuf, offset: usize, bytes: usize) -> bool {
    let (mut skip, mut left) = (offset, bytes);
    for segment in frame.segments() {
        let Some(body) = segment.get(skip..) else {
            skip -= segment.len();
            continue;
        };
        skip = 0;
        let n = body.len().min(left);
        checksum.add(&body[..n]);
        left -= n;
    }
    left == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facade::{Ipv4Address, Ipv6Address};
    use crate::ip;
    use crate::tcp::header::Options;

    #[test]
    fn the_codepoint_is_read_as_it_was_written_in_both_families() {
        let pool = Mempool::heap("test", 4, 2048);
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let mut framing = Framing {
            mac,
            vlan: None,
            traffic_class: 0,
            hop_limit: 64,
            offloads: Offloads::empty(),
            tso: TsoLimits::default(),
        };
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
        let codepoints = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
        for (ecn, class) in codepoints.into_iter().flat_map(|ecn| [(ecn, 0), (ecn, 0xb8)]) {
            framing.traffic_class = class;
            for (src, dst) in [(v4(1), v4(2)), (v6(1), v6(2))] {
                let headers = Headers { framing: &framing, dst_mac: mac, src, dst, ecn, tcp: &tcp };
                let frame = headers.bare(&pool).unwrap();
                let mut used = vec![0xff; header_bytes(headers.offload())];
                headers.write_whole(headers.offload(), &mut used, &Piece::whole(0));
                assert_eq!(used, frame.head(), "what a buffer held before shows");
                let packet = &frame.head()[ethernet::HEADER_BYTES..];
                let (parsed, sent) = match src {
                    IpAddress::Ipv4(_) => (ip::parse_ipv4(packet, packet.len()), packet[1]),
                    IpAddress::Ipv6(_) => {
                        (ip::parse_ipv6(packet, packet.len()), packet[0] << 4 | packet[1] >> 4)
                    }
                };
                assert_eq!((parsed.unwrap().ecn, sent), (ecn, class | ecn as u8), "{src}");
            }
        }
    }
}
