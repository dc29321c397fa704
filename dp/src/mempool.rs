//! Pools of packet buffers: fixed in number and size, shared by threads.
//!
//! A pool is named by a [`Mempool`], whichever backend holds the memory: the heap (`mempool/heap.rs`) or a
//! DPDK mempool (`mempool/dpdk.rs`). A pool may be dropped while buffers are still out: its memory stays
//! until they are back.

#[cfg(dpdk)]
pub(crate) mod dpdk;
mod free_list;
pub(crate) mod heap;

use std::fmt;
use std::sync::Arc;

use crate::Mbuf;
use crate::mbuf::Raw;

/// A pool of packet buffers. Cheap to clone: clones name the same pool.
#[derive(Clone)]
pub struct Mempool {
    pub(crate) backend: Backend,
}

/// Where the pool's memory is.
#[derive(Clone)]
pub(crate) enum Backend {
    /// In ordinary memory of this process.
    Heap(Arc<heap::Pool>),
    /// In DPDK's memory.
    #[cfg(dpdk)]
    Dpdk(Arc<dpdk::Pool>),
}

impl Mempool {
    /// A pool of `count` buffers with `data_bytes` each (behind [`HEADROOM`](crate::mbuf::HEADROOM) bytes),
    /// on the heap. No DPDK needed.
    ///
    /// All memory is taken here; allocation later only moves what is there. Beside the buffers there are
    /// `count` descriptors more, for [`Mbuf::share`] and [`Mbuf::external`]: on average every buffer can be
    /// seen twice.
    ///
    /// # Panics
    /// When `count` is 0, or no memory of that size can be had.
    pub fn heap(name: &str, count: usize, data_bytes: usize) -> Self {
        Self { backend: Backend::Heap(heap::Pool::new(name, count, data_bytes)) }
    }

    /// One empty buffer with [`HEADROOM`](crate::mbuf::HEADROOM) bytes in front, or `None` when the pool is
    /// empty (counted).
    pub fn alloc(&self) -> Option<Mbuf> {
        match &self.backend {
            Backend::Heap(pool) => Some(Mbuf::from_raw(Raw::Heap(pool.alloc()?))),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => Some(Mbuf::from_raw(Raw::Dpdk(pool.alloc()?))),
        }
    }

    /// The pool's name, for messages.
    pub fn name(&self) -> &str {
        match &self.backend {
            Backend::Heap(pool) => pool.name(),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => pool.name(),
        }
    }

    /// Room for data in one buffer, bytes, headroom not counted.
    pub fn data_bytes(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.data_bytes(),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => pool.data_bytes(),
        }
    }

    /// Buffers the pool has in all.
    pub fn capacity(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.capacity(),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => pool.capacity(),
        }
    }

    /// Buffers free now (approximate while other threads allocate).
    pub fn available(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.available(),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => pool.available(),
        }
    }

    /// How often a buffer ([`Mempool::alloc`]) or a descriptor ([`Mbuf::share`], [`Mbuf::external`]) was
    /// asked for and none was left.
    pub fn exhausted(&self) -> u64 {
        match &self.backend {
            Backend::Heap(pool) => pool.exhausted(),
            #[cfg(dpdk)]
            Backend::Dpdk(pool) => pool.exhausted(),
        }
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("name", &self.name())
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .field("data_bytes", &self.data_bytes())
            .finish()
    }
}
