//! Generic receive offload: merges consecutive segments, as a device with LRO does, so that the control block
//! is updated only once for all of them.
//!
//! Segments are merged only if they are next in order, have a payload, and have no flags except ACK and PSH.
//! The headers of merged segments are equal except for lengths, sequence numbers, checksums, PSH and the IPv4
//! identification. In particular, merged segments have the same acknowledgement, window, timestamps and ECN
//! codepoint.

use std::iter::Peekable;

use arrayvec::ArrayVec;
use dp::Mbuf;

use crate::checksum::{InternetChecksum, pseudo_header};
use crate::facade::TcpSeqNumber;
use crate::frame::{self, FLAGS_AT, IPV4_CHECKSUM_AT, MAX_HEADERS_BYTES, SEQ_AT, TCP_CHECKSUM_AT};
use crate::ip::{IPV4_BYTES, IPV6_BYTES, IpHeader, PROTOCOL_TCP};
use crate::tcp::header::Flags;

/// Maximum number of merged segments. The number is small, so that the payload of all merged segments is
/// still in the first-level cache when the user reads it.
const MAX_COALESCED: usize = 16;

/// Maximum number of buffers of a frame that can be merged: one buffer with the headers, and one with the
/// payload. The payloads of all merged frames form one chain.
pub(super) const MAX_BUFFERS: usize = 2;

/// Whether `frame` may continue the stream at `next`. This cheap test rejects nearly all frames of other
/// connections in the same burst, and all borrowed frames.
pub(super) fn may_continue(frame: &Mbuf, tcp_at: usize, next: TcpSeqNumber) -> bool {
    let seq_at = tcp_at + SEQ_AT;
    frame.head().get(seq_at..seq_at + 4) == Some(&next.0.to_be_bytes()) && !is_borrowed(frame)
}

/// Whether payload of a frame is in the memory of another process. Such frames are not merged, since they
/// would have to be copied. Never inlined, so that it does not slow down other frames.
#[cold]
#[inline(never)]
pub(super) fn is_borrowed(frame: &Mbuf) -> bool {
    frame.has_external()
}

/// Number of words of the longest headers. The last word is not full.
const WORDS: usize = MAX_HEADERS_BYTES / 8 + 1;

/// The headers that the following segments must have.
pub(super) struct Pattern {
    /// Checksum of the compared bytes of an IPv4 header.
    ip_checksum: InternetChecksum,
    /// Checksum of the pseudo-header, without the length.
    pseudo: InternetChecksum,
    ip_at: usize,
    tcp_at: usize,
    payload_at: usize,
    /// The headers of the first segment, with the sequence number that is expected next.
    headers: [[u8; 8]; WORDS],
    /// Mask of the bits that are compared; 0 after the end of the headers.
    mask: [[u8; 8]; WORDS],
}

impl Pattern {
    /// The headers of the segments that follow a segment with the headers `headers`; `None` if the headers
    /// have IP options or extension headers.
    pub(super) fn new(headers: &[u8], ip: IpHeader, [ip_at, tcp_at]: [usize; 2]) -> Option<Self> {
        if ![IPV4_BYTES, IPV6_BYTES].contains(&(tcp_at - ip_at)) {
            return None;
        }
        let (mut found, mut words) = ([[0; 8]; WORDS], [[0; 8]; WORDS]);
        found.as_flattened_mut().get_mut(..headers.len())?.copy_from_slice(headers);
        let mask = words.as_flattened_mut();
        mask[..headers.len()].fill(u8::MAX);
        if tcp_at - ip_at == IPV4_BYTES {
            // The total length and the identification may differ.
            mask[ip_at + 2..ip_at + 6].fill(0);
            mask[ip_at + IPV4_CHECKSUM_AT..ip_at + IPV4_CHECKSUM_AT + 2].fill(0);
        } else {
            mask[ip_at + 4..ip_at + 6].fill(0);
        }
        mask[tcp_at + FLAGS_AT] = !Flags::PSH.bits();
        mask[tcp_at + TCP_CHECKSUM_AT..tcp_at + TCP_CHECKSUM_AT + 2].fill(0);
        let mut ip_checksum = InternetChecksum::new();
        for (word, mask) in headers[ip_at..tcp_at].chunks(2).zip(mask[ip_at..tcp_at].chunks(2)) {
            ip_checksum.add(&[word[0] & mask[0], word[1] & mask[1]]);
        }
        let pseudo = pseudo_header(&ip.src, &ip.dst, PROTOCOL_TCP, 0);
        let payload_at = headers.len();
        Some(Self { ip_checksum, pseudo, ip_at, tcp_at, payload_at, headers: found, mask: words })
    }

    /// Removes from `frames` the frames that continue `payload`, which begins at `seq` and has at most
    /// [`MAX_BUFFERS`] buffers. Returns all payloads, including `payload`, as one chain, and the number of
    /// payloads.
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
            self.headers.as_flattened_mut()[seq_at..seq_at + 4].copy_from_slice(&next.0.to_be_bytes());
            let Some(end) = frames.peek().and_then(|frame| self.end(frame)) else { break };
            let Some(mut frame) = frames.next() else { break };
            frame.truncate(end);
            frame.advance(self.payload_at);
            next += frame.len();
            payloads.push(frame);
        }
        let count = payloads.len();
        Some((frame::chain_all(payloads)?, count))
    }

    /// The offset at which the payload of `frame` ends. Returns `None` if a header or checksum differs from
    /// the expected value, if there is no payload, or if the frame has more than [`MAX_BUFFERS`] buffers.
    fn end(&self, frame: &Mbuf) -> Option<usize> {
        let Self { ip_checksum, pseudo, ip_at, tcp_at, payload_at, headers, mask } = self;
        let found = frame.head().get(..*payload_at)?;
        let (words, rest) = found.as_chunks();
        let as_numbers = |[a, b, c]: [&[u8; 8]; 3]| [a, b, c].map(|bytes| u64::from_ne_bytes(*bytes));
        let differences = words.iter().zip(headers).zip(mask).fold(0, |sum, ((found, wanted), mask)| {
            let [found, wanted, mask] = as_numbers([found, wanted, mask]);
            sum | (found ^ wanted) & mask
        });
        let (last, bits) = (headers.get(words.len())?, mask.get(words.len())?);
        let rest_differs =
            rest.iter().zip(last).zip(bits).any(|((found, last), bits)| (found ^ last) & bits != 0);
        if differences != 0 || rest_differs {
            return None;
        }
        let is_ipv4 = tcp_at - ip_at == IPV4_BYTES;
        let end = if is_ipv4 {
            let header: &[u8; IPV4_BYTES] = found.get(*ip_at..)?.first_chunk()?;
            let length = word(header, 2);
            let mut checksum = *ip_checksum;
            for word in [length, word(header, 4), word(header, IPV4_CHECKSUM_AT)] {
                checksum.add_u16(word as u16);
            }
            (checksum.finish() == 0).then_some(ip_at + length)?
        } else {
            tcp_at + word(found, ip_at + 4)
        };
        let fits = *payload_at < end && end <= frame.len() && frame.segment_count() <= MAX_BUFFERS;
        (fits && frame::checksum_fits(frame, *tcp_at, end - tcp_at, || *pseudo)).then_some(end)
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}
