//! Finds the segment at a position of the send queue.
//!
//! The queue is a list, and SACK blocks name bytes anywhere in the queue. If each block caused a walk from
//! the front, a peer that repeats blocks could keep an engine busy (CVE-2019-11478). Therefore each segment
//! has a link to the previous segment, and a link to a segment that may be much further to the front
//! ([`Place`]), as in a skip list. A search from the last segment passes few segments, even with thousands of
//! segments in flight. Segments get their places when the first SACK block arrives after their transmission.

use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{Place, SegmentKey, SegmentSlab, leap_number};

/// The segments of one queue that have places: the oldest segment and all later segments that had been sent
/// at the last call of [`Index::find`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Index {
    /// The last segment that has a place, and its position. This segment may have left the queue, with all
    /// segments before it.
    last: Option<(u64, SegmentKey)>,
    /// The segments that were found most recently, the latest first, and their numbers. These segments are
    /// kept because each acknowledgement repeats up to four of the latest blocks. Some of these segments may
    /// have left the queue. Such a segment is recognized by its number, which is not above the number of the
    /// oldest segment.
    found: [Option<(SegmentKey, u32)>; 4],
}

impl Index {
    /// The last segment that begins at or before `pos`, or else the oldest segment. The sent segments are the
    /// segments from `oldest` to `last_sent`.
    pub(super) fn find(
        &mut self,
        slab: &mut SegmentSlab,
        (oldest, last_sent): (SegmentKey, SegmentKey),
        pos: u64,
    ) -> SegmentKey {
        self.extend(slab, oldest, last_sent);
        let first = slab.place(oldest).number;
        let (mut key, mut key_pos) = (last_sent, slab.get(last_sent).pos);
        for at in 0..self.found.len() {
            let Some((found, number)) = self.found[at] else { break };
            if number.wrapping_sub(first) as i32 <= 0 {
                continue;
            }
            let segment = slab.get(found);
            if (segment.pos..segment.end()).contains(&pos) {
                self.found.copy_within(..at, 1);
                self.found[0] = Some((found, number));
                return found;
            }
            if pos < segment.pos && segment.pos < key_pos {
                (key, key_pos) = (found, segment.pos);
            }
        }
        while key_pos > pos && key != oldest {
            let place = slab.place(key);
            let leap = place.leap(first).map(|leap| (leap, slab.get(leap).pos));
            let (front, front_pos) = leap
                .filter(|(_, leap_pos)| *leap_pos > pos)
                .unwrap_or_else(|| (place.previous, slab.get(place.previous).pos));
            // The search ends because each step leads to a smaller position. (The place of a segment that has
            // left the queue may lead anywhere.)
            debug_assert!(front_pos < key_pos, "a step from {key_pos} to {front_pos}, which is not in front");
            (key, key_pos) = (front, front_pos);
        }
        self.found.copy_within(..3, 1);
        self.found[0] = Some((key, slab.place(key).number));
        key
    }

    /// Gives places to the segments that were sent since the last call.
    fn extend(&mut self, slab: &mut SegmentSlab, oldest: SegmentKey, last_sent: SegmentKey) {
        let (oldest_pos, last_pos) = (slab.get(oldest).pos, slab.get(last_sent).pos);
        let mut last = match self.last.replace((last_pos, last_sent)) {
            Some((pos, last)) if pos >= oldest_pos => last,
            _ => {
                self.found = [None; 4];
                slab.set_place(oldest, Place::first(oldest));
                oldest
            }
        };
        if last == last_sent {
            return;
        }
        let first = slab.place(oldest).number;
        while last != last_sent
            && let Some(next) = slab.get(last).next
        {
            slab.set_place(next, slab.place_behind(last, first));
            last = next;
        }
    }

    /// Called after the segment `first` was split. `second` is the rest of the segment.
    pub(super) fn on_split(&mut self, slab: &mut SegmentSlab, first: SegmentKey, second: SegmentKey) {
        let (first_pos, second_pos) = (slab.get(first).pos, slab.get(second).pos);
        let Some((last_pos, _)) = self.last.filter(|(last_pos, _)| *last_pos >= first_pos) else { return };
        // Both parts of the segment have the same number, so both parts have the same leap.
        slab.set_place(second, Place { previous: first, ..slab.place(first) });
        if last_pos == first_pos {
            self.last = Some((second_pos, second));
        } else if let Some(next) = slab.get(second).next {
            slab.set_place(next, Place { previous: second, ..slab.place(next) });
        }
    }

    /// Checks the places of the queue that begins with `oldest`.
    pub(super) fn check(&self, slab: &SegmentSlab, oldest: Option<SegmentKey>) -> Check {
        let Some(oldest) = oldest else { return Ok(()) };
        let oldest_pos = slab.get(oldest).pos;
        let Some((last_pos, last)) = self.last.filter(|(last_pos, _)| *last_pos >= oldest_pos) else {
            return Ok(());
        };
        let found = slab.find(last).map(|segment| segment.pos);
        ensure!(found == Some(last_pos), "the last place is at {last_pos}, and {last:?} at {found:?}");
        let first = slab.place(oldest).number;
        let mut before = oldest;
        for key in slab.iter_from(oldest).skip(1).take_while(|key| slab.get(*key).pos <= last_pos) {
            let (place, pos) = (slab.place(key), slab.get(key).pos);
            ensure!(place.previous == before, "{:?} is in front of {pos}, not {:?}", before, place.previous);
            let steps = place.number.wrapping_sub(slab.place(before).number);
            ensure!(steps <= 1, "place number {} behind {}", place.number, slab.place(before).number);
            if let Some(leap) = place.leap(first) {
                let target = slab.find(leap).filter(|target| (oldest_pos..pos).contains(&target.pos));
                let right = target.is_some() && slab.place(leap).number == place.far_number;
                let right = right && place.far_number == leap_number(place.number);
                ensure!(right, "from {pos} a leap to {leap:?}");
            }
            before = key;
        }
        for (key, number) in
            self.found.iter().flatten().filter(|(_, number)| 0 < number.wrapping_sub(first) as i32)
        {
            let is_queued = slab.find(*key).is_some_and(|found| (oldest_pos..=last_pos).contains(&found.pos));
            ensure!(
                is_queued && slab.place(*key).number == *number,
                "{key:?} was found, and has no number {number}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::test_queue::TestQueue;
    use super::*;
    use crate::Instant;
    use crate::tcp::send::ack_sample::{AckSample, RetransmitFilter};
    use crate::tcp::slabs::Marks;

    const LEN: usize = 8;

    fn sample() -> AckSample {
        AckSample::new(RetransmitFilter { echo_ms: None, horizon: Instant::from_millis(1 << 20) })
    }

    /// A queue with room for 8192 segments, which is enough for the tests that count steps.
    fn queued() -> TestQueue {
        TestQueue::new(1 << 13)
    }

    impl TestQueue {
        /// Sends `count` segments, or fewer if there is not enough space.
        fn send_some(&mut self, count: usize) {
            let _ = (0..count).all(|_| self.send(LEN, Instant::ZERO));
        }

        /// Acknowledges `part` 256ths of the sent segments.
        fn acknowledge(&mut self, part: u8) {
            let positions = self.queue.positions;
            let ack = positions.una() + positions.outstanding() * u64::from(part) / 256;
            self.queue.acknowledge(&mut self.slab, ack, &mut sample());
        }

        /// The segment after `part` 256ths of the sent segments.
        fn at(&self, part: u8) -> Option<SegmentKey> {
            let oldest = self.queue.segments.oldest_sent()?;
            let all: Vec<_> = self.slab.iter_from(oldest).collect();
            all.get(all.len() * usize::from(part) / 256).copied()
        }

        fn split(&mut self, part: u8) {
            let Some(key) = self.at(part).filter(|key| self.slab.get(*key).len > 1) else { return };
            self.queue.sent().set_marks(&mut self.slab, key, Marks::LOST);
            assert!(self.queue.split(&mut self.slab, key, 1));
            self.queue.drop_acknowledged(&mut self.slab);
        }

        /// Finds the segment after `part` 256ths of the sent segments, then four other segments, then the
        /// first segment again, and the oldest segment. Returns the number of records that the last two
        /// searches read.
        fn find(&mut self, part: u8) -> u64 {
            let Some(right) = self.at(part) else { return 0 };
            let (pos, end) = (self.slab.get(right).pos, self.slab.get(right).end());
            let ends = (self.queue.segments.head().unwrap(), self.queue.segments.last_sent().unwrap());
            assert_eq!(self.queue.scoreboard.index_mut().find(&mut self.slab, ends, pos), right);
            self.queue.check(&self.slab).expect("invariants");
            for nr in 1..5 {
                // Other segments are found before the segment is searched for again.
                let other = self.at(part.wrapping_add(17 * nr)).unwrap();
                let pos = self.slab.get(other).pos;
                assert_eq!(self.queue.scoreboard.index_mut().find(&mut self.slab, ends, pos), other);
            }
            self.queue.check(&self.slab).expect("invariants");
            let before = self.slab.visits();
            assert_eq!(self.queue.scoreboard.index_mut().find(&mut self.slab, ends, end - 1), right);
            assert_eq!(self.queue.scoreboard.index_mut().find(&mut self.slab, ends, 0), ends.0, "the oldest");
            self.slab.visits() - before
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(usize),
        Acknowledge(u8),
        Split(u8),
        Find(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..300_usize).prop_map(Step::Send),
            any::<u8>().prop_map(Step::Acknowledge),
            any::<u8>().prop_map(Step::Split),
            any::<u8>().prop_map(Step::Find),
        ]
    }

    proptest! {
        #[test]
        fn each_position_is_found_whatever_was_sent_acknowledged_and_cut(
            steps in prop::collection::vec(step(), 1..60),
            wraps in any::<bool>(),
        ) {
            let mut queued = queued();
            queued.send_some(3);
            queued.find(0);
            if wraps {
                let oldest = queued.queue.segments.head().unwrap();
                let place = Place { number: u32::MAX - 9, far_number: u32::MAX - 9, ..Place::first(oldest) };
                queued.slab.set_place(oldest, place);
                *queued.queue.scoreboard.index_mut() = Index { last: Some((1, oldest)), ..Index::default() };
            }
            for step in steps {
                match step {
                    Step::Send(count) => queued.send_some(count),
                    Step::Acknowledge(part) => queued.acknowledge(part),
                    Step::Split(part) => queued.split(part),
                    Step::Find(part) => {
                        let visits = queued.find(part);
                        prop_assert!(visits <= 300, "{visits} for two searches");
                    }
                }
                queued.queue.check(&queued.slab).expect("invariants");
            }
        }
    }

    #[test]
    fn what_was_found_lately_is_found_at_once_while_it_is_queued() {
        let mut queued = queued();
        queued.send_some(4000);
        let find = |queued: &mut TestQueue, nr: u64| {
            let ends = (queued.queue.segments.head().unwrap(), queued.queue.segments.last_sent().unwrap());
            let before = queued.slab.visits();
            let key = queued.queue.scoreboard.index_mut().find(&mut queued.slab, ends, 1 + nr * LEN as u64);
            assert_eq!(queued.slab.get(key).pos, 1 + nr * LEN as u64);
            queued.slab.visits() - before
        };
        find(&mut queued, 0);
        for nr in [300, 1700, 1900, 3100] {
            assert!(find(&mut queued, nr) > 20, "the way is long to {nr}");
        }
        for nr in [3100, 300, 1900, 1700, 300] {
            assert!(find(&mut queued, nr) < 15, "{nr} was found lately");
        }
        // The least recently found segment is replaced.
        assert!(find(&mut queued, 2500) > 20);
        assert!(find(&mut queued, 1700) < 15 && find(&mut queued, 2500) < 15);
        assert!(find(&mut queued, 3100) > 20);
        queued.queue.acknowledge(&mut queued.slab, 1 + 2500 * LEN as u64, &mut sample());
        queued.queue.check(&queued.slab).expect("invariants");
        assert!(find(&mut queued, 3100) < 15);
        // A search begins at the nearest found segment after the target, whatever the order in which segments
        // were found.
        for (nr, found) in [(3000, [3001, 3900]), (2999, [3900, 3000])] {
            for found in found {
                find(&mut queued, found);
            }
            assert!(find(&mut queued, nr) < 15, "{nr} is in front of one of {found:?}");
        }
        // New segments reuse the records of acknowledged segments.
        queued.send_some(2000);
        queued.queue.check(&queued.slab).expect("invariants");
        find(&mut queued, 2600);
    }

    #[test]
    fn a_leap_leads_where_one_step_or_two_leaps_from_the_number_in_front_lead() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 15, 16].map(leap_number), [0, 1, 0, 3, 4, 3, 0, 7, 0, 15]);
        for number in (1..10_000).chain(u32::MAX - 10_000..u32::MAX) {
            let (next, two) = (leap_number(number + 1), leap_number(leap_number(number)));
            assert!(next == number || next == two, "from {} to {next}", number + 1);
        }
        assert_eq!(leap_number(0), 0);
    }

    #[test]
    fn the_way_to_any_segment_is_as_long_as_the_logarithm_of_their_number() {
        let mut queued = queued();
        queued.send_some(6000);
        queued.find(0);
        let ends = (queued.queue.segments.head().unwrap(), queued.queue.segments.last_sent().unwrap());
        let mut most = 0;
        for nr in 0..6000 {
            let before = queued.slab.visits();
            queued.queue.scoreboard.index_mut().find(&mut queued.slab, ends, 1 + nr * LEN as u64);
            most = most.max(queued.slab.visits() - before);
        }
        // Three records are read for each leap or step, and a search needs at most 26 leaps and steps.
        assert!(most <= 90, "{most}");
    }
}
