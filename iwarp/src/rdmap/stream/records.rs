//! Queues of the Reads and atomics that wait for their responses, ours and the peers', of all connections of
//! an engine. All queues use slots of one set, so an idle connection holds none.
//!
//! A connection reserves slots for its depths (ORD and IRD) when it begins. Memory for the reserved slots is
//! allocated then, up to a limit. Past the limit it grows with the requests that really wait, and each growth
//! is counted.

use dp::invariant::{Check, ensure};

use super::outstanding::Outstanding;
use super::peer_request::PeerRequest;
use crate::queues::SendEntry;

/// Slots for outstanding requests to each slot for a held-back one. A connection holds back at most one
/// request, whatever its depth. A larger number saves memory; a smaller one avoids growth with many
/// connections of small depth.
const HELD_BACK_SHARE: usize = 16;

/// The waiting requests of all connections of an engine.
pub(crate) struct Records {
    /// Requests of the peers.
    pub(super) asked: RecordSlots<PeerRequest>,
    /// Our requests.
    pub(super) outstanding: RecordSlots<Outstanding>,
    /// Requests taken from a send queue that may not start yet: at most one for each connection.
    pub(super) held_back: RecordSlots<SendEntry>,
}

impl Records {
    /// Reserves memory for at most `limit` requests in each direction, as connections begin.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            asked: RecordSlots::new(limit),
            outstanding: RecordSlots::new(limit),
            held_back: RecordSlots::new(limit.div_ceil(HELD_BACK_SHARE)),
        }
    }

    /// How often the slots had to grow because more requests waited than memory was reserved for.
    pub(crate) fn growths(&self) -> u64 {
        self.asked.growths + self.outstanding.growths + self.held_back.growths
    }

    /// Whether the queues of all streams hold what is taken; for tests.
    pub(crate) fn check(&self, streams: Waiting) -> Check {
        self.asked.check(streams.asked).map_err(|what| format!("requests of peers: {what}"))?;
        self.outstanding.check(streams.outstanding).map_err(|what| format!("our requests: {what}"))?;
        self.held_back.check(streams.held_back).map_err(|what| format!("requests held back: {what}"))
    }
}

/// How many requests wait: of a stream, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) asked: usize,
    pub(crate) outstanding: usize,
    pub(crate) held_back: usize,
}

/// Slots shared by many queues.
pub(super) struct RecordSlots<T> {
    slots: Vec<RecordSlot<T>>,
    /// The first free slot.
    free: Option<u32>,
    /// How many requests all connections together may have waiting.
    promised: usize,
    limit: usize,
    growths: u64,
}

struct RecordSlot<T> {
    /// `None`: the slot is free.
    value: Option<T>,
    /// The next slot of its queue, or the next free slot.
    next: Option<u32>,
}

/// One queue. It has to be emptied before it is dropped, or its slots stay in use.
#[derive(Debug, Default)]
pub(super) struct RecordQueue {
    /// First and last slot.
    ends: Option<(u32, u32)>,
    len: u32,
}

impl<T> RecordSlots<T> {
    fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: None, promised: 0, limit, growths: 0 }
    }

    /// Reserves `count` slots for a connection that begins. Allocates memory for them, up to the limit.
    pub(super) fn promise(&mut self, count: usize) {
        self.promised += count;
        let (wanted, capacity) = (self.promised.min(self.limit), self.slots.capacity());
        if wanted > capacity {
            let wanted = wanted.max(2 * capacity).min(self.limit);
            self.slots.reserve_exact(wanted - self.slots.len());
        }
    }

    /// Takes back the reservation of a connection that ends.
    pub(super) fn end_promise(&mut self, count: usize) {
        self.promised -= count;
    }

    /// Whether `taken` slots are in queues and all others in the chain of free ones.
    fn check(&self, taken: usize) -> Check {
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
        ensure!(taken <= self.promised, "{taken} wait, {} may", self.promised);
        Ok(())
    }

    fn insert(&mut self, value: T) -> u32 {
        let slot = RecordSlot { value: Some(value), next: None };
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

impl RecordQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn push<T>(&mut self, slots: &mut RecordSlots<T>, value: T) {
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

    /// Takes the oldest.
    pub(super) fn take<T>(&mut self, slots: &mut RecordSlots<T>) -> Option<T> {
        let (first, last) = self.ends?;
        let slot = &mut slots.slots[first as usize];
        let (value, next) = (slot.value.take(), slot.next);
        slot.next = slots.free.replace(first);
        self.ends = next.map(|next| (next, last));
        self.len -= 1;
        value
    }

    pub(super) fn front<'a, T>(&self, slots: &'a RecordSlots<T>) -> Option<&'a T> {
        slots.slots[self.ends?.0 as usize].value.as_ref()
    }

    pub(super) fn front_mut<'a, T>(&self, slots: &'a mut RecordSlots<T>) -> Option<&'a mut T> {
        slots.slots[self.ends?.0 as usize].value.as_mut()
    }

    /// All values, oldest first.
    pub(super) fn iter<'a, T>(&self, slots: &'a RecordSlots<T>) -> impl Iterator<Item = &'a T> {
        let first = self.ends.map(|(first, _)| first);
        std::iter::successors(first, |&slot| slots.slots[slot as usize].next)
            .filter_map(|slot| slots.slots[slot as usize].value.as_ref())
    }

    /// Whether its slots are chained and counted right. Returns how many there are.
    pub(super) fn check<T>(&self, slots: &RecordSlots<T>) -> Check<usize> {
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

    pub(super) fn clear<T>(&mut self, slots: &mut RecordSlots<T>) {
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
        let mut slots = RecordSlots::new(300);
        assert_eq!(slots.slots.capacity(), 0);
        slots.promise(128);
        assert_eq!(slots.slots.capacity(), 128);
        slots.promise(128);
        slots.promise(128);
        assert_eq!(slots.slots.capacity(), 300);
        let mut queue = RecordQueue::default();
        for value in 0..300 {
            queue.push(&mut slots, value);
        }
        assert_eq!(slots.growths, 0);
        queue.push(&mut slots, 300);
        assert_eq!((slots.growths, queue.len()), (1, 301), "promised is promised");
        slots.end_promise(384);
        assert_eq!(slots.promised, 0);
    }

    #[test]
    fn what_was_taken_makes_room() {
        let mut slots = RecordSlots::new(2);
        slots.promise(2);
        let (mut a, mut b) = (RecordQueue::default(), RecordQueue::default());
        for value in 0..100 {
            a.push(&mut slots, value);
            b.push(&mut slots, value);
            assert_eq!((a.take(&mut slots), b.take(&mut slots)), (Some(value), Some(value)));
        }
        assert_eq!((slots.growths, slots.slots.len()), (0, 2));
    }

    proptest! {
        /// Queues in one set of slots are as queues of their own.
        #[test]
        fn queues_keep_their_order(steps in prop::collection::vec((0..3_usize, 0..5_u8, any::<u16>()), 0..200)) {
            let mut slots = RecordSlots::new(8);
            let mut queues: [RecordQueue; 3] = Default::default();
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

    fn three() -> (RecordSlots<u32>, RecordQueue) {
        let (mut slots, mut queue) = (RecordSlots::new(8), RecordQueue::default());
        slots.promise(8);
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
        type Tear = fn(&mut RecordSlots<u32>, &mut RecordQueue);
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
            |slots, _| slots.promised = 2,
        ];
        for (number, leak) in leaks.into_iter().enumerate() {
            let (mut slots, mut queue) = three();
            leak(&mut slots, &mut queue);
            assert!(slots.check(3).is_err(), "{number}");
        }
    }
}
