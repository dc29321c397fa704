//! Parts of the data path that the crate `benches` measures one by one. This module exists only with the
//! feature `bench`, and may change in any release. The functions are thin wrappers around private code that
//! the stack calls.

use crate::checksum::InternetChecksum;
use crate::ethernet::{self, EthernetHeader};
use crate::facade::{EthernetAddress, IpAddress, Ipv4Address, Ipv6Address, TcpSeqNumber};
use crate::four_tuple::FourTuple;
use crate::frame::{Framing, Headers};
use crate::ip::{self, Ecn, Upper};
use crate::secrets::Secrets;
use crate::table::ConnTable;
use crate::tcp::header::{Flags, Options, TcpHeader};
use crate::timer_wheel;
use crate::{Instant, StackConfig};

/// The Internet checksum of `bytes` (RFC 1071): the value of a checksum field.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut checksum = InternetChecksum::new();
    checksum.add(bytes);
    checksum.finish()
}

/// Ethernet, IP and TCP headers of a segment with an acknowledgement and timestamps, like most segments of a
/// connection.
#[derive(Debug)]
pub struct SegmentHeaders {
    framing: Framing,
    src: IpAddress,
    dst: IpAddress,
    tcp: TcpHeader,
}

impl SegmentHeaders {
    /// The headers of a host with the offloads of `config`. The addresses are IPv6 addresses if `ipv6` is
    /// true, otherwise IPv4 addresses.
    pub fn new(config: &StackConfig, ipv6: bool) -> Self {
        let address = |last| match ipv6 {
            false => IpAddress::Ipv4(Ipv4Address::new(10, 0, 0, last)),
            true => IpAddress::Ipv6(Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
        };
        Self {
            framing: Framing::new(config),
            src: address(1),
            dst: address(2),
            tcp: TcpHeader {
                src_port: 49_152,
                dst_port: 7471,
                seq: TcpSeqNumber(0x1234_5678),
                ack: Some(TcpSeqNumber(0x2345_6789)),
                flags: Flags::PSH,
                window: 4096,
                options: Options { timestamps: Some((1, 2)), ..Options::default() },
            },
        }
    }

    /// Writes the headers to the front of `out`, for a segment without payload; returns their length in
    /// bytes.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self { framing, src, dst, tcp } = self;
        let dst_mac = EthernetAddress([2, 0, 0, 0, 0, 2]);
        let headers = Headers { framing, dst_mac, src: *src, dst: *dst, ecn: Ecn::NotEct, tcp };
        headers.emit(out)
    }
}

/// Parses the headers of a frame as [`Stack::input`](crate::Stack::input) does, but does not verify the TCP
/// checksum. Returns the peer's port, and the offset of the payload; `None` if the frame has no whole TCP
/// segment.
pub fn parse_headers(frame: &[u8]) -> Option<(u16, usize)> {
    let ethernet = EthernetHeader::parse(frame)?;
    let packet = &frame[ethernet.bytes..];
    let ip = match ethernet.ethertype {
        ethernet::ETHERTYPE_IPV4 => ip::parse_ipv4(packet, packet.len()),
        ethernet::ETHERTYPE_IPV6 => ip::parse_ipv6(packet, packet.len()),
        _ => return None,
    };
    let Upper::Whole { protocol: ip::PROTOCOL_TCP, header_bytes } = ip.ok()?.upper else { return None };
    let (tcp, bytes) = TcpHeader::parse(packet.get(header_bytes..)?).ok()?;
    Some((tcp.src_port, ethernet.bytes + header_bytes + bytes))
}

/// The 4-tuple of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Tuple(FourTuple);

impl Tuple {
    /// The tuple of connection number `n` to one port of one host. Different numbers give different tuples.
    pub fn nth(n: u32) -> Self {
        let [a, b, c, d] = n.to_be_bytes();
        let address = |c, d| IpAddress::Ipv4(Ipv4Address::new(10, 1, c, d));
        Self(FourTuple {
            local: address(255, 254),
            local_port: 7471,
            remote: address(a, b),
            remote_port: u16::from_be_bytes([c, d]),
        })
    }
}

/// The table that maps segments to connections.
#[derive(Debug)]
pub struct Demultiplexer {
    table: ConnTable,
    tuples: Vec<Tuple>,
}

impl Demultiplexer {
    /// A table with connections `0..count`, numbered as in [`Tuple::nth`].
    pub fn new(count: u32) -> Self {
        let mut table = ConnTable::new(Secrets::new([7; 32]).table_state());
        let tuples: Vec<Tuple> = (0..count).map(Tuple::nth).collect();
        tuples.iter().zip(0..).for_each(|(tuple, n)| table.insert(table.hash(&tuple.0), n));
        Self { table, tuples }
    }

    /// The number of the connection with this 4-tuple; `None` if the table has no such connection.
    pub fn find(&self, tuple: &Tuple) -> Option<u32> {
        self.table.find(self.table.hash(&tuple.0), |n| self.tuples[n as usize].0 == tuple.0)
    }
}

/// The timers of all connections of a stack.
pub struct ConnTimers(timer_wheel::TimerWheel);

impl ConnTimers {
    /// A timer wheel at time 0 with the timers `0..count`. No timer is set.
    pub fn new(count: usize) -> Self {
        let mut wheel = timer_wheel::TimerWheel::new();
        wheel.grow(count);
        Self(wheel)
    }

    /// Sets the timer of `slot` to `deadline`; `None` cancels the timer.
    pub fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        self.0.set(slot, deadline);
    }

    /// Returns a slot whose timer is due at `now`, and clears this timer; `None` if no timer is due.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        self.0.expired(now)
    }
}
