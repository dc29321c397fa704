//! Whether this process is a child of one that has started the engine.
//!
//! The engine's thread does not exist in a child, its descriptors are the parent's, and another thread may
//! have held any lock. So each call fails there with `EIO` before it looks at anything (`abi.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is such a child.
#[inline]
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// From now on children know what they are.
pub(crate) fn watch() -> Result<(), String> {
    // SAFETY: the handler only stores to a static, which is allowed in a child.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => Ok(()),
        _ => Err("the system has no memory for a handler of fork".into()),
    }
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}
