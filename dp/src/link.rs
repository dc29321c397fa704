//! A wire in memory: two ports joined by rings, with a seeded plan of what goes wrong on the way.

use crate::Port;

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

/// How a link is made.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// IP MTU of both ports.
    pub mtu: u16,
    /// Buffers in the pool of each port.
    pub mbufs: usize,
    /// Frames one direction holds before its sender sees a full ring.
    pub ring_frames: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// From the first port to the second.
    pub a_to_b: LinkPlan,
    /// From the second port to the first.
    pub b_to_a: LinkPlan,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            mbufs: 8192,
            ring_frames: 1024,
            seed: 0,
            a_to_b: LinkPlan::default(),
            b_to_a: LinkPlan::default(),
        }
    }
}

/// Two ports joined by a wire in memory. Either end may move to another thread. Dropping one end takes the
/// other's link down.
pub fn pair(config: &LinkConfig) -> (Box<dyn Port>, Box<dyn Port>) {
    let _ = config;
    todo!()
}
