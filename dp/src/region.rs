//! Page-aligned zeroed memory for registered buffers: hugepages if there are any, otherwise ordinary
//! pages.
//!
//! A region is an address and a length, never a slice: a peer may write the bytes while the application
//! reads them.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Minimum bytes for hugepages: a smaller region would waste most of the page.
#[cfg(target_os = "linux")]
const HUGE_MIN_BYTES: usize = 1 << 20;

/// A block of memory with a stable address, freed on drop.
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes mapped: `bytes` rounded up to whole pages of the kind used.
    mapped_bytes: usize,
    huge: bool,
}

// SAFETY: a region owns its mapping, accesses none of its bytes, and unmaps it on drop, which any thread may
// do. Reads and writes through the address are unsafe code of the user, with its own argument.
unsafe impl Send for Region {}
// SAFETY: through `&Region` only the address and other fields that nobody changes are read, and no byte is
// accessed.
unsafe impl Sync for Region {}

/// Why [`Region::new`] made no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Zero bytes were requested.
    #[error("a region needs at least one byte")]
    Empty,
    /// The system has no memory.
    #[error("no memory for a region of {bytes} bytes: {source}")]
    NoMemory {
        /// Bytes requested.
        bytes: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// `InvalidInput` or `OutOfMemory`; the error itself is kept.
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
    /// Zeroed memory of at least `bytes`: in 2 MiB hugepages if enough are free and `bytes` is at least
    /// 1 MiB, else in ordinary pages.
    ///
    /// # Errors
    /// [`RegionError`] if `bytes` is 0 or the system has no memory.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        if let Some(region) = Self::huge(bytes) {
            return Ok(region);
        }
        Self::ordinary(bytes)
    }

    /// Address of its first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes requested.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it is in hugepages.
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
        // The mapping reserves the pages, but a limit of the cgroup or of the NUMA policy applies at the
        // first access, with SIGBUS. Populating the pages here turns that into an error; kernels before 5.14
        // cannot (`INVAL`).
        //
        // SAFETY: the range is the mapping that `map` just made, and populating it changes no byte.
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

    /// Asks the kernel for transparent hugepages. This is a hint, so errors are ignored.
    #[cfg(target_os = "linux")]
    fn advise_transparent_hugepages(&self) {
        use rustix::mm::{Advice, madvise};

        if self.bytes >= HUGE_MIN_BYTES {
            // SAFETY: the range is the mapping that `map` made for this region, and the advice changes no
            // byte.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.mapped_bytes, Advice::LinuxHugepage) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_transparent_hugepages(&self) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `map` made for this region alone, and it is unmapped here
        // only. Safe code cannot access it by the address; unsafe code that does must keep the region.
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

// RFC 5042 appendix A (SEC-179): an anonymous mapping is zeroed, so a peer reads nothing that was there
// before.
fn map(bytes: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: without an address to place it at, a new anonymous mapping replaces nothing.
    let start = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

#[cfg(target_os = "linux")]
mod hugepages {
    /// Size of the hugepages used.
    pub(super) const BYTES: usize = 2 << 20;

    /// Hugepages that are free and not reserved; `None` if the kernel has none of this size.
    pub(super) fn available() -> Option<usize> {
        let count = |name: &str| -> Option<usize> {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        count("free_hugepages")?.checked_sub(count("resv_hugepages")?)
    }
}
