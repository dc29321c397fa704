//! The memory of a heap pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Blocks start on a cache line of their own.
const BLOCK_ALIGN: usize = 64;

/// Equal blocks in one allocation, zeroed so that no byte is ever uninitialised.
pub(super) struct Slab {
    base: NonNull<u8>,
    layout: Layout,
    stride: usize,
    count: usize,
}

// SAFETY: a `Slab` only returns addresses. Reads and writes of a block follow the pool's view counts and the
// ownership of descriptors (see `heap.rs`), on any thread.
unsafe impl Send for Slab {}
// SAFETY: `&Slab` returns addresses, and gives access to no byte.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new(count: usize, block_bytes: usize) -> Self {
        let stride = block_bytes.next_multiple_of(BLOCK_ALIGN);
        let bytes = stride.checked_mul(count).expect("a pool fits the address space");
        let layout = Layout::from_size_align(bytes, BLOCK_ALIGN).expect("a pool fits the address space");
        // SAFETY: the layout is not empty: `count` is at least 1 and a block has its headroom.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, layout, stride, count }
    }

    /// First byte of a block; valid for its bytes, which are initialised.
    #[inline]
    pub(super) fn block(&self, index: usize) -> NonNull<u8> {
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
