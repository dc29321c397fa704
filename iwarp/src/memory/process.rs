//! The process that a table belongs to. A forked child has a copy of the table and of the memory, but the
//! engines' threads run only in the parent and access only the parent's memory. So the table refuses all use
//! in a child (RFC 5042 section 7.3).

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Identifies the process that made the table.
pub(super) enum OwnerProcess {
    /// A page whose first byte is 1 in the process that made the table. The kernel gives a child a page of
    /// zeros instead. The check for a fork costs one load.
    #[cfg(target_os = "linux")]
    Page(NonNull<u8>),
    /// The process id, if such a page could not be made.
    Process(u32),
}

// SAFETY: `wiped_on_fork` writes the page before the value exists. After that the page is only read until the
// drop unmaps it. Any thread may unmap a mapping.
unsafe impl Send for OwnerProcess {}
// SAFETY: `is_current`, the only access through a shared reference, reads the page, which nobody writes after
// `wiped_on_fork` has returned it. (In a child the kernel has replaced the page before the child runs.)
unsafe impl Sync for OwnerProcess {}

impl OwnerProcess {
    /// Returns the value for the current process.
    pub(super) fn current() -> Self {
        #[cfg(target_os = "linux")]
        if let Some(page) = wiped_on_fork() {
            return Self::Page(page);
        }
        Self::Process(std::process::id())
    }

    /// Returns `true` if the current process made the value, and `false` in a child of that process.
    pub(super) fn is_current(&self) -> bool {
        match self {
            // SAFETY: `wiped_on_fork` mapped the page as readable, only the drop unmaps the page, and no
            // thread writes to the page. The read is volatile, since the kernel replaces the page in a child.
            #[cfg(target_os = "linux")]
            Self::Page(page) => unsafe { page.as_ptr().read_volatile() == 1 },
            Self::Process(id) => std::process::id() == *id,
        }
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Self::Page(page) = self {
            // SAFETY: the range is the page that `wiped_on_fork` mapped for this value alone. Only this drop
            // unmaps it, and `&mut self` excludes a reader.
            let unmapped = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
            debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
        }
    }
}

/// Maps a page whose first byte is 1. In a child the page contains zeros. Returns `None` if the system does
/// not support this or cannot map a page.
#[cfg(target_os = "linux")]
fn wiped_on_fork() -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, madvise};

    let bytes = rustix::param::page_size();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is given, so the new anonymous mapping does not replace an existing mapping.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is the page that was just mapped, and the advice changes only a child's copy of the
    // page.
    let advised = unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        // The kernel is older than 4.14 and has no MADV_WIPEONFORK. A failed munmap only leaks one page.
        //
        // SAFETY: the range is the page that was just mapped, and no pointer to it is left.
        let _ = unsafe { munmap(page, bytes) };
        return None;
    }
    // SAFETY: the page was just mapped as writable, and no other code knows its address.
    unsafe { page.cast::<u8>().write(1) };
    NonNull::new(page.cast())
}
