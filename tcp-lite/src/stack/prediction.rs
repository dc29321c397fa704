//! Header prediction: the short way for the frames that nearly all others are like.
//!
//! Such a frame continues an established stream and has nothing unusual in its headers: Ethernet without a
//! tag, a whole IPv4 packet without options, TCP with timestamps as its only option, and ACK or ACK
//! and PSH as its only flags. Its headers are compared and read in place, and its connection takes what they
//! say without the checks that cannot fail (`tcp/connection/predicted.rs`). The idea is Van Jacobson's; RFC
//! 7323 appendix A has the layout of the options.
//!
//! A frame that is not predicted has changed nothing, and takes the general way of `receive.rs`. So does each
//! frame that is wrong in any respect: only that way counts and answers errors.
//! [`TcpConfig::header_prediction`](crate::TcpConfig::header_prediction) turns prediction off, so that tests
//! can compare both ways.

use dp::Mbuf;

use super::{Stack, gro};
use crate::checksum::fold;
use crate::ethernet::{self, ETHERTYPE_IPV4};
use crate::facade::{EthernetAddress, Instant, TcpSeqNumber};
use crate::four_tuple::Ipv4Key;
use crate::frame;
use crate::ip::{IPV4_BYTES, PROTOCOL_TCP};
use crate::tcp::PredictedSegment;

/// Where the headers begin, and where they end.
const IP_AT: usize = ethernet::HEADER_BYTES;
const TCP_AT: usize = IP_AT + IPV4_BYTES;
/// Bytes of a TCP header with timestamps and two NOPs.
const TCP_BYTES: usize = 32;
const PAYLOAD_AT: usize = TCP_AT + TCP_BYTES;

/// The bit of the first byte of an Ethernet address that only group addresses have.
const GROUP_BIT: u8 = 1;
/// The folded sum of bytes with a correct checksum.
const ALL_ONES: u16 = 0xffff;
/// The Ethertype, and an IPv4 header of five words, whatever its codepoint.
const IPV4: u32 = (ETHERTYPE_IPV4 as u32) << 16 | 0x4500;
const TYPE_MASK: u32 = 0xffff_ff00;
/// Flags and offset of a fragment, without "don't fragment"; and behind the hop limit the protocol.
const FRAGMENT_AND_PROTOCOL_MASK: u32 = 0x3fff_00ff;
/// A header of eight words, and ACK.
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
    /// Reads the headers; `None` if anything in them is unusual or wrong. Frames that `next` continues are
    /// not for here: they are taken in together (`gro.rs`).
    #[inline]
    fn read(frame: &Mbuf, next: Option<&Mbuf>, mac: EthernetAddress) -> Option<Self> {
        let head: &[u8; PAYLOAD_AT] = frame.head().first_chunk()?;
        let usual = head[0..6] == mac.0
            && head[6] & GROUP_BIT == 0
            && u32_at(head, 12) & TYPE_MASK == IPV4
            && u32_at(head, IP_AT + 6) & FRAGMENT_AND_PROTOCOL_MASK == u32::from(PROTOCOL_TCP)
            && u16_at(head, TCP_AT + 12) & !PSH == OFFSET_AND_FLAGS
            && u32_at(head, TCP_AT + 20) == TIMESTAMPS;
        if !usual {
            return None;
        }
        let end = IP_AT + usize::from(u16_at(head, IP_AT + 2));
        if end < PAYLOAD_AT || end > frame.len() {
            return None;
        }
        let addresses = sum_of::<2>(head, IP_AT + 12);
        if fold(sum_of::<3>(head, IP_AT) + addresses) != ALL_ONES {
            return None;
        }
        let seq = TcpSeqNumber(u32_at(head, TCP_AT + 4) as i32);
        let bytes = end - PAYLOAD_AT;
        let goes_on = |next: &Mbuf| gro::may_continue(next, TCP_AT, seq + bytes);
        if bytes > 0 && next.is_some_and(goes_on) {
            return None;
        }
        let headers = || addresses + sum_of::<8>(head, TCP_AT) + u64::from(u16::from(PROTOCOL_TCP).to_be());
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
    /// Takes a frame, if it is predicted; else returns it. `next` is the frame behind it.
    #[inline]
    pub(super) fn take_predicted(
        &mut self,
        now: Instant,
        mut frame: Mbuf,
        next: Option<&Mbuf>,
    ) -> Result<(), Mbuf> {
        if !self.config.tcp.header_prediction || self.framing.vlan.is_some() {
            return Err(frame);
        }
        let Some(PredictedHeaders { key, segment }) = PredictedHeaders::read(&frame, next, self.framing.mac)
        else {
            return Err(frame);
        };
        if segment.bytes > 0 && self.events.len() >= self.config.limits.events {
            return Err(frame);
        }
        // Its addresses were looked at when the connection began: an address that was usable stays so, and
        // routes are fixed.
        let (mut parts, connections, _) = self.split(now);
        let Some(found) = connections.find_next_ipv4(&key) else { return Err(frame) };
        if !found.conn.tcb.predicts(&segment) {
            return Err(frame);
        }
        parts.counters.rx_segments += 1;
        if segment.bytes > 0 {
            // Ethernet pads short frames: bytes behind the packet are not payload.
            frame.truncate(PAYLOAD_AT + segment.bytes);
            frame.advance(PAYLOAD_AT);
        }
        let mut ctx = parts.ctx(found.id, found.conn.listener);
        found.conn.tcb.on_predicted(&mut ctx, &segment, frame);
        found.settle_later();
        Ok(())
    }
}

#[inline]
fn u16_at(head: &[u8; PAYLOAD_AT], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

#[inline]
fn u32_at(head: &[u8; PAYLOAD_AT], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// The sum of so many words of 32 bits in memory order, for the checksum of 16 bits (RFC 1071 section 2).
#[inline]
fn sum_of<const WORDS: usize>(head: &[u8; PAYLOAD_AT], at: usize) -> u64 {
    // Not `step_by`, which is a call for each word.
    (0..WORDS).map(|word| u64::from(u32_at(head, at + 4 * word).to_be())).sum()
}
