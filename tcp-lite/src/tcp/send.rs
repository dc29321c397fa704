//! The send queue: segments from `push` until their acknowledgement.
//!
//! A segment is frozen: its octets and boundaries never change, however often it is sent. Two things only may
//! cut one, [`SendQueue::split`]'s callers: a drop of EMSS, and the persist timer. An acknowledgement in the
//! middle of a segment leaves it whole. Records live in a slab of the stack, linked by index, so that an idle
//! connection holds none. Which segments are lost is in `scoreboard.rs`, their order in time in `flight.rs`.

use std::num::NonZeroU32;

use bitflags::bitflags;
use dp::Mbuf;
use slab::Slab;

use super::flight::{Flight, Sent};
use super::news::News;
use super::scoreboard::Sacks;
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
    /// Exactly the payload.
    buf: Mbuf,
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

    /// Its first octets, `out.len()` at most.
    pub(super) fn copy_to(&self, out: &mut [u8]) {
        self.buf.copy_to(0, out);
    }
}

/// Records of the segments that all connections of a stack hold for transmission.
pub(crate) struct SegmentSlab {
    records: Slab<Segment>,
    limit: usize,
}

impl SegmentSlab {
    /// Room for `limit` segments, taken now.
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Slab::with_capacity(limit), limit }
    }

    /// Whether the limit is reached. It bounds `segment`; segments made before may still be pushed.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit
    }

    /// Whether a connection that holds `own` records has its share: half as many as are free. So any number of bulk
    /// senders end up with equal shares, and one more always finds room (dynamic thresholds, Choudhury and Hahne).
    pub(crate) fn is_full_for(&self, own: usize) -> bool {
        2 * own >= self.limit.saturating_sub(self.records.len())
    }

    /// Records in use.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The retained buffer of a segment: exactly its payload. To send it without a copy: when it is not shared,
    /// prepend the headers, `share`, and `advance` over them again; when it is, chain a header buffer and a `share`.
    pub(crate) fn buf_mut(&mut self, key: SegmentKey) -> &mut Mbuf {
        &mut self.get_mut(key).buf
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
    pub(super) segments: usize,
}

impl SendQueue {
    /// Nothing sent, not even the SYN.
    pub(super) fn new() -> Self {
        Self {
            head: None,
            tail: None,
            unsent: None,
            repair: None,
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

    /// Queues a segment behind all others.
    pub(super) fn push(&mut self, slab: &mut SegmentSlab, buf: Mbuf) {
        let len = buf.len() as u32;
        let segment = Segment {
            buf,
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
    /// own. Returns whether it did: not when `at` is no inner boundary, or no buffer descriptor is left.
    pub(super) fn split(&mut self, slab: &mut SegmentSlab, key: SegmentKey, at: u32) -> bool {
        let segment = slab.get(key);
        if at == 0 || at >= segment.len {
            return false;
        }
        let Some(mut rest) = segment.buf.share() else { return false };
        rest.advance(at as usize);
        let marks = segment.marks;
        // Blocks that did not hold all of it may hold a part.
        self.sacks = Sacks::default();
        let second = Segment {
            buf: rest,
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
        self.segments += 1;
        let first = slab.get_mut(key);
        first.buf.truncate(at as usize);
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
    }
}
