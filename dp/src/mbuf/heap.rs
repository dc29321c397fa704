//! Packet buffers on the heap: chains of descriptors of a [`HeapPool`]. The documentation of [`HeapPool`]'s
//! module states the rules of access.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::view::{View, copy_slice};
use crate::limits::MAX_SEGMENTS;
use crate::mempool::ExtBuf;
use crate::mempool::heap::{ChainMeta, Handle, HeapPool, Segment};
use crate::offload::{Checksum, TxOffload};

/// One or more linked segments.
pub(crate) struct HeapChain {
    head: Handle,
    /// Makes the type `!Sync` like DPDK's chains, so that a program that compiles with one backend also
    /// compiles with the other.
    _not_sync: PhantomData<Cell<()>>,
}

impl HeapChain {
    /// Allocates an empty buffer of `pool`. Returns `None` if `pool` is empty.
    #[inline]
    pub(crate) fn alloc(pool: &Arc<HeapPool>) -> Option<Self> {
        pool.alloc(0, 0).map(Self::new)
    }

    /// Allocates a buffer of `pool`. The data of the buffer are the last `front` bytes of the headroom and
    /// the `bytes` bytes behind the headroom. Returns `None` if `pool` is empty.
    #[inline]
    pub(crate) fn alloc_filled(pool: &Arc<HeapPool>, front: usize, bytes: usize) -> Option<Self> {
        pool.alloc(front, bytes).map(Self::new)
    }

    #[inline]
    fn new(head: Handle) -> Self {
        debug_assert!(head.next.is_none());
        let mut chain = Self { head, _not_sync: PhantomData };
        chain.head.meta.bytes = chain.head.len();
        chain
    }

    /// Makes a view of the whole `memory`. Returns `None` if `pool` has no free descriptor.
    pub(crate) fn external(pool: &Arc<HeapPool>, memory: ExtBuf) -> Option<Self> {
        pool.external(memory).map(Self::new)
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
        HeapSegments(HeapViews { next: Some(&self.head) })
    }

    #[inline]
    pub(crate) fn views(&self) -> HeapViews<'_> {
        HeapViews { next: Some(&self.head) }
    }

    /// The pool of the first segment that is a view of external memory. `None` if there is no such segment.
    pub(crate) fn pool_of_external(&self) -> Option<Arc<HeapPool>> {
        let segment = self.views().find(|segment| segment.external().is_some())?;
        Some(Arc::clone(segment.pool()))
    }

    #[inline]
    pub(crate) fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    #[inline]
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
        if !head.grow_front(bytes) {
            return None;
        }
        head.meta.bytes += bytes;
        Some(&mut head.bytes_mut()?[..bytes])
    }

    pub(crate) fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let last = self.last_mut();
        let before = last.len();
        if !last.grow_back(bytes) {
            return None;
        }
        self.head.meta.bytes += bytes;
        Some(&mut self.last_mut().bytes_mut()?[before..])
    }

    /// Returns the tailroom of a chain of one segment, even if the storage is shared.
    ///
    /// # Safety
    /// During the borrow, no other view covers bytes behind the segment's data.
    #[inline]
    pub(crate) unsafe fn room(&mut self) -> &mut [u8] {
        // SAFETY: the caller promises that no other view covers the bytes during the borrow.
        unsafe { self.head.room() }
    }

    /// Adds the first `bytes` bytes of the tailroom of a chain of one segment to the chain's data, even if
    /// the storage is shared. Returns the previous length of the data.
    #[inline]
    pub(crate) fn grow(&mut self, bytes: usize) -> usize {
        let before = self.head.len();
        self.head.grow_shared(bytes);
        self.head.meta.bytes += bytes;
        before
    }

    /// Empties a chain of one segment and returns `true`. If the storage is shared, returns `false`.
    #[inline]
    pub(crate) fn rewind(&mut self) -> bool {
        if self.head.is_shared() {
            return false;
        }
        self.head.trim_back(0);
        self.head.meta.bytes = 0;
        true
    }

    /// Returns the last `bytes` bytes of the headroom, for writing. Returns `None` if the headroom has fewer
    /// bytes, or if the storage is shared.
    #[inline]
    pub(crate) fn front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.head.front(bytes)
    }

    /// Makes another view of the first `bytes` bytes of the first segment, and of `front` bytes before these
    /// bytes. Returns `None` if the pool has no free descriptor.
    #[inline]
    pub(crate) fn share_from(&self, front: usize, bytes: usize) -> Option<Self> {
        self.head.share_from(front, bytes).map(Self::new)
    }

    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance by {bytes} of {} bytes", self.len());
        let mut left = bytes;
        while left >= self.head.len() {
            let Some(next) = self.head.next.take() else { break };
            left -= self.head.len();
            let meta = self.head.meta;
            self.head = next;
            self.head.meta = ChainMeta { segments: meta.segments - 1, ..meta };
        }
        self.head.trim_front(left);
        self.head.meta.bytes -= bytes;
    }

    pub(crate) fn truncate(&mut self, bytes: usize) {
        if bytes >= self.len() {
            return;
        }
        let mut left = bytes;
        let mut kept = 1;
        let mut segment = &mut *self.head;
        while left > segment.len() {
            left -= segment.len();
            kept += 1;
            segment = segment.next.as_mut().expect("the chain has more than `bytes`");
        }
        segment.trim_back(left);
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
        let mut view = Self { head, _not_sync: PhantomData };
        let mut last = &mut *view.head;
        let mut segment = self.head.next.as_deref();
        while let Some(original) = segment {
            // If `share` fails, dropping `view` frees the segments that were shared so far.
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

    #[inline]
    fn last(&self) -> &Segment {
        let mut segment = &*self.head;
        while let Some(next) = &segment.next {
            segment = next;
        }
        segment
    }

    #[inline]
    fn last_mut(&mut self) -> &mut Segment {
        let mut segment = &mut *self.head;
        while segment.next.is_some() {
            segment = segment.next.as_mut().expect("just looked");
        }
        segment
    }
}

#[derive(Clone)]
pub(crate) struct HeapViews<'a> {
    next: Option<&'a Segment>,
}

impl<'a> Iterator for HeapViews<'a> {
    type Item = &'a Segment;

    #[inline]
    fn next(&mut self) -> Option<&'a Segment> {
        let segment = self.next?;
        self.next = segment.next.as_deref();
        Some(segment)
    }
}

impl View for &Segment {
    #[inline]
    fn len(&self) -> usize {
        Segment::len(self)
    }

    #[inline]
    fn is_external(&self) -> bool {
        self.external().is_some()
    }

    fn start(&self) -> *const u8 {
        match self.external() {
            Some((memory, at)) => memory.as_ptr().as_ptr().wrapping_add(at),
            None => self.bytes().as_ptr(),
        }
    }

    fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        match self.external() {
            Some((memory, at)) => {
                let bytes = Segment::len(self).saturating_sub(offset).min(out.len());
                memory.copy_to(at + offset, &mut out[..bytes])
            }
            None => copy_slice(self.bytes(), offset, out),
        }
    }
}

#[derive(Clone)]
pub(crate) struct HeapSegments<'a>(HeapViews<'a>);

impl<'a> Iterator for HeapSegments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        Some(self.0.next()?.bytes())
    }
}
