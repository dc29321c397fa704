//! Marks on the segments of the send queue: whether a segment is in flight, selectively acknowledged or lost,
//! and whether it was retransmitted (RFC 2018, RFC 8985).
//!
//! `loss/recovery.rs` has the recovery process, and `loss/rack.rs` has RACK's state.

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
    pub(in crate::tcp::send) lost: u32,
    /// Number of the newly lost segments that had been retransmitted in this recovery.
    pub(in crate::tcp::send) lost_again: u32,
    /// The latest transmission of the newly lost segments; `None` if no segment was newly marked lost.
    pub(in crate::tcp::send) latest: Option<Sent>,
    /// The time at which the next segment will count as lost, if it is not acknowledged before.
    pub(in crate::tcp::send) next: Option<Instant>,
}

/// The marks of one queue: which segments are in flight, have arrived or are lost.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// Segments in flight, in the order of transmission.
    flight: Flight,
    /// Segments marked lost, in the order in which they were marked. There are two exceptions. A
    /// retransmission timeout puts all lost segments into the order of the queue. If the oldest segment is
    /// lost, this segment is first, since the peer's user waits for its bytes. Because of this order, the
    /// next retransmission is found without a search.
    lost: SegmentList,
    index: Index,
    /// All sent segments from this position on were sent in the order of the queue, and have no mark other
    /// than [`Marks::IN_FLIGHT`].
    orderly_from: u64,
    /// Number of bytes with [`Marks::SACKED`], and number of segments with this mark.
    sacked_bytes: u64,
    sacked_segments: u32,
    /// Number of bytes with [`Marks::LOST`].
    lost_bytes: u32,
}

impl Scoreboard {
    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        self.lost_bytes > 0
    }

    #[inline]
    pub(super) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    #[inline]
    pub(super) fn sacked_or_lost_bytes(&self) -> u64 {
        self.sacked_bytes + u64::from(self.lost_bytes)
    }

    /// The next segment to retransmit: the oldest segment if it is lost, otherwise the segment that was
    /// marked lost first.
    #[inline]
    pub(super) fn next_to_retransmit(&self) -> Option<SegmentKey> {
        self.lost.first
    }

    /// Whether a segment has arrived that was sent later than the segment that has been in flight longest.
    #[inline]
    pub(super) fn is_overtaken(&self, slab: &SegmentSlab, rack: &Rack) -> bool {
        self.flight.oldest().is_some_and(|key| rack.overtakes(slab.get(key).sent))
    }

    /// Whether each sent segment in the queue is in flight (not known to have arrived or to be lost), and was
    /// sent once, in the order of the queue. `una` is SND.UNA.
    #[inline]
    pub(super) fn is_orderly(&self, una: u64) -> bool {
        una >= self.orderly_from
    }

    /// The segment in flight that was sent longest ago; `None` if no segment is in flight.
    #[inline]
    pub(super) fn oldest_in_flight(&self) -> Option<SegmentKey> {
        self.flight.oldest()
    }

    /// Number of transmissions of segments, which wraps.
    pub(super) fn transmissions(&self) -> u32 {
        self.flight.count()
    }

    /// A handle to mark the sent segments of a queue. `nxt` is SND.NXT.
    #[inline]
    pub(super) fn of<'a>(&'a mut self, segments: &'a QueuedSegments, nxt: u64) -> SentSegments<'a> {
        SentSegments { board: self, segments, nxt }
    }

    /// Called when a segment was sent for the first time.
    #[inline]
    pub(super) fn on_sent(&mut self, slab: &mut SegmentSlab, key: SegmentKey, now: Instant) {
        let sent = self.flight.number_transmission(now);
        let segment = slab.get_mut(key);
        debug_assert!(segment.marks.is_empty(), "a segment that was never sent has no marks");
        segment.sent = sent;
        segment.marks = Marks::IN_FLIGHT;
        self.flight.list.append(slab, key);
    }

    /// Called when the segments that were sent longest ago were removed. `oldest` is the first remaining
    /// segment.
    #[inline]
    pub(super) fn on_run_removed(&mut self, slab: &mut SegmentSlab, oldest: Option<SegmentKey>) {
        self.flight.list.set_first(slab, oldest);
    }

    /// Called when a segment that is lost or unsent was split. `second` is the rest of the segment, with the
    /// same marks.
    pub(super) fn on_split(&mut self, slab: &mut SegmentSlab, first: SegmentKey, second: SegmentKey) {
        self.index.on_split(slab, first, second);
        if slab.get(second).marks.contains(Marks::LOST) {
            self.lost.insert_after(slab, Some(first), second);
        }
    }

    /// Checks that the sums, both lists, the index and the links of runs agree with the marks.
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
            // The two parts of a split segment were sent at the same time.
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

    /// Checks that `count` segments are marked lost and linked, and that the oldest segment is the first of
    /// them if it is lost.
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
    pub(super) fn lost_bytes(&self) -> u64 {
        u64::from(self.lost_bytes)
    }

    pub(super) fn index_mut(&mut self) -> &mut Index {
        &mut self.index
    }
}

/// The sent segments of a queue, and the scoreboard that counts their marks.
#[derive(Debug)]
pub(in crate::tcp::send) struct SentSegments<'a> {
    board: &'a mut Scoreboard,
    segments: &'a QueuedSegments,
    nxt: u64,
}

impl SentSegments<'_> {
    /// Called when the peer reports that it has received the sent bytes `start..end`: marks the segments that
    /// are wholly inside. Segments that were marked before are skipped in few steps, however many there are.
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
        // All segments of the block are one run now, so that a repeated block is skipped in few steps.
        if let Some((first, last)) = inside.filter(|(first, last)| first != last) {
            slab.get_mut(first).later = Some(last);
        }
    }

    /// Marks those overtaken segments lost for which a round trip and the reordering window `window` have
    /// passed since their transmission (RFC 8985 section 6.2, step 5). The RFC's timer expires when the last
    /// of the overtaken segments counts as lost; our timer expires when the first of them counts as lost.
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

    /// If the oldest segment is in flight and was not retransmitted in this recovery, marks it lost. Returns
    /// whether the segment was marked.
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

    /// Called when the retransmission timer expired. The oldest segment is lost, even if it was
    /// retransmitted. Other segments are lost if they were sent at or before `before` (RFC 8985 section 6.3).
    /// If the oldest segment was selectively acknowledged, the peer has reneged (RFC 2018 section 8). In this
    /// case no segment is known to have arrived, and all segments are lost. All lost segments are
    /// retransmitted in the order of the queue. Returns whether the oldest segment had not been retransmitted
    /// before.
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

    /// Called when a recovery is over: retransmitted segments may be marked lost again.
    pub(in crate::tcp::send) fn forget_retransmissions(&mut self, slab: &mut SegmentSlab) {
        let mut cursor = self.segments.oldest_sent();
        while let Some(key) = cursor {
            cursor = self.segments.if_sent(slab.get(key).next);
            clear_retransmitted_in_recovery(slab, key);
        }
    }

    /// Called when a recovery was spurious: segments that were marked lost and not retransmitted count as in
    /// flight again. If they were marked nearly in the order of transmission, all of them are restored. The
    /// search for their places passes at most as many segments as the queue has. After that, the remaining
    /// segments stay lost and are retransmitted.
    pub(in crate::tcp::send) fn restore_lost(&mut self, slab: &mut SegmentSlab) {
        let (mut cursor, mut near, mut steps) = (self.board.lost.first, None, self.segments.count());
        while let Some(key) = cursor {
            let segment = slab.get(key);
            cursor = segment.later;
            let (marks, sent) = (segment.marks, segment.sent);
            near = near.filter(|near| sent.is_after(slab.get(*near).sent));
            self.set_marks(slab, key, marks - Marks::LOST);
            // `set_marks` is not used, because it would append the segment as the segment that was sent last.
            if !self.board.flight.restore(slab, near, key, &mut steps) {
                self.set_marks(slab, key, marks);
                break;
            }
            slab.get_mut(key).marks |= Marks::IN_FLIGHT;
            near = Some(key);
        }
    }

    /// Marks lost the segments in flight that have more than `emss` bytes, because the path dropped them.
    /// Other segments do not change.
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

    /// Called when the oldest segment has changed. If the oldest segment is lost, it will be retransmitted
    /// next.
    pub(super) fn put_oldest_first(&mut self, slab: &mut SegmentSlab) {
        let later = self.board.lost.first.is_some_and(|first| self.segments.head() != Some(first));
        if let Some(head) =
            self.segments.head().filter(|head| later && slab.get(*head).marks.contains(Marks::LOST))
        {
            self.board.lost.unlink(slab, head);
            self.board.lost.insert_after(slab, None, head);
        }
    }

    /// Replaces a segment's marks, and updates the sums and lists. A segment that is newly marked
    /// [`Marks::IN_FLIGHT`] becomes the last in the order of transmission. A segment that is newly marked
    /// [`Marks::LOST`] becomes the last to be retransmitted, or the first if it is the oldest segment.
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

    /// Called when a segment was retransmitted, in a recovery or not.
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
        // The segment is removed from the order first, so that it can then be appended as the latest
        // transmission.
        self.set_marks(slab, key, marks);
        let in_recovery = if recovering { Marks::RETRANSMITTED_IN_RECOVERY } else { Marks::empty() };
        self.set_marks(slab, key, marks | Marks::RETRANSMITTED | Marks::IN_FLIGHT | in_recovery);
    }
}

/// Called when a segment was marked [`Marks::SACKED`]: makes one run of the segment and its neighbours with
/// this mark. The segment must have a place (`index.rs`). `oldest` is the first segment of the queue.
pub(super) fn join_sacked_runs(slab: &mut SegmentSlab, key: SegmentKey, oldest: SegmentKey) {
    let is_sacked = |key: &SegmentKey| slab.get(*key).marks.contains(Marks::SACKED);
    let next = slab.get(key).next.filter(is_sacked);
    // (The oldest segment has no previous segment, even if its place has a link.)
    let previous = Some(slab.place(key).previous).filter(|previous| key != oldest && is_sacked(previous));
    slab.get_mut(key).later = next;
    if let Some(previous) = previous {
        slab.get_mut(previous).later = Some(key);
    }
}

/// The last segment of the run of selectively acknowledged segments that contains `key`. The search also
/// shortens the links that it follows, so that later searches pass few segments on average (union-find with
/// path halving, Tarjan and van Leeuwen).
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

/// Clears a mark on which no sum depends.
fn clear_retransmitted_in_recovery(slab: &mut SegmentSlab, key: SegmentKey) {
    slab.get_mut(key).marks -= Marks::RETRANSMITTED_IN_RECOVERY;
}

/// Checks that the links of each selectively acknowledged segment lead to the last segment of its run.
fn check_sacked(slab: &SegmentSlab, head: Option<SegmentKey>) -> Check {
    // The highest position to which the links so far lead.
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
