//! One connection, from the SYN to the end of TCP.
//!
//! A connection is in one phase. The phase owns its state. The handler of an event consumes the phase and
//! returns the next phase. Only this file distinguishes the phases; each phase has a file for its actions.
//!
//! | file | what |
//! |---|---|
//! | here | the phases, the events, and the choice of the phase that handles an event |
//! | `connection/base.rs` | the state that a connection has in every phase |
//! | `connection/opening.rs` | how a connection begins, at either peer |
//! | `connection/streaming.rs` | streaming mode before MPA, and the switch |
//! | `connection/startup.rs` | MPA startup: Request, decision, Reply |
//! | `connection/rdma.rs`, `rdma/` | Full Operation: receives and sends FPDUs |
//! | `connection/closing.rs` | how a connection ends |
//! | `connection/timers.rs` | the deadlines of a connection |
//! | `connection/reassembly.rs` | received bytes before Full Operation |
//! | `connection/pre_fpdu.rs` | bytes to send before the first FPDU |
//! | `connection/retry.rs` | the second attempt, with revision 1 |
//! | `connection/report.rs` | events and errors for the connection's user |
//! | `connection/invariants.rs` | the invariants of a connection |

use std::sync::Arc;

use dp::invariant::{Check, ensure};
use tcp_lite::{CloseReason, ConnId, Deadline, Received};

use crate::memory::EpochGuard;
use crate::queues::{Ask, QpShared};
use crate::stream::Waiting;
use crate::verbs::{CmShared, ConnParam, ConnectionError, ConnectionPhase, QpState, ResponderOptions};

use super::state::EngineState;

mod base;
mod closing;
mod invariants;
mod opening;
mod pre_fpdu;
mod rdma;
mod reassembly;
mod report;
mod retry;
mod startup;
mod streaming;
mod timers;

pub(super) use retry::{Attempt, Retry};
pub(super) use startup::Reject;

use base::Base;
use closing::{Closing, EndablePhase};
use opening::Opening;
use rdma::{Next, Rdma};
use reassembly::Reassembly;
use report::{Announced, User};
use startup::Startup;
use streaming::Streaming;
use timers::duration;

pub(super) struct Connection {
    base: Base,
    phase: Phase,
    /// The time at which the engine will call [`on_time`](Self::on_time).
    pub(super) scheduled: Deadline,
    /// Bytes of packet buffers that hold out-of-order data, as last reported to TCP.
    pinned: usize,
    /// Whether TCP is closed, so that the engine removes the connection.
    pub(super) closed: bool,
}

/// The phases of a connection. All phases except the last are boxed, so that a connection is small.
enum Phase {
    /// Our SYN was sent.
    Opening(Box<Opening>),
    /// Streaming mode.
    Streaming(Box<Streaming>),
    /// MPA startup.
    Startup(Box<Startup>),
    /// Full Operation.
    Rdma(Box<Rdma>),
    /// The stream has ended.
    Closing(Closing),
}

pub(super) enum Event<'a> {
    /// A listener has accepted the connection.
    Accepted,
    /// The peer has answered our SYN.
    Established,
    /// Bytes arrived, in any phase except Full Operation (see `Rdma::receive_fpdus`).
    Received { guard: &'a EpochGuard<'a>, received: Received },
    /// Memory is short: about `bytes` bytes of out-of-order data should be dropped.
    Evict { bytes: usize },
    /// The peer has acknowledged bytes, in any phase except Full Operation (see `Rdma::on_acknowledged`).
    Acknowledged,
    /// The peer has sent FIN.
    PeerClosed,
    /// The TCP connection is closed. This is the last event of the connection.
    Closed(CloseReason),
    /// Bytes that have to be sent before the first FPDU can be sent now.
    Send,
    /// The queue pair has an `Ask` for the engine, for example to close the connection.
    Asked(Ask),
    /// The deadline of the phase has passed.
    Deadline,
    /// It is time to check whether the connection was idle for too long.
    IdleCheck,
    /// A timer of Full Operation may be due ([`Phase::upkeep`]).
    Time,
    /// The user has sent or read bytes in streaming mode.
    PlainBytes,
    /// The user starts MPA as initiator, after position `after` of the user's stream.
    StartInitiator { qp: Arc<QpShared>, param: Box<ConnParam>, after: u64 },
    /// The user starts MPA as responder, after position `after` of the user's stream.
    StartResponder { guard: &'a EpochGuard<'a>, options: Box<ResponderOptions>, after: u64 },
    /// The user accepts the Request.
    Accept { guard: &'a EpochGuard<'a>, qp: Arc<QpShared>, param: Box<ConnParam> },
    /// The user rejects the Request.
    Reject(Reject<'a>),
    /// The user wants a graceful close.
    Disconnect,
}

/// The numbers of slots that a connection holds in the shared slabs.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub(super) buffers: usize,
    pub(super) records: usize,
    pub(super) waiting: Waiting,
}

/// The result of [`Connection::give_to_tcp`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// There is nothing more to send, or TCP accepts no more bytes now and will report when it accepts bytes
    /// again.
    Done,
    /// There is more to send.
    More,
    /// There is more to send, but no packet buffer is free.
    NoMbuf,
}

impl Phase {
    /// Returns the bytes of packet buffers that hold out-of-order data, and the earliest deadline of the
    /// timers that only Full Operation has.
    fn upkeep(&self) -> (usize, Deadline) {
        match self {
            Phase::Rdma(rdma) => rdma.upkeep(),
            Phase::Streaming(streaming) => (streaming.reassembly.pinned_bytes(), Deadline::NONE),
            Phase::Startup(startup) => (startup.reassembly.pinned_bytes(), Deadline::NONE),
            Phase::Opening(_) | Phase::Closing(_) => (0, Deadline::NONE),
        }
    }

    /// Handles an event in the default way, in any phase. Returns the next phase.
    fn by_default(self, base: &mut Base, state: &mut EngineState, event: Event<'_>) -> Self {
        match event {
            Event::Closed(_) => return Self::Closing(self.end(base, state)),
            // The connection has ended since the user made the request.
            Event::StartInitiator { qp, .. } | Event::Accept { qp, .. } => {
                base.qp = Some(qp);
                return self.refuse_start(base, state);
            }
            Event::StartResponder { .. } => return self.refuse_start(base, state),
            Event::Reject(_) => {
                base.count_rejected();
                state.tcp.abort(state.now, base.conn);
            }
            // TCP acknowledges the bytes, and the connection drops them.
            Event::Received { received: Received { offset, buf, frontier }, .. } => {
                base.discard(state, offset, &buf, frontier);
            }
            Event::Send if base.pre_fpdu.is_pending() => {
                base.send_pre_fpdu(state, None);
            }
            Event::Asked(Ask::Nothing | Ask::Receive) => {}
            // Nothing may be sent yet, so there is nothing to drain.
            Event::Asked(_) | Event::Disconnect => base.abort(state),
            Event::Accepted
            | Event::Established
            | Event::Evict { .. }
            | Event::Acknowledged
            | Event::PeerClosed
            | Event::PlainBytes
            | Event::Send
            | Event::Deadline
            | Event::IdleCheck
            | Event::Time => {}
        }
        self
    }

    /// Refuses to start or accept MPA, since the connection is ending.
    fn refuse_start(self, base: &mut Base, state: &mut EngineState) -> Self {
        base.report.announced = Announced::Nothing;
        self.fail_startup(base, state, ConnectionError::PeerClosed)
    }
}

impl EndablePhase for Phase {
    fn end(self, base: &mut Base, state: &mut EngineState) -> Closing {
        match self {
            Phase::Opening(opening) => opening.end(base, state),
            Phase::Streaming(streaming) => streaming.end(base, state),
            Phase::Startup(startup) => startup.end(base, state),
            Phase::Rdma(rdma) => rdma.end(base, state),
            Phase::Closing(closing) => closing.end(base, state),
        }
    }
}

impl Connection {
    /// Returns the phase of the connection, and the number and the state of its queue pair. Before the
    /// connection has a queue pair, the second value is `None`.
    pub(super) fn status(&self) -> (ConnectionPhase, Option<(u32, QpState)>) {
        let phase = match &self.phase {
            Phase::Opening(_) => ConnectionPhase::Connecting,
            Phase::Streaming(_) => ConnectionPhase::Streaming,
            Phase::Startup(startup) if startup.is_deciding() => ConnectionPhase::Deciding,
            Phase::Startup(_) => ConnectionPhase::Startup,
            Phase::Rdma(rdma) if !rdma.is_terminating() => ConnectionPhase::Established,
            Phase::Rdma(_) | Phase::Closing(_) => ConnectionPhase::Ending,
        };
        (phase, self.base.qp.as_ref().map(|qp| (qp.config.num, qp.state.get())))
    }

    #[inline]
    pub(super) fn conn(&self) -> ConnId {
        self.base.conn
    }

    /// Returns the next time at which the engine has to call the connection.
    pub(super) fn next_deadline(&self) -> Deadline {
        self.base.timers.next().min(self.phase.upkeep().1)
    }

    /// Whether the engine's record of the connection is certainly still correct after a call: the connection
    /// is in Full Operation, the held bytes and the deadline are unchanged, and the connection has not ended.
    /// Usually the result is `true` in Full Operation; it is `false` in all other phases.
    #[inline]
    pub(super) fn is_recorded(&self) -> bool {
        let Phase::Rdma(rdma) = &self.phase else { return false };
        let (pinned, due) = rdma.upkeep();
        pinned == self.pinned && self.base.timers.next().min(due) == self.scheduled && !self.closed
    }

    /// Reports to TCP how many bytes of packet buffers hold out-of-order data, if this number has changed.
    pub(super) fn report_pinned(&mut self, state: &mut EngineState) {
        let (pinned, _) = self.phase.upkeep();
        if pinned != self.pinned {
            self.pinned = pinned;
            state.tcp.pin(self.base.conn, pinned);
        }
    }

    // ---- events ----

    /// Passes an event to the phase.
    #[inline(never)]
    pub(super) fn on(&mut self, state: &mut EngineState, event: Event<'_>) {
        let Self { base, phase, .. } = self;
        *phase = match std::mem::replace(phase, Phase::Closing(Closing::default())) {
            Phase::Opening(opening) => opening.on(base, state, event),
            Phase::Streaming(streaming) => streaming.on(base, state, event),
            Phase::Startup(startup) => startup.on(base, state, event),
            Phase::Rdma(rdma) => rdma.on(base, state, event),
            Phase::Closing(closing) => closing.on(base, state, event),
        };
    }

    #[inline(always)]
    pub(super) fn on_received(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        received: Received,
    ) {
        if let Phase::Rdma(rdma) = &mut self.phase {
            let next = rdma.receive_fpdus(&mut self.base, state, guard, received);
            self.follow(state, next);
        } else {
            self.on_received_any(state, guard, received);
        }
    }

    /// As [`on_received`](Self::on_received), for a connection that is not in Full Operation.
    fn on_received_any(&mut self, state: &mut EngineState, guard: &EpochGuard<'_>, received: Received) {
        let Received { offset, buf, frontier } = received;
        // Only Full Operation reads borrowed memory. A port that lends memory keeps a buffer for this copy.
        let Some(buf) = buf.into_private() else { return self.base.abort(state) };
        self.on(state, Event::Received { guard, received: Received { offset, buf, frontier } });
    }

    /// Closes the connection if a step of Full Operation requires this.
    #[inline]
    fn follow(&mut self, state: &mut EngineState, next: Next) {
        if next == Next::Close {
            self.close(state);
        }
    }

    /// Ends the stream, and sends FIN.
    #[cold]
    fn close(&mut self, state: &mut EngineState) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing(Closing::default()));
        self.phase = phase.close(&mut self.base, state);
    }

    /// Handles the last event of the connection: the TCP connection is closed.
    pub(super) fn on_closed(&mut self, state: &mut EngineState, reason: CloseReason) {
        // RFC 5041 section 3 (DDP-031): TCP delivers reliably or fails, and a failure is reported.
        if reason != CloseReason::Graceful {
            self.base.report.add(ConnectionError::Tcp(reason));
        }
        let is_orphan = self.base.is_orphan();
        self.on(state, Event::Closed(reason));
        self.closed = true;
        self.base.finish(state, is_orphan);
    }

    /// Calls the handlers of the connection's timers. The handlers of the deadline and of the idle check are
    /// called only if these are due: both may have been moved after the engine scheduled this call.
    pub(super) fn on_time(&mut self, state: &mut EngineState) {
        let now = state.now;
        if self.base.timers.take_due(now) {
            self.on(state, Event::Deadline);
        }
        if self.base.timers.take_idle_check(now) {
            self.on(state, Event::IdleCheck);
        }
        self.on(state, Event::Time);
    }

    /// Accepts the peer's Request, as the user has requested.
    pub(super) fn accept(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        id: Arc<CmShared>,
        (qp, param): (Arc<QpShared>, Box<ConnParam>),
    ) {
        self.base.leave_backlog();
        self.base.user = User::Known(id);
        self.on(state, Event::Accept { guard, qp, param });
    }

    /// Ends the connection at once.
    pub(super) fn abort(&mut self, state: &mut EngineState) {
        self.base.abort(state);
    }

    /// Ends the connection at once, because the engine stops.
    pub(super) fn shut_down(&mut self, state: &mut EngineState) {
        if let Some(qp) = &self.base.qp {
            qp.state.blame(ConnectionError::Tcp(CloseReason::Aborted));
        }
        self.abort(state);
        self.on_closed(state, CloseReason::Aborted);
    }

    /// Returns the second attempt if this attempt to connect has failed and a second attempt follows.
    /// Otherwise returns `None`.
    pub(super) fn take_retry(self) -> Option<Box<Retry>> {
        match self.base.attempt {
            Attempt::Failed(retry) => Some(retry),
            Attempt::First | Attempt::Second { .. } => None,
        }
    }

    // ---- acknowledgements ----

    /// Called when the peer has acknowledged bytes that requests may wait for.
    pub(super) fn on_acknowledged(&mut self, state: &mut EngineState) {
        if let Phase::Rdma(rdma) = &mut self.phase {
            rdma.on_acknowledged(&self.base, state);
        } else {
            self.on(state, Event::Acknowledged);
        }
    }

    /// Completes the requests that wait for the acknowledgement.
    pub(super) fn complete_acknowledged(&mut self, state: &mut EngineState) {
        if let Phase::Rdma(rdma) = &mut self.phase {
            rdma.complete_acknowledged(&self.base, state);
        }
    }

    /// Sends the limit to the peer, unless an earlier answer has contained the limit.
    pub(super) fn tell_limit(&mut self, state: &mut EngineState) {
        if let Phase::Rdma(rdma) = &mut self.phase {
            rdma.tell_limit(&self.base, state);
        }
    }

    /// Called when the acknowledgement that the connection owes is sent.
    pub(super) fn on_acknowledging(&mut self) {
        if let Phase::Rdma(rdma) = &mut self.phase {
            rdma.on_acknowledging();
        }
    }

    // ---- sending ----

    /// Schedules the connection to send, for example because requests were posted to its queue pair, or
    /// because TCP has space again.
    pub(super) fn schedule_tx(&self, state: &mut EngineState) {
        self.base.schedule_tx(state);
    }

    pub(super) fn prefetch_stream(&self) {
        if let Phase::Rdma(rdma) = &self.phase {
            dp::prefetch(&**rdma);
        }
    }

    pub(super) fn prefetch_queue_pair(&self) {
        if let Some(qp) = &self.base.qp {
            dp::prefetch(&**qp);
        }
    }

    /// Lets the connection send: acts on the `Ask` of the queue pair, and hands at most about `bytes` bytes
    /// to TCP. No frame is sent here: `Poller::send_frames` sends the frames at the end of the poll.
    #[inline]
    pub(super) fn give_to_tcp(
        &mut self,
        state: &mut EngineState,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> TurnOutcome {
        let mut asked = Ask::Nothing;
        if let Phase::Rdma(rdma) = &mut self.phase {
            asked = rdma.begin_turn();
            if asked == Ask::Nothing && !self.base.pre_fpdu.is_pending() {
                let (outcome, next) = rdma.give_to_tcp(&mut self.base, state, bytes, guard);
                self.follow(state, next);
                return outcome;
            }
        } else if let Some(qp) = &self.base.qp {
            qp.engine.clear_doorbell();
            asked = qp.signals.take_asked();
        }
        self.give_to_tcp_any(state, asked, bytes, guard)
    }

    /// As [`give_to_tcp`](Self::give_to_tcp), for any phase. `asked` is the `Ask` of the queue pair.
    #[inline(never)]
    fn give_to_tcp_any(
        &mut self,
        state: &mut EngineState,
        asked: Ask,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> TurnOutcome {
        if asked != Ask::Nothing {
            self.on(state, Event::Asked(asked));
        }
        self.on(state, Event::Send);
        if self.base.pre_fpdu.is_pending() {
            let lacks_mbuf = self.base.pre_fpdu.lacks_mbuf();
            return if lacks_mbuf { TurnOutcome::NoMbuf } else { TurnOutcome::Done };
        }
        if let Phase::Rdma(rdma) = &mut self.phase {
            let (outcome, next) = rdma.give_to_tcp(&mut self.base, state, bytes, guard);
            self.follow(state, next);
            return outcome;
        }
        self.base.flush_late();
        TurnOutcome::Done
    }

    // ---- for tests ----

    /// Checks that the user and the deadline fit the phase. Returns the slots that the phase holds.
    fn check_phase(&self, state: &EngineState) -> Check<Holdings> {
        let Self { base, phase, .. } = self;
        match phase {
            Phase::Opening(_) => {
                ensure!(base.timers.deadline().is_some(), "startup has no deadline");
                ensure!(base.user.id().is_some(), "this end has connected for no user");
            }
            Phase::Streaming(streaming) => return streaming.check(base, state),
            Phase::Startup(startup) => return startup.check(base, state),
            Phase::Rdma(rdma) => return rdma.check(base, state),
            Phase::Closing(_) => ensure!(base.timers.deadline().is_some(), "the end has no deadline"),
        }
        Ok(Holdings::default())
    }
}
