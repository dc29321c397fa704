//! Handmade TCP segments in frames, which no stack would send.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::sim::packet::{complete, flag};

/// Bytes of an Ethernet and an IPv4 header.
const HEADERS: usize = 34;

/// A segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Source, which may be forged.
    pub from: SocketAddrV4,
    /// Destination.
    pub to: SocketAddrV4,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; `None`: no ACK bit.
    pub ack: Option<u32>,
    /// Flags beside ACK, see [`flag`].
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Options, a multiple of four bytes.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// The segment in a frame between these Ethernet addresses, with correct checksums.
    pub fn frame(&self, [src, dst]: [[u8; 6]; 2]) -> Vec<u8> {
        let tcp = 20 + self.options.len();
        let mut frame = ip(src, dst, *self.from.ip(), *self.to.ip(), 6, tcp + self.payload.len());
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.unwrap_or(0).to_be_bytes());
        let ack = if self.ack.is_some() { flag::ACK } else { 0 };
        frame.extend([(tcp as u8 / 4) << 4, self.flags | ack]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend_from_slice(self.options);
        frame.extend_from_slice(self.payload);
        complete(&mut frame);
        frame
    }
}

/// Ethernet and IPv4 headers for `bytes` of `protocol`.
fn ip(src: [u8; 6], dst: [u8; 6], from: Ipv4Addr, to: Ipv4Addr, protocol: u8, bytes: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADERS + bytes);
    frame.extend(dst);
    frame.extend(src);
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((20 + bytes as u16).to_be_bytes());
    // Don't Fragment, a time to live of 64.
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame
}

/// The options of a SYN: a maximum segment size and, with `scale`, window scale and SACK-permitted.
pub fn syn_options(mss: u16, scale: Option<u8>) -> Vec<u8> {
    let mut options = vec![2, 4];
    options.extend(mss.to_be_bytes());
    if let Some(shift) = scale {
        options.extend([4, 2, 1, 3, 3, shift, 1, 1]);
    }
    options
}

/// The answer of `mac` to an ARP request for `address`; `None` if `frame` is not such a request.
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
