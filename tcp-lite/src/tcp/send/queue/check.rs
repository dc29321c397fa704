//! The invariants of the send queue.

use super::SendQueue;
use super::list::walk;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{Marks, SegmentKey, SegmentSlab};

impl SendQueue {
    /// Sums, cursors and both orders agree with the marks.
    pub(in crate::tcp::send) fn check(&self, slab: &SegmentSlab) -> Check {
        self.segments.check(slab)?;
        let segments = self.segments.head().into_iter().flat_map(|head| slab.iter_from(head));
        self.pages.check(slab, segments.map(|key| slab.get(key).page))?;
        let (mut sacked, mut lost, mut in_flight) = ((0, 0), (0, 0), 0);
        let mut is_sent = true;
        for key in walk(slab, self.segments.head(), |segment| segment.next) {
            let (key, segment) = key?;
            is_sent &= self.segments.unsent() != Some(key);
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
        self.check_lost(slab, lost.1)?;
        self.index.check(slab, self.segments.oldest_sent())?;
        self.check_sacked(slab)?;
        // (A connection that is over has dropped its segments, and keeps its positions.)
        if self.segments.head().is_some() || self.positions.una() >= self.positions.end() {
            self.check_positions(slab)
        } else {
            Ok(())
        }
    }

    /// `count` segments are marked lost, and linked with the oldest segment first.
    fn check_lost(&self, slab: &SegmentSlab, mut count: i32) -> Check {
        let mut earlier: Option<SegmentKey> = None;
        for key in walk(slab, self.lost.first, |segment| segment.later) {
            let (key, segment) = key?;
            ensure!(segment.marks.contains(Marks::LOST), "lost and marked {:?}", segment.marks);
            ensure!(segment.earlier == earlier, "the lost segments are torn at {}", segment.pos);
            ensure!(
                earlier.is_none() || self.segments.head() != Some(key),
                "the oldest is not sent again first"
            );
            count -= 1;
            earlier = Some(key);
        }
        ensure!(count == 0, "{count} lost segments are not linked");
        ensure!(self.lost.last == earlier, "the last one lost is {:?}", self.lost.last);
        Ok(())
    }

    /// From each selectively acknowledged segment, the links lead to the last segment of its run.
    fn check_sacked(&self, slab: &SegmentSlab) -> Check {
        // Positions of segments of this run whose links lead beyond the present segment.
        let mut beyond = 0;
        for key in walk(slab, self.segments.head(), |segment| segment.next) {
            let (_, segment) = key?;
            let is_sacked = segment.marks.contains(Marks::SACKED);
            ensure!(
                is_sacked || segment.pos > beyond,
                "a run of SACKed segments leads beyond {}",
                segment.pos
            );
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

    /// SND.UNA, SND.NXT and the segments agree, while the connection lives.
    fn check_positions(&self, slab: &SegmentSlab) -> Check {
        self.positions.check()?;
        let (una, nxt, end) = (self.positions.una(), self.positions.nxt(), self.positions.end());
        if let Some(head) = self.segments.head() {
            let first = slab.get(head);
            let is_oldest = first.pos <= una.max(1) && una < first.end();
            ensure!(is_oldest, "SND.UNA {una}, the oldest segment {}..{}", first.pos, first.end());
        }
        let last = self.segments.head().and_then(|head| slab.iter_from(head).last());
        if let Some(last) = last.map(|last| slab.get(last)) {
            ensure!(last.end() == end, "the queue ends at {}, not {end}", last.end());
        }
        match self.segments.unsent() {
            Some(key) => ensure!(slab.get(key).pos == nxt, "SND.NXT {nxt}, unsent {}", slab.get(key).pos),
            None => ensure!(una == 0 || nxt >= end, "SND.NXT {nxt}, end {end}, nothing unsent"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::scoreboard::join_sacked_runs;
    use super::super::test_queue::{FiveSegments, assert_all_found};
    use super::*;
    use crate::Instant;
    use crate::tcp::slabs::{ConnectionPages, Place, Sent};

    const LEN: u64 = FiveSegments::LEN;

    #[test]
    fn wrong_places_are_found() {
        assert_all_found(&[
            (
                |q| {
                    let place = q.slab.place(q.keys[2]);
                    q.slab.set_place(q.keys[2], Place { previous: q.keys[0], ..place });
                },
                "SegmentKey(2) is in front of 201, not SegmentKey(1)",
            ),
            (
                |q| {
                    let place = q.slab.place(q.keys[3]);
                    q.slab.set_place(q.keys[3], Place { number: 5, ..place });
                },
                "place number 5 behind 3",
            ),
            (
                |q| {
                    let place = q.slab.place(q.keys[3]);
                    q.slab.set_place(q.keys[3], Place { far: q.keys[1], ..place });
                },
                "from 301 a leap to SegmentKey(2)",
            ),
            (
                |q| {
                    let (place, far) = (q.slab.place(q.keys[3]), q.dangling());
                    q.slab.set_place(q.keys[3], Place { far, ..place });
                },
                "from 301 a leap to SegmentKey(6)",
            ),
        ]);
    }

    #[test]
    fn torn_runs_of_segments_that_arrived_are_found() {
        fn three(q: &mut FiveSegments) {
            for key in &q.keys[1..3] {
                q.queue.set_marks(&mut q.slab, *key, Marks::SACKED);
                join_sacked_runs(&mut q.slab, *key, q.keys[0]);
            }
            q.check().expect("invariants");
        }
        assert_all_found(&[
            (|q| q.segment(0).later = Some(q.keys[1]), "a run of SACKed segments is torn at 1"),
            (
                |q| q.queue.set_marks(&mut q.slab, q.keys[1], Marks::SACKED),
                "a run of SACKed segments is torn at 1",
            ),
            (
                |q| {
                    three(q);
                    q.segment(0).later = Some(q.keys[3]);
                },
                "a run of SACKed segments leads beyond 301",
            ),
            (
                |q| {
                    three(q);
                    q.segment(1).later = Some(q.keys[0]);
                },
                "a way from 101 to SegmentKey(1), which is at 1",
            ),
        ]);
    }

    #[test]
    fn marks_that_do_not_fit_are_found() {
        assert_all_found(&[
            (|q| q.segment(2).marks = Marks::empty(), "Marks(0x0) at 201"),
            (|q| q.segment(4).marks = Marks::LOST, "Marks(LOST) at 401"),
            (|q| q.segment(0).marks |= Marks::LOST, "Marks(SACKED | LOST) at 1"),
            (|q| q.queue.orderly_from = 1, "Marks(SACKED) in an orderly queue at 1"),
            (|q| q.queue.orderly_from = 101, "Marks(LOST) in an orderly queue at 101"),
        ]);
    }

    #[test]
    fn sums_that_do_not_fit_the_marks_are_found() {
        assert_all_found(&[
            (|q| q.queue.sacked_bytes -= 1, "SACKed, lost: (99, 1, 100) of (100, 1, 100)"),
            (|q| q.queue.sacked_segments += 1, "SACKed, lost: (100, 2, 100) of (100, 1, 100)"),
            (|q| q.queue.lost_bytes += 1, "SACKed, lost: (100, 1, 101) of (100, 1, 100)"),
            (|q| q.queue.pages = ConnectionPages::default(), "0 small pages of 1"),
        ]);
    }

    #[test]
    fn a_torn_order_of_transmission_is_found() {
        assert_all_found(&[
            (
                |q| {
                    q.segment(2).marks = Marks::SACKED;
                    q.queue.sacked_bytes += LEN;
                    q.queue.sacked_segments += 1;
                },
                "in flight and marked Marks(SACKED)",
            ),
            (|q| q.queue.flight.list.unlink(&mut q.slab, q.keys[2]), "1 segments in flight are not linked"),
            (|q| q.segment(2).later = None, "1 segments in flight are not linked"),
            (|q| q.segment(3).earlier = None, "the order of transmission is torn at 301"),
            (|q| q.segment(3).later = Some(q.dangling()), "is linked and not there"),
            (
                |q| q.segment(2).sent = Sent { nr: 9, ..q.segment(2).sent },
                "sent before the one in front: 301",
            ),
            (
                |q| {
                    q.segment(2).sent = Sent { nr: 9, ..q.segment(2).sent };
                    q.queue.flight.list.unlink(&mut q.slab, q.keys[2]);
                    q.queue.flight.list.append(&mut q.slab, q.keys[2]);
                    q.queue.orderly_from = 201;
                },
                "sent in another order than that of the queue: 201",
            ),
            (
                |q| {
                    let before = q.queue.flight;
                    q.queue.on_sent(&mut q.slab, Instant::from_millis(9));
                    q.queue.flight = before;
                },
                "the newest in flight is",
            ),
        ]);
    }

    #[test]
    fn a_torn_list_of_lost_segments_is_found() {
        assert_all_found(&[
            (|q| q.queue.lost.unlink(&mut q.slab, q.keys[1]), "1 lost segments are not linked"),
            (|q| q.queue.lost.last = None, "the last one lost is None"),
            (|q| q.segment(1).earlier = Some(q.keys[0]), "the lost segments are torn at 101"),
            (|q| q.queue.lost.append(&mut q.slab, q.keys[0]), "lost and marked Marks(SACKED)"),
            (
                |q| {
                    q.queue.set_marks(&mut q.slab, q.keys[0], Marks::LOST);
                    q.queue.lost.unlink(&mut q.slab, q.keys[0]);
                    q.queue.lost.append(&mut q.slab, q.keys[0]);
                },
                "the oldest is not sent again first",
            ),
        ]);
    }

    #[test]
    fn positions_that_do_not_fit_are_found() {
        assert_all_found(&[
            (|q| q.queue.positions.set(402, 401, 501), "SND.UNA 402, SND.NXT 401, end 501"),
            (|q| q.queue.positions.set(1, 503, 501), "SND.UNA 1, SND.NXT 503, end 501"),
            (|q| q.queue.positions.set(101, 401, 501), "SND.UNA 101, the oldest segment 1..101"),
            (|q| q.queue.positions.set(1, 401, 502), "the queue ends at 501, not 502"),
            (|q| q.queue.positions.set(1, 301, 501), "SND.NXT 301, unsent 401"),
            (
                |q| {
                    q.queue.on_sent(&mut q.slab, Instant::from_millis(9));
                    q.queue.positions.set(1, 500, 501);
                },
                "SND.NXT 500, end 501, nothing unsent",
            ),
        ]);
    }
}
