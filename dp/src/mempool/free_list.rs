//! What is free in a pool: a stack shared by threads, with a small cache for each thread in front of it.
//!
//! Last in, first out, so that a pool far larger than what is in use at a time stays within the processor's cache: a
//! queue would walk through all of its memory. Threads meet at the shared stack once for a batch only. No call
//! allocates; a thread can be made to wait for another one that is moving a batch.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Caches of one list. With more threads than this some share one, or go past it while it is in use.
const CACHES: usize = 8;

/// Items a cache holds at most; less in small pools, where caches must not hide what others need.
const CACHE_MAX: usize = 128;

/// Free items of a pool.
pub(super) struct FreeList<T> {
    depot: Stack<T>,
    caches: [Stack<T>; CACHES],
    cache_max: usize,
}

impl<T> FreeList<T> {
    /// Room for `capacity` items, none there yet.
    pub(super) fn new(capacity: usize) -> Self {
        // All caches together hold a quarter at most.
        let cache_max = (capacity / (4 * CACHES)).min(CACHE_MAX);
        Self {
            depot: Stack::new(capacity),
            caches: std::array::from_fn(|_| Stack::new(cache_max)),
            cache_max,
        }
    }

    /// Items in the list (approximate while other threads use it).
    pub(super) fn len(&self) -> usize {
        self.caches.iter().map(Stack::len).sum::<usize>() + self.depot.len()
    }

    /// An item, or `None` when there is none anywhere. While another thread moves a batch it may be overlooked.
    pub(super) fn pop(&self) -> Option<T> {
        if let Some(mut cache) = self.own_cache() {
            if cache.items.is_empty() {
                self.refill(&mut cache);
            }
            if let Some(item) = cache.items.pop() {
                return Some(item);
            }
        }
        // The own cache is let go by now: nobody holds one cache and waits for another.
        let found = self.depot.lock().items.pop();
        found.or_else(|| self.caches.iter().find_map(|cache| cache.lock().items.pop()))
    }

    /// Puts an item back.
    pub(super) fn push(&self, item: T) {
        let Some(mut cache) = self.own_cache() else {
            return self.depot.lock().items.push(item);
        };
        if cache.items.len() >= self.cache_max {
            self.spill(&mut cache);
        }
        cache.items.push(item);
    }

    /// Brings a batch from the depot.
    fn refill(&self, cache: &mut Locked<'_, T>) {
        let mut depot = self.depot.lock();
        let rest = depot.items.len().saturating_sub(self.batch());
        cache.items.extend(depot.items.drain(rest..));
    }

    /// Takes the batch that has lain longest to the depot.
    fn spill(&self, cache: &mut Locked<'_, T>) {
        let batch = self.batch();
        self.depot.lock().items.extend(cache.items.drain(..batch));
    }

    fn batch(&self) -> usize {
        self.cache_max.div_ceil(2)
    }

    /// The calling thread's cache, unless it is in use by a thread that shares it, or there are none.
    fn own_cache(&self) -> Option<Locked<'_, T>> {
        if self.cache_max == 0 { None } else { self.caches[thread_number() % CACHES].try_lock() }
    }
}

/// A locked stack, on cache lines of its own.
#[repr(align(128))]
struct Stack<T> {
    items: Mutex<Vec<T>>,
    /// Length of `items` when it was last unlocked, to be read without locking.
    len: AtomicUsize,
}

impl<T> Stack<T> {
    fn new(capacity: usize) -> Self {
        Self { items: Mutex::new(Vec::with_capacity(capacity)), len: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    // A poisoned lock is as good as any: nothing that runs under it leaves a stack in pieces.

    fn lock(&self) -> Locked<'_, T> {
        Locked { items: self.items.lock().unwrap_or_else(PoisonError::into_inner), len: &self.len }
    }

    fn try_lock(&self) -> Option<Locked<'_, T>> {
        let items = match self.items.try_lock() {
            Ok(items) => items,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { items, len: &self.len })
    }
}

/// A stack in use; tells its length when let go.
struct Locked<'a, T> {
    items: MutexGuard<'a, Vec<T>>,
    len: &'a AtomicUsize,
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.len.store(self.items.len(), Ordering::Relaxed);
    }
}

/// Threads numbered as they first come here.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            // The top bit is cleared, so that no thread looks unnumbered for good.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
        }
        number.get()
    })
}
