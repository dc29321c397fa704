//! The base of every device's port.

use super::{PortCounters, PortInfo};
use crate::Mempool;

/// The description, the pools and the counters of a device: the layer below its port
/// ([`PortLayer`](crate::PortLayer)).
///
/// A base is also a port without a device: its link is down, it receives nothing, and it drops and counts all
/// frames to send.
#[derive(Debug)]
pub struct PortBase {
    /// See [`Port::info`](crate::Port::info).
    pub info: PortInfo,
    /// See [`Port::mempool`](crate::Port::mempool).
    pub mempool: Mempool,
    /// See [`Port::bulk_mempool`](crate::Port::bulk_mempool).
    pub bulk_mempool: Option<Mempool>,
    /// See [`Statistics::counters`](crate::Statistics::counters).
    pub counters: PortCounters,
}

impl PortBase {
    /// A base without large buffers, whose counters are zero.
    pub fn new(info: PortInfo, mempool: Mempool) -> Self {
        Self { info, mempool, bulk_mempool: None, counters: PortCounters::default() }
    }
}
