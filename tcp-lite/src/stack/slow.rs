//! Handles frames other than whole TCP segments, for example ARP, neighbour discovery, ICMP, and fragments.

use dp::{Checksum, Mbuf};

use super::Stack;
use super::opening::mss;
use super::receive::SegmentOrigin;
use crate::CloseReason;
use crate::address_conflict::Conflict;
use crate::checksum::pseudo_header;
use crate::ethernet::{self, EthernetHeader};
use crate::facade::{EthernetAddress, Instant, IpAddress};
use crate::icmp_error::{self, IcmpError, IcmpErrorKind};
use crate::ip::{self, IpHeader, PROTOCOL_TCP, PROTOCOL_UDP, Upper};
use crate::tcp::State;
use crate::tcp::header::TcpHeader;
use crate::{Event, discovery, frame};

impl Stack {
    /// Handles a frame for the slow path.
    pub(super) fn slow(
        &mut self,
        now: Instant,
        ethernet: &EthernetHeader,
        ip: Option<IpHeader>,
        frame: Mbuf,
    ) {
        let Some(frame) = self.take_datagram(ethernet, ip.as_ref(), frame) else { return };
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
        let error = ip.as_ref().and_then(|ip| icmp_error::parse(packet, ip));
        if let Some((error, ip)) = error.zip(ip.as_ref()) {
            // The error is not passed to smoltcp, which has no TCP connections.
            return self.icmp_error(now, &ip.dst, &error, frame);
        }
        if let Some(ip) = &ip {
            self.on_membership_query(now, ip);
        }
        if let Some(leader) = self.other_leader() {
            return self.hand_over(leader, frame);
        }
        let packet = &self.slow_path.filled()[packet_at..];
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
                let message = match ip.dst {
                    IpAddress::Ipv6(_) => {
                        discovery::from_ndp(packet, ethernet.src, self.framing.mac, &self.routes)
                    }
                    IpAddress::Ipv4(_) => None,
                };
                if let Some(message) = message
                    && !self.on_arp_or_ndp(now, &message)
                {
                    return;
                }
            }
        }
        self.feed_smoltcp(now, ethernet.src);
    }

    /// Passes the frame in the slow path's buffer to smoltcp, and handles the TCP packets that smoltcp
    /// returns.
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
            Ok(header) if self.is_datagram(&header, &packet) => {
                self.counters.rx_datagram_dropped += 1;
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

    /// Handles a TCP packet that reassembly or smoltcp has returned, like any other TCP packet.
    fn reassembled(&mut self, now: Instant, mac: EthernetAddress, ip: &IpHeader, packet: &[u8]) {
        let Upper::Whole { protocol: PROTOCOL_TCP, header_bytes } = ip.upper else { return };
        if !self.routes.is_ours(&ip.dst) || !self.may_be_peer(&ip.src) {
            self.counters.rx_not_ours += 1;
            return;
        }
        let tcp = &packet[header_bytes..ip.total_bytes];
        let mut checksum = pseudo_header(&ip.src, &ip.dst, PROTOCOL_TCP, tcp.len());
        checksum.add(tcp);
        if checksum.finish() != 0 {
            self.counters.rx_bad_checksum += 1;
            return;
        }
        let Ok((header, tcp_bytes)) = TcpHeader::parse(tcp) else {
            self.counters.rx_malformed += 1;
            return;
        };
        let origin = SegmentOrigin::new(mac, ip);
        if let Some(owner) = self.elsewhere(&origin.tuple(&header)) {
            return self.hand_over_reassembled(owner, mac, ip, packet);
        }
        // If no buffer is free, the packet is dropped, and the peer sends it again.
        let Some(payload) = self.copy_in(&tcp[tcp_bytes..]) else { return };
        self.counters.rx_reassembled += 1;
        self.segment_arrives(now, origin, &header, (payload, 1));
    }

    /// Hands a TCP packet that reassembly or smoltcp has returned to another stack of the host, as one frame.
    fn hand_over_reassembled(&mut self, owner: u8, mac: EthernetAddress, ip: &IpHeader, packet: &[u8]) {
        let ethertype = match ip.src {
            IpAddress::Ipv4(_) => ethernet::ETHERTYPE_IPV4,
            IpAddress::Ipv6(_) => ethernet::ETHERTYPE_IPV6,
        };
        let mut head = [0; ethernet::HEADER_BYTES + ethernet::TAG_BYTES];
        let vlan = self.framing.vlan;
        let bytes = ethernet::HEADER_BYTES + vlan.map_or(0, |_| ethernet::TAG_BYTES);
        ethernet::emit(&mut head, self.framing.mac, mac, vlan, ethertype);
        // If no buffer is free, the packet is dropped, and the peer sends it again.
        let Some(packet) = self.copy_in(&packet[..ip.total_bytes]) else { return };
        let Some(mut frame) = self.copy_in(&head[..bytes]) else { return };
        if frame.chain(packet).is_ok() {
            self.hand_over_verified(owner, frame);
        }
    }

    /// Copies `bytes` into as many buffers of the pool as are needed; `None` if the pool has too few buffers.
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

    /// Handles an ARP or neighbour discovery packet. Returns whether the packet is to be passed to smoltcp. A
    /// packet about an address of ours that we may not use now is not passed on. Probes, and ARP packets and
    /// queries that another host sends from one of our addresses, are not passed on either, because smoltcp
    /// answers them wrongly or not at all.
    fn on_arp_or_ndp(&mut self, now: Instant, message: &discovery::Message) -> bool {
        if let Some(heard) = &message.heard {
            if self.neighbors.heard(now, heard) {
                self.wake_waiting(now);
            }
            if let Some(member) = &mut self.member {
                member.publish(*heard);
            }
        }
        if let Some(queried) = &message.queried
            && let Some(Conflict { address, mac, lost }) = self.conflicts.on_queried(now, queried)
            // The report of a conflict about an address that we keep may be dropped. If the conflict lasts,
            // it is reported again.
            && (lost || self.takes_connections())
        {
            self.counters.address_conflicts += 1;
            self.events.push_back(Event::AddressConflict { address: address.into(), mac, lost });
            // Connections from a lost address end when the stack serves them.
            self.connections.wake_waiting();
        }
        self.conflicts.is_usable(&message.target) && !message.anonymous
    }

    /// Handles an ICMP error about a segment that may be ours. Any host may have sent the error, so the stack
    /// believes the error only if it quotes a segment or a path MTU probe in flight (RFC 5927 section 4).
    fn icmp_error(&mut self, now: Instant, to: &IpAddress, error: &IcmpError, frame: Mbuf) {
        if let Some(owner) = self.elsewhere(&error.tuple) {
            return self.hand_over(owner, frame);
        }
        let slot = self.connections.find(&error.tuple).filter(|_| error.tuple.local == *to);
        let heeded = slot.and_then(|slot| {
            self.with(now, slot, |tcb, ctx| match error.kind {
                IcmpErrorKind::TooBig { mtu } => {
                    tcb.on_packet_too_big(ctx, error.seq, mss(&error.tuple.remote, mtu))
                }
                _ if !tcb.covers_outstanding(error.seq) => false,
                // The error ends the connection only while we connect. Later, the error may be transient or
                // forged (RFC 5927 section 5). A soft error counts only after our SYN was retransmitted (RFC
                // 5461 section 4.2).
                IcmpErrorKind::Hard | IcmpErrorKind::Soft
                    if tcb.state() == State::SynSent
                        && (error.kind == IcmpErrorKind::Hard || tcb.has_sent_syn_again()) =>
                {
                    tcb.unreachable(ctx, CloseReason::Unreachable);
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
    let mut checksum = pseudo_header(&ip.src, &ip.dst, protocol, payload.len());
    checksum.add(payload);
    payload[at..at + 2].copy_from_slice(&checksum.finish().to_be_bytes());
}
