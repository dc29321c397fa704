//! How a connection begins: this side opens it with MPA or in streaming mode, or a listener accepts it.

use std::sync::Arc;

use tcp_lite::{ConnId, Deadline, Instant};

use crate::queues::QpShared;
use crate::verbs::{Admitted, CmShared, ConnParam, ConnectionError, ListenerShared, PlainBytes};

use super::super::state::EngineState;
use super::super::trace;
use super::base::Base;
use super::closing::{Closing, EndablePhase};
use super::report::User;
use super::startup::{Initiating, Role, Startup};
use super::streaming::Streaming;
use super::{Attempt, Connection, Event, Phase, Reassembly, duration};

/// The phase after our SYN was sent. The variant says which phase follows the TCP handshake.
pub(super) enum Opening {
    /// MPA startup.
    Startup { qp: Arc<QpShared>, param: Box<ConnParam> },
    /// Streaming mode.
    Streaming { plain: Arc<PlainBytes>, param: Box<ConnParam> },
}

impl Opening {
    pub(super) fn on(self: Box<Self>, base: &mut Base, state: &mut EngineState, event: Event<'_>) -> Phase {
        match event {
            Event::Established => self.on_established(base, state),
            Event::PeerClosed => self.fail_startup(base, state, ConnectionError::PeerClosed),
            Event::Deadline => {
                let error = ConnectionError::Tcp(state.tcp.unanswered(base.conn));
                self.fail_startup(base, state, error)
            }
            event => Phase::Opening(self).by_default(base, state, event),
        }
    }

    /// Begins the next phase when the TCP connection is established.
    fn on_established(self, base: &mut Base, state: &mut EngineState) -> Phase {
        if let (Some(id), Some(info)) = (base.user.id(), state.tcp.info(base.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        trace::tcp_established(state, base.conn);
        match self {
            Self::Startup { qp, param } => {
                let deadline = base.timers.deadline().unwrap_or(state.now);
                let keepalive = param.keepalive;
                let started = Initiating::new((state, base.conn), (qp, param), deadline);
                let Some((initiating, request)) = started else {
                    return Closing::default().fail_startup(base, state, ConnectionError::NoResources);
                };
                base.apply_keepalive(state, keepalive);
                base.send_frame(state, &request);
                Phase::Startup(Startup::new(Role::Initiator(initiating), Reassembly::default(), None))
            }
            Self::Streaming { plain, param } => {
                base.apply_keepalive(state, param.keepalive);
                Streaming::begin(base, state, plain, param.idle_timeout)
            }
        }
    }
}

impl EndablePhase for Box<Opening> {
    fn end(self, base: &mut Base, _: &mut EngineState) -> Closing {
        base.name_cause();
        Closing::default()
    }
}

impl Connection {
    fn new(base: Base, phase: Phase) -> Self {
        Self { base, phase, scheduled: Deadline::NONE, pinned: 0, closed: false }
    }

    /// Returns a connection that a listener accepted. `None` can only be caused by a defect in this crate.
    pub(in crate::engine) fn accepted(
        conn: ConnId,
        admitted: Admitted,
        state: &mut EngineState,
    ) -> Option<Self> {
        let shared: Arc<ListenerShared> = Arc::clone(&admitted.listener);
        if let Some(options) = shared.options.streaming {
            let plain = PlainBytes::new(options);
            let streaming = Streaming::new(plain, Reassembly::default());
            let base = Base { admitted: Some(admitted), ..Base::new(conn, None) };
            return Some(Self::new(base, Phase::Streaming(Box::new(streaming))));
        }
        let options = Box::new(shared.options.responder.clone());
        let (role, deadline) = Role::await_request(options, state.now)?;
        let base = Base { admitted: Some(admitted), ..Base::new(conn, Some(deadline)) };
        Some(Self::new(base, Phase::Startup(Startup::new(role, Reassembly::default(), None))))
    }

    /// Returns a connection that this side opens. The caller has started the TCP handshake.
    pub(in crate::engine) fn connecting(
        conn: ConnId,
        id: Arc<CmShared>,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
        now: Instant,
        attempt: Attempt,
    ) -> Self {
        let deadline = match attempt {
            Attempt::Second { deadline } => deadline,
            Attempt::First | Attempt::Failed(_) => now + duration(param.timeout),
        };
        id.set_conn(conn);
        let (user, of_base) = (User::Known(id), Some(Arc::clone(&qp)));
        let base = Base { user, qp: of_base, attempt, ..Base::new(conn, Some(deadline)) };
        Self::new(base, Phase::Opening(Box::new(Opening::Startup { qp, param })))
    }

    /// Returns a connection that this side opens in streaming mode. The caller has started the TCP handshake.
    pub(in crate::engine) fn connecting_stream(
        conn: ConnId,
        id: Arc<CmShared>,
        plain: Arc<PlainBytes>,
        param: Box<ConnParam>,
        now: Instant,
    ) -> Self {
        let deadline = now + duration(param.timeout);
        id.set_conn(conn);
        let base = Base { user: User::Known(id), ..Base::new(conn, Some(deadline)) };
        Self::new(base, Phase::Opening(Box::new(Opening::Streaming { plain, param })))
    }
}
