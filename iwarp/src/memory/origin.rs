//! Which process a table belongs to. A forked child has a copy of the table, but neither the engines' threads
//! nor the memory that they serve: it is found out, and refused (RFC 5042 section 7.3).

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The process that made it.
pub(super) enum Origin {
    /// A page that the kernel gives to a child as zeros; here it begins with a one. Looking costs a load.
    #[cfg(target_os = "linux")]
    Page(NonNull<u8>),
    /// Where there is no such page: the number of the process.
    Process(u32),
}

// SAFETY: the page is written before the value exists, and only read afterwards, until it is unmapped on
// drop.
unsafe impl Send for Origin {}
// SAFETY: as above.
unsafe impl Sync for Origin {}

impl Origin {
    /// This process.
    pub(super) fn here() -> Self {
        #[cfg(target_os = "linux")]
        if let Some(page) = wiped_on_fork() {
            return Self::Page(page);
        }
        Self::Process(std::process::id())
    }

    /// Whether this is the process that made it, not a child of it.
    pub(super) fn is_here(&self) -> bool {
        match self {
            // SAFETY: the page is mapped and readable until the drop. It is read afresh each time, as only
            // the kernel changes it, between two instructions of a fork.
            #[cfg(target_os = "linux")]
            Self::Page(page) => unsafe { page.as_ptr().read_volatile() == 1 },
            Self::Process(id) => std::process::id() == *id,
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Self::Page(page) = self {
            // SAFETY: exactly the mapping made in `wiped_on_fork`, unmapped here only.
            let unmapped = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
            debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
        }
    }
}

/// A page that is zeros in a child, with a one at its front.
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
            // A kernel before 4.14. A mapping that cannot be given back costs a page.
            let _ = munmap(page, bytes);
            return None;
        }
        page.cast::<u8>().write(1);
    }
    NonNull::new(page.cast())
}
