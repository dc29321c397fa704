//! Memory where the kernel puts nothing else, so that what a test unmaps stays unmapped while other tests
//! map.

use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The kernel places mappings downwards from the stack, and a program's heap upwards from its image; between
/// them are terabytes that it comes to last. Below 2^38, for aarch64 with the smallest of its address spaces.
static NEXT: AtomicUsize = AtomicUsize::new(0x20_0000_0000);

/// So many bytes that are this test's alone, whole pages.
///
/// # Panics
///
/// If somebody is there already.
pub(crate) fn apart(bytes: usize, rights: ProtFlags) -> *mut u8 {
    const GAP: usize = 1 << 20;
    let place = NEXT.fetch_add(bytes + GAP, Ordering::Relaxed);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a mapping that replaces nothing.
    let start = unsafe { mmap_anonymous(without_provenance_mut(place), bytes, rights, flags) }.unwrap();
    assert_eq!(start.addr(), place);
    start.cast()
}
