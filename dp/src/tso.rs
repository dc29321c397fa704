//! Cuts a large TCP frame like a device with TSO ([`TxOffload::tso_segment_bytes`](crate::TxOffload)). For
//! example, links send the frames that a device would send on a wire, and DPDK ports cut frames that their
//! driver refuses.

use crate::mbuf::MAX_SEGMENTS;
use crate::{Checksum, Mbuf, Mempool, TxOffload, checksum};

/// The numbers of payload bytes that a port supports for the pieces of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mss {
    /// Minimum number of payload bytes of a piece.
    pub least: u16,
    /// Maximum number of payload bytes of a piece.
    pub most: u16,
}

impl Mss {
    /// All numbers of payload bytes are supported.
    pub const ANY: Self = Self { least: 1, most: u16::MAX };

    /// Whether a piece may have `bytes` payload bytes.
    pub fn contains(self, bytes: usize) -> bool {
        usize::from(self.least) <= bytes && bytes <= usize::from(self.most)
    }
}

/// The limits of a port with TSO ([`Offloads::TX_TSO`](crate::Offloads::TX_TSO)). If a frame exceeds the
/// limits, the port has to copy it into fewer buffers, or drops it each time it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsoLimits {
    /// Maximum number of buffers of a frame that is cut, including the buffer with the headers. A port that
    /// has TSO and sends frames of several segments has to accept at least 2 buffers.
    pub buffers: usize,
    /// The supported payload sizes of the pieces.
    pub mss: Mss,
}

impl Default for TsoLimits {
    /// No limits, except the maximum number of segments of an [`Mbuf`].
    fn default() -> Self {
        Self { buffers: MAX_SEGMENTS, mss: Mss::ANY }
    }
}

impl TsoLimits {
    /// Whether this frame is within the limits. The frame must request to be cut.
    pub fn allow(&self, frame: &Mbuf) -> bool {
        frame.segment_count() <= self.buffers
            && self.mss.contains(usize::from(frame.tx_offload().tso_segment_bytes))
    }
}

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

struct Headers {
    l3: usize,
    l4: usize,
    payload: usize,
    ipv6: bool,
}

impl Headers {
    fn of(offload: &TxOffload) -> Self {
        let l3 = usize::from(offload.l2_bytes);
        let l4 = l3 + usize::from(offload.l3_bytes);
        Self { l3, l4, payload: l4 + usize::from(offload.l4_bytes), ipv6: offload.ipv6 }
    }
}

/// Number of pieces that [`cut`] makes from this frame. 1 if the frame does not request to be cut.
pub fn pieces(frame: &Mbuf) -> usize {
    let offload = frame.tx_offload();
    let payload = frame.len().saturating_sub(Headers::of(&offload).payload);
    match usize::from(offload.tso_segment_bytes) {
        0 => 1,
        bytes => payload.div_ceil(bytes).max(1),
    }
}

/// Passes the pieces of `frame` to `take`, in order, each in a new buffer of `pool`. Each piece has the
/// headers of the frame with its own lengths, sequence number and identification. FIN and PSH are set only in
/// the last piece, and CWR is set only in the first piece. All checksums are filled in. If `pool` has no
/// buffer for a piece, `take` receives `None` instead of the piece. A frame that does not request to be cut
/// is one piece.
///
/// ```
/// # use dp::{Mempool, TxOffload, tso};
/// let pool = Mempool::heap("cut", 4, 2048);
/// let mut frame = pool.alloc().unwrap();
/// frame.append(54 + 3000 / 2).unwrap().fill(0);
/// frame.set_tx_offload(TxOffload {
///     tcp_checksum: true, tso_segment_bytes: 1000,
///     l2_bytes: 14, l3_bytes: 20, l4_bytes: 20, ..Default::default()
/// });
/// let mut bytes = Vec::new();
/// tso::cut(&frame, &pool, |piece| bytes.push(piece.unwrap().len()));
/// assert_eq!(bytes, [1054, 554]);
/// ```
pub fn cut(frame: &Mbuf, pool: &Mempool, mut take: impl FnMut(Option<Mbuf>)) {
    let headers = Headers::of(&frame.tx_offload());
    let count = pieces(frame);
    let payload = frame.len().saturating_sub(headers.payload);
    let most = match usize::from(frame.tx_offload().tso_segment_bytes) {
        0 => payload,
        bytes => bytes,
    };
    for nr in 0..count {
        let from = nr * most;
        let bytes = most.min(payload - from);
        take(piece(frame, &headers, pool, from, bytes, nr, nr + 1 == count));
    }
}

/// Makes piece number `nr`, with the payload bytes `from..from + bytes`. Returns `None` if `pool` has no free
/// buffer, or if its buffers are too small.
fn piece(
    frame: &Mbuf,
    headers: &Headers,
    pool: &Mempool,
    from: usize,
    bytes: usize,
    nr: usize,
    last: bool,
) -> Option<Mbuf> {
    let Headers { l3, l4, payload, ipv6 } = *headers;
    let mut piece = pool.alloc()?;
    let out = piece.append(payload + bytes)?;
    let (head, body) = out.split_at_mut(payload);
    frame.copy_to(0, head);
    frame.copy_to(payload + from, body);
    if ipv6 {
        put(head, l3 + 4, (payload + bytes - l4) as u16);
    } else {
        put(head, l3 + 2, (payload + bytes - l3) as u16);
        let identification = u16::from_be_bytes([head[l3 + 4], head[l3 + 5]]);
        put(head, l3 + 4, identification.wrapping_add(nr as u16));
    }
    let seq = u32::from_be_bytes([head[l4 + 4], head[l4 + 5], head[l4 + 6], head[l4 + 7]]);
    head[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add(from as u32).to_be_bytes());
    if !last {
        head[l4 + 13] &= !(TCP_FIN | TCP_PSH);
    }
    if nr > 0 {
        head[l4 + 13] &= !TCP_CWR;
    }
    checksum::complete_ipv4_header(out);
    checksum::complete(out);
    piece.set_rx_checksum(Checksum::Unknown);
    Some(piece)
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: usize = 3500;

    /// Makes an IPv4 or IPv6 frame in three buffers. Byte `n` of the payload is `n % 251`.
    fn frame(pool: &Mempool, ipv6: bool, flags: u8) -> Mbuf {
        let mut headers = vec![0x11_u8; 12];
        if ipv6 {
            headers.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            headers.extend([0x20; 32]);
            let bytes = (20 + PAYLOAD) as u16;
            headers[18..20].copy_from_slice(&bytes.to_be_bytes());
        } else {
            headers.extend([8, 0, 0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let bytes = (40 + PAYLOAD) as u16;
            headers[16..18].copy_from_slice(&bytes.to_be_bytes());
        }
        headers.extend([0, 1, 0, 2, 0xff, 0xff, 0xfc, 0, 0, 0, 0, 7, 0x50, flags, 1, 0, 0, 0, 0, 0]);
        let bytes: Vec<u8> = headers.iter().copied().chain((0..PAYLOAD).map(|n| (n % 251) as u8)).collect();
        let mut frame: Option<Mbuf> = None;
        for part in bytes.chunks(1500) {
            let mut buf = pool.alloc().unwrap();
            assert!(buf.append_slice(part));
            match &mut frame {
                Some(frame) => frame.chain(buf).unwrap(),
                None => frame = Some(buf),
            }
        }
        let mut frame = frame.unwrap();
        frame.set_tx_offload(TxOffload {
            tcp_checksum: true,
            ipv6,
            tso_segment_bytes: 1000,
            l2_bytes: 14,
            l3_bytes: if ipv6 { 40 } else { 20 },
            l4_bytes: 20,
            ..TxOffload::default()
        });
        frame
    }

    #[test]
    fn pieces_have_lengths_numbers_flags_and_sums_of_their_own() {
        let pool = Mempool::heap("tso", 16, 2048);
        for ipv6 in [false, true] {
            let frame = frame(&pool, ipv6, TCP_CWR | 0x10 | TCP_PSH | TCP_FIN);
            assert_eq!(pieces(&frame), 4);
            let mut cuts = Vec::new();
            cut(&frame, &pool, |piece| cuts.push(piece.unwrap().head().to_vec()));
            let l4 = if ipv6 { 54 } else { 34 };
            let mut stream = Vec::new();
            for (nr, bytes) in cuts.iter().enumerate() {
                let flags = match nr {
                    0 => TCP_CWR | 0x10,
                    3 => 0x10 | TCP_PSH | TCP_FIN,
                    _ => 0x10,
                };
                assert_eq!(bytes[l4 + 13], flags, "{nr}");
                let seq = u32::from_be_bytes(bytes[l4 + 4..l4 + 8].try_into().unwrap());
                assert_eq!(seq, 0xffff_fc00_u32.wrapping_add(1000 * nr as u32), "and around");
                let mut again = bytes.clone();
                assert!(checksum::complete(&mut again));
                assert!(ipv6 || checksum::complete_ipv4_header(&mut again));
                assert_eq!(&again, bytes, "its sums are right");
                if !ipv6 {
                    assert_eq!(bytes[18..20], (9 + nr as u16).to_be_bytes());
                }
                stream.extend_from_slice(&bytes[l4 + 20..]);
            }
            assert!(stream.iter().enumerate().all(|(n, &byte)| byte == (n % 251) as u8));
            assert_eq!(stream.len(), PAYLOAD);
        }
    }

    #[test]
    fn a_piece_without_a_buffer_is_missed() {
        let pool = Mempool::heap("tso", 5, 2048);
        let frame = frame(&pool, false, 0x10);
        let mut cuts = Vec::new();
        cut(&frame, &pool, |piece| cuts.push(piece));
        assert_eq!(cuts.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
    }
}
