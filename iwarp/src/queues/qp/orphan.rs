//! Queue pairs without a peer: the peer has ended the connection, the peer could not be reached, or the user
//! has given up the peer.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::{Ask, QpShared};
use crate::queues::{QpState, WcStatus};

impl QpShared {
    /// Whether the queue pair stays usable when the peer ends the connection. Returns `false` if the user has
    /// already ended the connection.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.attributes.outlives_peer() && !self.signals.is_close_asked() && self.signals.asked() < Ask::Close
    }

    /// Enters `Orphaned` if the queue pair outlives its peer, and otherwise `Error`. Called when no
    /// connection was made and none will be made.
    pub(crate) fn unreached(&self) {
        if self.outlives_peer() { self.orphan(Duration::ZERO) } else { self.enter_error() }
    }

    /// Gives up the peer for the user, if the queue pair never had a connection: fails the oldest send
    /// request, and enters `Error`. A queue pair of type UC only drops its send requests, and may still be
    /// connected. Returns `false` if the queue pair is not in state `Idle`.
    pub(crate) fn give_up(&self) -> bool {
        if self.state.get() != QpState::Idle {
            return false;
        }
        if self.config.is_unreliable() {
            self.drop_sends();
            return true;
        }
        self.attributes.end_by_user();
        self.fail_next_send();
        // Requests that are posted after this call are flushed.
        self.ask(Ask::Abort);
        self.enter_error();
        true
    }

    /// Enters `Orphaned`, because the queue pair has no peer. Handles requests that were posted at the same
    /// time, and a pending `Ask`. If `retry_time` is not zero, send requests stay in their queue until
    /// [`end_retries`](Self::end_retries), which the caller must call after this time.
    pub(crate) fn orphan(&self, retry_time: Duration) {
        self.attributes.set_retries(!retry_time.is_zero());
        self.state.set(QpState::Orphaned);
        self.return_read_slots();
        // This fence pairs with the fence in `is_orphaned`: either this thread sees the request or `Ask` of
        // another thread, or the other thread sees the new state.
        fence(Ordering::SeqCst);
        match self.signals.asked() >= Ask::Close {
            true => self.enter_error(),
            false => self.fail_orphaned_sends(),
        }
    }

    /// Ends the time in which requests are retried. If the queue pair is still without a peer, the oldest
    /// send request fails.
    pub(crate) fn end_retries(&self) {
        // A thread that posts a request checks `retries` after it has released the lock of the send queue.
        // This thread takes that lock after it has cleared `retries`. So one of the two threads fails the
        // request.
        self.attributes.set_retries(false);
        if self.state.get() == QpState::Orphaned {
            self.fail_orphaned_sends();
        }
    }

    /// Enters `Error`, because the connection is over. If requests are being retried, the oldest send request
    /// fails, because the queue pair has found no peer.
    pub(crate) fn end_with_peer(&self) {
        if self.attributes.retries() && self.outlives_peer() {
            self.fail_next_send();
        }
        self.enter_error();
    }

    /// Fails the oldest send request and flushes all other requests, because the queue pair has no peer. If
    /// the queue pair has no send request, or while requests are being retried, the function does nothing. A
    /// queue pair of type UC drops its send requests instead.
    pub(super) fn fail_orphaned_sends(&self) {
        if self.config.is_unreliable() {
            self.drop_sends();
        } else if !self.attributes.retries() && self.fail_next_send() {
            self.enter_error();
        }
    }

    /// Completes the send requests of a queue pair of type UC that has no peer. The messages are lost, but
    /// succeed, since no answer of a peer tells the sender of a UC message what became of the message. A
    /// request that needs no peer to fail still fails, and the queue pair enters `Error`.
    fn drop_sends(&self) {
        if self.sends.is_held() {
            return;
        }
        let cause = self.state.cause();
        let dropped = match &mut *self.consumer.lock() {
            Some(consumer) => consumer.drop_sends(&self.sends, &self.signals, cause),
            None => true,
        };
        if dropped { self.report() } else { self.enter_error() }
    }

    /// Fails the oldest send request, since the queue pair has no peer. Returns `false` if no request is left
    /// or if a stream owns the consumer.
    fn fail_next_send(&self) -> bool {
        let mut consumer = self.consumer.lock();
        let Some(consumer) = &mut *consumer else { return false };
        let cause = self.state.cause();
        consumer.fail_next_send(&self.sends, &self.signals, WcStatus::RetryExceeded, cause)
    }
}
