//! A wire in memory: two ports connected by rings, with a seeded plan of faults.
//!
//! Frames without a fault are moved, not copied: the receiver gets the sender's own buffer, and if the
//! sender kept a view of it, the bytes are read-only for both. Duplicated or corrupted frames are copied
//! first. The same seed, frames and times give the same result; the faults of a frame depend only on the
//! seed and its ordinal in its direction.
//!
//! A plan with delay or reordering needs a common clock at both ends.

mod config;
mod faults;
mod port;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

pub use config::{LinkConfig, LinkPlan, LinkTso};
pub use wire::LinkFaults;

use crate::{Mempool, Port};
use port::{LinkPort, Shared};

impl LinkConfig {
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
    let shared = Arc::new(Shared::new());
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

    /// Takes the device of the first port away for good, as if a NIC were unplugged. The second port has no
    /// link from then on.
    pub fn take_away_a(&self) {
        self.shared.take_away(0);
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
