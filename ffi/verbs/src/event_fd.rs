//! A queue behind a descriptor, which is readable while an item waits.
//!
//! The kernel's channels of verbs behave so: a program polls the descriptor, or sets `O_NONBLOCK` on it with
//! `fcntl`, and reads one event with a call of the library. Here the descriptor is a semaphore
//! (`EFD_SEMAPHORE`) that counts the items, and a call takes from the semaphore first.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};

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

    /// The oldest item. Waits for one, unless the program has made the descriptor non-blocking: then the
    /// error is `EAGAIN`. A signal ends the wait with `EINTR`.
    pub(crate) fn pop(&self) -> Outcome<T> {
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
}
