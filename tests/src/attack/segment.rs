//! Builds TCP segments in Ethernet frames by hand, such as segments that no stack would send. Also builds the
//! options of a SYN, and answers to ARP requests.

use std::net::{Ipv4Addr, SocketAddrV4};

use testkit::packet::{Addresses, Ipv4, TcpHeader, flag, ipv4, protocol};

/// A TCP segment over IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Source address and port, which may be forged.
    pub from: SocketAddrV4,
    /// Destination address and port.
    pub to: SocketAddrV4,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; with `None`, the segment has no ACK flag.
    pub ack: Option<u32>,
    /// Flags other than ACK, see [`flag`].
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Options, whose length is a multiple of four bytes.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Returns the segment in a frame between these Ethernet addresses, with correct checksums.
    pub fn frame(&self, macs: [[u8; 6]; 2]) -> Vec<u8> {
        let ack = if self.ack.is_some() { flag::ACK } else { 0 };
        let header = TcpHeader {
            ports: [self.from.port(), self.to.port()],
            seq: self.seq,
            ack: self.ack.unwrap_or(0),
            flags: self.flags | ack,
            window: self.window,
            urgent: 0,
            options: self.options,
        };
        let v4 = [self.from.ip().octets(), self.to.ip().octets()];
        // 0x4000 is the flag Don't Fragment.
        let ip = Ipv4 { tos: 0, id: 0, fragment: 0x4000, ttl: 64, protocol: protocol::TCP };
        ipv4(&Addresses { macs, v4, ..Addresses::default() }, ip, &[], &header.segment(self.payload))
    }
}

/// Returns the options of a SYN: a maximum segment size and, if there is a `scale`, window scale and
/// SACK-permitted.
pub fn syn_options(mss: u16, scale: Option<u8>) -> Vec<u8> {
    let mut options = vec![2, 4];
    options.extend(mss.to_be_bytes());
    if let Some(shift) = scale {
        options.extend([4, 2, 1, 3, 3, shift, 1, 1]);
    }
    options
}

/// Returns the answer of `mac` to an ARP request for `address`, or `None` if `frame` is not such a request.
pub fn arp_reply(frame: &[u8], mac: [u8; 6], address: Ipv4Addr) -> Option<Vec<u8>> {
    let request = frame.get(12..14)? == [0x08, 0x06] && frame.get(20..22)? == [0, 1];
    if !request || frame.get(38..42)? != address.octets() {
        return None;
    }
    let asker = frame.get(22..32)?;
    let mut reply = [&asker[..6], &mac, &frame[12..20], &[0, 2], &mac, &address.octets(), asker].concat();
    reply.resize(60, 0);
    Some(reply)
}
