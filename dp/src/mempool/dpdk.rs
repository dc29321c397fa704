//! The DPDK backend of a pool: a mempool of buffers, and one of bare descriptors for further views of
//! them.
//!
//! Every thread registered with EAL caches up to [`CACHE`] buffers. Cached buffers count as available, but
//! other threads cannot get them.
//!
//! A DPDK buffer does not keep its pool alive. A pool is freed only when all its buffers are back. Until
//! then it stays in [`ORPHANS`], which is swept when a pool is made or dropped.

use std::ffi::{CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::eal;
use crate::limits::HEADROOM;

const _: () = assert!(HEADROOM == sys::K_HEADROOM as usize, "DPDK was built with another headroom");

/// Maximum buffers that a thread caches: four bursts. (DPDK lets a cache grow to one and a half times this
/// size before it returns buffers.)
const CACHE: u32 = 256;

/// `SOCKET_ID_ANY`.
pub(crate) const ANY_NODE: i32 = -1;

/// Largest buffer, bytes: DPDK counts a buffer's bytes, headroom included, in 16 bits.
pub(crate) const MAX_DATA_BYTES: usize = u16::MAX as usize - HEADROOM;

/// A pool in DPDK's memory.
pub(crate) struct DpdkPool {
    name: String,
    data_bytes: usize,
    /// The mempool of `memory` for buffers.
    raw: NonNull<sys::rte_mempool>,
    memory: Arc<PoolMemory>,
}

/// The mempools, which may outlive the handle.
struct PoolMemory {
    buffers: NonNull<sys::rte_mempool>,
    descriptors: NonNull<sys::rte_mempool>,
    /// Shared state of the buffers: both mempools point to it from their private areas.
    home: Box<Home>,
    capacity: u32,
    views: u32,
}

/// Shared state that a buffer finds through its pool.
pub(crate) struct Home {
    /// The mempool of descriptors for further views.
    pub(crate) descriptors: *mut sys::rte_mempool,
    /// Number of failed allocations.
    pub(crate) exhausted: AtomicU64,
}

// SAFETY: the pointers are to mempools, which any thread may use and free (DPDK's ring is for several
// producers and consumers, and caches belong to threads). `Home` has a pointer of the same kind and an
// atomic.
unsafe impl Send for PoolMemory {}
// SAFETY: through `&PoolMemory` mempools are only counted and allocated from, which several threads may do at
// once. `Home` has an atomic, and its pointer to a mempool is only read.
unsafe impl Sync for PoolMemory {}
// SAFETY: `raw` points to a mempool of `memory`, which any thread may use and free. The other fields are
// `Send`.
unsafe impl Send for DpdkPool {}
// SAFETY: through `&DpdkPool` the mempool of `raw` is only counted and allocated from, which several threads
// may do at once. The other fields are `Sync`.
unsafe impl Sync for DpdkPool {}

/// Pools without a handle whose buffers are not all back.
static ORPHANS: Mutex<Vec<Arc<PoolMemory>>> = Mutex::new(Vec::new());

impl DpdkPool {
    /// A pool of `count` buffers of `data_bytes` each on NUMA node `node`, with descriptors for `views`
    /// further views; on failure an error number of DPDK. `name` is for messages and need not be unique.
    pub(crate) fn new(
        _eal: eal::Eal,
        name: &str,
        (count, views): (u32, u32),
        data_bytes: usize,
        node: i32,
    ) -> Result<Arc<Self>, i32> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        assert!(count > 0, "a pool needs at least one buffer");
        assert!(data_bytes <= MAX_DATA_BYTES, "DPDK's buffers hold {MAX_DATA_BYTES} bytes at most");
        sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let descriptors = mempool(&format!("dp_d{number}"), views, 0, node)?;
        let buffers = mempool(&format!("dp_b{number}"), count, (HEADROOM + data_bytes) as u16, node)
            .inspect_err(|_| {
                // SAFETY: this call made the mempool, nothing was taken from it, and nobody else knows it.
                unsafe { sys::rte_mempool_free(descriptors.as_ptr()) };
            })?;
        let home = Box::new(Home { descriptors: descriptors.as_ptr(), exhausted: AtomicU64::new(0) });
        for pool in [buffers, descriptors] {
            // SAFETY: `mempool` made both.
            let place = unsafe { private(pool.as_ptr()) };
            // SAFETY: `mempool` leaves room for one pointer behind DPDK's private data, which has a multiple
            // of 8 bytes, so the place is aligned. Nobody else uses the mempool yet.
            unsafe { place.write(&raw const *home) };
        }
        let memory = Arc::new(PoolMemory { buffers, descriptors, home, capacity: count, views });
        Ok(Arc::new(Self { name: name.to_owned(), data_bytes, raw: buffers, memory }))
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// An empty buffer, whose owner is the caller.
    pub(crate) fn alloc(&self) -> Option<NonNull<sys::rte_mbuf>> {
        // SAFETY: `memory` keeps the mempool, and several threads may allocate from it at once.
        let fresh = NonNull::new(unsafe { sys::rte_pktmbuf_alloc(self.raw()) });
        if fresh.is_none() {
            self.memory.home.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        fresh
    }

    /// A descriptor, an mbuf without room, whose owner is the caller.
    pub(crate) fn descriptor(&self) -> Option<NonNull<sys::rte_mbuf>> {
        let home = &self.memory.home;
        // SAFETY: `memory` keeps the mempool, and several threads may allocate from it at once.
        let fresh = NonNull::new(unsafe { sys::rte_pktmbuf_alloc(home.descriptors) });
        if fresh.is_none() {
            home.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        fresh
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity as usize
    }

    pub(crate) fn available(&self) -> usize {
        // SAFETY: `memory` keeps the mempool, and counting it is allowed while other threads use it.
        unsafe { sys::rte_mempool_avail_count(self.raw()) as usize }
    }

    /// Whether a device that takes `burst` buffers at once may find too few. Cheap while many buffers are
    /// free.
    pub(crate) fn is_low(&self, burst: usize) -> bool {
        // SAFETY: `memory` keeps the mempool, and counting its ring is allowed while other threads use it.
        let common = unsafe { sys::uwarp_pool_common_count(self.raw()) as usize };
        common < burst && self.available() < burst
    }

    pub(crate) fn exhausted(&self) -> u64 {
        self.memory.home.exhausted.load(Ordering::Relaxed)
    }
}

impl Drop for DpdkPool {
    fn drop(&mut self) {
        // Even if the lock is poisoned, the memory has to stay until its buffers are back.
        orphans().push(Arc::clone(&self.memory));
        sweep();
    }
}

impl PoolMemory {
    /// Whether no mbuf and no view is in use. Once the pool has no handle, nobody can take more, since a
    /// view is only made of a buffer that is in use.
    fn is_unused(&self) -> bool {
        // SAFETY: only the drop of `self` frees the mempool, and counting it is allowed while other threads
        // use it.
        let count = |pool: NonNull<sys::rte_mempool>| unsafe { sys::rte_mempool_avail_count(pool.as_ptr()) };
        count(self.buffers) == self.capacity && count(self.descriptors) == self.views
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if eal::is_forked() {
            return;
        }
        for pool in [self.buffers, self.descriptors] {
            // SAFETY: this is the last reference. The drop of `DpdkPool` left another one in `ORPHANS`, which
            // only `sweep` removes, when all mbufs of both mempools are back; and nobody can take one without
            // a `DpdkPool` or an mbuf. Both mempools are freed here only.
            unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        }
    }
}

/// Frees the waiting pools whose buffers are all back.
fn sweep() {
    if eal::is_forked() {
        return;
    }
    orphans().retain(|memory| !memory.is_unused());
}

fn orphans() -> MutexGuard<'static, Vec<Arc<PoolMemory>>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shared state of the buffers of `pool`.
///
/// # Safety
/// `pool` was made by [`DpdkPool::new`], and during all of `'a` it has a handle, or a buffer or view in use.
pub(crate) unsafe fn home<'a>(pool: *mut sys::rte_mempool) -> &'a Home {
    // SAFETY: `DpdkPool::new` makes its mempools with `mempool`, and the caller promises one that is in use.
    let place = unsafe { private(pool) };
    // SAFETY: `DpdkPool::new` wrote a pointer there before it returned, and nobody writes there again.
    let home = unsafe { place.read() };
    // SAFETY: the pointer is that of the box in `PoolMemory`, which is dropped with the mempools: after the
    // pool has neither a handle nor a buffer or view in use, which the caller excludes during `'a`.
    unsafe { &*home }
}

/// Address of the pointer to the [`Home`].
///
/// # Safety
/// `pool` was made by [`mempool`], and is not freed.
unsafe fn private(pool: *mut sys::rte_mempool) -> *mut *const Home {
    // SAFETY: the caller promises a live mempool of `mempool`, which gives each a private area with room for
    // a pointer behind DPDK's part of it.
    unsafe { sys::mbuf::pool_private(pool).cast() }
}

/// A packet buffer mempool whose buffers have `room` bytes. Built step by step, since
/// `rte_pktmbuf_pool_create` leaves no private area for us.
fn mempool(name: &str, count: u32, room: u16, node: i32) -> Result<NonNull<sys::rte_mempool>, i32> {
    let c_name = CString::new(name).expect("letters and digits");
    // With a cache, a thread first takes the buffers that it returned last, which are in its core's CPU
    // cache. In a small pool a per-thread cache would hide a large part of the buffers from other threads.
    let cache = if count >= CACHE { (count / 16).min(CACHE) } else { 0 };
    let element = sys::K_MBUF_SIZE as u32 + u32::from(room);
    let private_bytes = sys::K_POOL_PRIVATE_SIZE as u32 + size_of::<*const Home>() as u32;
    // SAFETY: EAL runs, since `DpdkPool::new`, the only caller, has an `Eal`. The name is a C string, which
    // is copied.
    let pool = unsafe {
        sys::rte_mempool_create_empty(c_name.as_ptr(), count, element, cache, private_bytes, node, 0)
    };
    let Some(pool) = NonNull::new(pool) else {
        return Err(eal::errno());
    };
    let mut layout = sys::rte_pktmbuf_pool_private { mbuf_data_room_size: room, mbuf_priv_size: 0, flags: 0 };
    // The steps of rte_pktmbuf_pool_create, in its order.
    //
    // SAFETY: EAL runs; returns a C string that stays.
    let ops = unsafe { sys::rte_mbuf_best_mempool_ops() };
    // SAFETY: a new mempool, which is not populated yet; `ops` is a C string, and these need no
    // configuration.
    let mut done = unsafe { sys::rte_mempool_set_ops_byname(pool.as_ptr(), ops, ptr::null_mut()) };
    if done >= 0 {
        // SAFETY: the private area of the mempool is larger than DPDK's structure, and its elements have the
        // length of an mbuf and the room that `layout` names. `layout` is copied.
        unsafe { sys::rte_pktmbuf_pool_init(pool.as_ptr(), (&raw mut layout).cast::<c_void>()) };
        // SAFETY: a mempool with operations, which is not populated yet.
        done = unsafe { sys::rte_mempool_populate_default(pool.as_ptr()) };
    }
    if done < 0 {
        // SAFETY: this call made the mempool, nothing was taken from it, and nobody else knows it.
        unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        return Err(-done);
    }
    // SAFETY: the mempool is populated, its elements hold an mbuf, and none is in use. rte_pktmbuf_init takes
    // no argument of its own.
    unsafe { sys::rte_mempool_obj_iter(pool.as_ptr(), Some(sys::rte_pktmbuf_init), ptr::null_mut()) };
    Ok(pool)
}
