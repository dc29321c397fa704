//! Queue pairs without a peer: the peer has ended, was not reached, or was given up by the user.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::{Ask, QpShared};
use crate::queues::{QpState, WcStatus};

impl QpShared {
    /// Whether the queue pair stays when the peer ends the connection, as its user has not ended it.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.attributes.outlives_peer() && !self.signals.is_close_asked() && self.signals.asked() < Ask::Close
    }

    /// No connection was made, and none will be: enters `Orphaned` or `Error`.
    pub(crate) fn unreached(&self) {
        if self.outlives_peer() { self.orphan(Duration::ZERO) } else { self.enter_error() }
    }

    /// The user gives up the peer while there is no connection. Returns whether there was none.
    pub(crate) fn give_up(&self) -> bool {
        if self.state.get() != QpState::Idle {
            return false;
        }
        self.attributes.end_by_user();
        self.fail_next_send();
        // Requests that are posted after this are flushed.
        self.ask(Ask::Abort);
        self.enter_error();
        true
    }

    /// The peer has ended the connection: enters `Orphaned`. Requests that were posted meanwhile, and a
    /// pending `Ask`, are handled now. With a `retry_time`, send requests stay in their queue until
    /// [`end_retries`](Self::end_retries), which the caller has to call after this time.
    pub(crate) fn orphan(&self, retry_time: Duration) {
        self.attributes.set_retries(!retry_time.is_zero());
        self.state.set(QpState::Orphaned);
        self.return_read_slots();
        // Pairs with the fence in `is_orphaned`: either this thread sees the request or `Ask` of another
        // thread, or that thread sees the new state.
        fence(Ordering::SeqCst);
        match self.signals.asked() >= Ask::Close {
            true => self.enter_error(),
            false => self.fail_orphaned_sends(),
        }
    }

    /// The time in which requests are retried is over: the oldest send fails.
    pub(crate) fn end_retries(&self) {
        // A thread that has posted a request before it looked at this looks at it with the lock of the send
        // queue behind it, which this thread takes next. So one of the two fails the request.
        self.attributes.set_retries(false);
        if self.state.get() == QpState::Orphaned {
            self.fail_orphaned_sends();
        }
    }

    /// The connection is over, and the queue pair with it. The oldest of the requests that are retried has
    /// found no peer.
    pub(crate) fn end_with_peer(&self) {
        if self.attributes.retries() && self.outlives_peer() {
            self.fail_next_send();
        }
        self.enter_error();
    }

    /// The peer is gone: the oldest send fails, all other requests are flushed. Without a send request, and
    /// while requests are retried, this does nothing.
    pub(super) fn fail_orphaned_sends(&self) {
        if !self.attributes.retries() && self.fail_next_send() {
            self.enter_error();
        }
    }

    /// Fails the oldest send request, since there is no peer; `false` if no request is left or a stream has
    /// it.
    fn fail_next_send(&self) -> bool {
        let mut consumer = self.consumer.lock();
        let Some(consumer) = &mut *consumer else { return false };
        let cause = self.state.cause();
        consumer.fail_next_send(&self.sends, &self.signals, WcStatus::RetryExceeded, cause)
    }
}
