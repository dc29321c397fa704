//! Channels: events as descriptors that can be polled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where completion queues announce themselves. Readable (for `poll`, `epoll`) while events wait. Cheap to
/// clone.
#[derive(Clone)]
pub struct CompletionChannel {
    pub(crate) notifier: Arc<Notifier>,
}

impl CompletionChannel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { notifier: Arc::new(Notifier::new()?) })
    }

    /// Waits until a completion queue armed with [`req_notify`](super::CompletionQueue::req_notify) has an
    /// event, or `timeout` passes; takes the events. Returns how many events there were: 0 after a timeout,
    /// after a signal, or when another thread took them. With `Duration::ZERO` it does not wait.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<u64> {
        if self.notifier.wait(timeout)? { self.notifier.take() } else { Ok(0) }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

/// A counter that is readable as a descriptor while it is not zero.
pub(crate) struct Notifier {
    readable: OwnedFd,
    /// The writing end where the system has no eventfd and a pipe stands in.
    writable: Option<OwnedFd>,
    /// Added and not taken, so that whoever finds nothing to read knows without a system call whether the
    /// descriptor says otherwise. It is late: a taker may be ahead of it, and it wraps then for a moment.
    added: AtomicU64,
}

impl Notifier {
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let readable = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { readable, writable: None, added: AtomicU64::new(0) })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        let (readable, writable) = rustix::pipe::pipe()?;
        for end in [&readable, &writable] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        Ok(Self { readable, writable: Some(writable), added: AtomicU64::new(0) })
    }

    /// Adds one. A counter (or pipe) that is full is readable already: that is all a waiter needs.
    pub(crate) fn notify(&self) {
        let result = match &self.writable {
            None => rustix::io::write(&self.readable, &1u64.to_ne_bytes()),
            Some(pipe) => rustix::io::write(pipe, &[1]),
        };
        debug_assert!(
            matches!(result, Ok(_) | Err(rustix::io::Errno::AGAIN)),
            "a private descriptor stays open"
        );
        if result.is_ok() {
            self.added.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes what was added since the last call; 0 when nothing was.
    pub(crate) fn take(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let count = match rustix::io::read(&self.readable, &mut bytes) {
            Ok(8) if self.writable.is_none() => u64::from_ne_bytes(bytes),
            Ok(count) => count as u64,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        self.added.fetch_sub(count, Ordering::AcqRel);
        Ok(count)
    }

    /// For the reader of a queue in front of it, after a look at the queue that may have emptied it: takes
    /// what was added, unless `is_empty` says that something has come meanwhile, whose notice may have been
    /// taken with the rest. Whoever `found` nothing pays no system call for it but where a notice came late,
    /// behind what it was for.
    pub(crate) fn settle(&self, found: bool, is_empty: impl Fn() -> bool) -> io::Result<()> {
        if (found || self.added.load(Ordering::Acquire) != 0) && is_empty() {
            self.take()?;
            if !is_empty() {
                self.notify();
            }
        }
        Ok(())
    }

    /// Waits until there is something to take (`true`) or `timeout` passes; for ever without one.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait_any(&mut [PollFd::new(&self.readable, PollFlags::IN)], timeout)
    }
}

/// Waits until one of `fds` is ready (`true`) or `timeout` passes. An interrupting signal ends the wait like
/// a timeout.
pub(crate) fn wait_any(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    // A duration beyond what a timespec holds is for ever.
    let timeout = timeout.and_then(|duration| Timespec::try_from(duration).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reader takes what the notice is for before the notice comes: the descriptor does not stay readable
    /// for ever.
    #[test]
    fn a_late_notice_is_taken_by_the_next_look() {
        let notifier = Notifier::new().unwrap();
        let is_readable = || notifier.wait(Some(Duration::ZERO)).unwrap();
        notifier.settle(true, || true).unwrap();
        notifier.notify();
        assert!(is_readable());
        notifier.settle(false, || true).unwrap();
        assert!(!is_readable());
        notifier.notify();
        notifier.settle(true, || false).unwrap();
        assert!(is_readable(), "something waits still");
    }
}
