//! How a user's thread notifies the engine of posted requests and of an `Ask`, or does the work itself if no
//! engine will.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{Ask, QpShared};
use crate::queues::line::{TurnCell, Waiter};
use crate::queues::{QpConsumer, QpState};

impl QpShared {
    /// Sends an `Ask` to the engine. Without an engine, any `Ask` that ends the queue pair ends it at once.
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

    /// True if the engine has given up the connection. The caller looks after it has left an `Ask` for the
    /// engine.
    fn is_orphaned(&self) -> bool {
        // Pairs with the fence in `orphan`.
        fence(Ordering::SeqCst);
        self.state.get() == QpState::Orphaned
    }

    /// Rings the doorbell for new posts. Flushes the queues instead, if the connection is over and no engine
    /// will.
    #[inline]
    pub(crate) fn doorbell(&self) {
        let state = self.state.get();
        if state == QpState::Rts && self.engine.ring() {
            return;
        }
        self.doorbell_in(state);
    }

    /// As [`doorbell`](Self::doorbell), in a state other than `Rts`.
    #[cold]
    #[inline(never)]
    fn doorbell_in(&self, mut state: QpState) {
        if state == QpState::Idle {
            // Requests that were posted early wait for the stream, which looks for them when it begins. No
            // doorbell is rung for them: the doorbell would name no connection, and would suppress the
            // doorbell of the next post. If the fence in `connected` comes first, this thread sees the new
            // state; if this fence does, the stream sees the requests.
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

    /// A receive request was posted. Flushes it if the stream has ended; before `Error` the engine flushes
    /// it, after the requests that it has started. Tells the engine if a message of the peer waits for it.
    #[inline]
    pub(crate) fn recv_posted(&self) {
        let state = self.state.get();
        if state != QpState::Rts || self.receives.may_wait() {
            self.recv_posted_in(state);
        }
    }

    /// As [`recv_posted`](Self::recv_posted), if posting alone is not enough.
    #[cold]
    fn recv_posted_in(&self, mut state: QpState) {
        // Pairs with the fence in `Receives::wait`: either the stream sees the request, or this thread sees
        // that the stream waits. `Idle` is treated as in `doorbell_in`.
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

    /// A message of the peer waits for a receive request. Called by the holder of the consumer. The engine
    /// is asked to receive once a request is posted, which may be now.
    pub(crate) fn await_recv(self: &Arc<Self>, consumer: &QpConsumer) {
        if self.receives.wait(self, || consumer.has_recvs()) {
            self.ask(Ask::Receive);
        }
    }

    /// Requests an event for the time when no send request is open or, while the queue is held, none is in
    /// progress.
    pub(crate) fn arm_drain(&self) {
        self.sends.arm_drain();
        {
            // The lock orders this after or before any flush: a later flush sees the flag, and an earlier
            // flush is seen here.
            let consumer = self.consumer.lock();
            // Without a stream no request is in progress.
            if consumer.is_some() && self.sends.is_held() {
                self.sends.report_held(&self.signals);
            } else {
                self.sends.report_if_drained(&self.signals);
            }
        }
        // A stream that completes the last request meanwhile checks again when it answers the doorbell.
        self.engine.ring();
    }

    /// Starts send requests again, and cancels the pending drain event.
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
