//! The system's allocator, which counts the allocations of each thread. It is the global allocator of the
//! test program `it`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });
thread_local!(static HELD: Cell<i64> = const { Cell::new(0) });

/// Returns the number of blocks that this thread has allocated or reallocated, without those of
/// [`uncounted`].
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Returns the number of bytes that this thread has allocated, minus the number of bytes that it has freed.
pub(crate) fn held() -> i64 {
    HELD.get()
}

/// Runs `act` without counting its allocations in [`allocations`].
pub(crate) fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let count = ALLOCATIONS.get();
    let result = act();
    ALLOCATIONS.set(count);
    result
}

struct Counting;

// SAFETY: every block comes from the system allocator and is returned to it unchanged, with the caller's
// layout, so the guarantees of `System` hold. The two thread-local counters allocate nothing, have no
// destructor and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller meets the requirements of `GlobalAlloc::alloc`; this function adds no requirement.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller promises that the size of `layout` is not 0; `System` requires nothing else.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller meets the requirements of `GlobalAlloc::realloc`; this function adds no requirement.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + bytes as i64 - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. The caller also promises that `bytes` is not 0, and is not above
        // `isize::MAX` after rounding up to the alignment.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    // SAFETY: the caller meets the requirements of `GlobalAlloc::dealloc`; this function adds no requirement.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. The caller also promises that nobody uses the block any more.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
