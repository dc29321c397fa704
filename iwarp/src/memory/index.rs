//! Maps the 24 unpredictable bits of an STag to its slot, with two loads.
//!
//! The map has 4096 pages of 4096 entries. A page (16 KiB) is allocated with the first STag in it: the map
//! costs 32 KiB at first, and 64 MiB once some tens of thousands of STags have been made. Readers take no
//! lock. The control lock of the table serialises writers.
//!
//! An entry records when it was freed. A freed index is reused only after [`QUARANTINE`] others were
//! allocated.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rand_chacha::ChaCha20Rng;
use rand_core::Rng;
use zerocopy::FromZeros;

use crate::memory::stag::Stag;

/// How many indices are allocated before a freed one may be reused (RFC 5042 section 6.1.1). The larger it
/// is, the longer a stale STag of a peer names nothing; with [`MAX_LIVE`] it must leave most of the 2^24
/// indices free.
pub(super) const QUARANTINE: u32 = 1 << 20;

/// Largest number of indices in use (half for registrations, half for windows). Live and quarantined indices
/// are less than a fifth of all, so a guessed STag rarely names anything and [`IndexAllocator::allocate`]
/// ends soon.
pub(super) const MAX_LIVE: usize = 1 << 21;

/// Entries of a page, and pages of the directory: the square root of 2^24.
const PAGE: usize = 1 << 12;
/// Set in the entry of an index in use. The other bits are the slot number.
const LIVE: u32 = 1 << 31;

type Page = [AtomicU32; PAGE];

/// The map from index to slot number.
pub(super) struct IndexMap {
    /// Null where there is no page yet. A page stays until the map is dropped.
    pages: Box<Directory>,
}

type Directory = [AtomicPtr<Page>; PAGE];

/// Allocates indices. Only the holder of the control lock uses it.
pub(super) struct IndexAllocator {
    rng: ChaCha20Rng,
    /// Counts allocated indices, modulo 2^31. It skips 0, which marks an entry that was never used.
    clock: u32,
}

impl IndexMap {
    pub(super) fn new() -> Self {
        Self { pages: zeroed() }
    }

    /// The slot of an index below 2^24.
    pub(super) fn slot(&self, index: u32) -> Option<u32> {
        let page = self.page(self.pages.get(index as usize / PAGE)?)?;
        let entry = page[index as usize % PAGE].load(Ordering::Acquire);
        (entry & LIVE != 0).then_some(entry & !LIVE)
    }

    fn entry(&self, index: u32) -> &AtomicU32 {
        let place = &self.pages[index as usize / PAGE];
        let page = self.page(place).unwrap_or_else(|| self.add_page(place));
        &page[index as usize % PAGE]
    }

    /// The page at this entry of the directory, if there is one.
    fn page(&self, place: &AtomicPtr<Page>) -> Option<&Page> {
        // SAFETY: `place` is an entry of the directory, which only `add_page` changes: a pointer in it is
        // that of a page which was made before the pointer was stored (Acquire pairs with its Release). A
        // page is only ever reached as shared atomics, and is freed by the drop of the map, which outlives
        // the reference.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn add_page(&self, place: &AtomicPtr<Page>) -> &Page {
        let page = Box::into_raw(zeroed::<Page>());
        match place.compare_exchange(ptr::null_mut(), page, Ordering::Release, Ordering::Acquire) {
            // SAFETY: `page` comes from `Box::into_raw` in this call. It is in the directory from now on,
            // where it is only reached as shared atomics, and is freed by the drop of the map, which outlives
            // the reference.
            Ok(_) => unsafe { &*page },
            Err(first) => {
                // SAFETY: `page` comes from `Box::into_raw` in this call, and the failed exchange did not
                // store it, so nobody else has it.
                drop(unsafe { Box::from_raw(page) });
                // SAFETY: `first` was in the directory, so another call of this function made the page before
                // it stored the pointer (the Acquire of the failed exchange pairs with its Release). It is
                // only reached as shared atomics, and is freed by the drop of the map, which outlives the
                // reference.
                unsafe { &*first }
            }
        }
    }
}

impl Drop for IndexMap {
    fn drop(&mut self) {
        for page in self.pages.iter_mut().filter_map(|place| NonNull::new(*place.get_mut())) {
            // SAFETY: the pointer comes from `Box::into_raw` in `add_page`, which stores each in one entry of
            // the directory only. No reference to the page is left: all are bound to a borrow of the map,
            // which `&mut self` excludes.
            drop(unsafe { Box::from_raw(page.as_ptr()) });
        }
    }
}

/// A zeroed value, made directly on the heap.
fn zeroed<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().expect("memory for a page")
}

impl IndexAllocator {
    pub(super) fn new(rng: ChaCha20Rng) -> Self {
        Self { rng, clock: 0 }
    }

    /// Picks an index at random and maps it to `slot`. It never picks index 0, so no STag with key 0 is 0.
    ///
    /// At most [`MAX_LIVE`] indices are live and [`QUARANTINE`] in quarantine, less than a fifth of all, so a
    /// few draws find a free one.
    ///
    /// RFC 5040 section 8.1.1 (RDMAP-357): STags are hard to predict.
    pub(super) fn allocate(&mut self, map: &IndexMap, slot: u32) -> u32 {
        self.clock = next_clock(self.clock);
        loop {
            let index = self.rng.next_u32() % Stag::INDICES;
            if index == 0 {
                continue;
            }
            let entry = map.entry(index);
            if self.is_available(entry.load(Ordering::Relaxed)) {
                entry.store(LIVE | slot, Ordering::Release);
                return index;
            }
        }
    }

    /// Unmaps an index and starts its quarantine.
    pub(super) fn free(&mut self, map: &IndexMap, index: u32) {
        map.entry(index).store(self.clock, Ordering::Release);
    }

    fn is_available(&self, entry: u32) -> bool {
        let rested = self.clock.wrapping_sub(entry) & !LIVE;
        entry == 0 || (entry & LIVE == 0 && rested > QUARANTINE)
    }
}

fn next_clock(clock: u32) -> u32 {
    match (clock + 1) & !LIVE {
        0 => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn a_freed_index_leads_nowhere_and_comes_back_after_its_quarantine() {
        let map = IndexMap::new();
        let mut allocator = IndexAllocator::new(ChaCha20Rng::from_seed([7; 32]));
        let index = allocator.allocate(&map, 5);
        assert_eq!(map.slot(index), Some(5));
        allocator.free(&map, index);
        assert_eq!(map.slot(index), None);
        let is_free =
            |allocator: &IndexAllocator| allocator.is_available(map.entry(index).load(Ordering::Relaxed));
        for _ in 0..=QUARANTINE {
            assert!(!is_free(&allocator));
            allocator.clock = next_clock(allocator.clock);
        }
        assert!(is_free(&allocator));
    }
}
