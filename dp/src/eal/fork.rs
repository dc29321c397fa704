//! Forks of the process: a child shares rings and hugepages with its parent and must not touch them.

use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process is a fork of the one that started EAL.
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Sets [`is_forked`] in children forked from now on.
pub(super) fn watch_for_forks() {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: `in_child` stays for the life of the process, and only stores to an atomic, which is allowed in
    // a forked child. On failure (no memory) forks go unnoticed, as they do in DPDK.
    unsafe { sys::pthread_atfork(None, None, Some(in_child)) };
}
