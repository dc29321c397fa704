//! The entries of a completion queue: a ring with a lock at each end.
//!
//! Engines add completions and users take them, from any thread. The two ends have locks of their own, so
//! that the two sides do not wait for each other. A poll that finds nothing takes no lock.
//!
//! The end where completions are taken knows the work queues that complete here by an index, which is in each
//! completion. So the entry of a request becomes free without a reference count in each completion.

use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use slab::Slab;

use super::WorkCompletion;
use super::lock::{Lock, LockGuard};
use super::wqe::{Counter, WqeCount};

/// Keeps the fields that one side writes out of the cache lines of the other. 128 bytes are two cache lines,
/// since x86 prefetches them in pairs.
#[repr(align(128))]
struct Line<T>(T);

/// The entries of a completion queue, with a lock for each end.
pub(super) struct Completions {
    tail: Line<Tail>,
    head: Line<Head>,
}

/// The end where completions are added.
struct Tail {
    entries: Lock<Producer<Entry>>,
    added: Counter,
}

/// The end where completions are taken.
struct Head {
    reader: Lock<Reader>,
    taken: Counter,
}

struct Reader {
    entries: Consumer<Entry>,
    /// The work queues that complete here.
    places: Slab<Place>,
}

/// A completion, and the index of the work queue of its request.
struct Entry {
    completion: WorkCompletion,
    place: u32,
}

/// The result of adding completions.
pub(super) enum Added {
    /// All completions but this many, for which the queue had no room.
    Except(usize),
    /// No completion of this many, because the work queue no longer generates completions.
    Silent(usize),
}

/// A work queue that completes here.
struct Place {
    wqes: Arc<WqeCount>,
    /// The queue pair was destroyed. The place is free once the last completion is polled.
    left: bool,
}

impl Completions {
    /// # Panics
    /// For a capacity of 0.
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a completion queue has entries");
        let (producer, consumer) = RingBuffer::new(capacity);
        Self {
            tail: Line(Tail { entries: Lock::new(producer), added: Counter::default() }),
            head: Line(Head {
                reader: Lock::new(Reader { entries: consumer, places: Slab::new() }),
                taken: Counter::default(),
            }),
        }
    }

    /// Adds a work queue. Returns the index for its completions.
    pub(super) fn enter(&self, wqes: Arc<WqeCount>) -> u32 {
        let places = &mut self.reader().places;
        if places.len() == places.capacity() {
            // Growing by an eighth, because doubling would leave half of the places empty.
            places.reserve_exact((places.len() / 8).max(8));
        }
        places.insert(Place { wqes, left: false }) as u32
    }

    /// The queue pair of a work queue was destroyed.
    pub(super) fn leave(&self, place: u32) {
        let places = &mut self.reader().places;
        let wqes = &places[place as usize].wqes;
        if wqes.used() == 0 || wqes.is_silent() {
            places.remove(place as usize);
        } else {
            places[place as usize].left = true;
        }
    }

    /// Adds completions of the work queue with index `place`, whose entries `wqes` counts.
    #[inline(always)]
    pub(super) fn push(
        &self,
        completions: impl ExactSizeIterator<Item = WorkCompletion>,
        place: u32,
        wqes: &WqeCount,
    ) -> Added {
        let Tail { entries, added } = &self.tail.0;
        let mut entries = entries.lock();
        let count = completions.len();
        if wqes.is_silent() {
            return Added::Silent(count);
        }
        let mut lost = 0;
        for completion in completions {
            if entries.push(Entry { completion, place }).is_err() {
                lost += 1;
            }
        }
        added.add((count - lost) as u64);
        Added::Except(lost)
    }

    /// Takes up to `limit` completions, oldest first, and returns their number. A caller that often finds
    /// the queue empty asks [`is_empty`](Self::is_empty) first, which takes no lock.
    #[inline(always)]
    pub(super) fn take(&self, limit: usize, mut each: impl FnMut(WorkCompletion)) -> usize {
        let Reader { entries, places } = &mut *self.reader();
        // At most the counted completions are taken, so that no completion is taken before it is counted.
        let limit = limit.min(self.len());
        let mut count = 0;
        while count < limit
            && let Ok(Entry { completion, place }) = entries.pop()
        {
            let Place { wqes, left } = &places[place as usize];
            wqes.poll();
            if *left && wqes.used() == 0 {
                places.remove(place as usize);
            }
            each(completion);
            count += 1;
        }
        self.head.0.taken.add(count as u64);
        count
    }

    /// Removes the completions of the work queue with index `place`, which makes none any more. The other
    /// completions keep their order.
    pub(super) fn silence(&self, place: u32) {
        let Reader { entries, places } = &mut *self.reader();
        let mut producer = self.producer();
        let wqes = &places[place as usize].wqes;
        wqes.silence();
        let mut removed = 0;
        for _ in 0..entries.slots() {
            let Ok(entry) = entries.pop() else { break };
            if entry.place == place {
                wqes.poll();
                removed += 1;
            } else {
                let fits = producer.push(entry).is_ok();
                debug_assert!(fits, "its place is free");
            }
        }
        self.head.0.taken.add(removed);
    }

    /// The number of completions that it can hold.
    pub(super) fn capacity(&self) -> usize {
        self.producer().buffer().capacity()
    }

    /// The number of completions at this moment.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // `taken` is read first: otherwise a completion could be counted as taken but not as added.
        let taken = self.head.0.taken.get();
        (self.tail.0.added.get() - taken) as usize
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the capacity; keeps every completion and the order.
    ///
    /// # Errors
    /// The number of completions in the queue, if that is more. Then the queue is unchanged.
    ///
    /// # Panics
    /// For a capacity of 0.
    pub(super) fn resize(&self, capacity: usize) -> Result<(), usize> {
        assert!(capacity > 0, "a completion queue has entries");
        let (mut new_producer, new_consumer) = RingBuffer::new(capacity);
        let mut reader = self.reader();
        let mut producer = self.producer();
        let waiting = reader.entries.slots();
        if waiting > capacity {
            return Err(waiting);
        }
        while let Ok(entry) = reader.entries.pop() {
            let fits = new_producer.push(entry).is_ok();
            debug_assert!(fits, "{waiting} completions fit {capacity} entries");
        }
        reader.entries = new_consumer;
        *producer = new_producer;
        Ok(())
    }

    fn producer(&self) -> LockGuard<'_, Producer<Entry>> {
        self.tail.0.entries.lock()
    }

    fn reader(&self) -> LockGuard<'_, Reader> {
        self.head.0.reader.lock()
    }
}

#[cfg(test)]
mod tests;
