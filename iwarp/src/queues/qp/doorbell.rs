//! How a user's thread notifies the engine of posted requests and of an `Ask`. If no engine will do the work,
//! the user's thread does it.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Ask, QpShared};
use crate::queues::line::{TurnCell, Waiter};
use crate::queues::{QpConsumer, QpState};

impl QpShared {
    /// Leaves an `Ask` for the engine, and rings the doorbell. If the queue pair has no engine and `what` is
    /// at least `Terminate`, this thread enters `Error` instead of ringing. This thread also does so if the
    /// queue pair is `Orphaned` and `what` is at least `Close`.
    pub(crate) fn ask(&self, what: Ask) {
        self.signals.leave(what);
        let ends_at_once = match self.engine.is_there() {
            true => what >= Ask::Close && self.is_orphaned(),
            false => what >= Ask::Terminate,
        };
        if ends_at_once {
            self.enter_error();
        } else {
            self.engine.ring();
        }
    }

    /// Whether the engine has given up the connection. The caller must leave its `Ask` for the engine before
    /// this check.
    fn is_orphaned(&self) -> bool {
        // This fence pairs with the fence in `orphan`.
        fence(Ordering::SeqCst);
        self.state.get() == QpState::Orphaned
    }

    /// Rings the doorbell for new posts. If the connection is over and no engine will flush the queues, this
    /// thread flushes them.
    #[inline]
    pub(crate) fn doorbell(&self) {
        let state = self.state.get();
        if state == QpState::Rts && self.engine.ring() {
            return;
        }
        self.doorbell_in(state);
    }

    /// The part of [`doorbell`](Self::doorbell) that is needed only in unusual cases, such as a state other
    /// than `Rts`.
    #[cold]
    #[inline(never)]
    fn doorbell_in(&self, mut state: QpState) {
        if state == QpState::Idle {
            // Requests that were posted early wait for the stream, which checks for requests when it begins.
            // No doorbell is rung for early requests: the doorbell would not name a connection, and would
            // suppress the doorbell of the next post. If the fence in `connected` comes first, this thread
            // sees the new state. If this fence comes first, the stream sees the requests.
            fence(Ordering::SeqCst);
            state = self.state.get();
        }
        match state {
            QpState::Error => self.flush(),
            QpState::Orphaned => self.fail_orphaned_sends(),
            QpState::Rts | QpState::Closing | QpState::Terminate => {
                self.engine.ring();
            }
            QpState::Idle => {}
        }
    }

    /// Does what is needed after a receive request was posted. If the stream has ended, the request is
    /// flushed: in state `Error` by this thread, and in state `Terminate` by the engine, after the requests
    /// that the engine has started. If a message of the peer waits for a request, the engine is notified.
    #[inline]
    pub(crate) fn recv_posted(&self) {
        let state = self.state.get();
        if state != QpState::Rts || self.receives.may_wait() {
            self.recv_posted_in(state);
        }
    }

    /// The part of [`recv_posted`](Self::recv_posted) that is needed if posting the request is not enough.
    #[cold]
    fn recv_posted_in(&self, mut state: QpState) {
        // This fence pairs with the fence in `Receives::wait`: either the stream sees the request, or this
        // thread sees that the stream waits. The state `Idle` is handled in the same way as in `doorbell_in`.
        fence(Ordering::SeqCst);
        if state == QpState::Idle {
            state = self.state.get();
        }
        match state {
            QpState::Terminate | QpState::Error => self.doorbell(),
            QpState::Rts | QpState::Closing => {
                if self.receives.end_wait() {
                    self.ask(Ask::Receive);
                }
            }
            QpState::Idle | QpState::Orphaned => {}
        }
    }

    /// Records that a message of the peer waits for a receive request. When a request is posted (it may have
    /// been posted already), the engine receives `Ask::Receive`. Only the holder of the consumer calls this
    /// function.
    pub(crate) fn await_recv(self: &Arc<Self>, consumer: &QpConsumer) {
        if self.receives.wait(self, || consumer.has_recvs()) {
            self.ask(Ask::Receive);
        }
    }

    /// Requests an event for the time when no send request is open. While the queue is held, the event is due
    /// when no send request is in progress.
    pub(crate) fn arm_drain(&self) {
        self.sends.arm_drain();
        {
            // The lock of the consumer orders this check and any flush: a later flush sees the flag, and this
            // check sees the result of an earlier flush.
            let consumer = self.consumer.lock();
            // If the queue pair has no stream, no request is in progress.
            if consumer.is_some() && self.sends.is_held() {
                self.sends.report_held(&self.signals);
            } else {
                self.sends.report_if_drained(&self.signals);
            }
        }
        // If a stream completes the last request at the same time, the stream checks again when it answers
        // the doorbell.
        self.engine.ring();
    }

    /// Allows send requests to start again, and cancels the pending drain event.
    pub(crate) fn resume_sends(&self) {
        self.sends.resume();
        self.doorbell();
    }
}

impl Waiter for QpShared {
    fn turn(&self) -> &TurnCell {
        self.receives.turn()
    }

    fn call(&self) {
        self.ask(Ask::Receive);
    }
}
