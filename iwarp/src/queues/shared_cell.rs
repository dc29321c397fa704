//! A cell that two threads use in turn, by raw pointers. Loom has one of its own, which finds an access that
//! has no order (`tests/loom_handshakes.rs`).

use std::cell::UnsafeCell;

/// See the module.
pub(super) struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Where to read the value.
    #[inline(always)]
    pub(super) fn for_reading(&self) -> *const T {
        self.0.get()
    }

    /// Where to write the value.
    #[inline(always)]
    pub(super) fn for_writing(&self) -> *mut T {
        self.0.get()
    }
}
