//! The send queue: segments from `push` until their acknowledgement.
//!
//! A segment is frozen: its octets and boundaries never change, however often it is sent. Two things only may
//! cut one, [`SendQueue::split`]'s callers: a drop of EMSS, and the persist timer. An acknowledgement in the
//! middle of a segment leaves it whole. Records live in a slab of the stack, linked by index, so that an idle
//! connection holds none. Which segments are lost is in `scoreboard.rs`, their order in time in `flight.rs`.

use std::num::NonZeroU32;
use std::ops::Range;

use arrayvec::ArrayVec;
use bitflags::bitflags;
use dp::{Mbuf, Mempool};
use slab::Slab;

use super::SendError;
use super::flight::{Flight, Sent};
use super::news::News;
use super::pages::{PageKey, Pages};
use super::scoreboard::Sacks;
use super::train::MAX_TRAIN;
use crate::Instant;

/// Names a queued segment: its record plus one, so that an optional name takes no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey(NonZeroU32);

impl SegmentKey {
    fn of(record: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(record as u32))
    }

    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

bitflags! {
    /// What happened to a segment since it was pushed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct Marks: u8 {
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
pub(super) struct Segment {
    /// Where its payload is.
    page: PageKey,
    offset: u32,
    /// Position of its first octet (`seq.rs`).
    pub(super) pos: u64,
    pub(super) len: u32,
    pub(super) marks: Marks,
    /// When it was sent last; meaningless before.
    pub(super) sent: Sent,
    pub(super) next: Option<SegmentKey>,
    /// Neighbours in the order of transmission, while [`Marks::FLYING`].
    pub(super) earlier: Option<SegmentKey>,
    pub(super) later: Option<SegmentKey>,
}

impl Segment {
    /// Position behind its last octet.
    pub(super) fn end(&self) -> u64 {
        self.pos + u64::from(self.len)
    }

    /// Whether the octets of `next` lie right behind its own: one view shows both.
    pub(super) fn adjoins(&self, next: &Self) -> bool {
        self.page == next.page && self.offset + self.len == next.offset
    }

    /// Where its octets are in its page.
    fn place(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }
}

/// Records of the segments that all connections of a stack hold for transmission, and the pages they are in.
pub(crate) struct SegmentSlab {
    records: Slab<Segment>,
    limit: usize,
    pub(super) pages: Pages,
}

impl SegmentSlab {
    /// Room for `limit` segments, taken now, in at most `small_pages` of the port's own buffers.
    pub(crate) fn new(limit: usize, small_pages: usize) -> Self {
        // Each page has a segment, but the one that is being opened.
        Self { records: Slab::with_capacity(limit), limit, pages: Pages::new(limit + 1, small_pages) }
    }

    /// Whether the limit is reached. It bounds `segment`; segments made before may still be pushed.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit
    }

    /// Whether a connection that holds `own` records has its share: half as many as are free. So any number of bulk
    /// senders end up with equal shares, and one more always finds room (dynamic thresholds, Choudhury and Hahne).
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
    pub(crate) fn octets(&self, key: SegmentKey) -> &[u8] {
        let segment = self.get(key);
        self.pages.octets(segment.page, segment.place())
    }

    /// Bytes of that.
    pub(crate) fn length(&self, key: SegmentKey) -> usize {
        self.get(key).len as usize
    }

    /// `first` and those behind it.
    pub(crate) fn iter_from(&self, first: SegmentKey) -> impl Iterator<Item = SegmentKey> {
        std::iter::successors(Some(first), |key| self.get(*key).next)
    }

    /// The payloads of `count` segments from `first` on, as few buffers as they lie in; `None` when no descriptor is free.
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

    pub(super) fn get(&self, key: SegmentKey) -> &Segment {
        &self.records[key.record()]
    }

    pub(super) fn get_mut(&mut self, key: SegmentKey) -> &mut Segment {
        &mut self.records[key.record()]
    }

    fn insert(&mut self, segment: Segment) -> SegmentKey {
        SegmentKey::of(self.records.insert(segment))
    }
}

/// The segments of one connection, oldest first. Positions as in `seq.rs`; `una` and `nxt` count SYN and FIN.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) head: Option<SegmentKey>,
    tail: Option<SegmentKey>,
    /// The first segment never sent.
    pub(super) unsent: Option<SegmentKey>,
    /// Where the search for the next segment to send again starts.
    pub(super) repair: Option<SegmentKey>,
    /// The page that the next segment is written to, if it has room for one.
    open: Option<PageKey>,
    /// Segments in the order of transmission.
    pub(super) flight: Flight,
    /// What SACK blocks said last.
    pub(super) sacks: Sacks,
    /// Oldest unacknowledged position.
    pub(super) una: u64,
    /// The position sent next.
    pub(super) nxt: u64,
    /// Behind the last octet pushed: where the FIN goes.
    pub(super) end: u64,
    /// Octets with [`Marks::SACKED`], and their segments.
    pub(super) sacked_octets: u64,
    pub(super) sacked_segments: u32,
    /// Octets with [`Marks::LOST`].
    pub(super) lost_octets: u64,
    /// Segments in the queue.
    pub(super) segments: u32,
}

impl SendQueue {
    /// Nothing sent, not even the SYN.
    pub(super) fn new() -> Self {
        Self {
            head: None,
            tail: None,
            unsent: None,
            repair: None,
            open: None,
            flight: Flight::default(),
            sacks: Sacks::default(),
            una: 0,
            nxt: 0,
            end: 1,
            sacked_octets: 0,
            sacked_segments: 0,
            lost_octets: 0,
            segments: 0,
        }
    }

    /// Octets of segments not acknowledged, sent or not.
    pub(super) fn queued(&self) -> u64 {
        self.end - self.una.clamp(1, self.end)
    }

    /// Positions sent and not acknowledged.
    pub(super) fn in_flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// Octets believed to be in the network (RFC 6675 section 4, `pipe`).
    pub(super) fn pipe(&self) -> u64 {
        self.in_flight().saturating_sub(self.sacked_octets + self.lost_octets)
    }

    /// The page to write the next segment to, with room for `octets`: a new one of the pools `(small, bulk)` where it needs
    /// one.
    ///
    /// # Errors
    /// As [`Pages::open`].
    pub(super) fn page(
        &mut self,
        slab: &mut SegmentSlab,
        pools: (&Mempool, Option<&Mempool>),
        octets: usize,
    ) -> Result<PageKey, SendError> {
        if let Some(open) = self.open.filter(|&open| slab.pages.room_octets(open) >= octets) {
            return Ok(open);
        }
        // What is full goes with its last segment.
        let page = slab.pages.open(pools, octets, self.segments)?;
        self.open = Some(page);
        Ok(page)
    }

    /// Nothing was written to the page: an empty queue keeps none.
    pub(super) fn close_page(&mut self, slab: &mut SegmentSlab) {
        self.open = self.open.filter(|&open| !slab.pages.close_if_empty(open));
    }

    /// The first `octets` octets of the open page's room are a segment: queues it behind all others.
    pub(super) fn push(&mut self, slab: &mut SegmentSlab, octets: usize) {
        let Some(page) = self.open else { return };
        let len = octets as u32;
        let segment = Segment {
            page,
            offset: slab.pages.fill(page, octets),
            pos: self.end,
            len,
            marks: Marks::empty(),
            sent: Sent::NEVER,
            next: None,
            earlier: None,
            later: None,
        };
        self.end = segment.end();
        let key = slab.insert(segment);
        self.segments += 1;
        match self.tail {
            Some(tail) => slab.get_mut(tail).next = Some(key),
            None => self.head = Some(key),
        }
        self.tail = Some(key);
        self.unsent = self.unsent.or(Some(key));
    }

    /// The first unsent segment was sent. Returns its length.
    pub(super) fn on_sent(&mut self, slab: &mut SegmentSlab, now: Instant) -> u32 {
        let Some(key) = self.unsent else { return 0 };
        let sent = self.flight.depart(now);
        let segment = slab.get_mut(key);
        segment.sent = sent;
        let len = segment.len;
        self.nxt = segment.end();
        self.unsent = segment.next;
        self.set_marks(slab, key, Marks::FLYING);
        len
    }

    /// The last segment that was sent and is still queued.
    pub(super) fn last_sent(&self, slab: &SegmentSlab) -> Option<SegmentKey> {
        if self.unsent.is_none() {
            return self.tail;
        }
        let mut last = None;
        let mut cursor = self.head;
        while let Some(key) = cursor.filter(|key| self.unsent != Some(*key)) {
            last = Some(key);
            cursor = slab.get(key).next;
        }
        last
    }

    /// Takes off what lies wholly below `ack`, which is at most `nxt`.
    pub(super) fn acknowledge(&mut self, slab: &mut SegmentSlab, ack: u64, news: &mut News) {
        news.acked += ack.saturating_sub(self.una);
        self.una = self.una.max(ack);
        while let Some(key) = self.head {
            let segment = slab.get(key);
            if segment.end() > self.una {
                break;
            }
            news.acknowledge(segment);
            self.remove_head(slab);
        }
    }

    /// Drops the oldest segment if it was cut off from one that is acknowledged in part, and this is that part. Returns
    /// whether it did.
    pub(super) fn drop_acknowledged(&mut self, slab: &mut SegmentSlab) -> bool {
        let acknowledged = self.head.is_some_and(|key| slab.get(key).end() <= self.una);
        if acknowledged {
            self.remove_head(slab);
        }
        acknowledged
    }

    fn remove_head(&mut self, slab: &mut SegmentSlab) {
        let Some(key) = self.head else { return };
        self.set_marks(slab, key, Marks::empty());
        let segment = slab.records.remove(key.record());
        if slab.pages.leave(segment.page) && self.open == Some(segment.page) {
            self.open = None;
        }
        self.segments -= 1;
        self.head = segment.next;
        if self.head.is_none() {
            self.tail = None;
        }
        for cursor in [&mut self.unsent, &mut self.repair, &mut self.sacks.last] {
            if *cursor == Some(key) {
                *cursor = segment.next;
            }
        }
    }

    /// Replaces a segment's marks, keeping the sums and the order of transmission: one that flies from now on is the
    /// latest.
    pub(super) fn set_marks(&mut self, slab: &mut SegmentSlab, key: SegmentKey, marks: Marks) {
        let segment = slab.get_mut(key);
        let (old, len) = (segment.marks, u64::from(segment.len));
        segment.marks = marks;
        match (old.contains(Marks::FLYING), marks.contains(Marks::FLYING)) {
            (true, false) => self.flight.unlink(slab, key),
            (false, true) => self.flight.append(slab, key),
            _ => {}
        }
        if !(old | marks).intersects(Marks::SACKED | Marks::LOST) {
            return;
        }
        if old.contains(Marks::SACKED) {
            self.sacked_octets -= len;
            self.sacked_segments -= 1;
        }
        if old.contains(Marks::LOST) {
            self.lost_octets -= len;
        }
        if marks.contains(Marks::SACKED) {
            self.sacked_octets += len;
            self.sacked_segments += 1;
        }
        if marks.contains(Marks::LOST) {
            self.lost_octets += len;
        }
    }

    /// Cuts a segment that does not fly so that its first part has `at` octets; the rest becomes a segment of its
    /// own. Returns whether it did: not when `at` is no inner boundary.
    pub(super) fn split(&mut self, slab: &mut SegmentSlab, key: SegmentKey, at: u32) -> bool {
        let segment = slab.get(key);
        if at == 0 || at >= segment.len {
            return false;
        }
        let (marks, page) = (segment.marks, segment.page);
        // Blocks that did not hold all of it may hold a part.
        self.sacks = Sacks::default();
        let second = Segment {
            page,
            offset: segment.offset + at,
            pos: segment.pos + u64::from(at),
            len: segment.len - at,
            marks: Marks::empty(),
            sent: segment.sent,
            next: segment.next,
            earlier: None,
            later: None,
        };
        // Sums are kept per segment: take the marks off before the length changes.
        self.set_marks(slab, key, Marks::empty());
        let second = slab.insert(second);
        slab.pages.share(page);
        self.segments += 1;
        let first = slab.get_mut(key);
        first.len = at;
        first.next = Some(second);
        self.set_marks(slab, key, marks);
        self.set_marks(slab, second, marks);
        if self.tail == Some(key) {
            self.tail = Some(second);
        }
        true
    }

    /// Drops all segments.
    pub(super) fn clear(&mut self, slab: &mut SegmentSlab) {
        while self.head.is_some() {
            self.remove_head(slab);
        }
        self.close_page(slab);
    }
}
