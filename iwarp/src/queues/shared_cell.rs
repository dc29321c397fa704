//! A cell that two threads use in turn, through raw pointers. The tests replace this cell by loom's cell,
//! which detects unordered accesses (`tests/loom_handshakes.rs`).

use std::cell::UnsafeCell;

pub(super) struct SharedCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Returns the pointer for reading the value.
    #[inline(always)]
    pub(super) fn for_reading(&self) -> *const T {
        self.0.get()
    }

    /// Returns the pointer for writing the value.
    #[inline(always)]
    pub(super) fn for_writing(&self) -> *mut T {
        self.0.get()
    }
}
