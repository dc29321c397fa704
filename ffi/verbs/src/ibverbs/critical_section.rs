//! Critical sections of programs: one call enters the section, and a later call leaves it (`ibv_wr_start` and
//! `ibv_wr_complete` or `ibv_wr_abort`; `ibv_start_poll` and `ibv_end_poll`).
//!
//! No lock is held between the two calls, since the calls in between need the value. A thread that wants to
//! enter waits until no other thread is in the section, just as it would wait for a driver's lock.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::ffi::abi::{self, Outcome};

/// A critical section around a value.
pub(crate) struct CriticalSection<T> {
    inside: Mutex<Inside<T>>,
    left: Condvar,
    /// True if several threads may enter. Otherwise the program has promised that only one thread enters, so
    /// no thread waits.
    is_shared: bool,
}

struct Inside<T> {
    value: T,
    is_entered: bool,
    /// The number of threads that wait until the section is free.
    waiting: usize,
}

/// Access to the value of a section during one call.
pub(crate) struct SectionGuard<'a, T>(MutexGuard<'a, Inside<T>>);

impl<T> CriticalSection<T> {
    pub(crate) fn new(value: T, is_shared: bool) -> Self {
        let inside = Mutex::new(Inside { value, is_entered: false, waiting: 0 });
        Self { inside, left: Condvar::new(), is_shared }
    }

    /// From now on no thread waits to enter. This function is called if the program has promised that only
    /// one thread uses the section.
    pub(crate) fn for_one_thread(&mut self) {
        self.is_shared = false;
    }

    /// Enters the section. If several threads may enter, first waits until no other thread is in the section.
    pub(crate) fn enter(&self) -> Outcome<SectionGuard<'_, T>> {
        let mut locked = self.lock()?;
        locked.0.is_entered = true;
        Ok(locked)
    }

    /// Enters the section like [`enter`](Self::enter), and leaves it when the returned guard is dropped.
    pub(crate) fn lock(&self) -> Outcome<SectionGuard<'_, T>> {
        let mut locked = self.inside()?;
        while self.is_shared && locked.0.is_entered {
            locked.0.waiting += 1;
            let mut inside = self.left.wait(locked.0).map_err(|_| abi::EIO)?;
            inside.waiting -= 1;
            locked = SectionGuard(inside);
        }
        Ok(locked)
    }

    /// The value, for the thread that has entered the section.
    pub(crate) fn inside(&self) -> Outcome<SectionGuard<'_, T>> {
        // If a panic has poisoned the lock, the value may be half changed.
        Ok(SectionGuard(self.inside.lock().map_err(|_| abi::EIO)?))
    }

    /// Leaves the section. Other threads wait until the returned guard is dropped.
    pub(crate) fn leave(&self) -> Outcome<SectionGuard<'_, T>> {
        let mut locked = self.inside()?;
        locked.0.is_entered = false;
        if locked.0.waiting > 0 {
            // Wakes all waiting threads: a thread that enters by `lock` never calls `leave`, so it would not
            // wake another thread.
            self.left.notify_all();
        }
        Ok(locked)
    }
}

impl<T> Deref for SectionGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for SectionGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}
