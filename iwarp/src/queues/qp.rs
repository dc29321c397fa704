//! The state that a queue pair shares with its engine. Each part of the state has its own type and file. This
//! file has the operations that need several parts.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::consumer::ConsumerPlace;
use super::cq::CqShared;
use super::cq_users::Demand;
use super::{Doorbells, PdShared, QpConsumer, QpInit, QpState, Resources, StreamError, VerbsError};

mod attributes;
mod config;
mod datagrams;
mod doorbell;
mod engine_link;
mod orphan;
mod post;
mod prepare;
mod receives;
mod send_queue;
mod signals;
mod state_cell;
mod status;

pub(crate) use attributes::Attributes;
pub(crate) use config::{QpConfig, request_buffers};
pub(crate) use datagrams::DATAGRAM_SLOT;
pub(crate) use engine_link::EngineLink;
pub(crate) use receives::Receives;
pub(in crate::queues) use receives::RecvEntry;
pub(crate) use send_queue::SendQueue;
pub(crate) use signals::{Ask, Signals};
pub(crate) use state_cell::StateCell;

pub(crate) struct QpShared {
    pub(crate) config: QpConfig,
    pub(crate) attributes: Attributes,
    pub(crate) state: StateCell,
    pub(crate) engine: EngineLink,
    pub(crate) signals: Signals,
    pub(crate) sends: SendQueue,
    pub(crate) receives: Receives,
    pub(crate) consumer: ConsumerPlace,
}

impl QpShared {
    pub(crate) fn new(pd: &Arc<PdShared>, init: &QpInit<'_>) -> Result<Arc<Self>, VerbsError> {
        let config = QpConfig::new(pd, init)?;
        let num = config.num;
        let (sends, sq) = SendQueue::new(init, num);
        let (receives, rq) = Receives::new(init, num);
        let consumer = QpConsumer::new(sq, rq, init.srq.is_some());
        let depth = sends.depth();
        let shared = Arc::new(Self {
            signals: Signals::new(&config.resources().events, num),
            config,
            attributes: Attributes::new(),
            state: StateCell::new(),
            engine: EngineLink::new(),
            sends,
            receives,
            consumer: ConsumerPlace::new(consumer, depth),
        });
        pd.resources.enter_qp(num, &shared);
        let (send_cq, recv_cq) = (shared.sends.cq(), shared.receives.cq());
        send_cq.attach(num, shared.demand(send_cq))?;
        if !std::ptr::eq(send_cq, recv_cq) {
            recv_cq.attach(num, shared.demand(recv_cq))?;
        }
        Ok(shared)
    }

    /// Returns the number of entries of `cq` that this queue pair can fill.
    fn demand(&self, cq: &CqShared) -> Demand {
        let sends = if std::ptr::eq(self.sends.cq(), cq) { self.sends.depth() } else { 0 };
        let (recvs, srq) = match self.receives.shared_queue() {
            _ if !std::ptr::eq(self.receives.cq(), cq) => (0, None),
            None => (self.receives.depth(), None),
            srq => (0, srq),
        };
        Demand { pd: self.config.pd.id(), own: sends + recvs, srq }
    }

    /// Reserves the queue pair for one connection of the engine with these doorbells. The connection serves
    /// at most `ird` Reads at a time and, if atomics are enabled, at most `ird` atomics at a time. Fails if
    /// the queue pair belongs to another context, is not idle or is already reserved, or if too few Read
    /// slots are left.
    pub(crate) fn reserve(
        &self,
        context: &Resources,
        doorbells: &Arc<Doorbells>,
        ird: u16,
    ) -> Result<(), VerbsError> {
        context.same(self.config.resources())?;
        if !self.config.qp_type.has_connections() {
            return Err(VerbsError::Invalid("a queue pair of type UD has no connection".into()));
        }
        let state = self.state.get();
        if state != QpState::Idle || self.engine.is_there() {
            return Err(VerbsError::InvalidState(state));
        }
        // RFC 5042 section 7.2 (SEC-166): the entries of the Read Request queue are granted here, when the
        // user calls connect or accept. No message of the peer can add an entry.
        let permit = context.quotas.read_slots.take(self.config.read_slots_for(ird))?;
        if !self.engine.reserve(doorbells) {
            return Err(VerbsError::InvalidState(state));
        }
        self.attributes.grant_read_slots(permit);
        Ok(())
    }

    /// Records what the endpoints have agreed on, returns the Read slots that the agreed IRD does not need,
    /// and enters `Rts`. Called when the connection is established with these depths. `outlives_peer` has an
    /// effect only with InfiniBand's semantics.
    pub(crate) fn connected(&self, (ord, ird): (u16, u16), ib_semantics: bool, outlives_peer: bool) {
        self.attributes.agree((ord, ird), ib_semantics, outlives_peer);
        if ib_semantics && !self.config.is_unreliable() {
            self.receives.allow_waiting();
        }
        let quota = &self.config.resources().quotas.read_slots;
        self.attributes.shrink_read_slots(quota, self.config.read_slots_for(ird));
        self.state.set(QpState::Rts);
        // This fence pairs with the fence in `doorbell_in`. The stream checks for requests after this fence.
        fence(Ordering::SeqCst);
    }

    /// Gives the slots for the peer's Reads back to the quota. Called when no connection serves Reads of the
    /// peer any more.
    fn return_read_slots(&self) {
        self.attributes.shrink_read_slots(&self.config.resources().quotas.read_slots, 0);
    }

    /// Records `error` and enters `Error`. Called when no connection can be made because of `error`.
    pub(crate) fn refuse(&self, error: StreamError) {
        self.state.refuse(error);
        self.enter_error();
    }

    /// Enters `Error`, returns the Read slots, flushes both queues, and reports `LastWqeReached` if this
    /// event is due.
    pub(crate) fn enter_error(&self) {
        self.state.set(QpState::Error);
        self.return_read_slots();
        self.flush();
        self.receives.report_last(&self.signals);
    }

    /// Completes all requests of the queue pair's own queues with the status "flushed". If a stream owns the
    /// consumer, the stream flushes the requests, and this function does not. A thread that posts a request
    /// after `Error` was entered also flushes, so that every request is completed.
    pub(crate) fn flush(&self) {
        // The lock is held until all requests are flushed. Without the lock, two threads that flush at the
        // same time could complete requests out of order.
        if let Some(consumer) = &mut *self.consumer.lock() {
            consumer.flush(&self.sends, &self.receives, &self.signals, self.state.cause());
        }
        // `report` is called after the lock is released, since it may flush other queue pairs.
        self.report();
    }

    /// Reports lost completions and events of both completion queues. The caller must hold no lock.
    pub(crate) fn report(&self) {
        self.sends.report();
        self.receives.report();
    }

    /// Removes the queue pair's completions from the completion queues, and prevents further completions.
    /// Called when the user destroys the queue pair.
    pub(crate) fn discard_completions(&self) {
        self.sends.discard_completions();
        self.receives.discard_completions();
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        self.return_read_slots();
        for cq in [self.sends.cq(), self.receives.cq()] {
            cq.detach(self.config.num, self.demand(cq));
        }
    }
}

#[cfg(test)]
mod tests;
