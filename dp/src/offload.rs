//! Offloads of one frame.

/// The state of a received frame's TCP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The device has not checked the checksum, so it has to be verified in software.
    #[default]
    Unknown,
    /// The device has verified the checksum.
    Good,
    /// The device has found that the checksum is wrong.
    Bad,
    /// The data are good, and the field contains only the sum of the pseudo-header (virtio's `NEEDS_CSUM`,
    /// DPDK's `NONE`). This counts as good. The field is filled in before the slow path or a capture gets the
    /// frame.
    Partial,
}

/// The offloads that are requested for a frame to send. Only offloads that are in the port's
/// [`Offloads`](crate::Offloads) may be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Fill in the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Fill in the TCP checksum. The field contains the sum of the pseudo-header.
    pub tcp_checksum: bool,
    /// True for IPv6 and false for IPv4, which devices need to know.
    pub ipv6: bool,
    /// Cut the frame into pieces with this number of payload bytes. 0 means that the frame is not cut.
    pub tso_segment_bytes: u16,
    /// Length of the Ethernet header, including a VLAN tag.
    pub l2_bytes: u8,
    /// Length of the IP header.
    pub l3_bytes: u8,
    /// Length of the TCP header.
    pub l4_bytes: u8,
}
