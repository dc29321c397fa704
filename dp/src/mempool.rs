//! Pools of packet buffers. The number and size of a pool's buffers are fixed. Threads can share a pool.
//!
//! A [`Mempool`] is a handle to a pool of one of the backends: heap (`mempool/heap.rs`) or DPDK mempool
//! (`mempool/dpdk.rs`). The handle may be dropped while buffers are in use. The memory is freed after all
//! handles are dropped and all buffers are returned.

#[cfg(feature = "dpdk")]
pub(crate) mod dpdk;
#[cfg(feature = "dpdk")]
mod ext_shared;
pub(crate) mod external;
mod free_list;
pub(crate) mod heap;
pub(crate) mod slab;

use std::fmt;
use std::sync::Arc;

pub use external::ExtBuf;

/// A pool of packet buffers. Cheap to clone: clones refer to the same pool.
#[derive(Clone)]
pub struct Mempool {
    pub(crate) backend: Backend,
}

#[derive(Clone)]
pub(crate) enum Backend {
    /// Ordinary memory of this process.
    Heap(Arc<heap::HeapPool>),
    /// DPDK's memory.
    #[cfg(feature = "dpdk")]
    Dpdk(Arc<dpdk::DpdkPool>),
}

impl Mempool {
    /// Makes a pool on the heap, with `count` buffers of `data_bytes` bytes each. In front of these bytes,
    /// each buffer has [`HEADROOM`](crate::mbuf::HEADROOM) bytes. The pool needs no DPDK.
    ///
    /// This call allocates all memory. The pool also has `count` additional descriptors for
    /// [`Mbuf::share`](crate::Mbuf::share) and [`Mbuf::external`](crate::Mbuf::external), so each buffer can
    /// have two views on average.
    ///
    /// # Panics
    /// If `count` is 0 or at least 2^31, or if the pool is too large for the address space. (If the system
    /// has no memory for the pool, the process is aborted.)
    pub fn heap(name: &str, count: usize, data_bytes: usize) -> Self {
        Self { backend: Backend::Heap(heap::HeapPool::new(name, count, data_bytes)) }
    }

    /// Makes a pool like [`heap`](Self::heap), whose buffers are in `backing`. If the system has no memory
    /// for a buffer, the pool counts as empty.
    ///
    /// # Panics
    /// If `count` is 0 or at least 2^31, or if the buffers exceed the backing.
    #[cfg(target_os = "linux")]
    pub(crate) fn backed(
        name: &str,
        count: usize,
        data_bytes: usize,
        backing: Arc<dyn slab::Backing>,
    ) -> Self {
        Self { backend: Backend::Heap(heap::HeapPool::backed(name, count, data_bytes, backing)) }
    }

    /// The pool's name, for messages.
    pub fn name(&self) -> &str {
        match &self.backend {
            Backend::Heap(pool) => pool.name(),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => pool.name(),
        }
    }

    /// Capacity of one buffer in bytes, without the headroom.
    pub fn data_bytes(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.data_bytes(),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => pool.data_bytes(),
        }
    }

    /// Total number of buffers.
    pub fn capacity(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.capacity(),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => pool.capacity(),
        }
    }

    /// Number of free buffers. The number is approximate while other threads allocate or free buffers.
    pub fn available(&self) -> usize {
        match &self.backend {
            Backend::Heap(pool) => pool.available(),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => pool.available(),
        }
    }

    /// Number of failed requests for a buffer ([`Mempool::alloc`]) or a descriptor
    /// ([`Mbuf::share`](crate::Mbuf::share), [`Mbuf::external`](crate::Mbuf::external)).
    pub fn exhausted(&self) -> u64 {
        match &self.backend {
            Backend::Heap(pool) => pool.exhausted(),
            #[cfg(feature = "dpdk")]
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
