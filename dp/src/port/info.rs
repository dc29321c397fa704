//! The description of a port, which does not change while the port runs.

use bitflags::bitflags;

use crate::{Queue, TsoLimits};

bitflags! {
    /// Offloads of a port. The layers above perform missing offloads in software.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Offloads: u32 {
        /// Fills in the IPv4 header checksum of a frame whose [`TxOffload`](crate::TxOffload) requests the
        /// checksum.
        const TX_IPV4_CHECKSUM = 1 << 0;
        /// Fills in the TCP checksum of a frame. The checksum field already contains the sum of the
        /// pseudo-header.
        const TX_TCP_CHECKSUM = 1 << 1;
        /// Sends frames of several segments.
        const TX_MULTI_SEGMENT = 1 << 2;
        /// Cuts a large TCP frame into segments of `tso_segment_bytes` payload bytes.
        const TX_TSO = 1 << 3;
        /// Reports the state of the IPv4 header checksum of a received frame.
        const RX_IPV4_CHECKSUM = 1 << 4;
        /// Reports the state of the TCP checksum of a received frame.
        const RX_TCP_CHECKSUM = 1 << 5;
        /// Coalesces consecutive TCP segments into one large frame (LRO).
        const RX_LRO = 1 << 6;
        /// Receives frames into chains of buffers.
        const RX_SCATTER = 1 << 7;
        /// Spreads flows over queues by a hash of the addresses, and usually also of the ports.
        const RX_RSS = 1 << 8;
        /// Sends frames from any memory ([`Mbuf::external`]), which the port reads by its virtual address.
        /// Ports without this offload send a copy.
        const TX_EXTERNAL = 1 << 9;
    }
}

/// The description of a port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name for messages: `net_vhost0`, `0000:03:00.0`, `link-a`.
    pub name: String,
    /// Ethernet address, with the bytes in the order in which they are sent.
    pub mac: [u8; 6],
    /// Maximum number of bytes of an IP packet. A frame has 14 bytes more than its IP packet, or 18 with a
    /// VLAN tag.
    pub mtu: u16,
    /// The offloads in use: the device has these offloads, and the port's configuration allows them.
    pub offloads: Offloads,
    /// Limits of the frames that the port can cut, if the port has TSO.
    pub tso: TsoLimits,
    /// The queue of the device that belongs to the port.
    pub queue: Queue,
    /// `true` if the port has exactly one peer, and this peer is gone when the link is down. A peer at the
    /// other side of a vhost-user or memif socket loses its state when the connection ends.
    pub point_to_point: bool,
    /// `true` if the port notices that a neighbour has ended
    /// ([`Link::next_departed`](crate::Link::next_departed)).
    pub tells_departures: bool,
    /// `Some` if the port does not copy the buffers of its [bulk pool](crate::Port::bulk_mempool) when
    /// it sends long frames. The value is the minimum number of bytes of such a frame.
    pub lent_from: Option<usize>,
}

impl PortInfo {
    /// Makes the description of the only queue of a device. The other properties have the usual values: no
    /// limits of TSO, a link to many neighbours, and no reports of departures, and
    /// all frames are copied.
    pub fn new(name: impl Into<String>, mac: [u8; 6], mtu: u16, offloads: Offloads) -> Self {
        Self {
            name: name.into(),
            mac,
            mtu,
            offloads,
            tso: TsoLimits::default(),
            queue: Queue::default(),
            point_to_point: false,
            tells_departures: false,
            lent_from: None,
        }
    }
}
