//! Full Operation: a connection receives and sends FPDUs.
//!
//! | file | what |
//! |---|---|
//! | here | receives and sends |
//! | `rdma/not_ready.rs` | messages that find no receive request, at either peer |
//! | `rdma/teardown.rs` | how the stream ends: by its user, by a failure, or by TCP |

use std::sync::Arc;

use dp::Mbuf;
use dp::invariant::{Check, ensure};
use dp::profile::{self, Layer};
use tcp_lite::{ConnId, Deadline, Received};

use crate::memory::{Accessor, EpochGuard};
use crate::mpa::{Deframed, Deframer, HeldSlab, MpaError, Negotiated, is_borrowed};
use crate::queues::{Ask, QpShared};
use crate::rdmap::{Terminate, TerminateError};
use crate::stream::ib_profile::agreement::{Agreement, RnrConfig};
use crate::stream::{Delivery, Failure, SendOutcome, Stream, StreamContext};
use crate::verbs::ConnectionError;

use super::super::state::EngineState;
use super::super::trace;
use super::base::Base;
use super::closing::EndablePhase;
use super::reassembly::{Reassembly, Rest};
use super::report::Announcement;
use super::timers::RnrTimers;
use super::{Event, Holdings, Phase, TurnOutcome};

mod not_ready;
mod teardown;

pub(super) struct Rdma {
    deframer: Deframer,
    stream: Stream,
    pub(super) stage: RdmaStage,
    /// Whether this connection is in the engine's list of owed acknowledgements.
    owes_ack: bool,
    /// Whether this connection is in the engine's list of owed limits.
    owes_limit: bool,
    /// With InfiniBand's semantics: the peer's settings for messages that find no receive request.
    peer_rnr: RnrConfig,
    rnr: RnrTimers,
}

pub(super) enum RdmaStage {
    /// The connection waits for the peer's first FPDU, its RTR. When the RTR has arrived, the connection is
    /// announced to the user with these values.
    AwaitingRtr(Box<Announcement>),
    /// The connection sends and receives.
    Open,
    /// The connection sends posted requests and waits for the responses to Reads and atomics. FIN follows.
    /// `progress` is the stream's progress at the time when the deadline for these responses was set.
    Draining { progress: u64 },
    /// The stream has failed. Received bytes are dropped. Only the end of the stream is still sent: a
    /// Terminate, messages about accepted requests with InfiniBand's semantics, or both.
    Terminating,
}

impl Rdma {
    /// Begins Full Operation. If `may_send` is set, this side need not wait for the peer's first FPDU. If
    /// `on_rtr` is set, the connection is announced with its values when that FPDU has arrived.
    pub(super) fn begin(
        base: &mut Base,
        state: &mut EngineState,
        qp: Arc<QpShared>,
        (negotiated, agreement): (&Negotiated, Agreement),
        may_send: bool,
        on_rtr: Option<Box<Announcement>>,
    ) -> Box<Self> {
        let by = Accessor { pd: qp.config.pd.id(), stream: qp.config.stream };
        // RFC 5044 section 7.1 (MPA-141): Full Operation begins with a queue pair, whose stream is bound to
        // this connection.
        let Agreement { peer_rnr, rnr_timeout, outlives_peer } = agreement;
        let ib_semantics = agreement.ib_semantics();
        qp.connected((negotiated.ord, negotiated.ird), ib_semantics, outlives_peer);
        state.tcp.report_acknowledgements(base.conn, ib_semantics);
        let Negotiated { rx_markers, crc, rx_start, .. } = *negotiated;
        Box::new(Self {
            deframer: Deframer::new(rx_start, rx_markers, crc),
            stream: Stream::new(qp, by, negotiated, (may_send, ib_semantics), &mut state.request_pool),
            stage: on_rtr.map_or(RdmaStage::Open, RdmaStage::AwaitingRtr),
            owes_ack: false,
            owes_limit: false,
            peer_rnr: peer_rnr.unwrap_or_default(),
            rnr: RnrTimers::new(rnr_timeout),
        })
    }

    /// Acts on an event. Received bytes and acknowledgements are not passed as events: `Connection` calls
    /// [`receive_fpdus`](Self::receive_fpdus) and [`on_acknowledged`](Self::on_acknowledged) instead.
    pub(super) fn on(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        event: Event<'_>,
    ) -> Phase {
        let next = match event {
            Event::PeerClosed => self.on_peer_closed(base, state),
            Event::Asked(asked) => {
                let next = self.on_ask(base, state, asked);
                self.on_recv_posted(base, state);
                next
            }
            Event::Disconnect => self.disconnect(base, state),
            // A connection that is ending has other deadlines, even while requests are still being sent.
            Event::IdleCheck if self.is_draining() || self.is_terminating() => Next::Same,
            Event::IdleCheck if base.has_idled(state) => self.disconnect(base, state),
            Event::IdleCheck => Next::Same,
            Event::Time => {
                self.on_time(base, state);
                Next::Same
            }
            Event::Deadline if self.is_terminating() => {
                base.abort(state);
                Next::Same
            }
            Event::Deadline if self.is_draining() => self.await_answers(base, state),
            Event::Deadline if self.stream.awaits_recv() => self.on_rnr_timeout(base, state),
            // The RTR did not arrive.
            Event::Deadline => return self.fail_startup(base, state, ConnectionError::StartupTimeout),
            Event::Send => {
                if base.pre_fpdu.is_pending() {
                    base.send_pre_fpdu(state, None);
                }
                Next::Same
            }
            Event::Evict { bytes } => {
                let EngineState { tcp, held, .. } = state;
                self.deframer.give_up(bytes, held, |stretches| tcp.evict(base.conn, stretches));
                Next::Same
            }
            Event::Closed(_) => return Phase::Closing(self.lose(base, state)),
            event => return Phase::Rdma(self).by_default(base, state, event),
        };
        self.then(next, base, state)
    }

    /// Returns the bytes of packet buffers that hold out-of-order data, and the next time to call
    /// [`on_time`](Self::on_time).
    #[inline]
    pub(super) fn upkeep(&self) -> (usize, Deadline) {
        (self.deframer.pinned_bytes(), self.rnr.peer())
    }

    /// Returns the phase that follows from `next`.
    pub(super) fn then(self: Box<Self>, next: Next, base: &mut Base, state: &mut EngineState) -> Phase {
        match next {
            Next::Same => Phase::Rdma(self),
            Next::Close => self.close(base, state),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        matches!(self.stage, RdmaStage::Draining { .. })
    }

    pub(super) fn is_terminating(&self) -> bool {
        matches!(self.stage, RdmaStage::Terminating)
    }

    /// Passes the ULPDUs in a received buffer to the stream. If the stream has no markers, the deframer holds
    /// no bytes and the buffer is the next in order, then the fast path of the deframer handles valid FPDUs
    /// at the front of the buffer, as long as each FPDU lies in one segment of the buffer.
    /// [`deframe_any`](Self::deframe_any) handles the rest. Returns how many bytes of earlier out-of-order
    /// data are no longer held.
    ///
    /// Never inlined, so that the loop over FPDUs can use all registers.
    #[inline(never)]
    fn deframe(
        &mut self,
        received: Received,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
    ) -> Result<usize, Failure> {
        let _deframe = profile::scope(Layer::Deframe);
        let Received { offset, mut buf, frontier } = received;
        let EngineState { stream_counters, request_pool, held, .. } = state;
        let mut delivery =
            self.stream.delivery(StreamContext { guard, counters: stream_counters, pool: request_pool });
        let taken = self.deframer.receive_whole(offset, &buf, frontier, held, |position, ulpdu| {
            let _receive = profile::scope(Layer::Receive);
            delivery.deliver_usual(position, ulpdu)
        })?;
        if taken > 0 && taken == buf.len() {
            // No bytes are held, so none are released.
            return Ok(0);
        }
        buf.advance(taken);
        if is_borrowed(&buf) {
            return self.deframe_borrowed((offset + taken as u64, buf, frontier), state, guard);
        }
        Self::deframe_any(&mut self.deframer, (offset + taken as u64, buf, frontier), held, delivery)
    }

    /// Does what [`deframe`](Self::deframe) does, for a buffer with borrowed memory: FPDUs are placed
    /// straight from the pages of the process that has sent them. If the deframer does not accept the bytes,
    /// they are copied first.
    #[inline(never)]
    fn deframe_borrowed(
        &mut self,
        (offset, mut buf, frontier): (u64, Mbuf, u64),
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
    ) -> Result<usize, Failure> {
        let EngineState { stream_counters, request_pool, held, .. } = state;
        let mut delivery =
            self.stream.delivery(StreamContext { guard, counters: stream_counters, pool: request_pool });
        let taken = self.deframer.receive_borrowed(offset, &buf, frontier, held, |ulpdu| {
            let _receive = profile::scope(Layer::Receive);
            delivery.deliver(Deframed::InOrder(ulpdu)).map(drop)
        })?;
        if taken > 0 && taken == buf.len() {
            return Ok(0);
        }
        buf.advance(taken);
        // A port that lends memory keeps a buffer for this copy.
        let Some(buf) = buf.into_private() else { return Err(Failure::Lost(MpaError::NoHeldSlot)) };
        Self::deframe_any(&mut self.deframer, (offset + taken as u64, buf, frontier), held, delivery)
    }

    /// The general path of [`deframe`](Self::deframe), for any buffer. The buffer may be out of order,
    /// contain markers or invalid FPDUs, or contain FPDUs that continue in the next buffer.
    #[inline(never)]
    fn deframe_any(
        deframer: &mut Deframer,
        (offset, buf, frontier): (u64, Mbuf, u64),
        held: &mut HeldSlab,
        mut delivery: Delivery<'_>,
    ) -> Result<usize, Failure> {
        let mut ulpdus = deframer.receive(offset, buf, frontier, held);
        while let Some(deframed) = ulpdus.next()? {
            let _receive = profile::scope(Layer::Receive);
            let is_placed_early = delivery.deliver(deframed)?;
            if is_placed_early {
                ulpdus.mark_placed();
            }
        }
        Ok(ulpdus.finish())
    }

    /// Records that the peer waits for an acknowledgement: the peer's requests complete when TCP acknowledges
    /// their FPDUs.
    fn owe_ack(&mut self, state: &mut EngineState, conn: ConnId) {
        if !std::mem::replace(&mut self.owes_ack, true) {
            state.acks.owe(state.now, conn);
        }
    }

    fn wants_to_send(&self) -> bool {
        self.is_draining() || self.stream.wants_to_send()
    }

    /// Whether a FIN of the peer is graceful now: no FPDU is incomplete, and no Read or atomic of ours waits
    /// for its response.
    fn may_end_here(&self) -> bool {
        self.deframer.at_boundary() && !self.stream.awaits_answers()
    }

    /// Hands the FPDUs of a received buffer to the stream, and acts on what the stream has found.
    #[inline(always)]
    pub(super) fn receive_fpdus(
        &mut self,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        received: Received,
    ) -> Next {
        // RFC 5041 section 7.1 (DDP-192): all bytes that arrive after an error are dropped.
        if self.is_terminating() {
            base.discard(state, received.offset, &received.buf, received.frontier);
            return Next::Same;
        }
        let before = ReceiveSnapshot::of(self, state);
        let result = self.deframe(received, state, guard);
        self.after_receiving(base, state, before, result)
    }

    #[inline(always)]
    fn after_receiving(
        &mut self,
        base: &mut Base,
        state: &mut EngineState,
        before: ReceiveSnapshot,
        result: Result<usize, Failure>,
    ) -> Next {
        let ReceiveSnapshot { first, fpdus, placed } = before;
        let fpdus = state.stream_counters.rx_fpdus - fpdus;
        let wants_to_send = self.wants_to_send();
        // If this side may send only after the peer's first FPDU, and this FPDU is a Terminate, startup has
        // failed.
        let ended_startup = first && fpdus == 1 && matches!(result, Err(Failure::Peer(_)));
        if first && self.stream.may_send() && !ended_startup {
            self.on_first_fpdu(base, state);
        }
        if let Some(id) = base.user.id() {
            id.count_segment(fpdus, state.stream_counters.rx_placed_bytes - placed);
            if fpdus > 0 {
                id.set_progress(state.now_us());
            }
        }
        if self.stream.completes_by_acknowledgement() && fpdus > 0 {
            self.after_receiving_ib(base, state, result.is_ok());
        }
        match result {
            Ok(released) => {
                state.tcp.release(base.conn, released);
                if wants_to_send {
                    base.schedule_tx(state);
                }
                Next::Same
            }
            Err(Failure::Peer(terminate)) if ended_startup => {
                self.fail(base, state, Failure::Peer(Box::new(terminate.in_startup())))
            }
            Err(failure) => self.fail(base, state, failure),
        }
    }

    /// Called with InfiniBand's semantics when FPDUs were received. `well` is `false` if receiving has
    /// failed.
    #[inline(never)]
    fn after_receiving_ib(&mut self, base: &mut Base, state: &mut EngineState, well: bool) {
        self.owe_ack(state, base.conn);
        if self.stream.owes_limit() && !std::mem::replace(&mut self.owes_limit, true) {
            state.acks.owe_limit(state.now, base.conn);
        }
        if let (Some(news), true) = (self.stream.take_news(), well) {
            self.on_news(base, state, news);
        }
    }

    /// Called when the peer's first FPDU has arrived, so that this side may send. If the FPDU was the RTR,
    /// announces the connection.
    #[cold]
    fn on_first_fpdu(&mut self, base: &mut Base, state: &mut EngineState) {
        match std::mem::replace(&mut self.stage, RdmaStage::Open) {
            RdmaStage::AwaitingRtr(announcement) => {
                base.timers.clear_deadline();
                base.announce_established(state, *announcement);
            }
            other => self.stage = other,
        }
    }

    /// Receives as FPDUs the bytes that arrived after the startup frames, and schedules the connection to
    /// send.
    pub(super) fn receive_rest(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        mut reassembly: Reassembly,
    ) -> Phase {
        let mut next = Next::Same;
        while let Some(Rest { offset, buf, frontier, released }) = reassembly.pop_rest(&mut state.held) {
            state.tcp.release(base.conn, released);
            // A failed stream drops further bytes.
            match self.receive_fpdus(base, state, guard, Received { offset, buf, frontier }) {
                Next::Same => {}
                Next::Close => next = Next::Close,
            }
        }
        base.schedule_tx(state);
        self.then(next, base, state)
    }

    /// Handles the peer's FIN.
    fn on_peer_closed(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        // The end of the stream is still being sent: our FIN follows it.
        if self.is_terminating() {
            return Next::Same;
        }
        // RFC 5041 sections 3 and 6.2.1 (DDP-040, DDP-041, DDP-153): a FIN ends the connection and its only
        // stream. If the FIN is graceful, the posted requests are still sent, and then our half is closed
        // gracefully.
        self.stream.on_peer_closed();
        if self.may_end_here() && self.stream.may_send() {
            self.close_gracefully(base, state);
            return Next::Same;
        }
        base.report.add(ConnectionError::PeerClosed);
        if self.stream.is_unreliable() {
            return Next::Close;
        }
        self.fail(base, state, Failure::Lost(MpaError::Closed))
    }

    /// Acts on an `Ask` of the queue pair.
    fn on_ask(&mut self, base: &mut Base, state: &mut EngineState, asked: Ask) -> Next {
        match asked {
            // After any `Ask`, the caller calls `on_recv_posted`.
            Ask::Nothing | Ask::Receive => {}
            Ask::Abort => base.abort(state),
            _ if self.is_terminating() => {}
            Ask::Close => return self.disconnect(base, state),
            Ask::Terminate => {
                let terminate = Box::new(Terminate::bare(TerminateError::LocalCatastrophic));
                return self.fail(base, state, Failure::Here(terminate));
            }
            Ask::Abandon => base.abort(state),
        }
        Next::Same
    }

    // ---- acknowledgements ----

    pub(super) fn on_acknowledged(&mut self, base: &Base, state: &mut EngineState) {
        if let Some(offset) = state.tcp.acknowledged(base.conn) {
            self.stream.on_acknowledged(offset);
            state.acks.arrive(base.conn);
            if self.stream.end_withholding(offset) {
                state.tcp.withhold(base.conn, None);
            }
        }
    }

    pub(super) fn complete_acknowledged(&mut self, base: &Base, state: &mut EngineState) {
        self.stream.complete_acknowledged();
        if self.is_draining() {
            base.schedule_tx(state);
        }
    }

    pub(super) fn tell_limit(&mut self, base: &Base, state: &mut EngineState) {
        self.owes_limit = false;
        if !self.is_terminating() && self.stream.owes_limit() {
            self.stream.tell_limit();
            base.schedule_tx(state);
        }
    }

    pub(super) fn on_acknowledging(&mut self) {
        self.owes_ack = false;
    }

    // ---- sending ----

    /// Begins a turn to send. Removes and returns the `Ask` of the queue pair.
    #[inline]
    pub(super) fn begin_turn(&self) -> Ask {
        let qp = self.stream.qp();
        qp.engine.clear_doorbell();
        let asked = qp.signals.take_asked();
        self.stream.report_if_drained();
        asked
    }

    /// Hands at most about `bytes` bytes of FPDUs to TCP.
    #[inline]
    pub(super) fn give_to_tcp(
        &mut self,
        base: &mut Base,
        state: &mut EngineState,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> (TurnOutcome, Next) {
        let is_terminating = self.is_terminating();
        let EngineState { tcp, stream_counters, request_pool, now, .. } = state;
        let before = stream_counters.tx_fpdus;
        let context = StreamContext { guard, counters: stream_counters, pool: request_pool };
        let result = self.stream.give_to_tcp(tcp, base.conn, *now, bytes, context);
        if state.stream_counters.tx_fpdus > before {
            base.note_progress(state);
        }
        if is_terminating {
            // Requests that were posted after the failure are flushed.
            self.flush_late();
        }
        match result {
            Ok(SendOutcome::Idle) => (TurnOutcome::Done, self.close_or_await(base, state)),
            Ok(SendOutcome::Full) => (TurnOutcome::Done, self.await_space(base, state)),
            Ok(SendOutcome::More) => (TurnOutcome::More, Next::Same),
            Ok(SendOutcome::NoMbuf) => (TurnOutcome::NoMbuf, Next::Same),
            Ok(SendOutcome::Terminated) => {
                state.counters.tx_terminates += 1;
                trace::terminate_sent(state, base.conn, base.qp.as_ref(), base.report.error());
                (TurnOutcome::Done, Next::Close)
            }
            Ok(SendOutcome::Ended) => (TurnOutcome::Done, Next::Close),
            Err(failure) => {
                let next = self.fail(base, state, failure);
                let more = next == Next::Same && self.wants_to_send();
                (if more { TurnOutcome::More } else { TurnOutcome::Done }, next)
            }
        }
    }

    // ---- for tests ----

    pub(super) fn check(&self, base: &Base, state: &EngineState) -> Check<Holdings> {
        let has_deadline = base.timers.deadline().is_some();
        ensure!(base.user.id().is_some(), "Full Operation has no user");
        match &self.stage {
            RdmaStage::AwaitingRtr(_) => {
                ensure!(!self.stream.may_send(), "the RTR is awaited and has come");
                ensure!(has_deadline, "the RTR has no deadline");
            }
            RdmaStage::Open => {
                let waits = self.stream.awaits_recv();
                ensure!(waits || !has_deadline, "Full Operation has a deadline");
            }
            RdmaStage::Draining { .. } => {}
            RdmaStage::Terminating => ensure!(has_deadline, "the Terminate has no deadline"),
        }
        let (buffers, records) = self.deframer.check(&state.held)?;
        Ok(Holdings { buffers, records, waiting: self.stream.check(&state.request_pool)? })
    }
}

/// The result of a step in Full Operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    /// Full Operation continues.
    Same,
    /// The stream ends, and a FIN is sent.
    Close,
}

/// The state before FPDUs are received.
pub(super) struct ReceiveSnapshot {
    /// Whether this side may not send yet, since the peer's first FPDU has not arrived.
    first: bool,
    fpdus: u64,
    placed: u64,
}

impl ReceiveSnapshot {
    #[inline]
    pub(super) fn of(full: &Rdma, state: &EngineState) -> Self {
        let (fpdus, placed) = (state.stream_counters.rx_fpdus, state.stream_counters.rx_placed_bytes);
        Self { first: !full.stream.may_send(), fpdus, placed }
    }
}
