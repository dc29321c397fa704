//! Pools of packet buffers: fixed in number and size, shared by threads.

use crate::Mbuf;

/// A pool of packet buffers. Cheap to clone: clones name the same pool.
#[derive(Clone)]
pub struct Mempool {}

impl Mempool {
    /// A pool of `count` buffers with `data_octets` each (behind `headroom_octets`), on the heap. No DPDK needed.
    ///
    /// All memory is taken here; allocation later only moves indices.
    pub fn heap(name: &str, count: usize, data_octets: usize) -> Self {
        let _ = (name, count, data_octets);
        todo!()
    }

    /// One empty buffer with [`HEADROOM`](crate::mbuf::HEADROOM) octets in front, or `None` when the pool is empty (counted).
    pub fn alloc(&self) -> Option<Mbuf> {
        todo!()
    }

    /// Room for data in one buffer, octets, headroom not counted.
    pub fn data_octets(&self) -> usize {
        todo!()
    }

    /// Buffers the pool has in all.
    pub fn capacity(&self) -> usize {
        todo!()
    }

    /// Buffers free now (approximate while other threads allocate).
    pub fn available(&self) -> usize {
        todo!()
    }

    /// How often [`Mempool::alloc`] found nothing.
    pub fn exhausted(&self) -> u64 {
        todo!()
    }
}
