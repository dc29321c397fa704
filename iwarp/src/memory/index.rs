//! Maps the 24 unpredictable bits of an STag to the STag's slot, with two loads.
//!
//! The map has 16,384 pages of 1024 entries. A page has 4 KiB, like a page of the kernel. Pages are small
//! because indices are random: most new indices of a small table need a new page. A page is in the map while
//! at least one of its indices is in use. After that the page may be reused for another part of the map. So
//! the size of the map depends on the largest number of indices in use at the same time. Readers take no
//! lock. The control lock of the table serialises writers.
//!
//! After a reader has found a page, a writer may reuse the page, and the reader may then read the entry of
//! another index. The slot of that index has another STag. So a reader compares its STag with the STag of the
//! slot.
//!
//! A freed index is reused only after [`QUARANTINE`] other indices have been allocated. Until then a bit
//! marks the index, and an entry in a queue records when the index was freed. All bits take at most 2 MiB,
//! and the entries for a million indices take 8 MiB.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rand_chacha::ChaCha20Rng;
use rand_core::Rng;
use zerocopy::FromZeros;

use crate::memory::stag::Stag;

/// Number of indices that are allocated before a freed index may be reused (RFC 5042 section 6.1.1). The
/// larger the number, the longer a stale STag of a peer names no memory. But most of the 2^24 indices must
/// stay free, and up to [`MAX_LIVE`] indices are live.
pub(super) const QUARANTINE: u32 = 1 << 20;

/// Maximum number of indices in use (at most half for registrations, and at most half for windows). Less than
/// a fifth of all indices are live or in quarantine. So a guessed STag rarely names any memory, and
/// [`IndexAllocator::allocate`] needs few draws.
pub(super) const MAX_LIVE: usize = 1 << 21;

/// Number of entries of a page.
const PAGE: usize = 1 << 10;
/// Number of pages of the directory.
const PAGES: usize = Stag::INDICES as usize / PAGE;
/// The bit that is set in the entry of an index in use. The other bits are the slot number.
const LIVE: u32 = 1 << 31;

type Page = [AtomicU32; PAGE];

/// The map from index to slot number.
pub(super) struct IndexMap {
    /// The pages. A pointer is null if no index of the page is in use. The memory of a page stays allocated
    /// until the map is dropped.
    pages: Box<Directory>,
}

type Directory = [AtomicPtr<Page>; PAGES];

/// Allocates indices. A thread that uses the allocator holds the control lock.
pub(super) struct IndexAllocator {
    rng: ChaCha20Rng,
    /// Number of indices that were allocated so far, modulo 2^32.
    clock: u32,
    /// For each page, the number of its indices in use.
    used: Box<[u16; PAGES]>,
    /// Pages without an index in use: all their entries are 0.
    spare: Vec<NonNull<Page>>,
    quarantine: Quarantine,
}

// SAFETY: the pages in `spare` are plain atomics on the heap, which any thread may use and free.
unsafe impl Send for IndexAllocator {}

/// The indices that were freed and may not be reused yet.
struct Quarantine {
    /// One bit for each index, set if the index is waiting. The bits are in parts. Each part is allocated
    /// when an index of this part is freed for the first time.
    bits: Box<[Option<Box<[u64; WORDS]>>; PARTS]>,
    /// The waiting indices with the values of `clock` when they were freed, oldest first.
    waiting: VecDeque<(u32, u32)>,
}

/// Number of 64-bit words of a part (4 KiB). The parts have bits for all 2^24 indices.
const WORDS: usize = 512;
const PARTS: usize = (Stag::INDICES as usize) / 64 / WORDS;

impl IndexMap {
    pub(super) fn new() -> Self {
        Self { pages: zeroed() }
    }

    /// Returns the number of the slot of `index`, which is below 2^24. Returns `None` if the index is not in
    /// use.
    pub(super) fn slot(&self, index: u32) -> Option<u32> {
        let page = self.page(self.pages.get(index as usize / PAGE)?)?;
        let entry = page[index as usize % PAGE].load(Ordering::Acquire);
        (entry & LIVE != 0).then_some(entry & !LIVE)
    }

    /// Returns the page at this entry of the directory, or `None` if the entry is null.
    fn page(&self, place: &AtomicPtr<Page>) -> Option<&Page> {
        // SAFETY: `place` is an entry of the directory, which only `IndexAllocator` changes. A pointer in the
        // directory points to a page that was created before the pointer was stored (the Acquire load pairs
        // with the Release store). Pages are accessed only as shared atomics. The map's drop frees the pages
        // of the directory, and the allocator's drop frees the spare pages. `TableShared` owns map and
        // allocator, and drops them together, when no reference is left.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }
}

impl Drop for IndexMap {
    fn drop(&mut self) {
        for page in self.pages.iter_mut().filter_map(|place| NonNull::new(*place.get_mut())) {
            // SAFETY: the pointer comes from `Box::into_raw` in `IndexAllocator::page`, which stores each
            // pointer in one entry of the directory only. `free` removes the pointer before the page becomes
            // spare. No reference to the page is left: every such reference borrows the map, and `&mut self`
            // excludes such a borrow.
            drop(unsafe { Box::from_raw(page.as_ptr()) });
        }
    }
}

/// Returns a zeroed value that was allocated directly on the heap.
fn zeroed<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().expect("memory for a page")
}

impl IndexAllocator {
    pub(super) fn new(rng: ChaCha20Rng) -> Self {
        let quarantine = Quarantine { bits: Box::new([const { None }; PARTS]), waiting: VecDeque::new() };
        Self { rng, clock: 0, used: zeroed(), spare: Vec::new(), quarantine }
    }

    /// Picks an index at random, maps the index to `slot`, and returns the index. The index is never 0, so an
    /// STag is never 0.
    ///
    /// RFC 5040 section 8.1.1 (RDMAP-357): STags are hard to predict.
    pub(super) fn allocate(&mut self, map: &IndexMap, slot: u32) -> u32 {
        self.clock = self.clock.wrapping_add(1);
        self.quarantine.release(self.clock);
        loop {
            let index = self.rng.next_u32() % Stag::INDICES;
            if index == 0 || map.slot(index).is_some() || self.quarantine.has(index) {
                continue;
            }
            self.used[index as usize / PAGE] += 1;
            self.page(map, index)[index as usize % PAGE].store(LIVE | slot, Ordering::Release);
            return index;
        }
    }

    /// Unmaps an index and starts its quarantine.
    pub(super) fn free(&mut self, map: &IndexMap, index: u32) {
        let number = index as usize / PAGE;
        self.page(map, index)[index as usize % PAGE].store(0, Ordering::Release);
        self.quarantine.add(index, self.clock);
        self.used[number] -= 1;
        if self.used[number] == 0 {
            self.spare.extend(NonNull::new(map.pages[number].swap(ptr::null_mut(), Ordering::AcqRel)));
        }
    }

    /// Returns the page of an index. If the index has no page yet, uses a spare page or allocates a page.
    fn page<'a>(&mut self, map: &'a IndexMap, index: u32) -> &'a Page {
        let place = &map.pages[index as usize / PAGE];
        if let Some(page) = map.page(place) {
            return page;
        }
        let new = || Box::into_raw(zeroed::<Page>());
        place.store(self.spare.pop().map_or_else(new, NonNull::as_ptr), Ordering::Release);
        map.page(place).expect("a page was put there, and others change the map only with the lock")
    }
}

impl Drop for IndexAllocator {
    fn drop(&mut self) {
        for page in self.spare.drain(..) {
            // SAFETY: the pointer comes from `Box::into_raw` in `page`, and `free` has removed the pointer
            // from the directory, so only this list contains it. `TableShared` owns the map and this value,
            // and drops both when no reader is left.
            drop(unsafe { Box::from_raw(page.as_ptr()) });
        }
    }
}

impl Quarantine {
    fn add(&mut self, index: u32, now: u32) {
        *self.word(index) |= 1 << (index % 64);
        self.waiting.push_back((index, now));
    }

    /// Releases the indices that have waited long enough.
    fn release(&mut self, now: u32) {
        while let Some(&(index, freed)) = self.waiting.front()
            && now.wrapping_sub(freed) > QUARANTINE
        {
            *self.word(index) &= !(1 << (index % 64));
            self.waiting.pop_front();
        }
    }

    fn has(&self, index: u32) -> bool {
        let word = index as usize / 64;
        self.bits[word / WORDS].as_ref().is_some_and(|part| part[word % WORDS] >> (index % 64) & 1 != 0)
    }

    fn word(&mut self, index: u32) -> &mut u64 {
        let word = index as usize / 64;
        &mut self.bits[word / WORDS].get_or_insert_with(zeroed)[word % WORDS]
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;

    fn allocator() -> IndexAllocator {
        IndexAllocator::new(ChaCha20Rng::from_seed([7; 32]))
    }

    #[test]
    fn a_freed_index_leads_nowhere_and_comes_back_after_its_quarantine() {
        let (map, mut allocator) = (IndexMap::new(), allocator());
        let index = allocator.allocate(&map, 5);
        assert_eq!(map.slot(index), Some(5));
        allocator.free(&map, index);
        assert_eq!(map.slot(index), None);
        let freed = allocator.clock;
        allocator.quarantine.release(freed + QUARANTINE);
        assert!(allocator.quarantine.has(index));
        allocator.quarantine.release(freed + QUARANTINE + 1);
        assert!(!allocator.quarantine.has(index) && allocator.quarantine.waiting.is_empty());
    }

    /// However many indices are allocated and freed in turn, the map never has more pages than there were
    /// indices in use at the same time.
    #[test]
    fn pages_are_as_many_as_indices_in_use_need() {
        let (map, mut allocator) = (IndexMap::new(), allocator());
        let mut live = VecDeque::new();
        for slot in 0..10_000 {
            live.push_back((allocator.allocate(&map, slot), slot));
            if live.len() > 3 {
                let (index, _) = live.pop_front().unwrap();
                allocator.free(&map, index);
                assert_eq!(map.slot(index), None);
            }
            assert!(live.iter().all(|&(index, slot)| map.slot(index) == Some(slot)));
        }
        let there = map.pages.iter().filter(|page| !page.load(Ordering::Relaxed).is_null()).count();
        assert!(there <= 3, "{there} pages for three indices");
        assert!(there + allocator.spare.len() <= 4, "{} spare pages", allocator.spare.len());
        live.drain(..).for_each(|(index, _)| allocator.free(&map, index));
        assert!(map.pages.iter().all(|page| page.load(Ordering::Relaxed).is_null()));
        let is_empty = |page: &NonNull<Page>| {
            // SAFETY: a spare page belongs to the allocator, which still exists.
            let page = unsafe { page.as_ref() };
            page.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
        };
        assert!(allocator.spare.iter().all(is_empty), "a spare page has an entry");
    }

    /// An index that is not free (in use or in quarantine) is never picked.
    #[test]
    fn neither_a_used_index_nor_one_in_quarantine_is_picked() {
        let map = IndexMap::new();
        let drawn = allocator().allocate(&map, 1);
        // The second allocator makes the same draws, but the first index is in use.
        let mut second = allocator();
        let other = second.allocate(&map, 2);
        assert_ne!(other, drawn);
        let (map, mut third) = (IndexMap::new(), allocator());
        third.quarantine.add(drawn, 0);
        assert_eq!(third.allocate(&map, 3), other);
    }
}
