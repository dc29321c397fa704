//! Forks of the process. A child shares rings and hugepages with its parent, and must not touch this memory.

use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from the process that started EAL.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Makes [`is_forked`] return `true` in children that are forked from now on.
pub(super) fn watch_for_forks() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: `in_child` exists until the process ends, and only stores to an atomic, which is allowed in a
    // forked child. If the call fails (no memory), forks are not detected.
    unsafe { sys::pthread_atfork(None, None, Some(in_child)) };
}
