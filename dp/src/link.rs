//! A wire in memory: two ports connected by rings, with a seeded plan of faults.
//!
//! Frames without a fault are moved, not copied: the receiver gets the sender's own buffer, and if the
//! sender kept a view of it, the bytes are read-only for both. Duplicated or corrupted frames are copied
//! first. The same seed, frames and times give the same result; the faults of a frame depend only on the
//! seed and its ordinal in its direction.
//!
//! A plan with delay or reordering needs a common clock at both ends.

mod faults;
mod port;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

pub use wire::LinkFaults;

use crate::{Mempool, Offloads, Port, TsoLimits};
use port::{LinkPort, Shared};

/// What each direction of a link does to frames. Probabilities are parts per million.
#[derive(Clone, Debug, Default)]
pub struct LinkPlan {
    /// Probability that a frame is lost.
    pub drop_ppm: u32,
    /// Probability that a frame is sent twice.
    pub duplicate_ppm: u32,
    /// Probability that a frame is held back by `reorder_us`.
    pub reorder_ppm: u32,
    /// How long a reordered frame is held back, microseconds.
    pub reorder_us: u32,
    /// Probability that one bit of a frame is flipped.
    pub corrupt_ppm: u32,
    /// Time on the wire, microseconds.
    pub delay_us: u32,
    /// Ordinals (from 0, in this direction) of frames that are lost, whatever the probabilities are.
    pub drop_exactly: Vec<u64>,
}

/// How a link handles large TCP frames that are to be cut at
/// [`TxOffload::tso_segment_bytes`](crate::TxOffload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkTso {
    /// Its ports take none.
    #[default]
    Off,
    /// They cut them, as a NIC does: frames of the MTU arrive.
    Cut,
    /// They pass them uncut, as virtio does: large frames arrive.
    Whole,
}

/// Configuration of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// IP MTU of both ports.
    pub mtu: u16,
    /// Buffers in the pool of each port.
    pub mbufs: usize,
    /// Large buffers of each port, for bulk sending; none by default.
    pub bulk_mbufs: usize,
    /// Frames in flight in one direction at which its sender sees a full ring.
    pub ring_frames: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Faults from the first port to the second.
    pub a_to_b: LinkPlan,
    /// Faults from the second port to the first.
    pub b_to_a: LinkPlan,
    /// Whether the ports leave TCP checksums unfilled, as virtio does: a frame sent with
    /// [`TxOffload::tcp_checksum`](crate::TxOffload) arrives as [`Checksum::Partial`](crate::Checksum).
    /// Otherwise every frame arrives as [`Checksum::Unknown`](crate::Checksum).
    pub checksum_offload: bool,
    /// Handling of large frames. Needs `checksum_offload`.
    pub tso: LinkTso,
    /// Large frames that the ports take; others are dropped, as a driver does.
    pub tso_limits: TsoLimits,
    /// The value of [`Port::is_point_to_point`]. `false` by default, so that connections survive a cable
    /// that is pulled for a while.
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
    fn offloads(&self) -> Offloads {
        let mut offloads = Offloads::TX_MULTI_SEGMENT | Offloads::RX_SCATTER;
        if self.checksum_offload {
            offloads |= Offloads::TX_TCP_CHECKSUM | Offloads::RX_TCP_CHECKSUM;
            offloads.set(Offloads::TX_TSO, self.tso != LinkTso::Off);
            offloads.set(Offloads::RX_LRO, self.tso == LinkTso::Whole);
        }
        offloads
    }

    /// A pool for each end, as [`pair`] makes them.
    pub fn pools(&self) -> [Mempool; 2] {
        port::NAMES.map(|name| Mempool::heap(name, self.mbufs, port::data_bytes(self)))
    }
}

/// Two ports connected by a wire in memory. Either end may move to another thread. Dropping one end
/// takes the other's link down; frames in flight still arrive.
pub fn pair(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = pair_with_control(config);
    (a, b)
}

/// As [`pair`], with existing pools, the first port's first. For callers that make many links of one
/// configuration one after the other. Buffers that one link did not free are missing in the next.
pub fn pair_over(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = controlled(config, pools);
    (a, b)
}

/// As [`pair`], with a handle to the wire: to take the link down, and to count the faults.
pub fn pair_with_control(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    controlled(config, &config.pools())
}

fn controlled(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    let shared = Arc::new(Shared::new(config));
    let [a, b] = LinkPort::both(config, &shared, pools);
    (Box::new(a), Box::new(b), LinkControl { shared })
}

/// A handle to the wire of a link, usable from any thread.
#[derive(Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Connects or disconnects the cable, for both ends. A link stays down once one of its ends is gone.
    pub fn set_up(&self, up: bool) {
        self.shared.set_plugged(up);
    }

    /// Faults so far of frames from the first port to the second.
    pub fn faults_a_to_b(&self) -> LinkFaults {
        self.shared.wire(0).faults.snapshot()
    }

    /// Faults so far of frames from the second port to the first.
    pub fn faults_b_to_a(&self) -> LinkFaults {
        self.shared.wire(1).faults.snapshot()
    }
}

impl std::fmt::Debug for LinkControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkControl")
            .field("a_to_b", &self.faults_a_to_b())
            .field("b_to_a", &self.faults_b_to_a())
            .finish()
    }
}
