//! Queue pairs without a peer: one that is gone, was not reached, or is given up.

use std::sync::atomic::{Ordering, fence};

use super::{Ask, QpShared};
use crate::queues::{QpState, WcStatus};

impl QpShared {
    /// A connection is to be made. Until the ends agree, `outlives_peer` counts if the user wants
    /// InfiniBand's semantics.
    pub(crate) fn connecting(&self, ib_semantics: bool, outlives_peer: bool) {
        self.outlives_peer.store(ib_semantics && outlives_peer, Ordering::Release);
    }

    /// Its user has ended it: it does not outlive that.
    pub(crate) fn end_by_user(&self) {
        self.outlives_peer.store(false, Ordering::Release);
    }

    /// No connection was made, and none will be: enters `Orphaned` or `Error`.
    pub(crate) fn unreached(&self) {
        if self.outlives_peer() { self.orphan() } else { self.enter_error() }
    }

    /// The user gives up the peer while there is no connection. Returns whether there was none.
    pub(crate) fn give_up(&self) -> bool {
        if self.state() != QpState::Idle {
            return false;
        }
        self.end_by_user();
        if let Some(consumer) = &mut *self.consumer() {
            consumer.fail_next_send(self, WcStatus::RetryExceeded);
        }
        // Requests that are posted from here on are flushed.
        self.ask(Ask::Abort);
        self.enter_error();
        true
    }

    /// The peer has ended the connection, and no request of ours was open: enters `Orphaned`. What was posted
    /// or asked for meanwhile is done now.
    pub(crate) fn orphan(&self) {
        self.set_state(QpState::Orphaned);
        *self.read_slots() = None;
        // Pairs with the fence in `is_orphaned`: either this thread sees a request, or the one that leaves it
        // sees the new state.
        fence(Ordering::SeqCst);
        match self.asked() >= Ask::Close {
            true => self.enter_error(),
            false => self.fail_orphaned_sends(),
        }
    }

    /// The peer is gone: the oldest send fails, all other requests are flushed. Without a send nothing
    /// happens.
    pub(super) fn fail_orphaned_sends(&self) {
        let failed = match &mut *self.consumer() {
            Some(consumer) => consumer.fail_next_send(self, WcStatus::RetryExceeded),
            None => false,
        };
        if failed {
            self.enter_error();
        }
    }
}
