//! Channels: events as descriptors that can be polled.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Where completion queues announce themselves. Readable (for `poll`, `epoll`) while events wait. Cheap to clone.
#[derive(Clone)]
pub struct CompletionChannel {}

pub(crate) struct Notifier {}

impl CompletionChannel {
    /// Waits until a completion queue armed with
    /// [`req_notify`](super::CompletionQueue::req_notify) has an event, or `timeout` passes; takes the events.
    /// Returns how many events there were: 0 after a timeout. With `Duration::ZERO` it does not wait.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Option<Duration>) -> std::io::Result<u64> {
        let _ = timeout;
        todo!()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}
