//! A queue behind a descriptor, which is readable while an item waits.
//!
//! The kernel's channels of verbs behave so: a program polls the descriptor, or sets `O_NONBLOCK` on it with
//! `fcntl`, and reads one event with a call of the library. Here the descriptor is a semaphore
//! (`EFD_SEMAPHORE`) that counts the items. The count changes with the lock of the items only, together with
//! them. So nobody reads the descriptor without an item, and an item that is removed with its object leaves
//! nothing behind.
//!
//! A thread that waits for an item can thus not wait in a read of the descriptor. It waits on a futex, which
//! signals interrupt as they do a read: the wait goes on after a handler with `SA_RESTART`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::engine::SharedEngine;
use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::ffi::abi::Outcome;

/// See the module.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    items: Mutex<Items<T>>,
    /// Changes with each item that is added, for threads that wait.
    added: AtomicU32,
}

struct Items<T> {
    waiting: VecDeque<T>,
    /// Threads that wait for an item.
    waiters: u32,
}

/// The items, locked.
pub(crate) struct LockedQueue<'a, T> {
    queue: &'a EventQueue<T>,
    items: MutexGuard<'a, Items<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Outcome<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        let items = Mutex::new(Items { waiting: VecDeque::new(), waiters: 0 });
        Ok(Self { fd, items, added: AtomicU32::new(0) })
    }

    /// With a descriptor of at least this number, if the process may have such.
    pub(crate) fn above(least: c_int) -> Outcome<Self> {
        let mut queue = Self::new()?;
        if let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&queue.fd, least) {
            queue.fd = fd;
        }
        Ok(queue)
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    pub(crate) fn lock(&self) -> LockedQueue<'_, T> {
        LockedQueue { queue: self, items: self.items.lock().expect("no holder of this lock panics") }
    }

    /// Takes the oldest item, while the engine goes on: by its thread, or by the caller. Waits for one,
    /// unless the program has made the descriptor non-blocking: then the error is `EAGAIN`. A signal ends the
    /// wait with `EINTR`.
    ///
    /// `take` gets the item with the queue locked. So a thread that removes the items of an object either
    /// finds the item, or knows that it was taken.
    pub(crate) fn next<R>(&self, engine: &SharedEngine, take: impl FnOnce(T) -> R) -> Outcome<R> {
        if engine.has_thread() {
            engine.hand_over();
            return self.pop(take, |locked| locked.wait());
        }
        if self.is_nonblocking()? {
            engine.turn();
        }
        self.pop(take, |locked| {
            drop(locked);
            Ok(engine.wait_readable(self.fd.as_fd())?)
        })
    }

    /// As [`next`](Self::next), where `wait` waits until there may be an item.
    fn pop<R>(
        &self,
        take: impl FnOnce(T) -> R,
        wait: impl Fn(LockedQueue<'_, T>) -> Outcome<()>,
    ) -> Outcome<R> {
        loop {
            let mut locked = self.lock();
            if let Some(item) = locked.pop()? {
                return Ok(take(item));
            }
            if self.is_nonblocking()? {
                return Err(Errno::AGAIN.into());
            }
            wait(locked)?;
        }
    }

    fn is_nonblocking(&self) -> Outcome<bool> {
        Ok(rustix::fs::fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK))
    }
}

impl<T> LockedQueue<'_, T> {
    /// Adds an item.
    pub(crate) fn push(&mut self, item: T) {
        self.items.waiting.push_back(item);
        let written = rustix::io::write(&self.queue.fd, &1u64.to_ne_bytes());
        // A semaphore takes 2^64 - 2 items, and the descriptor is open as long as this lives, unless the
        // program has closed it.
        debug_assert!(written.is_ok(), "{written:?}");
        if self.items.waiters > 0 {
            self.queue.added.fetch_add(1, Ordering::Relaxed);
            let woken = futex::wake(&self.queue.added, futex::Flags::PRIVATE, 1);
            debug_assert!(woken.is_ok(), "{woken:?}");
        }
    }

    /// Takes the items that `is_gone` names out, and returns them in their order.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<T> {
        if !self.items.waiting.iter().any(&is_gone) {
            return Vec::new();
        }
        let mut gone = Vec::new();
        for item in std::mem::take(&mut self.items.waiting) {
            if is_gone(&item) { gone.push(item) } else { self.items.waiting.push_back(item) }
        }
        for _ in &gone {
            // A descriptor that the program has closed is not readable either.
            let _ = self.uncount();
        }
        gone
    }

    /// The oldest item.
    fn pop(&mut self) -> Outcome<Option<T>> {
        if self.items.waiting.is_empty() {
            return Ok(None);
        }
        self.uncount()?;
        Ok(self.items.waiting.pop_front())
    }

    /// Takes one from the count of the descriptor. The count is that of the items, so this does not wait.
    fn uncount(&self) -> Outcome<()> {
        let mut bytes = [0; 8];
        match rustix::io::read(&self.queue.fd, &mut bytes) {
            // The program itself has read it.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until an item may be there.
    fn wait(mut self) -> Outcome<()> {
        let queue = self.queue;
        // Read with the lock: an item that is added later changes it.
        let seen = queue.added.load(Ordering::Relaxed);
        self.items.waiters += 1;
        drop(self);
        let waited = futex::wait(&queue.added, futex::Flags::PRIVATE, seen, None);
        queue.lock().items.waiters -= 1;
        match waited {
            // An item was added before the wait began.
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
