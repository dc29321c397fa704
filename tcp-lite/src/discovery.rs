//! ARP (RFC 826) and neighbour discovery (RFC 4861) packets. This module parses received packets for the
//! neighbour table and for conflict detection, and writes our queries. It also writes our probes,
//! announcements and answers to probes (RFC 5227, RFC 4862 section 5.4).
//!
//! smoltcp answers ordinary queries for our addresses; it does not answer probes.

use crate::ethernet::{self, multicast_mac};
use crate::facade::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol,
    Ipv4Address, Ipv6Address, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, phy,
};
use crate::route::Routes;

/// What a packet says about one neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) ip: IpAddress,
    /// The neighbour's Ethernet address; `None` if the packet does not change the known address. An answer to
    /// a unicast query need not repeat the address (RFC 4861 section 7.2.4).
    pub(crate) mac: Option<EthernetAddress>,
    /// True if the neighbour table should create an entry for the neighbour: the packet is about one of our
    /// addresses, so the neighbour will soon send us packets.
    pub(crate) creates: bool,
    /// True if the address in the packet may replace a different known address.
    pub(crate) overrides: bool,
    /// True if the packet shows that the neighbour is reachable now.
    pub(crate) confirms: bool,
}

/// Maximum length of a query in bytes: a tagged solicitation with an Ethernet address option.
pub(crate) const MAX_QUERY_BYTES: usize = ethernet::HEADER_BYTES + ethernet::TAG_BYTES + 40 + 32;

/// A probe or a claim of another host for one of our addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queried {
    pub(crate) address: IpAddress,
    /// The Ethernet address of the other host.
    pub(crate) mac: EthernetAddress,
    /// True if the other host probes whether the address is in use (RFC 5227 section 2.1, RFC 4862 section
    /// 5.4). False if the other host claims the address for itself.
    pub(crate) is_probe: bool,
}

/// Content of an ARP or neighbour discovery packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The address that is queried or announced.
    pub(crate) target: IpAddress,
    /// True if the source address is unspecified or is one of our addresses, so that there is no host to
    /// answer.
    pub(crate) anonymous: bool,
    pub(crate) heard: Option<Heard>,
    pub(crate) queried: Option<Queried>,
}

/// A message about one of our own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assertion {
    /// Probes whether another host has the address.
    Probe(IpAddress),
    /// Announces that we have the address.
    Announce(IpAddress),
    /// Answers a probe from this Ethernet address, because we have the IP address.
    Answer(IpAddress, EthernetAddress),
}

/// Parses an ARP request or reply; `None` if `bytes` are another packet, or malformed.
pub(crate) fn from_arp(bytes: &[u8], mac: EthernetAddress, routes: &Routes) -> Option<Message> {
    let ArpRepr::EthernetIpv4 {
        operation: operation @ (ArpOperation::Request | ArpOperation::Reply),
        source_hardware_addr: from,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(bytes).ok()?).ok()?
    else {
        return None;
    };
    let (ip, target) = (IpAddress::Ipv4(source_protocol_addr), IpAddress::Ipv4(target_protocol_addr));
    let for_us = routes.is_ours(&target);
    let heard = Heard { ip, mac: Some(from), creates: for_us, overrides: true, confirms: for_us };
    let is_probe = source_protocol_addr.is_unspecified() && operation == ArpOperation::Request;
    let address = if is_probe { target } else { ip };
    let conflicts = from != mac && from.is_unicast() && routes.is_ours(&address);
    Some(Message {
        target,
        anonymous: is_probe || routes.is_ours(&ip),
        heard: is_neighbor(&heard, routes).then_some(heard),
        queried: conflicts.then_some(Queried { address, mac: from, is_probe }),
    })
}

/// Parses a neighbour solicitation or advertisement in an IPv6 packet from `from`; `None` if `packet` is
/// another packet, or not valid.
pub(crate) fn from_ndp(
    packet: &[u8],
    from: EthernetAddress,
    mac: EthernetAddress,
    routes: &Routes,
) -> Option<Message> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    // Hosts beyond the link cannot send a hop limit of 255 (RFC 4861 section 7.1).
    if ip.hop_limit() != 255 || ip.next_header() != IpProtocol::Icmpv6 {
        return None;
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    if icmp.msg_code() != 0 {
        return None;
    }
    let checksums = phy::ChecksumCapabilities::default();
    let (target, heard, is_probe) = match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &checksums)
        .ok()?
    {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }) => {
            let confirms = flags.contains(NdiscNeighborFlags::SOLICITED);
            // An advertisement to a multicast address must not have the solicited flag (RFC 4861 section
            // 7.1.2).
            if confirms && ip.dst_addr().is_multicast() {
                return None;
            }
            let heard = Heard {
                ip: IpAddress::Ipv6(target_addr),
                mac: lladdr.and_then(ethernet_address),
                creates: false,
                overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
                confirms,
            };
            (heard.ip, Some(heard), false)
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) => {
            let target = IpAddress::Ipv6(target_addr);
            let creates = routes.is_ours(&target);
            let source = IpAddress::Ipv6(ip.src_addr());
            let heard = lladdr.and_then(ethernet_address).map(|mac| Heard {
                ip: source,
                mac: Some(mac),
                creates,
                overrides: true,
                confirms: false,
            });
            // A query with a source address is no probe, and smoltcp answers it.
            if !source.is_unspecified() {
                let heard = heard.filter(|heard| is_neighbor(heard, routes));
                return Some(Message { target, anonymous: routes.is_ours(&source), heard, queried: None });
            }
            (target, None, true)
        }
        _ => return None,
    };
    let conflicts = from != mac && from.is_unicast() && routes.is_ours(&target);
    Some(Message {
        target,
        anonymous: is_probe,
        heard: heard.filter(|heard| is_neighbor(heard, routes)),
        queried: conflicts.then_some(Queried { address: target, mac: from, is_probe }),
    })
}

/// Writes an ARP request or neighbour solicitation with its Ethernet header. Returns the length in bytes;
/// `None` if the addresses are of different families.
///
/// `out` has at least [`MAX_QUERY_BYTES`]. `to` is the neighbour that is queried. If `to` is `None`, the
/// query goes to the broadcast address or to the solicited-node group.
pub(crate) fn emit_query(
    out: &mut [u8],
    mac: EthernetAddress,
    vlan: Option<u16>,
    source: IpAddress,
    target: IpAddress,
    to: Option<EthernetAddress>,
) -> Option<usize> {
    match (source, target) {
        (IpAddress::Ipv4(source), IpAddress::Ipv4(target)) => {
            let to = to.unwrap_or(EthernetAddress::BROADCAST);
            Some(emit_arp(out, mac, vlan, to, &arp_request(mac, source, target)))
        }
        (IpAddress::Ipv6(source), IpAddress::Ipv6(target)) => {
            let solicit = NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(RawHardwareAddress::from(mac)),
            };
            let group = solicited_node(target);
            let to = to.map_or((multicast_mac(&group.into()), group), |to| (to, target));
            Some(emit_ndisc(out, mac, vlan, to, source, solicit))
        }
        _ => None,
    }
}

/// Writes a probe, announcement or answer with its Ethernet header. Returns the length in bytes. `out` has at
/// least [`MAX_QUERY_BYTES`].
pub(crate) fn emit_assertion(
    out: &mut [u8],
    mac: EthernetAddress,
    vlan: Option<u16>,
    assertion: Assertion,
) -> usize {
    let everybody = EthernetAddress::BROADCAST;
    match assertion {
        Assertion::Probe(IpAddress::Ipv4(address)) => {
            let request = arp_request(mac, Ipv4Address::UNSPECIFIED, address);
            emit_arp(out, mac, vlan, everybody, &request)
        }
        Assertion::Announce(IpAddress::Ipv4(address)) => {
            emit_arp(out, mac, vlan, everybody, &arp_request(mac, address, address))
        }
        Assertion::Answer(IpAddress::Ipv4(address), to) => {
            let reply = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: mac,
                source_protocol_addr: address,
                target_hardware_addr: to,
                target_protocol_addr: Ipv4Address::UNSPECIFIED,
            };
            emit_arp(out, mac, vlan, to, &reply)
        }
        Assertion::Probe(IpAddress::Ipv6(address)) => {
            let solicit = NdiscRepr::NeighborSolicit { target_addr: address, lladdr: None };
            let group = solicited_node(address);
            emit_ndisc(
                out,
                mac,
                vlan,
                (multicast_mac(&group.into()), group),
                Ipv6Address::UNSPECIFIED,
                solicit,
            )
        }
        // A host that probes has no address to which the answer could be sent, so the answer is sent to all
        // nodes (RFC 4861 section 7.2.4).
        Assertion::Announce(IpAddress::Ipv6(address)) | Assertion::Answer(IpAddress::Ipv6(address), _) => {
            let advert = NdiscRepr::NeighborAdvert {
                flags: NdiscNeighborFlags::OVERRIDE,
                target_addr: address,
                lladdr: Some(RawHardwareAddress::from(mac)),
            };
            emit_ndisc(out, mac, vlan, (multicast_mac(&ALL_NODES.into()), ALL_NODES), address, advert)
        }
    }
}

/// The group of all nodes (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Address = Ipv6Address::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn arp_request(mac: EthernetAddress, source: Ipv4Address, target: Ipv4Address) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: mac,
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    }
}

fn emit_arp(
    out: &mut [u8],
    mac: EthernetAddress,
    vlan: Option<u16>,
    to: EthernetAddress,
    packet: &ArpRepr,
) -> usize {
    let header_bytes = ethernet::header_bytes(vlan);
    let total = header_bytes + packet.buffer_len();
    ethernet::emit(out, to, mac, vlan, ethernet::ETHERTYPE_ARP);
    packet.emit(&mut ArpPacket::new_unchecked(&mut out[header_bytes..total]));
    total
}

fn emit_ndisc(
    out: &mut [u8],
    mac: EthernetAddress,
    vlan: Option<u16>,
    (to, dst_addr): (EthernetAddress, Ipv6Address),
    src_addr: Ipv6Address,
    message: NdiscRepr<'_>,
) -> usize {
    let header_bytes = ethernet::header_bytes(vlan);
    let message = Icmpv6Repr::Ndisc(message);
    let payload_len = message.buffer_len();
    let ip = Ipv6Repr { src_addr, dst_addr, next_header: IpProtocol::Icmpv6, payload_len, hop_limit: 255 };
    let total = header_bytes + ip.buffer_len() + payload_len;
    ethernet::emit(out, to, mac, vlan, ethernet::ETHERTYPE_IPV6);
    let (head, body) = out[header_bytes..total].split_at_mut(ip.buffer_len());
    ip.emit(&mut Ipv6Packet::new_unchecked(head));
    let checksums = phy::ChecksumCapabilities::default();
    message.emit(&src_addr, &dst_addr, &mut Icmpv6Packet::new_unchecked(body), &checksums);
    total
}

/// Whether the addresses of `Heard` can be those of a neighbour.
fn is_neighbor(Heard { ip, mac, .. }: &Heard, routes: &Routes) -> bool {
    let mac_fits = mac.is_none_or(|mac| mac.is_unicast());
    ip.is_unicast() && !routes.is_broadcast(ip) && !routes.is_ours(ip) && mac_fits
}

fn ethernet_address(option: RawHardwareAddress) -> Option<EthernetAddress> {
    let bytes: [u8; 6] = option.as_bytes().try_into().ok()?;
    Some(EthernetAddress(bytes))
}

/// The solicited-node group of `address` (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Address) -> Ipv6Address {
    let o = address.octets();
    let last = [u16::from_be_bytes([0xff, o[13]]), u16::from_be_bytes([o[14], o[15]])];
    Ipv6Address::new(0xff02, 0, 0, 0, 0, 1, last[0], last[1])
}
