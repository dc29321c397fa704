//! The entries of a completion queue: a ring with one lock for adding and one lock for removing entries.
//!
//! Any thread may add or remove completions. The tail and the head of the ring have separate locks, so that
//! threads that add completions (usually engines) and threads that poll do not wait for each other. (Resizing
//! the queue and removing the completions of a work queue take both locks.) A poll of an empty queue takes no
//! lock.
//!
//! The head has a table of the work queues that complete to this completion queue. Each completion contains
//! the index of its work queue in this table. So the entry of a request can be freed without a reference
//! count in each completion.

use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use slab::Slab;

use super::WorkCompletion;
use super::lock::{Lock, LockGuard};
use super::wqe::{Counter, WqeCount};

/// Puts the fields of tail and head into separate cache lines (no false sharing). So a thread that adds
/// completions does not write to the cache lines of a thread that removes completions. The alignment of 128
/// bytes is two cache lines, since x86 prefetches cache lines in pairs.
#[repr(align(128))]
struct Line<T>(T);

pub(super) struct Completions {
    tail: Line<Tail>,
    head: Line<Head>,
}

/// The tail, where completions are added.
struct Tail {
    entries: Lock<Producer<Entry>>,
    added: Counter,
}

/// The head, where completions are removed.
struct Head {
    reader: Lock<Reader>,
    taken: Counter,
}

struct Reader {
    entries: Consumer<Entry>,
    /// The work queues that complete to this completion queue.
    places: Slab<Place>,
}

/// A completion, and the index of the work queue of its request.
struct Entry {
    completion: WorkCompletion,
    place: u32,
}

/// The result of adding completions.
pub(super) enum Added {
    /// The completions were added, except for `lost` completions for which the queue had no room. `first` is
    /// the number of completions that were added before these.
    Except { lost: usize, first: u64 },
    /// No completion was added, because the work queue no longer generates completions. This is the number of
    /// completions that were dropped.
    Silent(usize),
}

/// A work queue that completes to this completion queue.
struct Place {
    wqes: Arc<WqeCount>,
    /// Whether the queue pair was destroyed. If so, the place becomes free when the last completion is
    /// polled.
    left: bool,
}

impl Completions {
    /// # Panics
    /// Panics if the capacity is 0.
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

    /// Adds a work queue. Returns the index that the work queue's completions must contain.
    pub(super) fn enter(&self, wqes: Arc<WqeCount>) -> u32 {
        let places = &mut self.reader().places;
        if places.len() == places.capacity() {
            // The memory grows by an eighth, since doubling could leave up to half of the places unused.
            places.reserve_exact((places.len() / 8).max(8));
        }
        places.insert(Place { wqes, left: false }) as u32
    }

    /// Removes a work queue whose queue pair was destroyed, at once or after its last completion is polled.
    pub(super) fn leave(&self, place: u32) {
        let places = &mut self.reader().places;
        let wqes = &places[place as usize].wqes;
        if wqes.used() == 0 || wqes.is_silent() {
            places.remove(place as usize);
        } else {
            places[place as usize].left = true;
        }
    }

    /// Adds completions of the work queue with index `place`. `wqes` counts the entries of this work queue.
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
        let first = added.get();
        added.add((count - lost) as u64);
        Added::Except { lost, first }
    }

    /// Removes up to `limit` completions, oldest first, and passes them to `each`. Returns their number. A
    /// caller that often finds the queue empty should call [`is_empty`](Self::is_empty) first, which takes no
    /// lock.
    #[inline(always)]
    pub(super) fn take(&self, limit: usize, mut each: impl FnMut(&WorkCompletion)) -> usize {
        let Reader { entries, places } = &mut *self.reader();
        // The limit is at most the number of counted completions, so that no completion is removed before it
        // is counted.
        let limit = limit.min(self.len());
        let mut count = 0;
        while count < limit
            && let Ok(entry) = entries.peek()
        {
            each(&entry.completion);
            let at = entry.place as usize;
            // The place in the ring becomes free before the entry of the work queue, so that the ring has
            // room for the completion of the next request.
            let _taken = entries.pop();
            let Place { wqes, left } = &places[at];
            wqes.poll();
            if *left && wqes.used() == 0 {
                places.remove(at);
            }
            count += 1;
        }
        self.head.0.taken.add(count as u64);
        count
    }

    /// Removes the completions of the work queue with index `place`, and prevents further completions of this
    /// work queue. The other completions keep their order.
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

    /// The maximum number of completions that the queue can hold.
    pub(super) fn capacity(&self) -> usize {
        self.producer().buffer().capacity()
    }

    /// The number of completions that are in the queue now.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // `taken` is read first. Otherwise a completion could be counted as removed but not as added.
        let taken = self.head.0.taken.get();
        (self.tail.0.added.get() - taken) as usize
    }

    /// The number of completions that were added since the queue was made.
    pub(super) fn added(&self) -> u64 {
        self.tail.0.added.get()
    }

    /// The number of completions that were removed since the queue was made.
    pub(super) fn taken(&self) -> u64 {
        self.head.0.taken.get()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the capacity. Keeps all completions and their order.
    ///
    /// # Errors
    /// The number of completions in the queue, if it exceeds `capacity`. After this error the queue is
    /// unchanged.
    ///
    /// # Panics
    /// Panics if the capacity is 0.
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
