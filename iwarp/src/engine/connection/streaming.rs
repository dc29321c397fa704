//! Streaming mode before MPA, and the switch to MPA (RFC 5044 sections 7.1, 7.1.3, 7.1.5).
//!
//! The switch loses no byte. Bytes that the user has sent are sent before our startup frame. Bytes that the
//! user of a responder has not read are the beginning of the peer's Request. If the user of an initiator has
//! not read all bytes, startup fails. The positions of FPDUs and markers are relative to the end of the
//! startup frames.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dp::invariant::{Check, ensure};
use tcp_lite::{CloseReason, Received};

use crate::memory::EpochGuard;
use crate::mpa::StartupFault;
use crate::queues::QpShared;
use crate::verbs::{CmEventKind, CmShared, ConnParam, ConnectionError, PlainBytes, ResponderOptions};

use super::super::state::EngineState;
use super::base::Base;
use super::closing::{Closing, EndablePhase};
use super::pre_fpdu::Sent;
use super::report::{Announced, User};
use super::startup::{Initiating, Role, Startup};
use super::{Event, Holdings, Phase, Reassembly, duration};

pub(super) struct Streaming {
    /// The bytes that the user and the engine exchange.
    plain: Arc<PlainBytes>,
    pub(super) reassembly: Reassembly,
    peer_closed: bool,
    /// `Some` if the user has closed the connection or the idle timeout has passed, so that FIN follows the
    /// bytes that the user has sent. The value is the number of bytes that the peer had acknowledged when the
    /// deadline was set.
    pub(super) closing: Option<u64>,
}

impl EndablePhase for Box<Streaming> {
    fn end(self, base: &mut Base, state: &mut EngineState) -> Closing {
        base.name_cause();
        base.drop_reassembly(state, self.reassembly);
        Closing::default()
    }
}

impl Streaming {
    pub(super) fn new(plain: Arc<PlainBytes>, reassembly: Reassembly) -> Self {
        Self { plain, reassembly, peer_closed: false, closing: None }
    }

    /// Begins streaming mode after the peer has answered our SYN.
    pub(super) fn begin(
        base: &mut Base,
        state: &mut EngineState,
        plain: Arc<PlainBytes>,
        idle_timeout: Option<Duration>,
    ) -> Phase {
        if let Some(info) = state.tcp.info(base.conn) {
            announce(base, state, &plain, (None, info.remote), idle_timeout);
        }
        Self::enter(base, state, plain, Reassembly::default())
    }

    /// Enters streaming mode, for the first time or again after a reject.
    pub(super) fn enter(
        base: &mut Base,
        state: &mut EngineState,
        plain: Arc<PlainBytes>,
        reassembly: Reassembly,
    ) -> Phase {
        base.timers.clear_deadline();
        let mut streaming = Box::new(Self::new(plain, reassembly));
        base.report.announced = Announced::Streaming;
        // The exchange of startup frames counts as progress.
        base.note_progress(state);
        base.timers.rewatch_idle(state.now);
        streaming.deliver_to_user(base, state);
        // The user may have sent more bytes after the reject.
        base.schedule_tx(state);
        Phase::Streaming(streaming)
    }

    pub(super) fn on(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        event: Event<'_>,
    ) -> Phase {
        match event {
            Event::Accepted => self.announce_accepted(base, state),
            Event::Received { received, .. } => return self.receive_stream_bytes(base, state, received),
            Event::PlainBytes => {
                self.plain.answer();
                self.deliver_to_user(base, state);
                base.schedule_tx(state);
            }
            Event::Send => {
                let sent = base.send_pre_fpdu(state, Some(&self.plain));
                if self.closing.is_some() && sent == Sent::All {
                    return self.close(base, state);
                }
            }
            Event::Evict { bytes } => {
                let EngineState { tcp, held, .. } = state;
                self.reassembly.give_up(bytes, held, |stretches| tcp.evict(base.conn, stretches));
            }
            Event::PeerClosed => {
                self.peer_closed = true;
                self.deliver_to_user(base, state);
            }
            Event::StartInitiator { qp, param, after } => {
                return self.start_initiator(base, state, (qp, param), after);
            }
            Event::StartResponder { guard, options, after } => {
                return self.start_responder(base, state, guard, options, after);
            }
            Event::Deadline => match self.closing {
                Some(acknowledged) => {
                    self.closing = Some(base.on_close_deadline(state, acknowledged));
                }
                None => debug_assert!(false, "streaming mode has no deadline before its close"),
            },
            // A close has its own deadline.
            Event::IdleCheck | Event::Disconnect if self.closing.is_some() => {}
            Event::IdleCheck => {
                if base.has_idled(state) {
                    self.begin_close(base, state);
                }
            }
            Event::Disconnect => self.begin_close(base, state),
            event => return Phase::Streaming(self).by_default(base, state, event),
        }
        Phase::Streaming(self)
    }

    /// Announces a connection of a listener to the user.
    fn announce_accepted(&self, base: &mut Base, state: &mut EngineState) {
        let (Some(admitted), Some(info)) = (&mut base.admitted, state.tcp.info(base.conn)) else { return };
        admitted.decide();
        let listener = Arc::clone(&admitted.id);
        let id = listener.child(base.conn, (info.local, info.remote));
        base.user = User::Known(id);
        announce(base, state, &self.plain, (Some(&listener), info.remote), None);
    }

    /// Handles bytes that arrived. Until the bytes are moved to the user's buffer, TCP's budget counts them,
    /// even if they arrived in order.
    fn receive_stream_bytes(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        received: Received,
    ) -> Phase {
        let Received { offset, buf, frontier } = received;
        if offset < frontier {
            state.tcp.hold(base.conn, buf.len());
        }
        match self.reassembly.push(&mut state.held, (offset, buf, frontier), true) {
            Ok(()) => {
                self.deliver_to_user(base, state);
                Phase::Streaming(self)
            }
            Err(error) => self.fail_startup(base, state, error),
        }
    }

    /// Moves as many bytes to the user's buffer as fit.
    fn deliver_to_user(&mut self, base: &Base, state: &mut EngineState) {
        let Self { plain, reassembly, .. } = self;
        let before = reassembly.next();
        let released = reassembly.take(&mut state.held, |_, bytes| plain.fill(bytes));
        state.tcp.release(base.conn, released);
        let all = state.tcp.info(base.conn).is_none_or(|info| reassembly.next() >= info.frontier);
        if self.peer_closed && all {
            plain.set_ended();
        }
        if plain.take_readable() {
            base.announce(CmEventKind::StreamReadable);
        }
        if reassembly.next() > before {
            base.note_progress(state);
        }
    }

    /// Begins a graceful close: FIN follows the bytes that the user has sent.
    fn begin_close(&mut self, base: &mut Base, state: &mut EngineState) {
        self.closing = Some(base.set_close_deadline(state));
        base.schedule_tx(state);
    }

    /// Returns the reason why MPA can no longer start; `None` if MPA can start.
    fn prevents_start(&self) -> Option<ConnectionError> {
        if self.closing.is_some() {
            // At the same time, another thread of the user has closed the connection, or the idle timeout has
            // passed.
            return Some(ConnectionError::Tcp(CloseReason::Aborted));
        }
        // No Reply and no FPDU can follow the peer's FIN. TCP reports a FIN only once, so no event would end
        // a startup that begins after the FIN.
        self.peer_closed.then_some(ConnectionError::PeerClosed)
    }

    /// Starts MPA as initiator, after position `after` of the user's stream.
    fn start_initiator(
        self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        (qp, param): (Arc<QpShared>, Box<ConnParam>),
        after: u64,
    ) -> Phase {
        base.report.announced = Announced::Nothing;
        base.qp = Some(Arc::clone(&qp));
        if let Some(error) = self.prevents_start() {
            return self.fail_startup(base, state, error);
        }
        let deadline = state.now + duration(param.timeout);
        base.timers.unwatch_idle();
        let keepalive = param.keepalive;
        let Some((initiating, request)) = Initiating::new((state, base.conn), (qp, param), deadline) else {
            return self.fail_startup(base, state, ConnectionError::NoResources);
        };
        base.apply_keepalive(state, keepalive);
        // RFC 5044 section 7.1.5 (MPA-222): the phase changes, but the TCP connection remains. During the
        // switch, TCP recovers from loss and reordering as at any other time.
        let Self { plain, reassembly, .. } = *self;
        let startup = Startup::new(Role::Initiator(initiating), reassembly, Some(Arc::clone(&plain)));
        if !plain.take_unread().is_empty() {
            // RFC 5044 section 7.1 (MPA-134): both peers start MPA at the same byte. The peer has sent a byte
            // in streaming mode that the user has not read, so the peers do not start at the same byte.
            let error = ConnectionError::Startup(StartupFault::EarlyBytes);
            return startup.fail_startup(base, state, error);
        }
        base.timers.set_deadline(deadline);
        base.pre_fpdu.push_user_bytes(plain, after);
        base.send_frame(state, &request);
        Phase::Startup(startup)
    }

    /// Starts MPA as responder, after position `after` of the user's stream. The bytes that the user has not
    /// read are the beginning of the Request.
    fn start_responder(
        self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        options: Box<ResponderOptions>,
        after: u64,
    ) -> Phase {
        base.report.announced = Announced::Nothing;
        base.timers.unwatch_idle();
        if let Some(error) = self.prevents_start() {
            return self.fail_startup(base, state, error);
        }
        let Some((role, deadline)) = Role::await_request(options, state.now) else {
            return self.fail_startup(base, state, ConnectionError::NoResources);
        };
        // RFC 5044 section 7.1.5 (MPA-222): the TCP connection remains, as it does for the initiator.
        let Self { plain, reassembly, .. } = *self;
        let next = reassembly.next();
        let startup = Startup::new(role, reassembly, Some(Arc::clone(&plain)));
        base.timers.set_deadline(deadline);
        // Sends the last bytes of the user now.
        base.pre_fpdu.push_user_bytes(Arc::clone(&plain), after);
        base.begin_to_send(state);
        // RFC 5044 section 7.1 (MPA-134): MPA starts at the first byte that the user has not read.
        let unread: Vec<u8> = plain.take_unread().into();
        startup.run_with(base, state, guard, (next - unread.len() as u64, &unread))
    }

    /// Checks that the user and the deadline fit this phase; for tests. Returns the slots that the phase
    /// holds.
    pub(super) fn check(&self, base: &Base, state: &EngineState) -> Check<Holdings> {
        let has_deadline = base.timers.deadline().is_some();
        ensure!(base.user.id().is_some(), "streaming mode has no user");
        ensure!(base.qp.is_none(), "streaming mode has a queue pair");
        ensure!(has_deadline == self.closing.is_some(), "streaming mode has a deadline: {has_deadline}");
        Ok(Holdings { buffers: self.reassembly.check(&state.held)?, ..Holdings::default() })
    }
}

/// Announces streaming mode on the connection to the peer at `remote`. The connection's user receives the
/// event, or with a `listener` the user of the listener.
fn announce(
    base: &mut Base,
    state: &mut EngineState,
    plain: &Arc<PlainBytes>,
    (listener, remote): (Option<&Arc<CmShared>>, SocketAddr),
    idle_timeout: Option<Duration>,
) {
    let Some(id) = base.user.id().cloned() else { return };
    base.report.announced = Announced::Streaming;
    id.set_streaming(&state.handle, plain);
    base.set_established(state, idle_timeout);
    id.announce(listener, CmEventKind::StreamEstablished { remote });
}
