//! The far end of the connection: it builds segments, and records what it received.

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

/// The state of the peer.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) ipv6: bool,
    pub(super) port: u16,
    pub(super) host_port: u16,
    pub(super) isn: u32,
    /// The stack's initial sequence number, once it is known.
    pub(super) host_isn: Option<u32>,
    /// Bytes of the stream written so far. Later ones do not exist yet.
    pub(super) written: u64,
    /// The peer has closed: its FIN is after `written`, and nothing more is written.
    pub(super) finished: bool,
    /// Whether the SYN of this peer, and below that of the stack, offers timestamps and window scale.
    pub(super) offers: (bool, bool),
    pub(super) host_offers: (bool, Option<u8>),
    /// Its own timestamp clock, and the latest timestamp of the stack.
    pub(super) stamp: u32,
    pub(super) echo: u32,
    /// Ranges of the stack's stream that have arrived.
    pub(super) received: Ranges,
    pub(super) heard_fin: Option<u64>,
    /// The highest acknowledgement and right window edge that the stack has announced.
    pub(super) acked: u64,
    pub(super) edge: u64,
    /// The end of the highest byte, or of the FIN, that the stack has sent.
    pub(super) host_high: u64,
    /// The highest acknowledgement that it has sent, true or not.
    pub(super) acked_to: u64,
    /// The last segment that arrived.
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

    /// Window scale of the stack.
    pub(super) fn scale(&self) -> u8 {
        self.host_offers.1.filter(|_| self.offers.1).unwrap_or(0)
    }

    /// Learns the options of a SYN of the stack.
    pub(super) fn learn(&mut self, frame: &[u8], tcp: &Tcp) {
        if tcp.has(flag::SYN) {
            self.host_isn.get_or_insert(tcp.seq);
            self.host_offers = (tcp.options(frame).any(|(kind, _)| kind == 8), tcp.window_scale(frame));
        } else if !tcp.has(flag::RST) {
            let end = tcp
                .seq
                .wrapping_sub(self.ack(0))
                .wrapping_add(tcp.len() as u32 + u32::from(tcp.has(flag::FIN)));
            // A keepalive probe is in front of the stream.
            self.host_high = self.host_high.max(u64::from(end) * u64::from(end < 1 << 31));
            // The stack uses a timestamp that was forged: it processes no older ones any more.
            if let Some(echoed) = tcp.echoed_timestamp(frame)
                && (echoed.wrapping_sub(self.stamp) as i32) > 0
            {
                self.stamp = echoed;
            }
        }
    }

    /// The acknowledgement it has to send: bytes that arrived, and bytes that it once claimed to have.
    pub(super) fn received_to(&self) -> u64 {
        let frontier = self.received.frontier().max(self.acked_to);
        frontier + u64::from(self.heard_fin == Some(frontier))
    }

    /// The timestamps option, if negotiated.
    pub(super) fn stamped(&self, stamp: u32) -> Vec<u8> {
        if !(self.offers.0 && self.host_offers.0) {
            return Vec::new();
        }
        [&[1, 1, 8, 10][..], &stamp.to_be_bytes(), &self.echo.to_be_bytes()].concat()
    }

    /// Acknowledges up to `ack`: bytes sent before that count as received.
    pub(super) fn acknowledge(&mut self, ack: u32) {
        let offset = u64::from(ack.wrapping_sub(self.ack(0)));
        if offset <= self.host_high {
            self.acked_to = self.acked_to.max(offset);
        }
    }

    /// A regular segment of its stream from `offset` on, with a true acknowledgement.
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

    /// Its stream from `offset` on; bytes before the stream have any value.
    pub(super) fn bytes(&self, offset: i64, bytes: usize) -> Vec<u8> {
        (offset..).take(bytes).map(|at| u64::try_from(at).map_or(0xee, |at| byte(0, at))).collect()
    }

    /// The frame of a segment.
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

    /// A segment of the stack arrives. Its bytes have to be those of the stream.
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
