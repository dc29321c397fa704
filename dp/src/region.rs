//! Page-aligned zeroed memory for registered buffers. On Linux, a region of at least 1 MiB is in hugepages if
//! enough are free. Other regions are in ordinary pages, for which Linux may use transparent hugepages.
//!
//! A region is an address and a length, but never a slice, since a peer may write the bytes while the
//! application reads them.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Minimum number of bytes of a region in hugepages. A smaller region would waste most of a hugepage.
#[cfg(target_os = "linux")]
const HUGE_MIN_BYTES: usize = 1 << 20;

/// A block of memory with a fixed address. The memory is freed when the region is dropped.
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Number of mapped bytes: `bytes` rounded up to whole pages or hugepages.
    mapped_bytes: usize,
    huge: bool,
}

// SAFETY: a region owns its mapping, and does not access the bytes. Any thread may drop the region, and so
// unmap the mapping. Reads and writes through the address are unsafe code of the user, who has to ensure that
// this code is sound.
unsafe impl Send for Region {}
// SAFETY: `&Region` is only used to read the address and other fields that nobody changes. Through `&Region`,
// no byte of the memory is accessed.
unsafe impl Sync for Region {}

/// The reason why [`Region::new`] could not make a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Zero bytes were requested.
    #[error("a region needs at least one byte")]
    Empty,
    /// The memory cannot be allocated.
    #[error("no memory for a region of {bytes} bytes: {source}")]
    NoMemory {
        /// Number of requested bytes.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The kind is `InvalidInput` or `OutOfMemory`. The `io::Error` contains the `RegionError`.
impl From<RegionError> for std::io::Error {
    fn from(error: RegionError) -> Self {
        let kind = match error {
            RegionError::Empty => std::io::ErrorKind::InvalidInput,
            RegionError::NoMemory { .. } => std::io::ErrorKind::OutOfMemory,
        };
        Self::new(kind, error)
    }
}

impl Region {
    /// Allocates at least `bytes` bytes of zeroed memory. On Linux, the memory is in hugepages of 2 MiB if
    /// enough are free and `bytes` is at least 1 MiB. Otherwise the memory is in ordinary pages.
    ///
    /// # Errors
    /// [`RegionError`] if `bytes` is 0 or the memory cannot be allocated.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        if let Some(region) = Self::huge(bytes) {
            return Ok(region);
        }
        Self::ordinary(bytes)
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of requested bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the region is in hugepages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    fn ordinary(bytes: usize) -> Result<Self, RegionError> {
        let no_memory = |errno: Errno| RegionError::NoMemory { bytes, source: errno.into() };
        let mapped_bytes =
            bytes.checked_next_multiple_of(rustix::param::page_size()).ok_or(no_memory(Errno::NOMEM))?;
        let start = map(mapped_bytes, MapFlags::PRIVATE).map_err(no_memory)?;
        let region = Self { start, bytes, mapped_bytes, huge: false };
        region.advise_transparent_hugepages();
        Ok(region)
    }

    #[cfg(target_os = "linux")]
    fn huge(bytes: usize) -> Option<Self> {
        use rustix::mm::{Advice, madvise};

        if bytes < HUGE_MIN_BYTES {
            return None;
        }
        let mapped_bytes = bytes.checked_next_multiple_of(hugepages::BYTES)?;
        if hugepages::available()? < mapped_bytes / hugepages::BYTES {
            return None;
        }
        let start = map(mapped_bytes, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
        let region = Self { start, bytes, mapped_bytes, huge: true };
        // The mapping reserves the pages, but a limit of the cgroup or of the NUMA policy would cause SIGBUS
        // at the first access. If the pages are populated here, such a limit causes an error instead. Kernels
        // before 5.14 do not support `MADV_POPULATE_WRITE` (`INVAL`).
        //
        // SAFETY: the range is the mapping that `map` has just made, and populating the pages changes no
        // byte.
        let populated = unsafe { madvise(start.as_ptr().cast(), mapped_bytes, Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Some(region),
            Err(_) => None,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn huge(_bytes: usize) -> Option<Self> {
        None
    }

    /// Asks the kernel for transparent hugepages. The request is a hint, so errors are ignored.
    #[cfg(target_os = "linux")]
    fn advise_transparent_hugepages(&self) {
        use rustix::mm::{Advice, madvise};

        if self.bytes >= HUGE_MIN_BYTES {
            // SAFETY: the range is the mapping that `map` has made for this region, and the advice changes no
            // byte.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.mapped_bytes, Advice::LinuxHugepage) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_transparent_hugepages(&self) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `map` has made only for this region, and only this code
        // unmaps the range. Safe code cannot access the mapping by its address. Unsafe code that does so must
        // keep the region until the last access.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, bytes, mapped_bytes: _, huge } = self;
        f.debug_struct("Region").field("start", start).field("bytes", bytes).field("huge", huge).finish()
    }
}

// RFC 5042 appendix A (SEC-179): an anonymous mapping is zeroed, so a peer cannot read earlier contents of
// the memory.
fn map(bytes: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the kernel chooses an unused address, so the new mapping replaces nothing.
    let start = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

#[cfg(target_os = "linux")]
mod hugepages {
    pub(super) const BYTES: usize = 2 << 20;

    /// Number of hugepages that are free and not reserved. `None` if the number is not known, for example
    /// because the kernel does not support this size.
    pub(super) fn available() -> Option<usize> {
        let count = |name: &str| -> Option<usize> {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        count("free_hugepages")?.checked_sub(count("resv_hugepages")?)
    }
}
