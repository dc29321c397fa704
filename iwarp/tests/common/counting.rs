//! The system's allocator, counting what each thread asks of it. Not part of `common`: a test program that names this file
//! by its path has it as its allocator.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });

/// How often this thread has allocated, or made an allocation grow.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Runs `act` without counting.
pub(crate) fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let count = ALLOCATIONS.get();
    let result = act();
    ALLOCATIONS.set(count);
    result
}

struct Counting;

// SAFETY: all is the system allocator's; a plain word of the thread is counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller promises what the system's asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, octets: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, octets) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
