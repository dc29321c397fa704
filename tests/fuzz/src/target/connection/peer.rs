//! The peer of the stack's connection: builds segments, and records what it received.

use crate::sim::watch::Ranges;

use super::super::host::ENDS;
use super::user::byte;
use testkit::packet::{self, Ipv4, Tcp, TcpHeader, flag, protocol};

/// A segment of the peer, before it is encoded.
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

#[derive(Default)]
pub(super) struct Peer {
    pub(super) ipv6: bool,
    pub(super) port: u16,
    pub(super) host_port: u16,
    pub(super) isn: u32,
    /// The stack's initial sequence number, once it is known.
    pub(super) host_isn: Option<u32>,
    /// Number of bytes of the peer's stream written so far.
    pub(super) written: u64,
    /// Whether the peer has closed: its FIN follows byte `written`, and it writes no more bytes.
    pub(super) finished: bool,
    /// Whether the peer's SYN offers timestamps and window scaling. `host_offers`: what the stack's SYN
    /// offers, with its window scale.
    pub(super) offers: (bool, bool),
    pub(super) host_offers: (bool, Option<u8>),
    /// The peer's timestamp clock, and the latest timestamp of the stack.
    pub(super) stamp: u32,
    pub(super) echo: u32,
    /// Ranges of the stack's stream that have arrived.
    pub(super) received: Ranges,
    pub(super) heard_fin: Option<u64>,
    /// The highest acknowledgement and right window edge that the stack has announced.
    pub(super) acked: u64,
    pub(super) edge: u64,
    /// The highest offset that the stack has sent: the offset after its last byte or after its FIN.
    pub(super) host_high: u64,
    /// The highest acknowledgement that the peer has sent, true or not.
    pub(super) acked_to: u64,
    /// The last segment, other than a RST, that arrived at the peer.
    pub(super) last: Option<(Vec<u8>, Tcp)>,
}

impl Peer {
    /// Returns the sequence number of byte `offset` of the peer's stream.
    pub(super) fn seq(&self, offset: u64) -> u32 {
        self.isn.wrapping_add(1).wrapping_add(offset as u32)
    }

    /// Returns the acknowledgement number of byte `offset` of the stack's stream.
    pub(super) fn ack(&self, offset: u64) -> u32 {
        self.host_isn.unwrap_or(0).wrapping_add(1).wrapping_add(offset as u32)
    }

    /// Returns the window scale of the stack, or 0 if the sides have not agreed on window scaling.
    pub(super) fn scale(&self) -> u8 {
        self.host_offers.1.filter(|_| self.offers.1).unwrap_or(0)
    }

    /// Records the options of the stack's SYN, or the latest byte and timestamp of another segment of the
    /// stack.
    pub(super) fn learn(&mut self, frame: &[u8], tcp: &Tcp) {
        if tcp.has(flag::SYN) {
            self.host_isn.get_or_insert(tcp.seq);
            self.host_offers = (tcp.options(frame).any(|(kind, _)| kind == 8), tcp.window_scale(frame));
        } else if !tcp.has(flag::RST) {
            let end = tcp
                .seq
                .wrapping_sub(self.ack(0))
                .wrapping_add(tcp.len() as u32 + u32::from(tcp.has(flag::FIN)));
            // The sequence number of a keepalive probe is before the stream.
            self.host_high = self.host_high.max(u64::from(end) * u64::from(end < 1 << 31));
            // If the stack echoes a forged timestamp, it ignores segments with older timestamps from then on.
            if let Some(echoed) = tcp.echoed_timestamp(frame)
                && (echoed.wrapping_sub(self.stamp) as i32) > 0
            {
                self.stamp = echoed;
            }
        }
    }

    /// Returns the offset up to which the peer has to acknowledge. This offset is the end of the bytes that
    /// arrived without a hole, or the end of the bytes that the peer once claimed to have, whichever is
    /// higher. A FIN that has arrived and directly follows these bytes adds one.
    pub(super) fn received_to(&self) -> u64 {
        let frontier = self.received.frontier().max(self.acked_to);
        frontier + u64::from(self.heard_fin == Some(frontier))
    }

    /// Returns the timestamps option, or nothing if timestamps were not negotiated.
    pub(super) fn stamped(&self, stamp: u32) -> Vec<u8> {
        if !(self.offers.0 && self.host_offers.0) {
            return Vec::new();
        }
        [&[1, 1, 8, 10][..], &stamp.to_be_bytes(), &self.echo.to_be_bytes()].concat()
    }

    /// Records an acknowledgement number that the peer sends: from now on, the peer counts sent bytes up to
    /// `ack` as received. Ignores an acknowledgement of bytes that the stack has not sent.
    pub(super) fn acknowledge(&mut self, ack: u32) {
        let offset = u64::from(ack.wrapping_sub(self.ack(0)));
        if offset <= self.host_high {
            self.acked_to = self.acked_to.max(offset);
        }
    }

    /// Returns a regular segment with `bytes` bytes of the peer's stream from `offset` on, and a true
    /// acknowledgement.
    pub(super) fn regular(&mut self, offset: u64, bytes: usize, window: u16) -> Segment {
        self.stamp = self.stamp.wrapping_add(1);
        Segment {
            seq: self.seq(offset),
            ack: self.ack(self.received_to()),
            flags: flag::ACK,
            window,
            urgent: 0,
            options: self.stamped(self.stamp),
            payload: self.bytes(offset as i64, bytes),
            ecn: 0,
        }
    }

    /// Returns bytes of the peer's stream from `offset` on. Bytes before the stream are 0xee.
    pub(super) fn bytes(&self, offset: i64, bytes: usize) -> Vec<u8> {
        (offset..).take(bytes).map(|at| u64::try_from(at).map_or(0xee, |at| byte(0, at))).collect()
    }

    /// Returns the frame of a segment.
    pub(super) fn frame(&self, segment: &Segment) -> Vec<u8> {
        let Segment { seq, ack, flags, window, urgent, ref options, ref payload, ecn } = *segment;
        let ports = [self.port, self.host_port];
        let header = TcpHeader { ports, seq, ack, flags, window, urgent, options };
        let bytes = header.segment(payload);
        if self.ipv6 {
            return packet::ipv6(&ENDS, ecn, protocol::TCP, 64, &bytes);
        }
        let header = Ipv4 { tos: ecn, id: 0, fragment: 0x4000, ttl: 64, protocol: protocol::TCP };
        packet::ipv4(&ENDS, header, &[], &bytes)
    }

    /// Records a segment of the stack that has arrived at the peer.
    pub(super) fn on_segment(&mut self, frame: Vec<u8>, tcp: Tcp) {
        let Some(isn) = self.host_isn else { return };
        if let Some((_, stamps)) = tcp.options(&frame).find(|(kind, value)| *kind == 8 && value.len() == 8) {
            self.echo = u32::from_be_bytes(*stamps.first_chunk().expect("eight bytes"));
        }
        let start =
            u64::from(tcp.seq.wrapping_sub(isn).wrapping_sub(1).wrapping_add(u32::from(tcp.has(flag::SYN))));
        if !tcp.is_empty() {
            self.received.add(start, start + tcp.len() as u64);
        }
        if tcp.has(flag::FIN) {
            self.heard_fin = Some(start + tcp.len() as u64);
        }
        if !tcp.has(flag::RST) {
            self.last = Some((frame, tcp));
        }
    }
}
