//! What users and the engine of a queue pair tell each other: doorbells, and what a user asks for besides its
//! posts.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::QpShared;
use crate::queues::line::{Turn, TurnCell, Waiter};
use crate::queues::{Doorbells, QpConsumer, QpState};

/// A request to the engine that carries the connection, to end it. Of two requests the one with the higher
/// value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Ask {
    Nothing,
    /// A receive request is there for the message that waits for one. Any other request does this too.
    Receive,
    /// Send the posted requests, then FIN.
    Close,
    /// Send a Terminate for a local catastrophic error, and flush.
    Terminate,
    /// The user has dropped the queue pair: reset and flush, unless the connection is ending already.
    Abandon,
    /// Reset and flush.
    Abort,
}

impl QpShared {
    /// Sends a request to the engine. Without an engine, any request that ends the queue pair ends it at
    /// once.
    pub(crate) fn ask(&self, what: Ask) {
        self.asked.fetch_max(what as u8, Ordering::AcqRel);
        match self.doorbells.get() {
            Some(_) if self.is_orphaned() && what >= Ask::Close => self.enter_error(),
            Some(doorbells) => self.ring(doorbells),
            None if what >= Ask::Terminate => self.enter_error(),
            None => {}
        }
    }

    /// Whether no engine has the connection any more, after a request to it was left.
    fn is_orphaned(&self) -> bool {
        // Pairs with the fence in `orphan`.
        fence(Ordering::SeqCst);
        self.state() == QpState::Orphaned
    }

    /// The user requests a graceful close: the send queue refuses further requests. Called before the engine
    /// is told, so that the engine finds only requests that were posted before, and perhaps one that was
    /// being posted meanwhile.
    pub(crate) fn refuse_sends(&self) {
        self.close_asked.store(true, Ordering::SeqCst);
    }

    /// Whether the user has requested a graceful close.
    pub(crate) fn is_close_asked(&self) -> bool {
        self.close_asked.load(Ordering::SeqCst)
    }

    /// The pending request to the engine; it stays pending.
    pub(crate) fn asked(&self) -> Ask {
        ask_of(self.asked.load(Ordering::Acquire))
    }

    /// Takes the pending request to the engine.
    #[inline]
    pub(crate) fn take_asked(&self) -> Ask {
        if self.asked() == Ask::Nothing {
            return Ask::Nothing;
        }
        ask_of(self.asked.swap(Ask::Nothing as u8, Ordering::AcqRel))
    }

    /// Rings the doorbell for new posts. Flushes the queues instead, if the connection is over and no engine
    /// will.
    #[inline]
    pub(crate) fn doorbell(&self) {
        let state = self.state();
        if state == QpState::Rts
            && let Some(doorbells) = self.doorbells.get()
        {
            return self.ring(doorbells);
        }
        self.doorbell_in(state);
    }

    /// As [`doorbell`](Self::doorbell), in a state other than `Rts`.
    #[cold]
    #[inline(never)]
    fn doorbell_in(&self, mut state: QpState) {
        if state == QpState::Idle {
            // Requests that were posted early wait for the stream, which looks for them when it begins. No
            // doorbell rings: it would name no connection, and keep the next post from ringing. Either the
            // fence in `connected` comes first, and this thread sees the new state; or this fence does, and
            // the stream sees the requests.
            fence(Ordering::SeqCst);
            state = self.state();
        }
        match (state, self.doorbells.get()) {
            (QpState::Error, _) => self.flush(),
            (QpState::Orphaned, _) => self.fail_orphaned_sends(),
            (QpState::Rts | QpState::Closing | QpState::Terminate, Some(doorbells)) => self.ring(doorbells),
            (QpState::Idle, _) | (_, None) => {}
        }
    }

    /// A receive request was posted. Flushes it if the stream is over; before `Error` the engine flushes it,
    /// after the requests that it has started. Tells the engine if a message of the peer waits for it.
    #[inline]
    pub(crate) fn recv_posted(&self) {
        let state = self.state();
        if state != QpState::Rts || self.ib_semantics() == Some(true) {
            self.recv_posted_in(state);
        }
    }

    /// As [`recv_posted`](Self::recv_posted), where it is not enough to have posted it.
    #[cold]
    fn recv_posted_in(&self, mut state: QpState) {
        // Pairs with the fence in `await_recv`: either the stream sees the request, or this thread sees that
        // it waits. In `Idle` as in `doorbell_in`.
        fence(Ordering::SeqCst);
        if state == QpState::Idle {
            state = self.state();
        }
        match state {
            QpState::Terminate | QpState::Error => self.doorbell(),
            QpState::Rts | QpState::Closing if self.srq.is_none() => self.end_wait(),
            QpState::Idle | QpState::Rts | QpState::Closing | QpState::Orphaned => {}
        }
    }

    /// Asks the engine to receive, if a message waits for a request of this queue pair's own queue.
    fn end_wait(&self) {
        if self.turn.get() == Turn::Waits && self.turn.replace(Turn::Out) == Turn::Waits {
            self.ask(Ask::Receive);
        }
    }

    /// A message of the peer waits for a receive request. Called by the holder of the consumer. The engine is
    /// asked to receive once a request is there, which may be now.
    pub(crate) fn await_recv(self: &Arc<Self>, consumer: &QpConsumer) {
        if let Some(srq) = &self.srq {
            let who: Weak<dyn Waiter> = Arc::<Self>::downgrade(self);
            return srq.shared.wait_in_line(who, &self.turn);
        }
        self.turn.set(Turn::Waits);
        // Pairs with the fence in `recv_posted_in`.
        fence(Ordering::SeqCst);
        if consumer.has_recvs() {
            self.end_wait();
        }
    }

    /// No message waits any more: the stream is over.
    pub(crate) fn stop_awaiting_recv(&self) {
        match &self.srq {
            Some(srq) if self.ib_semantics() == Some(true) => srq.shared.leave_line(&self.turn),
            Some(_) => {}
            None => self.turn.set(Turn::Out),
        }
    }

    #[inline]
    pub(super) fn ring(&self, doorbells: &Doorbells) {
        if self.rung.ring() {
            doorbells.ring(self.slot.load(Ordering::Acquire));
        }
    }

    /// The engine answers the doorbell: the next post rings it again.
    #[inline]
    pub(crate) fn clear_doorbell(&self) {
        self.rung.answer();
    }
}

impl Waiter for QpShared {
    fn turn(&self) -> &TurnCell {
        &self.turn
    }

    fn call(&self) {
        self.ask(Ask::Receive);
    }
}

fn ask_of(value: u8) -> Ask {
    match value {
        0 => Ask::Nothing,
        1 => Ask::Receive,
        2 => Ask::Close,
        3 => Ask::Terminate,
        4 => Ask::Abandon,
        _ => Ask::Abort,
    }
}
