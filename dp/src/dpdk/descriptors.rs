//! Lists the file descriptors of this process, since drivers open some descriptors that DPDK's API does not
//! return.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// Returns duplicates of all file descriptors of this process, in ascending order of their numbers.
pub(super) fn all() -> impl Iterator<Item = OwnedFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut numbers: Vec<RawFd> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|number| {
        // SAFETY: `number` is never -1, since the names in `/proc/self/fd` have no sign. `borrowed` is used
        // only for one `fcntl` that duplicates the descriptor. If another thread has closed the descriptor,
        // the call fails, or duplicates another file that now has the same number. A duplicate of another
        // file is harmless: the duplicate belongs to this code, and callers check which file it is before
        // they use it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        borrowed.try_clone_to_owned().ok()
    })
}

/// Returns the inode number of an open file, or `None` if `fstat` fails. The number is unique among files of
/// the same kind while the file exists.
pub(super) fn inode(file: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|stat| stat.st_ino)
}
