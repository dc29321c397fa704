//! What every port has, and the answers of a port that has no more.

use std::os::fd::BorrowedFd;

use super::{DeviceStats, Link, LinkState, Port, PortCounters, PortInfo, PortLayer, Sleep, Statistics};
use crate::{Burst, Mempool};

/// The description, the pools and the counters of a port. A device stands on one ([`PortLayer`]).
///
/// By itself a base is a port without a device: its link is down, it receives nothing, drops and counts what it
/// is given to send, and has nothing to wait for.
#[derive(Debug)]
pub struct PortBase {
    /// See [`Port::info`].
    pub info: PortInfo,
    /// See [`Port::mempool`].
    pub mempool: Mempool,
    /// See [`Port::bulk_mempool`].
    pub bulk_mempool: Option<Mempool>,
    /// See [`Statistics::counters`].
    pub counters: PortCounters,
}

impl PortBase {
    /// A base without large buffers, whose counters are zero.
    pub fn new(info: PortInfo, mempool: Mempool) -> Self {
        Self { info, mempool, bulk_mempool: None, counters: PortCounters::default() }
    }
}

/// There is no port below a base, so a base has to define every function: one that was left out would call
/// itself.
impl PortLayer for PortBase {
    fn below(&self) -> &dyn Port {
        self
    }

    fn below_mut(&mut self) -> &mut dyn Port {
        self
    }
}

#[deny(clippy::missing_trait_methods)]
impl Port for PortBase {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn mempool(&self) -> &Mempool {
        &self.mempool
    }

    fn bulk_mempool(&self) -> Option<&Mempool> {
        self.bulk_mempool.as_ref()
    }

    fn rx_burst(&mut self, _now_us: u64, _frames: &mut Burst) -> usize {
        0
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.drain(..).count();
        self.counters.tx_link_down += count as u64;
        count
    }
}

#[deny(clippy::missing_trait_methods)]
impl Link for PortBase {
    fn link_state(&mut self) -> LinkState {
        LinkState::Down
    }

    fn passes_large_frames(&self) -> bool {
        false
    }

    fn next_departed(&mut self) -> Option<[u8; 6]> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl Sleep for PortBase {
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_wakeup(&mut self) -> bool {
        true
    }

    fn disarm_wakeup(&mut self) {}

    fn next_due_us(&self) -> Option<u64> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl Statistics for PortBase {
    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        None
    }

    fn shared_memory_bytes(&self) -> u64 {
        0
    }
}
