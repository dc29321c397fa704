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

use super::io::Io;
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
    pub(super) fn report_pinned(&mut self, io: &mut Io) {
        let pinned = self.phase.pinned_bytes();
        if pinned != self.pinned {
            self.pinned = pinned;
            io.tcp.pin(self.conn, pinned);
        }
    }

    // ---- events of TCP ----

    /// The TCP connection is established.
    pub(super) fn on_established(&mut self, io: &mut Io) {
        if let (Some(id), Some(info)) = (self.user.id(), io.tcp.info(self.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        trace::tcp_established(io, self.conn);
        match self.take_phase() {
            Phase::Opening(opening) => match *opening {
                Opening::Startup { qp, param } => {
                    let deadline = self.timers.deadline().unwrap_or(io.now);
                    let mark = io.tcp.sequence_mark(self.conn).unwrap_or_default();
                    let started = Initiating::new((qp, param), io.config.crc, mark, deadline);
                    let (initiating, request) = match started {
                        Ok(started) => started,
                        Err(qp) => return self.fail_startup_of(io, qp, ConnectionError::NoResources),
                    };
                    trace::request_sent(io, self.conn, &initiating.param);
                    self.apply_keepalive(io, initiating.param.keepalive);
                    self.phase =
                        Phase::AwaitReply { initiating: Box::new(initiating), reassembly: Box::default() };
                    self.send_frame(io, &request);
                }
                Opening::StreamingMode { plain, param } => {
                    self.apply_keepalive(io, param.keepalive);
                    self.begin_streaming_mode(io, plain, param.idle_timeout);
                }
            },
            other => self.phase = other,
        }
    }

    /// Bytes arrived.
    #[inline]
    pub(super) fn on_received(&mut self, io: &mut Io, guard: &EpochGuard<'_>, received: Received) {
        let Received { offset, buf, frontier } = received;
        match &mut self.phase {
            Phase::FullOperation(_) => self.receive(io, guard, offset, buf, frontier),
            _ => self.receive_before_fpdus(io, guard, (offset, buf, frontier)),
        }
    }

    /// Bytes arrived in another phase than Full Operation.
    #[inline(never)]
    fn receive_before_fpdus(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard<'_>,
        (offset, buf, frontier): (u64, Mbuf, u64),
    ) {
        match &mut self.phase {
            Phase::StreamingMode(_) => self.receive_in_streaming_mode(io, (offset, buf, frontier)),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => {
                let counted = offset >= frontier;
                let taken = reassembly
                    .check_ahead(offset)
                    .and_then(|()| reassembly.push(&mut io.held, (offset, buf, frontier), counted));
                match taken {
                    Ok(()) => self.run_startup(io, guard),
                    Err(error) => self.fail_startup(io, error),
                }
            }
            // TCP acknowledges the bytes; they are dropped.
            Phase::Opening(_) | Phase::Ended(_) | Phase::FullOperation(_) => {
                self.discard(io, offset, &buf, frontier);
                self.refuse_after_close(io);
            }
        }
    }

    /// Memory is short: drops bytes ahead of the frontier.
    pub(super) fn on_evict(&mut self, io: &mut Io, bytes: usize) {
        let conn = self.conn;
        let Io { tcp, held, .. } = io;
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
    pub(super) fn on_peer_closed(&mut self, io: &mut Io) {
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
                    self.close_gracefully(io);
                } else {
                    self.report.add(ConnectionError::PeerClosed);
                    self.fail(io, Failure::Lost(MpaError::Closed));
                }
            }
            Phase::StreamingMode(mode) => {
                mode.peer_closed = true;
                self.deliver_to_user(io);
            }
            // If not, our FIN follows what is left of the startup frames.
            Phase::Ended(_) if !self.pre_fpdu.is_pending() => io.tcp.close(io.now, self.conn),
            Phase::Ended(_) => {}
            Phase::Opening(_)
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => {
                self.consider_fallback();
                self.fail_startup(io, ConnectionError::PeerClosed);
            }
        }
    }

    /// The TCP connection is closed. This is its last event.
    pub(super) fn on_closed(&mut self, io: &mut Io, reason: CloseReason) {
        if reason == CloseReason::Reset {
            self.consider_fallback();
        }
        // RFC 5041 section 3 (DDP-031): TCP delivers reliably or fails, and a failure is reported.
        if reason != CloseReason::Graceful {
            self.report.add(ConnectionError::Tcp(reason));
        }
        self.finish(io);
    }

    // ---- sending ----

    /// Schedules it to send: its queue pair was posted to, or TCP has space again.
    pub(super) fn activate(&self, io: &mut Io) {
        io.schedule_tx(self.conn);
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
    pub(super) fn transmit(&mut self, io: &mut Io, bytes: usize, guard: &EpochGuard<'_>) -> Transmitted {
        let mut asked = Ask::Nothing;
        if let Phase::FullOperation(full) = &self.phase {
            let qp = full.stream.qp();
            qp.engine.clear_doorbell();
            asked = qp.signals.take_asked();
            full.stream.report_if_drained();
            if asked == Ask::Nothing && !self.pre_fpdu.is_pending() {
                return self.transmit_fpdus(io, bytes, guard);
            }
        } else if let Some(qp) = self.phase.qp() {
            qp.engine.clear_doorbell();
            asked = qp.signals.take_asked();
        }
        self.transmit_any(io, asked, bytes, guard)
    }

    /// The same in any phase, when the queue pair has `asked` for this.
    #[inline(never)]
    fn transmit_any(&mut self, io: &mut Io, asked: Ask, bytes: usize, guard: &EpochGuard<'_>) -> Transmitted {
        if asked != Ask::Nothing {
            self.on_ask(io, asked);
            self.on_recv_posted(io);
        }
        if self.pre_fpdu.is_pending() || matches!(self.phase, Phase::StreamingMode(_)) {
            let sent = self.transmit_pre_fpdu_bytes(io);
            if self.pre_fpdu.is_pending() {
                return if sent == Sent::NoMbuf { Transmitted::NoMbuf } else { Transmitted::Done };
            }
        }
        if matches!(self.phase, Phase::FullOperation(_)) {
            return self.transmit_fpdus(io, bytes, guard);
        }
        self.flush_late();
        Transmitted::Done
    }

    /// Drops received bytes. TCP's budget counts bytes ahead of the frontier until they are released.
    fn discard(&self, io: &mut Io, offset: u64, buf: &Mbuf, frontier: u64) {
        if offset >= frontier {
            io.tcp.release(self.conn, buf.len());
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
    pub(super) fn on_time(&mut self, io: &mut Io) {
        if self.timers.take_due(io.now) {
            self.on_deadline(io);
        }
        if self.timers.take_idle_check(io.now) {
            self.on_idle(io);
        }
        if self.timers.take_peer_rnr(io.now) {
            self.on_peer_rnr_timeout(io);
        }
    }

    /// The deadline of the phase has passed.
    fn on_deadline(&mut self, io: &mut Io) {
        match &self.phase {
            &Phase::Ended(TcpClosing { acknowledged, .. }) => self.on_close_deadline(io, acknowledged),
            Phase::FullOperation(full) if full.is_terminating() => self.abort(io),
            Phase::FullOperation(full) if full.is_draining() => self.await_answers(io),
            Phase::FullOperation(full) if full.stream.awaits_recv() => self.on_rnr_timeout(io),
            Phase::StreamingMode(mode) if let Some(acknowledged) = mode.closing => {
                self.on_close_deadline(io, acknowledged);
            }
            Phase::Deciding { .. } => self.decision_timeout(io),
            Phase::Opening(_) => self.fail_startup(io, ConnectionError::Tcp(io.tcp.unanswered(self.conn))),
            Phase::StreamingMode(_) => {
                debug_assert!(false, "streaming mode has no deadline before its close")
            }
            // In Full Operation: the RTR did not come.
            Phase::FullOperation(_) | Phase::AwaitReply { .. } | Phase::AwaitRequest { .. } => {
                self.fail_startup(io, ConnectionError::StartupTimeout)
            }
        }
    }

    /// The connection is established: starts the clock of its age, and the idle timeout.
    fn set_established(&mut self, io: &Io, idle_timeout: Option<Duration>) {
        if let Some(id) = self.user.id() {
            id.set_established(io.now_us());
        }
        self.timers.watch_idle(io.now, idle_timeout);
    }

    fn on_idle(&mut self, io: &mut Io) {
        let progress_us = self.user.id().map_or(0, |id| id.progress_us());
        let since = Instant::from_micros(progress_us as i64);
        // A graceful close has its own deadlines, also while requests are still sent.
        let is_closing = matches!(&self.phase, Phase::FullOperation(full) if full.is_draining());
        if !is_closing && !self.is_ending() && self.timers.is_idle(since, io.now) {
            self.report.add(ConnectionError::IdleTimeout);
            self.disconnect(io);
        }
    }

    /// Records that something was received or sent.
    fn note_progress(&self, io: &Io) {
        if let Some(id) = self.user.id() {
            id.set_progress(io.now_us());
        }
    }

    fn apply_keepalive(&self, io: &mut Io, keepalive: KeepalivePolicy) {
        let keepalive = match keepalive {
            KeepalivePolicy::Engine => return,
            KeepalivePolicy::Off => None,
            KeepalivePolicy::Probe { idle, interval, probes } => {
                let (idle, interval) = (duration(idle), duration(interval));
                Some(tcp_lite::Keepalive { idle, interval, probes })
            }
        };
        io.tcp.set_keepalive(io.now, self.conn, keepalive);
    }
}
