//! The free items of a pool: a depot that threads share, and a small cache for each of at most eight threads.
//!
//! The list is last in, first out, so a thread usually receives items that are still in the processor's
//! cache, even if the pool is much larger. (A queue would cycle through the whole memory of the pool.) A
//! thread with a cache accesses the shared depot once per batch, and accesses its own cache without a locked
//! instruction. After the list was made, no call allocates memory. A thread may have to wait while another
//! thread moves a batch.
//!
//! If another process reads the items, the opposite is better. The lines of an item that was read a moment
//! ago are in the cache of the reader's core, and each store to them has to wait until that cache has dropped
//! the line. So a [rotating](FreeList::rotating) list is first in, first out, and keeps a number of items
//! between two uses of an item.
//!
//! As in DPDK's pools, a thread cannot take items that are in the cache of another running thread. All caches
//! together have at most a quarter of the items of a pool.

mod slot;
#[cfg(test)]
mod tests;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slot::{Claimed, SLOTS};

/// Maximum number of items in a cache. Small pools have smaller caches, so that the caches do not hide items
/// that other threads need.
const CACHE_MAX: usize = 128;

/// Minimum number of items for which a cache has room. If the caches of a pool would be smaller, the pool has
/// no caches.
const CACHE_MIN: usize = 8;

pub(super) struct FreeList<T> {
    depot: Depot<T>,
    /// The cache of each slot.
    caches: [Cache<T>; SLOTS],
    cache_max: usize,
    /// `None` if the last freed item comes first. `Some` if the first freed item comes first: then
    /// [`pop`](Self::pop) returns an item only if the list has more than this number of items.
    distance: Option<usize>,
}

impl<T> FreeList<T> {
    /// Makes a list of `items`. The list never has more items than these.
    pub(super) fn new(items: Vec<T>) -> Self {
        // All caches together have at most a quarter of the items.
        let share = (items.len() / (4 * SLOTS)).min(CACHE_MAX);
        let cache_max = if share < CACHE_MIN { 0 } else { share };
        let caches = std::array::from_fn(|_| Cache::new(cache_max));
        Self { depot: Depot::new(items), caches, cache_max, distance: None }
    }

    /// Makes an empty list for at most `limit` items. The list is first in, first out: between two uses of an
    /// item, at least `distance` other items are used, unless the items come from
    /// [`pop_oldest`](Self::pop_oldest). The list has no caches.
    pub(super) fn rotating(distance: usize, limit: usize) -> Self {
        let caches = std::array::from_fn(|_| Cache::new(0));
        let depot = Depot::new(Vec::with_capacity(limit));
        Self { depot, caches, cache_max: 0, distance: Some(distance) }
    }

    /// Number of items. The number is approximate while other threads use the list.
    pub(super) fn len(&self) -> usize {
        self.caches.iter().map(Cache::len).sum::<usize>() + self.depot.len()
    }

    /// Removes and returns an item. Returns `None` if no item is free, except items in the caches of other
    /// running threads. A [`rotating`](Self::rotating) list also returns `None` if it has too few items.
    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        let found = self.own_cache().and_then(|mut cache| cache.pop());
        if found.is_some() { found } else { self.pop_elsewhere() }
    }

    /// Removes and returns the item that was freed first, even if a [`rotating`](Self::rotating) list has few
    /// items. Other lists return any item.
    #[cold]
    pub(super) fn pop_oldest(&self) -> Option<T> {
        match self.distance {
            Some(_) => self.depot.lock().items.pop_front(),
            None => self.pop(),
        }
    }

    #[cold]
    fn pop_elsewhere(&self) -> Option<T> {
        if let Some(distance) = self.distance {
            let mut depot = self.depot.lock();
            return if depot.items.len() > distance { depot.items.pop_front() } else { None };
        }
        if let Some(mut cache) = self.own_cache() {
            self.refill(&mut cache);
            if let Some(item) = cache.pop() {
                return Some(item);
            }
        }
        let found = self.depot.lock().items.pop_back();
        found.or_else(|| Claimed::unowned().find_map(|slot| self.abandoned(&slot).pop()))
    }

    #[inline]
    pub(super) fn push(&self, item: T) {
        let Some(mut cache) = self.own_cache() else { return self.push_to_depot(item) };
        if cache.items().len() >= self.cache_max {
            self.spill(&mut cache);
        }
        cache.push(item);
    }

    /// As [`push`](Self::push), but not to the cache of the calling thread.
    #[cold]
    pub(super) fn push_to_depot(&self, item: T) {
        self.depot.lock().items.push_back(item);
    }

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

    /// Returns the calling thread's cache. Returns `None` if the thread has no slot, or if there are no
    /// caches.
    #[inline]
    fn own_cache(&self) -> Option<Taken<'_, T>> {
        if self.cache_max == 0 {
            return None;
        }
        Some(Taken { cache: self.caches.get(slot::own())? })
    }

    /// Returns the cache of a slot that no thread owns. The cache has the items that were left when the
    /// slot's last owner ended.
    fn abandoned<'a>(&'a self, slot: &'a Claimed) -> Taken<'a, T> {
        Taken { cache: &self.caches[slot.number()] }
    }
}

/// A stack of one slot. Only the thread that owns the slot uses the stack.
#[repr(align(128))]
struct Cache<T> {
    items: UnsafeCell<Vec<T>>,
    /// The length of `items` after the last use.
    len: AtomicUsize,
}

// SAFETY: only `Taken` accesses `items`. `FreeList` makes a `Taken` only for the cache of a slot that the
// calling thread owns (`slot::own`), or has claimed while the `Taken` exists (`Claimed`). A slot has one
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

/// A cache in use. When this value is dropped, it publishes the length of the cache.
struct Taken<'a, T> {
    cache: &'a Cache<T>,
}

impl<T> Taken<'_, T> {
    #[inline]
    fn items(&mut self) -> &mut Vec<T> {
        // SAFETY: the calling thread owns the slot of the cache (`Cache`). `self` is the thread's only
        // `Taken` for the cache. (While a function of `FreeList` has a `Taken`, it makes no second `Taken`,
        // and calls no function that could make one.) The `Taken` is borrowed mutably while the reference is
        // used.
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

/// The items that threads share, with a lock. The depot has its own cache lines.
#[repr(align(128))]
struct Depot<T> {
    /// The item that was freed first is in front.
    items: Mutex<VecDeque<T>>,
    /// The length of `items` when the lock was last released. The length is read without the lock.
    len: AtomicUsize,
}

impl<T> Depot<T> {
    fn new(items: Vec<T>) -> Self {
        let len = AtomicUsize::new(items.len());
        Self { items: Mutex::new(items.into()), len }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Locks the depot. A poisoned lock can be used, since a panic under the lock leaves a consistent depot.
    fn lock(&self) -> Locked<'_, T> {
        Locked { items: self.items.lock().unwrap_or_else(PoisonError::into_inner), len: &self.len }
    }
}

/// A locked depot. When this value is dropped, it publishes the length of the depot.
struct Locked<'a, T> {
    items: MutexGuard<'a, VecDeque<T>>,
    len: &'a AtomicUsize,
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.len.store(self.items.len(), Ordering::Relaxed);
    }
}
