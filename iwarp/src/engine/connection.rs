//! One connection from SYN to the last FIN: streaming mode, MPA startup, the RDMA stream, teardown.
//!
//! | file | what |
//! |---|---|
//! | here | the phases, and the events of TCP and of the clock |
//! | `connection/reassembly.rs` | received bytes before Full Operation |
//! | `connection/streaming_mode.rs` | streaming mode before MPA, and the switch |
//! | `connection/startup.rs` | Request, decision, Reply |
//! | `connection/full_operation.rs` | Full Operation: receives and sends FPDUs |
//! | `connection/teardown.rs` | how a connection ends |
//! | `connection/check.rs` | the invariants of a connection |

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tcp_lite::{CloseReason, ConnId, Instant, Received};

use crate::memory::EpochGuard;
use crate::mpa::startup::Enhanced;
use crate::mpa::{Initiator, MpaError, Responder};
use crate::queues::QpShared;
use crate::rdmap::stream::Failure;
use crate::verbs::{
    Admitted, CmShared, ConnParam, ConnectionError, Keepalive, ListenerShared, ResponderOptions,
    StreamShared, TerminateReport,
};

use super::core::Io;

mod check;
mod full_operation;
mod reassembly;
mod startup;
mod streaming_mode;
mod teardown;

use full_operation::FullOperation;
use reassembly::Reassembly;
use streaming_mode::StreamingMode;

/// One connection.
pub(super) struct Connection {
    conn: ConnId,
    /// `None` until the connect request is announced.
    id: Option<Arc<CmShared>>,
    /// The listener that accepted it; `None` if this end has connected.
    origin: Option<ListenerOrigin>,
    qp: Option<Arc<QpShared>>,
    phase: Phase,
    /// The parameters of connect or accept, until it is established.
    param: Option<Box<ConnParam>>,
    /// How long it may be idle after that.
    idle_timeout: Option<Duration>,
    /// The bytes from and to the user, if it began in streaming mode.
    stream: Option<Arc<StreamShared>>,
    /// Bytes of startup frames that TCP has not taken. They go after those of `stream`.
    startup_tx: VecDeque<u8>,
    /// There may be bytes to send before the first FPDU, in `stream` or `startup_tx`.
    has_pre_fpdu_bytes: bool,
    /// The deadline of the phase.
    deadline: Option<Instant>,
    /// When to check whether it was idle for too long.
    idle_deadline: Option<Instant>,
    /// When the engine will call [`on_time`](Self::on_time).
    pub(super) scheduled: Option<Instant>,
    announced: Announced,
    /// TCP is closed, and the engine removes the connection.
    pub(super) closed: bool,
    error: Option<ConnectionError>,
    terminate: Option<Arc<TerminateReport>>,
    /// The enhanced data of the peer's startup frame.
    peer: Option<Enhanced>,
    fallback: Fallback,
    /// Bytes of packet buffers that TCP counts as held for bytes ahead of the frontier.
    pinned: usize,
}

/// What the user has been told about the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announced {
    Nothing,
    /// That it is in streaming mode.
    Streaming,
    /// That it is established.
    Established,
}

/// Whether there is a second attempt with revision 1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fallback {
    No,
    /// The peer closed without a Reply: a second attempt follows.
    Due,
    /// This is the second attempt.
    Done,
}

/// The listener that accepted a connection, and the connection's share of its limits.
struct ListenerOrigin {
    id: Arc<CmShared>,
    admitted: Admitted,
}

enum Phase {
    /// Our SYN is sent. The Request goes next, or nothing in streaming mode.
    Opening { start: Option<(Box<Initiator>, Vec<u8>)> },
    /// Streaming mode.
    StreamingMode(StreamingMode),
    /// The Request is sent.
    AwaitReply { initiator: Box<Initiator>, reassembly: Reassembly },
    /// Waits for the peer's Request. `options` say which Requests are allowed.
    AwaitRequest { responder: Box<Responder>, options: Box<ResponderOptions>, reassembly: Reassembly },
    /// The user decides on the Request.
    Deciding { responder: Box<Responder>, reassembly: Reassembly },
    /// Full Operation.
    FullOperation(FullOperation),
    /// Our FIN is sent. Received bytes are acknowledged and dropped.
    Closing,
}

/// A connection to try again with revision 1.
pub(super) struct Retry {
    pub(super) id: Arc<CmShared>,
    pub(super) qp: Arc<QpShared>,
    pub(super) remote: SocketAddr,
    pub(super) param: Box<ConnParam>,
    pub(super) deadline: Instant,
}

impl Connection {
    fn new(conn: ConnId, phase: Phase, deadline: Option<Instant>) -> Self {
        Self {
            conn,
            id: None,
            origin: None,
            qp: None,
            phase,
            param: None,
            idle_timeout: None,
            stream: None,
            startup_tx: VecDeque::new(),
            has_pre_fpdu_bytes: false,
            deadline,
            idle_deadline: None,
            scheduled: None,
            announced: Announced::Nothing,
            closed: false,
            error: None,
            terminate: None,
            peer: None,
            fallback: Fallback::No,
            pinned: 0,
        }
    }

    /// A connection that a listener accepted.
    pub(super) fn accepted(
        conn: ConnId,
        listener: Arc<CmShared>,
        admitted: Admitted,
        io: &mut Io,
    ) -> Result<Self, MpaError> {
        let shared: Arc<ListenerShared> = Arc::clone(&admitted.listener);
        let mut connection = if let Some(options) = shared.options.streaming {
            Self::streaming(conn, StreamShared::new(options))
        } else {
            let options = Box::new(shared.options.responder.clone());
            let (phase, deadline) = Self::await_request(options, io.now, Reassembly::default())?;
            Self::new(conn, phase, Some(deadline))
        };
        connection.origin = Some(ListenerOrigin { id: listener, admitted });
        Ok(connection)
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    /// The next time at which it has to be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.deadline, self.idle_deadline].into_iter().flatten().min()
    }

    /// The second attempt, if the peer did not answer the enhanced Request.
    pub(super) fn take_retry(&mut self) -> Option<Retry> {
        if self.fallback != Fallback::Due {
            return None;
        }
        let mut param = self.param.take()?;
        (param.mpa_revision, param.peer_to_peer, param.fallback) = (1, false, false);
        let id = self.id.take()?;
        let (_, remote) = id.addresses()?;
        Some(Retry { id, qp: self.qp.take()?, remote, param, deadline: self.deadline? })
    }

    /// Tells TCP how many bytes of its buffers are held for bytes ahead of the frontier, if that has changed.
    pub(super) fn report_pinned(&mut self, io: &mut Io) {
        let pinned = match &self.phase {
            Phase::FullOperation(full) => full.stream.pinned_bytes(),
            Phase::StreamingMode(mode) => mode.pinned_bytes(),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => reassembly.pinned_bytes(),
            Phase::Opening { .. } | Phase::Closing => 0,
        };
        if pinned != self.pinned {
            self.pinned = pinned;
            io.tcp.pin(self.conn, pinned);
        }
    }

    // ---- events of TCP ----

    /// The TCP connection is established.
    pub(super) fn on_established(&mut self, io: &mut Io, guard: &EpochGuard) {
        if let (Some(id), Some(info)) = (&self.id, io.tcp.info(self.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        self.apply_keepalive(io);
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        match phase {
            Phase::Opening { start: Some((initiator, request)) } => {
                self.phase = Phase::AwaitReply { initiator, reassembly: Reassembly::default() };
                self.send_startup_bytes(io, &request);
            }
            Phase::Opening { start: None } => self.enter_streaming_mode(io, guard, Reassembly::default()),
            other => self.phase = other,
        }
    }

    /// Bytes arrived.
    pub(super) fn on_received(&mut self, io: &mut Io, guard: &EpochGuard, received: Received) {
        let Received { offset, buf, frontier } = received;
        match &mut self.phase {
            Phase::FullOperation(_) => self.receive(io, guard, offset, buf, frontier),
            Phase::StreamingMode(_) => self.receive_in_streaming_mode(io, guard, (offset, buf, frontier)),
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
            Phase::Opening { .. } | Phase::Closing => self.discard(io, offset, &buf, frontier),
        }
    }

    /// Memory is short: drops bytes ahead of the frontier.
    pub(super) fn on_evict(&mut self, io: &mut Io, bytes: usize) {
        let conn = self.conn;
        let Io { tcp, held, .. } = io;
        let may = |stretches: &[Range<u64>]| tcp.evict(conn, stretches);
        match &mut self.phase {
            Phase::FullOperation(full) => full.stream.give_up(bytes, held, may),
            Phase::StreamingMode(mode) => mode.give_up(bytes, held, may),
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => reassembly.give_up(bytes, held, may),
            Phase::Opening { .. } | Phase::Closing => {}
        }
    }

    /// The peer has sent FIN.
    pub(super) fn on_peer_closed(&mut self, io: &mut Io, guard: &EpochGuard) {
        // RFC 5041 sections 3 and 6.2.1 (DDP-040, DDP-041, DDP-153): a FIN ends the one stream and its
        // connection. What is posted is sent, and then our half is closed gracefully, too.
        match &mut self.phase {
            Phase::FullOperation(full) => {
                if full.failed {
                    // The Terminate is being sent; our FIN follows it.
                } else if full.stream.may_end_here() && full.stream.may_send() {
                    self.drain(io);
                } else {
                    self.error.get_or_insert(ConnectionError::PeerClosed);
                    self.fail(io, Failure::Lost(MpaError::Closed));
                }
            }
            Phase::StreamingMode(mode) => {
                mode.peer_closed = true;
                self.deliver_to_user(io, guard);
            }
            Phase::Closing => io.tcp.close(io.now, self.conn),
            Phase::Opening { .. }
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
            self.error.get_or_insert(ConnectionError::Tcp(reason));
        } else if self.announced == Announced::Nothing {
            self.error.get_or_insert(ConnectionError::PeerClosed);
        }
        self.finish(io);
    }

    // ---- time ----

    /// A deadline has passed. It may be an old one.
    pub(super) fn on_time(&mut self, io: &mut Io, guard: &EpochGuard) {
        if self.deadline.is_some_and(|deadline| deadline <= io.now) {
            self.on_deadline(io, guard);
        }
        if self.idle_deadline.is_some_and(|deadline| deadline <= io.now) {
            self.on_idle(io);
        }
    }

    /// The deadline of the phase has passed.
    fn on_deadline(&mut self, io: &mut Io, guard: &EpochGuard) {
        self.deadline = None;
        match &self.phase {
            Phase::Closing => {
                self.error.get_or_insert(ConnectionError::CloseTimeout);
                io.tcp.abort(io.now, self.conn);
            }
            Phase::FullOperation(full) if full.failed => self.abort(io),
            Phase::FullOperation(full) if full.draining => self.await_answers(io),
            Phase::StreamingMode(mode) if mode.closing => {
                self.error.get_or_insert(ConnectionError::CloseTimeout);
                io.tcp.abort(io.now, self.conn);
            }
            Phase::Deciding { .. } => self.decision_timeout(io, guard),
            // In Full Operation: the RTR did not come.
            Phase::FullOperation(_)
            | Phase::Opening { .. }
            | Phase::StreamingMode(_)
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. } => self.fail_startup(io, ConnectionError::StartupTimeout),
        }
    }

    /// The connection is established: from now on the idle timeout counts.
    fn watch_idle(&mut self, io: &mut Io) {
        if let Some(id) = &self.id {
            id.set_established(io.now_us());
        }
        if let Some(param) = self.param.take() {
            self.idle_timeout = param.idle_timeout;
        }
        self.idle_deadline = self.idle_timeout.map(|timeout| io.now + duration(timeout));
    }

    fn on_idle(&mut self, io: &mut Io) {
        let Some(timeout) = self.idle_timeout else { return };
        let progress_us = self.id.as_ref().map_or(0, |id| id.progress_us());
        let due = Instant::from_micros(progress_us as i64) + duration(timeout);
        self.idle_deadline = None;
        if self.is_ending() {
            return;
        }
        if due <= io.now {
            self.error.get_or_insert(ConnectionError::IdleTimeout);
            self.disconnect(io);
        } else {
            self.idle_deadline = Some(due);
        }
    }

    /// Records that something was received or sent.
    fn note_progress(&self, io: &Io) {
        if let Some(id) = &self.id {
            id.set_progress(io.now_us());
        }
    }

    fn apply_keepalive(&self, io: &mut Io) {
        let keepalive = match self.param.as_ref().map(|param| param.keepalive) {
            None | Some(Keepalive::Engine) => return,
            Some(Keepalive::Off) => None,
            Some(Keepalive::Probe { idle, interval, probes }) => {
                let (idle, interval) = (duration(idle), duration(interval));
                Some(tcp_lite::Keepalive { idle, interval, probes })
            }
        };
        io.tcp.set_keepalive(io.now, self.conn, keepalive);
    }
}

/// Converts to the stack's type. A duration beyond the range of its instants becomes a very long one: a sum
/// must not wrap into the past.
fn duration(duration: Duration) -> tcp_lite::Duration {
    const FOR_EVER: u64 = i64::MAX as u64 / 4;
    tcp_lite::Duration::from_micros(
        u64::try_from(duration.as_micros()).map_or(FOR_EVER, |us| us.min(FOR_EVER)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_is_not_in_the_past() {
        let now = Instant::from_micros(1_000_000);
        for long in [Duration::MAX, Duration::from_micros(u64::MAX), Duration::from_micros(i64::MAX as u64)] {
            assert!(now + duration(long) > now + duration(Duration::from_secs(1 << 30)), "{long:?}");
        }
    }
}
