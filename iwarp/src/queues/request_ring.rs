//! The ring of a work queue. The writer adds requests, and the reader reads requests in place and removes
//! them. The reader may start a request and keep its entry. A kept entry can still be read while the reader
//! continues with later entries.
//!
//! A ring needs 88 bytes in addition to its entries. A ring of `rtrb` needs 384 bytes on x86-64, because
//! `rtrb` aligns its two positions to 128 bytes. Each queue pair has two rings, so an idle queue pair needs
//! 592 bytes less than with `rtrb`. In this ring the two positions are in different cache lines, since each
//! position is often written by another thread.
//!
//! Entries own nothing, so they are never dropped.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and cells, and tries every interleaving
//! with at most three preemptions.

use std::cell::Cell;
use std::mem::{MaybeUninit, needs_drop, offset_of};
use std::sync::Arc;

use super::atomic::{AtomicUsize, Ordering};
use super::shared_cell::SharedCell;

/// The state that writer and reader share.
#[repr(C)] // The order keeps the positions in two cache lines.
struct Ring<T> {
    /// Number of entries that were removed so far. Only the [`RingReader`] changes this number.
    head: AtomicUsize,
    entries: Box<[SharedCell<MaybeUninit<T>>]>,
    _apart: [u64; 5],
    /// Number of entries that were added so far. Only the [`RingWriter`] changes this number.
    tail: AtomicUsize,
}

const _: () = assert!(offset_of!(Ring<u64>, tail) - offset_of!(Ring<u64>, head) >= 64);

// SAFETY: a ring has one `RingWriter` and one `RingReader`, and only their methods access entries. The reader
// accesses the `tail - head` entries that were added and not removed, and the writer accesses all other
// entries. Each of the two passes entries to the other by a release store, which the other reads by an
// acquire load. So only one thread at a time uses an entry, and entries may move between threads because of
// `T: Send`.
#[allow(unsafe_code, reason = "two threads use the entries in turn")]
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Returns the index that is `count` entries after `at`. `count` is at most the number of entries.
    #[inline(always)]
    fn advance(&self, at: u32, count: u32) -> u32 {
        let (next, entries) = (at as usize + count as usize, self.entries.len());
        (if next < entries { next } else { next - entries }) as u32
    }
}

/// Makes a ring for `capacity` entries, which must be less than 2^32. Returns its writer and its reader.
pub(super) fn ring<T: Default>(capacity: usize) -> (RingWriter<T>, RingReader<T>) {
    const { assert!(!needs_drop::<T>(), "entries are not dropped") };
    assert!(capacity <= u32::MAX as usize, "no memory has room for so many entries");
    let ring = Arc::new(Ring {
        head: AtomicUsize::new(0),
        entries: (0..capacity).map(|_| SharedCell::new(MaybeUninit::uninit())).collect(),
        _apart: [0; 5],
        tail: AtomicUsize::new(0),
    });
    let reader = RingReader { ring: Arc::clone(&ring), at: 0, known: Cell::new(0), passed: 0 };
    (RingWriter { ring, at: 0, free: 0 }, reader)
}

/// The writer of a ring, which adds entries.
pub(super) struct RingWriter<T> {
    ring: Arc<Ring<T>>,
    /// Index of the next entry to write.
    at: u32,
    /// Number of free entries from `at` on that the last `look` has found, minus the entries that were used
    /// since then.
    free: u32,
}

impl<T: Default> RingWriter<T> {
    /// Adds an entry, whose content `fill` sets in place. If the ring is full, returns `false` and does not
    /// call `fill`.
    #[inline(always)]
    pub(super) fn push_with(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        if self.free == 0 && !self.look() {
            return false;
        }
        let ring = &*self.ring;
        let Some(entry) = ring.entries.get(self.at as usize) else { return false };
        // SAFETY: the entry at `at` is free: it was never added, or an acquire load in `look` has shown that
        // it was removed. So the reader does not access the entry before the store below. `&mut self`
        // excludes a concurrent call, and no reference to the entry exists after this call.
        #[allow(unsafe_code, reason = "the entry is this end's alone")]
        let entry = unsafe { &mut *entry.for_writing() };
        fill(entry.write(T::default()));
        self.at = ring.advance(self.at, 1);
        self.free -= 1;
        ring.tail.store(ring.tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        true
    }

    /// Updates the number of free entries. Returns whether at least one entry is free.
    #[inline(never)]
    fn look(&mut self) -> bool {
        let Ring { head, entries, tail, .. } = &*self.ring;
        let used = tail.load(Ordering::Relaxed).wrapping_sub(head.load(Ordering::Acquire));
        self.free = (entries.len() - used) as u32;
        self.free > 0
    }
}

/// The reader of a ring, which reads and removes entries.
pub(super) struct RingReader<T> {
    ring: Arc<Ring<T>>,
    /// Index of the oldest entry that is not started.
    at: u32,
    /// Number of entries from `at` on that the last `len` has found, minus the entries that were passed since
    /// then.
    known: Cell<u32>,
    /// Number of entries that were started or removed so far, counted in the same way as [`Ring::head`].
    /// Started entries that are not removed yet are kept.
    passed: usize,
}

impl<T> RingReader<T> {
    /// Returns the number of entries that are not started.
    #[inline]
    pub(super) fn len(&self) -> usize {
        let len = self.ring.tail.load(Ordering::Acquire).wrapping_sub(self.passed);
        self.known.set(len as u32);
        len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the oldest entry that is not started, if any.
    #[inline]
    pub(super) fn first(&self) -> Option<&T> {
        if self.known.get() == 0 && self.is_empty() {
            return None;
        }
        self.ring.entries.get(self.at as usize).map(|entry| self.read(entry))
    }

    /// Returns the entry that is `behind` entries after the oldest entry that is not started, if any.
    pub(super) fn get(&self, behind: usize) -> Option<&T> {
        if behind >= self.len() {
            return None;
        }
        let at = self.ring.advance(self.at, behind as u32);
        self.ring.entries.get(at as usize).map(|entry| self.read(entry))
    }

    /// Returns at most `limit` of the oldest entries that are not started, up to the end of the ring's
    /// memory. Entries after a wrap are returned by a later call.
    #[inline]
    pub(super) fn oldest(&mut self, limit: usize) -> Oldest<'_, T> {
        let together = self.ring.entries.len() - self.at as usize;
        let len = self.len().min(limit).min(together);
        Oldest { reader: self, len }
    }

    /// Starts the `count` oldest entries that are not started, and keeps them. If the last `len` has found
    /// fewer entries, starts these entries.
    #[inline]
    pub(super) fn keep(&mut self, count: usize) {
        self.pass(count);
    }

    /// Returns the number of kept entries.
    #[inline]
    fn count_kept(&self) -> usize {
        self.passed.wrapping_sub(self.ring.head.load(Ordering::Relaxed))
    }

    /// Returns the kept entry that is `back` entries before the oldest entry that is not started. If `back`
    /// is 1, this is the last kept entry. Returns `None` if no such entry is kept.
    pub(super) fn kept(&self, back: usize) -> Option<&T> {
        if back == 0 || back > self.count_kept() {
            return None;
        }
        let (at, entries) = (self.at as usize, self.ring.entries.len());
        let at = if at >= back { at - back } else { at + entries - back };
        self.ring.entries.get(at).map(|entry| self.read(entry))
    }

    /// Removes the `count` oldest kept entries. If fewer entries are kept, removes all kept entries.
    #[inline]
    pub(super) fn release(&mut self, count: usize) {
        let count = self.count_kept().min(count);
        let head = &self.ring.head;
        head.store(head.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// Makes the kept entries the oldest entries that are not started.
    pub(super) fn return_kept(&mut self) {
        let count = self.count_kept();
        let (at, entries) = (self.at as usize, self.ring.entries.len());
        self.at = (if at >= count { at - count } else { at + entries - count }) as u32;
        self.passed = self.passed.wrapping_sub(count);
        self.known.set(0);
    }

    /// Removes the `count` oldest entries. If the last `len` has found fewer entries, removes these entries.
    /// No entry may be kept.
    #[inline]
    pub(super) fn remove(&mut self, count: usize) {
        debug_assert_eq!(self.count_kept(), 0, "kept entries are before it");
        self.pass(count);
        self.ring.head.store(self.passed, Ordering::Release);
    }

    /// Advances the reader by `count` entries, but at most by the entries that the last `len` has found.
    #[inline(always)]
    fn pass(&mut self, count: usize) {
        let known = self.known.get_mut();
        let count = (*known as usize).min(count) as u32;
        *known -= count;
        self.at = self.ring.advance(self.at, count);
        self.passed = self.passed.wrapping_add(count as usize);
    }

    /// Reads one of the `self.known` entries from `self.at` on, or one of the kept entries before them.
    #[inline(always)]
    fn read<'a>(&'a self, entry: &'a SharedCell<MaybeUninit<T>>) -> &'a T {
        let entry = entry.for_reading().cast::<T>();
        // SAFETY: the callers pass an entry that `len` has found by an acquire load, so the entry was written
        // completely before. The writer does not access the entry until the entry is removed. Removing needs
        // `&mut self`, so the returned reference no longer exists then.
        #[allow(unsafe_code, reason = "the entry is this end's alone")]
        unsafe {
            &*entry
        }
    }
}

/// The oldest entries of a ring that are not started. These entries stay in the ring until they are
/// [kept](Self::keep) or [removed](Self::remove).
pub(crate) struct Oldest<'a, T> {
    reader: &'a mut RingReader<T>,
    len: usize,
}

impl<T> Oldest<'_, T> {
    /// Whether these are all entries of the ring that are not started.
    #[inline]
    pub(crate) fn is_all(&self) -> bool {
        self.len == self.reader.known.get() as usize
    }

    /// Returns the entries, oldest first.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let reader = &*self.reader;
        let at = reader.at as usize;
        reader.ring.entries[at..at + self.len].iter().map(|entry| reader.read(entry))
    }

    /// Removes the first `count` of these entries.
    #[inline]
    pub(crate) fn remove(self, count: usize) {
        self.reader.remove(count.min(self.len));
    }

    /// Starts the first `count` of these entries, and keeps them.
    #[inline]
    pub(crate) fn keep(self, count: usize) {
        self.reader.keep(count.min(self.len));
    }
}
