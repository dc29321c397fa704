//! The ring of a work queue: one end adds requests, the other reads them in place and removes them.
//! The reader may start a request and keep its entry: the entry can still be read, before the entry with
//! which the reader goes on.
//!
//! A ring takes 88 bytes besides its entries. A ring of `rtrb` takes 384, since each position there has two
//! cache lines to itself. An idle queue pair has two rings, so these bytes matter. Here the two positions
//! are a cache line apart, as the two threads write them all the time.
//!
//! Entries own nothing, so nothing is dropped with them.
//!
//! `tests/loom_handshakes.rs` compiles this file with loom's atomics and cells and tries every interleaving.

use std::cell::Cell;
use std::mem::{MaybeUninit, needs_drop, offset_of};
use std::sync::Arc;

use super::atomic::{AtomicUsize, Ordering};
use super::shared_cell::SharedCell;

/// The state that both ends share.
#[repr(C)] // The order keeps the positions in two cache lines.
struct Ring<T> {
    /// Entries that were removed. Only the [`RingReader`] changes it.
    head: AtomicUsize,
    entries: Box<[SharedCell<MaybeUninit<T>>]>,
    _apart: [u64; 5],
    /// Entries that were added. Only the [`RingWriter`] changes it.
    tail: AtomicUsize,
}

const _: () = assert!(offset_of!(Ring<u64>, tail) - offset_of!(Ring<u64>, head) >= 64);

// SAFETY: each end is a single value, and only its methods access an entry. The reader accesses the `tail -
// head` entries that were added and not removed; the writer accesses the others. Each end learns which
// entries the other end has passed to it by an acquire load of the other's release store. So an entry has one
// user at a time, and moves between threads with `T: Send`.
#[allow(unsafe_code, reason = "two threads use the entries in turn")]
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// The index `count` entries behind `at`; not more than there are entries.
    #[inline(always)]
    fn advance(&self, at: u32, count: u32) -> u32 {
        let (next, entries) = (at as usize + count as usize, self.entries.len());
        (if next < entries { next } else { next - entries }) as u32
    }
}

/// Makes a ring for `capacity` entries, less than 2^32. Returns its two ends.
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

/// The end where entries are added.
pub(super) struct RingWriter<T> {
    ring: Arc<Ring<T>>,
    /// Index of the next entry to write.
    at: u32,
    /// Number of free entries from `at` on, as of the last `look`, less the entries that were used since.
    free: u32,
}

impl<T: Default> RingWriter<T> {
    /// Adds an entry, which `fill` changes in place. Returns `false`, without a call of `fill`, if the ring
    /// is full.
    #[inline(always)]
    pub(super) fn push_with(&mut self, fill: impl FnOnce(&mut T)) -> bool {
        if self.free == 0 && !self.look() {
            return false;
        }
        let ring = &*self.ring;
        let Some(entry) = ring.entries.get(self.at as usize) else { return false };
        // SAFETY: the entry at `at` is free: it was never added, or `look` has learned by an acquire load
        // that it was removed. So the reader does not access it before the store below. `&mut self` excludes
        // another call, and no reference outlives this one.
        #[allow(unsafe_code, reason = "the entry is this end's alone")]
        let entry = unsafe { &mut *entry.for_writing() };
        fill(entry.write(T::default()));
        self.at = ring.advance(self.at, 1);
        self.free -= 1;
        ring.tail.store(ring.tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        true
    }

    /// Updates the number of free entries. Returns whether there are any.
    #[inline(never)]
    fn look(&mut self) -> bool {
        let Ring { head, entries, tail, .. } = &*self.ring;
        let used = tail.load(Ordering::Relaxed).wrapping_sub(head.load(Ordering::Acquire));
        self.free = (entries.len() - used) as u32;
        self.free > 0
    }
}

/// The end where entries are read and removed.
pub(super) struct RingReader<T> {
    ring: Arc<Ring<T>>,
    /// Index of the oldest entry that is not started.
    at: u32,
    /// The number of entries from `at` on as of the last look at the ring, less those passed since.
    known: Cell<u32>,
    /// How many entries were started or removed since the ring was made, as [`Ring::head`] counts. The
    /// started entries that are not yet removed are kept.
    passed: usize,
}

impl<T> RingReader<T> {
    /// The number of entries that are not started.
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

    /// The oldest entry that is not started.
    #[inline]
    pub(super) fn first(&self) -> Option<&T> {
        if self.known.get() == 0 && self.is_empty() {
            return None;
        }
        self.ring.entries.get(self.at as usize).map(|entry| self.read(entry))
    }

    /// The entry `behind` entries after the oldest one.
    pub(super) fn get(&self, behind: usize) -> Option<&T> {
        if behind >= self.len() {
            return None;
        }
        let at = self.ring.advance(self.at, behind as u32);
        self.ring.entries.get(at as usize).map(|entry| self.read(entry))
    }

    /// At most `limit` of the oldest entries, up to the end of the ring's memory: the next call returns the
    /// entries that wrap.
    #[inline]
    pub(super) fn oldest(&mut self, limit: usize) -> Oldest<'_, T> {
        let together = self.ring.entries.len() - self.at as usize;
        let len = self.len().min(limit).min(together);
        Oldest { reader: self, len }
    }

    /// Starts the `count` oldest entries that are not started, or all known ones if they are fewer, and keeps
    /// them.
    #[inline]
    pub(super) fn keep(&mut self, count: usize) {
        self.pass(count);
    }

    /// The number of kept entries.
    #[inline]
    fn count_kept(&self) -> usize {
        self.passed.wrapping_sub(self.ring.head.load(Ordering::Relaxed))
    }

    /// The kept entry `back` entries before the oldest entry that is not started; 1: the last kept entry.
    pub(super) fn kept(&self, back: usize) -> Option<&T> {
        if back == 0 || back > self.count_kept() {
            return None;
        }
        let (at, entries) = (self.at as usize, self.ring.entries.len());
        let at = if at >= back { at - back } else { at + entries - back };
        self.ring.entries.get(at).map(|entry| self.read(entry))
    }

    /// Removes the `count` oldest kept entries, or all kept ones if they are fewer.
    #[inline]
    pub(super) fn release(&mut self, count: usize) {
        let count = self.count_kept().min(count);
        let head = &self.ring.head;
        head.store(head.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// Makes the kept entries the oldest ones that are not started.
    pub(super) fn return_kept(&mut self) {
        let count = self.count_kept();
        let (at, entries) = (self.at as usize, self.ring.entries.len());
        self.at = (if at >= count { at - count } else { at + entries - count }) as u32;
        self.passed = self.passed.wrapping_sub(count);
        self.known.set(0);
    }

    /// Removes the `count` oldest entries, or all known ones if they are fewer. No entry may be kept.
    #[inline]
    pub(super) fn remove(&mut self, count: usize) {
        debug_assert_eq!(self.count_kept(), 0, "kept entries are before it");
        self.pass(count);
        self.ring.head.store(self.passed, Ordering::Release);
    }

    /// Continues after the `count` oldest entries, or after all known ones if they are fewer.
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
        // SAFETY: the callers pass an entry that `len` has found by an acquire load, so it was written
        // completely before. The writer does not access the entry until it is removed, which needs `&mut
        // self` and therefore happens after the end of the reference.
        #[allow(unsafe_code, reason = "the entry is this end's alone")]
        unsafe {
            &*entry
        }
    }
}

/// The oldest entries of a ring that are not started. They stay in the ring until they are
/// [kept](Self::keep) or [removed](Self::remove).
pub(crate) struct Oldest<'a, T> {
    reader: &'a mut RingReader<T>,
    len: usize,
}

impl<T> Oldest<'_, T> {
    /// Whether no more were in the ring.
    #[inline]
    pub(crate) fn is_all(&self) -> bool {
        self.len == self.reader.known.get() as usize
    }

    /// The entries, oldest first.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let reader = &*self.reader;
        let at = reader.at as usize;
        reader.ring.entries[at..at + self.len].iter().map(|entry| reader.read(entry))
    }

    /// Removes the first `count` of them.
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
