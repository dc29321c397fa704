//! Memory and descriptors for the start of the engine, before anything is made or read.
//!
//! The pools, queues and threads of an engine have sizes that do not depend on the program. Most of them are
//! made by allocations that end a process for which there is no memory. So the start asks for all of it
//! first, and gives it back: a process with a limit (`ulimit -v`) gets `ENOMEM` and one line instead. One
//! without descriptors gets `EMFILE`, and is not left with an engine that is half made.

use std::os::fd::OwnedFd;
use std::{io, ptr};

use rustix::event::{EventfdFlags, eventfd};

use crate::abi::StartError;

/// Descriptors that the start takes, some of them for a moment.
const START_DESCRIPTORS: usize = 16;

/// Bytes of address space that the start takes, with the stacks of its threads.
const START_BYTES: usize = 112 << 20;

/// Checks that there are descriptors and memory for the start.
pub(crate) fn check() -> Result<(), StartError> {
    let taken: Result<Vec<OwnedFd>, _> =
        (0..START_DESCRIPTORS).map(|_| eventfd(0, EventfdFlags::CLOEXEC)).collect();
    if let Err(errno) = taken {
        let error = io::Error::from(errno);
        let line = format!(
            "no descriptors for the engine ({error}): it takes up to {START_DESCRIPTORS} (ulimit -n)"
        );
        return Err(StartError::with_line(line, &error));
    }
    // SAFETY: a new private mapping at an address that the kernel chooses, which nobody else uses.
    let place = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), START_BYTES, access, flags, -1, 0)
    };
    if place == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        let line = format!(
            "no memory for the engine ({error}): it takes {} MiB of address space (ulimit -v)",
            START_BYTES >> 20
        );
        return Err(StartError::with_line(line, &error));
    }
    // SAFETY: the mapping was made above, and nobody has its address.
    unsafe { libc::munmap(place, START_BYTES) };
    Ok(())
}
