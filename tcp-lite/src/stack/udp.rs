//! UDP datagrams of the user, and multicast groups. The stack passes datagrams to open ports to its user, and
//! sends the datagrams that the user writes.
//!
//! If several stacks share a host ([`Member`](crate::Member)), each stack has its own open ports, and its own
//! groups. A datagram goes to the stack that receives it, if this stack has the port open. Otherwise the
//! stack hands the datagram over to the first of the other stacks that has the port open. So a user that
//! opens a port on one stack gets all datagrams to the port there. This stack also joins the groups. Each
//! stack reports its own groups; a query of a router is answered by the stack that receives it, and by the
//! leader.

use std::net::{IpAddr, SocketAddr};

use dp::{BURST, Mbuf};

use super::Stack;
use super::udp_state::Udp;
use crate::checksum::pseudo_header;
use crate::ethernet::{self, EthernetHeader, multicast_mac};
use crate::facade::{EthernetAddress, Instant, IpAddress, IpCidr, Ipv6Address};
use crate::frame;
use crate::ip::{IPV4_BYTES, IPV6_BYTES, IpHeader, PROTOCOL_UDP, Upper};
use crate::membership::{self, Groups, JoinGroupError, Membership};
use crate::neighbor::Resolution;
use crate::udp::{self, DatagramHeader, OpenUdpError, Outbox, UDP_BYTES, UdpHeader};
use crate::{SendDatagramError, event::Datagram};

/// Maximum number of datagrams that wait for [`Stack::next_datagram`]. An engine receives up to four bursts
/// before it handles events.
const MAX_EVENTS: usize = 4 * BURST;

/// Where a frame with a datagram is sent.
enum Hop {
    /// The members of a group. No query is needed.
    Group(EthernetAddress),
    Neighbor(IpAddress),
}

impl Stack {
    /// Passes the UDP datagrams that arrive at `port` to the user:
    /// [`Event::Datagram`](crate::Event::Datagram) announces each datagram, and
    /// [`next_datagram`](Self::next_datagram) returns it. The datagrams are those to our addresses and to
    /// [joined](Self::join_group) groups, but not broadcasts. Packets with IPv4 options or IPv6 extension
    /// headers, fragments and invalid datagrams are dropped and counted
    /// ([`StackCounters::rx_datagram_dropped`](crate::StackCounters::rx_datagram_dropped)). A checksum of 0
    /// counts as valid, also with IPv6 (RFC 6935). ICMP errors answer datagrams to ports that are not open.
    ///
    /// The first call of this function, [`join_group`](Self::join_group) or
    /// [`send_datagram`](Self::send_datagram) allocates the memory for datagrams.
    ///
    /// # Errors
    /// [`OpenUdpError::InUse`] if the stack has the port open already, or the port is 0.
    /// [`OpenUdpError::Full`] if [`MAX_UDP_PORTS`](crate::MAX_UDP_PORTS) ports are open.
    pub fn open_udp(&mut self, port: u16) -> Result<(), OpenUdpError> {
        self.events.reserve_datagrams(MAX_EVENTS);
        let udp = self.udp();
        if port == 0 || udp.ports.contains(&port) {
            return Err(OpenUdpError::InUse);
        }
        *udp.ports.iter_mut().find(|place| **place == 0).ok_or(OpenUdpError::Full)? = port;
        self.publish_ports();
        Ok(())
    }

    /// Removes and returns the oldest datagram; `None` if no datagram waits. While the maximum number of
    /// datagrams waits, further datagrams are dropped and counted.
    pub fn next_datagram(&mut self) -> Option<Datagram> {
        self.events.pop_datagram()
    }

    /// Closes a UDP port. The datagrams that wait as events are still passed to the user. Does nothing if the
    /// port is not open.
    pub fn close_udp(&mut self, port: u16) {
        if let Some(udp) = &mut self.udp {
            udp.ports.iter_mut().filter(|open| **open == port).for_each(|open| *open = 0);
            self.publish_ports();
        }
    }

    /// Joins a multicast group, so that datagrams to this group and an open port are passed to the user.
    /// Joins are counted: the group is left after as many calls of [`leave_group`](Self::leave_group). The
    /// stack reports its groups by IGMP version 2 or MLD version 1, and answers the queries of routers. The
    /// port has to receive frames to the group's Ethernet address, which is the caller's task
    /// ([`groups`](Self::groups), `dp::Port::set_groups`).
    ///
    /// # Errors
    /// [`JoinGroupError::NotMulticast`] if the address is not a multicast address. [`JoinGroupError::Full`]
    /// if the stack has joined [`MAX_GROUPS`](crate::MAX_GROUPS) other groups.
    pub fn join_group(&mut self, now: Instant, group: IpAddr) -> Result<(), JoinGroupError> {
        self.advance(now);
        let (now, group) = (self.now, IpAddress::from(group.to_canonical()));
        self.udp();
        let Self { udp: Some(udp), secrets, .. } = self else { return Ok(()) };
        if udp.groups.join(now, group, |most| secrets.report_delay(now, &group, most))? {
            self.tell_routers(group, Membership::Report);
        }
        Ok(())
    }

    /// Leaves a multicast group: see [`join_group`](Self::join_group). Does nothing if the group is not
    /// joined.
    pub fn leave_group(&mut self, now: Instant, group: IpAddr) {
        self.advance(now);
        let group = IpAddress::from(group.to_canonical());
        if let Some(udp) = &mut self.udp
            && udp.groups.leave(&group)
        {
            self.tell_routers(group, Membership::Leave);
        }
    }

    /// The multicast groups that the stack has joined.
    pub fn groups(&self) -> impl Iterator<Item = IpAddr> {
        self.udp.iter().flat_map(|udp| udp.groups.addresses()).map(IpAddr::from)
    }

    /// Maximum number of payload bytes of a datagram to `remote`. The stack sends no fragments.
    pub fn datagram_mtu(&self, remote: IpAddr) -> usize {
        let headers = udp::header_bytes(&remote.to_canonical().into());
        usize::from(self.config.mtu).saturating_sub(headers).min(self.pool.data_bytes())
    }

    /// The source address of datagrams to `remote`: our address on the path to `remote` or, for a multicast
    /// group, our first address of the same family, if possible not a link-local address. `None` if there is
    /// no path, or no such address.
    pub fn datagram_source(&self, remote: IpAddr) -> Option<IpAddr> {
        let remote = IpAddress::from(remote.to_canonical());
        let source = match remote.is_multicast() {
            true => self.routes.group_source(&remote),
            false => self.routes.path(&remote).map(|path| path.local),
        };
        source.map(Into::into)
    }

    /// Sends a UDP datagram with `payload_bytes` bytes of payload. The local port needs not be open.
    ///
    /// `fill` writes the payload. Its arguments are the whole IP packet, whose headers are written, and the
    /// offset of the payload. `fill` has to write every byte of the payload, which may show bytes of an
    /// earlier frame otherwise. If `fill` fails, nothing is sent.
    ///
    /// [`transmit`](Self::transmit) returns the frame. If the Ethernet address of the next hop is not known,
    /// the datagram waits for it for at most 3 s, with at most 64 datagrams of the whole stack. Further
    /// datagrams are refused until a neighbour answers, but for at most 250 ms. A datagram that waits for too
    /// long, the oldest one if there are too many, and any datagram while the port has no link are dropped
    /// and counted
    /// ([`StackCounters::tx_datagram_dropped`](crate::StackCounters::tx_datagram_dropped)). A datagram to one
    /// of our own addresses is sent to the port like any other datagram
    /// ([`StackConfig::loopback`](crate::StackConfig::loopback)).
    ///
    /// # Errors
    /// [`SendDatagramError::NoAddress`] if the source is not one of our addresses, or is still being probed.
    /// [`SendDatagramError::NoRoute`] if there is no path to the destination, or if the destination can be
    /// neither a peer nor a group. [`SendDatagramError::TooLong`] if the payload is longer than
    /// [`datagram_mtu`](Self::datagram_mtu). [`SendDatagramError::NoBuffer`] if no packet buffer is free, or
    /// if too many datagrams wait for `transmit`. [`SendDatagramError::Unresolved`] if too many datagrams
    /// wait for Ethernet addresses. [`SendDatagramError::Fill`] if `fill` fails.
    pub fn send_datagram<E>(
        &mut self,
        now: Instant,
        header: &DatagramHeader,
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8], usize) -> Result<(), E>,
    ) -> Result<(), SendDatagramError<E>> {
        self.advance(now);
        let [local, remote] = [header.local, header.remote].map(|it| IpAddress::from(it.ip().to_canonical()));
        if !self.routes.is_ours(&local) || !self.conflicts.is_usable(&local) {
            return Err(SendDatagramError::NoAddress);
        }
        let hop = self.hop(&local, &remote).ok_or(SendDatagramError::NoRoute)?;
        let max = self.datagram_mtu(header.remote.ip());
        if payload_bytes > max {
            return Err(SendDatagramError::TooLong { max });
        }
        if !self.udp().outbox.has_room() {
            return Err(SendDatagramError::NoBuffer);
        }
        let (now, link_up) = (self.now, self.link_up);
        if let Hop::Neighbor(next_hop) = hop
            && !self.udp().outbox.may_wait(now)
            && link_up
            && self.neighbors.resolve(now, next_hop) == Resolution::Pending
        {
            return Err(SendDatagramError::Unresolved);
        }
        let ethernet_bytes = ethernet::header_bytes(self.framing.vlan);
        let payload_at = udp::header_bytes(&remote);
        let mut frame = self
            .pool
            .alloc_filled(ethernet_bytes + payload_at, payload_bytes)
            .ok_or(SendDatagramError::NoBuffer)?;
        let head = frame.head_mut().ok_or(SendDatagramError::NoBuffer)?;
        let (ethernet, packet) = head.split_at_mut(ethernet_bytes);
        udp::emit(packet, header, (&local, &remote));
        fill(packet, payload_at).map_err(SendDatagramError::Fill)?;
        if header.checksum {
            udp::fill_in_checksum(&mut packet[payload_at - UDP_BYTES..], (&local, &remote));
        }
        let ethertype = match remote {
            IpAddress::Ipv4(_) => ethernet::ETHERTYPE_IPV4,
            IpAddress::Ipv6(_) => ethernet::ETHERTYPE_IPV6,
        };
        let resolution = match hop {
            Hop::Group(mac) => Resolution::Known(mac),
            Hop::Neighbor(next_hop) => self.neighbors.resolve(self.now, next_hop),
        };
        let to = if let Resolution::Known(mac) = resolution { mac } else { EthernetAddress::default() };
        ethernet::emit(ethernet, to, self.framing.mac, self.framing.vlan, ethertype);
        self.queue_datagram(hop, resolution, frame);
        Ok(())
    }

    /// Whether datagrams wait for [`transmit`](Self::transmit), or for the Ethernet address of their next
    /// hop.
    pub fn has_unsent_datagrams(&self) -> bool {
        self.udp.as_ref().is_some_and(|udp| !udp.outbox.is_empty())
    }

    /// Queues a datagram whose headers are written, or drops it.
    fn queue_datagram(&mut self, hop: Hop, resolution: Resolution, frame: Mbuf) {
        let (now, link_up) = (self.now, self.link_up);
        let outbox = &mut self.udp().outbox;
        let is_nothing_dropped = match (resolution, hop) {
            _ if !link_up => false,
            (Resolution::Known(_), _) => outbox.push_ready(frame),
            (Resolution::Pending, Hop::Neighbor(next_hop)) => outbox.push_waiting(now, next_hop, frame),
            (Resolution::Pending | Resolution::Failed, _) => false,
        };
        self.counters.tx_datagram_dropped += u64::from(!is_nothing_dropped);
    }

    /// The next hop of datagrams from `local` to `remote`; `None` if there is no path.
    fn hop(&self, local: &IpAddress, remote: &IpAddress) -> Option<Hop> {
        if remote.is_multicast() {
            return (local.version() == remote.version()).then(|| Hop::Group(multicast_mac(remote)));
        }
        let next_hop = self.routes.next_hop(local, remote).filter(|_| self.may_be_peer(remote))?;
        Some(Hop::Neighbor(next_hop))
    }

    /// The state of datagrams, which is created at the first use.
    fn udp(&mut self) -> &mut Udp {
        let Self { udp, pool, .. } = self;
        udp.get_or_insert_with(|| {
            let outbox = Outbox::new(pool.capacity());
            Box::new(Udp { ports: Default::default(), groups: Groups::default(), outbox })
        })
    }

    /// Tells the other stacks of the host which ports this stack has open.
    fn publish_ports(&mut self) {
        if let (Some(udp), Some(member)) = (&self.udp, &self.member) {
            member.publish_ports(&udp.ports);
        }
    }

    // ---- received datagrams ----

    /// Takes a frame with a UDP datagram to an open port: passes the datagram to the user, hands the frame to
    /// another stack of the host, or drops and counts it. Returns any other frame.
    #[inline]
    pub(super) fn take_datagram(
        &mut self,
        ethernet: &EthernetHeader,
        ip: Option<&IpHeader>,
        frame: Mbuf,
    ) -> Option<Mbuf> {
        match ip {
            Some(ip) if self.udp.is_some() || self.member.is_some() => {
                self.take_datagram_of(ethernet, ip, frame)
            }
            _ => Some(frame),
        }
    }

    fn take_datagram_of(&mut self, ethernet: &EthernetHeader, ip: &IpHeader, frame: Mbuf) -> Option<Mbuf> {
        let Upper::Whole { protocol: PROTOCOL_UDP, header_bytes } = ip.upper else { return Some(frame) };
        let mut header = [0; UDP_BYTES];
        let is_whole = header_bytes + UDP_BYTES <= ip.total_bytes
            && frame.copy_to(ethernet.bytes + header_bytes, &mut header) == UDP_BYTES;
        if !is_whole {
            return Some(frame);
        }
        let port = udp::dst_port(&header);
        if !self.has_port(port) {
            // Only the leader answers broadcasts.
            let is_broadcast = self.routes.is_broadcast(&ip.dst);
            let owner = self.member.as_ref().filter(|_| !is_broadcast).and_then(|it| it.udp_owner(port));
            let Some(owner) = owner else { return Some(frame) };
            self.hand_over(owner, frame);
            return None;
        }
        match self.check_datagram(ethernet, ip, (header_bytes, &header), frame) {
            Some(datagram) => {
                self.counters.rx_datagrams += 1;
                self.events.push_datagram(datagram);
            }
            None => self.counters.rx_datagram_dropped += 1,
        }
        None
    }

    /// Whether a reassembled packet is a datagram to a port that is open on any stack of the host.
    pub(super) fn is_datagram(&self, ip: &IpHeader, packet: &[u8]) -> bool {
        let Upper::Whole { protocol: PROTOCOL_UDP, header_bytes } = ip.upper else { return false };
        let header = packet.get(header_bytes..).and_then(|header| header.first_chunk());
        let member = self.member.as_ref();
        header.map(udp::dst_port).is_some_and(|port| {
            self.has_port(port) || member.is_some_and(|member| member.udp_owner(port).is_some())
        })
    }

    fn has_port(&self, port: u16) -> bool {
        port != 0 && self.udp.as_ref().is_some_and(|udp| udp.ports.contains(&port))
    }

    /// Checks a datagram to an open port; `None` if the datagram has to be dropped. `header_bytes` is the
    /// length of the IP header with its options or extension headers.
    fn check_datagram(
        &mut self,
        ethernet: &EthernetHeader,
        ip: &IpHeader,
        (header_bytes, header): (usize, &[u8; UDP_BYTES]),
        mut frame: Mbuf,
    ) -> Option<Datagram> {
        let fixed = if matches!(ip.dst, IpAddress::Ipv6(_)) { IPV6_BYTES } else { IPV4_BYTES };
        // `classify` passes only packets to usable addresses of ours, to groups, and broadcasts.
        let is_for_us = match ip.dst.is_multicast() {
            true => self.udp.as_ref().is_some_and(|udp| udp.groups.contains(&ip.dst)),
            false => ethernet.dst == self.framing.mac && !self.routes.is_broadcast(&ip.dst),
        };
        if header_bytes != fixed || !is_for_us || !self.may_be_peer(&ip.src) {
            return None;
        }
        let udp = UdpHeader::parse(header, ip.total_bytes - header_bytes)?;
        let udp_at = ethernet.bytes + header_bytes;
        let checksum_fits = || {
            let pseudo = || pseudo_header(&ip.src, &ip.dst, PROTOCOL_UDP, 0);
            frame::checksum_fits(&frame, udp_at, udp.bytes, pseudo)
        };
        // A port may find a missing checksum wrong.
        if udp.has_checksum && !checksum_fits() {
            return None;
        }
        if self.events.len() >= self.config.limits.events || self.events.datagrams() >= MAX_EVENTS {
            return None;
        }
        let (payload_at, end) = (udp_at + UDP_BYTES, udp_at + udp.bytes);
        frame.truncate(end);
        if frame.head().len() < payload_at {
            // The headers are spread over several buffers.
            frame = frame.deep_copy(&self.pool).filter(|copy| copy.head().len() >= payload_at)?;
        }
        Some(Datagram {
            local: SocketAddr::new(ip.dst.into(), udp.dst_port),
            remote: SocketAddr::new(ip.src.into(), udp.src_port),
            frame,
            ip: ethernet.bytes..end,
            payload: payload_at..end,
        })
    }

    // ---- times and changes ----

    /// Called when the Ethernet address of a neighbour may have become known, or its queries have failed.
    pub(super) fn wake_waiting(&mut self, now: Instant) {
        self.connections.wake_waiting();
        let Self { udp: Some(udp), neighbors, counters, .. } = self else { return };
        let outbox = &mut udp.outbox;
        for _ in 0..outbox.waiting() {
            let Some(waiting) = outbox.pop_waiting() else { break };
            let is_kept = match neighbors.resolve(now, waiting.next_hop) {
                Resolution::Known(mac) => {
                    waiting.addressed_to(mac).is_some_and(|frame| outbox.push_ready(frame))
                }
                Resolution::Pending => {
                    outbox.return_waiting(waiting);
                    true
                }
                Resolution::Failed => false,
            };
            counters.tx_datagram_dropped += u64::from(!is_kept);
        }
    }

    /// The part of [`Stack::poll`] for datagrams and groups.
    pub(super) fn poll_udp(&mut self, now: Instant) {
        let Some(udp) = &mut self.udp else { return };
        self.counters.tx_datagram_dropped += udp.outbox.expire(now);
        while let Some(group) = self.udp.as_mut().and_then(|udp| udp.groups.next_report(now)) {
            self.tell_routers(group, Membership::Report);
        }
    }

    /// The next time at which [`poll_udp`](Self::poll_udp) has something to do.
    pub(super) fn next_udp_deadline(&self) -> Option<Instant> {
        let udp = self.udp.as_ref()?;
        [udp.outbox.next_deadline(), udp.groups.next_deadline()].into_iter().flatten().min()
    }

    /// Called when the link of the port comes up or goes away. Without a link, datagrams are dropped, as the
    /// network would drop them.
    pub(super) fn on_link_for_udp(&mut self, now: Instant, up: bool) {
        let Self { udp: Some(udp), secrets, counters, .. } = self else { return };
        match up {
            true => udp.groups.on_link_up(now, |group, most| secrets.report_delay(now, group, most)),
            false => counters.tx_datagram_dropped += udp.outbox.clear(),
        }
    }

    // ---- membership ----

    /// Schedules the reports that a packet demands, if the packet is a query for groups.
    pub(super) fn on_membership_query(&mut self, now: Instant, ip: &IpHeader) {
        let Self { udp: Some(udp), secrets, slow_path, .. } = self else { return };
        let packet = &slow_path.filled()[ethernet::HEADER_BYTES..];
        if let Some(query) = membership::parse_query(packet, ip) {
            udp.groups.queried(now, &query, |group, most| secrets.report_delay(now, group, most));
        }
    }

    /// Sends a message about a group. The message is dropped if no buffer is free, or if we have no usable
    /// IPv4 address. The next query asks for another report.
    fn tell_routers(&mut self, group: IpAddress, kind: Membership) {
        if !membership::is_reported(&group) {
            return;
        }
        let usable = |address: &IpAddress| {
            membership::may_be_source(&group, address) && self.conflicts.is_usable(address)
        };
        let source = self.routes.addresses().iter().map(IpCidr::address).find(usable);
        // A host without a link-local address reports from the unspecified address (RFC 3590).
        let without = || matches!(group, IpAddress::Ipv6(_)).then_some(Ipv6Address::UNSPECIFIED.into());
        let Some(source) = source.or_else(without) else { return };
        let vlan = self.framing.vlan;
        let ethernet_bytes = ethernet::header_bytes(vlan);
        let Some(mut frame) = self.pool.alloc() else { return };
        let Some(room) = frame.append(ethernet_bytes + membership::MAX_MESSAGE_BYTES) else { return };
        let (ethernet, packet) = room.split_at_mut(ethernet_bytes);
        let ethertype = match group {
            IpAddress::Ipv4(_) => ethernet::ETHERTYPE_IPV4,
            IpAddress::Ipv6(_) => ethernet::ETHERTYPE_IPV6,
        };
        let to = multicast_mac(&membership::destination(&group, kind));
        ethernet::emit(ethernet, to, self.framing.mac, vlan, ethertype);
        if let Some(bytes) = membership::emit(packet, source, group, kind) {
            frame.truncate(ethernet_bytes + bytes);
            self.slow_path.queue(frame);
        }
    }
}
