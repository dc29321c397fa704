//! The file descriptors of this process. Drivers open some that DPDK's API does not return.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// Duplicates of all descriptors of this process, by their numbers, the lowest first.
pub(super) fn all() -> impl Iterator<Item = OwnedFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut numbers: Vec<RawFd> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|number| {
        // SAFETY: the value is never -1, as names in this folder have no sign, and lives for one `fcntl` that
        // duplicates the descriptor. Another thread may have closed it since: then the call fails, or
        // duplicates what has taken the number. Neither does harm: the duplicate is ours, and callers check
        // what file it is before they use it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        borrowed.try_clone_to_owned().ok()
    })
}

/// The inode of an open file: unique among files of its kind while the file exists.
pub(super) fn inode(file: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|stat| stat.st_ino)
}
