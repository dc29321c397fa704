//! Segments queued for transmission: their records, and the slab that holds those of all
//! connections.
//!
//! A segment is frozen: its bytes and boundaries never change, however often it is sent. Records
//! are linked by index, so that an idle connection holds none. Not here: the queue of one
//! connection (`queue.rs`), the buffers (`pages.rs`).

use std::num::NonZeroU32;
use std::ops::Range;

use arrayvec::ArrayVec;
use bitflags::bitflags;
use dp::{Mbuf, Mempool};
use slab::Slab;

use super::pages::{PageKey, Pages};
use crate::Instant;
use crate::invariant::{Check, ensure};
use crate::tcp::info::SendError;

/// Segments of a train at most: buffers of a frame, less one for the headers.
pub(crate) const MAX_TRAIN: usize = dp::mbuf::MAX_SEGMENTS - 1;

/// Names a queued segment: its record plus one, so that an optional name takes no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey(NonZeroU32);

impl SegmentKey {
    #[inline]
    fn of(record: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(record as u32))
    }

    #[inline]
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// One transmission of a segment. They are numbered, so that those of one moment are told apart,
/// too: segments sent in one turn share its time, and a retransmission is not older than fresh
/// segments that left in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Sent {
    pub(in crate::tcp) at: Instant,
    /// Wraps; what is compared is close together.
    pub(in crate::tcp) nr: u32,
}

impl Sent {
    /// Before any.
    pub(in crate::tcp) const NEVER: Self = Self { at: Instant::ZERO, nr: 0 };

    /// Whether this was later than `other`.
    #[inline]
    pub(in crate::tcp) fn is_after(self, other: Self) -> bool {
        self.follows(other.nr)
    }

    /// Whether this was later than the transmission number `nr`.
    #[inline]
    pub(in crate::tcp) fn follows(self, nr: u32) -> bool {
        (self.nr.wrapping_sub(nr) as i32) > 0
    }
}

bitflags! {
    /// What happened to a segment since it was pushed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(in crate::tcp) struct Marks: u8 {
        /// Sent more than once: no RTT sample (Karn).
        const RESENT = 1;
        /// Selectively acknowledged.
        const SACKED = 2;
        /// Inferred lost, and not sent again since.
        const LOST = 4;
        /// Sent again in this recovery.
        const REPAIRED = 8;
        /// Sent, neither known to have arrived nor lost since: linked in the order of transmission.
        const FLYING = 16;
    }
}

/// A queued segment.
pub(in crate::tcp) struct Segment {
    /// Where its payload is.
    pub(in crate::tcp) page: PageKey,
    offset: u32,
    /// Position of its first byte (`seq.rs`).
    pub(in crate::tcp) pos: u64,
    pub(in crate::tcp) len: u32,
    pub(in crate::tcp) marks: Marks,
    /// When it was sent last; meaningless before.
    pub(in crate::tcp) sent: Sent,
    pub(in crate::tcp) next: Option<SegmentKey>,
    /// Neighbours in the order of transmission, while [`Marks::FLYING`].
    pub(in crate::tcp) earlier: Option<SegmentKey>,
    pub(in crate::tcp) later: Option<SegmentKey>,
}

impl Segment {
    /// Position behind its last byte.
    #[inline]
    pub(in crate::tcp) fn end(&self) -> u64 {
        self.pos + u64::from(self.len)
    }

    /// Whether the bytes of `next` lie right behind its own: one view shows both.
    #[inline]
    pub(in crate::tcp) fn adjoins(&self, next: &Self) -> bool {
        self.page == next.page && self.offset + self.len == next.offset
    }

    /// Where its bytes are in its page.
    #[inline]
    fn place(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }
}

/// Records of the segments that all connections of a stack hold for transmission, and the pages
/// they are in.
pub(crate) struct SegmentSlab {
    records: Slab<Segment>,
    limit: usize,
    pages: Pages,
}

impl SegmentSlab {
    /// Room for `limit` segments, taken now, in at most `small_pages` of the port's own buffers.
    pub(crate) fn new(limit: usize, small_pages: usize) -> Self {
        // Each page has a segment, but the one that is being opened.
        Self { records: Slab::with_capacity(limit), limit, pages: Pages::new(limit + 1, small_pages) }
    }

    /// Whether the limit is reached. It bounds `segment`; segments made before may still be pushed.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit
    }

    /// Whether a connection that holds `own` records has its share: half as many as are free. So
    /// any number of bulk senders end up with equal shares, and one more always finds room (dynamic
    /// thresholds, Choudhury and Hahne).
    #[inline]
    pub(crate) fn is_full_for(&self, own: u32) -> bool {
        2 * own as usize >= self.limit.saturating_sub(self.records.len())
    }

    /// Records in use.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Small pages in use.
    pub(crate) fn small_pages(&self) -> usize {
        self.pages.small()
    }

    /// What can still be written into a page.
    pub(crate) fn room(&mut self, page: PageKey) -> &mut [u8] {
        self.pages.room(page)
    }

    /// The payload of a segment.
    #[inline]
    pub(crate) fn bytes(&self, key: SegmentKey) -> &[u8] {
        let segment = self.get(key);
        self.pages.bytes(segment.page, segment.place())
    }

    /// Bytes of that.
    #[inline]
    pub(crate) fn length(&self, key: SegmentKey) -> usize {
        self.get(key).len as usize
    }

    /// `first` and those behind it.
    pub(crate) fn iter_from(&self, first: SegmentKey) -> impl Iterator<Item = SegmentKey> {
        std::iter::successors(Some(first), |key| self.get(*key).next)
    }

    /// The payloads of `count` segments from `first` on, as few buffers as they lie in; `None` when
    /// no descriptor is free.
    pub(crate) fn views(&self, first: SegmentKey, count: usize) -> Option<ArrayVec<Mbuf, MAX_TRAIN>> {
        let mut views = ArrayVec::new();
        let mut segments = self.iter_from(first).map(|key| self.get(key)).take(count);
        let mut last = segments.next()?;
        let mut place = last.place();
        for next in segments {
            if last.adjoins(next) {
                place.end = next.place().end;
            } else {
                views.try_push(self.pages.view(last.page, place)?).ok()?;
                place = next.place();
            }
            last = next;
        }
        views.try_push(self.pages.view(last.page, place)?).ok()?;
        Some(views)
    }

    #[inline]
    pub(in crate::tcp) fn get(&self, key: SegmentKey) -> &Segment {
        &self.records[key.record()]
    }

    /// As [`get`](Self::get), where the key itself is in doubt.
    pub(in crate::tcp) fn find(&self, key: SegmentKey) -> Option<&Segment> {
        self.records.get(key.record())
    }

    /// The connections of the stack have `queued` segments and these pages open.
    pub(crate) fn check(&self, queued: usize, open: &[PageKey]) -> Check {
        ensure!(self.records.len() == queued, "{} segment records, {queued} in queues", self.records.len());
        let places = self.records.iter().map(|(_, segment)| (segment.page, segment.place()));
        self.pages.check(places, open)
    }

    #[inline]
    pub(in crate::tcp) fn get_mut(&mut self, key: SegmentKey) -> &mut Segment {
        &mut self.records[key.record()]
    }

    /// The page that a segment of up to `bytes` can be written to: `open` if it has the room, else
    /// a new one for a connection that has `own` segments queued.
    ///
    /// # Errors
    /// As [`Pages::open`].
    #[inline]
    pub(in crate::tcp) fn page(
        &mut self,
        open: Option<PageKey>,
        pools: (&Mempool, Option<&Mempool>),
        bytes: usize,
        own: u32,
    ) -> Result<PageKey, SendError> {
        match open.filter(|&open| self.pages.room_bytes(open) >= bytes) {
            Some(open) => Ok(open),
            None => self.pages.open(pools, bytes, own),
        }
    }

    /// Gives a page back in which there is no segment; returns whether that was so.
    pub(in crate::tcp) fn close_page_if_empty(&mut self, page: PageKey) -> bool {
        self.pages.close_if_empty(page)
    }

    /// A record for the first `bytes` bytes of the page's room, which stand at `pos`. It is in no
    /// queue yet.
    #[inline]
    pub(in crate::tcp) fn insert(&mut self, page: PageKey, bytes: usize, pos: u64) -> SegmentKey {
        let offset = self.pages.fill(page, bytes);
        let segment = Segment {
            page,
            offset,
            pos,
            len: bytes as u32,
            marks: Marks::empty(),
            sent: Sent::NEVER,
            next: None,
            earlier: None,
            later: None,
        };
        SegmentKey::of(self.records.insert(segment))
    }

    /// Cuts a segment without marks: its first part keeps the record and has `at` bytes; returns
    /// that of the rest, which follows it.
    pub(in crate::tcp) fn split(&mut self, key: SegmentKey, at: u32) -> SegmentKey {
        let segment = self.get(key);
        let second = Segment {
            page: segment.page,
            offset: segment.offset + at,
            pos: segment.pos + u64::from(at),
            len: segment.len - at,
            marks: Marks::empty(),
            sent: segment.sent,
            next: segment.next,
            earlier: None,
            later: None,
        };
        self.pages.share(segment.page);
        let second = SegmentKey::of(self.records.insert(second));
        let first = self.get_mut(key);
        first.len = at;
        first.next = Some(second);
        second
    }

    /// Removes the record of a segment. Returns what followed it, and the page that went with it,
    /// if one did.
    #[inline]
    pub(in crate::tcp) fn remove(&mut self, key: SegmentKey) -> (Option<SegmentKey>, Option<PageKey>) {
        let Segment { page, next, .. } = self.records.remove(key.record());
        (next, self.pages.leave(page).then_some(page))
    }
}
