//! The base of every device's port.

use super::{PortCounters, PortInfo};
use crate::Mempool;

/// The description, the pools and the counters of a device. A base is the layer below the device's port
/// ([`PortLayer`](crate::PortLayer)).
///
/// A base is also a port without a device: the link of this port is down. The port receives nothing, and it
/// drops and counts all frames to send.
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
    /// Makes a base without large buffers. All counters are zero.
    pub fn new(info: PortInfo, mempool: Mempool) -> Self {
        Self { info, mempool, bulk_mempool: None, counters: PortCounters::default() }
    }
}
