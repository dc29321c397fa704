//! External memory in queued segments: bytes that are sent without a copy.
//!
//! A segment has at most one part in external memory. The bytes before and after this part are in the
//! segment's page: an FPDU's header before the part, and the pad and CRC after it. The memory is kept alive
//! until the segment has left the queue and no frame refers to the memory.

use std::num::NonZeroU32;
use std::ops::Range;

use arrayvec::ArrayVec;
use dp::{ExtBuf, Mbuf, Mempool};
use slab::Slab;

use super::pages::{PageKey, Pages};
use super::segment::{MAX_TRAIN, Segment, SegmentKey, SegmentSlab};

/// Maximum number of views of a segment with external memory: the bytes before the memory, the memory, and
/// the bytes after the memory.
pub(crate) const EXTERNAL_VIEWS: usize = 3;

/// The key of the external part of a segment: the slab index plus one, so that an `Option` of a key is no
/// larger than a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct ExternalKey(NonZeroU32);

impl ExternalKey {
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Clone)]
struct External {
    memory: ExtBuf,
    /// Number of bytes of the page before the memory.
    at: u32,
}

impl External {
    fn bytes(&self) -> u32 {
        self.memory.len() as u32
    }
}

/// The external memory of the segments of all connections.
pub(super) struct Externals {
    records: Slab<External>,
    limit: usize,
}

impl Externals {
    /// A slab with memory for `limit` parts. When segments are cut, the number of parts may exceed the limit.
    pub(super) fn new(limit: usize) -> Self {
        Self { records: Slab::with_capacity(limit), limit }
    }

    fn insert(&mut self, external: External) -> ExternalKey {
        let record = self.records.insert(external) as u32;
        ExternalKey(NonZeroU32::MIN.saturating_add(record))
    }

    fn get(&self, key: ExternalKey) -> &External {
        &self.records[key.record()]
    }

    pub(super) fn remove(&mut self, key: ExternalKey) {
        self.records.remove(key.record());
    }

    pub(super) fn bytes(&self, key: ExternalKey) -> u32 {
        self.get(key).bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

impl SegmentSlab {
    /// Whether the limit of external parts is reached.
    pub(crate) fn has_many_externals(&self) -> bool {
        self.externals.len() >= self.externals.limit
    }

    #[inline]
    pub(crate) fn is_external(&self, key: SegmentKey) -> bool {
        self.get(key).external.is_some()
    }

    /// Like [`insert`](Self::insert), but the segment also has the external memory `memory`, which comes
    /// after the first `at` of the `bytes` bytes.
    pub(in crate::tcp) fn insert_external(
        &mut self,
        page: PageKey,
        bytes: usize,
        pos: u64,
        (memory, at): (ExtBuf, u32),
    ) -> SegmentKey {
        let key = self.insert(page, bytes, pos, None);
        let len = bytes as u32 + memory.len() as u32;
        let external = self.externals.insert(External { memory, at });
        let segment = self.get_mut(key);
        segment.len = len;
        segment.external = Some(external);
        key
    }

    /// Divides the parts of a segment with external memory at `cut`, as [`split`](Self::split) does. Returns
    /// the number of page bytes that the first segment keeps, and the external part of each segment.
    pub(super) fn split_external(&mut self, key: ExternalKey, cut: u32) -> (u32, [Option<ExternalKey>; 2]) {
        let External { at, .. } = *self.externals.get(key);
        let bytes = self.externals.bytes(key);
        if cut <= at {
            self.externals.records[key.record()].at = at - cut;
            return (cut, [None, Some(key)]);
        }
        if at + bytes <= cut {
            return (cut - bytes, [Some(key), None]);
        }
        let middle = (cut - at) as usize;
        let first = &mut self.externals.records[key.record()];
        let rest = first.memory.slice(middle..bytes as usize);
        let front = first.memory.slice(0..middle);
        let (Some(front), Some(rest)) = (front, rest) else { return (at, [Some(key), None]) };
        first.memory = front;
        (at, [Some(key), Some(self.externals.insert(External { memory: rest, at: 0 }))])
    }

    /// The three parts of a segment with external memory: a range in its page, the memory, and a range in its
    /// page. `None` if the segment has no external memory.
    fn parts(&self, segment: &Segment) -> Option<(Range<usize>, &ExtBuf, Range<usize>)> {
        let External { memory, at } = self.externals.get(segment.external?);
        let range = self.range(segment);
        let middle = range.start + *at as usize;
        Some((range.start..middle, memory, middle..range.end))
    }

    /// Like [`views`](Self::views), for segments that all have external memory. The views of this memory use
    /// descriptors of `pool`. Returns `None` if no descriptor is free, or if there would be too many views.
    pub(crate) fn external_views(
        &self,
        pool: &Mempool,
        first: SegmentKey,
        count: usize,
    ) -> Option<ArrayVec<Mbuf, MAX_TRAIN>> {
        let mut views = Views { pages: &self.pages, views: ArrayVec::new(), open: None };
        for segment in self.iter_from(first).take(count).map(|key| self.get(key)) {
            let (before, memory, behind) = self.parts(segment)?;
            views.add(segment.page, before)?;
            views.close()?;
            views.views.try_push(Mbuf::external(pool, memory.clone())?).ok()?;
            views.add(segment.page, behind)?;
        }
        views.close()?;
        Some(views.views)
    }

    /// Appends the first `bytes` bytes of a segment to `buf`. Returns `false` if `buf` has no room for the
    /// bytes.
    pub(in crate::tcp) fn copy_front(&self, key: SegmentKey, bytes: usize, buf: &mut Mbuf) -> bool {
        let segment = self.get(key);
        let Some((before, memory, behind)) = self.parts(segment) else {
            return buf.append_slice(&self.bytes(key)[..bytes]);
        };
        let Some(room) = buf.append(bytes) else { return false };
        let page = |place| self.pages.bytes(segment.page, place);
        let (front, room) = room.split_at_mut(before.len().min(bytes));
        front.copy_from_slice(&page(before)[..front.len()]);
        let copied = memory.copy_to(0, room);
        let room = &mut room[copied..];
        let last = room.len();
        room.copy_from_slice(&page(behind)[..last]);
        true
    }
}

/// Views of pages and of external memory. Views of adjacent bytes of a page are joined.
struct Views<'a> {
    pages: &'a Pages,
    views: ArrayVec<Mbuf, MAX_TRAIN>,
    /// A range of a page whose view is not yet made.
    open: Option<(PageKey, Range<usize>)>,
}

impl Views<'_> {
    fn add(&mut self, page: PageKey, place: Range<usize>) -> Option<()> {
        match &mut self.open {
            _ if place.is_empty() => {}
            Some((last, range)) if *last == page && range.end == place.start => range.end = place.end,
            _ => {
                self.close()?;
                self.open = Some((page, place));
            }
        }
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        if let Some((page, place)) = self.open.take() {
            self.views.try_push(self.pages.view(page, place)?).ok()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A segment of `before` bytes of its page, 100 bytes of memory, and `behind` bytes of its page. No two
    /// bytes of the segment are equal.
    fn segment(
        slab: &mut SegmentSlab,
        pool: &Mempool,
        before: usize,
        behind: usize,
    ) -> (SegmentKey, Vec<u8>) {
        let (page, _) = slab.open_page((pool, None), 256, 0).unwrap();
        let bytes: Vec<u8> = (0..(before + 100 + behind) as u8).collect();
        let room = slab.room(page);
        room[..before].copy_from_slice(&bytes[..before]);
        room[before..before + behind].copy_from_slice(&bytes[before + 100..]);
        let memory = ExtBuf::new(Arc::new(bytes[before..before + 100].to_vec()));
        (slab.insert_external(page, before + behind, 1, (memory, before as u32)), bytes)
    }

    fn flat(pool: &Mempool, slab: &SegmentSlab, key: SegmentKey) -> Vec<u8> {
        let mut bytes = Vec::new();
        for view in slab.external_views(pool, key, 1).unwrap() {
            let from = bytes.len();
            bytes.resize(from + view.len(), 0);
            assert_eq!(view.copy_to(0, &mut bytes[from..]), view.len());
        }
        let mut copy = pool.alloc().unwrap();
        assert!(slab.copy_front(key, bytes.len(), &mut copy));
        assert_eq!(copy.head(), bytes, "the copy and the views are the same bytes");
        bytes
    }

    #[test]
    fn a_segment_has_the_memory_between_the_bytes_of_its_page() {
        let pool = Mempool::heap("segments", 8, 256);
        let mut slab = SegmentSlab::new(8, 8);
        for (before, behind) in [(16, 7), (16, 0), (0, 4), (0, 0)] {
            let (key, bytes) = segment(&mut slab, &pool, before, behind);
            assert_eq!((slab.length(key), slab.get(key).end()), (bytes.len(), 1 + bytes.len() as u64));
            assert_eq!(flat(&pool, &slab, key), bytes);
            for taken in 0..=bytes.len() {
                let mut copy = pool.alloc().unwrap();
                assert!(slab.copy_front(key, taken, &mut copy));
                assert_eq!(copy.head(), &bytes[..taken]);
            }
            slab.check(1, &[]).unwrap();
            slab.release(key);
            slab.free(key, key, 1);
            slab.check(0, &[]).unwrap();
        }
        assert_eq!((pool.available(), slab.externals.len()), (8, 0));
    }

    #[test]
    fn a_segment_is_cut_anywhere_and_again() {
        let pool = Mempool::heap("segments", 8, 256);
        let mut slab = SegmentSlab::new(8, 8);
        for cut in 1..122 {
            for again in 1..123 - cut {
                let (first, bytes) = segment(&mut slab, &pool, 16, 7);
                let second = slab.split(first, cut);
                let mut keys = vec![first, second];
                if again < 123 - cut {
                    keys.push(slab.split(second, again));
                }
                let mut parts = Vec::new();
                for &key in &keys {
                    let from = parts.len();
                    parts.resize(from + slab.length(key), 0);
                    let mut copy = pool.alloc().unwrap();
                    assert!(slab.copy_front(key, slab.length(key), &mut copy));
                    parts[from..].copy_from_slice(copy.head());
                    if slab.is_external(key) {
                        assert_eq!(flat(&pool, &slab, key), copy.head());
                    } else {
                        assert_eq!(slab.bytes(key), copy.head());
                    }
                }
                assert_eq!(parts, bytes, "cut at {cut} and {again}");
                slab.check(keys.len(), &[]).unwrap();
                for key in keys {
                    slab.release(key);
                    slab.free(key, key, 1);
                }
            }
        }
        assert_eq!((pool.available(), slab.externals.len()), (8, 0));
    }

    #[test]
    fn trailer_and_next_header_are_one_view() {
        let pool = Mempool::heap("segments", 8, 256);
        let mut slab = SegmentSlab::new(8, 8);
        let (page, _) = slab.open_page((&pool, None), 200, 0).unwrap();
        let memory = ExtBuf::new(Arc::new(vec![1; 50]));
        let keys = [1, 71].map(|pos| slab.insert_external(page, 20, pos, (memory.clone(), 16)));
        slab.get_mut(keys[0]).next = Some(keys[1]);
        let lengths = |count| -> Vec<usize> {
            slab.external_views(&pool, keys[0], count).unwrap().iter().map(Mbuf::len).collect()
        };
        assert_eq!((lengths(1), lengths(2)), (vec![16, 50, 4], vec![16, 50, 20, 50, 4]));
    }
}
