//! Memory that two processes share: a mapping of a memfd ([`Mapping`]).
//!
//! The other process may write any byte of a [`SharedMemory`] at any time, so this mapping is treated like
//! device memory. Words that both sides use are accessed as atomics. All other bytes are accessed by raw
//! copies, or by atomic stores that only fetch their cache lines (`ring.rs`). There is never a slice of the
//! mapping. Code uses a value only after the value was copied to private memory. Memory that only one of the
//! processes writes has other rules ([`pool`](super::pool)).
//!
//! Rust's memory model does not cover other processes. The copies rely on LLVM's semantics instead: a racing
//! load returns any mixture of old and stored bytes, and has no other effect. After each copy there is a
//! compiler fence, so that the compiler does not read the source again instead of the copy.

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

/// The seals that fix the size of a file. With these seals, the mapping never exceeds the file.
pub(super) const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Number of bytes of a page of memory.
pub(super) const PAGE_BYTES: usize = 4096;

/// Makes a memfd that no program can be run from, if the kernel knows this flag.
pub(super) fn memfd(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    // Linux 6.3 and later may be configured to refuse a memfd without `MFD_NOEXEC_SEAL`. Earlier kernels do
    // not know this flag.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

/// Makes a memfd of `bytes` zeroed bytes with a fixed size. The pages of the ranges in `used` are allocated
/// now, so that a lack of memory is an error of this call and not a SIGBUS later. All other pages have to be
/// allocated with [`SharedMemory::take`] before they are used.
pub(super) fn create(bytes: usize, used: impl IntoIterator<Item = Range<usize>>) -> Result<OwnedFd, Errno> {
    let memfd = memfd("uwarp-local", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
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

/// Whether [`SharedMemory::take`] works (Linux 5.14 and later). If `take` does not work, all pages are
/// allocated at the start.
pub(super) fn takes_later() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    // SAFETY: the range is empty, so the advice affects no page.
    *TAKES.get_or_init(|| unsafe { madvise(null_mut(), 0, Advice::LinuxPopulateWrite) }.is_ok())
}

/// Whether a descriptor that another process has sent refers to a file like those that [`create`] makes: a
/// file of `bytes` bytes, in ordinary pages, with a fixed size.
pub(super) fn is_fit(memfd: impl AsFd, bytes: usize) -> bool {
    let memfd = memfd.as_fd();
    // A file in hugepages could lose a page, and an access to this page would cause a SIGBUS.
    fstat(memfd).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(bytes as u64))
        && fstatfs(memfd).is_ok_and(|fs| u64::try_from(fs.f_type) == Ok(TMPFS))
        && fcntl_get_seals(memfd).is_ok_and(|seals| seals.contains(FIXED_SIZE))
}

/// A mapping of a whole memfd with a fixed size. Any thread may use the address, and may drop the mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The fork generation of the process that has the mapping. A forked child does not have the mapping.
    generation: u32,
}

// SAFETY: the mapping belongs only to this value, which accesses no byte of the mapping. Any thread may unmap
// the mapping.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` only gives out the address and the length, which nobody changes, and allocates pages,
// which changes no byte. The users of the address say why their accesses are sound.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of a memfd with a fixed size.
    pub(super) fn new(memfd: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses an unused address, so the new mapping replaces nothing.
        let start = unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, memfd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { start, bytes, generation: fork::generation() };
        // A forked child that wrote to the mapping would break a connection or change a message of its
        // parent.
        //
        // SAFETY: the range is the mapping that was just made, and the advice changes no byte.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    /// The address of the first byte, which is valid until this value is dropped.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Allocates the pages of this range, which must begin at a page boundary, and must end at a page
    /// boundary or at the end of the mapping. The contents do not change. If [`takes_later`] returns `false`,
    /// all pages are already allocated.
    ///
    /// # Errors
    /// The error of `madvise`, if the memory cannot be allocated.
    ///
    /// # Panics
    /// If the range exceeds the mapping.
    pub(super) fn take(&self, range: Range<usize>) -> Result<(), Errno> {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?}");
        if !takes_later() {
            return Ok(());
        }
        let start = self.start.as_ptr().wrapping_add(range.start);
        // SAFETY: the range is inside the mapping, as was just checked. The advice allocates the pages as a
        // write would, but changes no byte.
        unsafe { madvise(start.cast(), range.len(), Advice::LinuxPopulateWrite) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A forked child does not have the mapping. In the child the range may be another mapping.
            return;
        }
        // SAFETY: the range is the mapping that `new` has made only for this value, and only this code unmaps
        // the range. Users of the address hold the owner of this value: references to words borrow their
        // `SharedMemory`, a pool holds its `PoolMemory`, and each view of a peer's page holds the `PeerPool`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}

/// Memory that this process and another process read and write. Through `&SharedMemory` the mapping is
/// accessed only by atomics and raw copies. The other process may access the mapping in the same way at any
/// time. So code already expects any mixture of bytes, and a second thread changes nothing.
#[derive(Debug)]
pub(super) struct SharedMemory(Mapping);

impl SharedMemory {
    /// Maps the first `bytes` bytes of a file that [`create`] has made, or for which [`is_fit`] has returned
    /// `true`.
    pub(super) fn map(memfd: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        Ok(Self(Mapping::new(memfd, bytes, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// Calls [`Mapping::take`].
    ///
    /// # Errors
    /// # Panics
    /// As [`Mapping::take`].
    pub(super) fn take(&self, range: Range<usize>) -> Result<(), Errno> {
        self.0.take(range)
    }

    pub(super) fn len(&self) -> usize {
        self.0.bytes
    }

    /// Returns the word at this offset.
    ///
    /// # Panics
    /// If the word exceeds the mapping, or is not aligned.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.0.bytes && self.0.bytes - at >= 8, "word {at}");
        let word: *mut u64 = self.0.start.as_ptr().wrapping_add(at).cast();
        // SAFETY: the eight bytes are inside the mapping, as was just checked. The mapping is writable, and
        // is not unmapped while the reference exists. The mapping begins at a page boundary, so the bytes are
        // aligned. While the reference exists, this process makes no raw copy of the bytes: each side of a
        // ring belongs to one port, and the port uses the reference for one access. The other process may
        // store any value.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies `bytes` to this offset. If `bytes` is long, the copy uses `strategy`.
    ///
    /// # Panics
    /// If `bytes` would exceed the mapping.
    #[inline]
    pub(super) fn copy_in(&self, at: usize, bytes: &[u8], strategy: CopyStrategy) {
        assert!(at <= self.0.bytes && bytes.len() <= self.0.bytes - at, "{} bytes at {at}", bytes.len());
        let to = self.0.start.as_ptr().wrapping_add(at);
        if strategy == CopyStrategy::ThroughCaches || bytes.len() < streaming::MIN_BYTES {
            // SAFETY: the range is inside the mapping, as was just checked, and the mapping is writable.
            // There is no slice of the mapping, so `bytes` is in other memory. The other process may access
            // the range at the same time: see the module's documentation.
            unsafe { bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len()) };
        } else {
            // SAFETY: the range is inside the mapping, as was just checked, and the mapping is writable.
            // There is no slice of the mapping, so `bytes` is in other memory. The other process may access
            // the range at the same time: see the module's documentation.
            unsafe { streaming::copy(to, bytes) };
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies from this offset to `out`.
    ///
    /// # Panics
    /// If `out` is longer than the rest of the mapping.
    #[inline]
    pub(super) fn copy_out(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.0.bytes && out.len() <= self.0.bytes - at, "{} bytes at {at}", out.len());
        let from = self.0.start.as_ptr().wrapping_add(at);
        // SAFETY: the range is inside the mapping, as was just checked, and the mapping is readable and
        // initialised. There is no slice of the mapping, so `out` is in other memory. The other process may
        // write to the range at the same time: see the module's documentation.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // The kernel does not support hugepages.
            return;
        };
        assert!(!is_fit(huge, 2 << 20));
    }

    /// A forked child that wrote to a ring would break the connection of its parent.
    #[test]
    fn a_mapping_is_not_inherited() {
        let memory = SharedMemory::map(create(8192, std::iter::once(0..8192)).unwrap(), 8192).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // The file has a line for each mapping. After this line there are lines with the properties and the
        // flags of the mapping.
        let start = format!("{:x}-", memory.0.start.as_ptr().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
    }
}
