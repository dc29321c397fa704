//! Ranges of a stream in the order of their positions: the lists of many connections in one fixed set of
//! slots.
//!
//! Nothing is allocated after [`RangeSlots::new`]. A list is two indices, so a connection without ranges
//! needs almost no memory. Searches begin at the far end, because out-of-order arrivals are appended there.

use dp::invariant::{Check, ensure};

/// A range of positions in a stream.
pub(super) trait StreamRange {
    /// First position.
    fn start(&self) -> u64;
    /// Position after the last.
    fn end(&self) -> u64;
}

#[derive(Debug)]
struct RangeSlot<T> {
    /// `None` when the slot is free.
    value: Option<T>,
    prev: Option<u32>,
    /// The next slot of the list, or the next free slot.
    next: Option<u32>,
}

/// Slots that many lists share.
#[derive(Debug)]
pub(super) struct RangeSlots<T> {
    slots: Box<[RangeSlot<T>]>,
    free: Option<u32>,
    used: usize,
}

/// One list. Its owner has to empty it before it is dropped: otherwise its slots are lost.
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
    /// A set of `count` free slots.
    pub(super) fn new(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let slots = (0..count)
            .map(|slot| RangeSlot { value: None, prev: None, next: (slot + 1 < count).then_some(slot + 1) })
            .collect();
        Self { slots, free: (count > 0).then_some(0), used: 0 }
    }

    /// Slots in use.
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// All slots.
    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The value in slot `id`. An id names a used slot until the slot is removed. A free slot here is a
    /// defect of the lists, never caused by the peer. It reads as `None`, and what `None` means is up to the
    /// caller: where bytes would be lost the connection ends ([`MpaError::Defect`](crate::mpa::MpaError)).
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

    /// The last slot of `list` that starts at or before `position`.
    pub(super) fn last_at(&self, list: List, position: u64) -> Option<u32> {
        std::iter::successors(list.tail, |id| self.prev(*id))
            .find(|id| self.at(*id).is_some_and(|range| range.start() <= position))
    }

    /// Inserts `value` after `after`, or first. Returns the value when no slot is free.
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
        *slot = RangeSlot { value: Some(value), prev: after, next };
        self.used += 1;
        self.link(list, after, Some(id));
        self.link(list, Some(id), next);
        Ok(id)
    }

    /// Removes slot `id` from `list`.
    pub(super) fn remove(&mut self, list: &mut List, id: u32) -> Option<T> {
        let free = self.free;
        let slot = self.slots.get_mut(id as usize)?;
        let value = slot.value.take()?;
        let (prev, next) = (slot.prev, slot.next);
        *slot = RangeSlot { value: None, prev: None, next: free };
        self.free = Some(id);
        self.used -= 1;
        self.link(list, prev, next);
        Some(value)
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

    /// Whether `taken` slots are in lists and all others in the chain of free ones.
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

    /// Whether `list` is chained both ways and in the order of positions. Returns how many slots it has.
    pub(super) fn check_list(&self, list: List) -> Check<usize> {
        let (mut at, mut before, mut end, mut count) = (list.head, None, 0, 0);
        while let Some(id) = at {
            let slot = self.slots.get(id as usize).ok_or_else(|| format!("there is no slot {id}"))?;
            let value = slot.value.as_ref().ok_or_else(|| format!("slot {id} is free and in a list"))?;
            ensure!(slot.prev == before, "slot {id} follows {before:?} and names {:?}", slot.prev);
            let (from, to) = (value.start(), value.end());
            ensure!(end <= from && from < to, "{from}..{to} behind {end}");
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
        let tears: [Tear; 8] = [
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
