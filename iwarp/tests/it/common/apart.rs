//! Memory at addresses that the kernel does not choose for other mappings. So a range that a test unmaps
//! stays unmapped while other tests map memory.

use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// The address of the next mapping. The kernel places mappings downwards from the stack, and a program's heap
/// upwards from its image. So the kernel uses the terabytes between the stack and the heap last. The first
/// value (2^37) is also within the 39-bit address space of some aarch64 kernels.
static NEXT: AtomicUsize = AtomicUsize::new(0x20_0000_0000);

/// Maps `bytes` bytes for this test alone, and returns their address. `bytes` is a multiple of the page size.
///
/// # Panics
///
/// Panics if a part of the range is already mapped.
pub(crate) fn apart(bytes: usize, rights: ProtFlags) -> *mut u8 {
    const GAP: usize = 1 << 20;
    let place = NEXT.fetch_add(bytes + GAP, Ordering::Relaxed);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with FIXED_NOREPLACE, the call replaces no mapping: if the address is in use, the call fails.
    let start = unsafe { mmap_anonymous(without_provenance_mut(place), bytes, rights, flags) }.unwrap();
    assert_eq!(start.addr(), place);
    start.cast()
}
