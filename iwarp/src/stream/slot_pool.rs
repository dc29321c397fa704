//! Queues of many connections in one set of slots, so an idle connection occupies no slot.
//!
//! When a connection begins, it reserves slots for its depths. Up to a limit, memory for the reserved slots
//! is allocated at that time. Beyond the limit, the memory grows with the number of waiting values, and each
//! growth is counted.

use dp::invariant::{Check, ensure};

/// Slots that many queues share.
pub(super) struct SlotPool<T> {
    slots: Vec<PoolSlot<T>>,
    /// The first free slot.
    free: Option<u32>,
    /// The maximum number of values in all queues together.
    reserved: usize,
    limit: usize,
    /// How often the slots had to grow because more values waited than memory was allocated for.
    pub(super) growths: u64,
}

struct PoolSlot<T> {
    /// The value; `None` if the slot is free.
    value: Option<T>,
    /// The next slot of the same queue, or the next free slot.
    next: Option<u32>,
}

/// One queue. The owner has to empty the queue before dropping it, otherwise its slots stay in use.
#[derive(Debug, Default)]
pub(super) struct PoolQueue {
    /// The first and the last slot; `None` if the queue is empty.
    ends: Option<(u32, u32)>,
    len: u32,
}

impl<T> SlotPool<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: None, reserved: 0, limit, growths: 0 }
    }

    /// Reserves `count` slots for a new connection. Allocates memory for these slots, up to the limit.
    pub(super) fn reserve(&mut self, count: usize) {
        self.reserved += count;
        let (wanted, capacity) = (self.reserved.min(self.limit), self.slots.capacity());
        if wanted > capacity {
            let wanted = wanted.max(2 * capacity).min(self.limit);
            self.slots.reserve_exact(wanted - self.slots.len());
        }
    }

    /// Cancels the reservation of a connection that ends.
    pub(super) fn release(&mut self, count: usize) {
        self.reserved -= count;
    }

    /// Checks that `taken` slots are in queues, and that all other slots are in the chain of free slots.
    pub(super) fn check(&self, taken: usize) -> Check {
        let mut free = 0;
        for id in std::iter::successors(self.free, |&id| self.slots[id as usize].next) {
            ensure!(
                self.slots[id as usize].value.is_none(),
                "slot {id} is taken and in the chain of free ones"
            );
            free += 1;
            ensure!(free <= self.slots.len(), "the chain of free slots has a circle");
        }
        let all = self.slots.len();
        ensure!(free + taken == all, "{free} slots free and {taken} in queues of {all}");
        ensure!(taken <= self.reserved, "{taken} wait, {} may", self.reserved);
        Ok(())
    }

    fn insert(&mut self, value: T) -> u32 {
        let slot = PoolSlot { value: Some(value), next: None };
        let Some(free) = self.free else {
            self.growths += u64::from(self.slots.len() == self.slots.capacity());
            self.slots.push(slot);
            return self.slots.len() as u32 - 1;
        };
        self.free = self.slots[free as usize].next;
        self.slots[free as usize] = slot;
        free
    }
}

impl PoolQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn push<T>(&mut self, slots: &mut SlotPool<T>, value: T) {
        let new = slots.insert(value);
        self.ends = match self.ends {
            None => Some((new, new)),
            Some((first, last)) => {
                slots.slots[last as usize].next = Some(new);
                Some((first, new))
            }
        };
        self.len += 1;
    }

    /// Removes and returns the oldest value.
    pub(super) fn take<T>(&mut self, slots: &mut SlotPool<T>) -> Option<T> {
        let (first, last) = self.ends?;
        let slot = &mut slots.slots[first as usize];
        let (value, next) = (slot.value.take(), slot.next);
        slot.next = slots.free.replace(first);
        self.ends = next.map(|next| (next, last));
        self.len -= 1;
        value
    }

    /// Keeps the oldest values, as long as `keeps` returns `true`. Removes all later values and passes them
    /// to `dropped`, oldest first.
    pub(super) fn keep_while<T>(
        &mut self,
        slots: &mut SlotPool<T>,
        mut keeps: impl FnMut(&T) -> bool,
        mut dropped: impl FnMut(T),
    ) {
        let (mut kept, mut drops) = (Self::default(), false);
        while let Some(value) = self.take(slots) {
            drops |= !keeps(&value);
            match drops {
                true => dropped(value),
                false => kept.push(slots, value),
            }
        }
        *self = kept;
    }

    pub(super) fn front<'a, T>(&self, slots: &'a SlotPool<T>) -> Option<&'a T> {
        slots.slots[self.ends?.0 as usize].value.as_ref()
    }

    pub(super) fn front_mut<'a, T>(&self, slots: &'a mut SlotPool<T>) -> Option<&'a mut T> {
        slots.slots[self.ends?.0 as usize].value.as_mut()
    }

    /// Returns all values, oldest first.
    pub(super) fn iter<'a, T>(&self, slots: &'a SlotPool<T>) -> impl Iterator<Item = &'a T> {
        let first = self.ends.map(|(first, _)| first);
        std::iter::successors(first, |&slot| slots.slots[slot as usize].next)
            .filter_map(|slot| slots.slots[slot as usize].value.as_ref())
    }

    /// Checks that the slots of the queue are chained and counted correctly. Returns their number.
    pub(super) fn check<T>(&self, slots: &SlotPool<T>) -> Check<usize> {
        let (mut at, mut last, mut count) = (self.ends.map(|(first, _)| first), None, 0);
        while let Some(id) = at {
            let slot = slots.slots.get(id as usize).ok_or_else(|| format!("there is no slot {id}"))?;
            ensure!(slot.value.is_some(), "slot {id} is free and in a queue");
            (at, last) = (slot.next, Some(id));
            count += 1;
            ensure!(count <= self.len(), "a queue of {} has more, or a circle", self.len());
        }
        ensure!(count == self.len(), "{} counted in a queue of {count}", self.len());
        let end = self.ends.map(|(_, last)| last);
        ensure!(end == last, "the queue ends at {last:?} and names {end:?}");
        Ok(count)
    }

    pub(super) fn clear<T>(&mut self, slots: &mut SlotPool<T>) {
        while self.take(slots).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_comes_with_connections_up_to_the_bound() {
        let mut slots = SlotPool::new(300);
        assert_eq!(slots.slots.capacity(), 0);
        slots.reserve(128);
        assert_eq!(slots.slots.capacity(), 128);
        slots.reserve(128);
        slots.reserve(128);
        assert_eq!(slots.slots.capacity(), 300);
        let mut queue = PoolQueue::default();
        for value in 0..300 {
            queue.push(&mut slots, value);
        }
        assert_eq!(slots.growths, 0);
        queue.push(&mut slots, 300);
        assert_eq!((slots.growths, queue.len()), (1, 301), "reserved is reserved");
        slots.release(384);
        assert_eq!(slots.reserved, 0);
    }

    #[test]
    fn what_was_taken_makes_room() {
        let mut slots = SlotPool::new(2);
        slots.reserve(2);
        let (mut a, mut b) = (PoolQueue::default(), PoolQueue::default());
        for value in 0..100 {
            a.push(&mut slots, value);
            b.push(&mut slots, value);
            assert_eq!((a.take(&mut slots), b.take(&mut slots)), (Some(value), Some(value)));
        }
        assert_eq!((slots.growths, slots.slots.len()), (0, 2));
    }

    proptest! {
        /// Queues in one set of slots behave like separate queues.
        #[test]
        fn queues_keep_their_order(steps in prop::collection::vec((0..3_usize, 0..5_u8, any::<u16>()), 0..200)) {
            let mut slots = SlotPool::new(8);
            let mut queues: [PoolQueue; 3] = Default::default();
            let mut models: [VecDeque<u16>; 3] = Default::default();
            for (at, what, value) in steps {
                let (queue, model) = (&mut queues[at], &mut models[at]);
                match what {
                    0..=2 => {
                        queue.push(&mut slots, value);
                        model.push_back(value);
                    }
                    3 => prop_assert_eq!(queue.take(&mut slots), model.pop_front()),
                    _ if value % 8 == 0 => {
                        queue.clear(&mut slots);
                        model.clear();
                    }
                    _ => {
                        if let Some(front) = queue.front_mut(&mut slots) {
                            *front ^= 1;
                        }
                        if let Some(front) = model.front_mut() {
                            *front ^= 1;
                        }
                    }
                }
                for (queue, model) in queues.iter().zip(&models) {
                    prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
                    prop_assert_eq!(queue.front(&slots), model.front());
                    prop_assert!(queue.iter(&slots).eq(model.iter()));
                }
            }
        }
    }

    fn three() -> (SlotPool<u32>, PoolQueue) {
        let (mut slots, mut queue) = (SlotPool::new(8), PoolQueue::default());
        slots.reserve(8);
        (0..5).for_each(|value| queue.push(&mut slots, value));
        queue.take(&mut slots);
        queue.take(&mut slots);
        (slots, queue)
    }

    #[test]
    fn a_queue_that_is_torn_and_slots_that_leak_are_found() {
        let (slots, queue) = three();
        assert_eq!(queue.check(&slots), Ok(3));
        slots.check(3).unwrap();
        type Tear = fn(&mut SlotPool<u32>, &mut PoolQueue);
        let torn: [Tear; 6] = [
            |slots, _| slots.slots[3].next = None,
            |slots, _| slots.slots[4].next = Some(2),
            |slots, _| slots.slots[4].next = Some(99),
            |slots, _| slots.slots[3].value = None,
            |_, queue| queue.len = 2,
            |_, queue| queue.ends = Some((2, 3)),
        ];
        for (number, tear) in torn.into_iter().enumerate() {
            let (mut slots, mut queue) = three();
            tear(&mut slots, &mut queue);
            assert!(queue.check(&slots).is_err(), "{number}");
        }
        let leaks: [Tear; 4] = [
            |slots, _| slots.free = None,
            |slots, _| slots.free = Some(3),
            |slots, _| slots.slots[0].next = Some(1),
            |slots, _| slots.reserved = 2,
        ];
        for (number, leak) in leaks.into_iter().enumerate() {
            let (mut slots, mut queue) = three();
            leak(&mut slots, &mut queue);
            assert!(slots.check(3).is_err(), "{number}");
        }
    }
}
