//! Segments that go on where the one before ends, taken in as one: what a device does that joins segments
//! (LRO), in software. Their control block is asked once.
//!
//! Only what is next in order, and has nothing to say but its payload. The headers are alike in all but
//! lengths, checksums, PSH and the IPv4 identification: of one acknowledgement, window, timestamp and
//! codepoint.

use std::iter::Peekable;

use arrayvec::ArrayVec;
use dp::Mbuf;

use crate::checksum::Sum;
use crate::facade::TcpSeqNumber;
use crate::frame::{self, FLAGS_AT, IPV4_CHECKSUM_AT, MAX_BYTES, SEQ_AT, TCP_CHECKSUM_AT};
use crate::ip::{self, IPV4_BYTES, IPV6_BYTES};
use crate::tcp::header::Flags;

/// Segments that are taken in as one, at most: their user reads them while they are in the first-level cache.
const MAX_JOINED: usize = 16;

/// Buffers of a frame that is joined to others: of its headers, and of its payload. All of them make a chain.
pub(super) const MAX_BUFFERS: usize = 2;

/// Whether `frame` may go on at `next`: a cheap look, as what others send in between goes on nowhere.
pub(super) fn may_go_on(frame: &Mbuf, tcp_at: usize, next: TcpSeqNumber) -> bool {
    let seq_at = tcp_at + SEQ_AT;
    frame.head().get(seq_at..seq_at + 4) == Some(&next.0.to_be_bytes())
}

/// What the headers of the segments behind one have to be.
pub(super) struct Pattern {
    ip: ip::Header,
    ip_at: usize,
    tcp_at: usize,
    /// Those of the one, with the sequence number that is next.
    headers: ArrayVec<u8, MAX_BYTES>,
    /// The bits of them that count.
    mask: ArrayVec<u8, MAX_BYTES>,
}

impl Pattern {
    /// Of a segment with these headers. `None` with IP options or extension headers.
    pub(super) fn new(headers: &[u8], ip: ip::Header, [ip_at, tcp_at]: [usize; 2]) -> Option<Self> {
        if ![IPV4_BYTES, IPV6_BYTES].contains(&(tcp_at - ip_at)) {
            return None;
        }
        let mut mask: ArrayVec<u8, MAX_BYTES> = [u8::MAX; MAX_BYTES].into();
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

    /// Takes those off `frames` that go on behind `payload`, which begins at `seq` and has at most
    /// [`MAX_BUFFERS`]. Returns all payloads as one, and how many.
    pub(super) fn join(
        mut self,
        seq: TcpSeqNumber,
        payload: Mbuf,
        frames: &mut Peekable<impl Iterator<Item = Mbuf>>,
    ) -> Option<(Mbuf, usize)> {
        let mut next = seq + payload.len();
        let mut payloads = ArrayVec::<_, MAX_JOINED>::new();
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
        Some((frame::join(payloads)?, count))
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
