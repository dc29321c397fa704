//! Offloads of one frame.

/// State of a received frame's TCP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Not checked by the device: verify in software.
    #[default]
    Unknown,
    /// Verified by the device.
    Good,
    /// The device found the checksum wrong.
    Bad,
    /// The data is good, and the field contains only the pseudo-header sum (virtio's `NEEDS_CSUM`,
    /// DPDK's `NONE`). Counts as good; the field is filled in before the slow path or a capture sees the
    /// frame.
    Partial,
}

/// Offloads requested for a frame to be sent. Set only what [`Offloads`](crate::Offloads) of the port
/// has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Fill in the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Fill in the TCP checksum; the field contains the pseudo-header sum.
    pub tcp_checksum: bool,
    /// IPv6 rather than IPv4 (devices need to know).
    pub ipv6: bool,
    /// Cut the frame into pieces with this many bytes of payload; 0: do not cut.
    pub tso_segment_bytes: u16,
    /// Ethernet header length, VLAN tag included.
    pub l2_bytes: u8,
    /// IP header length.
    pub l3_bytes: u8,
    /// TCP header length.
    pub l4_bytes: u8,
}
