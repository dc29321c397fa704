//! Offloads of one frame.

/// The state of a received frame's TCP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The device has not checked the checksum, so the checksum has to be verified in software.
    #[default]
    Unknown,
    /// The device has verified the checksum.
    Good,
    /// The device has found that the checksum is wrong.
    Bad,
    /// The data are good, and the checksum field contains only the sum of the pseudo-header (virtio's
    /// `NEEDS_CSUM`, DPDK's `NONE`). A frame in this state counts as verified. Code that needs a complete
    /// checksum, for example a capture, has to fill it in.
    Partial,
}

/// The offloads that are requested for a frame to send. Only offloads that the port has in its
/// [`Offloads`](crate::Offloads) may be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Whether the device fills in the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Whether the device fills in the TCP checksum. If `true`, the checksum field contains the sum of the
    /// pseudo-header.
    pub tcp_checksum: bool,
    /// `true` for IPv6 and `false` for IPv4. Devices need to know the IP version.
    pub ipv6: bool,
    /// Maximum number of payload bytes of each piece into which the device cuts the frame. 0 means that the
    /// frame is not cut.
    pub tso_segment_bytes: u16,
    /// Length of the Ethernet header in bytes, including a VLAN tag.
    pub l2_bytes: u8,
    /// Length of the IP header in bytes.
    pub l3_bytes: u8,
    /// Length of the TCP header in bytes.
    pub l4_bytes: u8,
}
