//! Sets of stream offsets, as disjoint ranges.

use std::collections::BTreeMap;

/// A set of offsets, in which adjacent ranges are merged.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end`. Returns the number of these offsets that were in the set before.
    pub fn add(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut from, mut to, mut old) = (start, end, 0);
        while let Some((&first, &last)) = self.0.range(..=to).next_back()
            && last >= from
        {
            old += last.min(end).saturating_sub(first.max(start));
            from = from.min(first);
            to = to.max(last);
            self.0.remove(&first);
        }
        self.0.insert(from, to);
        old
    }

    /// Removes `start..end`, which has to be in the set.
    pub fn remove(&mut self, start: u64, end: u64) {
        let whole = self.0.range(..=start).next_back().map(|(&first, &last)| (first, last));
        let Some((first, last)) = whole.filter(|(_, last)| *last >= end) else { return };
        self.0.remove(&first);
        self.0.extend([(first, start), (end, last)].into_iter().filter(|(from, to)| from < to));
    }

    /// Returns the last range.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.0.last_key_value().map(|(&first, &last)| (first, last))
    }

    /// Whether all of `start..end` is in the set.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        start >= end || self.0.range(..=start).next_back().is_some_and(|(_, &last)| last >= end)
    }

    /// Returns the first offset from `start` on that is not in the set.
    pub fn first_missing(&self, start: u64) -> u64 {
        self.0.range(..=start).next_back().map_or(start, |(_, &last)| start.max(last))
    }

    /// Returns the end of the range that begins at 0.
    pub fn frontier(&self) -> u64 {
        self.0.first_key_value().filter(|(first, _)| **first == 0).map_or(0, |(_, &last)| last)
    }

    /// Returns the number of offsets in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn what_was_there_before_is_counted() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.add(10, 20), 0);
        assert_eq!(ranges.add(30, 40), 0);
        assert_eq!(ranges.frontier(), 0);
        assert_eq!(ranges.add(15, 35), 10);
        assert!(ranges.contains(10, 40) && !ranges.contains(9, 40));
        assert_eq!(ranges.add(0, 10), 0);
        assert_eq!((ranges.frontier(), ranges.len()), (40, 40));
        assert_eq!(ranges.add(40, 40), 0);
    }

    #[test]
    fn what_is_missing_begins_where_a_range_ends() {
        let mut ranges = Ranges::default();
        ranges.add(10, 20);
        assert_eq!([5, 10, 15, 20, 25].map(|start| ranges.first_missing(start)), [5, 20, 20, 20, 25]);
    }

    #[test]
    fn what_is_taken_out_is_not_there() {
        let mut ranges = Ranges::default();
        ranges.add(0, 40);
        ranges.remove(10, 20);
        ranges.remove(35, 40);
        assert_eq!((ranges.frontier(), ranges.last(), ranges.len()), (10, Some((20, 35)), 25));
        ranges.remove(5, 25);
        assert_eq!(ranges.len(), 25, "a part was not in the set");
    }
}
