//! The system's allocator, which counts the allocations of each thread. Not part of `common`: a test program
//! that names this file by its path has it as its allocator.

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

// SAFETY: every call passes to the system allocator unchanged, so its guarantees hold. The two thread-local
// counters allocate nothing, have no destructor and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller meets the contract of `System`'s method, which is the same.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller promises a layout that is not empty, all that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller meets the contract of `System`'s method, which is the same.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + bytes as i64 - layout.size() as i64);
        // SAFETY: the caller promises that this allocator returned `ptr` for this layout, so `System` did,
        // and that `bytes` is not zero and no more than a layout may have.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    // SAFETY: the caller meets the contract of `System`'s method, which is the same.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller promises that this allocator returned `ptr` for this layout, so `System` did,
        // and that `ptr` is not used any more.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
