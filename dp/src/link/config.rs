//! The configuration of a link: the link's faults, offloads and buffers.

use crate::{Offloads, TsoLimits};

/// The faults and the delay of one direction of a link. Probabilities are in parts per million.
#[derive(Clone, Debug, Default)]
pub struct LinkPlan {
    /// Probability that a frame is lost.
    pub drop_ppm: u32,
    /// Probability that a frame is sent twice.
    pub duplicate_ppm: u32,
    /// Probability that a frame is held back by `reorder_us`.
    pub reorder_ppm: u32,
    /// Number of microseconds for which a reordered frame is held back.
    pub reorder_us: u32,
    /// Probability that one bit of a frame is flipped.
    pub corrupt_ppm: u32,
    /// Number of microseconds for which each frame is on the wire.
    pub delay_us: u32,
    /// The ordinal numbers of further frames that are lost. The first frame of each sending port has number
    /// 0.
    pub drop_exactly: Vec<u64>,
}

/// How the ports of a link handle a large TCP frame that requests to be cut
/// ([`TxOffload::tso_segment_bytes`](crate::TxOffload)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkTso {
    /// The ports of the link do not support large frames.
    #[default]
    Off,
    /// The ports cut large frames as a NIC does, so frames of at most the MTU arrive.
    Cut,
    /// The ports pass large frames uncut as virtio does, so large frames arrive.
    Whole,
}

/// The configuration of a link that [`pair`](super::pair) makes: the link's buffers, faults and offloads.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Maximum number of bytes of an IP packet for both ports. A longer frame is dropped, unless the ports
    /// offer TSO ([`tso`](Self::tso)) and the frame requests to be cut. Default: 1500.
    pub mtu: u16,
    /// Number of buffers in the pool of each port. Default: 8192.
    pub mbufs: usize,
    /// Number of large buffers of each port, for bulk sending. Default: 0.
    pub bulk_mbufs: usize,
    /// Number of frames in flight in one direction at which the sender's ring is full. Default: 1024.
    pub ring_frames: usize,
    /// Seed of the random faults. Default: 0.
    pub seed: u64,
    /// Faults from the first port to the second. Default: no faults.
    pub a_to_b: LinkPlan,
    /// Faults from the second port to the first. Default: no faults.
    pub b_to_a: LinkPlan,
    /// `true` if the ports do not fill in TCP checksums, as virtio does: a frame sent with
    /// [`TxOffload::tcp_checksum`](crate::TxOffload) arrives as [`Checksum::Partial`](crate::Checksum). If
    /// `false`, every frame arrives as [`Checksum::Unknown`](crate::Checksum). Default: `false`.
    pub checksum_offload: bool,
    /// Handling of large frames. The ports offer TSO only with `checksum_offload`. Default: [`LinkTso::Off`].
    pub tso: LinkTso,
    /// Limits of the large frames that the ports accept. A port drops frames that exceed the limits, as a
    /// driver does. Default: the default of [`TsoLimits`].
    pub tso_limits: TsoLimits,
    /// The value of [`PortInfo::point_to_point`](crate::PortInfo::point_to_point). With the default,
    /// connections survive a cable that is unplugged for a while. Default: `false`.
    pub point_to_point: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            mbufs: 8192,
            bulk_mbufs: 0,
            ring_frames: 1024,
            seed: 0,
            a_to_b: LinkPlan::default(),
            b_to_a: LinkPlan::default(),
            checksum_offload: false,
            tso: LinkTso::Off,
            tso_limits: TsoLimits::default(),
            point_to_point: false,
        }
    }
}

impl LinkConfig {
    pub(super) fn offloads(&self) -> Offloads {
        let mut offloads = Offloads::TX_MULTI_SEGMENT | Offloads::TX_EXTERNAL | Offloads::RX_SCATTER;
        if self.checksum_offload {
            offloads |= Offloads::TX_TCP_CHECKSUM | Offloads::RX_TCP_CHECKSUM;
            offloads.set(Offloads::TX_TSO, self.tso != LinkTso::Off);
            offloads.set(Offloads::RX_LRO, self.tso == LinkTso::Whole);
        }
        offloads
    }
}
