//! Memory and descriptors for the start of the engine, before anything is made or read, and memory for
//! objects.
//!
//! The pools, queues and threads of an engine have sizes that do not depend on the program. Most of them are
//! made by allocations that end a process for which there is no memory. So the start asks for all of it
//! first, and gives it back: a process with a limit (`ulimit -v`) gets `ENOMEM` and one line instead. One
//! without descriptors gets `EMFILE`, and is not left with an engine that is half made.
//!
//! The same holds for an object: what it takes, here and in the engine, is asked for before it is made. What
//! the program itself takes meanwhile, on another thread, is not known, so more is asked for than it takes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, ptr};

use rustix::event::{EventfdFlags, eventfd};

use crate::ffi::abi::{self, Errno, Outcome, StartError};

/// Descriptors that the start takes, some of them for a moment.
const START_DESCRIPTORS: usize = 16;

/// Bytes of address space that the start takes, with the stacks of its threads.
const START_BYTES: usize = 112 << 20;

/// Bytes that an object may take besides its queues, with its connection and what allocators keep.
const OBJECT_BYTES: usize = 2 << 20;

/// Bytes that an entry of a work queue takes at most.
pub(crate) const REQUEST_BYTES: usize = 512;

/// Bytes that an entry of a completion queue takes at most.
pub(crate) const COMPLETION_BYTES: usize = 64;

/// Regions for which memory is asked at once: each takes some kilobytes.
const REGIONS: u32 = 64;

/// Checks that there are descriptors and memory for the start.
pub(crate) fn check_for_start() -> Result<(), StartError> {
    let taken: Result<Vec<OwnedFd>, _> =
        (0..START_DESCRIPTORS).map(|_| eventfd(0, EventfdFlags::CLOEXEC)).collect();
    if let Err(errno) = taken {
        let error = io::Error::from(errno);
        let line = format!(
            "no descriptors for the engine ({error}): it takes up to {START_DESCRIPTORS} (ulimit -n)"
        );
        return Err(StartError::with_line(line, &error));
    }
    map_and_unmap(START_BYTES).map_err(|error| {
        let line = format!(
            "no memory for the engine ({error}): it takes {} MiB of address space (ulimit -v)",
            START_BYTES >> 20
        );
        StartError::with_line(line, &error)
    })
}

/// Checks that there is memory for an object whose queues take so many bytes.
///
/// # Errors
/// `ENOMEM`, with a line in the log.
pub(crate) fn check_for_object(bytes: usize) -> Outcome<()> {
    map_and_unmap(OBJECT_BYTES + bytes).map_err(|error| {
        abi::log(|| format!("refused: no memory ({error}): raise the limit of the process (ulimit -v)"));
        Errno(libc::ENOMEM)
    })
}

/// The same for a memory region. Most of them are made in less time than the question takes, so it is asked
/// for [`REGIONS`] of them.
pub(crate) fn check_for_region() -> Outcome<()> {
    static REGISTERED: AtomicU32 = AtomicU32::new(0);
    if REGISTERED.load(Ordering::Relaxed).is_multiple_of(REGIONS) {
        check_for_object(0)?;
    }
    // Counted behind the question: without memory, the next call asks again.
    REGISTERED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Maps so many bytes, and gives them back.
fn map_and_unmap(bytes: usize) -> io::Result<()> {
    // SAFETY: a new private mapping at an address that the kernel chooses, which nobody else uses.
    let place = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0)
    };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was made above, and nobody has its address.
    unsafe { libc::munmap(place, bytes) };
    Ok(())
}
