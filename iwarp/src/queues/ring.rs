//! A bounded queue for any number of threads that can be resized while it is used.
//!
//! A resize chains a new queue behind the old one. No item is added during the resize. From then on items are
//! added to the new queue, and consumers move to it when the old one is empty. So the order is kept, no item
//! is lost, and none moves.
//!
//! Most rings are never resized, and pay little for the possibility: a producer enters a gate (`gate.rs`) on
//! its way to the first queue, and a consumer checks whether the gate is closed. The first resize closes it.
//! From then on producers take the read side of one lock (`tail`), and consumers the read side of another
//! (`head`). A resize takes the write side of both. After a resize, the consumer that first finds the old
//! queue empty takes the write side of `head`, once. The memory of the first queue stays with the ring.

use std::sync::{Arc, OnceLock, RwLock};

use crossbeam_queue::ArrayQueue;

use super::gate::Gate;

/// Keeps the fields that one side writes out of the cache lines of the other. 128 bytes are two cache lines,
/// since x86 prefetches them in pairs.
#[repr(align(128))]
struct Line<T>(T);

/// See the module.
pub(crate) struct Ring<T> {
    first: Arc<Link<T>>,
    /// Producers enter `first` through it without the lock. The first resize closes it.
    gate: Line<Gate>,
    /// The queue that items are added to.
    tail: Line<RwLock<Arc<Link<T>>>>,
    /// The queue that items are taken from: `tail`, or the one before it.
    head: Line<RwLock<Arc<Link<T>>>>,
}

/// One queue of the chain.
struct Link<T> {
    items: ArrayQueue<T>,
    /// Set by a resize: no item is added to this queue any more.
    next: OnceLock<Arc<Link<T>>>,
}

/// Why a ring was not resized. The ring is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeError {
    /// It holds this many items.
    TooSmall(usize),
    /// Items from before the last resize still wait.
    Busy,
}

impl<T> Ring<T> {
    /// # Panics
    /// For a capacity of 0.
    pub(crate) fn new(capacity: usize) -> Self {
        let first = Link::new(capacity);
        Self {
            gate: Line(Gate::new()),
            tail: Line(RwLock::new(Arc::clone(&first))),
            head: Line(RwLock::new(Arc::clone(&first))),
            first,
        }
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The item, if the ring is full.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        match self.gate.0.pass(item, |item| self.first.items.push(item)) {
            Ok(entered) => entered,
            Err(item) => self.tail.0.read().expect("no holder of this lock panics").items.push(item),
        }
    }

    /// Takes the oldest item.
    pub(crate) fn pop(&self) -> Option<T> {
        if !self.gate.0.is_closed() {
            return self.first.pop();
        }
        let mut taken = None;
        self.take(1, |item| taken = Some(item));
        taken
    }

    /// Takes up to `limit` items, oldest first, and returns their number.
    pub(crate) fn take(&self, limit: usize, mut each: impl FnMut(T)) -> usize {
        let mut count = 0;
        if !self.gate.0.is_closed() {
            while count < limit
                && let Some(item) = self.first.pop()
            {
                each(item);
                count += 1;
            }
            return count;
        }
        loop {
            let head = self.head.0.read().expect("no holder of this lock panics");
            while count < limit
                && let Some(item) = head.items.pop()
            {
                each(item);
                count += 1;
            }
            if count == limit {
                return count;
            }
            let Some(next) = head.next.get() else { return count };
            // A queue with a follower gets no more items, so once it is empty it stays empty.
            if head.items.is_empty() {
                let next = Arc::clone(next);
                drop(head);
                self.advance(next);
            }
        }
    }

    /// Moves on from the empty queue in front of `next`, unless another consumer did so.
    fn advance(&self, next: Arc<Link<T>>) {
        let mut head = self.head.0.write().expect("no holder of this lock panics");
        if head.next.get().is_some_and(|follower| Arc::ptr_eq(follower, &next)) {
            *head = next;
        }
    }

    /// The number of items that it can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.tail.0.read().expect("no holder of this lock panics").items.capacity()
    }

    /// The number of items at this moment.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.0.read().expect("no holder of this lock panics");
        head.items.len() + head.next.get().map_or(0, |next| next.items.len())
    }

    /// Changes the capacity; keeps every item and the order. Until the items from before are taken, the ring
    /// may hold a few more than `capacity`.
    ///
    /// # Errors
    /// [`ResizeError`].
    ///
    /// # Panics
    /// For a capacity of 0.
    pub(crate) fn resize(&self, capacity: usize) -> Result<(), ResizeError> {
        let new = Link::new(capacity);
        let mut tail = self.tail.0.write().expect("no holder of this lock panics");
        self.gate.0.close(std::thread::yield_now);
        let mut head = self.head.0.write().expect("no holder of this lock panics");
        if !Arc::ptr_eq(&tail, &head) {
            if !head.items.is_empty() {
                return Err(ResizeError::Busy);
            }
            *head = Arc::clone(&tail);
        }
        drop(head);
        let waiting = tail.items.len();
        if waiting > capacity {
            return Err(ResizeError::TooSmall(waiting));
        }
        let first = tail.next.set(Arc::clone(&new)).is_ok();
        debug_assert!(first, "a link that items are entered into has no follower");
        *tail = new;
        Ok(())
    }
}

impl<T> Link<T> {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { items: ArrayQueue::new(capacity), next: OnceLock::new() })
    }

    /// Takes the oldest item. `is_empty` costs less than a `pop` that finds nothing, and most polls find
    /// nothing.
    fn pop(&self) -> Option<T> {
        if self.items.is_empty() { None } else { self.items.pop() }
    }
}

#[cfg(test)]
mod tests;
