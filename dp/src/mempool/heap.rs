//! The heap backend of a pool: one slab of blocks, the view counts of the blocks, and the descriptors.
//!
//! A *block* is the storage of one buffer (headroom and data). A *descriptor* ([`Segment`]) is one view of a
//! block or of external memory. A free descriptor is in one of three lists. In `buffers`, each descriptor has
//! a free block. In `fresh`, the blocks were never used. In `spares`, the descriptors have no block, and are
//! meant for further views. There are `count` blocks and twice as many descriptors. Each block always has at
//! least one descriptor, so each list has at most `count` descriptors.
//!
//! Rules of access:
//! - A [`Segment`] in use is owned by exactly one [`Handle`]. The segment has a reference to its pool, so
//!   that its block is not freed.
//! - The bytes of a block are written only through `&mut Segment`, and only while the block has one view, so
//!   no other segment can read the bytes. Exception: bytes that no view covers ([`Segment::room`]).
//! - Bytes are read through `&Segment`, so there is no `&mut` of the same view. Other views also only read
//!   the bytes.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::external::ExtBuf;
use super::free_list::FreeList;
use super::slab::{Backing, Block, Slab};
use crate::limits::HEADROOM;
use crate::offload::{Checksum, TxOffload};

/// Minimum number of bytes of other blocks that are used between two uses of a block, in a pool whose blocks
/// other processes read, while at least half of the pool is free. The number is larger than the private
/// caches of a core (0.5 to 2 MiB): see [`free_list`](super::free_list).
const DISTANCE_BYTES: usize = 3 << 20;

pub(crate) struct HeapPool {
    name: String,
    data_bytes: usize,
    slab: Slab,
    /// Number of views of each block. 0 or 1 while the block is free.
    views: Box<[AtomicU32]>,
    /// Free descriptors, each with a free block.
    buffers: FreeList<Box<Segment>>,
    /// Free descriptors whose blocks were never used, and have no memory of the system yet. They are used if
    /// `buffers` has nothing to return.
    fresh: FreeList<Box<Segment>>,
    /// Free descriptors without a block.
    spares: FreeList<Box<Segment>>,
    exhausted: AtomicU64,
}

impl HeapPool {
    pub(crate) fn new(name: &str, count: usize, data_bytes: usize) -> Arc<Self> {
        assert!(count > 0, "a pool needs at least one buffer");
        Self::of_slab(name, count, data_bytes, Slab::new(count, HEADROOM + data_bytes))
    }

    /// Makes a pool whose blocks are in `backing`. A failure to allocate the memory of a block counts as an
    /// empty pool.
    pub(crate) fn backed(
        name: &str,
        count: usize,
        data_bytes: usize,
        backing: Arc<dyn Backing>,
    ) -> Arc<Self> {
        Self::of_slab(name, count, data_bytes, Slab::backed(count, HEADROOM + data_bytes, backing))
    }

    fn of_slab(name: &str, count: usize, data_bytes: usize, slab: Slab) -> Arc<Self> {
        assert!(count <= u32::MAX as usize / 2, "{count} buffers are too many for one pool");
        let descriptors = (0..count).map(|block| Box::new(Segment::free(Storage::Block(slab.block(block)))));
        let (fresh, buffers) = if slab.takes_later() {
            let distance = (DISTANCE_BYTES / (HEADROOM + data_bytes)).min(count / 2);
            (descriptors.collect(), FreeList::rotating(distance, count))
        } else {
            (Vec::new(), FreeList::new(descriptors.collect()))
        };
        let spares = (0..count).map(|_| Box::new(Segment::free(Storage::None)));
        let pool = Self {
            name: name.to_owned(),
            data_bytes,
            views: (0..count).map(|_| AtomicU32::new(0)).collect(),
            fresh: FreeList::new(fresh),
            buffers,
            spares: FreeList::new(spares.collect()),
            exhausted: AtomicU64::new(0),
            slab,
        };
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
        self.buffers.len() + self.fresh.len()
    }

    pub(crate) fn exhausted(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Number of bytes of one block, including the headroom.
    #[inline]
    fn block_bytes(&self) -> usize {
        HEADROOM + self.data_bytes
    }

    /// Allocates a buffer whose data are the last `front` bytes of the headroom and the `bytes` bytes behind
    /// the headroom. Returns the buffer's descriptor. If the pool is empty, counts the failure and returns
    /// `None`.
    ///
    /// # Panics
    /// If the headroom has fewer than `front` bytes, or if the block has fewer than `bytes` bytes of data.
    #[inline(always)]
    pub(crate) fn alloc(self: &Arc<Self>, front: usize, bytes: usize) -> Option<Handle> {
        assert!(front <= HEADROOM && bytes <= self.data_bytes, "data stay inside the storage");
        let mut segment = match self.buffers.pop() {
            Some(segment) => segment,
            None => self.fresh_buffer()?,
        };
        let Storage::Block(block) = segment.storage else {
            unreachable!("`buffers` holds only descriptors bound to a block");
        };
        // Relaxed is enough: the thread that has pushed the descriptor had the last view, and the list orders
        // that thread's accesses before the accesses of this thread.
        self.views[block.index()].store(1, Ordering::Relaxed);
        segment.reset(Arc::clone(self), HEADROOM - front, front + bytes);
        Some(Handle::new(segment))
    }

    /// Returns the descriptor of a block that was never used, after the system has allocated the memory of
    /// the block. If there is none, returns the descriptor of the block that was freed first. If no block is
    /// free, counts the failure and returns `None`.
    #[cold]
    #[inline(never)]
    fn fresh_buffer(&self) -> Option<Box<Segment>> {
        let found = self.fresh.pop();
        if let Some(segment) = found
            && let Storage::Block(block) = segment.storage
        {
            if self.slab.take(block) {
                return Some(segment);
            }
            self.fresh.push_to_depot(segment);
        }
        self.counted(self.buffers.pop_oldest())
    }

    /// Makes a view of external memory, and returns the view's descriptor. Returns `None` if no descriptor is
    /// free.
    #[inline]
    pub(crate) fn external(self: &Arc<Self>, memory: ExtBuf) -> Option<Handle> {
        let mut segment = self.spare(0, memory.len())?;
        segment.storage = Storage::External(memory);
        Some(Handle::new(segment))
    }

    /// Allocates a descriptor without a block, for another view of `length` bytes at `offset`. If no
    /// descriptor is free, counts the failure and returns `None`.
    #[inline]
    fn spare(self: &Arc<Self>, offset: usize, length: usize) -> Option<Box<Segment>> {
        let mut segment = self.counted(self.spares.pop())?;
        segment.reset(Arc::clone(self), offset, length);
        Some(segment)
    }

    /// Counts one more view of `block`. The caller must have a view of the block.
    #[inline]
    fn add_view(&self, block: Block) {
        // Relaxed is enough, as in `Arc::clone`, since the new view is made from an existing view.
        let before = self.views[block.index()].fetch_add(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a view is made from a view");
    }

    /// Whether `block` has another view. The caller has a view of the block.
    #[inline]
    fn is_shared(&self, block: Block) -> bool {
        // The Acquire pairs with the Release in `drop_view`, so that reads through a dropped view happen
        // before the writes of this thread.
        self.views[block.index()].load(Ordering::Acquire) > 1
    }

    /// Returns a descriptor to the pool. If the descriptor was the last view of its block, also returns the
    /// block.
    fn free(&self, mut segment: Box<Segment>) {
        if let Storage::Block(block) = segment.storage
            && self.drop_view(block)
        {
            return self.buffers.push(segment);
        }
        // If the storage is external, this assignment drops the reference to the storage.
        segment.storage = Storage::None;
        self.spares.push(segment);
    }

    /// Ends one view of `block`. Returns whether this view was the last view.
    #[inline]
    fn drop_view(&self, block: Block) -> bool {
        // This fast path needs no locked instruction: while this thread has the only view, no other thread
        // can make another view. The count remains 1, which is the value that `alloc` sets.
        if !self.is_shared(block) {
            return true;
        }
        if self.views[block.index()].fetch_sub(1, Ordering::Release) > 1 {
            return false;
        }
        // The fence pairs with the Release of the other views, as in `Arc::drop`.
        fence(Ordering::Acquire);
        true
    }

    #[inline]
    fn counted<T>(&self, found: Option<T>) -> Option<T> {
        if found.is_none() {
            self.exhausted.fetch_add(1, Ordering::Relaxed);
        }
        found
    }
}

enum Storage {
    /// No storage, in a spare descriptor.
    None,
    /// A block of the segment's pool. The block has [`HeapPool::block_bytes`] bytes, which are initialised.
    Block(Block),
    /// External bytes, which are only copied.
    External(ExtBuf),
}

/// A descriptor: one view of a storage.
pub(crate) struct Segment {
    storage: Storage,
    /// The pool of the descriptor and the block. `None` while the descriptor is free.
    pool: Option<Arc<HeapPool>>,
    /// Number of bytes of the storage before the data.
    offset: usize,
    /// Number of data bytes. `offset + length` is at most the number of bytes of the storage.
    length: usize,
    /// The rest of the chain.
    pub(crate) next: Option<Handle>,
    /// Metadata of the whole chain. Valid only in the first segment of the chain.
    pub(crate) meta: ChainMeta,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct ChainMeta {
    pub(crate) bytes: usize,
    pub(crate) segments: usize,
    pub(crate) rx_checksum: Checksum,
    pub(crate) tx_offload: TxOffload,
}

impl Segment {
    fn free(storage: Storage) -> Self {
        Self { storage, pool: None, offset: 0, length: 0, next: None, meta: ChainMeta::default() }
    }

    /// Initializes a descriptor from `pool` for use.
    #[inline]
    fn reset(&mut self, pool: Arc<HeapPool>, offset: usize, length: usize) {
        let Self { storage: _, pool: home, offset: own_offset, length: own_length, next, meta } = self;
        *home = Some(pool);
        *own_offset = offset;
        *own_length = length;
        debug_assert!(next.is_none(), "a free descriptor is linked to nothing");
        *meta = ChainMeta { segments: 1, ..ChainMeta::default() };
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<HeapPool> {
        let Some(pool) = &self.pool else { not_in_use() };
        pool
    }

    /// The data of the segment.
    ///
    /// # Panics
    /// If the data are external memory.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::None => &[],
            Storage::Block(block) => {
                debug_assert!(self.offset + self.length <= self.pool().block_bytes());
                let start = block.start().as_ptr().wrapping_add(self.offset);
                // SAFETY: the block has `block_bytes` initialised bytes, and `offset + length` is at most
                // this number (`Segment::length`). The data of a view are written only through `&mut Segment`
                // while the block has one view. If `self` is the only view, the borrow of `self` prevents
                // such a write. If there are other views, only `room` is written, which no view covers. The
                // slice borrows `self`, which holds the pool and so the block.
                unsafe { std::slice::from_raw_parts(start, self.length) }
            }
            Storage::External(_) => panic!("external memory has no slice: copy it"),
        }
    }

    /// Returns the external memory, and the offset of the data in the memory. Returns `None` for other
    /// storage.
    #[inline]
    pub(crate) fn external(&self) -> Option<(&ExtBuf, usize)> {
        match &self.storage {
            Storage::External(memory) => Some((memory, self.offset)),
            Storage::None | Storage::Block(_) => None,
        }
    }

    /// The data of the segment, for writing. `None` if the storage is shared.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let Storage::Block(block) = self.storage else { return None };
        if self.pool().is_shared(block) {
            return None;
        }
        debug_assert!(self.offset + self.length <= self.pool().block_bytes());
        let start = block.start().as_ptr().wrapping_add(self.offset);
        // SAFETY: the block has `block_bytes` initialised bytes, and `offset + length` is at most this number
        // (`Segment::length`). The only view of the block is `self`, which is borrowed mutably while the
        // slice is used, so nobody can make another view. Reads through dropped views happen before the
        // writes through this slice, since `is_shared` loads the number of views with Acquire. `self` holds
        // the pool and so the block.
        Some(unsafe { std::slice::from_raw_parts_mut(start, self.length) })
    }

    #[inline]
    fn is_writable(&self) -> bool {
        matches!(self.storage, Storage::Block(block) if !self.pool().is_shared(block))
    }

    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        match &self.storage {
            Storage::None => false,
            Storage::Block(block) => self.pool().is_shared(*block),
            // The owner of the memory may also access the memory.
            Storage::External(_) => true,
        }
    }

    #[inline]
    pub(crate) fn headroom(&self) -> usize {
        match self.storage {
            Storage::Block(_) => self.offset,
            Storage::None | Storage::External(_) => 0,
        }
    }

    #[inline]
    pub(crate) fn tailroom(&self) -> usize {
        match self.storage {
            Storage::Block(_) => self.pool().block_bytes() - self.offset - self.length,
            Storage::None | Storage::External(_) => 0,
        }
    }

    /// Returns the tailroom, even if the storage is shared.
    ///
    /// # Safety
    /// During the borrow, no other view covers bytes behind the segment's data.
    #[inline]
    pub(crate) unsafe fn room(&mut self) -> &mut [u8] {
        let Storage::Block(block) = self.storage else { return &mut [] };
        let (at, bytes) = (self.offset + self.length, self.tailroom());
        let start = block.start().as_ptr().wrapping_add(at);
        // SAFETY: the block has `block_bytes` initialised bytes, and the tailroom is the part behind the
        // data. The caller promises that no other view covers the tailroom, and `self` is borrowed mutably
        // while the slice is used. `self` holds the pool and so the block.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    /// Returns the last `bytes` bytes of the headroom, for writing. Returns `None` if the headroom has fewer
    /// bytes, or if the storage is shared.
    #[inline]
    pub(crate) fn front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let Storage::Block(block) = self.storage else { return None };
        if bytes > self.offset || self.pool().is_shared(block) {
            return None;
        }
        let start = block.start().as_ptr().wrapping_add(self.offset - bytes);
        // SAFETY: the block has `block_bytes` initialised bytes, and the headroom is the part before
        // `offset`, with at least `bytes` bytes. The only view of the block is `self`, which is borrowed
        // mutably while the slice is used, so nobody can make another view. Reads through dropped views
        // happen before the writes through this slice, since `is_shared` loads the number of views with
        // Acquire. `self` holds the pool and so the block.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }

    /// Adds the last `bytes` bytes of the headroom to the data and returns `true`. Returns `false` if the
    /// headroom is shorter or the storage is shared.
    #[inline]
    pub(crate) fn grow_front(&mut self, bytes: usize) -> bool {
        let grows = bytes <= self.headroom() && self.is_writable();
        if grows {
            self.offset -= bytes;
            self.length += bytes;
        }
        grows
    }

    /// Adds the first `bytes` bytes of the tailroom to the data and returns `true`. Returns `false` if the
    /// tailroom is shorter or the storage is shared.
    #[inline]
    pub(crate) fn grow_back(&mut self, bytes: usize) -> bool {
        let grows = bytes <= self.tailroom() && self.is_writable();
        if grows {
            self.length += bytes;
        }
        grows
    }

    /// Adds the first `bytes` bytes of the tailroom to the data, even if the storage is shared.
    #[inline]
    pub(crate) fn grow_shared(&mut self, bytes: usize) {
        assert!(bytes <= self.tailroom(), "data stay inside the storage");
        self.length += bytes;
    }

    /// Removes the first `bytes` bytes of the data.
    #[inline]
    pub(crate) fn trim_front(&mut self, bytes: usize) {
        assert!(bytes <= self.length, "{bytes} of {} bytes", self.length);
        self.offset += bytes;
        self.length -= bytes;
    }

    /// Keeps only the first `bytes` bytes of the data.
    #[inline]
    pub(crate) fn trim_back(&mut self, bytes: usize) {
        assert!(bytes <= self.length, "{bytes} of {} bytes", self.length);
        self.length = bytes;
    }

    /// Makes another view of the first `bytes` bytes of this view of a block, and of `front` bytes before
    /// these bytes. Returns `None` if no descriptor is free, or if the storage is not a block.
    #[inline]
    pub(crate) fn share_from(&self, front: usize, bytes: usize) -> Option<Handle> {
        let Storage::Block(block) = self.storage else { return None };
        assert!(front <= self.offset && bytes <= self.length, "data stay inside the storage");
        let pool = self.pool();
        let mut view = pool.spare(self.offset - front, front + bytes)?;
        pool.add_view(block);
        view.storage = Storage::Block(block);
        Some(Handle::new(view))
    }

    /// Makes another view of the same bytes. The new view is not linked to a next segment. Returns `None` if
    /// no descriptor is free.
    #[inline]
    pub(crate) fn share(&self) -> Option<Handle> {
        let mut view = self.pool().spare(self.offset, self.length)?;
        view.storage = match &self.storage {
            Storage::None => Storage::None,
            Storage::Block(block) => {
                self.pool().add_view(*block);
                Storage::Block(*block)
            }
            Storage::External(memory) => Storage::External(memory.clone()),
        };
        Some(Handle::new(view))
    }
}

/// The owner of a descriptor in use. When the handle is dropped, it returns the descriptor to the
/// descriptor's pool.
pub(crate) struct Handle {
    segment: ManuallyDrop<Box<Segment>>,
}

impl Handle {
    #[inline]
    fn new(segment: Box<Segment>) -> Self {
        Self { segment: ManuallyDrop::new(segment) }
    }

    /// Returns the descriptor. The caller has to return the descriptor to the pool.
    #[inline]
    fn into_segment(self) -> Box<Segment> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, and is not used again.
        unsafe { ManuallyDrop::take(&mut this.segment) }
    }
}

impl Deref for Handle {
    type Target = Segment;

    #[inline]
    fn deref(&self) -> &Segment {
        &self.segment
    }
}

impl DerefMut for Handle {
    #[inline]
    fn deref_mut(&mut self) -> &mut Segment {
        &mut self.segment
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is being dropped, so nobody uses the field again.
        let segment = unsafe { ManuallyDrop::take(&mut self.segment) };
        give_back(segment);
    }
}

/// Returns a chain of descriptors to their pools.
fn give_back(mut segment: Box<Segment>) {
    // A loop frees the segments, so that a long chain causes no deep recursion. Each segment is unlinked
    // before it is freed.
    loop {
        let next = segment.next.take();
        let pool = segment.pool.take().unwrap_or_else(|| not_in_use());
        pool.free(segment);
        let Some(next) = next else { return };
        segment = next.into_segment();
    }
}

/// Panics. This function is never inlined: otherwise callers with a loop would build the panic message before
/// the loop.
#[cold]
#[inline(never)]
fn not_in_use() -> ! {
    unreachable!("a descriptor in use has its pool")
}

#[cfg(test)]
mod tests;
