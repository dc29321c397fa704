//! Lists of ranges of a stream, in the order of the ranges' positions. The lists of many connections share
//! one fixed set of slots.
//!
//! No memory is allocated after [`RangeSlots::new`]. A list consists of two indices, so a connection without
//! ranges needs almost no memory. Searches begin at the last range, because bytes that arrive out of order
//! are usually appended there.
//!
//! Adjacent ranges form a run. The first and the last slot of a run contain each other's index, so a search
//! skips a run in one step. Whatever the order in which a peer sends its bytes, the number of runs is at most
//! the number of ranges that TCP records, plus the number of FPDUs that were placed early. But the number of
//! slots in these runs has no such limit.

use dp::invariant::{Check, ensure};

/// A range of positions in a stream.
pub(super) trait StreamRange {
    /// First position.
    fn start(&self) -> u64;
    /// Position after the last byte.
    fn end(&self) -> u64;
}

#[derive(Debug)]
struct RangeSlot<T> {
    /// The range, or `None` if the slot is free.
    value: Option<T>,
    prev: Option<u32>,
    /// The next slot of the list, or the next free slot.
    next: Option<u32>,
    /// In the first slot of a run, the index of the run's last slot. In the last slot of a run, the index of
    /// its first slot. In other slots the value has no meaning.
    other_end: u32,
}

/// A fixed set of slots that many lists share.
#[derive(Debug)]
pub(super) struct RangeSlots<T> {
    slots: Box<[RangeSlot<T>]>,
    free: Option<u32>,
    used: usize,
    /// Number of slots that searches have examined.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<usize>,
}

/// One list. The owner must empty the list before dropping it: otherwise its slots are lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    head: Option<u32>,
    tail: Option<u32>,
}

impl List {
    pub(super) const fn is_empty(self) -> bool {
        self.head.is_none()
    }

    pub(super) const fn head(self) -> Option<u32> {
        self.head
    }

    pub(super) const fn tail(self) -> Option<u32> {
        self.tail
    }
}

impl<T: StreamRange> RangeSlots<T> {
    pub(super) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let slots = (0..count)
            .map(|slot| RangeSlot {
                value: None,
                prev: None,
                next: (slot + 1 < count).then_some(slot + 1),
                other_end: slot,
            })
            .collect();
        Self {
            slots,
            free: (count > 0).then_some(0),
            used: 0,
            #[cfg(test)]
            steps: Default::default(),
        }
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns the value in slot `id`, or `None` if the slot is free. An id names a used slot until the slot
    /// is removed. So `None` is a defect of the lists, which a peer cannot cause. The caller decides what
    /// happens then: if bytes would be lost, the connection ends
    /// ([`MpaError::Defect`](crate::mpa::MpaError)).
    pub(super) fn at(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.value.as_ref()
    }

    pub(super) fn at_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.value.as_mut()
    }

    pub(super) fn next(&self, id: u32) -> Option<u32> {
        self.slots.get(id as usize)?.next
    }

    pub(super) fn prev(&self, id: u32) -> Option<u32> {
        self.slots.get(id as usize)?.prev
    }

    /// Returns the last slot of `list` whose range starts at or before `position`, if any.
    pub(super) fn last_at(&self, list: List, position: u64) -> Option<u32> {
        let mut last = list.tail?;
        loop {
            let first = self.slots.get(last as usize)?.other_end;
            if self.starts_by(first, position) {
                return self.last_of_run_at(first, last, position);
            }
            last = self.prev(first)?;
        }
    }

    /// Returns the last slot, in the run from `first` to `last`, whose range starts at or before `position`.
    /// The range of `first` starts at or before `position`.
    fn last_of_run_at(&self, first: u32, last: u32, position: u64) -> Option<u32> {
        let (mut forth, mut back) = (first, last);
        while !self.starts_by(back, position) {
            let next = self.next(forth)?;
            if !self.starts_by(next, position) {
                return Some(forth);
            }
            (forth, back) = (next, self.prev(back)?);
        }
        Some(back)
    }

    /// Whether the range in slot `id` starts at or before `position`.
    fn starts_by(&self, id: u32, position: u64) -> bool {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        self.at(id).is_some_and(|range| range.start() <= position)
    }

    /// Whether the range in slot `left` ends where the range in slot `right` starts.
    fn adjoin(&self, left: Option<u32>, right: Option<u32>) -> bool {
        let end = left.and_then(|id| self.at(id)).map(StreamRange::end);
        end.is_some() && end == right.and_then(|id| self.at(id)).map(StreamRange::start)
    }

    /// Inserts `value` after slot `after`, or as the first range of the list if `after` is `None`. Returns
    /// the new slot, or the error `value` if no slot is free.
    pub(super) fn insert(&mut self, list: &mut List, after: Option<u32>, value: T) -> Result<u32, T> {
        let Some(id) = self.free else {
            return Err(value);
        };
        let next = match after {
            Some(after) => self.next(after),
            None => list.head,
        };
        let slot = &mut self.slots[id as usize];
        self.free = slot.next;
        *slot = RangeSlot { value: Some(value), prev: after, next, other_end: id };
        self.used += 1;
        self.link(list, after, Some(id));
        self.link(list, Some(id), next);
        self.join(after, Some(id));
        self.join(Some(id), next);
        Ok(id)
    }

    /// Joins the run of slot `id` with the next run, if the two runs are adjacent now. The end of the range
    /// in this slot has moved.
    pub(super) fn on_end_moved(&mut self, id: u32) {
        self.join(Some(id), self.next(id));
    }

    /// Joins the run of slot `id` with the previous run, if the two runs are adjacent now. The start of the
    /// range in this slot has moved back.
    pub(super) fn on_start_moved(&mut self, id: u32) {
        self.join(self.prev(id), Some(id));
    }

    /// Removes slot `id` from `list`, and returns the value in this slot, or `None` if the slot is free.
    pub(super) fn remove(&mut self, list: &mut List, id: u32) -> Option<T> {
        self.part(id);
        let free = self.free;
        let slot = self.slots.get_mut(id as usize)?;
        let value = slot.value.take()?;
        let (prev, next) = (slot.prev, slot.next);
        *slot = RangeSlot { value: None, prev: None, next: free, other_end: id };
        self.free = Some(id);
        self.used -= 1;
        self.link(list, prev, next);
        Some(value)
    }

    /// Joins the run that ends with `left` and the run that begins with `right`, if the two runs are
    /// adjacent.
    fn join(&mut self, left: Option<u32>, right: Option<u32>) {
        if self.adjoin(left, right)
            && let (Some(left), Some(right)) = (left, right)
        {
            let (first, last) = (self.slots[left as usize].other_end, self.slots[right as usize].other_end);
            self.set_run(first, last);
        }
    }

    /// Splits the run of slot `id`, which is about to be removed, into the run before this slot and the run
    /// after this slot.
    fn part(&mut self, id: u32) {
        let (prev, next) = (self.prev(id), self.next(id));
        let before = prev.filter(|_| self.adjoin(prev, Some(id)));
        let behind = next.filter(|_| self.adjoin(Some(id), next));
        match (before, behind) {
            (None, None) => {}
            (None, Some(first)) => self.set_run(first, self.slots[id as usize].other_end),
            (Some(last), None) => self.set_run(self.slots[id as usize].other_end, last),
            (Some(before), Some(behind)) => {
                let (first, last) = self.run_around(before, behind);
                self.set_run(first, before);
                self.set_run(behind, last);
            }
        }
    }

    /// Returns the first and the last slot of the run that contains `left` and `right`. Searches in both
    /// directions until one of the two slots is found.
    fn run_around(&self, mut left: u32, mut right: u32) -> (u32, u32) {
        loop {
            let (before, behind) = (self.prev(left), self.next(right));
            match (self.adjoin(before, Some(left)), self.adjoin(Some(right), behind)) {
                (false, _) => return (left, self.slots[left as usize].other_end),
                (_, false) => return (self.slots[right as usize].other_end, right),
                _ => (left, right) = (before.unwrap_or(left), behind.unwrap_or(right)),
            }
        }
    }

    fn set_run(&mut self, first: u32, last: u32) {
        self.slots[first as usize].other_end = last;
        self.slots[last as usize].other_end = first;
    }

    fn link(&mut self, list: &mut List, left: Option<u32>, right: Option<u32>) {
        match left {
            Some(left) => self.slots[left as usize].next = right,
            None => list.head = right,
        }
        match right {
            Some(right) => self.slots[right as usize].prev = left,
            None => list.tail = left,
        }
    }

    /// Checks that `taken` slots are in use, and that all other slots are in the chain of free slots.
    pub(super) fn check(&self, taken: usize) -> Check {
        ensure!(self.used == taken, "{} slots taken, {taken} in lists", self.used);
        let mut free = 0;
        for id in std::iter::successors(self.free, |id| self.next(*id)) {
            ensure!(
                self.slots[id as usize].value.is_none(),
                "slot {id} is taken and in the chain of free ones"
            );
            free += 1;
            ensure!(free + taken <= self.slots.len(), "the chain of free slots has a circle");
        }
        ensure!(
            free + taken == self.slots.len(),
            "{free} slots free and {taken} taken of {}",
            self.slots.len()
        );
        Ok(())
    }

    /// Checks that `list` is linked in both directions, sorted by position without overlap, and that the ends
    /// of each run name each other. Returns the number of slots of the list.
    pub(super) fn check_list(&self, list: List) -> Check<usize> {
        let (mut at, mut before, mut end, mut count, mut first) = (list.head, None, 0, 0, None);
        while let Some(id) = at {
            let slot = self.slots.get(id as usize).ok_or_else(|| format!("there is no slot {id}"))?;
            let value = slot.value.as_ref().ok_or_else(|| format!("slot {id} is free and in a list"))?;
            ensure!(slot.prev == before, "slot {id} follows {before:?} and names {:?}", slot.prev);
            let (from, to) = (value.start(), value.end());
            ensure!(end <= from && from < to, "{from}..{to} behind {end}");
            let begins = !self.adjoin(before, Some(id));
            let first = *if begins { first.insert(id) } else { first.get_or_insert(id) };
            let ends = !self.adjoin(Some(id), slot.next);
            let named = (self.slots[first as usize].other_end, slot.other_end);
            ensure!(!ends || named == (id, first), "the ends {first} and {id} of a run name {named:?}");
            (at, before, end) = (slot.next, Some(id), to);
            count += 1;
            ensure!(count <= self.used, "a list has a circle");
        }
        ensure!(list.tail == before, "the list ends at {before:?} and names {:?}", list.tail);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StreamRange for std::ops::Range<u64> {
        fn start(&self) -> u64 {
            self.start
        }

        fn end(&self) -> u64 {
            self.end
        }
    }

    fn three() -> (RangeSlots<std::ops::Range<u64>>, List) {
        let (mut slots, mut list) = (RangeSlots::new(5), List::default());
        for at in 0..3 {
            let last = list.tail();
            slots.insert(&mut list, last, at * 10..at * 10 + 5).unwrap();
        }
        (slots, list)
    }

    #[test]
    fn a_list_that_is_torn_is_found() {
        let (slots, list) = three();
        assert_eq!(slots.check_list(list), Ok(3));
        slots.check(3).unwrap();
        type Tear = fn(&mut RangeSlots<std::ops::Range<u64>>, &mut List);
        let tears: [Tear; 10] = [
            |slots, _| slots.slots[0].other_end = 1,
            |slots, _| slots.slots[1].value = Some(10..20),
            |slots, _| slots.slots[1].prev = None,
            |slots, _| slots.slots[1].next = None,
            |slots, _| slots.slots[2].next = Some(0),
            |slots, _| slots.slots[2].next = Some(9),
            |slots, _| slots.slots[1].value = None,
            |slots, _| slots.slots[1].value = Some(12..12),
            |slots, _| slots.slots[1].value = Some(4..15),
            |_, list| list.tail = Some(1),
        ];
        for (number, tear) in tears.into_iter().enumerate() {
            let (mut slots, mut list) = three();
            tear(&mut slots, &mut list);
            assert!(slots.check_list(list).is_err(), "{number}");
        }
    }

    /// For any order of arrivals and removals, searches have the same results as in a list without runs.
    #[test]
    fn searches_find_what_a_walk_finds() {
        for seed in 0..200_u64 {
            let (mut slots, mut list) = (RangeSlots::<std::ops::Range<u64>>::new(64), List::default());
            let mut dice = testkit::dice::Dice::xorshift(seed);
            let mut dice = |below| dice.below(below);
            for _ in 0..200 {
                let at = dice(60);
                let place = slots.last_at(list, at);
                let ids: Vec<u32> = std::iter::successors(list.tail, |id| slots.prev(*id)).collect();
                assert_eq!(place, ids.iter().copied().find(|id| slots.at(*id).unwrap().start <= at));
                let holder = place.filter(|id| slots.at(*id).is_some_and(|range| at < range.end));
                match (dice(5), holder) {
                    (0 | 1, Some(_)) if !ids.is_empty() => {
                        slots.remove(&mut list, ids[dice(ids.len() as u64) as usize]).unwrap();
                    }
                    (_, None) => {
                        let next = place.map_or(list.head, |id| slots.next(id));
                        let free = next.and_then(|id| slots.at(id)).map_or(60, |range| range.start);
                        let end = at + 1 + dice(free.max(at + 1) - at);
                        let before = place.filter(|id| slots.at(*id).is_some_and(|range| range.end == at));
                        match (dice(3), before, next.filter(|_| end == free)) {
                            (0, Some(before), _) => {
                                slots.at_mut(before).unwrap().end = end;
                                slots.on_end_moved(before);
                            }
                            (1, _, Some(next)) => {
                                slots.at_mut(next).unwrap().start = at;
                                slots.on_start_moved(next);
                            }
                            _ => _ = slots.insert(&mut list, place, at..end).unwrap(),
                        }
                    }
                    _ => {}
                }
                let count = slots.check_list(list).unwrap();
                slots.check(count).unwrap();
            }
        }
    }

    /// With a thousand ranges in each of a few runs, a search passes over a whole run in one step, and
    /// examines at most the slots of one run.
    #[test]
    fn a_search_passes_over_runs() {
        let (mut slots, mut list) = (RangeSlots::new(5000), List::default());
        for run in 0..4 {
            for at in 0..1000 {
                let last = list.tail();
                slots.insert(&mut list, last, run * 10_000 + at..run * 10_000 + at + 1).unwrap();
            }
        }
        let mut steps_to = |position| {
            slots.steps.set(0);
            slots.last_at(list, position);
            slots.steps.get()
        };
        assert_eq!([40_000, 30_999, 20_000 - 1, 9999].map(&mut steps_to), [2, 2, 4, 5]);
        assert!(steps_to(10_003) < 20 && steps_to(10_996) < 20, "near an end");
        assert!(steps_to(10_500) < 1010);
    }

    #[test]
    fn slots_that_leak_are_found() {
        type Leak = fn(&mut RangeSlots<std::ops::Range<u64>>);
        let leaks: [Leak; 4] = [
            |slots| slots.used = 2,
            |slots| slots.free = None,
            |slots| slots.free = Some(2),
            |slots| slots.slots[4].next = Some(3),
        ];
        for (number, leak) in leaks.into_iter().enumerate() {
            let (mut slots, _) = three();
            leak(&mut slots);
            assert!(slots.check(3).is_err(), "{number}");
        }
    }
}
