//! The packet buffer: owned, a chain of segments, with headroom.
//!
//! One concrete type for every backend. An [`Mbuf`] is a view (offset and length for each segment) of storage
//! that may have several owners: [`Mbuf::share`] makes another view of the same octets, which are read-only
//! for all as long as there is more than one. Views are independent: trimming one leaves the other as it was.
//!
//! Inside, either a buffer of a heap pool (`heap.rs`) or a DPDK `rte_mbuf` (`dpdk.rs`).

/// Octets left free in front of the data of a fresh buffer: room for Ethernet, VLAN, IPv6 and TCP with all options.
pub const HEADROOM: usize = 128;

/// What is known of a received frame's TCP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody looked: verify in software.
    #[default]
    Unknown,
    /// Verified by the device.
    Good,
    /// The device found it wrong.
    Bad,
    /// The data is good and the field holds the pseudo-header sum only (virtio's `NEEDS_CSUM`, DPDK's `NONE`):
    /// counts as good, and is filled in before the slow path or a capture sees the frame.
    Partial,
}

/// What the port is asked to fill in while sending. Only set what its [`Offloads`](crate::Offloads) name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Fill in the IPv4 header checksum.
    pub ipv4_checksum: bool,
    /// Fill in the TCP checksum; the field holds the pseudo-header sum.
    pub tcp_checksum: bool,
    /// IPv6 rather than IPv4 (devices want to know).
    pub ipv6: bool,
    /// Cut the payload at this many octets; 0: do not cut.
    pub tso_segment_octets: u16,
    /// Ethernet header length, VLAN tag included.
    pub l2_octets: u8,
    /// IP header length.
    pub l3_octets: u8,
    /// TCP header length.
    pub l4_octets: u8,
}

/// An owned packet buffer: one or more segments, never empty of segments.
pub struct Mbuf {
    _private: (),
}

impl Mbuf {
    /// Octets in all segments.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether there are no octets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Segments in the chain, at least 1.
    pub fn segment_count(&self) -> usize {
        todo!()
    }

    /// The segments' octets, in order. Some may be empty.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> + Clone {
        [].into_iter()
    }

    /// The first segment's octets.
    pub fn head(&self) -> &[u8] {
        todo!()
    }

    /// The first segment's octets for writing; `None` while the storage has another owner.
    pub fn head_mut(&mut self) -> Option<&mut [u8]> {
        todo!()
    }

    /// Free octets in front of the first segment's data.
    pub fn headroom(&self) -> usize {
        todo!()
    }

    /// Free octets behind the last segment's data.
    pub fn tailroom(&self) -> usize {
        todo!()
    }

    /// Grows the first segment by `octets` at its front and returns them (old contents); `None` when the headroom
    /// is too small or the storage has another owner.
    pub fn prepend(&mut self, octets: usize) -> Option<&mut [u8]> {
        let _ = octets;
        todo!()
    }

    /// Grows the last segment by `octets` and returns them (old contents); `None` when the tailroom is too small
    /// or the storage has another owner.
    pub fn append(&mut self, octets: usize) -> Option<&mut [u8]> {
        let _ = octets;
        todo!()
    }

    /// Drops `octets` from the front; whole segments are given back. Works on shared storage (it is a view).
    ///
    /// # Panics
    /// When there are fewer octets.
    pub fn advance(&mut self, octets: usize) {
        let _ = octets;
        todo!()
    }

    /// Keeps the first `octets`, drops the rest. No effect when there are fewer.
    pub fn truncate(&mut self, octets: usize) {
        let _ = octets;
        todo!()
    }

    /// Appends the segments of `tail`, which must come from the same kind of pool (both heap or both DPDK).
    /// The metadata of the head stays.
    ///
    /// # Errors
    /// Gives `tail` back when the chain would exceed [`MAX_SEGMENTS`] or the kinds differ.
    pub fn chain(&mut self, tail: Mbuf) -> Result<(), Mbuf> {
        Err(tail)
    }

    /// Another view of the same octets, or `None` when no descriptor is left.
    pub fn share(&self) -> Option<Mbuf> {
        todo!()
    }

    /// Whether any segment's storage has another owner.
    pub fn is_shared(&self) -> bool {
        todo!()
    }

    /// Copies `out.len()` octets from `offset` on; returns how many there were.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let _ = (offset, out);
        todo!()
    }

    /// Checksum state of a received frame's TCP segment.
    pub fn rx_checksum(&self) -> Checksum {
        todo!()
    }

    /// Sets what [`Mbuf::rx_checksum`] reports.
    pub fn set_rx_checksum(&mut self, state: Checksum) {
        let _ = state;
        todo!()
    }

    /// What the port is asked to fill in.
    pub fn tx_offload(&self) -> TxOffload {
        todo!()
    }

    /// Asks the port to fill in.
    pub fn set_tx_offload(&mut self, offload: TxOffload) {
        let _ = offload;
        todo!()
    }
}

/// Segments a chain may have.
pub const MAX_SEGMENTS: usize = 64;
