//! Checks that memory and descriptors are available before the engine starts, and that memory is available
//! before an object is made.
//!
//! The pools, queues and threads of an engine have sizes that do not depend on the program. Most allocations
//! of an engine abort the process if memory is missing. So before the engine starts, the library maps as much
//! memory as the engine needs, and unmaps that memory again. If the process may not map this much memory, the
//! start fails with `ENOMEM`. If the process has too few free descriptors, the start fails with `EMFILE`. In
//! both cases, one line on stderr names the limit (`ulimit`).
//!
//! In the same way the library checks that there is memory for an object before it makes the object. The
//! check maps more memory than the object needs, since other threads of the program may allocate at the same
//! time.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{io, ptr};

use rustix::event::{EventfdFlags, eventfd};

use crate::ffi::abi::{self, EIO, Errno, Outcome, StartError};

/// Number of descriptors that must be free at the start. The engine closes some of its descriptors again.
const START_DESCRIPTORS: usize = 16;

/// Number of bytes of address space that the engine needs, including the stacks of its threads.
const START_BYTES: usize = 112 << 20;

/// Maximum number of bytes that an object needs in addition to its queues, including its connection and the
/// overhead of the allocators.
const OBJECT_BYTES: usize = 2 << 20;

/// Maximum number of bytes of an entry of a work queue.
pub(crate) const REQUEST_BYTES: usize = 512;

/// Maximum number of bytes of an entry of a completion queue.
pub(crate) const COMPLETION_BYTES: usize = 64;

/// Number of memory regions that one check covers. Each region needs a few kilobytes.
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

/// True after the device was removed. From then on no object is made.
static DEVICE_IS_GONE: AtomicBool = AtomicBool::new(false);

/// From now on, every call that would make an object fails.
pub(crate) fn refuse_objects() {
    DEVICE_IS_GONE.store(true, Ordering::Release);
}

/// Checks that there is memory for an object whose queues need `bytes` bytes.
///
/// # Errors
/// Returns `EIO` if the device was removed, as the kernel does. Returns `ENOMEM` if memory is missing, and
/// writes a line to the log.
pub(crate) fn check_for_object(bytes: usize) -> Outcome<()> {
    if DEVICE_IS_GONE.load(Ordering::Acquire) {
        return Err(EIO);
    }
    map_and_unmap(OBJECT_BYTES + bytes).map_err(|error| {
        abi::log(|| format!("refused: no memory ({error}): raise the limit of the process (ulimit -v)"));
        Errno(libc::ENOMEM)
    })
}

/// Checks that there is memory for a memory region. Making a region usually takes less time than the check,
/// so one check covers [`REGIONS`] regions.
pub(crate) fn check_for_region() -> Outcome<()> {
    static REGISTERED: AtomicU32 = AtomicU32::new(0);
    let is_due = REGISTERED.load(Ordering::Relaxed).is_multiple_of(REGIONS);
    if is_due || DEVICE_IS_GONE.load(Ordering::Acquire) {
        check_for_object(0)?;
    }
    // The region is counted after the check, so if the check fails, the next call checks again.
    REGISTERED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn map_and_unmap(bytes: usize) -> io::Result<()> {
    // SAFETY: the kernel chooses an unused address for the new private mapping.
    let place = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0)
    };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was made above, and nobody else uses it.
    unsafe { libc::munmap(place, bytes) };
    Ok(())
}
