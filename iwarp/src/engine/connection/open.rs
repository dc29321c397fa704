//! How a connection begins: opened here with MPA or in streaming mode, or accepted by a listener.

use std::sync::Arc;

use tcp_lite::{ConnId, Deadline, Instant};

use crate::mpa::{Initiator, Responder};
use crate::queues::QpShared;
use crate::stream::ib_profile::agreement::request_data;
use crate::verbs::{Admitted, CmShared, ConnParam, ListenerShared, PlainBytes, ResponderOptions};

use super::super::state::EngineState;
use super::pre_fpdu::PreFpdu;
use super::report::{Report, User};
use super::streaming_mode::StreamingMode;
use super::timers::Timers;
use super::{Attempt, Connection, Phase, Reassembly, duration};

/// The next step of a connection that this end opens, after the TCP handshake.
pub(super) enum Opening {
    /// MPA startup.
    Startup { qp: Arc<QpShared>, param: Box<ConnParam> },
    /// Streaming mode.
    StreamingMode { plain: Arc<PlainBytes>, param: Box<ConnParam> },
}

/// What an initiator keeps until the Reply has come.
pub(super) struct Initiating {
    pub(super) initiator: Box<Initiator>,
    pub(super) qp: Arc<QpShared>,
    pub(super) param: Box<ConnParam>,
}

impl Initiating {
    /// Begins MPA startup on a TCP connection with this mark. Returns the Request, too.
    pub(super) fn new(
        (qp, param): (Arc<QpShared>, Box<ConnParam>),
        crc: bool,
        mark: u32,
        deadline: Instant,
    ) -> Result<(Self, Vec<u8>), Arc<QpShared>> {
        let started = Initiator::start(param.mpa_config(crc), &request_data(&param, mark), deadline);
        let Ok((initiator, request)) = started else {
            debug_assert!(false, "the call of the user has checked the parameters");
            return Err(qp);
        };
        Ok((Self { initiator: Box::new(initiator), qp, param }, request.to_vec()))
    }
}

impl Connection {
    fn new(conn: ConnId, phase: Phase, deadline: Option<Instant>) -> Self {
        Self {
            conn,
            admitted: None,
            user: User::Unaware,
            phase,
            plain: None,
            pre_fpdu: PreFpdu::default(),
            timers: Timers::new(deadline),
            scheduled: Deadline::NONE,
            report: Report::default(),
            attempt: Attempt::First,
            pinned: 0,
            closed: false,
        }
    }

    /// A connection that a listener accepted.
    pub(in crate::engine) fn accepted(
        conn: ConnId,
        admitted: Admitted,
        state: &mut EngineState,
    ) -> Option<Self> {
        let shared: Arc<ListenerShared> = Arc::clone(&admitted.listener);
        let mut connection = if let Some(options) = shared.options.streaming {
            Self::streaming(conn, PlainBytes::new(options))
        } else {
            let options = Box::new(shared.options.responder.clone());
            let (responder, deadline) = Self::make_responder(&options, state.now)?;
            let phase = Phase::AwaitRequest { responder, options, reassembly: Box::default() };
            Self::new(conn, phase, Some(deadline))
        };
        connection.admitted = Some(admitted);
        Some(connection)
    }

    /// A connection that this end opens; its SYN is sent.
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
        let phase = Phase::Opening(Box::new(Opening::Startup { qp, param }));
        id.set_conn(conn);
        Self { user: User::Known(id), attempt, ..Self::new(conn, phase, Some(deadline)) }
    }

    /// A connection that this end opens in streaming mode; its SYN is sent.
    pub(in crate::engine) fn connecting_stream(
        conn: ConnId,
        id: Arc<CmShared>,
        plain: Arc<PlainBytes>,
        param: Box<ConnParam>,
        now: Instant,
    ) -> Self {
        let deadline = now + duration(param.timeout);
        let phase = Phase::Opening(Box::new(Opening::StreamingMode { plain: Arc::clone(&plain), param }));
        id.set_conn(conn);
        Self { user: User::Known(id), plain: Some(plain), ..Self::new(conn, phase, Some(deadline)) }
    }

    /// A connection that begins in streaming mode at once.
    fn streaming(conn: ConnId, plain: Arc<PlainBytes>) -> Self {
        let mode = StreamingMode::new(Arc::clone(&plain), Reassembly::default());
        Self { plain: Some(plain), ..Self::new(conn, Phase::StreamingMode(Box::new(mode)), None) }
    }

    /// A responder that waits for the peer's Request, and its deadline. `None` is a defect: the call of the
    /// user has checked the options.
    pub(super) fn make_responder(
        options: &ResponderOptions,
        now: Instant,
    ) -> Option<(Box<Responder>, Instant)> {
        let deadline = now + duration(options.startup_timeout);
        let responder = Responder::listen(options.mpa_config(), deadline);
        debug_assert!(responder.is_ok(), "the call of the user has checked the options: {responder:?}");
        Some((Box::new(responder.ok()?), deadline))
    }
}
