//! Channels: descriptors that are readable while events wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The channel on which armed completion queues report events. The descriptor is readable (for `poll` and
/// `epoll`) while events wait. This value is cheap to clone.
///
/// # Arm, poll, wait
///
/// An armed queue generates one event, for the next completion of the kind for which it is armed. A
/// completion that was added before the queue was armed may generate no event. So the order must be: poll; if
/// the queue is empty, arm it; poll once more; and only then wait.
///
/// ```
/// use iwarp::verbs::{CompletionChannel, CompletionQueue, VerbsError, WorkCompletion};
///
/// fn next(queue: &CompletionQueue, channel: &CompletionChannel) -> Result<WorkCompletion, VerbsError> {
///     loop {
///         if let Some(completion) = queue.poll_one() {
///             return Ok(completion);
///         }
///         queue.req_notify(false)?;
///         // A completion that was added before the queue was armed.
///         if let Some(completion) = queue.poll_one() {
///             return Ok(completion);
///         }
///         channel.wait(None)?;
///     }
/// }
/// #
/// # use iwarp::memory::Access;
/// # use iwarp::verbs::{Context, ContextConfig, QpInit, QpState, RecvRequest};
/// # fn main() -> Result<(), VerbsError> {
/// # let context = Context::new(ContextConfig::default())?;
/// # let channel = context.create_comp_channel()?;
/// # let queue = context.create_cq(1, Some(&channel))?;
/// # let pd = context.alloc_pd()?;
/// # let region = pd.reg_mr(8, Access::LOCAL_WRITE)?;
/// # let qp = pd.create_qp(&QpInit { max_send_wr: 0, max_recv_wr: 1, ..QpInit::new(&queue) })?;
/// # qp.post_recv(&RecvRequest::new(7, region.sge(0, 8)))?;
/// # std::thread::scope(|scope| {
/// #     let waiter = scope.spawn(|| next(&queue, &channel));
/// #     std::thread::sleep(std::time::Duration::from_millis(10));
/// #     qp.modify(QpState::Error)?;
/// #     assert_eq!(waiter.join().expect("it does not panic")?.wr_id, 7);
/// #     Ok::<_, VerbsError>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
///
/// During the wait another thread must poll the engine, for example the engine's own thread
/// ([`Engine::spawn`](crate::engine::Engine::spawn)). To use an event loop instead of [`wait`](Self::wait),
/// register the descriptor for reading. When the descriptor is readable, call `wait` with `Duration::ZERO` to
/// consume the events.
#[derive(Clone)]
pub struct CompletionChannel {
    pub(crate) notifier: Arc<Notifier>,
}

impl CompletionChannel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { notifier: Arc::new(Notifier::new()?) })
    }

    /// Waits until a completion queue that was armed with [`req_notify`](super::CompletionQueue::req_notify)
    /// has an event, or until `timeout` passes. Consumes the events and returns their number: 0 after a
    /// timeout, after a signal, or if another thread has consumed the events. With `Duration::ZERO` the
    /// function does not wait.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<u64> {
        if self.notifier.wait(timeout)? { self.notifier.take() } else { Ok(0) }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A counter whose descriptor is readable while the counter is not zero.
pub(crate) struct Notifier {
    readable: OwnedFd,
    /// The write end of the pipe that is used on systems other than Linux. `None` on Linux, which has
    /// eventfd.
    writable: Option<OwnedFd>,
    /// Number of notifications that were added and not consumed. Because of this count, a reader that found
    /// no item need not make a system call to check whether the descriptor is readable. A notification is
    /// counted before it is written, so the count is not zero while the descriptor is readable.
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

    /// Adds a notification. If the counter (or the pipe) is full, nothing is added, since the descriptor is
    /// already readable.
    pub(crate) fn notify(&self) {
        self.added.fetch_add(1, Ordering::Release);
        let result = match &self.writable {
            None => rustix::io::write(&self.readable, &1u64.to_ne_bytes()),
            Some(pipe) => rustix::io::write(pipe, &[1]),
        };
        debug_assert!(
            matches!(result, Ok(_) | Err(rustix::io::Errno::AGAIN)),
            "a private descriptor stays open"
        );
        if result.is_err() {
            self.added.fetch_sub(1, Ordering::Release);
        }
    }

    /// Consumes all notifications (of a pipe: at most eight), and returns their number.
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

    /// Does the same as [`take`](Self::take), without a system call if there are no notifications.
    pub(crate) fn take_if_any(&self) -> io::Result<u64> {
        if self.added.load(Ordering::Acquire) == 0 { Ok(0) } else { self.take() }
    }

    /// Consumes the notifications if the queue is empty. The reader of a queue calls this function each time
    /// after it has tried to read an item. If an item arrives at the same time, this call may also consume
    /// the notification of this item. In this case the call adds a notification again. A reader that did not
    /// find an item (`found` is `false`) makes a system call only if a notification is left, for example
    /// because the notification was added after its item had been read.
    pub(crate) fn settle(&self, found: bool, is_empty: impl Fn() -> bool) -> io::Result<()> {
        if (found || self.added.load(Ordering::Acquire) != 0) && is_empty() {
            self.take()?;
            if !is_empty() {
                self.notify();
            }
        }
        Ok(())
    }

    /// Waits until a notification can be consumed, or until `timeout` passes. Returns `true` if a
    /// notification can be consumed, and `false` after a timeout or a signal. Without a timeout the function
    /// waits for ever.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        wait_any(&mut [PollFd::new(&self.readable, PollFlags::IN)], timeout)
    }
}

/// Waits until one of `fds` is ready, or until `timeout` passes. Returns `true` if one of `fds` is ready, and
/// `false` after a timeout or a signal.
pub(crate) fn wait_any(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    // If a duration does not fit into a timespec, the wait has no timeout.
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

    /// If the reader reads an item before the item's notification is added, the next `settle` consumes the
    /// notification. So the descriptor does not stay readable for ever.
    #[test]
    fn a_late_notice_is_taken_by_the_next_look() {
        let notifier = Notifier::new().unwrap();
        let is_readable = || notifier.wait(Some(Duration::ZERO)).unwrap();
        notifier.settle(true, || true).unwrap();
        assert_eq!(notifier.take_if_any().unwrap(), 0);
        notifier.notify();
        notifier.notify();
        assert!(is_readable());
        assert_eq!((notifier.take_if_any().unwrap(), notifier.take_if_any().unwrap()), (2, 0));
        assert!(!is_readable());
        notifier.notify();
        notifier.settle(false, || true).unwrap();
        assert!(!is_readable());
        notifier.notify();
        notifier.settle(true, || false).unwrap();
        assert!(is_readable(), "something waits still");
        assert_eq!((notifier.take().unwrap(), notifier.added.load(Ordering::Relaxed)), (1, 0));
    }

    /// If an item arrives just after the reader has found the queue empty, the item's notification is
    /// consumed with the others, and a notification is added again.
    #[test]
    fn the_notice_of_an_item_that_arrives_meanwhile_stays() {
        let notifier = Notifier::new().unwrap();
        notifier.notify();
        let looks = std::cell::Cell::new(0);
        let is_empty = || looks.replace(looks.get() + 1) == 0;
        notifier.settle(true, is_empty).unwrap();
        assert_eq!(looks.get(), 2);
        assert!(notifier.wait(Some(Duration::ZERO)).unwrap());
        assert_eq!(notifier.added.load(Ordering::Relaxed), 1);
    }
}
