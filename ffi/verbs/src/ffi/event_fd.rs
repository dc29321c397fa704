//! A queue with a descriptor that is readable while the queue has an item.
//!
//! The kernel's verbs channels work like this: a program polls the descriptor, or sets `O_NONBLOCK` on it
//! with `fcntl`, and reads one event with a call of the library. In this library the descriptor is a
//! semaphore (`EFD_SEMAPHORE`) that counts the items. The count and the items change together, under the lock
//! of the items. So no call reads the descriptor while the queue is empty, and removing an object's items
//! also lowers the count. For a short time, the thread that waits for the items itself may leave them
//! uncounted ([`unwritten`]).
//!
//! Therefore a thread that waits for an item does not read the descriptor. The waiting thread serves the
//! engine until the descriptor is readable ([`waits`](super::waits)). If callers cannot serve the engine,
//! the thread waits on a futex. If the engine has no thread, the waiting thread runs the engine. Signals
//! interrupt the wait like a read: after a handler with `SA_RESTART` the wait continues. In calls of the
//! program, the wait is also a cancellation point like a read ([`cancel`](super::cancel)).

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::engine::SharedEngine;
use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::ffi::abi::{Errno as Number, Outcome};
use crate::ffi::waits::{self, Readable, Served};
use crate::ffi::{ending, unwritten};

/// A queue with a descriptor: see the module's documentation.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    items: Mutex<Items<T>>,
    /// A counter on which threads wait. The counter changes when an item is added while a thread waits.
    added: AtomicU32,
    /// Whether a thread has waited for the counter. Other threads wait for the descriptor.
    has_futex: AtomicBool,
}

struct Items<T> {
    waiting: VecDeque<T>,
    /// The number of threads that wait for an item.
    waiters: u32,
}

/// The items, locked.
pub(crate) struct LockedQueue<'a, T> {
    queue: &'a EventQueue<T>,
    items: MutexGuard<'a, Items<T>>,
}

/// The value of a queue's counter when the queue was empty.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) counter: *const AtomicU32,
    has_futex: *const AtomicBool,
    pub(crate) value: u32,
    /// The queue's descriptor.
    pub(crate) fd: c_int,
    pub(crate) engine: &'static SharedEngine,
}

impl Seen {
    /// Called before the thread waits for the counter.
    pub(crate) fn will_wait(self) {
        // SAFETY: the flag is in the queue that this thread holds.
        unsafe { &*self.has_futex }.store(true, Ordering::SeqCst);
    }
}

/// A queue of any items, for which a thread waits.
pub(crate) trait Waited: Any + Send + Sync {
    /// Called when the thread no longer waits.
    fn leave(&self);
}

impl<T: Send + 'static> Waited for EventQueue<T> {
    fn leave(&self) {
        self.lock().items.waiters -= 1;
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        unwritten::channel_closes(self.fd());
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Outcome<Self> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        let items = Mutex::new(Items { waiting: VecDeque::new(), waiters: 0 });
        unwritten::channel_made(fd.as_raw_fd());
        Ok(Self { fd, items, added: AtomicU32::new(0), has_futex: AtomicBool::new(false) })
    }

    /// Makes a queue whose descriptor has a number of at least `least`, if the process's limit allows such a
    /// number. Otherwise the descriptor may have any number.
    pub(crate) fn above(least: c_int) -> Outcome<Self> {
        let mut queue = Self::new()?;
        if let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&queue.fd, least) {
            unwritten::channel_closes(queue.fd());
            unwritten::channel_made(fd.as_raw_fd());
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

    /// Removes the oldest item, and returns the result of `take` for this item. If the queue is empty, the
    /// call waits, or fails with `EAGAIN` if the program has made the descriptor non-blocking. During the
    /// wait, this thread serves the engine, or the engine's thread does. A signal may end the wait with
    /// `EINTR`.
    ///
    /// `take` is called with the item while the queue is locked. So a thread that removes the items of an
    /// object either finds the item, or sees the effect of `take`.
    pub(crate) fn next<R>(&self, engine: &'static SharedEngine, take: impl FnOnce(T) -> R) -> Outcome<R> {
        if engine.has_thread() {
            return self.pop(take, |locked| {
                if waits::may_serve() {
                    locked.enter();
                    let call = Readable { fd: self.fd(), is_cancellable: false };
                    let served = waits::serve_channel(engine, call);
                    self.lock().items.waiters -= 1;
                    return match served {
                        Served::Result(0..) => Ok(()),
                        Served::Result(error) => Err(Number(-error)),
                        Served::NotServed => self.lock().wait(),
                    };
                }
                engine.hand_over();
                locked.wait()
            });
        }
        if self.is_nonblocking()? {
            engine.turn();
        }
        self.pop(take, |locked| {
            drop(locked);
            Ok(engine.wait_readable(self.fd.as_fd())?)
        })
    }

    /// Like [`next`](Self::next), but if the engine has a thread and the queue is empty, the call counts the
    /// thread as one that waits, and returns the value of the counter at which the thread has to wait.
    pub(crate) fn next_or_seen<R>(
        &self,
        engine: &'static SharedEngine,
        take: impl FnOnce(T) -> R,
    ) -> Outcome<Result<R, Seen>> {
        if !engine.has_thread() {
            return self.next(engine, take).map(Ok);
        }
        let mut locked = self.lock();
        if let Some(item) = locked.pop()? {
            return Ok(Ok(take(item)));
        }
        if self.is_nonblocking()? {
            return Err(Errno::AGAIN.into());
        }
        let value = locked.enter();
        Ok(Err(Seen {
            counter: &raw const self.added,
            has_futex: &raw const self.has_futex,
            value,
            fd: self.fd(),
            engine,
        }))
    }

    /// Does the work of [`next`](Self::next). `wait` waits until the queue may have an item.
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
    /// Adds an item, and wakes a thread that waits for an item.
    pub(crate) fn push(&mut self, item: T) {
        let earlier = self.items.waiting.len();
        self.items.waiting.push_back(item);
        waits::on_event();
        if !unwritten::keep(self.queue.fd(), earlier, self.items.waiters) {
            let written = rustix::io::write(&self.queue.fd, &1u64.to_ne_bytes());
            // The write succeeds: a semaphore counts to 2^64 - 2, and the descriptor is open until the queue
            // is dropped, unless the program has closed it.
            debug_assert!(written.is_ok(), "{written:?}");
        }
        if self.items.waiters > 0 {
            self.queue.added.fetch_add(1, Ordering::SeqCst);
            if ending::withholds(&self.queue.added) {
                return;
            }
            // A thread that waits for the descriptor is awake already.
            if !self.queue.has_futex.load(Ordering::SeqCst) {
                return;
            }
            let woken = futex::wake(&self.queue.added, futex::Flags::PRIVATE, 1);
            debug_assert!(woken.is_ok(), "{woken:?}");
        }
    }

    /// Removes the items for which `is_gone` returns true, and returns these items in order.
    pub(crate) fn remove(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<T> {
        if !self.items.waiting.iter().any(&is_gone) {
            return Vec::new();
        }
        let mut gone = Vec::new();
        for item in std::mem::take(&mut self.items.waiting) {
            if is_gone(&item) { gone.push(item) } else { self.items.waiting.push_back(item) }
        }
        for _ in &gone {
            // Errors are ignored: if the program has closed the descriptor, the count does not matter.
            let _ = self.uncount();
        }
        gone
    }

    /// Removes and returns the oldest item, or returns `None` if the queue is empty.
    fn pop(&mut self) -> Outcome<Option<T>> {
        if self.items.waiting.is_empty() {
            return Ok(None);
        }
        self.uncount()?;
        Ok(self.items.waiting.pop_front())
    }

    /// Lowers the descriptor's count by one, unless the event is not counted. The count equals the number of
    /// items, or is zero if all are not counted, unless the program has read the descriptor itself. So the
    /// read does not block.
    fn uncount(&self) -> Outcome<()> {
        if unwritten::take(self.queue.fd()) {
            return Ok(());
        }
        let mut bytes = [0; 8];
        match rustix::io::read(&self.queue.fd, &mut bytes) {
            // `AGAIN` means that the program itself has read from the descriptor.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Counts a thread that is going to wait, and returns the value of the counter. The counter is read under
    /// the lock, so an item that is added later changes it.
    fn enter(mut self) -> u32 {
        self.items.waiters += 1;
        self.queue.added.load(Ordering::Relaxed)
    }

    /// Waits until the queue may have an item.
    fn wait(self) -> Outcome<()> {
        let queue = self.queue;
        let seen = self.enter();
        queue.has_futex.store(true, Ordering::SeqCst);
        let waited = futex::wait(&queue.added, futex::Flags::PRIVATE, seen, None);
        queue.lock().items.waiters -= 1;
        match waited {
            // `AGAIN` means that an item was added before the wait began.
            Ok(()) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
