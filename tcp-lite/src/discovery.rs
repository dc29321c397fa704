//! ARP (RFC 826) and neighbour discovery (RFC 4861) packets: what they tell the neighbour table, and our queries.
//!
//! Answering others is smoltcp's.

use crate::ethernet;
use crate::facade::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol,
    Ipv6Address, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, phy,
};
use crate::route::Routes;

/// What a packet says about one neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// The neighbour.
    pub(crate) ip: IpAddress,
    /// Where it says it is.
    pub(crate) mac: EthernetAddress,
    /// It asked for us, so it is about to talk to us: worth an entry of its own.
    pub(crate) creates: bool,
    /// It may replace another address that is known.
    pub(crate) overrides: bool,
    /// It shows that the neighbour is there now.
    pub(crate) confirms: bool,
}

/// Octets of the largest query's frame: a tagged solicitation with an Ethernet address option.
pub(crate) const MAX_QUERY_OCTETS: usize = ethernet::HEADER_OCTETS + ethernet::TAG_OCTETS + 40 + 32;

/// Reads an ARP packet.
pub(crate) fn from_arp(octets: &[u8], routes: &Routes) -> Option<Heard> {
    let ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request | ArpOperation::Reply,
        source_hardware_addr: mac,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&ArpPacket::new_checked(octets).ok()?).ok()?
    else {
        return None;
    };
    let ip = IpAddress::Ipv4(source_protocol_addr);
    let for_us = routes.is_ours(&IpAddress::Ipv4(target_protocol_addr));
    is_neighbor(&ip, mac, routes).then_some(Heard {
        ip,
        mac,
        creates: for_us,
        overrides: true,
        confirms: true,
    })
}

/// Reads a neighbour solicitation or advertisement out of an IPv6 packet.
pub(crate) fn from_ndp(packet: &[u8], routes: &Routes) -> Option<Heard> {
    let ip = Ipv6Packet::new_checked(packet).ok()?;
    // Nobody beyond the link can send this (RFC 4861 section 7.1).
    if ip.hop_limit() != 255 || ip.next_header() != IpProtocol::Icmpv6 {
        return None;
    }
    let icmp = Icmpv6Packet::new_checked(ip.payload()).ok()?;
    let checksums = phy::ChecksumCapabilities::default();
    let heard = match Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &checksums).ok()? {
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(lladdr) }) => Heard {
            ip: IpAddress::Ipv6(target_addr),
            mac: ethernet_address(lladdr)?,
            creates: false,
            overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
            confirms: flags.contains(NdiscNeighborFlags::SOLICITED),
        },
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr: Some(lladdr) }) => Heard {
            ip: IpAddress::Ipv6(ip.src_addr()),
            mac: ethernet_address(lladdr)?,
            creates: routes.is_ours(&IpAddress::Ipv6(target_addr)),
            overrides: true,
            confirms: false,
        },
        _ => return None,
    };
    is_neighbor(&heard.ip, heard.mac, routes).then_some(heard)
}

/// Writes an ARP request or neighbour solicitation with its Ethernet header; returns its octets.
///
/// `out` has [`MAX_QUERY_OCTETS`]. `to` is whom to ask (`None`: everybody who may be it). `None` when the addresses are of different families.
pub(crate) fn emit_query(
    out: &mut [u8],
    mac: EthernetAddress,
    vlan: Option<u16>,
    source: IpAddress,
    target: IpAddress,
    to: Option<EthernetAddress>,
) -> Option<usize> {
    let header_octets = ethernet::header_octets(vlan);
    match (source, target) {
        (IpAddress::Ipv4(source), IpAddress::Ipv4(target)) => {
            let request = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: mac,
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            };
            let total = header_octets + request.buffer_len();
            ethernet::emit(out, to.unwrap_or(EthernetAddress::BROADCAST), mac, vlan, ethernet::ETHERTYPE_ARP);
            request.emit(&mut ArpPacket::new_unchecked(&mut out[header_octets..total]));
            Some(total)
        }
        (IpAddress::Ipv6(source), IpAddress::Ipv6(target)) => {
            let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr: Some(RawHardwareAddress::from(mac)),
            });
            let group = solicited_node(target);
            let ip = Ipv6Repr {
                src_addr: source,
                dst_addr: if to.is_some() { target } else { group },
                next_header: IpProtocol::Icmpv6,
                payload_len: solicit.buffer_len(),
                hop_limit: 255,
            };
            let total = header_octets + ip.buffer_len() + solicit.buffer_len();
            let dst = to.unwrap_or_else(|| multicast_mac(group));
            ethernet::emit(out, dst, mac, vlan, ethernet::ETHERTYPE_IPV6);
            let (head, body) = out[header_octets..total].split_at_mut(ip.buffer_len());
            ip.emit(&mut Ipv6Packet::new_unchecked(head));
            let checksums = phy::ChecksumCapabilities::default();
            solicit.emit(&source, &ip.dst_addr, &mut Icmpv6Packet::new_unchecked(body), &checksums);
            Some(total)
        }
        _ => None,
    }
}

/// Whether it can be a neighbour at all.
fn is_neighbor(ip: &IpAddress, mac: EthernetAddress, routes: &Routes) -> bool {
    ip.is_unicast() && !routes.is_broadcast(ip) && !routes.is_ours(ip) && mac.is_unicast()
}

fn ethernet_address(option: RawHardwareAddress) -> Option<EthernetAddress> {
    let octets: [u8; 6] = option.as_bytes().try_into().ok()?;
    Some(EthernetAddress(octets))
}

/// RFC 4291 section 2.7.1.
fn solicited_node(address: Ipv6Address) -> Ipv6Address {
    let o = address.octets();
    let last = [u16::from_be_bytes([0xff, o[13]]), u16::from_be_bytes([o[14], o[15]])];
    Ipv6Address::new(0xff02, 0, 0, 0, 0, 1, last[0], last[1])
}

/// RFC 2464 section 7.
fn multicast_mac(group: Ipv6Address) -> EthernetAddress {
    let o = group.octets();
    EthernetAddress([0x33, 0x33, o[12], o[13], o[14], o[15]])
}
