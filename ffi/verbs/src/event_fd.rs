//! A queue behind a descriptor, which is readable while an item waits.
//!
//! The kernel's channels of verbs behave so: a program polls the descriptor, or sets `O_NONBLOCK` on it with
//! `fcntl`, and reads one event with a call of the library. Here the descriptor is a semaphore
//! (`EFD_SEMAPHORE`) that counts the items, and a call takes from the semaphore first.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use iwarp::engine::SharedEngine;
use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::abi::Outcome;

/// See the module.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    items: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Outcome<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, items: Mutex::default() })
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

    pub(crate) fn items(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().expect("no holder of this lock panics")
    }

    /// Adds an item.
    pub(crate) fn push(&self, item: T) {
        self.items().push_back(item);
        self.count();
    }

    /// Counts an item that was added under the lock.
    pub(crate) fn count(&self) {
        let written = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        // A semaphore takes 2^64 - 2 items, and the descriptor is open as long as this lives, unless the
        // program has closed it.
        debug_assert!(written.is_ok(), "{written:?}");
    }

    /// The oldest item, as [`pop`](Self::pop), while the engine goes on: by its thread, or by the caller.
    pub(crate) fn next(&self, engine: &SharedEngine) -> Outcome<T> {
        if engine.has_thread() {
            engine.hand_over();
            return self.pop();
        }
        if rustix::fs::fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
            engine.turn();
            return self.pop();
        }
        loop {
            engine.wait_readable(self.fd.as_fd())?;
            match self.take_now() {
                // Another thread of the program was faster.
                Err(Errno::AGAIN) => {}
                taken => taken?,
            }
            if let Some(item) = self.items().pop_front() {
                return Ok(item);
            }
        }
    }

    /// Takes from the semaphore without waiting, although its descriptor may wait.
    fn take_now(&self) -> rustix::io::Result<()> {
        let mut bytes = [0; 8];
        // The offset stands for none, as a semaphore has no position.
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::io::preadv2(&self.fd, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT).map(drop)
    }

    /// The oldest item. Waits for one, unless the program has made the descriptor non-blocking: then the
    /// error is `EAGAIN`. A signal ends the wait with `EINTR`.
    fn pop(&self) -> Outcome<T> {
        loop {
            let mut bytes = [0; 8];
            rustix::io::read(&self.fd, &mut bytes)?;
            // Items may be removed with their object. Their counts stay, and lead to nothing.
            if let Some(item) = self.items().pop_front() {
                return Ok(item);
            }
        }
    }

    /// Removes the items that `is_gone` names.
    pub(crate) fn remove(&self, is_gone: impl Fn(&T) -> bool) {
        self.items().retain(|item| !is_gone(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Errno;

    #[test]
    fn the_descriptor_counts_items_and_blocks_as_the_program_wants() {
        let queue = EventQueue::new().unwrap();
        rustix::io::ioctl_fionbio(&queue.fd, true).unwrap();
        assert_eq!(queue.pop(), Err(Errno(libc::EAGAIN)));
        (1..5).for_each(|item| queue.push(item));
        queue.remove(|item| item % 2 == 0);
        assert_eq!([queue.pop(), queue.pop()], [Ok(1), Ok(3)]);
        assert_eq!(queue.pop(), Err(Errno(libc::EAGAIN)));
        queue.push(5);
        assert_eq!(queue.pop(), Ok(5));
    }

    #[test]
    fn a_descriptor_may_come_after_others() {
        let queue = EventQueue::above(500).unwrap();
        assert!(queue.fd() >= 500, "{}", queue.fd());
        queue.push(1);
        assert_eq!(queue.pop(), Ok(1));
        // As many as the system has numbers for.
        assert!(EventQueue::<u8>::above(c_int::MAX).unwrap().fd() < c_int::MAX);
    }

    #[test]
    fn a_descriptor_that_waits_can_be_read_without_waiting() {
        let queue = EventQueue::new().unwrap();
        assert_eq!(queue.take_now(), Err(rustix::io::Errno::AGAIN));
        queue.push(7);
        assert_eq!(queue.take_now(), Ok(()));
        assert_eq!(queue.take_now(), Err(rustix::io::Errno::AGAIN));
    }
}
