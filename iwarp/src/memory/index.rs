//! From the 24 unpredictable bits of an STag to its slot, in two loads.
//!
//! A table of 4096 pages of 4096 entries. A page (16 KiB) is made with the first STag in it: the table costs
//! 32 KiB at first and 64 MiB when some tens of thousands of STags have been made. Readers take no lock.
//! Writers are serialised by the table's control lock.
//!
//! Entries remember when they were freed: an index comes back only after [`QUARANTINE`] others were handed
//! out.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rand_chacha::ChaCha20Rng;
use rand_core::Rng;
use zerocopy::FromZeros;

use crate::memory::stag::Stag;

/// How many indices are handed out before a freed one may come again (RFC 5042 section 6.1.1).
pub(super) const QUARANTINE: u32 = 1 << 20;

/// Indices in use at once, at most (half for registrations, half for windows): with the quarantine it keeps
/// the space sparse.
pub(super) const MAX_LIVE: usize = 1 << 21;

const PAGE: usize = 1 << 12;
/// Set in the entry of an index in use; the rest is the slot's number.
const LIVE: u32 = 1 << 31;

type Page = [AtomicU32; PAGE];

/// Index to slot number.
pub(super) struct IndexMap {
    /// Null until there is a page. A page stays until the map is dropped.
    pages: Box<Directory>,
}

type Directory = [AtomicPtr<Page>; PAGE];

/// What only the holder of the control lock touches.
pub(super) struct IndexAllocator {
    rng: ChaCha20Rng,
    /// Counts indices handed out, modulo 2^31; never 0, which marks an entry that was never used.
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

    /// The page at a place of the directory, if there is one.
    fn page(&self, place: &AtomicPtr<Page>) -> Option<&Page> {
        // SAFETY: a pointer that is not null is that of a page which `add_page` made before it stored the
        // pointer (Acquire pairs with its Release). A page is only ever reached as shared atomics, and is
        // freed by the drop of the map, which outlives the reference.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn add_page(&self, place: &AtomicPtr<Page>) -> &Page {
        let page = Box::into_raw(zeroed::<Page>());
        match place.compare_exchange(ptr::null_mut(), page, Ordering::Release, Ordering::Acquire) {
            // SAFETY: the page is in the directory from now on, and is freed by the drop of the map alone.
            Ok(_) => unsafe { &*page },
            Err(first) => {
                // SAFETY: `page` is the box of above, which nobody else has seen.
                drop(unsafe { Box::from_raw(page) });
                // SAFETY: `first` is a page of the directory, which the drop of the map alone frees.
                unsafe { &*first }
            }
        }
    }
}

impl Drop for IndexMap {
    fn drop(&mut self) {
        for page in self.pages.iter_mut().filter_map(|place| NonNull::new(*place.get_mut())) {
            // SAFETY: the pointer is that of a box of `add_page`, which stands in one place of the directory;
            // the map is borrowed by nobody any more.
            drop(unsafe { Box::from_raw(page.as_ptr()) });
        }
    }
}

/// A value of zeros, made where it stays.
fn zeroed<T: FromZeros>() -> Box<T> {
    T::new_box_zeroed().expect("memory for a page")
}

impl IndexAllocator {
    pub(super) fn new(rng: ChaCha20Rng) -> Self {
        Self { rng, clock: 0 }
    }

    /// Picks an index at random and maps it to `slot`. Index 0 is never picked, so that no STag is 0.
    ///
    /// At most [`MAX_LIVE`] are live and [`QUARANTINE`] resting, less than a fifth of all: a few draws find
    /// one.
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
