//! One connection from SYN to the last FIN: streaming mode, MPA startup, the RDMA stream, teardown.
//!
//! | file | what |
//! |---|---|
//! | here | the phases, and the events of TCP and of the clock |
//! | `connection/open.rs` | how a connection begins, at either end |
//! | `connection/timers.rs` | the deadlines of a connection |
//! | `connection/reassembly.rs` | received bytes before Full Operation |
//! | `connection/pre_fpdu.rs` | bytes to send before the first FPDU |
//! | `connection/streaming_mode.rs` | streaming mode before MPA, and the switch |
//! | `connection/startup.rs` | Request, decision, Reply |
//! | `connection/full_operation.rs` | Full Operation: receives and sends FPDUs |
//! | `connection/not_ready.rs` | messages that find no receive request, at either end |
//! | `connection/retry.rs` | the second attempt, with revision 1 |
//! | `connection/teardown.rs` | how a connection ends |
//! | `connection/report.rs` | what its user is told about that |
//! | `connection/check.rs` | the invariants of a connection |

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use tcp_lite::{CloseReason, ConnId, Deadline, Instant, Received};

use crate::memory::EpochGuard;
use crate::mpa::{MpaError, Responder};
use crate::queues::{Ask, QpShared};
use crate::stream::Failure;
use crate::stream::ib_profile::agreement::PeerRnrConfig;
use crate::verbs::{
    Admitted, ConnectionError, ConnectionPhase, KeepalivePolicy, PlainBytes, QpState, ResponderOptions,
};

use super::state::EngineState;
use super::trace;

mod check;
mod full_operation;
mod not_ready;
mod open;
mod pre_fpdu;
mod reassembly;
mod report;
mod retry;
mod startup;
mod streaming_mode;
mod teardown;
mod timers;

pub(super) use retry::{Attempt, Retry};
pub(super) use startup::Reject;

use full_operation::FullOperation;
use open::{Initiating, Opening};
use pre_fpdu::{PreFpdu, Sent};
use reassembly::Reassembly;
use report::{Report, User};
use streaming_mode::StreamingMode;
use timers::{Timers, duration};

/// One connection.
pub(super) struct Connection {
    conn: ConnId,
    /// Its place at the listener that accepted it; `None` if this end has connected.
    admitted: Option<Admitted>,
    user: User,
    phase: Phase,
    /// The bytes from and to the user, if the connection began in streaming mode: a reject leads back to it.
    plain: Option<Arc<PlainBytes>>,
    /// Bytes to send before the first FPDU. The last of them may be sent in Full Operation.
    pre_fpdu: PreFpdu,
    timers: Timers,
    /// When the engine will call [`on_time`](Self::on_time).
    pub(super) scheduled: Deadline,
    report: Report,
    attempt: Attempt,
    /// Bytes of packet buffers that TCP counts as held for bytes ahead of the frontier.
    pinned: usize,
    /// TCP is closed, and the engine removes the connection.
    pub(super) closed: bool,
}

/// The phases that a connection leaves again are in boxes, so that one in Full Operation is small.
enum Phase {
    /// Our SYN is sent.
    Opening(Box<Opening>),
    /// Streaming mode.
    StreamingMode(Box<StreamingMode>),
    /// The Request is sent.
    AwaitReply { initiating: Box<Initiating>, reassembly: Box<Reassembly> },
    /// Waits for the peer's Request. `options` say which Requests are allowed.
    AwaitRequest { responder: Box<Responder>, options: Box<ResponderOptions>, reassembly: Box<Reassembly> },
    /// The user decides on the Request. `offers_ib`: what the peer tells, if it offers InfiniBand's
    /// semantics.
    Deciding { responder: Box<Responder>, reassembly: Box<Reassembly>, offers_ib: Option<PeerRnrConfig> },
    /// Full Operation.
    FullOperation(Box<FullOperation>),
    /// No stream any more.
    Ended(TcpClosing),
}

/// TCP is closing, perhaps after what is left of our startup frames, was reset, or is gone. Received bytes
/// are acknowledged and dropped.
#[derive(Default)]
struct TcpClosing {
    qp: Option<Arc<QpShared>>,
    /// Bytes that the peer had acknowledged when the deadline was set.
    acknowledged: u64,
    /// TCP withholds acknowledgements until the peer has acknowledged the bytes below this stream offset.
    withheld_until: Option<u64>,
}

/// The result of [`Connection::transmit`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transmitted {
    /// There is nothing more to send, or TCP takes no more for now and will say when it does.
    Done,
    /// There is more to send.
    More,
    /// There is more to send, and no packet buffer is free.
    NoMbuf,
}

impl Phase {
    /// The queue pair that the connection is for, once there is one.
    fn qp(&self) -> Option<&Arc<QpShared>> {
        match self {
            Phase::FullOperation(full) => Some(full.stream.qp()),
            Phase::Opening(opening) => match &**opening {
                Opening::Startup { qp, .. } => Some(qp),
                Opening::StreamingMode { .. } => None,
            },
            Phase::AwaitReply { initiating, .. } => Some(&initiating.qp),
            Phase::Ended(ended) => ended.qp.as_ref(),
            Phase::StreamingMode(_) | Phase::AwaitRequest { .. } | Phase::Deciding { .. } => None,
        }
    }

    /// Bytes of packet buffers that are held for bytes ahead of the frontier.
    fn pinned_bytes(&self) -> usize {
        match self {
            Phase::FullOperation(full) => full.deframer.pinned_bytes(),
            Phase::StreamingMode(mode) => mode.pinned_bytes(),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => reassembly.pinned_bytes(),
            Phase::Opening(_) | Phase::Ended(_) => 0,
        }
    }
}

impl Connection {
    /// Takes the phase, to replace it by the next one.
    fn take_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Ended(TcpClosing::default()))
    }

    /// How far it has come, and its queue pair.
    pub(super) fn status(&self) -> (ConnectionPhase, Option<(u32, QpState)>) {
        let phase = match &self.phase {
            Phase::Opening(_) => ConnectionPhase::Connecting,
            Phase::StreamingMode(_) => ConnectionPhase::Streaming,
            Phase::AwaitReply { .. } | Phase::AwaitRequest { .. } => ConnectionPhase::Startup,
            Phase::Deciding { .. } => ConnectionPhase::Deciding,
            Phase::FullOperation(_) if !self.is_ending() => ConnectionPhase::Established,
            Phase::FullOperation(_) | Phase::Ended(_) => ConnectionPhase::Ending,
        };
        (phase, self.phase.qp().map(|qp| (qp.config.num, qp.state.get())))
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    /// The next time at which it has to be called.
    pub(super) fn next_deadline(&self) -> Deadline {
        self.timers.next()
    }

    /// Whether the engine has nothing to note after a call, as mostly in Full Operation: neither held bytes,
    /// a deadline nor the end.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        matches!(&self.phase, Phase::FullOperation(full) if full.deframer.pinned_bytes() == self.pinned)
            && self.next_deadline() == self.scheduled
            && !self.closed
    }

    /// Tells TCP how many bytes of its buffers are held for bytes ahead of the frontier, if that has changed.
    pub(super) fn report_pinned(&mut self, state: &mut EngineState) {
        let pinned = self.phase.pinned_bytes();
        if pinned != self.pinned {
            self.pinned = pinned;
            state.tcp.pin(self.conn, pinned);
        }
    }

    // ---- events of TCP ----

    /// The TCP connection is established.
    pub(super) fn on_established(&mut self, state: &mut EngineState) {
        if let (Some(id), Some(info)) = (self.user.id(), state.tcp.info(self.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        trace::tcp_established(state, self.conn);
        match self.take_phase() {
            Phase::Opening(opening) => match *opening {
                Opening::Startup { qp, param } => {
                    let deadline = self.timers.deadline().unwrap_or(state.now);
                    let mark = state.tcp.sequence_mark(self.conn).unwrap_or_default();
                    let started = Initiating::new((qp, param), state.config.crc, mark, deadline);
                    let (initiating, request) = match started {
                        Ok(started) => started,
                        Err(qp) => return self.fail_startup_of(state, qp, ConnectionError::NoResources),
                    };
                    trace::request_sent(state, self.conn, &initiating.param);
                    self.apply_keepalive(state, initiating.param.keepalive);
                    self.phase =
                        Phase::AwaitReply { initiating: Box::new(initiating), reassembly: Box::default() };
                    self.send_frame(state, &request);
                }
                Opening::StreamingMode { plain, param } => {
                    self.apply_keepalive(state, param.keepalive);
                    self.begin_streaming_mode(state, plain, param.idle_timeout);
                }
            },
            other => self.phase = other,
        }
    }

    /// Bytes arrived.
    #[inline]
    pub(super) fn on_received(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        received: Received,
    ) {
        let Received { offset, buf, frontier } = received;
        match &mut self.phase {
            Phase::FullOperation(_) => self.receive(state, guard, offset, buf, frontier),
            _ => self.receive_before_fpdus(state, guard, (offset, buf, frontier)),
        }
    }

    /// Bytes arrived in another phase than Full Operation.
    #[inline(never)]
    fn receive_before_fpdus(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        (offset, buf, frontier): (u64, Mbuf, u64),
    ) {
        match &mut self.phase {
            Phase::StreamingMode(_) => self.receive_in_streaming_mode(state, (offset, buf, frontier)),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => {
                let counted = offset >= frontier;
                let taken = reassembly
                    .check_ahead(offset)
                    .and_then(|()| reassembly.push(&mut state.held, (offset, buf, frontier), counted));
                match taken {
                    Ok(()) => self.run_startup(state, guard),
                    Err(error) => self.fail_startup(state, error),
                }
            }
            // TCP acknowledges the bytes; they are dropped.
            Phase::Opening(_) | Phase::Ended(_) | Phase::FullOperation(_) => {
                self.discard(state, offset, &buf, frontier);
                self.refuse_after_close(state);
            }
        }
    }

    /// Memory is short: drops bytes ahead of the frontier.
    pub(super) fn on_evict(&mut self, state: &mut EngineState, bytes: usize) {
        let conn = self.conn;
        let EngineState { tcp, held, .. } = state;
        let may = |stretches: &[Range<u64>]| tcp.evict(conn, stretches);
        match &mut self.phase {
            Phase::FullOperation(full) => full.deframer.give_up(bytes, held, may),
            Phase::StreamingMode(mode) => mode.give_up(bytes, held, may),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => reassembly.give_up(bytes, held, may),
            Phase::Opening(_) | Phase::Ended(_) => {}
        }
    }

    /// The peer has sent FIN.
    pub(super) fn on_peer_closed(&mut self, state: &mut EngineState) {
        // RFC 5041 sections 3 and 6.2.1 (DDP-040, DDP-041, DDP-153): a FIN ends the one stream and its
        // connection. The posted requests are sent, then our half is closed gracefully as well.
        match &mut self.phase {
            Phase::FullOperation(full) => {
                // While the Terminate is being sent: our FIN follows it.
                if full.is_terminating() {
                    return;
                }
                full.stream.on_peer_closed();
                if full.may_end_here() && full.stream.may_send() {
                    self.close_gracefully(state);
                } else {
                    self.report.add(ConnectionError::PeerClosed);
                    self.fail(state, Failure::Lost(MpaError::Closed));
                }
            }
            Phase::StreamingMode(mode) => {
                mode.peer_closed = true;
                self.deliver_to_user(state);
            }
            // If not, our FIN follows what is left of the startup frames.
            Phase::Ended(_) if !self.pre_fpdu.is_pending() => state.tcp.close(state.now, self.conn),
            Phase::Ended(_) => {}
            Phase::Opening(_)
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => {
                self.consider_fallback();
                self.fail_startup(state, ConnectionError::PeerClosed);
            }
        }
    }

    /// The TCP connection is closed. This is its last event.
    pub(super) fn on_closed(&mut self, state: &mut EngineState, reason: CloseReason) {
        if reason == CloseReason::Reset {
            self.consider_fallback();
        }
        // RFC 5041 section 3 (DDP-031): TCP delivers reliably or fails, and a failure is reported.
        if reason != CloseReason::Graceful {
            self.report.add(ConnectionError::Tcp(reason));
        }
        self.finish(state);
    }

    // ---- sending ----

    /// Schedules it to send: its queue pair was posted to, or TCP has space again.
    pub(super) fn activate(&self, state: &mut EngineState) {
        state.schedule_tx(self.conn);
    }

    /// Prefetches the state of the stream.
    pub(super) fn prefetch_stream(&self) {
        if let Phase::FullOperation(full) = &self.phase {
            dp::prefetch(&**full);
        }
    }

    /// Prefetches the queue pair.
    pub(super) fn prefetch_queue_pair(&self) {
        if let Phase::FullOperation(full) = &self.phase {
            dp::prefetch(&**full.stream.qp());
        }
    }

    /// Does what the queue pair asks for, and hands about `bytes` bytes to TCP.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        state: &mut EngineState,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> Transmitted {
        let mut asked = Ask::Nothing;
        if let Phase::FullOperation(full) = &self.phase {
            let qp = full.stream.qp();
            qp.engine.clear_doorbell();
            asked = qp.signals.take_asked();
            full.stream.report_if_drained();
            if asked == Ask::Nothing && !self.pre_fpdu.is_pending() {
                return self.transmit_fpdus(state, bytes, guard);
            }
        } else if let Some(qp) = self.phase.qp() {
            qp.engine.clear_doorbell();
            asked = qp.signals.take_asked();
        }
        self.transmit_any(state, asked, bytes, guard)
    }

    /// The same in any phase, when the queue pair has `asked` for this.
    #[inline(never)]
    fn transmit_any(
        &mut self,
        state: &mut EngineState,
        asked: Ask,
        bytes: usize,
        guard: &EpochGuard<'_>,
    ) -> Transmitted {
        if asked != Ask::Nothing {
            self.on_ask(state, asked);
            self.on_recv_posted(state);
        }
        if self.pre_fpdu.is_pending() || matches!(self.phase, Phase::StreamingMode(_)) {
            let sent = self.transmit_pre_fpdu_bytes(state);
            if self.pre_fpdu.is_pending() {
                return if sent == Sent::NoMbuf { Transmitted::NoMbuf } else { Transmitted::Done };
            }
        }
        if matches!(self.phase, Phase::FullOperation(_)) {
            return self.transmit_fpdus(state, bytes, guard);
        }
        self.flush_late();
        Transmitted::Done
    }

    /// Drops received bytes. TCP's budget counts bytes ahead of the frontier until they are released.
    fn discard(&self, state: &mut EngineState, offset: u64, buf: &Mbuf, frontier: u64) {
        if offset >= frontier {
            state.tcp.release(self.conn, buf.len());
        }
    }

    /// Flushes requests that were posted after the stream ended.
    fn flush_late(&mut self) {
        if !self.phase.qp().is_some_and(|qp| matches!(qp.state.get(), QpState::Terminate | QpState::Error)) {
            return;
        }
        match &mut self.phase {
            Phase::FullOperation(full) => full.stream.flush(),
            phase => {
                if let Some(qp) = phase.qp() {
                    qp.flush();
                }
            }
        }
    }

    // ---- time ----

    /// A deadline has passed. It may have been moved since.
    pub(super) fn on_time(&mut self, state: &mut EngineState) {
        if self.timers.take_due(state.now) {
            self.on_deadline(state);
        }
        if self.timers.take_idle_check(state.now) {
            self.on_idle(state);
        }
        if self.timers.take_peer_rnr(state.now) {
            self.on_peer_rnr_timeout(state);
        }
    }

    /// The deadline of the phase has passed.
    fn on_deadline(&mut self, state: &mut EngineState) {
        match &self.phase {
            &Phase::Ended(TcpClosing { acknowledged, .. }) => self.on_close_deadline(state, acknowledged),
            Phase::FullOperation(full) if full.is_terminating() => self.abort(state),
            Phase::FullOperation(full) if full.is_draining() => self.await_answers(state),
            Phase::FullOperation(full) if full.stream.awaits_recv() => self.on_rnr_timeout(state),
            Phase::StreamingMode(mode) if let Some(acknowledged) = mode.closing => {
                self.on_close_deadline(state, acknowledged);
            }
            Phase::Deciding { .. } => self.decision_timeout(state),
            Phase::Opening(_) => {
                self.fail_startup(state, ConnectionError::Tcp(state.tcp.unanswered(self.conn)))
            }
            Phase::StreamingMode(_) => {
                debug_assert!(false, "streaming mode has no deadline before its close")
            }
            // In Full Operation: the RTR did not come.
            Phase::FullOperation(_) | Phase::AwaitReply { .. } | Phase::AwaitRequest { .. } => {
                self.fail_startup(state, ConnectionError::StartupTimeout)
            }
        }
    }

    /// The connection is established: starts the clock of its age, and the idle timeout.
    fn set_established(&mut self, state: &EngineState, idle_timeout: Option<Duration>) {
        if let Some(id) = self.user.id() {
            id.set_established(state.now_us());
        }
        self.timers.watch_idle(state.now, idle_timeout);
    }

    fn on_idle(&mut self, state: &mut EngineState) {
        let progress_us = self.user.id().map_or(0, |id| id.progress_us());
        let since = Instant::from_micros(progress_us as i64);
        // A graceful close has its own deadlines, also while requests are still sent.
        let is_closing = matches!(&self.phase, Phase::FullOperation(full) if full.is_draining());
        if !is_closing && !self.is_ending() && self.timers.is_idle(since, state.now) {
            self.report.add(ConnectionError::IdleTimeout);
            self.disconnect(state);
        }
    }

    /// Records that something was received or sent.
    fn note_progress(&self, state: &EngineState) {
        if let Some(id) = self.user.id() {
            id.set_progress(state.now_us());
        }
    }

    fn apply_keepalive(&self, state: &mut EngineState, keepalive: KeepalivePolicy) {
        let keepalive = match keepalive {
            KeepalivePolicy::Engine => return,
            KeepalivePolicy::Off => None,
            KeepalivePolicy::Probe { idle, interval, probes } => {
                let (idle, interval) = (duration(idle), duration(interval));
                Some(tcp_lite::Keepalive { idle, interval, probes })
            }
        };
        state.tcp.set_keepalive(state.now, self.conn, keepalive);
    }
}
