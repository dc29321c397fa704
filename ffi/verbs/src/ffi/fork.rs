//! Detects whether this process is a forked child of a process that has started the engine.
//!
//! The engine's thread does not exist in a child, the child shares the engine's descriptors with its parent,
//! and another thread may have held any lock during the fork. So in a child, a call that uses the engine or
//! the library's state fails with `EIO` (`abi.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from a process that has started the engine.
#[inline]
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Makes [`is_child`] return true in children that are forked from now on.
pub(crate) fn watch() -> Result<(), String> {
    // SAFETY: the handler only stores to an atomic static, which is allowed in a forked child.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => Ok(()),
        _ => Err("the system has no memory for a handler of fork".into()),
    }
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}
