//! Decides whether a received frame takes the fast path (header prediction), and implements the fast path.
//!
//! A predicted frame continues an established stream and has only usual headers: Ethernet without a tag, a
//! whole IPv4 packet without options, TCP with timestamps as its only option, and the flags ACK, or ACK and
//! PSH. An acknowledgement without payload may also have SACK blocks. The stack compares and reads the
//! headers in place, and the connection applies them without the checks that cannot fail
//! (`tcp/connection/predicted.rs`). Van Jacobson invented header prediction; RFC 7323 appendix A has the
//! layout of the options.
//!
//! A frame that is not predicted takes the general path, [`Stack::receive_any`], and the fast path changes
//! nothing for such a frame. Invalid frames also take the general path, because only the general path counts
//! errors and answers invalid segments. [`TcpConfig::header_prediction`](crate::TcpConfig::header_prediction)
//! turns prediction off, so that `tests/stack/prediction.rs` can compare both paths.

use std::iter::Peekable;

use arrayvec::ArrayVec;
use dp::Mbuf;

use super::{Stack, gro};
use crate::checksum::fold;
use crate::ethernet::{self, ETHERTYPE_IPV4};
use crate::facade::{EthernetAddress, Instant, TcpSeqNumber};
use crate::four_tuple::Ipv4Key;
use crate::frame;
use crate::ip::{IPV4_BYTES, PROTOCOL_TCP};
use crate::tcp::PredictedSegment;
use crate::tcp::header::{MAX_SACK_BLOCKS, SackBlock, sack_bytes, sack_room};

/// Offset of the IP header. The offsets of the TCP header and of the payload follow.
const IP_AT: usize = ethernet::HEADER_BYTES;
const TCP_AT: usize = IP_AT + IPV4_BYTES;
/// Number of bytes of a TCP header with timestamps and two NOPs.
const TCP_BYTES: usize = 32;
const PAYLOAD_AT: usize = TCP_AT + TCP_BYTES;

/// The bit in the first byte of an Ethernet address that is set for group addresses.
const GROUP_BIT: u8 = 1;
/// The folded partial checksum of bytes that include a correct checksum.
const ALL_ONES: u16 = 0xffff;
/// The Ethertype, and the start of an IPv4 header of five words, with any type of service.
const IPV4: u32 = (ETHERTYPE_IPV4 as u32) << 16 | 0x4500;
const TYPE_MASK: u32 = 0xffff_ff00;
/// Mask of two fields of the IPv4 header: the field with the flags and the fragment offset, without the
/// reserved bit and "don't fragment", and the protocol, which follows the hop limit.
const FRAGMENT_AND_PROTOCOL_MASK: u32 = 0x3fff_00ff;
/// A TCP header of eight words with the flag ACK.
const OFFSET_AND_FLAGS: u16 = 0x8010;
const PSH: u16 = 0x0008;
/// Two NOPs, and the kind and length of timestamps.
const TIMESTAMPS: u32 = 0x0101_080a;

/// The headers of a frame that may be predicted.
struct PredictedHeaders {
    key: Ipv4Key,
    segment: PredictedSegment,
}

impl PredictedHeaders {
    /// Reads the headers, with `sack_blocks` SACK blocks after the timestamps. Returns `None` if a field is
    /// unusual or wrong. Also returns `None` if `next` continues the frame, because `gro.rs` merges such
    /// frames.
    #[inline(always)]
    fn read(frame: &Mbuf, next: Option<&Mbuf>, mac: EthernetAddress, sack_blocks: usize) -> Option<Self> {
        let sack_bytes = if sack_blocks > 0 { sack_bytes(sack_blocks) } else { 0 };
        let offset_and_flags = OFFSET_AND_FLAGS + ((sack_bytes as u16 / 4) << 12);
        let payload_at = PAYLOAD_AT + sack_bytes;
        let head: &[u8; PAYLOAD_AT] = frame.head().first_chunk()?;
        let usual = head[0..6] == mac.0
            && head[6] & GROUP_BIT == 0
            && u32_at(head, 12) & TYPE_MASK == IPV4
            && u32_at(head, IP_AT + 6) & FRAGMENT_AND_PROTOCOL_MASK == u32::from(PROTOCOL_TCP)
            && u16_at(head, TCP_AT + 12) & !PSH == offset_and_flags
            && u32_at(head, TCP_AT + 20) == TIMESTAMPS;
        if !usual {
            return None;
        }
        let end = IP_AT + usize::from(u16_at(head, IP_AT + 2));
        if end < payload_at || end > frame.len() || sack_blocks > 0 && end > payload_at {
            return None;
        }
        let addresses = partial_checksum::<2>(head, IP_AT + 12);
        if fold(partial_checksum::<3>(head, IP_AT) + addresses) != ALL_ONES {
            return None;
        }
        let seq = TcpSeqNumber(u32_at(head, TCP_AT + 4) as i32);
        let bytes = end - payload_at;
        let goes_on = |next: &Mbuf| gro::may_continue(next, TCP_AT, seq + bytes);
        if bytes > 0 && next.is_some_and(goes_on) && !gro::is_borrowed(frame) {
            return None;
        }
        let headers =
            || addresses + partial_checksum::<8>(head, TCP_AT) + u64::from(u16::from(PROTOCOL_TCP).to_be());
        if !frame::checksum_behind_fits(frame, (TCP_AT, PAYLOAD_AT, end), headers) {
            return None;
        }
        let segment = PredictedSegment {
            seq,
            ack: TcpSeqNumber(u32_at(head, TCP_AT + 8) as i32),
            window: u16_at(head, TCP_AT + 14),
            timestamp: u32_at(head, TCP_AT + 24),
            echo: u32_at(head, TCP_AT + 28),
            bytes,
        };
        Some(Self { key: Ipv4Key::at(head, IP_AT), segment })
    }
}

impl Stack {
    /// Handles `frame`. `frames` are the frames that follow `frame` (see [`Stack::input_next`]).
    #[inline]
    pub(super) fn input_frame(
        &mut self,
        now: Instant,
        frame: Mbuf,
        frames: &mut Peekable<impl Iterator<Item = Mbuf>>,
    ) {
        self.counters.rx_frames += 1;
        if let Err(frame) = self.receive_predicted(now, frame, frames.peek(), 0)
            && let Err(frame) = self.receive_predicted_sack(now, frame)
            && let Some(frame) = self.make_private(frame)
        {
            self.receive_any(now, frame, frames);
        }
    }

    /// Calls [`receive_predicted`](Self::receive_predicted) for an acknowledgement with SACK blocks.
    #[inline(never)]
    fn receive_predicted_sack(&mut self, now: Instant, frame: Mbuf) -> Result<(), Mbuf> {
        match sack_blocks(frame.head()) {
            0 => Err(frame),
            blocks => self.receive_predicted(now, frame, None, blocks),
        }
    }

    /// The fast path for a predicted frame (see the head of this file), with the same result as
    /// [`receive_any`](Self::receive_any). For any other frame, changes nothing and returns the frame. `next`
    /// is the frame after `frame`; `sack_blocks` is the number of SACK blocks in `frame`.
    #[inline(always)]
    fn receive_predicted(
        &mut self,
        now: Instant,
        mut frame: Mbuf,
        next: Option<&Mbuf>,
        sack_blocks: usize,
    ) -> Result<(), Mbuf> {
        if !self.config.tcp.header_prediction || self.framing.vlan.is_some() {
            return Err(frame);
        }
        let Some(PredictedHeaders { key, segment }) =
            PredictedHeaders::read(&frame, next, self.framing.mac, sack_blocks)
        else {
            return Err(frame);
        };
        if segment.bytes > 0 && self.events.len() >= self.config.limits.events {
            return Err(frame);
        }
        // The addresses are not checked here. They were checked when the connection began, a usable address
        // never becomes unusable, and routes never change.
        let (parts, connections, _) = self.split(now);
        let Some(found) = connections.find_next_ipv4(&key) else { return Err(frame) };
        if !found.conn.tcb.predicts(&segment) {
            return Err(frame);
        }
        parts.counters.rx_segments += 1;
        if segment.bytes > 0 {
            // Ethernet pads short frames: bytes after the packet are not payload.
            frame.truncate(PAYLOAD_AT + segment.bytes);
            frame.advance(PAYLOAD_AT);
        }
        let mut ctx = parts.ctx(found.id, found.conn.listener);
        if sack_blocks > 0 {
            let sack = read_sack(frame.head(), sack_blocks);
            found.conn.tcb.on_predicted_sack(&mut ctx, &segment, &sack);
        } else {
            found.conn.tcb.on_predicted(&mut ctx, &segment, frame);
        }
        found.settle_and_arm_later();
        Ok(())
    }
}

/// The number of SACK blocks that follow the place of the timestamps in a TCP header; 0 if anything else
/// follows.
#[inline]
fn sack_blocks(head: &[u8]) -> usize {
    let offset = head.get(TCP_AT + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
    let blocks = sack_room(offset.saturating_sub(TCP_BYTES));
    let option = head.get(PAYLOAD_AT..PAYLOAD_AT + sack_bytes(blocks)).unwrap_or_default();
    if option.starts_with(&[1, 1, 5, 2 + 8 * blocks as u8]) { blocks } else { 0 }
}

/// Reads the SACK blocks of a header with `blocks` blocks.
fn read_sack(head: &[u8], blocks: usize) -> ArrayVec<SackBlock, MAX_SACK_BLOCKS> {
    let bytes = &head[PAYLOAD_AT + sack_bytes(0)..][..8 * blocks];
    let number = |bytes: &[u8]| {
        let mut word = [0; 4];
        word.copy_from_slice(bytes);
        TcpSeqNumber(i32::from_be_bytes(word))
    };
    bytes.chunks_exact(8).map(|block| (number(&block[..4]), number(&block[4..]))).collect()
}

#[inline]
fn u16_at(head: &[u8; PAYLOAD_AT], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[inline]
fn u32_at(head: &[u8; PAYLOAD_AT], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// The partial checksum of `WORDS` words of 32 bits in memory order (RFC 1071 section 2).
#[inline]
fn partial_checksum<const WORDS: usize>(head: &[u8; PAYLOAD_AT], at: usize) -> u64 {
    // `step_by` would generate a call for each word.
    (0..WORDS).map(|word| u64::from(u32_at(head, at + 4 * word).to_be())).sum()
}
