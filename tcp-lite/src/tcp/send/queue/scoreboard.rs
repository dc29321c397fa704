//! Marks on the segments of the send queue: which are in flight, which have arrived, and which are lost (RFC
//! 2018, RFC 8985).
//!
//! The recovery process is in `loss/recovery.rs`, RACK's state in `loss/rack.rs`.

use super::flight::Flight;
use super::index::Index;
use super::list::{SegmentList, walk};
use super::segments::QueuedSegments;
use crate::invariant::{Check, ensure};
use crate::tcp::send::ack_sample::AckSample;
use crate::tcp::send::loss::Rack;
use crate::tcp::slabs::{Marks, SegmentKey, SegmentSlab, Sent};
use crate::{Duration, Instant};

/// Result of [`SentSegments::detect_lost`].
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp::send) struct Detected {
    /// Segments newly marked lost.
    pub(in crate::tcp::send) lost: u32,
    /// The part of them that had been retransmitted in this recovery.
    pub(in crate::tcp::send) lost_again: u32,
    /// The latest transmission of the segments lost again.
    pub(in crate::tcp::send) latest: Option<Sent>,
    /// When the next segment will be lost, if it is not acknowledged before.
    pub(in crate::tcp::send) next: Option<Instant>,
}

/// Which segments of one queue are in flight, which have arrived and which are lost.
#[derive(Debug, Default)]
pub(in crate::tcp::send) struct Scoreboard {
    /// Segments in flight, in the order of transmission.
    flight: Flight,
    /// Segments marked lost, in the order in which they were marked, except that the oldest segment is
    /// first, since it holds up the peer's user. So the next retransmission is found without a search.
    lost: SegmentList,
    index: Index,
    /// Segments from this position on have no other mark than [`Marks::IN_FLIGHT`], and were sent in the
    /// order of the queue.
    orderly_from: u64,
    /// Bytes with [`Marks::SACKED`], and the number of their segments.
    sacked_bytes: u64,
    sacked_segments: u32,
    /// Bytes with [`Marks::LOST`].
    lost_bytes: u32,
}

impl Scoreboard {
    /// Whether any segment is marked lost.
    #[inline]
    pub(in crate::tcp::send) fn has_lost(&self) -> bool {
        self.lost_bytes > 0
    }

    /// Segments selectively acknowledged.
    #[inline]
    pub(in crate::tcp::send) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Bytes selectively acknowledged or marked lost.
    #[inline]
    pub(super) fn sacked_or_lost_bytes(&self) -> u64 {
        self.sacked_bytes + u64::from(self.lost_bytes)
    }

    /// The next segment to retransmit: the oldest one if it is lost, else that marked lost first.
    #[inline]
    pub(in crate::tcp::send) fn next_to_retransmit(&self) -> Option<SegmentKey> {
        self.lost.first
    }

    /// Whether a segment arrived that was sent later than the one longest in flight.
    #[inline]
    pub(in crate::tcp::send) fn is_overtaken(&self, slab: &SegmentSlab, rack: &Rack) -> bool {
        self.flight.oldest().is_some_and(|key| rack.overtakes(slab.get(key).sent))
    }

    /// Whether each segment in flight was sent once, in the order of the queue, and none of them is known to
    /// have arrived or to be lost; `una`: SND.UNA.
    #[inline]
    pub(super) fn is_orderly(&self, una: u64) -> bool {
        una >= self.orderly_from
    }

    /// The segment in flight that was sent longest ago.
    #[inline]
    pub(super) fn oldest_in_flight(&self) -> Option<SegmentKey> {
        self.flight.oldest()
    }

    /// Transmissions of segments; wraps.
    pub(super) fn transmissions(&self) -> u32 {
        self.flight.count()
    }

    /// To mark the segments of a queue that were sent, up to SND.NXT, `nxt`.
    #[inline]
    pub(super) fn of<'a>(&'a mut self, segments: &'a QueuedSegments, nxt: u64) -> SentSegments<'a> {
        SentSegments { board: self, segments, nxt }
    }

    /// A segment was sent for the first time.
    #[inline]
    pub(super) fn on_sent(&mut self, slab: &mut SegmentSlab, key: SegmentKey, now: Instant) {
        let sent = self.flight.number_transmission(now);
        let segment = slab.get_mut(key);
        debug_assert!(segment.marks.is_empty(), "a segment that was never sent has no marks");
        segment.sent = sent;
        segment.marks = Marks::IN_FLIGHT;
        self.flight.list.append(slab, key);
    }

    /// The segments sent longest ago were removed; `oldest` is the first of those that are left.
    #[inline]
    pub(super) fn on_run_removed(&mut self, slab: &mut SegmentSlab, oldest: Option<SegmentKey>) {
        self.flight.list.set_first(slab, oldest);
    }

    /// A segment that is lost or unsent was split: `second` is its rest, with the same marks.
    pub(super) fn on_split(&mut self, slab: &mut SegmentSlab, first: SegmentKey, second: SegmentKey) {
        self.index.on_split(slab, first, second);
        if slab.get(second).marks.contains(Marks::LOST) {
            self.lost.insert_after(slab, Some(first), second);
        }
    }

    /// Sums and both orders agree with the marks.
    pub(super) fn check(&self, slab: &SegmentSlab, segments: &QueuedSegments) -> Check {
        let (mut sacked, mut lost, mut in_flight) = ((0, 0), (0, 0), 0);
        let mut is_sent = true;
        for key in walk(slab, segments.head(), |segment| segment.next) {
            let (key, segment) = key?;
            is_sent &= segments.unsent() != Some(key);
            let len = u64::from(segment.len);
            let place = segment.marks & (Marks::SACKED | Marks::LOST | Marks::IN_FLIGHT);
            let places = place.bits().count_ones();
            ensure!(places == u32::from(is_sent), "{:?} at {}", segment.marks, segment.pos);
            let is_orderly = segment.pos < self.orderly_from || segment.marks == Marks::IN_FLIGHT;
            ensure!(is_orderly || !is_sent, "{:?} in an orderly queue at {}", segment.marks, segment.pos);
            match place {
                Marks::SACKED => sacked = (sacked.0 + len, sacked.1 + 1),
                Marks::LOST => lost = (lost.0 + len, lost.1 + 1),
                Marks::IN_FLIGHT => in_flight += 1,
                _ => {}
            }
        }
        let counted = (self.sacked_bytes, self.sacked_segments, u64::from(self.lost_bytes));
        let sums = (sacked.0, sacked.1, lost.0);
        ensure!(counted == sums, "SACKed, lost: {counted:?} of {sums:?}");
        let mut earlier: Option<SegmentKey> = None;
        for key in walk(slab, self.flight.oldest(), |segment| segment.later) {
            let (key, segment) = key?;
            ensure!(segment.marks.contains(Marks::IN_FLIGHT), "in flight and marked {:?}", segment.marks);
            ensure!(segment.earlier == earlier, "the order of transmission is torn at {}", segment.pos);
            // The parts of a split segment were sent together.
            let in_order = earlier.is_none_or(|earlier| !slab.get(earlier).sent.is_after(segment.sent));
            ensure!(in_order, "sent before the one in front: {}", segment.pos);
            let was_before = earlier.is_none_or(|earlier| slab.get(earlier).pos < segment.pos);
            let fits = was_before || segment.pos < self.orderly_from;
            ensure!(fits, "sent in another order than that of the queue: {}", segment.pos);
            in_flight -= 1;
            earlier = Some(key);
        }
        ensure!(in_flight == 0, "{in_flight} segments in flight are not linked");
        ensure!(self.flight.list.last == earlier, "the newest in flight is {:?}", self.flight.list.last);
        self.check_lost(slab, segments.head(), lost.1)?;
        self.index.check(slab, segments.oldest_sent())?;
        check_sacked(slab, segments.head())
    }

    /// `count` segments are marked lost, and linked with the oldest segment first.
    fn check_lost(&self, slab: &SegmentSlab, head: Option<SegmentKey>, mut count: i32) -> Check {
        let mut earlier: Option<SegmentKey> = None;
        for key in walk(slab, self.lost.first, |segment| segment.later) {
            let (key, segment) = key?;
            ensure!(segment.marks.contains(Marks::LOST), "lost and marked {:?}", segment.marks);
            ensure!(segment.earlier == earlier, "the lost segments are torn at {}", segment.pos);
            ensure!(earlier.is_none() || head != Some(key), "the oldest is not sent again first");
            count -= 1;
            earlier = Some(key);
        }
        ensure!(count == 0, "{count} lost segments are not linked");
        ensure!(self.lost.last == earlier, "the last one lost is {:?}", self.lost.last);
        Ok(())
    }
}

#[cfg(test)]
impl Scoreboard {
    /// Bytes marked lost.
    pub(in crate::tcp::send) fn lost_bytes(&self) -> u64 {
        u64::from(self.lost_bytes)
    }

    /// The index of the segments by position.
    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }
}

/// The segments of a queue that were sent, and the scoreboard that their marks are counted on.
#[derive(Debug)]
pub(in crate::tcp::send) struct SentSegments<'a> {
    board: &'a mut Scoreboard,
    segments: &'a QueuedSegments,
    /// SND.NXT.
    nxt: u64,
}

impl SentSegments<'_> {
    /// The peer reports that it holds `start..end`, which was sent: marks the segments wholly inside.
    /// However many were marked before, they are skipped in few steps.
    pub(in crate::tcp::send) fn sack(
        &mut self,
        slab: &mut SegmentSlab,
        (start, end): (u64, u64),
        sample: &mut AckSample,
    ) {
        let (Some(oldest), Some(last_sent)) = (self.segments.oldest_sent(), self.segments.last_sent()) else {
            return;
        };
        let mut cursor = Some(self.board.index.find(slab, (oldest, last_sent), start));
        let mut inside: Option<(SegmentKey, SegmentKey)> = None;
        while let Some(key) = cursor {
            let segment = slab.get(key);
            let (segment_end, marks) = (segment.end(), segment.marks);
            if segment_end > end {
                break;
            }
            cursor = segment.next;
            if segment.pos < start {
                continue;
            }
            let mut last = key;
            if marks.contains(Marks::SACKED) {
                last = last_of_sacked_run(slab, key);
                cursor = slab.get(last).next;
            } else {
                sample.deliver(segment.sent, segment_end, segment.len, marks.contains(Marks::RETRANSMITTED));
                self.set_marks(slab, key, (marks | Marks::SACKED) - (Marks::LOST | Marks::IN_FLIGHT));
                join_sacked_runs(slab, key, oldest);
            }
            inside = Some((inside.map_or(key, |(first, _)| first), last));
        }
        // All of them are one run now. The peer will repeat the block.
        if let Some((first, last)) = inside.filter(|(first, last)| first != last) {
            slab.get_mut(first).later = Some(last);
        }
    }

    /// Marks segments lost that were overtaken for longer than `window` (RFC 8985 section 6.2, step 5).
    /// The RFC's timer waits for the last of the overtaken segments, this one for the first.
    pub(in crate::tcp::send) fn detect_lost(
        &mut self,
        slab: &mut SegmentSlab,
        rack: &Rack,
        window: Duration,
        now: Instant,
    ) -> Detected {
        let mut detected = Detected::default();
        while let Some(key) = self.board.flight.oldest() {
            let segment = slab.get(key);
            if !rack.overtakes(segment.sent) {
                break;
            }
            let lost_at = rack.lost_at(segment.sent.at, window);
            if lost_at > now {
                detected.next = Some(lost_at);
                break;
            }
            detected.lost += 1;
            detected.lost_again += u32::from(segment.marks.contains(Marks::RETRANSMITTED_IN_RECOVERY));
            detected.latest = Some(segment.sent);
            self.mark_lost(slab, key);
        }
        detected
    }

    /// Marks the oldest segment lost, if it is in flight and was not retransmitted in this recovery.
    /// Returns whether it did.
    pub(in crate::tcp::send) fn mark_head_lost(&mut self, slab: &mut SegmentSlab) -> bool {
        let Some(key) = self.segments.head() else { return false };
        let marks = slab.get(key).marks;
        let lost = marks.contains(Marks::IN_FLIGHT) && !marks.contains(Marks::RETRANSMITTED_IN_RECOVERY);
        if lost {
            self.mark_lost(slab, key);
        }
        lost
    }

    fn mark_lost(&mut self, slab: &mut SegmentSlab, key: SegmentKey) {
        let marks = slab.get(key).marks;
        self.set_marks(slab, key, (marks | Marks::LOST) - (Marks::IN_FLIGHT | Marks::SACKED));
    }

    /// The timer expired: the oldest segment is lost, retransmitted or not, and of the others those sent
    /// by `before` (RFC 8985 section 6.3). If the oldest segment was selectively acknowledged, the peer
    /// has reneged (RFC 2018 section 8): nothing is then known to have arrived, and everything is lost.
    /// All lost segments are then retransmitted in the order of the queue. Returns whether the oldest
    /// segment had not been retransmitted before.
    pub(in crate::tcp::send) fn mark_timed_out(&mut self, slab: &mut SegmentSlab, before: Instant) -> bool {
        let reneged = self.segments.head().is_some_and(|key| slab.get(key).marks.contains(Marks::SACKED));
        let first =
            self.segments.head().is_none_or(|key| !slab.get(key).marks.contains(Marks::RETRANSMITTED));
        let mut cursor = self.segments.oldest_sent();
        while let Some(key) = cursor {
            let segment = slab.get(key);
            let (marks, sent_at) = (segment.marks, segment.sent.at);
            cursor = self.segments.if_sent(segment.next);
            let old = self.segments.head() == Some(key) || sent_at <= before;
            if marks.contains(Marks::LOST) {
                self.board.lost.unlink(slab, key);
                self.board.lost.append(slab, key);
            } else if reneged || old && marks.contains(Marks::IN_FLIGHT) {
                self.mark_lost(slab, key);
            }
            clear_retransmitted_in_recovery(slab, key);
        }
        first
    }

    /// Recovery is over: retransmitted segments may be inferred lost again.
    pub(in crate::tcp::send) fn forget_retransmissions(&mut self, slab: &mut SegmentSlab) {
        let mut cursor = self.segments.oldest_sent();
        while let Some(key) = cursor {
            cursor = self.segments.if_sent(slab.get(key).next);
            clear_retransmitted_in_recovery(slab, key);
        }
    }

    /// Recovery was spurious: segments that were marked lost and not retransmitted are in flight again. (All,
    /// if they were marked in the order of transmission, or nearly so. If the search for their places passes
    /// as many segments as there are, the rest stays lost and is retransmitted.)
    pub(in crate::tcp::send) fn restore_lost(&mut self, slab: &mut SegmentSlab) {
        let (mut cursor, mut near, mut steps) = (self.board.lost.first, None, self.segments.count());
        while let Some(key) = cursor {
            let segment = slab.get(key);
            cursor = segment.later;
            let (marks, sent) = (segment.marks, segment.sent);
            near = near.filter(|near| sent.is_after(slab.get(*near).sent));
            self.set_marks(slab, key, marks - Marks::LOST);
            // Not by `set_marks`, which would append the segment as the one sent last.
            if !self.board.flight.restore(slab, near, key, &mut steps) {
                self.set_marks(slab, key, marks);
                break;
            }
            slab.get_mut(key).marks |= Marks::IN_FLIGHT;
            near = Some(key);
        }
    }

    /// Marks segments in flight of more than `emss` bytes lost: the path dropped them. The others are
    /// not affected.
    pub(in crate::tcp::send) fn mark_oversized(&mut self, slab: &mut SegmentSlab, emss: u32) {
        let mut cursor = self.segments.oldest_sent();
        while let Some(key) = cursor {
            let segment = slab.get(key);
            cursor = self.segments.if_sent(segment.next);
            if segment.len > emss && segment.marks.contains(Marks::IN_FLIGHT) {
                self.mark_lost(slab, key);
            }
        }
    }

    /// Called when the oldest segment has changed: if it is lost, it is the next to be retransmitted.
    pub(super) fn put_oldest_first(&mut self, slab: &mut SegmentSlab) {
        let later = self.board.lost.first.is_some_and(|first| self.segments.head() != Some(first));
        if let Some(head) =
            self.segments.head().filter(|head| later && slab.get(*head).marks.contains(Marks::LOST))
        {
            self.board.lost.unlink(slab, head);
            self.board.lost.insert_after(slab, None, head);
        }
    }

    /// Replaces a segment's marks, and updates the sums and lists. A segment that gets [`Marks::IN_FLIGHT`]
    /// becomes the last in the order of transmission, one that gets [`Marks::LOST`] the last to be
    /// retransmitted, or the first if it is the oldest.
    #[inline]
    pub(super) fn set_marks(&mut self, slab: &mut SegmentSlab, key: SegmentKey, marks: Marks) {
        let segment = slab.get_mut(key);
        let (old, len) = (segment.marks, u64::from(segment.len));
        segment.marks = marks;
        if !marks.contains(Marks::IN_FLIGHT) && old.contains(Marks::IN_FLIGHT) {
            self.board.flight.list.unlink(slab, key);
        }
        if !marks.contains(Marks::LOST) && old.contains(Marks::LOST) {
            self.board.lost.unlink(slab, key);
        }
        if marks.contains(Marks::IN_FLIGHT) && !old.contains(Marks::IN_FLIGHT) {
            self.board.flight.list.append(slab, key);
        }
        if marks.contains(Marks::LOST) && !old.contains(Marks::LOST) {
            match self.segments.head() == Some(key) {
                true => self.board.lost.insert_after(slab, None, key),
                false => self.board.lost.append(slab, key),
            }
        }
        if !(marks - Marks::IN_FLIGHT).is_empty() {
            self.board.orderly_from = self.nxt;
        }
        if !(old | marks).intersects(Marks::SACKED | Marks::LOST) {
            return;
        }
        if old.contains(Marks::SACKED) {
            self.board.sacked_bytes -= len;
            self.board.sacked_segments -= 1;
        }
        if old.contains(Marks::LOST) {
            self.board.lost_bytes -= len as u32;
        }
        if marks.contains(Marks::SACKED) {
            self.board.sacked_bytes += len;
            self.board.sacked_segments += 1;
        }
        if marks.contains(Marks::LOST) {
            self.board.lost_bytes += len as u32;
        }
    }

    /// A segment was retransmitted, in a recovery or not.
    pub(in crate::tcp::send) fn on_retransmitted(
        &mut self,
        slab: &mut SegmentSlab,
        key: SegmentKey,
        now: Instant,
        recovering: bool,
    ) {
        let sent = self.board.flight.number_transmission(now);
        let segment = slab.get_mut(key);
        segment.sent = sent;
        let marks = segment.marks - (Marks::LOST | Marks::IN_FLIGHT);
        // Remove it from the order first, to append it as the latest.
        self.set_marks(slab, key, marks);
        let in_recovery = if recovering { Marks::RETRANSMITTED_IN_RECOVERY } else { Marks::empty() };
        self.set_marks(slab, key, marks | Marks::RETRANSMITTED | Marks::IN_FLIGHT | in_recovery);
    }
}

/// A segment was marked [`Marks::SACKED`]: it and its neighbours with this mark are one run. It has a place,
/// and `oldest` is the first segment of the queue.
pub(super) fn join_sacked_runs(slab: &mut SegmentSlab, key: SegmentKey, oldest: SegmentKey) {
    let is_sacked = |key: &SegmentKey| slab.get(*key).marks.contains(Marks::SACKED);
    let next = slab.get(key).next.filter(is_sacked);
    // (No segment is in front of the oldest one, whatever its place says.)
    let previous = Some(slab.place(key).previous).filter(|previous| key != oldest && is_sacked(previous));
    slab.get_mut(key).later = next;
    if let Some(previous) = previous {
        slab.get_mut(previous).later = Some(key);
    }
}

/// The last segment of the run of selectively acknowledged segments that contains `key`. Shortens the links
/// for the next search, so that searches pass few segments on average (union-find with path halving, Tarjan
/// and van Leeuwen).
fn last_of_sacked_run(slab: &mut SegmentSlab, mut key: SegmentKey) -> SegmentKey {
    while let Some(later) = slab.get(key).later {
        let further = slab.get(later).later;
        if let Some(further) = further {
            slab.get_mut(key).later = Some(further);
        }
        key = further.unwrap_or(later);
    }
    key
}

/// No sum depends on this mark.
fn clear_retransmitted_in_recovery(slab: &mut SegmentSlab, key: SegmentKey) {
    slab.get_mut(key).marks -= Marks::RETRANSMITTED_IN_RECOVERY;
}

/// From each selectively acknowledged segment, the links lead to the last segment of its run.
fn check_sacked(slab: &SegmentSlab, head: Option<SegmentKey>) -> Check {
    // Positions of segments of this run whose links lead beyond the present segment.
    let mut beyond = 0;
    for key in walk(slab, head, |segment| segment.next) {
        let (_, segment) = key?;
        let is_sacked = segment.marks.contains(Marks::SACKED);
        ensure!(is_sacked || segment.pos > beyond, "a run of SACKed segments leads beyond {}", segment.pos);
        if !is_sacked {
            continue;
        }
        let next = segment.next.filter(|next| slab.get(*next).marks.contains(Marks::SACKED));
        ensure!(
            next.is_some() == segment.later.is_some(),
            "a run of SACKed segments is torn at {}",
            segment.pos
        );
        if let Some(later) = segment.later {
            let found = slab.find(later).map_or(0, |later| later.pos);
            ensure!(found > segment.pos, "a way from {} to {later:?}, which is at {found}", segment.pos);
            beyond = beyond.max(found);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
