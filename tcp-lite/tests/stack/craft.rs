//! Handmade frames, and frames cut into fragments.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpProtocol, IpRepr,
    Ipv4Address, Ipv4Repr, Ipv6Address, NdiscRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket,
    UdpRepr,
};

pub(crate) fn ethernet(src: EthernetAddress, dst: EthernetAddress, ethertype: EthernetProtocol) -> Vec<u8> {
    let mut frame = vec![0; 14];
    let repr = EthernetRepr { src_addr: src, dst_addr: dst, ethertype };
    repr.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    frame
}

pub(crate) fn arp(
    operation: ArpOperation,
    src_mac: EthernetAddress,
    dst_mac: EthernetAddress,
    src: Ipv4Address,
    dst: Ipv4Address,
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: src_mac,
        source_protocol_addr: src,
        target_hardware_addr: dst_mac,
        target_protocol_addr: dst,
    };
    let mut frame = ethernet(src_mac, dst_mac, EthernetProtocol::Arp);
    frame.resize(14 + repr.buffer_len(), 0);
    repr.emit(&mut ArpPacket::new_unchecked(&mut frame[14..]));
    frame
}

/// Returns a frame with an IP packet that contains `payload`.
pub(crate) fn ip(
    macs: [EthernetAddress; 2],
    src: IpAddress,
    dst: IpAddress,
    protocol: IpProtocol,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let repr = IpRepr::new(src, dst, protocol, payload.len(), hop_limit);
    let ethertype =
        if matches!(src, IpAddress::Ipv4(_)) { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    let mut frame = ethernet(macs[0], macs[1], ethertype);
    let at = frame.len() + repr.header_len();
    frame.resize(at, 0);
    repr.emit(&mut frame[14..], &ChecksumCapabilities::default());
    frame.extend_from_slice(payload);
    frame
}

pub(crate) fn icmpv4(
    macs: [EthernetAddress; 2],
    src: Ipv4Address,
    dst: Ipv4Address,
    message: &Icmpv4Repr<'_>,
) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut Icmpv4Packet::new_unchecked(&mut bytes), &ChecksumCapabilities::default());
    ip(macs, src.into(), dst.into(), IpProtocol::Icmp, 64, &bytes)
}

pub(crate) fn icmpv6(
    macs: [EthernetAddress; 2],
    src: Ipv6Address,
    dst: Ipv6Address,
    message: &Icmpv6Repr<'_>,
) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    message.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(&mut bytes), &checksums);
    ip(macs, src.into(), dst.into(), IpProtocol::Icmpv6, 255, &bytes)
}

/// Returns an ICMP error to the sender of `frame`, which is a TCP segment over IPv4. The error quotes the
/// segment.
pub(crate) fn error_about(
    macs: [EthernetAddress; 2],
    frame: &[u8],
    reason: Icmpv4DstUnreachable,
    mtu: u16,
) -> Vec<u8> {
    let address = |at: usize| Ipv4Address::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let (src_addr, dst_addr) = (address(26), address(30));
    let (payload_len, hop_limit) = (frame.len() - 34, 64);
    let header = Ipv4Repr { src_addr, dst_addr, next_header: IpProtocol::Tcp, payload_len, hop_limit };
    let message = Icmpv4Repr::DstUnreachable { reason, header, data: &frame[34..frame.len().min(62)] };
    let mut error = icmpv4(macs, dst_addr, src_addr, &message);
    error[40..42].copy_from_slice(&mtu.to_be_bytes());
    error[36..38].fill(0);
    let checksum = !smoltcp::wire::checksum::data(&error[34..]);
    error[36..38].copy_from_slice(&checksum.to_be_bytes());
    error
}

/// Returns a unicast neighbour solicitation for `dst`.
pub(crate) fn solicit(macs: [EthernetAddress; 2], src: Ipv6Address, dst: Ipv6Address) -> Vec<u8> {
    let lladdr = Some(macs[0].into());
    icmpv6(macs, src, dst, &Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: dst, lladdr }))
}

/// Sets the sequence number of a TCP segment over IPv4.
pub(crate) fn set_tcp_seq(frame: &mut [u8], seq: i32) {
    let address = |at: usize| IpAddress::v4(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let (src, dst) = (address(26), address(30));
    let mut packet = TcpPacket::new_unchecked(&mut frame[34..]);
    packet.set_seq_number(TcpSeqNumber(seq));
    packet.fill_checksum(&src, &dst);
}

/// Returns a segment without payload, with sequence number 7.
pub(crate) fn segment(
    macs: [EthernetAddress; 2],
    src: (IpAddress, u16),
    dst: (IpAddress, u16),
    control: TcpControl,
) -> Vec<u8> {
    answer(macs, src, dst, control, (7, None), &[])
}

/// Returns a segment with sequence number, acknowledgement and payload.
pub(crate) fn answer(
    macs: [EthernetAddress; 2],
    src: (IpAddress, u16),
    dst: (IpAddress, u16),
    control: TcpControl,
    (seq, ack): (i32, Option<i32>),
    payload: &[u8],
) -> Vec<u8> {
    let repr = TcpRepr {
        src_port: src.1,
        dst_port: dst.1,
        control,
        seq_number: TcpSeqNumber(seq),
        ack_number: ack.map(TcpSeqNumber),
        window_len: 1000,
        window_scale: None,
        max_seg_size: Some(1000),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    repr.emit(&mut TcpPacket::new_unchecked(&mut bytes), &src.0, &dst.0, &checksums);
    ip(macs, src.0, dst.0, IpProtocol::Tcp, 64, &bytes)
}

/// Returns a frame with a UDP datagram.
pub(crate) fn udp(
    macs: [EthernetAddress; 2],
    src: (IpAddress, u16),
    dst: (IpAddress, u16),
    payload: &[u8],
) -> Vec<u8> {
    let repr = UdpRepr { src_port: src.1, dst_port: dst.1 };
    let mut bytes = vec![0; repr.header_len() + payload.len()];
    let checksums = ChecksumCapabilities::default();
    let fill = |room: &mut [u8]| room.copy_from_slice(payload);
    let packet = &mut UdpPacket::new_unchecked(&mut bytes);
    repr.emit(packet, &src.0, &dst.0, payload.len(), fill, &checksums);
    ip(macs, src.0, dst.0, IpProtocol::Udp, 64, &bytes)
}

/// Computes the header checksum of the IPv4 packet of an untagged frame, after the header was changed.
pub(crate) fn fix_ipv4_checksum(frame: &mut [u8]) {
    let end = 14 + 4 * usize::from(frame[14] & 0x0f);
    frame[24..26].fill(0);
    let checksum = !smoltcp::wire::checksum::data(&frame[14..end]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// The arguments of [`data`].
pub(crate) struct Segment<'a> {
    pub(crate) src: (IpAddress, u16),
    pub(crate) dst: (IpAddress, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) payload: &'a [u8],
}

/// Returns an ACK without options, with or without payload.
pub(crate) fn data(macs: [EthernetAddress; 2], segment: &Segment<'_>) -> Vec<u8> {
    let repr = TcpRepr {
        src_port: segment.src.1,
        dst_port: segment.dst.1,
        control: TcpControl::None,
        seq_number: TcpSeqNumber(segment.seq as i32),
        ack_number: Some(TcpSeqNumber(segment.ack as i32)),
        window_len: 1000,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: segment.payload,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    let (src, dst) = (segment.src.0, segment.dst.0);
    repr.emit(&mut TcpPacket::new_unchecked(&mut bytes), &src, &dst, &ChecksumCapabilities::default());
    ip(macs, src, dst, IpProtocol::Tcp, 64, &bytes)
}

/// Cuts the IP packet of an untagged frame into fragments of at most `unit` bytes (a multiple of 8). Frames
/// that are not IP are returned whole.
pub(crate) fn fragments(frame: &[u8], unit: usize, identification: u16) -> Vec<Vec<u8>> {
    match frame[12..14] {
        [0x08, 0x00] => fragments_v4(frame, unit, identification),
        [0x86, 0xdd] => fragments_v6(frame, unit, identification),
        _ => vec![frame.to_vec()],
    }
}

fn pieces(payload: &[u8], unit: usize) -> impl Iterator<Item = (usize, bool, &[u8])> {
    let chunks = payload.chunks(unit);
    let last = chunks.len() - 1;
    chunks.enumerate().map(move |(n, piece)| (n * unit, n < last, piece))
}

fn fragments_v4(frame: &[u8], unit: usize, identification: u16) -> Vec<Vec<u8>> {
    pieces(&frame[34..], unit)
        .map(|(offset, more, piece)| {
            let mut fragment = frame[..34].to_vec();
            fragment[16..18].copy_from_slice(&(20 + piece.len() as u16).to_be_bytes());
            fragment[18..20].copy_from_slice(&identification.to_be_bytes());
            let word = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
            fragment[20..22].copy_from_slice(&word.to_be_bytes());
            fragment[24..26].fill(0);
            let checksum = !smoltcp::wire::checksum::data(&fragment[14..34]);
            fragment[24..26].copy_from_slice(&checksum.to_be_bytes());
            fragment.extend_from_slice(piece);
            fragment
        })
        .collect()
}

fn fragments_v6(frame: &[u8], unit: usize, identification: u16) -> Vec<Vec<u8>> {
    pieces(&frame[54..], unit)
        .map(|(offset, more, piece)| {
            let mut fragment = frame[..54].to_vec();
            fragment[18..20].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
            fragment[20] = 44;
            fragment.extend([frame[20], 0]);
            fragment.extend((offset as u16 | u16::from(more)).to_be_bytes());
            fragment.extend([0, 0]);
            fragment.extend(identification.to_be_bytes());
            fragment.extend_from_slice(piece);
            fragment
        })
        .collect()
}
