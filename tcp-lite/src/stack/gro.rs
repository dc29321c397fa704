//! Generic receive offload: segments that continue the one before are taken in as one, as a device with
//! LRO does, so that their control block is updated once.
//!
//! Only segments that are next in order and carry nothing but payload. Their headers are equal except
//! for lengths, checksums, PSH and the IPv4 identification: one acknowledgement, window, timestamp and
//! codepoint.

use std::iter::Peekable;

use arrayvec::ArrayVec;
use dp::Mbuf;

use crate::checksum::Sum;
use crate::facade::TcpSeqNumber;
use crate::frame::{self, FLAGS_AT, IPV4_CHECKSUM_AT, MAX_HEADERS_BYTES, SEQ_AT, TCP_CHECKSUM_AT};
use crate::ip::{IPV4_BYTES, IPV6_BYTES, IpHeader};
use crate::tcp::header::Flags;

/// Most segments taken in as one: few enough for their payload to be in the first-level cache when the
/// user reads it.
const MAX_COALESCED: usize = 16;

/// Most buffers of a frame that is coalesced: one with its headers, one with its payload. All of them
/// form a chain.
pub(super) const MAX_BUFFERS: usize = 2;

/// Whether `frame` may continue the stream at `next`. A cheap test: frames of other connections
/// interleaved with it fail here.
pub(super) fn may_continue(frame: &Mbuf, tcp_at: usize, next: TcpSeqNumber) -> bool {
    let seq_at = tcp_at + SEQ_AT;
    frame.head().get(seq_at..seq_at + 4) == Some(&next.0.to_be_bytes())
}

/// What the headers of the following segments have to be.
pub(super) struct Pattern {
    ip: IpHeader,
    ip_at: usize,
    tcp_at: usize,
    /// The headers of the first segment, with the sequence number that is expected next.
    headers: ArrayVec<u8, MAX_HEADERS_BYTES>,
    /// The header bits that are compared.
    mask: ArrayVec<u8, MAX_HEADERS_BYTES>,
}

impl Pattern {
    /// For segments behind one with these headers. `None` with IP options or extension headers.
    pub(super) fn new(headers: &[u8], ip: IpHeader, [ip_at, tcp_at]: [usize; 2]) -> Option<Self> {
        if ![IPV4_BYTES, IPV6_BYTES].contains(&(tcp_at - ip_at)) {
            return None;
        }
        let mut mask: ArrayVec<u8, MAX_HEADERS_BYTES> = [u8::MAX; MAX_HEADERS_BYTES].into();
        mask.truncate(headers.len());
        if tcp_at - ip_at == IPV4_BYTES {
            // Length and identification.
            mask[ip_at + 2..ip_at + 6].fill(0);
            mask[ip_at + IPV4_CHECKSUM_AT..ip_at + IPV4_CHECKSUM_AT + 2].fill(0);
        } else {
            mask[ip_at + 4..ip_at + 6].fill(0);
        }
        mask[tcp_at + FLAGS_AT] = !Flags::PSH.bits();
        mask[tcp_at + TCP_CHECKSUM_AT..tcp_at + TCP_CHECKSUM_AT + 2].fill(0);
        Some(Self { ip, ip_at, tcp_at, headers: headers.try_into().ok()?, mask })
    }

    /// Takes frames off `frames` that continue `payload`, which begins at `seq` and has at most
    /// [`MAX_BUFFERS`] buffers. Returns all payloads as one chain, and their number.
    pub(super) fn coalesce(
        mut self,
        seq: TcpSeqNumber,
        payload: Mbuf,
        frames: &mut Peekable<impl Iterator<Item = Mbuf>>,
    ) -> Option<(Mbuf, usize)> {
        let mut next = seq + payload.len();
        let mut payloads = ArrayVec::<_, MAX_COALESCED>::new();
        payloads.push(payload);
        while !payloads.is_full() {
            let seq_at = self.tcp_at + SEQ_AT;
            self.headers[seq_at..seq_at + 4].copy_from_slice(&next.0.to_be_bytes());
            let Some(end) = frames.peek().and_then(|frame| self.end(frame)) else { break };
            let Some(mut frame) = frames.next() else { break };
            frame.truncate(end);
            frame.advance(self.headers.len());
            next += frame.len();
            payloads.push(frame);
        }
        let count = payloads.len();
        Some((frame::chain_all(payloads)?, count))
    }

    /// Where the payload of `frame` ends, if its headers and checksums are right.
    fn end(&self, frame: &Mbuf) -> Option<usize> {
        let Self { ip, ip_at, tcp_at, headers, mask } = self;
        let found = frame.head().get(..headers.len())?;
        let alike = found.iter().zip(headers).zip(mask);
        if alike.fold(0, |differences, ((found, wanted), mask)| differences | (found ^ wanted) & mask) != 0 {
            return None;
        }
        let is_ipv4 = tcp_at - ip_at == IPV4_BYTES;
        let end = if is_ipv4 {
            let mut sum = Sum::new();
            sum.add(&found[*ip_at..*tcp_at]);
            (sum.finish() == 0).then_some(ip_at + word(found, ip_at + 2))?
        } else {
            tcp_at + word(found, ip_at + 4)
        };
        let fits = headers.len() < end && end <= frame.len() && frame.segment_count() <= MAX_BUFFERS;
        (fits && frame::checksum_is_right(frame, *tcp_at, end - tcp_at, &ip.src, &ip.dst)).then_some(end)
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}
