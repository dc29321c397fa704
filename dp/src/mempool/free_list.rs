//! What is free in a pool: a stack shared by threads, with a small cache for each thread in front of it.
//!
//! Last in, first out, so that a pool far larger than what is in use at a time stays within the processor's
//! cache: a queue would walk through all of its memory. Threads meet at the shared stack once for a batch
//! only. No call allocates; a thread can be made to wait for another one that is moving a batch.

#[cfg(test)]
mod tests;

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Caches of one list. With more threads than this some share one, or go past it while it is in use.
const CACHES: usize = 8;

/// Items a cache holds at most; less in small pools, where caches must not hide what others need.
const CACHE_MAX: usize = 128;

/// Free items of a pool.
pub(super) struct FreeList<T> {
    depot: Stack<T>,
    caches: [Cache<T>; CACHES],
    cache_max: usize,
}

impl<T> FreeList<T> {
    /// Room for `capacity` items, none there yet.
    pub(super) fn new(capacity: usize) -> Self {
        // All caches together hold a quarter at most.
        let cache_max = (capacity / (4 * CACHES)).min(CACHE_MAX);
        Self {
            depot: Stack::new(capacity),
            caches: std::array::from_fn(|_| Cache::new(cache_max)),
            cache_max,
        }
    }

    /// Items in the list (approximate while other threads use it).
    pub(super) fn len(&self) -> usize {
        self.caches.iter().map(Cache::len).sum::<usize>() + self.depot.len()
    }

    /// An item, or `None` when there is none anywhere. What is in a cache that another thread uses just now
    /// may be overlooked.
    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        let found = self.own_cache().and_then(|mut cache| cache.items().pop());
        if found.is_some() { found } else { self.pop_elsewhere() }
    }

    #[cold]
    fn pop_elsewhere(&self) -> Option<T> {
        if let Some(mut cache) = self.own_cache() {
            self.refill(cache.items());
            if let Some(item) = cache.items().pop() {
                return Some(item);
            }
        }
        let found = self.depot.lock().items.pop();
        found.or_else(|| self.caches.iter().find_map(|cache| cache.try_take()?.items().pop()))
    }

    /// Puts an item back.
    #[inline]
    pub(super) fn push(&self, item: T) {
        let Some(mut cache) = self.own_cache() else {
            return self.depot.lock().items.push(item);
        };
        let items = cache.items();
        if items.len() >= self.cache_max {
            self.spill(items);
        }
        items.push(item);
    }

    /// Brings a batch from the depot.
    fn refill(&self, items: &mut Vec<T>) {
        let mut depot = self.depot.lock();
        let rest = depot.items.len().saturating_sub(self.batch());
        items.extend(depot.items.drain(rest..));
    }

    /// Takes the batch that has lain longest to the depot.
    #[cold]
    fn spill(&self, items: &mut Vec<T>) {
        let batch = self.batch();
        self.depot.lock().items.extend(items.drain(..batch));
    }

    fn batch(&self) -> usize {
        self.cache_max.div_ceil(2)
    }

    /// The calling thread's cache, unless it is in use by a thread that shares it, or there are none.
    fn own_cache(&self) -> Option<Taken<'_, T>> {
        if self.cache_max == 0 { None } else { self.caches[thread_number() % CACHES].try_take() }
    }
}

/// A stack that is taken for a moment, and never waited for: by one locked instruction, and let go by a plain
/// store, where a mutex takes two of the former.
#[repr(align(128))]
struct Cache<T> {
    is_taken: AtomicBool,
    items: UnsafeCell<Vec<T>>,
    /// Length of `items` when it was last let go.
    len: AtomicUsize,
}

// SAFETY: `items` is reached by `Taken` alone, of which there is one at a time: it is made by whoever turns
// `is_taken` from false to true, and turns it back when it goes. The Acquire of the one and the Release of
// the other order what two of them do, on whatever threads; the items themselves may move between these.
unsafe impl<T: Send> Sync for Cache<T> {}

impl<T> Cache<T> {
    fn new(capacity: usize) -> Self {
        let items = UnsafeCell::new(Vec::with_capacity(capacity));
        Self { is_taken: AtomicBool::new(false), items, len: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn try_take(&self) -> Option<Taken<'_, T>> {
        (!self.is_taken.swap(true, Ordering::Acquire)).then(|| Taken { cache: self })
    }
}

/// A cache in use; lets it go, and tells its length.
struct Taken<'a, T> {
    cache: &'a Cache<T>,
}

impl<T> Taken<'_, T> {
    fn items(&mut self) -> &mut Vec<T> {
        // SAFETY: this is the only `Taken` of the cache (see there), borrowed for as long as the items are.
        unsafe { &mut *self.cache.items.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let len = self.items().len();
        self.cache.len.store(len, Ordering::Relaxed);
        self.cache.is_taken.store(false, Ordering::Release);
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
