//! The far end of the connection: it writes segments by hand, and remembers what it heard.

use crate::sim::packet::{Tcp, flag};
use crate::sim::watch::Ranges;

use super::super::host::ENDS;
use super::super::packet::{self, Ipv4, protocol};
use super::user::byte;

/// A segment that the peer may send, before it has bytes.
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) urgent: u16,
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
    /// The IP header's ECN field.
    pub(super) ecn: u8,
}

/// What the peer is and knows.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) ipv6: bool,
    pub(super) port: u16,
    pub(super) host_port: u16,
    pub(super) isn: u32,
    /// The stack's initial sequence number, once it was seen.
    pub(super) host_isn: Option<u32>,
    /// Bytes of the stream written so far: those behind are not, yet.
    pub(super) written: u64,
    /// Its FIN stands behind `written`, for good.
    pub(super) finished: bool,
    /// Timestamps and window scaling: what its own SYN offers, and the stack's.
    pub(super) offers: (bool, bool),
    pub(super) host_offers: (bool, Option<u8>),
    /// Its own clock, and the stack's as it was heard last.
    pub(super) stamp: u32,
    pub(super) echo: u32,
    /// What was heard of the stack's stream.
    pub(super) heard: Ranges,
    pub(super) heard_fin: Option<u64>,
    /// The stack's acknowledgement and the right edge of its window, as announced; the highest of each.
    pub(super) acked: u64,
    pub(super) edge: u64,
    /// Behind the highest byte, or the FIN, that the stack has sent.
    pub(super) host_high: u64,
    /// The highest acknowledgement of what was sent, true or not.
    pub(super) claimed: u64,
    /// The segment heard last.
    pub(super) last: Option<(Vec<u8>, Tcp)>,
}

impl Peer {
    /// The sequence number of its stream's byte `offset`.
    pub(super) fn seq(&self, offset: u64) -> u32 {
        self.isn.wrapping_add(1).wrapping_add(offset as u32)
    }

    /// The acknowledgement number of the stack's byte `offset`.
    pub(super) fn ack(&self, offset: u64) -> u32 {
        self.host_isn.unwrap_or(0).wrapping_add(1).wrapping_add(offset as u32)
    }

    /// Shift of the stack's windows.
    pub(super) fn scale(&self) -> u8 {
        self.host_offers.1.filter(|_| self.offers.1).unwrap_or(0)
    }

    /// What a SYN of the stack's says of what follows.
    pub(super) fn learn(&mut self, frame: &[u8], tcp: &Tcp) {
        if tcp.has(flag::SYN) {
            self.host_isn.get_or_insert(tcp.seq);
            self.host_offers = (tcp.options(frame).any(|(kind, _)| kind == 8), tcp.window_scale(frame));
        } else if !tcp.has(flag::RST) {
            let end = tcp
                .seq
                .wrapping_sub(self.ack(0))
                .wrapping_add(tcp.len() as u32 + u32::from(tcp.has(flag::FIN)));
            // A keepalive probe stands in front of the stream.
            self.host_high = self.host_high.max(u64::from(end) * u64::from(end < 1 << 31));
            // The stack goes by a timestamp that somebody has forged: nothing older is heard any more.
            if let Some(echoed) = tcp.echoed_timestamp(frame)
                && (echoed.wrapping_sub(self.stamp) as i32) > 0
            {
                self.stamp = echoed;
            }
        }
    }

    /// What it has to acknowledge: what it heard, and what it once said it had.
    pub(super) fn heard_up_to(&self) -> u64 {
        let frontier = self.heard.frontier().max(self.claimed);
        frontier + u64::from(self.heard_fin == Some(frontier))
    }

    /// The timestamps option, where it is agreed on.
    pub(super) fn stamped(&self, stamp: u32) -> Vec<u8> {
        if !(self.offers.0 && self.host_offers.0) {
            return Vec::new();
        }
        [&[1, 1, 8, 10][..], &stamp.to_be_bytes(), &self.echo.to_be_bytes()].concat()
    }

    /// Acknowledges up to `ack`: what was sent before that counts as heard.
    pub(super) fn claim(&mut self, ack: u32) {
        let offset = u64::from(ack.wrapping_sub(self.ack(0)));
        if offset <= self.host_high {
            self.claimed = self.claimed.max(offset);
        }
    }

    /// A true segment of its stream from `offset` on, which acknowledges what was heard.
    pub(super) fn honest(&mut self, offset: u64, bytes: usize, window: u16) -> Segment {
        self.stamp = self.stamp.wrapping_add(1);
        Segment {
            seq: self.seq(offset),
            ack: self.ack(self.heard_up_to()),
            flags: flag::ACK,
            window,
            urgent: 0,
            options: self.stamped(self.stamp),
            payload: self.bytes(offset as i64, bytes),
            ecn: 0,
        }
    }

    /// Its stream from `offset` on; what is in front of it is nothing in particular.
    pub(super) fn bytes(&self, offset: i64, bytes: usize) -> Vec<u8> {
        (offset..).take(bytes).map(|at| u64::try_from(at).map_or(0xee, |at| byte(0, at))).collect()
    }

    /// The frame of a segment.
    pub(super) fn frame(&self, segment: &Segment) -> Vec<u8> {
        let Segment { seq, ack, flags, window, urgent, ref options, ref payload, ecn } = *segment;
        let words = 5 + options.len().min(40).div_ceil(4);
        let mut bytes = Vec::with_capacity(60 + payload.len());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(self.host_port.to_be_bytes());
        bytes.extend(seq.to_be_bytes());
        bytes.extend(ack.to_be_bytes());
        bytes.extend([(words as u8) << 4, flags]);
        bytes.extend(window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(urgent.to_be_bytes());
        bytes.extend(&options[..options.len().min(40)]);
        bytes.resize(words * 4, 0);
        bytes.extend(payload);
        if self.ipv6 {
            return packet::ipv6(&ENDS, ecn, protocol::TCP, 64, &bytes);
        }
        let header = Ipv4 { tos: ecn, id: 0, fragment: 0x4000, ttl: 64, protocol: protocol::TCP };
        packet::ipv4(&ENDS, header, &[], &bytes)
    }

    /// A segment of the stack's arrives. Its bytes have to be the stream's.
    pub(super) fn hear(&mut self, frame: Vec<u8>, tcp: Tcp) {
        let Some(isn) = self.host_isn else { return };
        if let Some((_, stamps)) = tcp.options(&frame).find(|(kind, value)| *kind == 8 && value.len() == 8) {
            self.echo = u32::from_be_bytes(*stamps.first_chunk().expect("eight bytes"));
        }
        let start =
            u64::from(tcp.seq.wrapping_sub(isn).wrapping_sub(1).wrapping_add(u32::from(tcp.has(flag::SYN))));
        if !tcp.is_empty() {
            self.heard.add(start, start + tcp.len() as u64);
        }
        if tcp.has(flag::FIN) {
            self.heard_fin = Some(start + tcp.len() as u64);
        }
        if !tcp.has(flag::RST) {
            self.last = Some((frame, tcp));
        }
    }
}
