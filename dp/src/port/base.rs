//! What every device has.

use super::{PortCounters, PortInfo};
use crate::Mempool;

/// The description, the pools and the counters of a device: what its port is a layer on
/// ([`PortLayer`](crate::PortLayer)).
///
/// By itself a base is a port without a device: its link is down, it receives nothing, drops and counts what
/// it is given to send, and has nothing to wait for.
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
