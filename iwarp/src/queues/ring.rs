//! A bounded queue for any number of threads that can be resized while it is used.
//!
//! A resize chains a new queue behind the old one. While it does, nothing is being entered; from then on
//! everything goes to the new queue, and consumers go there when the old one is empty. So order is kept,
//! nothing is lost, and nothing moves.
//!
//! Most rings are never resized, and pay little for it: a producer passes a gate (`gate.rs`) on its way to
//! the first queue, a consumer looks whether it is closed. The first resize closes it. From then on both
//! sides take the read side of a lock of their own; resizes take the write sides, and so does, once behind
//! each, the consumer who first finds the old queue empty. The first queue's memory stays with the ring.

use std::sync::{Arc, OnceLock, RwLock};

use crossbeam_queue::ArrayQueue;

use super::gate::Gate;

/// Keeps what one side writes out of the cache lines of the other.
#[repr(align(128))]
struct Line<T>(T);

pub(crate) struct Ring<T> {
    first: Arc<Link<T>>,
    /// What producers pass on their way to `first` without the lock; closed by the first resize.
    gate: Line<Gate>,
    /// Where items are entered.
    tail: Line<RwLock<Arc<Link<T>>>>,
    /// Where they are taken: `tail`'s, or the one before it.
    head: Line<RwLock<Arc<Link<T>>>>,
}

struct Link<T> {
    items: ArrayQueue<T>,
    /// Set by a resize: nothing more is entered here.
    next: OnceLock<Arc<Link<T>>>,
}

/// Why a ring was not resized; it is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeError {
    /// It holds this many items.
    TooSmall(usize),
    /// Items from before the last resize wait.
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

    /// Enters an item.
    ///
    /// # Errors
    /// The item, where there is no room.
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

    /// Takes up to `limit` items, oldest first; returns how many there were.
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
            // With a follower nothing is entered any more: empty now is empty for good.
            if head.items.is_empty() {
                let next = Arc::clone(next);
                drop(head);
                self.advance(next);
            }
        }
    }

    /// Leaves the exhausted queue in front of `next`, unless another consumer has.
    fn advance(&self, next: Arc<Link<T>>) {
        let mut head = self.head.0.write().expect("no holder of this lock panics");
        if head.next.get().is_some_and(|follower| Arc::ptr_eq(follower, &next)) {
            *head = next;
        }
    }

    /// Items that may wait.
    pub(crate) fn capacity(&self) -> usize {
        self.tail.0.read().expect("no holder of this lock panics").items.capacity()
    }

    /// Items that wait; momentary.
    pub(crate) fn len(&self) -> usize {
        let head = self.head.0.read().expect("no holder of this lock panics");
        head.items.len() + head.next.get().map_or(0, |next| next.items.len())
    }

    /// Changes the capacity, keeping every item and the order. Until the items from before are taken, a few
    /// more than `capacity` fit.
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

    /// Takes the oldest item. Looking first costs less than taking in vain, which whoever polls does most of
    /// the time.
    fn pop(&self) -> Option<T> {
        if self.items.is_empty() { None } else { self.items.pop() }
    }
}

#[cfg(test)]
mod tests;
