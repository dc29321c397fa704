//! The memory of a heap pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Blocks start on their own cache line.
const BLOCK_ALIGN: usize = 64;

/// The alignment requested from the allocator. With a larger alignment the allocator would clear the memory
/// itself instead of using the system's fresh pages, which are zero.
const ALIGN: usize = 16;

/// Equal blocks in one allocation, zeroed so that no byte is ever uninitialised.
pub(super) struct Slab {
    /// The start of the allocation.
    start: NonNull<u8>,
    layout: Layout,
    /// The first block.
    base: NonNull<u8>,
    stride: usize,
    count: usize,
}

// SAFETY: a `Slab` accesses no byte of its memory: it returns addresses, and frees the memory, which any
// thread may do. Reads and writes through the addresses have their own arguments, in `heap.rs`.
unsafe impl Send for Slab {}
// SAFETY: through `&Slab` addresses are computed from fields that nobody changes, and no byte is accessed.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new(count: usize, block_bytes: usize) -> Self {
        let stride = block_bytes.next_multiple_of(BLOCK_ALIGN);
        let blocks = stride.checked_mul(count).and_then(|bytes| bytes.checked_add(BLOCK_ALIGN - ALIGN));
        let layout = blocks.and_then(|bytes| Layout::from_size_align(bytes, ALIGN).ok());
        let layout = layout.expect("a pool fits the address space");
        // SAFETY: the layout is not empty: `HeapPool::new` checks that `count` is at least 1, and a block has
        // its headroom.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let skipped = start.addr().get().wrapping_neg() % BLOCK_ALIGN;
        debug_assert!(skipped <= BLOCK_ALIGN - ALIGN, "the address is a multiple of `ALIGN`");
        // SAFETY: `start` is a multiple of `ALIGN`, so at most `BLOCK_ALIGN - ALIGN` bytes are skipped, and
        // the one allocation has as many beside the blocks.
        let base = unsafe { start.add(skipped) };
        Self { start, layout, base, stride, count }
    }

    /// A block, whose bytes are initialised.
    ///
    /// # Panics
    /// If the slab has no block `index`.
    pub(super) fn block(&self, index: usize) -> Block {
        assert!(index < self.count, "block {index} of {}", self.count);
        // SAFETY: `index` is less than `count`, so the block lies inside the one allocation, which has `count
        // * stride` bytes from `base` on, and at most `isize::MAX` in all (`Layout`).
        let start = unsafe { self.base.add(index * self.stride) };
        Block { index: index as u32, start }
    }
}

/// The place of a block of a [`Slab`]. It does not keep the slab alive.
#[derive(Clone, Copy)]
pub(super) struct Block {
    index: u32,
    start: NonNull<u8>,
}

// SAFETY: a `Block` accesses no byte of the memory: it returns an address. Reads and writes through it have
// their own arguments, in `heap.rs`.
unsafe impl Send for Block {}
// SAFETY: through `&Block` the fields are copied, which nobody changes, and no byte is accessed.
unsafe impl Sync for Block {}

impl Block {
    /// Its number in the slab.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.index as usize
    }

    /// Its first byte; valid for its bytes while the slab lives.
    #[inline]
    pub(super) fn start(self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: `new` allocated `start` with this layout, and it is freed here only. Nobody uses a block
        // any more: every descriptor in use holds the pool (`Segment::pool`), and with it the slab.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
