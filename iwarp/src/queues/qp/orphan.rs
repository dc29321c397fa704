//! Queue pairs without a peer: the peer has ended, was not reached, or was given up by the user.

use std::sync::atomic::{Ordering, fence};

use super::{Ask, QpShared};
use crate::queues::{QpState, WcStatus};

impl QpShared {
    /// Whether the queue pair stays when the peer ends the connection, as its user has not ended it.
    pub(crate) fn outlives_peer(&self) -> bool {
        self.attributes.outlives_peer() && !self.signals.is_close_asked() && self.signals.asked() < Ask::Close
    }

    /// No connection was made, and none will be: enters `Orphaned` or `Error`.
    pub(crate) fn unreached(&self) {
        if self.outlives_peer() { self.orphan() } else { self.enter_error() }
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

    /// The peer has ended the connection, and none of our requests was open: enters `Orphaned`. Requests
    /// that were posted meanwhile, and a pending `Ask`, are handled now.
    pub(crate) fn orphan(&self) {
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

    /// The peer is gone: the oldest send fails, all other requests are flushed. Without a send request this
    /// does nothing.
    pub(super) fn fail_orphaned_sends(&self) {
        if self.fail_next_send() {
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
