//! Segments queued for transmission: their records, and the slab that holds the records of all connections.
//!
//! The bytes of a segment never change, however often the segment is sent. The boundaries of a segment change
//! only if the segment is cut (`send/queue/mod.rs`). Records are linked by index. `send/queue` has the queue
//! of one connection, and `pages.rs` has the buffers.

use std::num::NonZeroU32;
use std::ops::Range;

use arrayvec::ArrayVec;
use bitflags::bitflags;
use dp::{Mbuf, Mempool};

use super::connection_pages::ConnectionPages;
use super::external::{ExternalKey, Externals};
use super::pages::{PageKey, PageKind, Pages};
use super::places::Place;
use crate::Instant;
use crate::invariant::{Check, ensure};
use crate::tcp::info::SendError;

/// Maximum number of segments in a train: the maximum number of buffers of a frame, less one buffer for the
/// headers.
pub(crate) const MAX_TRAIN: usize = dp::mbuf::MAX_SEGMENTS - 1;

/// The limit of segments divided by this number is the limit of segments with external memory. Segments with
/// external memory are long, so a connection has few such segments.
const EXTERNAL_SHARE: usize = 4;

/// The key of a queued segment: the slab index plus one, so that an `Option` of a key is no larger than a
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey(NonZeroU32);

impl SegmentKey {
    #[inline]
    fn of(record: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(record as u32))
    }

    #[inline]
    pub(super) fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// One transmission of a segment. Transmissions are numbered, since segments that are sent in one poll have
/// the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Sent {
    pub(in crate::tcp) at: Instant,
    /// The number of the transmission, which wraps. Only close numbers are compared.
    pub(in crate::tcp) nr: u32,
}

impl Sent {
    /// A time before any transmission.
    pub(in crate::tcp) const NEVER: Self = Self { at: Instant::ZERO, nr: 0 };

    /// Whether this transmission was later than `other`.
    #[inline]
    pub(in crate::tcp) fn is_after(self, other: Self) -> bool {
        self.follows(other.nr)
    }

    /// Whether this transmission was later than the transmission number `nr`.
    #[inline]
    pub(in crate::tcp) fn follows(self, nr: u32) -> bool {
        (self.nr.wrapping_sub(nr) as i32) > 0
    }
}

bitflags! {
    /// State of a segment since it was pushed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(in crate::tcp) struct Marks: u8 {
        /// The segment was sent more than once, so our clock gives no RTT sample for it (Karn).
        const RETRANSMITTED = 1;
        const SACKED = 2;
        /// The segment is believed to be lost, and was not sent again since.
        const LOST = 4;
        /// The segment was retransmitted since this recovery began. The end of the recovery and a timeout
        /// clear this mark. ([`Marks::RETRANSMITTED`] stays.)
        const RETRANSMITTED_IN_RECOVERY = 8;
        /// The segment is in flight: it was sent, and since then it was neither acknowledged nor marked lost.
        /// Segments in flight are linked in the order of transmission.
        const IN_FLIGHT = 16;
        const FREE = 32;
    }
}

pub(in crate::tcp) struct Segment {
    /// The page with the segment's payload.
    pub(in crate::tcp) page: PageKey,
    offset: u32,
    /// The part of the payload that is in external memory; `None` if the segment has no external memory.
    pub(in crate::tcp) external: Option<ExternalKey>,
    /// Position of the segment's first byte (`seq.rs`).
    pub(in crate::tcp) pos: u64,
    pub(in crate::tcp) len: u32,
    /// The partial Internet checksum of the payload; `None` if the checksum is not known.
    checksum: Option<u16>,
    pub(in crate::tcp) marks: Marks,
    /// The segment's last transmission. Before the first transmission, the value is not valid.
    pub(in crate::tcp) sent: Sent,
    /// The next segment of its queue, or the next free record.
    pub(in crate::tcp) next: Option<SegmentKey>,
    /// With [`Marks::IN_FLIGHT`], the neighbours in the order of transmission. With [`Marks::LOST`], the
    /// neighbours among the lost segments. With [`Marks::SACKED`], `later` is a later segment of the queue:
    /// all segments from this segment to `later` are selectively acknowledged. If the next segment is not
    /// selectively acknowledged, `later` is `None`.
    pub(in crate::tcp) earlier: Option<SegmentKey>,
    pub(in crate::tcp) later: Option<SegmentKey>,
}

impl Segment {
    /// Position after the segment's last byte.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> u64 {
        self.pos + u64::from(self.len)
    }

    /// Whether the bytes of `next` directly follow the bytes of this segment in the page, so that one view
    /// covers both segments. Neither segment may have external memory.
    #[inline]
    pub(in crate::tcp) fn adjoins(&self, next: &Self) -> bool {
        self.page == next.page && self.offset + self.len == next.offset
    }

    /// The segment's range in the page, if it has no external memory.
    #[inline]
    fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }
}

/// Result of [`SegmentSlab::remove_run`].
pub(in crate::tcp) struct Run {
    pub(in crate::tcp) removed: Option<RemovedRun>,
    /// Number of removed segments.
    pub(in crate::tcp) count: u32,
    /// The first segment that was not removed, and the segment that was sent longest ago among the remaining
    /// segments.
    pub(in crate::tcp) next: Option<SegmentKey>,
    pub(in crate::tcp) oldest: Option<SegmentKey>,
    /// True if the first segment that was not removed also ends at or below `una`.
    pub(in crate::tcp) goes_on: bool,
}

pub(in crate::tcp) struct RemovedRun {
    /// The positions at which the first removed segment began and ended.
    pub(in crate::tcp) first: (u64, u64),
    /// The position at which the last removed segment ended, and the transmission of that segment.
    pub(in crate::tcp) last: (u64, Sent),
    /// True if one of the removed segments had external memory.
    pub(in crate::tcp) external: bool,
}

/// The segments that all connections of a stack hold for transmission, and their pages.
pub(crate) struct SegmentSlab {
    records: Vec<Segment>,
    /// The first record with [`Marks::FREE`]. Free records are linked like a queue, so that a run of segments
    /// is freed at once.
    free: Option<SegmentKey>,
    /// Number of records in use.
    used: usize,
    limit: usize,
    pub(super) pages: Pages,
    pub(super) externals: Externals,
    /// The places of records that had a place. (The values of other records are not valid.)
    pub(super) places: Vec<Place>,
    /// Number of calls of [`get`](Self::get) and [`place`](Self::place), with which tests count steps.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<u64>,
}

impl SegmentSlab {
    /// A slab with memory for `limit` segments, in at most `small_pages` small buffers.
    pub(crate) fn new(limit: usize, small_pages: usize) -> Self {
        // Each page has a segment, except the spare page and a page that is being opened. A page is opened
        // only while a record is free.
        let pages = Pages::new(limit + 1, small_pages);
        let externals = Externals::new(limit / EXTERNAL_SHARE);
        Self {
            records: Vec::with_capacity(limit),
            places: Vec::with_capacity(limit),
            free: None,
            used: 0,
            limit,
            pages,
            externals,
            #[cfg(test)]
            visits: std::cell::Cell::new(0),
        }
    }

    /// Whether the limit is reached. The limit is checked before a segment is started, so started segments
    /// may still be pushed.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// Whether a connection with `own` records already has its share. The share is half of the number of free
    /// records. Thus bulk senders get equal shares, and records stay free for further senders (dynamic
    /// thresholds, Choudhury and Hahne).
    #[inline]
    pub(crate) fn is_full_for(&self, own: u32) -> bool {
        2 * own as usize >= self.limit.saturating_sub(self.used)
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Number of small pages in use.
    pub(crate) fn small_pages(&self) -> usize {
        self.pages.small()
    }

    /// The unwritten rest of a page.
    #[inline]
    pub(crate) fn room(&mut self, page: PageKey) -> &mut [u8] {
        self.pages.room(page)
    }

    /// The payload of a segment without external memory.
    #[inline(always)]
    pub(crate) fn bytes(&self, key: SegmentKey) -> &[u8] {
        let segment = self.get(key);
        debug_assert!(segment.external.is_none(), "a part of the payload lies elsewhere");
        self.pages.bytes(segment.page, segment.range())
    }

    /// The partial Internet checksum of the payload of a segment without external memory; `None` if the
    /// checksum is not known.
    #[inline]
    pub(crate) fn checksum(&self, key: SegmentKey) -> Option<u16> {
        self.get(key).checksum
    }

    /// Whether the segment is the first in its page.
    #[inline]
    pub(crate) fn leads_page(&self, key: SegmentKey) -> bool {
        self.get(key).offset == 0
    }

    /// A frame in the segment's own buffer: `head` bytes that `write` fills in, followed by the segment. The
    /// segment must have no external memory and must [lead its page](Self::leads_page). Returns `None` if an
    /// earlier frame of the page still exists, or if no descriptor is free.
    #[inline]
    pub(crate) fn headed(
        &mut self,
        key: SegmentKey,
        head: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<Mbuf> {
        let segment = self.get(key);
        debug_assert!(segment.external.is_none(), "a part of the payload lies elsewhere");
        debug_assert_eq!(segment.offset, 0, "others lie in front of it");
        let (page, bytes) = (segment.page, segment.len as usize);
        self.pages.headed(page, head, bytes, write)
    }

    #[inline]
    pub(crate) fn length(&self, key: SegmentKey) -> usize {
        self.get(key).len as usize
    }

    /// The segment `first`, and all segments that follow it in its queue.
    pub(crate) fn iter_from(&self, first: SegmentKey) -> impl Iterator<Item = SegmentKey> {
        std::iter::successors(Some(first), |key| self.get(*key).next)
    }

    /// A segment's range in its page.
    pub(super) fn range(&self, segment: &Segment) -> Range<usize> {
        let external = segment.external.map_or(0, |key| self.externals.bytes(key));
        let Range { start, end } = segment.range();
        start..end - external as usize
    }

    /// The payloads of `count` segments from `first` on, in as few views as possible. The segments must have
    /// no external memory. Returns `None` if no descriptor is free.
    pub(crate) fn views(&self, first: SegmentKey, count: usize) -> Option<ArrayVec<Mbuf, MAX_TRAIN>> {
        let mut views = ArrayVec::new();
        let mut segments = self.iter_from(first).map(|key| self.get(key)).take(count);
        let mut last = segments.next()?;
        let mut place = last.range();
        for next in segments {
            if last.adjoins(next) {
                place.end = next.range().end;
            } else {
                views.try_push(self.pages.view(last.page, place)?).ok()?;
                place = next.range();
            }
            last = next;
        }
        views.try_push(self.pages.view(last.page, place)?).ok()?;
        Some(views)
    }

    #[inline]
    pub(in crate::tcp) fn get(&self, key: SegmentKey) -> &Segment {
        #[cfg(test)]
        self.visits.update(|visits| visits + 1);
        &self.records[key.record()]
    }

    /// Like [`get`](Self::get), for keys that may be stale. Returns `None` if the record is not in use.
    pub(in crate::tcp) fn find(&self, key: SegmentKey) -> Option<&Segment> {
        self.records.get(key.record()).filter(|segment| !segment.marks.contains(Marks::FREE))
    }

    fn used(&self) -> impl Iterator<Item = &Segment> {
        self.records.iter().filter(|segment| !segment.marks.contains(Marks::FREE))
    }

    /// Checks the slab, given that the connections of the stack have `queued` segments and that the pages
    /// `open` are open.
    pub(crate) fn check(&self, queued: usize, open: &[PageKey]) -> Check {
        self.check_free()?;
        ensure!(self.used == queued, "{} segment records, {queued} in queues", self.used);
        let externals = self.used().filter(|segment| segment.external.is_some()).count();
        let counted = self.externals.len();
        ensure!(counted == externals, "{counted} external parts, {externals} in segments");
        let places = self.used().map(|segment| (segment.page, self.range(segment)));
        self.pages.check(places, open)
    }

    /// Checks that each record is either in use or linked as free.
    fn check_free(&self) -> Check {
        let (mut cursor, mut free) = (self.free, 0);
        while let Some(key) = cursor {
            let record = self.records.get(key.record()).filter(|record| record.marks == Marks::FREE);
            let Some(record) = record else { return Err(format!("{key:?} is linked as free")) };
            free += 1;
            ensure!(free <= self.records.len(), "free records are linked in a circle");
            cursor = record.next;
        }
        let (all, used) = (self.records.len(), self.used().count());
        ensure!(
            (self.used, free) == (used, all - used),
            "{} used, {free} free of {used} and {all}",
            self.used
        );
        Ok(())
    }

    #[inline]
    pub(in crate::tcp) fn get_mut(&mut self, key: SegmentKey) -> &mut Segment {
        &mut self.records[key.record()]
    }

    #[inline]
    pub(in crate::tcp) fn has_room(&self, page: PageKey, bytes: usize) -> bool {
        self.pages.room_bytes(page) >= bytes
    }

    /// Opens a page for a segment of up to `bytes` bytes of a connection that has `own` small pages.
    ///
    /// # Errors
    /// [`SendError::BufferFull`] if the connection already has its share of the small buffers.
    /// [`SendError::NoMbuf`] if no buffer is free, or if the number of small pages of all connections is at
    /// its limit.
    #[inline]
    pub(in crate::tcp) fn open_page(
        &mut self,
        pools: (&Mempool, Option<&Mempool>),
        bytes: usize,
        own: u32,
    ) -> Result<(PageKey, PageKind), SendError> {
        self.pages.open(pools, bytes, own)
    }

    /// Whether [`open_page`](Self::open_page) would not return [`SendError::BufferFull`].
    pub(in crate::tcp) fn may_open_page(&self, bulk: Option<&Mempool>, bytes: usize, own: u32) -> bool {
        self.pages.may_open(bulk, bytes, own)
    }

    /// Frees the buffer that is kept for the next page ([`Pages::free_spare`]).
    pub(crate) fn free_spare_page(&mut self) {
        self.pages.free_spare();
    }

    /// If the page has no segment, frees the page and returns the page's kind. Otherwise returns `None`.
    pub(in crate::tcp) fn close_page_if_empty(&mut self, page: PageKey) -> Option<PageKind> {
        self.pages.close_if_empty(page)
    }

    pub(in crate::tcp) fn page_kind(&self, page: PageKey) -> PageKind {
        self.pages.kind(page)
    }

    /// Creates a record for the next `bytes` bytes of the page, at position `pos`. `checksum` is the
    /// partial Internet checksum of these bytes, if it is known. The record is not in a queue yet.
    #[inline(always)]
    pub(in crate::tcp) fn insert(
        &mut self,
        page: PageKey,
        bytes: usize,
        pos: u64,
        checksum: Option<u16>,
    ) -> SegmentKey {
        let offset = self.pages.fill(page, bytes);
        let segment = Segment {
            page,
            offset,
            external: None,
            pos,
            len: bytes as u32,
            checksum,
            marks: Marks::empty(),
            sent: Sent::NEVER,
            next: None,
            earlier: None,
            later: None,
        };
        self.take(segment)
    }

    /// Stores `segment` in a free or new record.
    #[inline(always)]
    fn take(&mut self, segment: Segment) -> SegmentKey {
        self.used += 1;
        if let Some(key) = self.free {
            let record = &mut self.records[key.record()];
            self.free = record.next;
            *record = segment;
            return key;
        }
        self.records.push(segment);
        SegmentKey::of(self.records.len() - 1)
    }

    /// Splits a segment. The record `key` keeps the first `at` bytes. Returns the record of the rest, which
    /// follows this record and has no marks.
    pub(in crate::tcp) fn split(&mut self, key: SegmentKey, at: u32) -> SegmentKey {
        let (kept, [own, external]) = match self.get(key).external {
            Some(external) => self.split_external(external, at),
            None => (at, [None, None]),
        };
        let segment = self.get(key);
        let second = Segment {
            page: segment.page,
            offset: segment.offset + kept,
            external,
            pos: segment.pos + u64::from(at),
            len: segment.len - at,
            checksum: None,
            marks: Marks::empty(),
            sent: segment.sent,
            next: segment.next,
            earlier: None,
            later: None,
        };
        self.pages.share(segment.page);
        let second = self.take(second);
        let first = self.get_mut(key);
        first.len = at;
        first.checksum = None;
        first.external = own;
        first.next = Some(second);
        second
    }

    /// Releases the memory of a segment. A call of [`free`](Self::free) must follow. Returns the page if it
    /// was freed with the segment.
    #[inline]
    pub(in crate::tcp) fn release(&mut self, key: SegmentKey) -> Option<(PageKey, PageKind)> {
        let segment = self.get_mut(key);
        segment.marks = Marks::FREE;
        let page = segment.page;
        if let Some(external) = segment.external {
            self.externals.remove(external);
        }
        self.pages.leave(page).map(|kind| (page, kind))
    }

    /// Removes segments from the front of a queue, as long as they end at or below `una` and have no other
    /// mark than [`Marks::IN_FLIGHT`]. The removal also stops at the first segment that is not the next in
    /// the order of transmission. The first segment of this order is `oldest`. `own` is the record of the
    /// connection's pages.
    #[inline(always)]
    pub(in crate::tcp) fn remove_run(
        &mut self,
        (head, oldest): (SegmentKey, Option<SegmentKey>),
        una: u64,
        own: &mut ConnectionPages,
    ) -> Run {
        let (mut cursor, mut oldest, mut count, mut last) = (Some(head), oldest, 0, head);
        let (mut external, mut end) = (false, 0);
        let goes_on = loop {
            let Some(key) = cursor else { break false };
            let segment = &mut self.records[key.record()];
            let segment_end = segment.end();
            if segment_end > una {
                break false;
            }
            if segment.marks != Marks::IN_FLIGHT || oldest != cursor {
                break true;
            }
            segment.marks = Marks::FREE;
            (cursor, oldest, last, end) = (segment.next, segment.later, key, segment_end);
            count += 1;
            let page = segment.page;
            if let Some(key) = segment.external {
                external = true;
                self.externals.remove(key);
            }
            if let Some(kind) = self.pages.leave(page) {
                own.on_freed(page, kind);
            }
        };
        let removed = (count > 0).then(|| {
            let first = self.get(head);
            let first = (first.pos, first.end());
            let sent = self.get(last).sent;
            self.free(head, last, count);
            RemovedRun { first, last: (end, sent), external }
        });
        Run { removed, count, next: cursor, oldest, goes_on }
    }

    /// Frees the records of `count` segments that are linked from `first` to `last`.
    #[inline]
    pub(in crate::tcp) fn free(&mut self, first: SegmentKey, last: SegmentKey, count: u32) {
        self.used -= count as usize;
        let behind = self.free.replace(first);
        self.get_mut(last).next = behind;
    }
}

#[cfg(test)]
impl SegmentSlab {
    pub(in crate::tcp) fn visits(&self) -> u64 {
        self.visits.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;

    #[test]
    fn records_that_are_in_no_queue_are_found_and_those_outside_of_their_page() {
        type Break = fn(&mut SegmentSlab, [SegmentKey; 2]);
        let broken: [(Break, &str); 12] = [
            (
                |slab, [first, _]| {
                    slab.release(first);
                    slab.free(first, first, 1);
                },
                "1 segment records, 2 in queues",
            ),
            (|slab, [first, _]| _ = slab.release(first), "2 used, 0 free of 1 and 2"),
            (|slab, [first, _]| slab.get_mut(first).marks = Marks::FREE, "2 used, 0 free of 1 and 2"),
            (|slab, _| slab.used = 1, "1 used, 0 free of 2 and 2"),
            (|slab, [first, _]| slab.free = Some(first), "SegmentKey(1) is linked as free"),
            (|slab, _| slab.free = Some(SegmentKey::of(9)), "SegmentKey(10) is linked as free"),
            (
                |slab, [first, last]| {
                    slab.release(first);
                    slab.release(last);
                    slab.free(first, last, 2);
                    slab.get_mut(first).next = Some(first);
                },
                "free records are linked in a circle",
            ),
            (|slab, [first, _]| _ = slab.split(first, 10), "3 segment records, 2 in queues"),
            (|slab, [_, last]| slab.get_mut(last).len += 1, "a segment at 100..201 of PageKey(1)"),
            (|slab, [_, last]| slab.get_mut(last).offset += 1, "a segment at 101..201 of PageKey(1)"),
            (|slab, [first, _]| slab.pages.share(slab.get(first).page), "page 0 counts 3 segments of 2"),
            (|slab, [first, _]| _ = slab.pages.leave(slab.get(first).page), "page 0 counts 1 segments of 2"),
        ];
        let pool = Mempool::heap("segments", 1, 2048);
        for (break_it, what) in broken {
            let mut slab = SegmentSlab::new(8, 8);
            let (page, _) = slab.open_page((&pool, None), 100, 0).unwrap();
            let keys = [1, 101].map(|pos| slab.insert(page, 100, pos, None));
            slab.check(2, &[]).unwrap();
            break_it(&mut slab, keys);
            assert_found(slab.check(2, &[]), what);
        }
    }
}
