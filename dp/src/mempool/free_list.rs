//! The free items of a pool: a stack shared by threads, with a small cache for each thread in front of
//! it.
//!
//! The list is last in, first out: only the buffers in use at a time occupy the processor's cache, even if
//! the pool is far larger. (A queue would cycle through all of the pool's memory.) A thread accesses the
//! shared stack once per batch, and its own cache without a locked instruction. No call allocates. A thread
//! may have to wait while another thread moves a batch.
//!
//! As with DPDK's pools, other threads do not get the items in the cache of a living thread. All caches
//! together hold at most a quarter of a pool.

mod slot;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slot::{Claimed, SLOTS};

/// Maximum items of a cache. Small pools have smaller caches, so that the caches do not hide items that
/// other threads need.
const CACHE_MAX: usize = 128;

/// Minimum items of a cache. A pool whose caches would be smaller has no caches.
const CACHE_MIN: usize = 8;

/// Free items of a pool.
pub(super) struct FreeList<T> {
    depot: Stack<T>,
    /// The cache of each slot.
    caches: [Cache<T>; SLOTS],
    cache_max: usize,
}

impl<T> FreeList<T> {
    /// A list of these items. It never holds more items than these.
    pub(super) fn new(items: Vec<T>) -> Self {
        // All caches together hold at most a quarter.
        let share = (items.len() / (4 * SLOTS)).min(CACHE_MAX);
        let cache_max = if share < CACHE_MIN { 0 } else { share };
        Self { depot: Stack::new(items), caches: std::array::from_fn(|_| Cache::new(cache_max)), cache_max }
    }

    /// Number of items (approximate while other threads use the list).
    pub(super) fn len(&self) -> usize {
        self.caches.iter().map(Cache::len).sum::<usize>() + self.depot.len()
    }

    /// An item; `None` if the only free items are in the caches of other threads.
    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        let found = self.own_cache().and_then(|mut cache| cache.pop());
        if found.is_some() { found } else { self.pop_elsewhere() }
    }

    #[cold]
    fn pop_elsewhere(&self) -> Option<T> {
        if let Some(mut cache) = self.own_cache() {
            self.refill(&mut cache);
            if let Some(item) = cache.pop() {
                return Some(item);
            }
        }
        let found = self.depot.lock().items.pop();
        found.or_else(|| Claimed::unowned().find_map(|slot| self.abandoned(&slot).pop()))
    }

    /// Puts an item back.
    #[inline]
    pub(super) fn push(&self, item: T) {
        let Some(mut cache) = self.own_cache() else { return self.push_to_depot(item) };
        if cache.items().len() >= self.cache_max {
            self.spill(&mut cache);
        }
        cache.push(item);
    }

    #[cold]
    fn push_to_depot(&self, item: T) {
        self.depot.lock().items.push(item);
    }

    /// Moves a batch from the depot to the cache.
    fn refill(&self, cache: &mut Taken<'_, T>) {
        let mut depot = self.depot.lock();
        let rest = depot.items.len().saturating_sub(self.batch());
        cache.items().extend(depot.items.drain(rest..));
    }

    /// Moves the oldest batch of the cache to the depot.
    #[cold]
    fn spill(&self, cache: &mut Taken<'_, T>) {
        let batch = self.batch();
        self.depot.lock().items.extend(cache.items().drain(..batch));
    }

    fn batch(&self) -> usize {
        self.cache_max.div_ceil(2)
    }

    /// The calling thread's cache; `None` if it has no slot, or if there are no caches.
    #[inline]
    fn own_cache(&self) -> Option<Taken<'_, T>> {
        if self.cache_max == 0 {
            return None;
        }
        Some(Taken { cache: self.caches.get(slot::own())? })
    }

    /// The cache of a slot that no thread owns: it has the items that the slot's last owner left when it
    /// ended.
    fn abandoned<'a>(&'a self, slot: &'a Claimed) -> Taken<'a, T> {
        Taken { cache: &self.caches[slot.number()] }
    }
}

/// A stack that only the owner of its slot uses.
#[repr(align(128))]
struct Cache<T> {
    items: UnsafeCell<Vec<T>>,
    /// Length of `items` when it was last used.
    len: AtomicUsize,
}

// SAFETY: only `Taken` accesses `items`. `FreeList` makes one of the cache of the slot that the calling
// thread owns (`slot::own`), or has claimed for as long as the `Taken` lives (`Claimed`). A slot has one
// owner at a time, and the accesses of two owners are ordered (`slot`). The items are `Send`, so they may
// move between threads.
unsafe impl<T: Send> Sync for Cache<T> {}

impl<T> Cache<T> {
    fn new(capacity: usize) -> Self {
        Self { items: UnsafeCell::new(Vec::with_capacity(capacity)), len: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// A cache in use; when dropped, publishes its length.
struct Taken<'a, T> {
    cache: &'a Cache<T>,
}

impl<T> Taken<'_, T> {
    #[inline]
    fn items(&mut self) -> &mut Vec<T> {
        // SAFETY: the calling thread owns the slot of the cache (`Cache`). It has no other `Taken` of it: no
        // function of `FreeList` makes a second one while it has one, or calls anything that could. So this
        // is the only one, and it is borrowed mutably for as long as the reference lives.
        unsafe { &mut *self.cache.items.get() }
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        self.items().pop()
    }

    #[inline]
    fn push(&mut self, item: T) {
        self.items().push(item);
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let len = self.items().len();
        self.cache.len.store(len, Ordering::Relaxed);
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
    fn new(items: Vec<T>) -> Self {
        let len = AtomicUsize::new(items.len());
        Self { items: Mutex::new(items), len }
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
