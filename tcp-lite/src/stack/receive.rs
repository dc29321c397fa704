//! The general path of [`Stack::input`]: parses a frame and finds its connection. `prediction.rs` has the
//! entry point of [`Stack::input`], and the fast path.

use std::iter::Peekable;

use dp::Mbuf;

use super::connections::Conn;
use super::gro::{self, MAX_BUFFERS, Pattern};
use super::opening::default_peer_mss;
use super::transmit::Answer;
use super::{ConnId, ListenerId, PENDING_ANSWERS, Stack, trace};
use crate::ethernet::{self, EthernetHeader};
use crate::facade::{EthernetAddress, Instant, IpAddress, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::ip::{self, Ecn, IpHeader, PROTOCOL_TCP, Refused, Upper};
use crate::listener::Admission;
use crate::syn_cookie::SynCookies;
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::{OpenParams, Tcb, TimestampClock, Verdict, syn_ack};
use crate::{Deadline, frame};

/// Number of bytes at the front of a frame in which headers are parsed. Ethernet with a tag, IPv6 and TCP
/// with all options take 118 bytes, so 74 bytes are left for extension headers. If the extension headers do
/// not fit, the frame takes the slow path.
const HEAD_BYTES: usize = 192;

/// A frame after its headers were parsed.
enum Class {
    /// A whole TCP segment for one of our addresses.
    Tcp { ip: IpHeader, header: TcpHeader, tcp_at: usize, payload_at: usize, end: usize },
    /// Any other frame that may be for us.
    Slow { ip: Option<IpHeader> },
}

/// The addresses and the ECN codepoint with which a segment arrived.
#[derive(Clone, Copy)]
pub(super) struct SegmentOrigin {
    mac: EthernetAddress,
    src: IpAddress,
    dst: IpAddress,
    ecn: Ecn,
}

impl SegmentOrigin {
    pub(super) fn new(mac: EthernetAddress, ip: &IpHeader) -> Self {
        Self { mac, src: ip.src, dst: ip.dst, ecn: ip.ecn }
    }

    /// The 4-tuple of the connection that a segment with this header belongs to.
    pub(super) fn tuple(&self, header: &TcpHeader) -> FourTuple {
        let (local_port, remote_port) = (header.dst_port, header.src_port);
        FourTuple { local: self.dst, local_port, remote: self.src, remote_port }
    }
}

impl Stack {
    /// Returns a frame whose bytes no other process can change, for the general path, which uses slices of
    /// the frame. If there is no buffer for a copy, drops and counts the frame.
    #[inline(never)]
    pub(super) fn make_private(&mut self, frame: Mbuf) -> Option<Mbuf> {
        let private = frame.into_private();
        self.counters.rx_no_mbuf += u64::from(private.is_none());
        private
    }

    /// The general path of [`input_frame`](Self::input_frame), which accepts any private frame. The fast
    /// path, [`receive_predicted`](Self::receive_predicted), has the same result for every frame that it
    /// accepts.
    pub(super) fn receive_any(
        &mut self,
        now: Instant,
        mut frame: Mbuf,
        frames: &mut Peekable<impl Iterator<Item = Mbuf>>,
    ) {
        let mut copy = [0; HEAD_BYTES];
        let head = if frame.segment_count() == 1 || frame.head().len() >= HEAD_BYTES {
            frame.head()
        } else {
            let bytes = frame.copy_to(0, &mut copy);
            &copy[..bytes]
        };
        let Some(ethernet) = EthernetHeader::parse(head) else {
            self.counters.rx_malformed += 1;
            return;
        };
        if !ethernet.src.is_unicast() {
            // A group address cannot be a source (IEEE 802.3 section 3.2.3). An answer to a group address
            // would be sent to the whole group.
            self.counters.rx_malformed += 1;
            return;
        }
        if ethernet.vlan != self.framing.vlan
            || !(ethernet.dst == self.framing.mac
                || ethernet.dst.is_multicast()
                || ethernet.dst.is_broadcast())
        {
            self.counters.rx_not_ours += 1;
            return;
        }
        match self.classify(&ethernet, &head[ethernet.bytes..], &frame) {
            None => {}
            Some(Class::Tcp { ip, header, tcp_at, payload_at, end }) => {
                let origin = SegmentOrigin::new(ethernet.src, &ip);
                if self.member.is_some()
                    && let Some(owner) = self.elsewhere(&origin.tuple(&header))
                {
                    return self.hand_over_verified(owner, frame);
                }
                let next = header.seq + (end - payload_at);
                let may_continue = end > payload_at
                    && frame.segment_count() <= MAX_BUFFERS
                    && frames.peek().is_some_and(|frame| gro::may_continue(frame, tcp_at, next))
                    && self.is_next(&origin, &header);
                let pattern =
                    may_continue.then(|| Pattern::new(&head[..payload_at], ip, [ethernet.bytes, tcp_at]));
                // Ethernet pads short frames: bytes after the packet are not payload.
                frame.truncate(end);
                frame.advance(payload_at);
                let arrived = match pattern.flatten() {
                    Some(pattern) => pattern.coalesce(header.seq, frame, frames),
                    None => Some((frame, 1)),
                };
                if let Some((payload, segments)) = arrived {
                    self.counters.rx_frames += segments as u64 - 1;
                    self.segment_arrives(now, origin, &header, (payload, segments));
                }
            }
            Some(Class::Slow { ip }) => self.slow(now, &ethernet, ip, frame),
        }
    }

    /// Classifies the frame. Returns `None` if the frame was dropped and counted. `head` starts at the IP
    /// header.
    fn classify(&mut self, ethernet: &EthernetHeader, head: &[u8], frame: &Mbuf) -> Option<Class> {
        let bytes = frame.len() - ethernet.bytes;
        let parsed = match ethernet.ethertype {
            ethernet::ETHERTYPE_IPV4 => ip::parse_ipv4(head, bytes),
            ethernet::ETHERTYPE_IPV6 => ip::parse_ipv6(head, bytes),
            _ => return Some(Class::Slow { ip: None }),
        };
        let ip = match parsed {
            Ok(ip) => ip,
            Err(Refused::Malformed) => {
                self.counters.rx_malformed += 1;
                return None;
            }
            Err(Refused::Checksum) => {
                self.counters.rx_bad_checksum += 1;
                return None;
            }
        };
        let ours = self.routes.is_ours(&ip.dst) && self.conflicts.is_usable(&ip.dst);
        let Upper::Whole { protocol: PROTOCOL_TCP, header_bytes } = ip.upper else {
            if !ours && !ip.dst.is_multicast() && !self.routes.is_broadcast(&ip.dst) {
                self.counters.rx_not_ours += 1;
                return None;
            }
            return Some(Class::Slow { ip: Some(ip) });
        };
        // The stack drops segments that are not for us, were not sent to our Ethernet address, or come from
        // an address that cannot be a peer's (RFC 9293 MUST-57).
        if !ours || ethernet.dst != self.framing.mac || !self.may_be_peer(&ip.src) {
            self.counters.rx_not_ours += 1;
            return None;
        }
        let tcp_at = ethernet.bytes + header_bytes;
        let end = ethernet.bytes + ip.total_bytes;
        let tcp = head.get(header_bytes..ip.total_bytes.min(head.len())).unwrap_or_default();
        let Ok((header, tcp_bytes)) = TcpHeader::parse(tcp) else {
            self.counters.rx_malformed += 1;
            return None;
        };
        if !frame::checksum_is_right(frame, tcp_at, end - tcp_at, &ip.src, &ip.dst) {
            self.counters.rx_bad_checksum += 1;
            return None;
        }
        Some(Class::Tcp { ip, header, tcp_at, payload_at: tcp_at + tcp_bytes, end })
    }

    /// Whether there can be connections to `address`.
    pub(super) fn may_be_peer(&self, address: &IpAddress) -> bool {
        address.is_unicast()
            && !self.routes.is_broadcast(address)
            && (self.config.loopback || !self.routes.is_ours(address))
    }

    /// Whether a segment is the next in order of its connection, and has the flag ACK and no other flag
    /// except PSH.
    fn is_next(&mut self, origin: &SegmentOrigin, header: &TcpHeader) -> bool {
        let conn =
            self.connections.find_next(&origin.tuple(header)).and_then(|slot| self.connections.get(slot));
        header.ack.is_some()
            && Flags::PSH.contains(header.flags)
            && conn.is_some_and(|conn| conn.tcb.is_next(header.seq))
    }

    /// Handles a TCP segment for one of our addresses that passed all checks, or several merged segments.
    /// `segments` is the number of merged segments.
    pub(super) fn segment_arrives(
        &mut self,
        now: Instant,
        origin: SegmentOrigin,
        header: &TcpHeader,
        (payload, segments): (Mbuf, usize),
    ) {
        self.counters.rx_segments += segments as u64;
        let tuple = origin.tuple(header);
        let Some(slot) = self.connections.find_next(&tuple) else {
            return self.unmatched_segment_arrives(now, origin, tuple, header, payload);
        };
        let payload = match self.syn_cookies.were_made() {
            true => match self.earlier_cookie_arrives(now, origin, (slot, tuple), header, payload) {
                None => return,
                Some(payload) => payload,
            },
            false => payload,
        };
        match self.with(now, slot, |tcb, ctx| tcb.on_segment(ctx, header, origin.ecn, (payload, segments))) {
            None | Some(Verdict::Done) => {}
            Some(Verdict::Reset(reset)) => {
                self.queue_answer(origin.mac, tuple, reset);
            }
            Some(Verdict::Reopen) => self.reopen(now, slot, tuple, header),
        }
    }

    /// Handles a new SYN for the 4-tuple of a connection in TIME-WAIT. If a listener accepts the SYN, a new
    /// connection replaces the old connection. Otherwise the old connection remains, because the peer may
    /// send its FIN again. If the backlog is full, the stack sends no cookie, because the cookie's sequence
    /// number could be one that the old connection used (RFC 9293 section 3.6.1). A peer that gets no answer
    /// sends the SYN again.
    fn reopen(&mut self, now: Instant, slot: u32, tuple: FourTuple, syn: &TcpHeader) {
        let Some(listener) = self.listeners.find(tuple.local_port) else { return };
        let Some(old) = self.connections.get(slot) else { return };
        let next_hop = old.next_hop;
        let mut params = self.open_params(now, &tuple);
        params.iss = old.tcb.next_iss(params.iss);
        let admitted = self.takes_connections()
            && self.listeners.try_half_open(now, listener, &tuple.remote) == Admission::Counted;
        if !admitted {
            self.counters.rx_syn_dropped += 1;
            return;
        }
        self.forget(now, slot);
        // `reserve` returns the slot that has just been freed.
        if let Some(id) = self.reserve() {
            self.accept(now, id, (listener, tuple, next_hop), syn, params);
        }
    }

    /// Handles a segment that belongs to no connection.
    fn unmatched_segment_arrives(
        &mut self,
        now: Instant,
        origin: SegmentOrigin,
        tuple: FourTuple,
        header: &TcpHeader,
        payload: Mbuf,
    ) {
        let is_syn = header.flags & (Flags::SYN | Flags::RST) == Flags::SYN && header.ack.is_none();
        if let Some(listener) = self.listeners.find(tuple.local_port) {
            if is_syn {
                return self.syn_arrives(now, listener, origin.mac, tuple, header);
            }
            if let Some(syn) = self.syn_cookies.recall(now, &tuple, header) {
                return self.cookie_arrives(now, listener, origin, tuple, &syn, (header, payload));
            }
            if self.syn_cookies.may_be_overtaken(now, header, payload.len()) {
                // The segment may have overtaken the ACK of a cookie. The stack does not answer, because an
                // RST would end the peer's connection. If the segment occupies sequence numbers, the peer
                // retransmits it.
                self.counters.rx_no_connection += 1;
                return;
            }
        }
        self.counters.rx_no_connection += 1;
        if let Some(reset) = header.rst_reply(payload.len()) {
            self.queue_answer(origin.mac, tuple, reset);
        }
    }

    /// Handles a SYN for a port with a listener (RFC 9293 section 3.10.7.2).
    fn syn_arrives(
        &mut self,
        now: Instant,
        listener: ListenerId,
        mac: EthernetAddress,
        tuple: FourTuple,
        syn: &TcpHeader,
    ) {
        if tuple.is_of_one_socket() {
            self.counters.rx_syn_dropped += 1;
            return;
        }
        let next_hop = self.routes.next_hop(&tuple.local, &tuple.remote).filter(|_| self.has_place());
        let Some(next_hop) = next_hop else {
            self.counters.rx_syn_dropped += 1;
            return;
        };
        match self.listeners.try_half_open(now, listener, &tuple.remote) {
            Admission::Counted => {}
            Admission::Full if self.config.limits.syn_cookies => {
                return self.answer_with_cookie(now, mac, tuple, syn);
            }
            Admission::Full | Admission::Refused => {
                self.counters.rx_syn_dropped += 1;
                return;
            }
        }
        // Only a SYN that becomes a connection may end a connection in TIME-WAIT.
        let Some(id) = self.reserve() else {
            self.counters.rx_syn_dropped += 1;
            return self.listeners.settle_half_open(listener, &tuple.remote);
        };
        let params = self.open_params(now, &tuple);
        self.accept(now, id, (listener, tuple, next_hop), syn, params);
    }

    /// Creates a connection that its listener has counted as half-open. If the 4-tuple cannot be claimed for
    /// this stack, drops the SYN instead.
    fn accept(
        &mut self,
        now: Instant,
        id: ConnId,
        (listener, tuple, next_hop): (ListenerId, FourTuple, IpAddress),
        syn: &TcpHeader,
        params: OpenParams,
    ) {
        if self.claim(&tuple).is_err() {
            // Another stack received the same SYN at the same time, or the flow table is full. The peer sends
            // the SYN again.
            self.counters.rx_syn_dropped += 1;
            return self.listeners.settle_half_open(listener, &tuple.remote);
        }
        trace::syn_received(&tuple);
        let tcb = Tcb::accept(&mut self.split(now).0.ctx(id, Some(listener)), params, syn);
        let conn = Conn {
            tcb,
            tuple,
            next_hop,
            listener: Some(listener),
            half_open: true,
            in_time_wait: false,
            unresolved_since: Deadline::NONE,
        };
        self.connections.insert(id, conn);
        self.settle(id.slot);
    }

    /// Queues a SYN-ACK with a cookie, without keeping a control block.
    fn answer_with_cookie(&mut self, now: Instant, mac: EthernetAddress, tuple: FourTuple, syn: &TcpHeader) {
        let mut syn = syn.clone();
        syn.options.mss.get_or_insert_with(|| default_peer_mss(&tuple.remote));
        SynCookies::forget_the_rest(&self.config.tcp, &mut syn);
        let iss = self.syn_cookies.make(now, &tuple, &syn);
        let clock = || TimestampClock::new(self.secrets.timestamp_offset(&tuple)).value(now);
        let mut syn_ack = syn_ack(&self.config.tcp, &syn, (iss, self.own_mss(&tuple.remote)), clock);
        SynCookies::mark(&mut syn_ack, &syn);
        match self.queue_answer(mac, tuple, syn_ack) {
            true => self.counters.tx_syn_cookies += 1,
            false => self.counters.rx_syn_dropped += 1,
        }
    }

    /// Handles the ACK of a SYN-ACK with a cookie; `syn` is the part of the SYN that the cookie encodes.
    fn cookie_arrives(
        &mut self,
        now: Instant,
        listener: ListenerId,
        origin: SegmentOrigin,
        tuple: FourTuple,
        syn: &TcpHeader,
        (ack, payload): (&TcpHeader, Mbuf),
    ) {
        let place = self.routes.next_hop(&tuple.local, &tuple.remote).zip(self.reserve());
        let admits = |stack: &mut Self| {
            stack.listeners.admits(now, listener, &tuple.remote) && stack.claim(&tuple).is_ok()
        };
        let Some((next_hop, id)) = place.filter(|_| admits(self)) else {
            // The stack drops the ACK, as if it were lost. The peer's first data segment acknowledges the
            // SYN-ACK again.
            self.counters.rx_syn_dropped += 1;
            return;
        };
        self.counters.rx_syn_cookies += 1;
        trace::syn_cookie_received(&tuple);
        let mut params = self.open_params(now, &tuple);
        params.iss = ack.ack.map_or(params.iss, |ack| TcpSeqNumber(ack.0.wrapping_sub(1)));
        let tcb = Tcb::accept_remembered(&mut self.split(now).0.ctx(id, Some(listener)), params, syn);
        let conn = Conn {
            tcb,
            tuple,
            next_hop,
            listener: Some(listener),
            half_open: false,
            in_time_wait: false,
            unresolved_since: Deadline::NONE,
        };
        self.connections.insert(id, conn);
        let verdict = self.with(now, id.slot, |tcb, ctx| tcb.on_segment(ctx, ack, origin.ecn, (payload, 1)));
        debug_assert!(matches!(verdict, Some(Verdict::Done)), "{verdict:?}");
    }

    /// Handles a segment of a half-open connection that acknowledges an earlier SYN-ACK with a cookie. This
    /// happens if the peer sent its SYN again before it received the cookie, and the backlog had room for the
    /// second SYN. The peer has established the connection with the cookie's sequence numbers, so our
    /// connection adopts these numbers. A segment that may have overtaken such an acknowledgement is dropped.
    /// Returns the payload of any other segment.
    #[cold]
    fn earlier_cookie_arrives(
        &mut self,
        now: Instant,
        origin: SegmentOrigin,
        (slot, tuple): (u32, FourTuple),
        header: &TcpHeader,
        payload: Mbuf,
    ) -> Option<Mbuf> {
        let conn = self.connections.get(slot).filter(|conn| conn.half_open);
        let conn = conn.filter(|conn| !conn.tcb.acknowledges_our_syn(header));
        let Some(listener) = conn.and_then(|conn| conn.listener) else { return Some(payload) };
        if let Some(syn) = self.syn_cookies.recall(now, &tuple, header) {
            self.forget(now, slot);
            self.cookie_arrives(now, listener, origin, tuple, &syn, (header, payload));
            return None;
        }
        if self.syn_cookies.may_be_overtaken(now, header, payload.len()) {
            // The stack does not answer, just as if there were no half-open connection, because an RST would
            // end the peer's connection. The peer sends the segment again.
            self.counters.rx_no_connection += 1;
            return None;
        }
        Some(payload)
    }

    /// Queues an answer. Returns whether the queue had room.
    fn queue_answer(&mut self, dst_mac: EthernetAddress, tuple: FourTuple, header: TcpHeader) -> bool {
        // The queue is bounded, because any host can cause such answers. A peer that gets no answer tries
        // again.
        let has_place = self.answers.len() < PENDING_ANSWERS;
        if has_place {
            self.answers.push_back(Answer { dst_mac, tuple, header });
        }
        has_place
    }
}
