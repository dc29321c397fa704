//! A bounded set of disjoint ranges above the frontier, in order, with the time of their last change.

use arrayvec::ArrayVec;

/// Ranges (holes) that a connection tells apart at most. Octets that would need one more are dropped.
pub(super) const MAX_RANGES: usize = 64;

/// Received octets `start..end` that do not touch the frontier or another range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Grows with every change: the order of SACK blocks.
    stamp: u32,
}

/// The ranges of one connection.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    sorted: ArrayVec<Range, MAX_RANGES>,
    octets: u64,
    stamp: u32,
}

impl Ranges {
    /// Octets in all ranges.
    pub(super) fn octets(&self) -> u64 {
        self.octets
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The first part of `start..end` that is in no range.
    pub(super) fn gap(&self, mut start: u64, end: u64) -> Option<(u64, u64)> {
        let first = self.sorted.partition_point(|range| range.end <= start);
        for range in &self.sorted[first..] {
            if range.start > start {
                return (start < end).then(|| (start, end.min(range.start)));
            }
            start = range.end;
        }
        (start < end).then_some((start, end))
    }

    /// Whether `start..end`, which is in no range, could be added.
    pub(super) fn takes(&self, start: u64, end: u64) -> bool {
        !self.sorted.is_full() || self.sorted.iter().any(|range| range.end == start || range.start == end)
    }

    /// Adds `start..end`, which is in no range, merging with its neighbours. See [`takes`](Self::takes).
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        self.stamp = self.stamp.wrapping_add(1);
        self.octets += end - start;
        let mut at = self.sorted.partition_point(|range| range.end < start);
        let mut merged = Range { start, end, stamp: self.stamp };
        if let Some(below) = self.sorted.get(at).filter(|range| range.end == start) {
            merged.start = below.start;
            self.sorted.remove(at);
        }
        if let Some(above) = self.sorted.get(at).filter(|range| range.start == end) {
            merged.end = above.end;
            self.sorted.remove(at);
        }
        at = at.min(self.sorted.len());
        if !self.sorted.is_full() {
            self.sorted.insert(at, merged);
        }
    }

    /// The range of this position was seen again: it is the most recent one.
    pub(super) fn touch(&mut self, pos: u64) {
        self.stamp = self.stamp.wrapping_add(1);
        let stamp = self.stamp;
        if let Some(range) = self.sorted.iter_mut().find(|range| range.start <= pos && pos < range.end) {
            range.stamp = stamp;
        }
    }

    /// The frontier reached `pos`: takes off the ranges it now touches and returns where it stands.
    pub(super) fn absorb(&mut self, mut pos: u64) -> u64 {
        while let Some(first) = self.sorted.first().copied().filter(|range| range.start <= pos) {
            pos = pos.max(first.end);
            self.octets -= first.end - first.start;
            self.sorted.remove(0);
        }
        pos
    }

    /// Up to `count` ranges, most recently changed first.
    pub(super) fn recent<const N: usize>(&self, count: usize) -> ArrayVec<Range, N> {
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
    use super::*;

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
        assert_eq!(ranges.octets(), 47);
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
        assert_eq!(ranges.octets(), 10);
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
