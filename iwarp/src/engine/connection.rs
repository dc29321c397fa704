//! One connection from SYN to the last FIN: streaming mode, MPA startup, the stream, teardown.
//!
//! | file | what |
//! |---|---|
//! | here | its phases, and what TCP and the clock tell it |
//! | `connection/inbox.rs` | bytes in order, before there are FPDUs |
//! | `connection/streaming_mode.rs` | streaming mode in front of MPA, and the switch |
//! | `connection/startup.rs` | Request, decision, Reply |
//! | `connection/full_operation.rs` | Full Operation: turns to receive and to send |
//! | `connection/teardown.rs` | how it ends |

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

mod full_operation;
mod inbox;
mod startup;
mod streaming_mode;
mod teardown;

use full_operation::FullOperation;
use inbox::Inbox;
use streaming_mode::StreamingMode;

/// One connection.
pub(super) struct Connection {
    conn: ConnId,
    /// `None` until a connect request was announced.
    id: Option<Arc<CmShared>>,
    /// Where it came to, if it is not of our own making.
    origin: Option<ListenerOrigin>,
    qp: Option<Arc<QpShared>>,
    phase: Phase,
    /// What it was asked for or accepted with, until it is established.
    param: Option<Box<ConnParam>>,
    /// How long it may be idle then.
    idle_timeout: Option<Duration>,
    /// It began in streaming mode: bytes on their way from and to the user.
    stream: Option<Arc<StreamShared>>,
    /// Bytes of startup frames that TCP has not taken, behind those of `stream`.
    outbox: VecDeque<u8>,
    /// Something may be in front of the FPDUs: bytes of `stream` or `outbox`.
    fronted: bool,
    /// By when the phase has to be over.
    deadline: Option<Instant>,
    /// When to look whether it was idle for too long.
    idle_deadline: Option<Instant>,
    /// When the engine will wake it.
    pub(super) entered: Option<Instant>,
    told: Told,
    /// TCP is gone: to be removed.
    pub(super) gone: bool,
    error: Option<ConnectionError>,
    terminate: Option<Arc<TerminateReport>>,
    /// What the peer's startup frame said.
    peer: Option<Enhanced>,
    fallback: Fallback,
    /// Bytes of packet buffers that TCP knows to be held for what came ahead.
    pinned: usize,
}

/// What the user knows of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// That it is there in streaming mode.
    Streaming,
    /// That it is established.
    Established,
}

/// Whether this is a second try, or one has to follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fallback {
    No,
    /// The peer closed without a Reply: once more, unenhanced.
    Due,
    /// This is the second try.
    Done,
}

/// The listener that a connection came to, and its place there.
struct ListenerOrigin {
    id: Arc<CmShared>,
    admitted: Admitted,
}

enum Phase {
    /// Our SYN is out. The Request follows it, or nothing in streaming mode.
    Opening { start: Option<(Box<Initiator>, Vec<u8>)> },
    /// Streaming mode.
    StreamingMode(StreamingMode),
    /// The Request is out.
    AwaitReply { initiator: Box<Initiator>, inbox: Inbox },
    /// The peer's Request is awaited; `options` say what is admitted of it.
    AwaitRequest { responder: Box<Responder>, options: Box<ResponderOptions>, inbox: Inbox },
    /// Our user decides.
    Deciding { responder: Box<Responder>, inbox: Inbox },
    /// Full Operation.
    FullOperation(FullOperation),
    /// FIN is out: what still comes is acknowledged and dropped.
    Closing,
}

/// A connection to try again, unenhanced.
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
            outbox: VecDeque::new(),
            fronted: false,
            deadline,
            idle_deadline: None,
            entered: None,
            told: Told::Nothing,
            gone: false,
            error: None,
            terminate: None,
            peer: None,
            fallback: Fallback::No,
            pinned: 0,
        }
    }

    /// A connection that a listener accepted, in `admitted`'s place.
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
            let (phase, deadline) = Self::await_request(options, io.now, Inbox::default())?;
            Self::new(conn, phase, Some(deadline))
        };
        connection.origin = Some(ListenerOrigin { id: listener, admitted });
        Ok(connection)
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    /// When it wants to be woken.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.deadline, self.idle_deadline].into_iter().flatten().min()
    }

    /// The peer took no enhanced Request: what to try next.
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

    /// Tells TCP what is held of its buffers ahead of the frontier, when that has changed.
    pub(super) fn report_pinned(&mut self, io: &mut Io) {
        let pinned = match &self.phase {
            Phase::FullOperation(full) => full.stream.pinned_bytes(),
            Phase::StreamingMode(mode) => mode.pinned_bytes(),
            Phase::AwaitReply { inbox, .. }
            | Phase::AwaitRequest { inbox, .. }
            | Phase::Deciding { inbox, .. } => inbox.pinned_bytes(),
            Phase::Opening { .. } | Phase::Closing => 0,
        };
        if pinned != self.pinned {
            self.pinned = pinned;
            io.tcp.pin(self.conn, pinned);
        }
    }

    // ---- events of TCP ----

    /// TCP is established.
    pub(super) fn on_established(&mut self, io: &mut Io, guard: &EpochGuard) {
        if let (Some(id), Some(info)) = (&self.id, io.tcp.info(self.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        self.apply_keepalive(io);
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        match phase {
            Phase::Opening { start: Some((initiator, request)) } => {
                self.phase = Phase::AwaitReply { initiator, inbox: Inbox::default() };
                self.say(io, &request);
            }
            Phase::Opening { start: None } => self.enter_streaming_mode(io, guard, Inbox::default()),
            other => self.phase = other,
        }
    }

    /// Bytes arrived.
    pub(super) fn on_received(&mut self, io: &mut Io, guard: &EpochGuard, received: Received) {
        let Received { offset, buf, frontier } = received;
        match &mut self.phase {
            Phase::FullOperation(_) => self.receive(io, guard, offset, buf, frontier),
            Phase::StreamingMode(_) => self.receive_in_streaming_mode(io, guard, (offset, buf, frontier)),
            Phase::AwaitReply { inbox, .. }
            | Phase::AwaitRequest { inbox, .. }
            | Phase::Deciding { inbox, .. } => {
                let counted = offset >= frontier;
                let taken = inbox
                    .check_ahead(offset)
                    .and_then(|()| inbox.push(&mut io.held, (offset, buf, frontier), counted));
                match taken {
                    Ok(()) => self.run_startup(io, guard),
                    Err(error) => self.fail_startup(io, error),
                }
            }
            // Acknowledged and dropped.
            Phase::Opening { .. } | Phase::Closing => self.discard(io, offset, &buf, frontier),
        }
    }

    /// Memory is short: some of what came ahead of the frontier has to go.
    pub(super) fn on_evict(&mut self, io: &mut Io, bytes: usize) {
        let conn = self.conn;
        let Io { tcp, held, .. } = io;
        let may = |stretches: &[Range<u64>]| tcp.evict(conn, stretches);
        match &mut self.phase {
            Phase::FullOperation(full) => full.stream.give_up(bytes, held, may),
            Phase::StreamingMode(mode) => mode.give_up(bytes, held, may),
            Phase::AwaitReply { inbox, .. }
            | Phase::AwaitRequest { inbox, .. }
            | Phase::Deciding { inbox, .. } => inbox.give_up(bytes, held, may),
            Phase::Opening { .. } | Phase::Closing => {}
        }
    }

    /// The peer's FIN.
    pub(super) fn on_peer_closed(&mut self, io: &mut Io, guard: &EpochGuard) {
        match &mut self.phase {
            Phase::FullOperation(full) => {
                if full.failed {
                    // The Terminate is still on its way out; FIN follows it.
                } else if full.stream.may_end_here() && full.stream.may_send() {
                    self.drain(io);
                } else {
                    self.error.get_or_insert(ConnectionError::PeerClosed);
                    self.fail(io, Failure::Lost(MpaError::Closed));
                }
            }
            Phase::StreamingMode(mode) => {
                mode.peer_closed = true;
                self.pump(io, guard);
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

    /// TCP is over: the last that is heard of it.
    pub(super) fn on_closed(&mut self, io: &mut Io, reason: CloseReason) {
        if reason == CloseReason::Reset {
            self.consider_fallback();
        }
        if reason != CloseReason::Graceful {
            self.error.get_or_insert(ConnectionError::Tcp(reason));
        } else if self.told == Told::Nothing {
            self.error.get_or_insert(ConnectionError::PeerClosed);
        }
        self.finish(io);
    }

    // ---- time ----

    /// A deadline has passed, perhaps one that does not hold any more.
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
            // The RTR did not come.
            Phase::FullOperation(_)
            | Phase::Opening { .. }
            | Phase::StreamingMode(_)
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. } => self.fail_startup(io, ConnectionError::StartupTimeout),
        }
    }

    /// It is established: from now on it may be idle for too long.
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

    /// Something came or went.
    fn touch(&self, io: &Io) {
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

/// The stack's own kind of duration. What is longer than its instants reach is for ever: it must not wrap
/// into the past.
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
