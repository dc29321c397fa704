//! Forks of the process: a child has no part in its parent's wire.
//!
//! The mappings of rings are not inherited (`MADV_DONTFORK`). Descriptors are, until the child calls `exec`.
//! A child that kept them would keep the sockets open after its parent is killed, and peers would not
//! notice. So they are closed in the child before `fork` returns there. The child's copy of a port then does
//! nothing: the port compares [`generation`] with the generation in which it was opened.
//!
//! A child that was created without the C library (by a bare `clone` system call) keeps the descriptors, and
//! gets a SIGSEGV if it uses the port.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// How many forks lie between this process and the process that opened the first port.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a child closes. Descriptors beyond this number stay open in children until `exec`.
static OPEN: [AtomicI32; 1024] = [const { AtomicI32::new(FREE) }; 1024];

/// No descriptor.
const FREE: i32 = -1;

/// Changes in every child that is forked.
#[inline]
pub(super) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes children that are forked from now on close the descriptors of ports.
fn watch_for_forks() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        for place in &OPEN {
            let fd = place.swap(FREE, Ordering::Relaxed);
            if fd != FREE {
                // SAFETY: the number is that of an `OwnFd` of the parent, which does not close it in a child.
                // So nobody else closes it here, and every use of it checks `generation` first.
                unsafe { rustix::io::close(fd) };
            }
        }
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `in_child` stays for the life of this library; the C library removes the handler when it
        // unloads the library. It only uses atomics and calls `close`, which is allowed in a forked child.
        // On failure (no memory) children keep the descriptors.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A descriptor that is not open in children.
#[derive(Debug)]
pub struct OwnFd {
    fd: ManuallyDrop<OwnedFd>,
    /// Its place in `OPEN`.
    place: Option<usize>,
    generation: u32,
}

impl OwnFd {
    /// Makes children that are forked from now on close the descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        watch_for_forks();
        let place = OPEN.iter().position(|place| {
            place.compare_exchange(FREE, fd.as_raw_fd(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        Self { fd: ManuallyDrop::new(fd), place, generation: generation() }
    }

    /// Whether it is open: false in a child of the process that opened it.
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
            // The child has closed it, and the number may be that of another file.
            let _: RawFd = fd.into_raw_fd();
            return;
        }
        if let Some(place) = self.place {
            OPEN[place].store(FREE, Ordering::Relaxed);
        }
        drop(fd);
    }
}
