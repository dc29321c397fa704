//! From a frame to a connection: what [`Stack::input`] does.

use std::iter::Peekable;

use dp::{Checksum, Mbuf};

use super::connections::Conn;
use super::gro::{self, MAX_BUFFERS, Pattern};
use super::opening::{default_peer_mss, mss};
use super::transmit::Answer;
use super::{ConnId, ListenerId, Stack};
use crate::address_conflict::Conflict;
use crate::checksum::pseudo_header;
use crate::ethernet::{self, EthernetHeader};
use crate::facade::{EthernetAddress, Instant, IpAddress, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::icmp_error::{self, IcmpError, IcmpErrorKind};
use crate::ip::{self, Ecn, IpHeader, PROTOCOL_TCP, PROTOCOL_UDP, Refused, Upper};
use crate::listener::Admission;
use crate::syn_cookie::SynCookies;
use crate::tcp::header::{Flags, TcpHeader};
use crate::tcp::{OpenParams, State, Tcb, Verdict, syn_ack, timestamp};
use crate::{Deadline, Event, discovery, frame};

/// Bytes of a frame that are searched for headers: Ethernet with a tag, IPv6 and TCP with all options are
/// 118, which leaves 74 for extension headers. A frame with more is not an ordinary one.
const HEAD_BYTES: usize = 192;

/// A frame after its headers were parsed.
enum Class {
    /// A whole TCP segment for an address of ours.
    Tcp { ip: IpHeader, header: TcpHeader, tcp_at: usize, payload_at: usize, end: usize },
    /// Anything else that may be for us.
    Slow { ip: Option<IpHeader> },
}

/// The addresses and the ECN codepoint that a segment came with.
#[derive(Clone, Copy)]
struct SegmentOrigin {
    mac: EthernetAddress,
    src: IpAddress,
    dst: IpAddress,
    ecn: Ecn,
}

impl SegmentOrigin {
    fn new(mac: EthernetAddress, ip: &IpHeader) -> Self {
        Self { mac, src: ip.src, dst: ip.dst, ecn: ip.ecn }
    }

    /// The 4-tuple of the connection that a segment with this header belongs to.
    fn tuple(&self, header: &TcpHeader) -> FourTuple {
        let (local_port, remote_port) = (header.dst_port, header.src_port);
        FourTuple { local: self.dst, local_port, remote: self.src, remote_port }
    }
}

impl Stack {
    /// See [`Stack::input_next`]: `frames` are those behind `frame`.
    #[inline]
    pub(super) fn receive(
        &mut self,
        now: Instant,
        frame: Mbuf,
        frames: &mut Peekable<impl Iterator<Item = Mbuf>>,
    ) {
        self.counters.rx_frames += 1;
        if let Err(frame) = self.take_predicted(now, frame, frames.peek())
            && let Err(frame) = self.take_predicted_sack(now, frame)
        {
            self.receive_unpredicted(now, frame, frames);
        }
    }

    /// The general way, which takes any frame.
    fn receive_unpredicted(
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
            // No host has a group address (IEEE 802.3 section 3.2.3): an answer would go to the group.
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
                let next = header.seq + (end - payload_at);
                let may_continue = end > payload_at
                    && frame.segment_count() <= MAX_BUFFERS
                    && frames.peek().is_some_and(|frame| gro::may_continue(frame, tcp_at, next))
                    && self.is_next(&origin, &header);
                let pattern =
                    may_continue.then(|| Pattern::new(&head[..payload_at], ip, [ethernet.bytes, tcp_at]));
                // Ethernet pads short frames: bytes behind the packet are not payload.
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
            Some(Class::Slow { ip }) => self.slow(now, &ethernet, ip, &frame),
        }
    }

    /// Classifies the frame; `None` if it was dropped and counted. `head` starts at the IP header.
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
        // TCP is between two hosts: segments to or from anything but a unicast address are dropped (RFC
        // 9293 MUST-57).
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

    /// Whether a segment is the next in order of its connection and carries nothing but payload.
    fn is_next(&mut self, origin: &SegmentOrigin, header: &TcpHeader) -> bool {
        let conn =
            self.connections.find_next(&origin.tuple(header)).and_then(|slot| self.connections.get(slot));
        header.ack.is_some()
            && Flags::PSH.contains(header.flags)
            && conn.is_some_and(|conn| conn.tcb.is_next(header.seq))
    }

    /// A TCP segment that passed all checks, for an address of ours; or several in order as one, with
    /// their number.
    fn segment_arrives(
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
        match self.with(now, slot, |tcb, ctx| tcb.on_segment(ctx, header, origin.ecn, (payload, segments))) {
            None | Some(Verdict::Done) => {}
            Some(Verdict::Reset(reset)) => self.queue_answer(origin.mac, tuple, reset),
            Some(Verdict::Reopen) => self.reopen(now, slot, tuple, header),
        }
    }

    /// A new SYN for the 4-tuple of a connection in TIME-WAIT, which is replaced if a listener takes the
    /// new one. Otherwise it stays: its peer may have to send its FIN again. No cookie is sent when the
    /// backlog is full, since its sequence number could be one that the old connection used (RFC 9293
    /// section 3.6.1); the SYN comes again.
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
        // The slot that has just been freed.
        if let Some(id) = self.reserve() {
            self.accept(now, id, (listener, tuple, next_hop), syn, params);
        }
    }

    /// A segment of no connection.
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
                // A RST would refuse the connection, and a segment that occupies sequence numbers comes
                // again.
                self.counters.rx_no_connection += 1;
                return;
            }
        }
        self.counters.rx_no_connection += 1;
        if let Some(reset) = header.rst_reply(payload.len()) {
            self.queue_answer(origin.mac, tuple, reset);
        }
    }

    /// A SYN for a port with a listener (RFC 9293 section 3.10.7.2).
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
        let place = self.routes.next_hop(&tuple.local, &tuple.remote).zip(self.reserve());
        let Some((next_hop, id)) = place else {
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
        let params = self.open_params(now, &tuple);
        self.accept(now, id, (listener, tuple, next_hop), syn, params);
    }

    /// A connection that its listener has counted as half-open.
    fn accept(
        &mut self,
        now: Instant,
        id: ConnId,
        (listener, tuple, next_hop): (ListenerId, FourTuple, IpAddress),
        syn: &TcpHeader,
        params: OpenParams,
    ) {
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

    /// Sends a SYN-ACK that no control block remembers.
    fn answer_with_cookie(&mut self, now: Instant, mac: EthernetAddress, tuple: FourTuple, syn: &TcpHeader) {
        let mut syn = syn.clone();
        syn.options.mss.get_or_insert_with(|| default_peer_mss(&tuple.remote));
        SynCookies::forget_the_rest(&self.config.tcp, &mut syn);
        let iss = self.syn_cookies.make(now, &tuple, &syn);
        let clock = || timestamp(self.secrets.timestamp_offset(&tuple), now);
        let mut syn_ack = syn_ack(&self.config.tcp, &syn, (iss, self.own_mss(&tuple.remote)), clock);
        SynCookies::mark(&mut syn_ack, &syn);
        self.counters.tx_syn_cookies += 1;
        self.queue_answer(mac, tuple, syn_ack);
    }

    /// The ACK of a SYN-ACK with a cookie; `syn` is what the cookie remembers of the SYN.
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
        let Some((next_hop, id)) = place.filter(|_| self.listeners.admits(now, listener, &tuple.remote))
        else {
            // As if the ACK was lost: the peer's first data segment acknowledges again.
            self.counters.rx_syn_dropped += 1;
            return;
        };
        self.counters.rx_syn_cookies += 1;
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

    fn queue_answer(&mut self, dst_mac: EthernetAddress, tuple: FourTuple, header: TcpHeader) {
        // The queue is bounded: any host can send such segments. A peer without an answer tries again.
        if self.answers.len() < self.answers.capacity() {
            self.answers.push_back(Answer { dst_mac, tuple, header });
        }
    }

    /// A frame for the slow path.
    fn slow(&mut self, now: Instant, ethernet: &EthernetHeader, ip: Option<IpHeader>, frame: &Mbuf) {
        self.counters.rx_slow += 1;
        let copy = self.slow_path.frame();
        let packet_at = ethernet::HEADER_BYTES;
        let bytes = ip.map_or(frame.len() - ethernet.bytes, |ip| ip.total_bytes);
        copy.resize(packet_at + bytes, 0);
        ethernet::emit(copy, ethernet.dst, ethernet.src, None, ethernet.ethertype);
        frame.copy_to(ethernet.bytes, &mut copy[packet_at..]);
        if let Some(ip) = &ip
            && frame.rx_checksum() == Checksum::Partial
        {
            fill_in_checksum(&mut copy[packet_at..], ip);
        }
        let packet = &copy[packet_at..];
        match ip {
            None if ethernet.ethertype == ethernet::ETHERTYPE_ARP => {
                let message = discovery::from_arp(packet, self.framing.mac, &self.routes);
                if let Some(message) = message
                    && !self.on_arp_or_ndp(now, &message)
                {
                    return;
                }
            }
            None => {}
            Some(IpHeader { src, dst, upper: Upper::Fragment(fragment), .. }) => {
                return self.fragment(now, ethernet, src, dst, &fragment);
            }
            Some(ip) => {
                let error = icmp_error::parse(packet, &ip);
                let message = match ip.dst {
                    IpAddress::Ipv6(_) => {
                        discovery::from_ndp(packet, ethernet.src, self.framing.mac, &self.routes)
                    }
                    IpAddress::Ipv4(_) => None,
                };
                if let Some(error) = error {
                    // Ours alone: smoltcp has no TCP connections.
                    return self.icmp_error(now, &ip.dst, &error);
                }
                if let Some(message) = message
                    && !self.on_arp_or_ndp(now, &message)
                {
                    return;
                }
            }
        }
        self.feed_smoltcp(now, ethernet.src);
    }

    /// Passes the frame in the slow path's buffer to smoltcp, and takes back the packets it reassembled.
    fn feed_smoltcp(&mut self, now: Instant, src_mac: EthernetAddress) {
        self.slow_path.input(now);
        let mut packet = std::mem::take(&mut self.scratch);
        loop {
            packet.clear();
            if !self.slow_path.reassembled(|bytes| packet.extend_from_slice(bytes)) {
                break;
            }
            let parsed = match packet.first().map(|first| first >> 4) {
                Some(4) => ip::parse_ipv4(&packet, packet.len()),
                _ => ip::parse_ipv6(&packet, packet.len()),
            };
            if let Ok(header) = parsed {
                self.reassembled(now, src_mac, &header, &packet);
            }
        }
        self.scratch = packet;
    }

    fn fragment(
        &mut self,
        now: Instant,
        ethernet: &EthernetHeader,
        src: IpAddress,
        dst: IpAddress,
        fragment: &ip::Fragment,
    ) {
        let piece = &self.slow_path.filled()[ethernet::HEADER_BYTES..];
        let Some(whole) = self.reassembly.add(now, src, dst, fragment, piece) else { return };
        let mut packet = std::mem::take(&mut self.scratch);
        packet.clear();
        packet.extend_from_slice(whole);
        let parsed = match src {
            IpAddress::Ipv4(_) => ip::parse_ipv4(&packet, packet.len()),
            IpAddress::Ipv6(_) => ip::parse_ipv6(&packet, packet.len()),
        };
        match parsed {
            Ok(header) if matches!(header.upper, Upper::Whole { protocol: PROTOCOL_TCP, .. }) => {
                self.reassembled(now, ethernet.src, &header, &packet);
                self.scratch = packet;
            }
            Ok(_) => {
                let frame = self.slow_path.frame();
                frame.resize(ethernet::HEADER_BYTES, 0);
                ethernet::emit(frame, ethernet.dst, ethernet.src, None, ethernet.ethertype);
                frame.extend_from_slice(&packet);
                self.scratch = packet;
                self.feed_smoltcp(now, ethernet.src);
            }
            Err(_) => {
                self.counters.rx_malformed += 1;
                self.scratch = packet;
            }
        }
    }

    /// A TCP packet that came in fragments; from here on it is treated as any other.
    fn reassembled(&mut self, now: Instant, mac: EthernetAddress, ip: &IpHeader, packet: &[u8]) {
        let Upper::Whole { protocol: PROTOCOL_TCP, header_bytes } = ip.upper else { return };
        if !self.routes.is_ours(&ip.dst) || !self.may_be_peer(&ip.src) {
            self.counters.rx_not_ours += 1;
            return;
        }
        let tcp = &packet[header_bytes..ip.total_bytes];
        let mut sum = pseudo_header(&ip.src, &ip.dst, PROTOCOL_TCP, tcp.len());
        sum.add(tcp);
        if sum.finish() != 0 {
            self.counters.rx_bad_checksum += 1;
            return;
        }
        let Ok((header, tcp_bytes)) = TcpHeader::parse(tcp) else {
            self.counters.rx_malformed += 1;
            return;
        };
        // Without a buffer the packet is lost as on the wire, and comes again.
        let Some(payload) = self.copy_in(&tcp[tcp_bytes..]) else { return };
        self.counters.rx_reassembled += 1;
        self.segment_arrives(now, SegmentOrigin::new(mac, ip), &header, (payload, 1));
    }

    /// Copies bytes to as many buffers of the pool as they need.
    fn copy_in(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut chain = self.pool.alloc()?;
        let mut pieces = bytes.chunks(self.pool.data_bytes().max(1));
        if let Some(first) = pieces.next() {
            chain.append_slice(first).then_some(())?;
        }
        for piece in pieces {
            let mut next = self.pool.alloc()?;
            next.append_slice(piece).then_some(())?;
            chain.chain(next).ok()?;
        }
        Some(chain)
    }

    /// An ARP or neighbour discovery packet. Returns whether smoltcp may see it. It does not see
    /// requests for an address that is not ours (yet), nor probes and announcements: it does not answer
    /// those, or not as it should.
    fn on_arp_or_ndp(&mut self, now: Instant, message: &discovery::Message) -> bool {
        if let Some(heard) = &message.heard
            && self.neighbors.heard(now, heard)
        {
            self.connections.wake_waiting();
        }
        if let Some(queried) = &message.queried
            && let Some(Conflict { address, mac, lost }) = self.conflicts.on_queried(now, queried)
            // A conflict over an address that we keep can be dropped here: it is reported again if it
            // lasts.
            && (lost || self.takes_connections())
        {
            self.counters.address_conflicts += 1;
            self.events.push_back(Event::AddressConflict { address: address.into(), mac, lost });
            // Connections from a lost address find out when they are served.
            self.connections.wake_waiting();
        }
        self.conflicts.is_usable(&message.target) && !message.anonymous
    }

    /// An ICMP error about a segment that may be ours. Anybody may have sent it: only an error that
    /// quotes a segment in flight is believed (RFC 5927 section 4).
    fn icmp_error(&mut self, now: Instant, to: &IpAddress, error: &IcmpError) {
        let slot = self.connections.find(&error.tuple).filter(|_| error.tuple.local == *to);
        let heeded = slot.and_then(|slot| {
            self.with(now, slot, |tcb, ctx| match error.kind {
                IcmpErrorKind::TooBig { mtu } => {
                    tcb.on_packet_too_big(ctx, error.seq, mss(&error.tuple.remote, mtu))
                }
                _ if !tcb.covers_outstanding(error.seq) => false,
                // Only while connecting: later it may be transient, or forged (RFC 5927 section 5). A
                // soft error counts only once our SYN was sent again (RFC 5461 section 4.2).
                IcmpErrorKind::Hard | IcmpErrorKind::Soft
                    if tcb.state() == State::SynSent
                        && (error.kind == IcmpErrorKind::Hard || tcb.has_sent_syn_again()) =>
                {
                    tcb.unreachable(ctx);
                    true
                }
                IcmpErrorKind::Hard | IcmpErrorKind::Soft => {
                    ctx.counters.icmp_soft_errors += 1;
                    true
                }
            })
        });
        self.counters.icmp_ignored += u64::from(heeded != Some(true));
    }
}

/// Completes the TCP or UDP checksum of a packet whose field holds the pseudo-header sum.
fn fill_in_checksum(packet: &mut [u8], ip: &IpHeader) {
    let Upper::Whole { protocol, header_bytes } = ip.upper else { return };
    let at = match protocol {
        PROTOCOL_TCP => frame::TCP_CHECKSUM_AT,
        PROTOCOL_UDP => frame::UDP_CHECKSUM_AT,
        _ => return,
    };
    let payload = &mut packet[header_bytes..ip.total_bytes];
    let Some(field) = payload.get_mut(at..at + 2) else { return };
    field.fill(0);
    let mut sum = pseudo_header(&ip.src, &ip.dst, protocol, payload.len());
    sum.add(payload);
    payload[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
}
