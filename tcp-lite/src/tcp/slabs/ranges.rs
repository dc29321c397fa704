//! The ranges of one connection that were received above the frontier (the next expected byte): a bounded,
//! sorted set of disjoint ranges. The set also stores the order in which the ranges changed last, because
//! SACK blocks report the ranges in this order (RFC 2018 section 4).

use std::ops;

use arrayvec::ArrayVec;

use crate::invariant::{Check, ensure};

/// Maximum number of ranges (and so of holes) of a connection. The ranges take 1.5 KiB, and a search visits
/// at most 64 entries. Bytes that would need another range are dropped.
pub(in crate::tcp) const MAX_RANGES: usize = 64;

/// Maximum number of times that ranges may grow at their front before the frontier moves. With reordered or
/// retransmitted segments, ranges mostly grow at their ends, and holes close. A peer that sends its bytes
/// backwards reaches this limit. Then bytes that would make a range grow at its front are dropped.
const MAX_GROWN_IN_FRONT: u16 = 32;

/// Received bytes `start..end` that do not touch the frontier or another range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Range {
    pub(in crate::tcp) start: u64,
    pub(in crate::tcp) end: u64,
    /// A number that increases with every change, and gives the order of SACK blocks.
    stamp: u32,
}

#[derive(Debug, Default)]
pub(in crate::tcp) struct Ranges {
    sorted: ArrayVec<Range, MAX_RANGES>,
    bytes: u64,
    stamp: u32,
    /// Number of times that ranges grew at their front since the frontier moved.
    grown_in_front: u16,
}

impl Ranges {
    /// Number of bytes in all ranges.
    pub(in crate::tcp) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The first position after all ranges; 0 if there is no range.
    pub(in crate::tcp) fn end(&self) -> u64 {
        self.sorted.last().map_or(0, |range| range.end)
    }

    /// The first part of `start..end` that is in no range; `None` if all bytes are in ranges.
    pub(in crate::tcp) fn gap(&self, mut start: u64, end: u64) -> Option<(u64, u64)> {
        let first = self.sorted.partition_point(|range| range.end <= start);
        for range in &self.sorted[first..] {
            if range.start > start {
                return (start < end).then(|| (start, end.min(range.start)));
            }
            start = range.end;
        }
        (start < end).then_some((start, end))
    }

    /// Whether [`insert`](Self::insert) can add `start..end`, which is in no range: the set has room for the
    /// bytes, and its ranges have not grown at their front too often ([`MAX_GROWN_IN_FRONT`]).
    pub(in crate::tcp) fn takes(&self, start: u64, end: u64) -> bool {
        let (_, grows_behind, grows_in_front) = self.neighbors(start, end);
        match grows_in_front && !grows_behind {
            true => self.grown_in_front < MAX_GROWN_IN_FRONT,
            false => grows_behind || !self.sorted.is_full(),
        }
    }

    /// The index at which `start..end`, which is in no range, has to be inserted. Also returns whether a
    /// range ends at `start`, and whether the next range starts at `end`.
    fn neighbors(&self, start: u64, end: u64) -> (usize, bool, bool) {
        let at = self.sorted.partition_point(|range| range.end < start);
        let grows_behind = self.sorted.get(at).is_some_and(|range| range.end == start);
        let above = self.sorted.get(at + usize::from(grows_behind));
        (at, grows_behind, above.is_some_and(|range| range.start == end))
    }

    /// Adds `start..end`, which is in no range, and merges it with adjacent ranges. The caller has checked
    /// that the set [`takes`](Self::takes) the bytes.
    pub(in crate::tcp) fn insert(&mut self, start: u64, end: u64) {
        self.stamp = self.stamp.wrapping_add(1);
        self.bytes += end - start;
        let (at, grows_behind, grows_in_front) = self.neighbors(start, end);
        let mut merged = Range { start, end, stamp: self.stamp };
        if grows_behind {
            merged.start = self.sorted.remove(at).start;
        }
        if grows_in_front {
            merged.end = self.sorted.remove(at).end;
            self.grown_in_front += u16::from(!grows_behind);
        }
        if !self.sorted.is_full() {
            self.sorted.insert(at, merged);
        }
    }

    /// Removes the bytes `stretches`, which do not overlap. Removes nothing and returns `false` if one of
    /// these stretches is not wholly inside a range of the set, or if there would be too many ranges.
    pub(in crate::tcp) fn remove(&mut self, stretches: &[ops::Range<u64>]) -> bool {
        let inside = |stretch: &ops::Range<u64>| {
            let at = self.sorted.partition_point(|range| range.end <= stretch.start);
            let range = self.sorted.get(at)?;
            let holds =
                range.start <= stretch.start && stretch.start < stretch.end && stretch.end <= range.end;
            holds.then_some(range.start < stretch.start && stretch.end < range.end)
        };
        let mut splits = 0;
        for stretch in stretches {
            match inside(stretch) {
                Some(split) => splits += usize::from(split),
                None => return false,
            }
        }
        if self.sorted.len() + splits > MAX_RANGES {
            return false;
        }
        for stretch in stretches {
            self.cut(stretch.start, stretch.end);
        }
        true
    }

    /// Removes `start..end`, which is inside a range.
    fn cut(&mut self, start: u64, end: u64) {
        let at = self.sorted.partition_point(|range| range.end <= start);
        let whole = self.sorted.remove(at);
        self.bytes -= end - start;
        if end < whole.end {
            self.sorted.insert(at, Range { start: end, ..whole });
        }
        if whole.start < start {
            self.sorted.insert(at, Range { end: start, ..whole });
        }
    }

    /// Checks that the ranges are sorted and separate, between the frontier and `edge`.
    pub(in crate::tcp) fn check(&self, frontier: u64, edge: u64) -> Check {
        let mut last = frontier;
        for Range { start, end, .. } in &self.sorted {
            ensure!(last < *start && start < end, "the range {start}..{end} behind {last}");
            last = *end;
        }
        ensure!(last <= edge.max(frontier), "a range ends at {last}, beyond the edge {edge}");
        let bytes: u64 = self.sorted.iter().map(|range| range.end - range.start).sum();
        ensure!(self.bytes == bytes, "{} bytes counted in ranges of {bytes}", self.bytes);
        Ok(())
    }

    /// Called when bytes of the range that contains `pos` were received again: makes this range the most
    /// recent one.
    pub(in crate::tcp) fn touch(&mut self, pos: u64) {
        self.stamp = self.stamp.wrapping_add(1);
        let stamp = self.stamp;
        if let Some(range) = self.sorted.iter_mut().find(|range| range.start <= pos && pos < range.end) {
            range.stamp = stamp;
        }
    }

    /// Called when the frontier has reached `pos`: removes the ranges that the frontier now touches, and
    /// returns the new position of the frontier.
    pub(in crate::tcp) fn absorb(&mut self, mut pos: u64) -> u64 {
        self.grown_in_front = 0;
        while let Some(first) = self.sorted.first().copied().filter(|range| range.start <= pos) {
            pos = pos.max(first.end);
            self.bytes -= first.end - first.start;
            self.sorted.remove(0);
        }
        pos
    }

    /// Up to `count` ranges, most recently changed first.
    pub(in crate::tcp) fn recent<const N: usize>(&self, count: usize) -> ArrayVec<Range, N> {
        let age = |range: &Range| self.stamp.wrapping_sub(range.stamp);
        let mut recent = ArrayVec::new();
        for range in &self.sorted {
            let at = recent.iter().position(|other| age(other) > age(range)).unwrap_or(recent.len());
            if at >= count.min(N) {
                continue;
            }
            recent.truncate(count.min(N) - 1);
            recent.insert(at, *range);
        }
        recent
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::slice;

    use proptest::prelude::*;

    use super::*;
    use crate::invariant::assert_found;

    fn spans(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges.sorted.iter().map(|range| (range.start, range.end)).collect()
    }

    fn of(spans: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges::default();
        for &(start, end) in spans {
            ranges.insert(start, end);
        }
        ranges
    }

    #[test]
    fn neighbours_merge() {
        let mut ranges = of(&[(10, 20), (30, 40), (50, 60)]);
        ranges.insert(20, 30);
        assert_eq!(spans(&ranges), [(10, 40), (50, 60)]);
        ranges.insert(45, 50);
        assert_eq!(spans(&ranges), [(10, 40), (45, 60)]);
        ranges.insert(40, 42);
        assert_eq!(spans(&ranges), [(10, 42), (45, 60)]);
        assert_eq!(ranges.bytes(), 47);
    }

    #[test]
    fn gaps_are_what_no_range_covers() {
        let ranges = of(&[(10, 20), (30, 40)]);
        assert_eq!(ranges.gap(5, 50), Some((5, 10)));
        assert_eq!(ranges.gap(10, 50), Some((20, 30)));
        assert_eq!(ranges.gap(35, 50), Some((40, 50)));
        assert_eq!(ranges.gap(12, 20), None);
        assert_eq!(ranges.gap(12, 25), Some((20, 25)));
        assert_eq!(ranges.gap(41, 41), None);
    }

    #[test]
    fn the_frontier_absorbs_what_it_touches() {
        let mut ranges = of(&[(10, 20), (20, 30), (40, 50)]);
        assert_eq!(ranges.absorb(5), 5);
        assert_eq!(ranges.absorb(10), 30);
        assert_eq!(spans(&ranges), [(40, 50)]);
        assert_eq!(ranges.bytes(), 10);
    }

    #[test]
    fn the_most_recent_range_comes_first() {
        let mut ranges = of(&[(10, 20), (50, 60), (30, 40), (70, 80)]);
        let starts =
            |ranges: &Ranges, count| ranges.recent::<4>(count).iter().map(|r| r.start).collect::<Vec<_>>();
        assert_eq!(starts(&ranges, 3), [70, 30, 50]);
        ranges.touch(12);
        assert_eq!(starts(&ranges, 4), [10, 70, 30, 50]);
    }

    #[test]
    fn what_is_taken_out_leaves_what_was_around_it() {
        let mut ranges = of(&[(10, 20), (30, 60)]);
        assert!(ranges.remove(&[35..40, 45..50]));
        assert_eq!(spans(&ranges), [(10, 20), (30, 35), (40, 45), (50, 60)]);
        assert!(ranges.remove(&[10..20, 50..55]));
        assert_eq!((spans(&ranges), ranges.bytes()), (vec![(30, 35), (40, 45), (55, 60)], 15));
        for absent in [20..30, 34..36, 30..41, 32..32] {
            assert!(!ranges.remove(&[58..60, absent.clone()]), "{absent:?}");
        }
        assert_eq!(ranges.bytes(), 15, "all or none");
        for start in 0..MAX_RANGES as u64 - 4 {
            ranges.insert(100 + start * 2, 101 + start * 2);
        }
        assert!(ranges.remove(slice::from_ref(&(31..32))));
        assert!(!ranges.remove(slice::from_ref(&(33..34))), "one more than are told apart");
        assert!(ranges.remove(&[32..33, 55..56]));
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Bytes arrive.
        Arrive(u64, u64),
        /// A duplicate arrives.
        Touch(u64),
        /// Ranges of bytes are given up.
        Evict(Vec<(u64, u64)>),
        /// The frontier advances by this many bytes.
        Advance(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let span = || (0_u64..400, 1_u64..6);
        let step = prop_oneof![
            8 => span().prop_map(|(start, len)| Step::Arrive(start, start + len)),
            1 => (0_u64..400).prop_map(Step::Touch),
            3 => prop::collection::vec(span(), 1..4).prop_map(|mut spans| {
                spans.sort_unstable();
                spans.dedup_by(|next, last| next.0 < last.0 + last.1);
                Step::Evict(spans.into_iter().map(|(start, len)| (start, start + len)).collect())
            }),
            1 => (0_u64..8).prop_map(Step::Advance),
        ];
        prop::collection::vec(step, 0..600)
    }

    /// The runs of consecutive bytes in a set.
    fn runs(bytes: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &byte in bytes {
            match runs.last_mut() {
                Some((_, end)) if *end == byte => *end += 1,
                _ => runs.push((byte, byte + 1)),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn ranges_are_the_runs_of_what_arrived_and_was_not_given_up(steps in steps()) {
            let (mut ranges, mut bytes, mut frontier) = (Ranges::default(), BTreeSet::new(), 0);
            for step in steps {
                match step {
                    Step::Arrive(start, end) => {
                        let start = start.max(frontier + 1);
                        let mut new = None;
                        while let Some((from, to)) = ranges.gap(start, end) {
                            prop_assert!((from..to).all(|byte| !bytes.contains(&byte)));
                            let mut with = bytes.clone();
                            with.extend(from..to);
                            let takes = runs(&with).len() <= MAX_RANGES;
                            // If the bytes close a hole, a full set could accept them, but the test does not
                            // require this.
                            prop_assert!(takes || !ranges.takes(from, to));
                            if !ranges.takes(from, to) {
                                break;
                            }
                            ranges.insert(from, to);
                            bytes = with;
                            new = Some(from);
                        }
                        if let Some(new) = new {
                            let first = ranges.recent::<4>(1)[0];
                            prop_assert!(first.start <= new && new < first.end, "the newest comes first");
                        }
                    }
                    Step::Touch(byte) => {
                        ranges.touch(byte);
                        let first = ranges.recent::<4>(1).first().map(|range| (range.start, range.end));
                        if bytes.contains(&byte) {
                            prop_assert!(first.is_some_and(|(start, end)| start <= byte && byte < end));
                        }
                    }
                    Step::Evict(spans) => {
                        let mut without = bytes.clone();
                        spans.iter().for_each(|&(start, end)| without.retain(|at| !(start..end).contains(at)));
                        let here = spans.iter().all(|&(start, end)| (start..end).all(|at| bytes.contains(&at)));
                        let strictly_inside =
                            |&(start, end): &(u64, u64)| bytes.contains(&(start - 1)) && bytes.contains(&end);
                        let splits = spans.iter().filter(|span| span.0 > 0 && strictly_inside(span)).count();
                        let may = here && runs(&bytes).len() + splits <= MAX_RANGES;
                        let stretches: Vec<_> = spans.iter().map(|&(start, end)| start..end).collect();
                        let done = ranges.remove(&stretches);
                        prop_assert!(!done || here);
                        prop_assert!(done || !may);
                        if done {
                            bytes = without;
                        }
                    }
                    Step::Advance(by) => {
                        frontier = ranges.absorb(frontier + by);
                        bytes.retain(|byte| *byte >= frontier);
                        prop_assert!(!bytes.contains(&frontier));
                    }
                }
                prop_assert_eq!(spans(&ranges), runs(&bytes));
                prop_assert_eq!(ranges.bytes(), bytes.len() as u64);
                for range in ranges.recent::<4>(4) {
                    prop_assert!((range.start..range.end).all(|byte| bytes.contains(&byte)));
                }
            }
        }
    }

    #[test]
    fn a_set_whose_parts_disagree_is_found() {
        type Break = fn(&mut Ranges);
        let broken: [(Break, &str); 8] = [
            (|ranges| ranges.sorted[0].start = 8, "the range 8..20 behind 9"),
            (|ranges| ranges.sorted[0].start = 9, "the range 9..20 behind 9"),
            (|ranges| ranges.sorted[1].end = 30, "the range 30..30 behind 20"),
            (|ranges| ranges.sorted[1].start = 20, "the range 20..40 behind 20"),
            (|ranges| ranges.sorted.swap(0, 1), "the range 10..20 behind 40"),
            (|ranges| ranges.sorted[1].end = 51, "a range ends at 51, beyond the edge 50"),
            (|ranges| ranges.bytes += 1, "21 bytes counted in ranges of 20"),
            (|ranges| ranges.bytes -= 1, "19 bytes counted in ranges of 20"),
        ];
        for (break_it, what) in broken {
            let mut ranges = of(&[(10, 20), (30, 40)]);
            ranges.check(9, 50).unwrap();
            break_it(&mut ranges);
            assert_found(ranges.check(9, 50), what);
        }
    }

    #[test]
    fn what_grows_in_front_is_bounded_until_the_frontier_moves() {
        let mut ranges = of(&[(5000, 5001), (7000, 7001)]);
        for pos in 0..u64::from(MAX_GROWN_IN_FRONT) {
            // The limit applies to all ranges together.
            let start = if pos % 2 == 0 { 4999 - pos / 2 } else { 6999 - pos / 2 };
            assert!(ranges.takes(start, start + 1), "{pos}");
            ranges.insert(start, start + 1);
        }
        let first = ranges.sorted[0].start;
        assert!(!ranges.takes(first - 1, first));
        assert!(ranges.takes(5001, 5002), "at an end");
        assert!(ranges.takes(first - 2, first - 1), "as a range of its own");
        ranges.insert(first - 2, first - 1);
        assert!(ranges.takes(first - 1, first), "where a hole closes");
        ranges.insert(first - 1, first);
        assert!(!ranges.takes(first - 3, first - 2));
        assert_eq!(ranges.absorb(1), 1);
        assert!(ranges.takes(first - 3, first - 2), "the frontier moved");
    }

    #[test]
    fn holes_that_close_are_no_growth_in_front() {
        let mut ranges = of(&[(1000, 1001)]);
        for nr in 0..2 * u64::from(MAX_GROWN_IN_FRONT) {
            let end = 1001 + 2 * nr;
            ranges.insert(end + 1, end + 2);
            ranges.insert(end, end + 1);
        }
        assert_eq!(ranges.sorted.len(), 1);
        assert!(ranges.takes(999, 1000));
    }

    #[test]
    fn a_full_set_takes_only_what_touches() {
        let mut ranges = Ranges::default();
        for i in 0..MAX_RANGES as u64 {
            ranges.insert(i * 10 + 1, i * 10 + 5);
        }
        assert!(!ranges.takes(2000, 2001));
        assert!(ranges.takes(5, 7));
        ranges.insert(5, 7);
        assert_eq!(ranges.sorted.len(), MAX_RANGES);
    }
}
