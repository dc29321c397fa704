//! A wire in memory: two ports joined by rings, with a seeded plan of what goes wrong on the way.
//!
//! Frames that the plan leaves alone are moved, not copied: the receiver gets the sender's own buffer, and
//! where the sender kept a view of it, the bytes are read-only for both. Frames that the plan duplicates or
//! corrupts are copied first. The same seed, frames and times give the same result; which frame has which
//! fate depends on nothing but the seed and its ordinal in its direction.
//!
//! A plan without delay and reordering needs no common clock at both ends; one with either does.

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
    /// Frames lost.
    pub drop_ppm: u32,
    /// Frames sent twice.
    pub duplicate_ppm: u32,
    /// Frames held back by `reorder_us`.
    pub reorder_ppm: u32,
    /// How long a reordered frame is held back, microseconds.
    pub reorder_us: u32,
    /// Frames of which one bit is turned.
    pub corrupt_ppm: u32,
    /// Time on the wire, microseconds.
    pub delay_us: u32,
    /// Frames whose ordinal (from 0, in this direction) is listed are lost, whatever the probabilities say.
    pub drop_exactly: Vec<u64>,
}

/// What a link does with large TCP frames that are to be cut at
/// [`TxOffload::tso_segment_bytes`](crate::TxOffload).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkTso {
    /// Its ports take none.
    #[default]
    Off,
    /// They cut them, as a network card does: what arrives are frames of the MTU.
    Cut,
    /// They pass them as they are, as virtio does: what arrives are large frames.
    Whole,
}

/// How a link is made.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// IP MTU of both ports.
    pub mtu: u16,
    /// Buffers in the pool of each port.
    pub mbufs: usize,
    /// Large buffers of each port, for what is sent in bulk; none by default.
    pub bulk_mbufs: usize,
    /// Frames one direction holds before its sender sees a full ring.
    pub ring_frames: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// From the first port to the second.
    pub a_to_b: LinkPlan,
    /// From the second port to the first.
    pub b_to_a: LinkPlan,
    /// Whether the ports leave TCP checksums out, as virtio does: a frame sent with
    /// [`TxOffload::tcp_checksum`](crate::TxOffload) arrives as [`Checksum::Partial`](crate::Checksum).
    /// Without it every frame arrives as [`Checksum::Unknown`](crate::Checksum).
    pub checksum_offload: bool,
    /// What becomes of large frames. Needs `checksum_offload`.
    pub tso: LinkTso,
    /// Which of them the ports take; others are dropped, as a driver does.
    pub tso_limits: TsoLimits,
    /// What the ports say they are ([`Port::is_point_to_point`]); not by default, so that connections outlive
    /// a cable that is pulled for a while.
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

/// Two ports joined by a wire in memory. Either end may move to another thread. Dropping one end takes the
/// other's link down; frames on their way still arrive.
pub fn pair(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = pair_with_control(config);
    (a, b)
}

/// As [`pair`], over existing pools, the first port's first. A caller that makes many links of one
/// configuration, one after the other, keeps the buffers. Buffers that one link did not give back are missing
/// in the next.
pub fn pair_over(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>) {
    let (a, b, _control) = controlled(config, pools);
    (a, b)
}

/// As [`pair`], with a hand on the wire: to cut it, and to see what the plan did.
pub fn pair_with_control(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    controlled(config, &config.pools())
}

fn controlled(config: &LinkConfig, pools: &[Mempool; 2]) -> (Box<dyn Port>, Box<dyn Port>, LinkControl) {
    let shared = Arc::new(Shared::new(config));
    let [a, b] = LinkPort::both(config, &shared, pools);
    (Box::new(a), Box::new(b), LinkControl { shared })
}

/// A hand on the wire of a link, from any thread.
#[derive(Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Plugs the cable in or pulls it, for both ends. A link one of whose ends is gone stays down.
    pub fn set_up(&self, up: bool) {
        self.shared.plug(up);
    }

    /// What the plan did so far to frames from the first port to the second.
    pub fn faults_a_to_b(&self) -> LinkFaults {
        self.shared.wire(0).faults.snapshot()
    }

    /// What the plan did so far to frames from the second port to the first.
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
