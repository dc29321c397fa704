//! The process that a table belongs to. A forked child has a copy of the table, but neither the threads of
//! the engines nor the memory that they serve. So the table refuses all use in a child (RFC 5042 section
//! 7.3).

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The process that made the table.
pub(super) enum OwnerProcess {
    /// A page that begins with a one here, and that the kernel hands to a child as zeros. A check costs one
    /// load.
    #[cfg(target_os = "linux")]
    Page(NonNull<u8>),
    /// The process id, on systems without such a page.
    Process(u32),
}

// SAFETY: the page is written before the value exists, and only read afterwards, until it is unmapped on
// drop.
unsafe impl Send for OwnerProcess {}
// SAFETY: shared references only read the page, which nobody writes after the value exists.
unsafe impl Sync for OwnerProcess {}

impl OwnerProcess {
    /// The current process.
    pub(super) fn current() -> Self {
        #[cfg(target_os = "linux")]
        if let Some(page) = wiped_on_fork() {
            return Self::Page(page);
        }
        Self::Process(std::process::id())
    }

    /// Whether the current process is the one that made it, not a child.
    pub(super) fn is_current(&self) -> bool {
        match self {
            // SAFETY: the page is mapped and readable until the drop. The read is volatile, since the kernel
            // changes the page during a fork.
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
            // SAFETY: exactly the mapping made in `wiped_on_fork`, unmapped here only.
            let unmapped = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
            debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
        }
    }
}

/// A page with a one at its front that a child sees as zeros.
#[cfg(target_os = "linux")]
fn wiped_on_fork() -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, madvise};

    let bytes = rustix::param::page_size();
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is exactly our fresh mapping, which nobody else knows of.
    unsafe {
        if madvise(page, bytes, Advice::LinuxWipeOnFork).is_err() {
            // A kernel before 4.14. A failed munmap only leaks one page.
            let _ = munmap(page, bytes);
            return None;
        }
        page.cast::<u8>().write(1);
    }
    NonNull::new(page.cast())
}
