//! Memory that two processes share: a mapping of a memfd.
//!
//! The other process may write any byte at any time, so the mapping is treated like device memory. Words
//! that both sides use are atomics. All other bytes are copied in and out by raw copies; no slice and no
//! reference to them exists. A value that was read is only acted on after it was copied to private memory.
//!
//! Rust's memory model says nothing about another process. The copies rely on LLVM's semantics instead: a
//! racing load returns any mixture of old and stored bytes, and has no other effect. A compiler fence behind
//! each copy keeps the compiler from reading the source again instead of the copy.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::copy_strategy::CopyStrategy;
use super::{fork, streaming};

/// The file system of a memfd in ordinary pages (`TMPFS_MAGIC` of Linux).
const TMPFS: u64 = 0x0102_1994;

/// The file never changes its size, so that every page of the mapping stays valid.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A new memfd of `bytes` zeroes, which cannot change its size. The pages of the ranges in `used` are
/// allocated now, so a lack of memory is an error here and not a SIGBUS later. Other pages have to be
/// allocated with [`SharedMemory::take`] before they are used.
pub(super) fn create(bytes: usize, used: impl IntoIterator<Item = Range<usize>>) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 and later may be configured to refuse a memfd without `MFD_NOEXEC_SEAL`. Earlier kernels do
    // not know the flag.
    let memfd = match rustix::fs::memfd_create("uwarp-local", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("uwarp-local", flags)?,
        other => other?,
    };
    ftruncate(&memfd, bytes as u64)?;
    let take = |range: Range<usize>| {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&memfd, flags, range.start as u64, range.len() as u64)
    };
    if takes_later() {
        used.into_iter().try_for_each(take)?;
    } else {
        take(0..bytes)?;
    }
    fcntl_add_seals(&memfd, FIXED_SIZE | SealFlags::SEAL)?;
    Ok(memfd)
}

/// Whether [`SharedMemory::take`] works (Linux 5.14 and later). Without it all pages are allocated at the
/// start.
fn takes_later() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    // SAFETY: an empty range has no page that the advice could be for.
    *TAKES.get_or_init(|| unsafe { madvise(null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok())
}

/// Whether a descriptor that another process sent refers to a file such as [`create`] makes.
pub(super) fn is_fit(memfd: impl AsFd, bytes: usize) -> bool {
    let memfd = memfd.as_fd();
    // A file in hugepages could lose a page, and an access to it would be a SIGBUS.
    fstat(memfd).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(bytes as u64))
        && fstatfs(memfd).is_ok_and(|fs| u64::try_from(fs.f_type) == Ok(TMPFS))
        && fcntl_get_seals(memfd).is_ok_and(|seals| seals.contains(FIXED_SIZE))
}

/// A mapping of a memfd of fixed size.
#[derive(Debug)]
pub(super) struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
    /// The process that mapped it. A forked child does not have the mapping.
    generation: u32,
}

// SAFETY: the mapping belongs to the value alone, and is accessed by atomics and raw copies, which any thread
// may do. Any thread may unmap it.
unsafe impl Send for SharedMemory {}
// SAFETY: through `&SharedMemory` the mapping is accessed by atomics and raw copies only. The other process
// does the same at any time, so another thread makes no difference: bytes may be any mixture.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps the first `bytes` bytes of a file that [`create`] made, or that [`is_fit`].
    pub(super) fn map(memfd: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without an address to place it at, a new mapping replaces nothing.
        let start = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, memfd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let memory = Self { start, bytes, generation: fork::generation() };
        // A child that wrote to a ring would break the connection of its parent.
        //
        // SAFETY: the range is the mapping that was just made, and the advice changes no byte.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(memory)
    }

    /// Allocates the pages of this range, which must begin and end at a page boundary. The contents stay
    /// unchanged; pages that were allocated before stay.
    ///
    /// # Errors
    /// Those of `madvise`: there is no memory.
    ///
    /// # Panics
    /// If the range reaches beyond the mapping.
    pub(super) fn take(&self, range: Range<usize>) -> Result<(), Errno> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?}");
        if !takes_later() {
            return Ok(());
        }
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: the range lies inside the mapping, as was just checked. The advice faults its pages in, as
        // a store of the value that each byte has would do, and changes none.
        unsafe { madvise(start.cast(), range.len(), Advice::LinuxPopulateWrite) }
    }

    /// Its size.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The word at this offset.
    ///
    /// # Panics
    /// If it reaches beyond the mapping, or is not aligned.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.bytes && self.bytes - at >= 8, "word {at}");
        let word: *mut u64 = self.start.as_ptr().wrapping_add(at).cast();
        // SAFETY: the eight bytes lie inside the mapping, as was just checked, which is writable and lives as
        // long as the reference. The mapping begins at a page, so they are aligned. Everybody accesses them
        // as an atomic: ours by this function alone, and what the other process does is any value.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies `bytes` to this offset, by `strategy` if they are long.
    ///
    /// # Panics
    /// If they reach beyond the mapping.
    #[inline]
    pub(super) fn copy_in(&self, at: usize, bytes: &[u8], strategy: CopyStrategy) {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at, "{} bytes at {at}", bytes.len());
        let to = self.start.as_ptr().wrapping_add(at);
        if strategy == CopyStrategy::ThroughCaches || bytes.len() < streaming::MIN_BYTES {
            // SAFETY: the bytes lie inside the mapping, as was just checked, which is writable. No slice or
            // reference to it exists, and `bytes` lies elsewhere. The other process may access the bytes at
            // the same time: see the module.
            unsafe { bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len()) };
        } else {
            // SAFETY: as above.
            unsafe { streaming::copy(to, bytes) };
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies from this offset to `out`.
    ///
    /// # Panics
    /// If they reach beyond the mapping.
    #[inline]
    pub(super) fn copy_out(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.bytes && out.len() <= self.bytes - at, "{} bytes at {at}", out.len());
        let from = self.start.as_ptr().wrapping_add(at);
        // SAFETY: the bytes lie inside the mapping, as was just checked, which is readable and initialised.
        // No slice or reference to it exists, so `out` lies elsewhere. The other process may write the bytes
        // at the same time: see the module.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        compiler_fence(Ordering::SeqCst);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A forked child does not have the mapping; the range may be another mapping there.
            return;
        }
        // SAFETY: the range is the mapping that `map` made for this value alone, and it is unmapped here
        // only. References to its words are bound to the value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets are computed from positions that another process may have written.
    #[test]
    fn a_word_lies_inside_and_is_aligned() {
        let memory = SharedMemory::map(create(8192, std::iter::once(0..8192)).unwrap(), 8192).unwrap();
        memory.word(8184).store(7, Ordering::Relaxed);
        assert_eq!(memory.word(8184).load(Ordering::Relaxed), 7);
        for at in [4, 8180, 8188, 8192, usize::MAX - 7] {
            let found = std::panic::catch_unwind(|| memory.word(at).load(Ordering::Relaxed));
            assert!(found.is_err(), "{at}");
        }
    }

    /// The process that receives a file cannot add seals.
    #[test]
    fn nobody_can_seal_a_file_further() {
        let memfd = create(8192, std::iter::once(0..8192)).unwrap();
        let seals = fcntl_get_seals(&memfd).unwrap();
        assert!(seals.contains(FIXED_SIZE | SealFlags::SEAL) && !seals.contains(SealFlags::WRITE));
        assert_eq!(fcntl_add_seals(&memfd, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
        assert_eq!(ftruncate(&memfd, 4096), Err(Errno::PERM));
    }

    /// A file in hugepages could lose a page, and an access to it would be a SIGBUS.
    #[test]
    fn a_file_in_hugepages_is_not_fit() {
        let sealed = |flags| {
            let memfd = rustix::fs::memfd_create("hugepages", flags | MemfdFlags::ALLOW_SEALING).ok()?;
            ftruncate(&memfd, 2 << 20).ok()?;
            fcntl_add_seals(&memfd, FIXED_SIZE).ok()?;
            Some(memfd)
        };
        assert!(is_fit(sealed(MemfdFlags::CLOEXEC).unwrap(), 2 << 20));
        let Some(huge) = sealed(MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) else {
            // The kernel has no hugepages.
            return;
        };
        assert!(!is_fit(huge, 2 << 20));
    }

    /// A child that wrote to a ring would break the connection of its parent.
    #[test]
    fn a_mapping_is_not_inherited() {
        let memory = SharedMemory::map(create(8192, std::iter::once(0..8192)).unwrap(), 8192).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // The line of a mapping, those of its properties, and its flags.
        let start = format!("{:x}-", memory.start.as_ptr().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}
