//! Page-aligned zeroed memory for registered buffers: hugepages where there are any, ordinary pages where not.
//!
//! A region is an address and a length, never a slice: a peer may write the octets while the application looks.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Regions from this size on ask for hugepages; below, most of the page would be wasted.
#[cfg(target_os = "linux")]
const HUGE_MIN_OCTETS: usize = 1 << 20;

/// A block of memory with a stable address, given back on drop.
pub struct Region {
    start: NonNull<u8>,
    octets: usize,
    /// Octets mapped: `octets` up to whole pages of the kind that backs it.
    mapped_octets: usize,
    huge: bool,
}

// SAFETY: a region owns its mapping and shows only its address; whoever reads or writes through it answers for
// that, on any thread.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives access to no octet.
unsafe impl Sync for Region {}

/// Why a region could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Zero octets asked for.
    #[error("a region needs at least one octet")]
    Empty,
    /// The system refused.
    #[error("no memory for a region of {octets} octets: {source}")]
    NoMemory {
        /// Octets asked for.
        octets: usize,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Region {
    /// Zeroed memory of at least `octets`: from 2 MiB hugepages when enough are free and `octets` is at least
    /// 1 MiB, else ordinary pages.
    ///
    /// # Errors
    /// [`RegionError`] when `octets` is 0 or the system has no memory.
    pub fn new(octets: usize) -> Result<Self, RegionError> {
        if octets == 0 {
            return Err(RegionError::Empty);
        }
        if let Some(region) = Self::huge(octets) {
            return Ok(region);
        }
        Self::ordinary(octets)
    }

    /// Its first octet.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Octets asked for.
    pub fn len(&self) -> usize {
        self.octets
    }

    /// Never: a region has at least one octet.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether hugepages back it.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    fn ordinary(octets: usize) -> Result<Self, RegionError> {
        let no_memory = |errno: Errno| RegionError::NoMemory { octets, source: errno.into() };
        let mapped_octets =
            octets.checked_next_multiple_of(rustix::param::page_size()).ok_or(no_memory(Errno::NOMEM))?;
        let start = map(mapped_octets, MapFlags::PRIVATE).map_err(no_memory)?;
        let region = Self { start, octets, mapped_octets, huge: false };
        region.advise_transparent_hugepages();
        Ok(region)
    }

    #[cfg(target_os = "linux")]
    fn huge(octets: usize) -> Option<Self> {
        use rustix::mm::{Advice, madvise};

        if octets < HUGE_MIN_OCTETS {
            return None;
        }
        let mapped_octets = octets.checked_next_multiple_of(hugepages::OCTETS)?;
        if hugepages::available()? < mapped_octets / hugepages::OCTETS {
            return None;
        }
        let start = map(mapped_octets, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB).ok()?;
        let region = Self { start, octets, mapped_octets, huge: true };
        // The mapping reserves the pages, yet a limit of the cgroup or NUMA policy strikes on first touch, by
        // SIGBUS. Touch them here, where the refusal is an error; a kernel before 5.14 cannot (`INVAL`).
        //
        // SAFETY: the range is exactly our fresh mapping, and populating changes no octet.
        let populated = unsafe { madvise(start.as_ptr().cast(), mapped_octets, Advice::LinuxPopulateWrite) };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Some(region),
            Err(_) => None,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn huge(_octets: usize) -> Option<Self> {
        None
    }

    /// Asks the kernel to join ordinary pages; a hint, so its refusal is of no consequence.
    #[cfg(target_os = "linux")]
    fn advise_transparent_hugepages(&self) {
        use rustix::mm::{Advice, madvise};

        if self.octets >= HUGE_MIN_OCTETS {
            // SAFETY: the range is exactly our mapping, and the advice changes no octet.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), self.mapped_octets, Advice::LinuxHugepage) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_transparent_hugepages(&self) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, unmapped here only; who kept the address past the region
        // broke the contract of the raw pointer.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_octets) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, octets, mapped_octets: _, huge } = self;
        f.debug_struct("Region").field("start", start).field("octets", octets).field("huge", huge).finish()
    }
}

fn map(octets: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe { mmap_anonymous(null_mut(), octets, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

#[cfg(target_os = "linux")]
mod hugepages {
    /// Octets of the hugepages that are asked for.
    pub(super) const OCTETS: usize = 2 << 20;

    /// Hugepages that are neither used nor promised to a mapping; `None` where the kernel has none.
    pub(super) fn available() -> Option<usize> {
        let count = |name: &str| -> Option<usize> {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        count("free_hugepages")?.checked_sub(count("resv_hugepages")?)
    }
}
