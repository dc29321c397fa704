//! The DPDK backend of a pool. A pool consists of a mempool of buffers and a mempool of descriptors. A
//! descriptor has no buffer of its own, and is used for a further view of a buffer or for a view of external
//! memory.
//!
//! Each thread that is registered with EAL has a cache, whose size is a sixteenth of the pool and at most
//! [`CACHE`] buffers. Pools with fewer than [`CACHE`] buffers have no caches. Cached buffers count as
//! available, but other threads cannot allocate them.
//!
//! A DPDK buffer does not keep its pool alive. So a pool without a handle stays in [`ORPHANS`]. Whenever a
//! pool is made or dropped, the pools in [`ORPHANS`] whose buffers are all returned are freed.

use std::ffi::{CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::eal;
use crate::limits::HEADROOM;

const _: () = assert!(HEADROOM == sys::K_HEADROOM as usize, "DPDK was built with another headroom");

/// Maximum size of a thread's cache in buffers: four bursts. (In DPDK a cache may grow to one and a half
/// times this size before DPDK returns buffers to the mempool.)
const CACHE: u32 = 256;

/// `SOCKET_ID_ANY`.
pub(crate) const ANY_NODE: i32 = -1;

/// Maximum number of data bytes of a buffer: in DPDK the length of a buffer with its headroom has 16 bits.
pub(crate) const MAX_DATA_BYTES: usize = u16::MAX as usize - HEADROOM;

pub(crate) struct DpdkPool {
    name: String,
    data_bytes: usize,
    /// The mempool for buffers, which is also in `memory`.
    raw: NonNull<sys::rte_mempool>,
    memory: Arc<PoolMemory>,
}

/// The mempools of a pool. The mempools may be freed later than the pool's handle.
struct PoolMemory {
    buffers: NonNull<sys::rte_mempool>,
    descriptors: NonNull<sys::rte_mempool>,
    /// The shared state of the buffers. The private areas of the two mempools point to this state.
    home: Box<Home>,
    capacity: u32,
    views: u32,
}

/// The shared state of a pool, which is reachable from each buffer.
pub(crate) struct Home {
    /// The mempool of descriptors for further views.
    pub(crate) descriptors: *mut sys::rte_mempool,
    pub(crate) exhausted: AtomicU64,
}

// SAFETY: the pointers refer to mempools, which any thread may use and free (DPDK's ring is for several
// producers and consumers, and each cache belongs to one thread). `Home` has only a pointer to such a mempool
// and an atomic.
unsafe impl Send for PoolMemory {}
// SAFETY: through `&PoolMemory`, threads only count and allocate buffers. Several threads may do so at the
// same time. `Home` has an atomic and a pointer to a mempool, and the pointer is only read.
unsafe impl Sync for PoolMemory {}
// SAFETY: `raw` points to a mempool of `memory`, which any thread may use and free. The other fields are
// `Send`.
unsafe impl Send for DpdkPool {}
// SAFETY: through `&DpdkPool`, threads only count and allocate buffers of `raw`. Several threads may do so at
// the same time. The other fields are `Sync`.
unsafe impl Sync for DpdkPool {}

/// Pools that have no handle, but have buffers in use.
static ORPHANS: Mutex<Vec<Arc<PoolMemory>>> = Mutex::new(Vec::new());

impl DpdkPool {
    /// Makes a pool of `count` buffers with `data_bytes` bytes each on NUMA node `node`, with descriptors for
    /// `views` further views. Returns an error number of DPDK on failure. `name` is for messages and need not
    /// be unique.
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
                // SAFETY: this call has made the mempool, no buffer was allocated, and no other code knows
                // the mempool.
                unsafe { sys::rte_mempool_free(descriptors.as_ptr()) };
            })?;
        let home = Box::new(Home { descriptors: descriptors.as_ptr(), exhausted: AtomicU64::new(0) });
        for pool in [buffers, descriptors] {
            // SAFETY: `mempool` has made the pool.
            let place = unsafe { private(pool.as_ptr()) };
            // SAFETY: `mempool` has reserved room for one pointer behind DPDK's private data. The length of
            // DPDK's data is a multiple of 8, so the pointer is aligned. No other code uses the mempool yet.
            unsafe { place.write(&raw const *home) };
        }
        let memory = Arc::new(PoolMemory { buffers, descriptors, home, capacity: count, views });
        Ok(Arc::new(Self { name: name.to_owned(), data_bytes, raw: buffers, memory }))
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Allocates an empty buffer, which the caller owns. If the pool is empty, counts the failure and returns
    /// `None`.
    pub(crate) fn alloc(&self) -> Option<NonNull<sys::rte_mbuf>> {
        // SAFETY: `memory` keeps the mempool, and several threads may allocate from the mempool at the same
        // time.
        let fresh = NonNull::new(unsafe { sys::rte_pktmbuf_alloc(self.raw()) });
        if fresh.is_none() {
            self.memory.home.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        fresh
    }

    /// Allocates a descriptor (an mbuf without room), which the caller owns. If no descriptor is free, counts
    /// the failure and returns `None`.
    pub(crate) fn descriptor(&self) -> Option<NonNull<sys::rte_mbuf>> {
        let home = &self.memory.home;
        // SAFETY: `memory` keeps the mempool, and several threads may allocate from the mempool at the same
        // time.
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
        // SAFETY: `memory` keeps the mempool, and a thread may count the buffers of a mempool while other
        // threads use it.
        unsafe { sys::rte_mempool_avail_count(self.raw()) as usize }
    }

    /// Whether a device that allocates `burst` buffers at once may find too few free buffers. The check is
    /// cheap while many buffers are free.
    pub(crate) fn is_low(&self, burst: usize) -> bool {
        // SAFETY: `memory` keeps the mempool, and a thread may count the buffers in a mempool's ring while
        // other threads use the mempool.
        let common = unsafe { sys::uwarp_pool_common_count(self.raw()) as usize };
        common < burst && self.available() < burst
    }

    pub(crate) fn exhausted(&self) -> u64 {
        self.memory.home.exhausted.load(Ordering::Relaxed)
    }
}

impl Drop for DpdkPool {
    fn drop(&mut self) {
        // Even if the lock is poisoned, the memory must not be freed before its buffers are returned.
        orphans().push(Arc::clone(&self.memory));
        sweep();
    }
}

impl PoolMemory {
    /// Whether all buffers and views are returned. If the pool has no handle, an unused pool remains unused,
    /// since a new view needs a buffer that is in use.
    fn is_unused(&self) -> bool {
        // SAFETY: only the drop of `self` frees the mempools, and counting their buffers is allowed while
        // other threads use the mempools.
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
            // SAFETY: this is the last reference. The drop of `DpdkPool` has put a reference into `ORPHANS`,
            // and `sweep` removes this reference only when all mbufs of both mempools are returned. Without a
            // `DpdkPool` or an mbuf nobody can allocate an mbuf. Only this code frees the two mempools.
            unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        }
    }
}

/// Frees the pools in [`ORPHANS`] whose buffers are all returned.
fn sweep() {
    if eal::is_forked() {
        return;
    }
    orphans().retain(|memory| !memory.is_unused());
}

fn orphans() -> MutexGuard<'static, Vec<Arc<PoolMemory>>> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the shared state of the buffers of `pool`.
///
/// # Safety
/// [`DpdkPool::new`] has made `pool`. During the whole lifetime `'a` the pool has a handle, or a buffer or
/// view in use.
pub(crate) unsafe fn home<'a>(pool: *mut sys::rte_mempool) -> &'a Home {
    // SAFETY: `DpdkPool::new` makes its mempools with `mempool`, and the caller promises that the pool is in
    // use.
    let place = unsafe { private(pool) };
    // SAFETY: `DpdkPool::new` has written the pointer before it returned, and nobody writes the pointer
    // again.
    let home = unsafe { place.read() };
    // SAFETY: the pointer refers to the box in `PoolMemory`. The box is dropped only when the pool has no
    // handle and no buffer or view in use. The caller promises that the pool has one of these during `'a`.
    unsafe { &*home }
}

/// Returns the address of the pool's pointer to the [`Home`].
///
/// # Safety
/// [`mempool`] has made `pool`, and the pool is not freed.
unsafe fn private(pool: *mut sys::rte_mempool) -> *mut *const Home {
    // SAFETY: `mempool` has made the pool with room for a pointer behind DPDK's part of the private area, and
    // the pool is not freed.
    unsafe { sys::mbuf::pool_private(pool).cast() }
}

/// Makes a packet buffer mempool whose buffers have `room` bytes. The function makes the mempool step by
/// step, since `rte_pktmbuf_pool_create` would reserve no private area for the pointer to the [`Home`].
/// Returns an error number of DPDK on failure.
fn mempool(name: &str, count: u32, room: u16, node: i32) -> Result<NonNull<sys::rte_mempool>, i32> {
    let c_name = CString::new(name).expect("letters and digits");
    // With a cache, a thread first allocates the buffers that it has returned last, which are usually still
    // in its core's CPU cache. In a small pool the threads' caches would hide a large part of the buffers
    // from other threads.
    let cache = if count >= CACHE { (count / 16).min(CACHE) } else { 0 };
    let element = sys::K_MBUF_SIZE as u32 + u32::from(room);
    let private_bytes = sys::K_POOL_PRIVATE_SIZE as u32 + size_of::<*const Home>() as u32;
    // SAFETY: EAL runs, since `DpdkPool::new`, the only caller, has an `Eal`. The call copies the name, a C
    // string.
    let pool = unsafe {
        sys::rte_mempool_create_empty(c_name.as_ptr(), count, element, cache, private_bytes, node, 0)
    };
    let Some(pool) = NonNull::new(pool) else {
        return Err(eal::errno());
    };
    let mut layout = sys::rte_pktmbuf_pool_private { mbuf_data_room_size: room, mbuf_priv_size: 0, flags: 0 };
    // The steps of rte_pktmbuf_pool_create, in the same order.
    //
    // SAFETY: EAL runs. The returned C string is never freed.
    let ops = unsafe { sys::rte_mbuf_best_mempool_ops() };
    // SAFETY: the mempool is new and not populated yet. `ops` is a C string, and these operations need no
    // configuration.
    let mut done = unsafe { sys::rte_mempool_set_ops_byname(pool.as_ptr(), ops, ptr::null_mut()) };
    if done >= 0 {
        // SAFETY: the private area of the mempool is larger than DPDK's structure. The elements of the
        // mempool are as long as an mbuf and the room in `layout`. The call copies `layout`.
        unsafe { sys::rte_pktmbuf_pool_init(pool.as_ptr(), (&raw mut layout).cast::<c_void>()) };
        // SAFETY: the mempool has operations, and is not populated yet.
        done = unsafe { sys::rte_mempool_populate_default(pool.as_ptr()) };
    }
    if done < 0 {
        // SAFETY: this call has made the mempool, no buffer was allocated, and no other code knows the
        // mempool.
        unsafe { sys::rte_mempool_free(pool.as_ptr()) };
        return Err(-done);
    }
    // SAFETY: the mempool is populated, its elements have room for an mbuf, and no element is in use.
    // rte_pktmbuf_init ignores the last argument.
    unsafe { sys::rte_mempool_obj_iter(pool.as_ptr(), Some(sys::rte_pktmbuf_init), ptr::null_mut()) };
    Ok(pool)
}
