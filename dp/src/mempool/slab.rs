//! The memory of a heap pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// The alignment of blocks. Each block starts on its own cache line.
const BLOCK_ALIGN: usize = 64;

/// The alignment requested from the allocator. With a larger alignment the allocator would clear the memory
/// itself instead of using the system's fresh pages, which are zero.
const ALIGN: usize = 16;

/// Memory outside of the heap for the blocks of a slab.
///
/// The bytes from `start` on are one mapping of `len` initialised bytes. While this value exists, no code
/// writes to these bytes except through the addresses that a slab gives out. `start` is a multiple of 64.
pub(crate) trait Backing: Send + Sync {
    fn start(&self) -> NonNull<u8>;

    fn len(&self) -> usize;

    /// Allocates the memory of these bytes, so that a later access cannot fail for lack of memory. Returns
    /// whether the system has the memory.
    fn take(&self, offset: usize, bytes: usize) -> bool;
}

enum Memory {
    Heap(NonNull<u8>, Layout),
    Backed(Arc<dyn Backing>),
}

/// Blocks of equal size in one allocation. The allocation is zeroed, so that no byte is ever uninitialised.
pub(super) struct Slab {
    memory: Memory,
    base: NonNull<u8>,
    stride: usize,
    count: usize,
}

/// The distance of two blocks with `block_bytes` bytes each.
fn stride(block_bytes: usize) -> usize {
    block_bytes.next_multiple_of(BLOCK_ALIGN)
}

/// Number of bytes of the [`Backing`] of `count` blocks. `None` if there are too many.
pub(crate) fn backing_bytes(count: usize, block_bytes: usize) -> Option<usize> {
    stride(block_bytes).checked_mul(count)
}

// SAFETY: a `Slab` accesses no byte of its memory. A `Slab` only returns addresses and frees the memory, and
// any thread may do so. The comments on unsafe code in `heap.rs` say why reads and writes through the
// addresses are sound.
unsafe impl Send for Slab {}
// SAFETY: `&Slab` is only used to compute addresses from fields that nobody changes. No byte of the memory is
// accessed.
unsafe impl Sync for Slab {}

impl Slab {
    pub(super) fn new(count: usize, block_bytes: usize) -> Self {
        let stride = stride(block_bytes);
        let blocks = stride.checked_mul(count).and_then(|bytes| bytes.checked_add(BLOCK_ALIGN - ALIGN));
        let layout = blocks.and_then(|bytes| Layout::from_size_align(bytes, ALIGN).ok());
        let layout = layout.expect("a pool fits the address space");
        // SAFETY: the layout is not empty: `HeapPool::new` checks that `count` is at least 1, and each block
        // has a headroom.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let skipped = start.addr().get().wrapping_neg() % BLOCK_ALIGN;
        debug_assert!(skipped <= BLOCK_ALIGN - ALIGN, "the address is a multiple of `ALIGN`");
        // SAFETY: `start` is a multiple of `ALIGN`, so at most `BLOCK_ALIGN - ALIGN` bytes are skipped. The
        // allocation has `BLOCK_ALIGN - ALIGN` bytes in addition to the blocks.
        let base = unsafe { start.add(skipped) };
        Self { memory: Memory::Heap(start, layout), base, stride, count }
    }

    /// Makes a slab of `count` blocks in `backing`.
    ///
    /// # Panics
    /// If the blocks exceed the backing.
    pub(super) fn backed(count: usize, block_bytes: usize, backing: Arc<dyn Backing>) -> Self {
        let (base, stride) = (backing.start(), stride(block_bytes));
        let fits = backing_bytes(count, block_bytes).is_some_and(|bytes| bytes <= backing.len());
        assert!(fits && base.addr().get().is_multiple_of(BLOCK_ALIGN), "{count} blocks of {stride} bytes");
        Self { memory: Memory::Backed(backing), base, stride, count }
    }

    /// Returns whether the blocks have memory of the system only after [`take`](Self::take).
    pub(super) fn takes_later(&self) -> bool {
        matches!(self.memory, Memory::Backed(_))
    }

    /// Makes sure that the system has allocated the memory of a block. Returns `false` if the system has no
    /// memory.
    pub(super) fn take(&self, block: Block) -> bool {
        match &self.memory {
            Memory::Heap(..) => true,
            Memory::Backed(backing) => backing.take(block.index() * self.stride, self.stride),
        }
    }

    /// Returns the block with this index. The bytes of the block are initialised.
    ///
    /// # Panics
    /// If the slab has no block `index`.
    pub(super) fn block(&self, index: usize) -> Block {
        assert!(index < self.count, "block {index} of {}", self.count);
        // SAFETY: `index` is less than `count`, so the block is inside the allocation. From `base` on, the
        // allocation has at least `count` times `stride` bytes (`new` and `backed` see to this), and a
        // `Layout` or a mapping has at most `isize::MAX` bytes.
        let start = unsafe { self.base.add(index * self.stride) };
        Block { index: index as u32, start }
    }
}

/// The index and the address of a block of a [`Slab`]. A `Block` has no reference to the slab.
#[derive(Clone, Copy)]
pub(super) struct Block {
    index: u32,
    start: NonNull<u8>,
}

// SAFETY: a `Block` accesses no byte of the memory. A `Block` only returns an address. The comments on unsafe
// code in `heap.rs` say why reads and writes through the address are sound.
unsafe impl Send for Block {}
// SAFETY: `&Block` is only used to copy the fields, which nobody changes. No byte of the memory is accessed.
unsafe impl Sync for Block {}

impl Block {
    #[inline]
    pub(super) fn index(self) -> usize {
        self.index as usize
    }

    /// The address of the first byte. The address is valid for the bytes of the block until the slab is
    /// dropped.
    #[inline]
    pub(super) fn start(self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Memory::Heap(start, layout) = self.memory {
            // SAFETY: `new` has allocated `start` with this layout, and only this code frees the allocation.
            // Nobody uses a block any more: each descriptor in use holds the pool (`Segment::pool`), and so
            // the slab.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
