//! The system's allocator, which counts the allocations of each thread. This file is not part of `common`: a
//! test program that includes it by its path uses it as its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });
thread_local!(static HELD: Cell<i64> = const { Cell::new(0) });

/// Allocations and growths of allocations by this thread.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes allocated by this thread, less those that it has freed.
pub(crate) fn held() -> i64 {
    HELD.get()
}

/// Runs `act` without counting.
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
    // SAFETY: `GlobalAlloc` has no other obligations than the caller's.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller promises that the layout is not empty, which is all that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: `GlobalAlloc` has no other obligations than the caller's.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + bytes as i64 - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. It also promises that `bytes` is not 0 and, rounded up to the
        // alignment, not above `isize::MAX`.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    // SAFETY: `GlobalAlloc` has no other obligations than the caller's.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. It also promises that nobody uses the block any more.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
