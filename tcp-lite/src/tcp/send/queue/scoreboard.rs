//! Marks on the segments of the send queue: which have arrived, and which are lost (RFC 2018, RFC 8985).
//!
//! The recovery process is in `loss/recovery.rs`, RACK's state in `loss/rack.rs`.

use super::SendQueue;
use crate::tcp::send::ack_sample::AckSample;
use crate::tcp::send::loss::Rack;
use crate::tcp::slabs::{Marks, SegmentKey, SegmentSlab, Sent};
use crate::{Duration, Instant};

/// Result of [`SendQueue::detect_lost`].
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

impl SendQueue {
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
        let mut cursor = Some(self.index.find(slab, (oldest, last_sent), start));
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

    /// Whether a segment arrived that was sent later than the one longest in flight.
    #[inline]
    pub(in crate::tcp::send) fn is_overtaken(&self, slab: &SegmentSlab, rack: &Rack) -> bool {
        self.flight.oldest().is_some_and(|key| rack.overtakes(slab.get(key).sent))
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
        while let Some(key) = self.flight.oldest() {
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
                self.lost.unlink(slab, key);
                self.lost.append(slab, key);
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
        let (mut cursor, mut near, mut steps) = (self.lost.first, None, self.segments.count());
        while let Some(key) = cursor {
            let segment = slab.get(key);
            cursor = segment.later;
            let (marks, sent) = (segment.marks, segment.sent);
            near = near.filter(|near| sent.is_after(slab.get(*near).sent));
            self.set_marks(slab, key, marks - Marks::LOST);
            // Not by `set_marks`, which would append the segment as the one sent last.
            if !self.flight.restore(slab, near, key, &mut steps) {
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

    /// Whether the oldest segment is lost.
    #[inline]
    pub(in crate::tcp::send) fn is_oldest_lost(&self) -> bool {
        self.lost.first.is_some() && self.lost.first == self.segments.head()
    }

    /// The next segment to retransmit: the oldest one if it is lost, else that marked lost first.
    #[inline]
    pub(in crate::tcp::send) fn next_to_retransmit(&self) -> Option<SegmentKey> {
        self.lost.first
    }

    /// A segment was retransmitted, in a recovery or not.
    pub(in crate::tcp::send) fn on_retransmitted(
        &mut self,
        slab: &mut SegmentSlab,
        key: SegmentKey,
        now: Instant,
        recovering: bool,
    ) {
        let sent = self.flight.number_transmission(now);
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

#[cfg(test)]
mod tests {
    use super::super::test_queue::TestQueue;
    use super::*;
    use crate::tcp::send::ack_sample::RetransmitFilter;

    const LEN: u64 = 100;

    fn at(ms: i64) -> Instant {
        Instant::from_millis(ms)
    }

    /// A queue of `count` segments, sent a millisecond apart.
    fn queue(count: i64) -> (SegmentSlab, SendQueue) {
        let TestQueue { slab, queue, .. } = test_queue(count);
        (slab, queue)
    }

    fn test_queue(count: i64) -> TestQueue {
        let mut made = TestQueue::new(64);
        for nr in 0..count {
            assert!(made.send(LEN as usize, at(nr)));
        }
        made
    }

    fn sample() -> AckSample {
        AckSample::new(RetransmitFilter { echo_ms: None, horizon: at(1 << 20) })
    }

    /// The bounds of segments `from..to`.
    fn span(from: u64, to: u64) -> (u64, u64) {
        (1 + from * LEN, 1 + to * LEN)
    }

    /// Marks segments `from..to`; returns how many were not marked before.
    fn sack(slab: &mut SegmentSlab, queue: &mut SendQueue, (start, end): (u64, u64)) -> u64 {
        let mut sample = sample();
        queue.sack(slab, (start, end), &mut sample);
        queue.check(slab).expect("invariants");
        sample.delivered / LEN
    }

    #[test]
    fn blocks_mark_what_is_wholly_inside_and_count_once() {
        let (mut slab, mut queue) = queue(12);
        assert_eq!(sack(&mut slab, &mut queue, span(5, 7)), 2);
        assert_eq!(sack(&mut slab, &mut queue, span(5, 7)), 0);
        assert_eq!(sack(&mut slab, &mut queue, span(5, 9)), 2, "grown at its end");
        assert_eq!(sack(&mut slab, &mut queue, span(3, 9)), 2, "and in front");
        assert_eq!(
            sack(&mut slab, &mut queue, (span(9, 9).0, span(9, 11).1 - 1)),
            1,
            "the last is not whole"
        );
        assert_eq!(sack(&mut slab, &mut queue, span(9, 11)), 1, "now it is");
        assert_eq!(sack(&mut slab, &mut queue, (span(0, 0).0 + 50, span(0, 2).1)), 1, "nor was the first");
        assert_eq!(sack(&mut slab, &mut queue, span(0, 2)), 1);
        assert_eq!(queue.sacked_segments, 10);
    }

    #[test]
    fn no_walk_begins_at_a_segment_that_has_left_the_queue() {
        let (mut slab, mut queue) = queue(20);
        // One walk ended at a segment, and another one at a block, which both are acknowledged then.
        assert_eq!(sack(&mut slab, &mut queue, (span(4, 4).0 + 1, span(4, 4).0 + 2)), 0);
        queue.acknowledge(&mut slab, span(0, 6).1, &mut sample());
        assert_eq!(sack(&mut slab, &mut queue, span(8, 9)), 1);
        queue.acknowledge(&mut slab, span(0, 11).1, &mut sample());
        assert_eq!(sack(&mut slab, &mut queue, span(13, 14)), 1);
    }

    #[test]
    fn a_segment_with_the_record_of_one_that_left_is_not_in_front_of_the_oldest() {
        let mut made = test_queue(4);
        let first = made.queue.segments.head().expect("a segment");
        assert_eq!(sack(&mut made.slab, &mut made.queue, span(2, 3)), 1);
        made.queue.acknowledge(&mut made.slab, span(0, 1).1, &mut sample());
        assert!(made.send(LEN as usize, at(9)));
        let TestQueue { mut slab, mut queue, .. } = made;
        assert_eq!(queue.segments.last_sent(), Some(first), "the same record");
        assert_eq!(sack(&mut slab, &mut queue, span(4, 5)), 1);
        assert_eq!(sack(&mut slab, &mut queue, span(1, 2)), 1);
        assert_eq!(slab.get(first).later, None);
    }

    #[test]
    fn a_block_that_is_repeated_marks_what_was_cut_since() {
        let (mut slab, mut queue) = queue(3);
        let block = (span(0, 1).0 + 50, span(0, 2).1);
        assert_eq!(sack(&mut slab, &mut queue, block), 1, "the first is not whole");
        let first = queue.segments.head().expect("a segment");
        assert!(queue.mark_head_lost(&mut slab));
        assert!(queue.split(&mut slab, first, 50));
        let mut sample = sample();
        queue.sack(&mut slab, block, &mut sample);
        queue.check(&slab).expect("invariants");
        assert_eq!((sample.delivered, queue.sacked_segments), (50, 2));
    }

    #[test]
    fn an_overtaken_segment_or_retransmission_is_marked_lost() {
        let (mut slab, mut queue) = queue(5);
        let mut rack = Rack::new();
        let mut now = at(10);
        let mut detect = |slab: &mut SegmentSlab, queue: &mut SendQueue, nr, now, window_ms| {
            let mut sample = sample();
            queue.sack(slab, span(nr, nr + 1), &mut sample);
            let _ = rack.on_ack(now, &sample);
            let detected = queue.detect_lost(slab, &rack, Duration::from_millis(window_ms), now);
            queue.check(slab).expect("invariants");
            detected
        };
        // Number 2 took 8 ms: 0 is due at 9, 1 at 10.
        let detected = detect(&mut slab, &mut queue, 2, now, 1);
        assert_eq!((detected.lost, detected.lost_again, detected.next), (2, 0, None));
        for nr in 0..2 {
            let key = queue.next_to_retransmit().expect("lost");
            assert_eq!(slab.get(key).pos, span(nr, nr).0, "the oldest first");
            queue.on_retransmitted(&mut slab, key, at(10), true);
        }
        // 4 was sent before both; 1, sent again, after 0 and after 3.
        let detected = detect(&mut slab, &mut queue, 4, at(12), 3);
        assert_eq!((detected.lost, detected.next), (0, Some(at(14))), "the window is not over");
        now = at(20);
        let detected = detect(&mut slab, &mut queue, 1, now, 1);
        assert_eq!((detected.lost, detected.next), (1, Some(at(21))), "3 now, 0 in a moment");
        let detected = queue.detect_lost(&mut slab, &rack, Duration::ZERO, now);
        assert_eq!((detected.lost, detected.lost_again), (1, 1));
        assert_eq!(queue.not_sacked_nor_lost(), 0);
    }

    #[test]
    fn a_segment_marked_lost_by_mistake_is_in_flight_again() {
        let (mut slab, mut queue) = queue(6);
        let first = queue.segments.head().expect("a segment");
        queue.on_retransmitted(&mut slab, first, at(10), true);
        queue.mark_timed_out(&mut slab, at(3));
        assert_eq!(queue.not_sacked_nor_lost(), 2 * LEN);
        queue.restore_lost(&mut slab);
        queue.check(&slab).expect("invariants");
        assert_eq!(queue.not_sacked_nor_lost(), 6 * LEN);
        assert_eq!(queue.flight.oldest(), slab.get(first).next, "the first was sent last");
    }

    #[test]
    fn lost_segments_are_retransmitted_as_they_were_marked_but_the_oldest_first() {
        let (mut slab, mut queue) = queue(8);
        let keys: Vec<_> = slab.iter_from(queue.segments.head().expect("a segment")).collect();
        for nr in [5, 3, 0, 4] {
            queue.mark_lost(&mut slab, keys[nr]);
        }
        let order = |slab: &SegmentSlab, queue: &SendQueue| {
            queue.check(slab).expect("invariants");
            let lost = std::iter::successors(queue.next_to_retransmit(), |key| slab.get(*key).later);
            lost.map(|lost| keys.iter().position(|key| *key == lost)).collect::<Vec<_>>()
        };
        assert_eq!(order(&slab, &queue), [0, 5, 3, 4].map(Some));
        assert!(queue.is_oldest_lost());
        queue.acknowledge(&mut slab, span(0, 2).1, &mut sample());
        assert_eq!(order(&slab, &queue), [5, 3, 4].map(Some));
        assert!(!queue.is_oldest_lost());
        queue.acknowledge(&mut slab, span(0, 3).1, &mut sample());
        assert_eq!(order(&slab, &queue), [3, 5, 4].map(Some), "the oldest now");
        queue.mark_timed_out(&mut slab, at(6));
        assert_eq!(order(&slab, &queue), [3, 4, 5, 6].map(Some), "in order after a timeout");
        queue.on_retransmitted(&mut slab, keys[3], at(9), true);
        assert_eq!(sack(&mut slab, &mut queue, span(4, 5)), 1);
        assert_eq!(order(&slab, &queue), [5, 6].map(Some));
        assert!(queue.split(&mut slab, keys[5], 50));
        let second = slab.get(keys[5]).later.expect("it follows the first part");
        assert_eq!((slab.get(second).pos, slab.get(second).later), (span(5, 5).0 + 50, Some(keys[6])));
    }

    /// Of every other one, the retransmission was lost, too.
    #[test]
    fn segments_sent_in_another_order_are_put_back_in_so_many_steps_as_there_are() {
        let (mut slab, mut queue) = queue(60);
        let keys: Vec<_> = slab.iter_from(queue.segments.head().expect("a segment")).collect();
        queue.mark_timed_out(&mut slab, at(100));
        for nr in (1..60).step_by(2) {
            queue.on_retransmitted(&mut slab, keys[nr], at(200), true);
        }
        queue.mark_timed_out(&mut slab, at(300));
        assert_eq!(queue.lost_bytes(), 60 * LEN);
        let before = slab.visits();
        queue.restore_lost(&mut slab);
        let steps = slab.visits() - before;
        queue.check(&slab).expect("invariants");
        assert!(steps <= 6 * 60, "{steps}");
        assert!((LEN..50 * LEN).contains(&queue.lost_bytes()), "the rest stays lost: {}", queue.lost_bytes());
    }

    #[test]
    fn a_peer_that_takes_back_what_it_acknowledged_gets_everything_again() {
        let (mut slab, mut queue) = queue(4);
        assert_eq!(sack(&mut slab, &mut queue, span(0, 3)), 3);
        queue.mark_timed_out(&mut slab, at(0));
        queue.check(&slab).expect("invariants");
        assert_eq!(queue.lost_bytes(), 4 * LEN);
        assert_eq!(sack(&mut slab, &mut queue, span(0, 3)), 3, "what was known before counts for nothing");
    }
}
