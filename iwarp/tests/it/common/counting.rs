//! The system's allocator, counting what each thread asks of it. Not part of `common`: a test program that
//! names this file by its path has it as its allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static ALLOCATIONS: Cell<u64> = const { Cell::new(0) });
thread_local!(static HELD: Cell<i64> = const { Cell::new(0) });

/// How often this thread has allocated, or made an allocation grow.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated, less those that it has given back.
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

// SAFETY: what is handed out and taken back is the system allocator's, unchanged, so its guarantees hold. Two
// words of the thread are counted beside it, which allocates nothing, is never dropped and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: what is asked of the caller is what `System` asks for.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller promises a layout that is not empty, all that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: what is asked of the caller is what `System` asks for.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + bytes as i64 - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is of this allocator with this layout, so it is of
        // `System`'s, which gave it out; and that `bytes` is not zero and no more than a layout may have.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    // SAFETY: what is asked of the caller is what `System` asks for.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller promises that `ptr` is of this allocator with this layout, so it is of
        // `System`'s, which gave it out, and that nobody uses it any more.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
