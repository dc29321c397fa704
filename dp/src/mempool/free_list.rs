//! The free items of a pool: a stack shared by threads, with a small cache for each thread in front of
//! it.
//!
//! Last in, first out, so that a pool far larger than what is in use at a time stays within the
//! processor's cache: a queue would cycle through all of its memory. Threads access the shared stack
//! only once for a batch. No call allocates. A thread may have to wait for another one that is moving a
//! batch.

#[cfg(test)]
mod tests;

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of caches. With more threads than this some share a cache, or bypass it while it is in use.
const CACHES: usize = 8;

/// Most items of a cache; fewer in small pools, where caches must not hide what other threads need.
const CACHE_MAX: usize = 128;

/// Free items of a pool.
pub(super) struct FreeList<T> {
    depot: Stack<T>,
    caches: [Cache<T>; CACHES],
    cache_max: usize,
}

impl<T> FreeList<T> {
    /// An empty list with capacity for `capacity` items.
    pub(super) fn new(capacity: usize) -> Self {
        // All caches together hold at most a quarter.
        let cache_max = (capacity / (4 * CACHES)).min(CACHE_MAX);
        Self {
            depot: Stack::new(capacity),
            caches: std::array::from_fn(|_| Cache::new(cache_max)),
            cache_max,
        }
    }

    /// Number of items (approximate while other threads use the list).
    pub(super) fn len(&self) -> usize {
        self.caches.iter().map(Cache::len).sum::<usize>() + self.depot.len()
    }

    /// An item; `None` if there is none. An item in a cache that another thread is using may be
    /// overlooked.
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

    /// Moves a batch from the depot to the cache.
    fn refill(&self, items: &mut Vec<T>) {
        let mut depot = self.depot.lock();
        let rest = depot.items.len().saturating_sub(self.batch());
        items.extend(depot.items.drain(rest..));
    }

    /// Moves the oldest batch of the cache to the depot.
    #[cold]
    fn spill(&self, items: &mut Vec<T>) {
        let batch = self.batch();
        self.depot.lock().items.extend(items.drain(..batch));
    }

    fn batch(&self) -> usize {
        self.cache_max.div_ceil(2)
    }

    /// The calling thread's cache; `None` if a thread that shares it is using it, or if there are no
    /// caches.
    fn own_cache(&self) -> Option<Taken<'_, T>> {
        if self.cache_max == 0 { None } else { self.caches[thread_number() % CACHES].try_take() }
    }
}

/// A stack that is taken for a moment, and never waited for. Taking it costs one locked instruction and
/// releasing it a plain store, where a mutex needs two locked instructions.
#[repr(align(128))]
struct Cache<T> {
    is_taken: AtomicBool,
    items: UnsafeCell<Vec<T>>,
    /// Length of `items` when it was last released.
    len: AtomicUsize,
}

// SAFETY: only `Taken` accesses `items`, and there is one at a time: it is made by the thread that changes
// `is_taken` from false to true, and changes it back when dropped. The Acquire of the former and the Release
// of the latter order the accesses of two threads. The items are `Send`, so they may move between threads.
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

/// A cache in use; when dropped, releases it and publishes its length.
struct Taken<'a, T> {
    cache: &'a Cache<T>,
}

impl<T> Taken<'_, T> {
    fn items(&mut self) -> &mut Vec<T> {
        // SAFETY: `try_take` makes a `Taken` only when it changes `is_taken` from false to true, and the drop
        // of it changes it back. So this is the only one of its cache, and it is borrowed mutably for as long
        // as the reference lives.
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
    /// Length of `items` when it was last unlocked, to be read without the lock.
    len: AtomicUsize,
}

impl<T> Stack<T> {
    fn new(capacity: usize) -> Self {
        Self { items: Mutex::new(Vec::with_capacity(capacity)), len: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    // A poisoned lock can be used: no code under it leaves a stack in an inconsistent state.

    fn lock(&self) -> Locked<'_, T> {
        Locked { items: self.items.lock().unwrap_or_else(PoisonError::into_inner), len: &self.len }
    }
}

/// A locked stack; publishes its length when dropped.
struct Locked<'a, T> {
    items: MutexGuard<'a, Vec<T>>,
    len: &'a AtomicUsize,
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.len.store(self.items.len(), Ordering::Relaxed);
    }
}

/// Numbers threads in the order of their first call.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            // The top bit is cleared, so that no thread gets the number that means unnumbered.
            number.set(NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
        }
        number.get()
    })
}
