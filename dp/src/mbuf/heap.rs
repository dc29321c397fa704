//! Packet buffers on the heap: chains of descriptors of the blocks of a [`HeapPool`].
//!
//! Rules of access:
//! - A [`Segment`] in use is owned by exactly one [`Handle`], and keeps its pool (hence its block)
//!   alive.
//! - The bytes of a block are written only through `&mut Segment` of a block with one view, so no other
//!   segment exists that could read them.
//! - They are read through `&Segment`, which excludes that `&mut Segment`; other views only read as
//!   well.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::{Checksum, ExtBuf, MAX_SEGMENTS, TxOffload};
use crate::mempool::heap::HeapPool;

/// The storage that a segment is a view of.
pub(crate) enum Storage {
    /// None: a spare descriptor.
    None,
    /// A block of the segment's own pool.
    Block(u32),
    /// External bytes, read-only.
    External(ExtBuf),
}

/// A descriptor: one view of one storage.
pub(crate) struct Segment {
    pub(crate) storage: Storage,
    /// The pool of the descriptor and the block; `None` while it is free.
    pool: Option<Arc<HeapPool>>,
    /// Offset of the data in the storage, bytes.
    offset: usize,
    /// Bytes of data; `offset + length` never exceeds the storage.
    length: usize,
    next: Option<Handle>,
    /// Metadata of the whole chain; valid in its first segment only.
    meta: Meta,
}

/// Metadata of a chain.
#[derive(Clone, Copy, Default)]
struct Meta {
    bytes: usize,
    segments: usize,
    rx_checksum: Checksum,
    tx_offload: TxOffload,
}

impl Segment {
    /// A free descriptor.
    pub(crate) fn free(storage: Storage) -> Self {
        Self { storage, pool: None, offset: 0, length: 0, next: None, meta: Meta::default() }
    }

    /// Puts a descriptor from `pool` into use.
    pub(crate) fn reset(&mut self, pool: Arc<HeapPool>, offset: usize, length: usize) {
        let Self { storage: _, pool: home, offset: own_offset, length: own_length, next, meta } = self;
        *home = Some(pool);
        *own_offset = offset;
        *own_length = length;
        debug_assert!(next.is_none(), "a free descriptor is linked to nothing");
        *meta = Meta { segments: 1, ..Meta::default() };
    }

    fn pool(&self) -> &Arc<HeapPool> {
        self.pool.as_ref().expect("a descriptor in use has its pool")
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::None => &[],
            Storage::Block(block) => {
                let start = self.pool().block(*block);
                debug_assert!(self.offset + self.length <= self.pool().block_bytes());
                // SAFETY: `block` shows `block_bytes` initialised bytes and `offset + length` stays within
                // (invariant of `Segment`). Nobody writes them while `&self` lives: see the module's rules.
                // The slice is bound to `&self`, which holds the pool.
                unsafe { std::slice::from_raw_parts(start.add(self.offset).as_ptr(), self.length) }
            }
            Storage::External(memory) => &memory.as_slice()[self.offset..self.offset + self.length],
        }
    }

    /// The data for writing; `None` if the storage is shared.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let Storage::Block(block) = self.storage else { return None };
        if self.pool().is_shared(block) {
            return None;
        }
        debug_assert!(self.offset + self.length <= self.pool().block_bytes());
        let start = self.pool().block(block);
        // SAFETY: within the block and initialised, as in `bytes`. The block has one view, `self`, borrowed
        // mutably for as long as the slice lives; only that view could make another one.
        Some(unsafe { std::slice::from_raw_parts_mut(start.add(self.offset).as_ptr(), self.length) })
    }

    fn is_writable(&self) -> bool {
        matches!(self.storage, Storage::Block(block) if !self.pool().is_shared(block))
    }

    fn is_shared(&self) -> bool {
        match &self.storage {
            Storage::None => false,
            Storage::Block(block) => self.pool().is_shared(*block),
            // Its owner can read it.
            Storage::External(_) => true,
        }
    }

    fn headroom(&self) -> usize {
        match self.storage {
            Storage::Block(_) => self.offset,
            Storage::None | Storage::External(_) => 0,
        }
    }

    fn tailroom(&self) -> usize {
        match self.storage {
            Storage::Block(_) => self.pool().block_bytes() - self.offset - self.length,
            Storage::None | Storage::External(_) => 0,
        }
    }

    /// Another view of the same bytes, not linked to anything.
    fn share(&self) -> Option<Handle> {
        let mut view = self.pool().spare()?;
        view.storage = match &self.storage {
            Storage::None => Storage::None,
            Storage::Block(block) => {
                self.pool().add_view(*block);
                Storage::Block(*block)
            }
            Storage::External(memory) => Storage::External(memory.clone()),
        };
        view.offset = self.offset;
        view.length = self.length;
        Some(Handle::new(view))
    }
}

/// The owner of a descriptor in use; returns it to its pool when dropped.
pub(crate) struct Handle {
    /// `Some` until dropped.
    segment: Option<Box<Segment>>,
}

impl Handle {
    pub(crate) fn new(segment: Box<Segment>) -> Self {
        Self { segment: Some(segment) }
    }
}

impl Deref for Handle {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        self.segment.as_deref().expect("there until dropped")
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut Segment {
        self.segment.as_deref_mut().expect("there until dropped")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A loop, not recursion: each link is cut before its segment is freed.
        let mut link = self.segment.take();
        while let Some(mut segment) = link {
            link = segment.next.take().and_then(|mut next| next.segment.take());
            let pool = segment.pool.take().expect("a descriptor in use has its pool");
            pool.free(segment);
        }
    }
}

/// One or more linked segments.
pub(crate) struct HeapChain {
    head: Handle,
}

impl HeapChain {
    pub(crate) fn new(head: Handle) -> Self {
        debug_assert!(head.next.is_none());
        let mut chain = Self { head };
        chain.head.meta.bytes = chain.head.length;
        chain
    }

    /// A view of all of `memory`, with a descriptor of `pool`.
    pub(crate) fn external(pool: &Arc<HeapPool>, memory: ExtBuf) -> Option<Self> {
        let mut segment = pool.spare()?;
        segment.length = memory.len();
        segment.storage = Storage::External(memory);
        Some(Self::new(Handle::new(segment)))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.head.meta.bytes
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.head.meta.segments
    }

    #[inline]
    pub(crate) fn segments(&self) -> HeapSegments<'_> {
        HeapSegments { next: Some(&self.head) }
    }

    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    pub(crate) fn head_mut(&mut self) -> Option<&mut [u8]> {
        self.head.bytes_mut()
    }

    pub(crate) fn headroom(&self) -> usize {
        self.head.headroom()
    }

    #[inline]
    pub(crate) fn tailroom(&self) -> usize {
        self.last().tailroom()
    }

    pub(crate) fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let head = &mut *self.head;
        if bytes > head.headroom() || !head.is_writable() {
            return None;
        }
        head.offset -= bytes;
        head.length += bytes;
        head.meta.bytes += bytes;
        Some(&mut head.bytes_mut()?[..bytes])
    }

    pub(crate) fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let last = self.last();
        if bytes > last.tailroom() || !last.is_writable() {
            return None;
        }
        self.head.meta.bytes += bytes;
        let last = self.last_mut();
        let before = last.length;
        last.length += bytes;
        Some(&mut last.bytes_mut()?[before..])
    }

    /// The tailroom of a chain of one segment, even if the storage is shared.
    ///
    /// # Safety
    /// No other view covers bytes behind the segment's data.
    pub(crate) unsafe fn room(&mut self) -> &mut [u8] {
        let head = &*self.head;
        let Storage::Block(block) = head.storage else { return &mut [] };
        let (at, bytes) = (head.offset + head.length, head.tailroom());
        // SAFETY: within the block and initialised, as in `Segment::bytes`. By this function's contract no
        // other view covers the bytes, and `&mut self` excludes this segment's own.
        unsafe { std::slice::from_raw_parts_mut(head.pool().block(block).add(at).as_ptr(), bytes) }
    }

    /// Makes the first bytes of the tailroom data, even if the storage is shared.
    pub(crate) fn grow(&mut self, bytes: usize) {
        assert!(bytes <= self.head.tailroom(), "data stay inside the storage");
        self.head.length += bytes;
        self.head.meta.bytes += bytes;
    }

    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance by {bytes} of {} bytes", self.len());
        let mut left = bytes;
        while left >= self.head.length {
            let Some(next) = self.head.next.take() else { break };
            left -= self.head.length;
            let meta = self.head.meta;
            self.head = next;
            self.head.meta = Meta { segments: meta.segments - 1, ..meta };
        }
        self.head.offset += left;
        self.head.length -= left;
        self.head.meta.bytes -= bytes;
    }

    pub(crate) fn truncate(&mut self, bytes: usize) {
        if bytes >= self.len() {
            return;
        }
        let mut left = bytes;
        let mut kept = 1;
        let mut segment = &mut *self.head;
        while left > segment.length {
            left -= segment.length;
            kept += 1;
            segment = segment.next.as_mut().expect("the chain has more than `bytes`");
        }
        segment.length = left;
        segment.next = None;
        self.head.meta.segments = kept;
        self.head.meta.bytes = bytes;
    }

    pub(crate) fn chain(&mut self, tail: Self) -> Result<(), Self> {
        if self.segment_count() + tail.segment_count() > MAX_SEGMENTS {
            return Err(tail);
        }
        let added = tail.head.meta;
        self.last_mut().next = Some(tail.head);
        self.head.meta.bytes += added.bytes;
        self.head.meta.segments += added.segments;
        Ok(())
    }

    pub(crate) fn share(&self) -> Option<Self> {
        let mut head = self.head.share()?;
        head.meta = self.head.meta;
        let mut view = Self { head };
        let mut last = &mut *view.head;
        let mut segment = self.head.next.as_deref();
        while let Some(original) = segment {
            // On failure, dropping `view` frees what was shared so far.
            last = last.next.insert(original.share()?);
            segment = original.next.as_deref();
        }
        Some(view)
    }

    pub(crate) fn is_shared(&self) -> bool {
        let mut segment = Some(&*self.head);
        while let Some(this) = segment {
            if this.is_shared() {
                return true;
            }
            segment = this.next.as_deref();
        }
        false
    }

    pub(crate) fn rx_checksum(&self) -> Checksum {
        self.head.meta.rx_checksum
    }

    pub(crate) fn set_rx_checksum(&mut self, state: Checksum) {
        self.head.meta.rx_checksum = state;
    }

    pub(crate) fn tx_offload(&self) -> TxOffload {
        self.head.meta.tx_offload
    }

    pub(crate) fn set_tx_offload(&mut self, offload: TxOffload) {
        self.head.meta.tx_offload = offload;
    }

    fn last(&self) -> &Segment {
        let mut segment = &*self.head;
        while let Some(next) = &segment.next {
            segment = next;
        }
        segment
    }

    fn last_mut(&mut self) -> &mut Segment {
        let mut segment = &mut *self.head;
        while segment.next.is_some() {
            segment = segment.next.as_mut().expect("just looked");
        }
        segment
    }
}

/// The bytes of each segment, in order.
#[derive(Clone)]
pub(crate) struct HeapSegments<'a> {
    next: Option<&'a Segment>,
}

impl<'a> Iterator for HeapSegments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let segment = self.next?;
        self.next = segment.next.as_deref();
        Some(segment.bytes())
    }
}
