//! Forks of the process: a child cannot use its parent's wire.
//!
//! A child does not inherit the mappings of rings (`MADV_DONTFORK`). But a child inherits the sockets. If the
//! child kept them open after its parent is killed, peers would not notice the death of the parent. So the
//! child closes the descriptors before `fork` returns. After this, the child's copy of a port does nothing:
//! the port compares [`generation`] with the generation in which it was opened.
//!
//! A child that was created without the C library (by the system call `clone`) keeps the descriptors open,
//! and receives SIGSEGV if it accesses a ring.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Number of forks between the process that opened the first port and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The descriptors that a child closes. If there are more descriptors than elements, the other descriptors
/// are open in children until `exec`.
static OPEN: [AtomicI32; 1024] = [const { AtomicI32::new(FREE) }; 1024];

/// The value of an element without a descriptor.
const FREE: i32 = -1;

/// Returns a number that differs between a process and its forked children.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes children that are forked from now on close the descriptors of ports.
pub(crate) fn watch_for_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for place in &OPEN {
            let fd = place.swap(FREE, Ordering::Relaxed);
            if fd != FREE {
                // SAFETY: an `OwnFd` of the parent owns the descriptor, and the child's copy of this `OwnFd`
                // does not close the descriptor. So nobody else closes the descriptor here. Every use of the
                // descriptor first checks `generation`.
                unsafe { rustix::io::close(fd) };
            }
        }
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `in_child` exists while this library is loaded. The C library removes the handler when it
        // unloads the library. `in_child` only uses atomics and calls `close`, which is allowed in a forked
        // child. If the call fails (no memory), children do not close the descriptors.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor that forked children close.
#[derive(Debug)]
pub struct OwnFd {
    fd: ManuallyDrop<OwnedFd>,
    /// The index of the descriptor in `OPEN`.
    place: Option<usize>,
    generation: u32,
}

impl OwnFd {
    /// Makes an `OwnFd` from `fd`. Children that are forked from now on close the descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        watch_for_forks();
        let place = OPEN.iter().position(|place| {
            place.compare_exchange(FREE, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        Self { fd: ManuallyDrop::new(fd), place, generation: generation() }
    }

    /// Whether the descriptor is open. The result is `false` in a child of the process that opened the
    /// descriptor.
    pub fn is_open(&self) -> bool {
        self.generation == generation()
    }
}

impl AsFd for OwnFd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        debug_assert!(self.is_open(), "a child uses a descriptor of its parent");
        self.fd.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, so nobody uses the field again.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if !self.is_open() {
            // The child has closed the descriptor, and the number may belong to another file now.
            let _: RawFd = fd.into_raw_fd();
            return;
        }
        if let Some(place) = self.place {
            OPEN[place].store(FREE, Ordering::Relaxed);
        }
        drop(fd);
    }
}
