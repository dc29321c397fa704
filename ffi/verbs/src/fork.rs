//! Whether this process is a child of one that has started the engine.
//!
//! The engine's thread does not exist in a child, and its descriptors are the parent's. So each call fails
//! there with `EIO`, and nothing of the parent's is touched.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{EIO, Outcome};

static CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is such a child.
#[inline]
pub(crate) fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Refuses a call in such a child.
#[inline]
pub(crate) fn check() -> Outcome<()> {
    if is_child() { Err(EIO) } else { Ok(()) }
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
