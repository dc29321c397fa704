//! The system's allocator, with counters of live allocations by owner and by size.
//!
//! Allocations and deallocations count for the [`Owner`] whose work runs. If an object were allocated by one
//! owner and freed by another, the counters would be wrong. No code here frees an object of another owner.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use benches::two_hosts::Owner;

const OWNERS: usize = 3;

/// Width of a size class in bytes.
const STEP: usize = 8;

/// Number of size classes. The last class has all larger sizes.
const CLASSES: usize = 8192;

/// Number of live bytes by owner.
static BYTES: [AtomicI64; OWNERS] = [const { AtomicI64::new(0) }; OWNERS];

/// Number of live allocations by owner and class.
static COUNTS: [[AtomicI64; CLASSES]; OWNERS] = [const { [const { AtomicI64::new(0) }; CLASSES] }; OWNERS];

/// A snapshot of the live allocations.
#[derive(Clone, Debug)]
pub(crate) struct Census {
    pub(crate) bytes: i64,
    counts: Vec<i64>,
}

impl Census {
    pub(crate) fn take(owner: Owner) -> Self {
        let read = |count: &AtomicI64| count.load(Ordering::Relaxed);
        Self {
            bytes: read(&BYTES[owner as usize]),
            counts: COUNTS[owner as usize].iter().map(read).collect(),
        }
    }

    /// Returns the growth since `before`: the sizes, and the number of allocations of each size. The size
    /// with the largest total is first. The size is `None` for the last class.
    pub(crate) fn growth(&self, before: &Self) -> Vec<(Option<usize>, i64)> {
        let mut growth: Vec<_> = (0..CLASSES)
            .map(|class| {
                ((class + 1 < CLASSES).then_some(class * STEP), self.counts[class] - before.counts[class])
            })
            .filter(|&(_, count)| count != 0)
            .collect();
        growth.sort_by_key(|&(size, count)| std::cmp::Reverse(size.unwrap_or(CLASSES * STEP) as i64 * count));
        growth
    }
}

fn count(bytes: usize, sign: i64) {
    let owner = Owner::current() as usize;
    BYTES[owner].fetch_add(sign * bytes as i64, Ordering::Relaxed);
    COUNTS[owner][bytes.div_ceil(STEP).min(CLASSES - 1)].fetch_add(sign, Ordering::Relaxed);
}

struct Counting;

// SAFETY: each method passes its arguments unchanged to the system allocator, so the guarantees of the system
// allocator hold. The method also updates the counters, which allocates no memory and cannot unwind.
#[allow(unsafe_code, reason = "an allocator is made no other way")]
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller has only the obligations of `GlobalAlloc`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller promises that the layout is not empty, which is all that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller has only the obligations of `GlobalAlloc`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller promises that the layout is not empty, which is all that `System` asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller has only the obligations of `GlobalAlloc`.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(bytes, 1);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. The caller also promises that `bytes` is not 0 and, rounded up to
        // the alignment, not above `isize::MAX`.
        unsafe { System.realloc(ptr, layout, bytes) }
    }

    // SAFETY: the caller has only the obligations of `GlobalAlloc`.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller promises that `ptr` is a block of this allocator with this layout, and every
        // such block came from `System`. The caller also promises that nobody uses the block any more.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_for_an_owner_is_its_own_until_it_is_freed() {
        // No other test uses this owner on this thread. The counters do not distinguish threads, so the test
        // uses unusual sizes.
        let before = Census::take(Owner::Client);
        let boxes = Owner::Client.run(|| [vec![0_u8; 12_345], vec![1_u8; 12_345]]);
        let after = Census::take(Owner::Client);
        let of_size = |growth: Vec<(Option<usize>, i64)>| {
            growth.into_iter().find(|&(size, _)| size == Some(12_352)).map_or(0, |(_, count)| count)
        };
        assert_eq!(of_size(after.growth(&before)), 2);
        Owner::Client.run(|| drop(boxes));
        assert_eq!(of_size(Census::take(Owner::Client).growth(&before)), 0);
    }
}
