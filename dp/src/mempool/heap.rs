//! The heap backend of a pool: one slab of blocks, their view counts, and the free descriptors.
//!
//! A *block* is the storage of one buffer (headroom and data). A *descriptor* ([`Segment`]) is one view
//! of a block. A free descriptor is in one of two lists: `buffers`, bound to a free block, or `spares`,
//! unbound and meant for further views. There are `count` blocks and `2 * count` descriptors, and each
//! block always has at least one descriptor, so neither list ever holds more than `count`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::free_list::FreeList;
use crate::mbuf::HEADROOM;
use crate::mbuf::heap::{Handle, HeapChain, Segment, Storage};

/// Blocks start on a cache line of their own.
const BLOCK_ALIGN: usize = 64;

/// A pool on the heap.
pub(crate) struct HeapPool {
    name: String,
    data_bytes: usize,
    slab: Slab,
    /// Number of views of each block; 0 or 1 while it is free.
    views: Box<[AtomicU32]>,
    /// Free descriptors, each with a free block.
    buffers: FreeList<Box<Segment>>,
    /// Free descriptors without a block.
    spares: FreeList<Box<Segment>>,
    exhausted: AtomicU64,
}

impl HeapPool {
    pub(crate) fn new(name: &str, count: usize, data_bytes: usize) -> Arc<Self> {
        assert!(count > 0, "a pool needs at least one buffer");
        assert!(count <= u32::MAX as usize / 2, "{count} buffers are too many for one pool");
        let pool = Self {
            name: name.to_owned(),
            data_bytes,
            slab: Slab::new(count, HEADROOM + data_bytes),
            views: (0..count).map(|_| AtomicU32::new(0)).collect(),
            buffers: FreeList::new(count),
            spares: FreeList::new(count),
            exhausted: AtomicU64::new(0),
        };
        for block in 0..count as u32 {
            pool.buffers.push(Box::new(Segment::free(Storage::Block(block))));
            pool.spares.push(Box::new(Segment::free(Storage::None)));
        }
        Arc::new(pool)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    pub(crate) fn capacity(&self) -> usize {
        self.views.len()
    }

    pub(crate) fn available(&self) -> usize {
        self.buffers.len()
    }

    pub(crate) fn exhausted(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Bytes of one block, headroom included.
    pub(crate) fn block_bytes(&self) -> usize {
        HEADROOM + self.data_bytes
    }

    /// First byte of a block; valid for [`HeapPool::block_bytes`] and initialised.
    pub(crate) fn block(&self, block: u32) -> NonNull<u8> {
        self.slab.block(block as usize)
    }

    /// An empty buffer.
    pub(crate) fn alloc(self: &Arc<Self>) -> Option<HeapChain> {
        let mut segment = self.counted(self.buffers.pop())?;
        let Storage::Block(block) = segment.storage else {
            unreachable!("`buffers` holds only descriptors bound to a block");
        };
        // Relaxed: the thread that pushed the descriptor had the last view, and the list's lock orders
        // its accesses before ours.
        self.views[block as usize].store(1, Ordering::Relaxed);
        segment.reset(Arc::clone(self), HEADROOM, 0);
        Some(HeapChain::new(Handle::new(segment)))
    }

    /// A descriptor for another view, not yet bound.
    pub(crate) fn spare(self: &Arc<Self>) -> Option<Box<Segment>> {
        let mut segment = self.counted(self.spares.pop())?;
        segment.reset(Arc::clone(self), 0, 0);
        Some(segment)
    }

    /// Counts one more view of `block`; the caller must have one.
    pub(crate) fn add_view(&self, block: u32) {
        // Relaxed, as in `Arc::clone`: the new view is made from one that exists.
        let before = self.views[block as usize].fetch_add(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a view is made from a view");
    }

    /// Whether `block`, of which the caller has a view, has another one.
    pub(crate) fn is_shared(&self, block: u32) -> bool {
        // Acquire pairs with the Release in `free`: reads through a dropped view happen before our
        // writes.
        self.views[block as usize].load(Ordering::Acquire) > 1
    }

    /// Takes a descriptor back, with its block if this was the last view.
    pub(crate) fn free(&self, mut segment: Box<Segment>) {
        if let Storage::Block(block) = segment.storage
            && self.drop_view(block)
        {
            return self.buffers.push(segment);
        }
        // Drops the reference to external storage, if there is one.
        segment.storage = Storage::None;
        self.spares.push(segment);
    }

    /// Ends one view of `block`; returns whether it was the last.
    fn drop_view(&self, block: u32) -> bool {
        // Fast path without a locked instruction: if ours is the only view, no other can be made. The
        // count stays at 1, as `alloc` sets it.
        if !self.is_shared(block) {
            return true;
        }
        if self.views[block as usize].fetch_sub(1, Ordering::Release) > 1 {
            return false;
        }
        // Pairs with the Release of the other views, as in `Arc::drop`.
        fence(Ordering::Acquire);
        true
    }

    fn counted<T>(&self, found: Option<T>) -> Option<T> {
        if found.is_none() {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        found
    }
}

/// Equal blocks in one allocation, zeroed so that no byte is ever uninitialised.
struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    stride: usize,
    count: usize,
}

// SAFETY: a `Slab` only returns addresses. Reads and writes of a block follow the pool's view counts and the
// ownership of descriptors (see `mbuf/heap.rs`), on any thread.
unsafe impl Send for Slab {}
// SAFETY: `&Slab` returns addresses, and gives access to no byte.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(count: usize, block_bytes: usize) -> Self {
        let stride = block_bytes.next_multiple_of(BLOCK_ALIGN);
        let bytes = stride.checked_mul(count).expect("a pool fits the address space");
        let layout = Layout::from_size_align(bytes, BLOCK_ALIGN).expect("a pool fits the address space");
        // SAFETY: the layout is not empty: `count` is at least 1 and a block has its headroom.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout, stride, count }
    }

    fn block(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.count, "block {index} of {}", self.count);
        // SAFETY: index < count, so the block lies inside the one allocation of `count * stride` bytes.
        unsafe { self.base.add(index * self.stride) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: made by `alloc_zeroed` with this layout and freed here only. Nobody uses a block any more:
        // every descriptor in use holds the pool, and with it the slab.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
