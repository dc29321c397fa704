//! The lock of one object, a queue pair or an identifier.
//!
//! Handling an event locks the object of the event. The thread that polls the engine handles the events of
//! the poll. So the engine and the table of queue pairs are locked before an object: a thread that has locked
//! an object must not poll. In builds with debug assertions, each poll checks this rule.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

pub(crate) struct ObjectGuard<'a, T> {
    object: MutexGuard<'a, T>,
    _held: Held,
}

impl<'a, T> ObjectGuard<'a, T> {
    pub(crate) fn lock(object: &'a Mutex<T>) -> Self {
        Self { object: object.lock().expect("no holder of this lock panics"), _held: Held::new() }
    }
}

impl<T> Deref for ObjectGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T> DerefMut for ObjectGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.object
    }
}

thread_local! {
    /// The number of objects that this thread has locked. The number is counted only with debug assertions.
    static LOCKED: Cell<usize> = const { Cell::new(0) };
}

/// Counts a locked object while the value exists.
struct Held;

impl Held {
    fn new() -> Self {
        if cfg!(debug_assertions) {
            LOCKED.set(LOCKED.get() + 1);
        }
        Self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            LOCKED.set(LOCKED.get() - 1);
        }
    }
}

/// Checks that the calling thread has locked no object.
#[inline]
pub(crate) fn assert_none_locked() {
    debug_assert_eq!(LOCKED.get(), 0, "a thread that has locked an object polls");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_polls_with_a_locked_object_is_found() {
        let objects = [Mutex::new(1), Mutex::new(2)];
        assert_none_locked();
        let first = ObjectGuard::lock(&objects[0]);
        let mut second = ObjectGuard::lock(&objects[1]);
        *second += *first;
        assert_eq!(*second, 3);
        drop(first);
        let found = std::panic::catch_unwind(assert_none_locked);
        assert_eq!(found.is_err(), cfg!(debug_assertions));
        // Another thread may poll.
        std::thread::scope(|threads| threads.spawn(assert_none_locked).join()).unwrap();
        drop(second);
        assert_none_locked();
    }
}
