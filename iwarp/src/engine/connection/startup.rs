//! MPA startup of a connection: Request, decision, Reply (RFC 5044 section 7.1, RFC 6581).

use std::ops::ControlFlow;
use std::sync::Arc;

use dp::invariant::{Check, ensure};
use tcp_lite::{CloseReason, ConnId, Instant, Received};

use crate::memory::EpochGuard;
use crate::mpa::startup::{Accept, ConnectRequest, Rejected, ResponderError, Rtr, Step};
use crate::mpa::{Initiator, InitiatorEvent, Responder, StartupFault, TerminateCode};
use crate::queues::QpShared;
use crate::rdmap::{Terminate, TerminateError};
use crate::stream::Failure;
use crate::stream::ib_profile::agreement::{self, Agreement, Offer, OwnTerms, PeerTerms, RnrConfig};
use crate::verbs::{
    AGREEMENT_BYTES, CmEventKind, ConnParam, ConnectionError, PlainBytes, ResponderOptions, StreamError,
};

use super::super::state::EngineState;
use super::super::trace;
use super::base::Base;
use super::closing::{Closing, EndablePhase};
use super::rdma::Rdma;
use super::report::{Announcement, User};
use super::retry::{Attempt, Retry};
use super::streaming::Streaming;
use super::{Event, Holdings, Phase, Reassembly, duration};

pub(super) struct Startup {
    pub(super) reassembly: Reassembly,
    pub(super) role: Role,
    /// The bytes from and to the user, if the connection began in streaming mode. After a reject the
    /// connection may return to streaming mode.
    plain: Option<Arc<PlainBytes>>,
}

pub(super) enum Role {
    /// This side has sent the Request.
    Initiator(Initiating),
    /// The peer sends the Request.
    Responder(Box<Responder>, RequestState),
}

/// The state of an initiator until the Reply has arrived.
pub(super) struct Initiating {
    pub(super) initiator: Box<Initiator>,
    pub(super) qp: Arc<QpShared>,
    pub(super) param: Box<ConnParam>,
}

/// The state of the peer's Request.
pub(super) enum RequestState {
    /// The Request has not arrived. The options say which Requests are allowed.
    Awaited(Box<ResponderOptions>),
    /// The user decides on the Request. `offers_ib` contains the peer's parameters, if the peer offers
    /// InfiniBand's semantics.
    Deciding { offers_ib: Option<PeerTerms> },
}

impl Initiating {
    /// Begins startup as initiator on the TCP connection `conn`. Returns the startup and the Request. `None`
    /// can only be caused by a defect in this crate, since the user's call has checked the parameters.
    pub(super) fn new(
        (state, conn): (&EngineState, ConnId),
        (qp, param): (Arc<QpShared>, Box<ConnParam>),
        deadline: Instant,
    ) -> Option<(Self, Vec<u8>)> {
        let mut private_data = param.private_data.clone();
        own_terms(&param, &qp).offer(&mut private_data, mark(state, conn));
        let started = Initiator::start(param.mpa_config(state.config.crc), &private_data, deadline);
        debug_assert!(started.is_ok(), "the call of the user has checked the parameters");
        let (initiator, request) = started.ok()?;
        trace::request_sent(state, conn, &param);
        Some((Self { initiator: Box::new(initiator), qp, param }, request.to_vec()))
    }
}

impl Role {
    /// Returns a responder that waits for the peer's Request, and the deadline of the Request. `None` can
    /// only be caused by a defect in this crate, since the user's call has checked the options.
    pub(super) fn await_request(options: Box<ResponderOptions>, now: Instant) -> Option<(Self, Instant)> {
        let deadline = now + duration(options.startup_timeout);
        let responder = Responder::listen(options.mpa_config(), deadline);
        debug_assert!(responder.is_ok(), "the call of the user has checked the options: {responder:?}");
        Some((Self::Responder(Box::new(responder.ok()?), RequestState::Awaited(options)), deadline))
    }
}

impl EndablePhase for Box<Startup> {
    fn end(self, base: &mut Base, state: &mut EngineState) -> Closing {
        base.name_cause();
        base.drop_reassembly(state, self.reassembly);
        Closing::default()
    }
}

impl Startup {
    pub(super) fn new(role: Role, reassembly: Reassembly, plain: Option<Arc<PlainBytes>>) -> Box<Self> {
        Box::new(Self { reassembly, role, plain })
    }

    pub(super) fn on(self: Box<Self>, base: &mut Base, state: &mut EngineState, event: Event<'_>) -> Phase {
        match event {
            Event::Received { guard, received } => self.receive_startup_bytes(base, state, guard, received),
            Event::Accept { guard, qp, param } => self.accept(base, state, guard, qp, param),
            Event::Reject(why) => self.reject(base, state, why),
            Event::Deadline if self.is_deciding() => self.decision_timeout(base, state),
            Event::Deadline => self.fail_startup(base, state, ConnectionError::StartupTimeout),
            Event::PeerClosed => {
                self.consider_fallback(base);
                self.fail_startup(base, state, ConnectionError::PeerClosed)
            }
            Event::Closed(CloseReason::Reset) => {
                self.consider_fallback(base);
                Phase::Closing(self.end(base, state))
            }
            Event::PlainBytes => {
                if let Some(plain) = &self.plain {
                    plain.answer();
                }
                Phase::Startup(self)
            }
            Event::Evict { bytes } => {
                let (mut startup, EngineState { tcp, held, .. }) = (self, state);
                startup.reassembly.give_up(bytes, held, |stretches| tcp.evict(base.conn, stretches));
                Phase::Startup(startup)
            }
            event => Phase::Startup(self).by_default(base, state, event),
        }
    }

    /// Whether the Request has arrived and waits for the user's decision.
    pub(super) fn is_deciding(&self) -> bool {
        matches!(self.role, Role::Responder(_, RequestState::Deciding { .. }))
    }

    /// Puts received bytes in order, and processes the startup frame if it is complete.
    fn receive_startup_bytes(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        Received { offset, buf, frontier }: Received,
    ) -> Phase {
        let counted = offset >= frontier;
        let reassembly = &mut self.reassembly;
        let taken = reassembly
            .check_ahead(offset)
            .and_then(|()| reassembly.push(&mut state.held, (offset, buf, frontier), counted));
        match taken {
            Ok(()) => self.run(base, state, guard),
            Err(error) => self.fail_startup(base, state, error),
        }
    }

    /// Processes the bytes that have arrived in order.
    fn run(mut self: Box<Self>, base: &mut Base, state: &mut EngineState, guard: &EpochGuard<'_>) -> Phase {
        loop {
            let mut outcome = Ok(None);
            let Self { reassembly, role, .. } = &mut *self;
            let released = reassembly.take(&mut state.held, |offset, bytes| {
                if !matches!(outcome, Ok(None)) {
                    return 0;
                }
                match role {
                    Role::Initiator(Initiating { initiator, .. }) => {
                        keep(initiator.receive(offset, bytes), StartupEvent::Reply, &mut outcome)
                    }
                    Role::Responder(responder, _) => {
                        keep(responder.receive(offset, bytes), StartupEvent::Request, &mut outcome)
                    }
                }
            });
            state.tcp.release(base.conn, released);
            self = match outcome {
                Ok(None) => return Phase::Startup(self),
                Ok(Some(StartupEvent::Reply(event))) => return self.on_reply(base, state, guard, event),
                // The loop continues, so that bytes after the Request are detected as an error of the peer.
                Ok(Some(StartupEvent::Request(request))) => match self.on_request(base, state, request) {
                    ControlFlow::Continue(deciding) => deciding,
                    ControlFlow::Break(next) => return next,
                },
                Err(fault) => return self.fail_startup(base, state, ConnectionError::Startup(fault)),
            };
        }
    }

    // ---- responder ----

    /// Receives the bytes of the Request that arrived in streaming mode, which begin at stream offset
    /// `offset`, and then all bytes that arrived later.
    pub(super) fn run_with(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        (offset, bytes): (u64, &[u8]),
    ) -> Phase {
        if let Role::Responder(responder, _) = &mut self.role
            && !bytes.is_empty()
        {
            let request = match responder.receive(offset, bytes) {
                Ok(step) => step.event,
                Err(fault) => return self.fail_startup(base, state, ConnectionError::Startup(fault)),
            };
            if let Some(request) = request {
                self = match self.on_request(base, state, request) {
                    ControlFlow::Continue(deciding) => deciding,
                    ControlFlow::Break(next) => return next,
                };
            }
        }
        self.run(base, state, guard)
    }

    /// Called when the peer's Request is complete, so that the user has to decide. If startup ends at once,
    /// returns `Break` with the next phase.
    fn on_request(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        mut request: ConnectRequest,
    ) -> ControlFlow<Phase, Box<Self>> {
        trace::request_received(state, base.conn, &request);
        let offer = agreement::take_offer(&mut request.private_data, mark(state, base.conn));
        let offers_ib = match offer {
            Offer::Made(terms) => Some(terms),
            Offer::ByProxy => {
                trace::proxy_found(state, base.conn);
                None
            }
            Offer::None | Offer::Old => None,
        };
        let Role::Responder(_, request_state) = &mut self.role else { return ControlFlow::Continue(self) };
        let options = match std::mem::replace(request_state, RequestState::Deciding { offers_ib }) {
            RequestState::Awaited(options) => options,
            deciding @ RequestState::Deciding { .. } => {
                *request_state = deciding;
                return ControlFlow::Continue(self);
            }
        };
        // TCP has lost the connection in the meantime. TCP's last event follows, and ends startup.
        let Some(info) = state.tcp.info(base.conn) else { return ControlFlow::Continue(self) };
        // RFC 5044 section 7.1.2 (MPA-204): refuses a Request with more private data than the application has
        // room for.
        if request.private_data.len() > options.max_private_data {
            let error = ConnectionError::Startup(StartupFault::PrivateData);
            return ControlFlow::Break(self.fail_startup(base, state, error));
        }
        let listener = base.admitted.as_ref().map(|admitted| Arc::clone(&admitted.id));
        let id = match (base.user.id(), &listener) {
            (Some(id), _) => Arc::clone(id),
            (None, Some(listener)) if listener.is_listening() => {
                listener.child(base.conn, (info.local, info.remote))
            }
            // The listener is closed.
            (None, Some(_)) => {
                return ControlFlow::Break(self.fail_startup(base, state, ConnectionError::PeerClosed));
            }
            (None, None) => {
                debug_assert!(false, "a Request for no user, at no listener");
                return ControlFlow::Break(self.fail_startup(base, state, ConnectionError::NoResources));
            }
        };
        if options.refuse_markers && request.markers {
            return ControlFlow::Break(self.reject(base, state, Reject::Markers));
        }
        if offer == Offer::Old {
            return ControlFlow::Break(self.reject(base, state, Reject::OldAgreement));
        }
        let limit = request.private_data_limit - if offers_ib.is_some() { AGREEMENT_BYTES } else { 0 };
        id.set_requested(&state.handle, base.conn, limit);
        base.timers.clear_deadline();
        if let Some(timeout) = options.decision_timeout {
            base.timers.set_deadline(state.now + duration(timeout));
        }
        if let Some(admitted) = &base.admitted {
            admitted.listener.count(|stats| stats.requests += 1);
        }
        let kind = CmEventKind::ConnectRequest {
            private_data: request.private_data.as_slice().into(),
            remote: info.remote,
            // RFC 6581 section 9.1 (MPA2-058): the event reports the peer's depths to the user.
            peer_ird: request.peer.map(|depths| depths.ird),
            peer_ord: request.peer.map(|depths| depths.ord),
            revision: request.revision,
            peer_to_peer: request.peer_to_peer,
            markers: request.markers,
            ib_semantics: offers_ib.is_some(),
        };
        // The user does not know a connection of a listener before this event.
        let from = if matches!(base.user, User::Unaware) { listener } else { None };
        base.user = User::Known(Arc::clone(&id));
        id.announce(from.as_ref(), kind);
        ControlFlow::Continue(self)
    }

    /// Accepts the Request, as the user has requested.
    fn accept(
        mut self: Box<Self>,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
    ) -> Phase {
        base.qp = Some(Arc::clone(&qp));
        let deadline = state.now + duration(param.timeout);
        let Role::Responder(responder, RequestState::Deciding { offers_ib }) = &mut self.role else {
            return self.fail_startup(base, state, ConnectionError::PeerClosed);
        };
        let own = own_terms(&param, &qp);
        if !own.have_type_of(*offers_ib) {
            return self.reject(base, state, Reject::OtherType);
        }
        let mut private_data = param.private_data.clone();
        let agreement = own.answer(*offers_ib, &mut private_data);
        let accept = Accept {
            ird: Some(param.responder_resources),
            ord: Some(param.initiator_depth),
            min_ord: param.min_initiator_depth,
            markers: Some(param.markers),
            crc: Some(state.config.crc),
            private_data: &private_data,
        };
        let (mut negotiated, reply) = match responder.accept(accept, deadline) {
            Ok(answer) => answer,
            Err(ResponderError::InsufficientIrd { needed }) => {
                // RFC 6581 section 9.1 (MPA2-063): the error is layer 2, type 0, code 6. The error is
                // reported only locally. Before the first FPDU of the peer, only the Reply may be sent (RFC
                // 5044 section 7.1.2 rule 4).
                let TerminateCode { layer, etype, code } = TerminateCode::mpa(6);
                let error = StreamError { layer, etype, code, from_peer: false };
                qp.refuse(error);
                return self.reject(base, state, Reject::Insufficient { error, needed });
            }
            Err(error @ (ResponderError::NoRequest | ResponderError::PrivateData(_))) => {
                debug_assert!(false, "the call of the user has checked the answer: {error}");
                return self.fail_startup(base, state, ConnectionError::NoResources);
            }
        };
        agreement::take_offer(&mut negotiated.private_data, mark(state, base.conn));
        base.report.peer = negotiated.peer;
        base.apply_keepalive(state, param.keepalive);
        base.timers.clear_deadline();
        trace::reply_sent(state, base.conn, &negotiated);
        base.send_frame(state, &reply);
        let idle_timeout = param.idle_timeout;
        let rdma = if matches!(negotiated.rtr, Rtr::Expect(_)) {
            // The connection is announced when the RTR has arrived.
            base.timers.set_deadline(deadline);
            let announcement =
                Announcement { negotiated: negotiated.clone(), agreement, idle_timeout, ready: true };
            let announcement = Some(Box::new(announcement));
            Rdma::begin(base, state, qp, (&negotiated, agreement), false, announcement)
        } else {
            // In the event, `ready` is `false` if the user has to wait for the peer's first message.
            let ready = !param.await_first_fpdu;
            let rdma = Rdma::begin(base, state, qp, (&negotiated, agreement), ready, None);
            base.announce_established(state, Announcement { negotiated, agreement, idle_timeout, ready });
            rdma
        };
        rdma.receive_rest(base, state, guard, self.reassembly)
    }

    fn reject(mut self: Box<Self>, base: &mut Base, state: &mut EngineState, why: Reject<'_>) -> Phase {
        base.count_rejected();
        let Role::Responder(responder, RequestState::Deciding { .. }) = &mut self.role else {
            state.tcp.abort(state.now, base.conn);
            return Phase::Startup(self);
        };
        let (private_data, needed_ord) = match why {
            Reject::ByUser { private_data, .. } => (private_data, None),
            Reject::Insufficient { needed, .. } => (&[][..], Some(needed)),
            Reject::OldAgreement => (agreement::REFUSES_OLD, None),
            Reject::OtherType => (agreement::REFUSES_TYPE, None),
            Reject::NotInTime | Reject::Markers => (&[][..], None),
        };
        let Ok(reply) = responder.reject(private_data, needed_ord) else {
            debug_assert!(false, "the call of the user has checked the answer");
            base.abort(state);
            return Phase::Startup(self);
        };
        trace::reject_sent(state, base.conn, why.name());
        base.send_frame(state, &reply);
        match why {
            // RFC 5044 section 7.1.2 (MPA-180): MPA ends, and the TCP connection stays open for the user.
            Reject::ByUser { stays_open: true, .. } => {
                if let Some(plain) = self.plain.take() {
                    return Streaming::enter(base, state, plain, self.reassembly);
                }
                debug_assert!(false, "a connection that began with MPA has no streaming mode");
            }
            // The user has rejected the Request, or has received the event for the timeout already.
            Reject::ByUser { stays_open: false, .. } | Reject::NotInTime => base.user = User::Done,
            // A connection without a user was accepted by a listener, and nothing is reported. Any other user
            // gets the error when the connection closes.
            Reject::Markers | Reject::OldAgreement if matches!(base.user, User::Unaware) => {}
            Reject::OldAgreement => base.report.add(ConnectionError::Startup(StartupFault::OldAgreement)),
            Reject::OtherType => base.report.add(ConnectionError::Startup(StartupFault::OtherType)),
            Reject::Markers => base.report.add(ConnectionError::Startup(StartupFault::Markers)),
            Reject::Insufficient { error, .. } => base.report.add(ConnectionError::Stream(error)),
        }
        self.close(base, state)
    }

    /// Rejects the Request because the user has not decided in time. Does nothing if the user has just
    /// decided.
    fn decision_timeout(self: Box<Self>, base: &mut Base, state: &mut EngineState) -> Phase {
        if !base.user.id().is_some_and(|id| id.expire()) {
            return Phase::Startup(self);
        }
        if let Some(admitted) = &base.admitted {
            admitted.listener.count(|stats| stats.decision_timeouts += 1);
        }
        if let User::Known(id) = base.user.take() {
            id.announce(
                None,
                CmEventKind::ConnectError { error: ConnectionError::DecisionTimeout, peer: None },
            );
        }
        self.reject(base, state, Reject::NotInTime)
    }

    // ---- initiator ----

    /// Handles the complete Reply.
    fn on_reply(
        self,
        base: &mut Base,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        event: InitiatorEvent,
    ) -> Phase {
        let Self { reassembly, role, plain } = self;
        let Initiating { qp, param, .. } = match role {
            Role::Initiator(initiating) => initiating,
            role @ Role::Responder(..) => return Phase::Startup(Self::new(role, reassembly, plain)),
        };
        let idle_timeout = param.idle_timeout;
        base.timers.clear_deadline();
        match event {
            InitiatorEvent::Accepted(mut negotiated) => {
                trace::reply_received(state, base.conn, &negotiated);
                let own = own_terms(&param, &qp);
                let agreement = own.conclude(&mut negotiated.private_data);
                base.report.peer = negotiated.peer;
                if own.is_unreliable && !agreement.ib_semantics() {
                    // The peer knows no queue pairs of type UC.
                    base.note_startup_failure(state, ConnectionError::Startup(StartupFault::OtherType));
                    base.name_cause();
                    base.drop_reassembly(state, reassembly);
                    state.tcp.abort(state.now, base.conn);
                    return Phase::Closing(Closing::default());
                }
                let rdma = Rdma::begin(base, state, qp, (&negotiated, agreement), true, None);
                let announcement = Announcement { negotiated, agreement, idle_timeout, ready: true };
                base.announce_established(state, announcement);
                rdma.receive_rest(base, state, guard, reassembly)
            }
            InitiatorEvent::Rejected(Rejected { private_data, peer, revision }) => {
                trace::rejected(state, base.conn, revision, private_data.len());
                let error = match private_data.as_slice() == agreement::REFUSES_TYPE {
                    true => ConnectionError::Startup(StartupFault::OtherType),
                    false => ConnectionError::Rejected,
                };
                qp.state.blame(error);
                qp.unreached();
                let kind = match error {
                    ConnectionError::Rejected => {
                        CmEventKind::Rejected { private_data: private_data.as_slice().into(), peer }
                    }
                    error => CmEventKind::ConnectError { error, peer },
                };
                if let (Some(id), Some(plain)) = (base.user.id(), plain) {
                    // RFC 5044 section 7.1.2 (MPA-190): MPA ends, and the TCP connection stays open
                    // for the user.
                    id.set_streaming(&state.handle, &plain);
                    id.announce(None, kind);
                    base.qp = None;
                    return Streaming::enter(base, state, plain, reassembly);
                }
                // The order is that of a connection's end: first the identifier enters its new phase, then
                // the user receives the event.
                if let User::Known(id) = base.user.take() {
                    id.set_over(Some(error));
                    id.announce(None, kind);
                }
                base.drop_reassembly(state, reassembly);
                Closing::default().close(base, state)
            }
            InitiatorEvent::Unmet { error, negotiated } => {
                trace::reply_received(state, base.conn, &negotiated);
                base.report.peer = negotiated.peer;
                let mut rdma = Rdma::begin(base, state, qp, (&negotiated, Agreement::default()), true, None);
                // RFC 6581 sections 9.1 and 9.2 (MPA2-066, MPA2-067, MPA2-087, MPA2-088): a Terminate with
                // code 6 or 7 is sent, then the stream ends.
                let TerminateCode { layer, etype, code } = error.terminate_code();
                let known = TerminateError::from_codes(layer, etype, code);
                let terminate = Terminate::bare(known.unwrap_or(TerminateError::MpaStartupCatastrophic));
                let terminate = Box::new(terminate);
                let next = rdma.fail(base, state, Failure::Here(terminate));
                base.drop_reassembly(state, reassembly);
                rdma.then(next, base, state)
            }
        }
    }

    /// Prepares a second attempt with revision 1, if a second attempt is allowed. Called when the peer has
    /// closed or reset the connection without a Reply, perhaps because the peer does not know revision 2 (RFC
    /// 6581 section 10).
    pub(super) fn consider_fallback(&self, base: &mut Base) {
        let Role::Initiator(Initiating { initiator, qp, param }) = &self.role else { return };
        let may = matches!(base.attempt, Attempt::First) && self.plain.is_none();
        if may
            && initiator.may_fall_back()
            && let (Some(id), Some(deadline)) = (base.user.id(), base.timers.deadline())
            && let Some((_, remote)) = id.addresses()
        {
            let mut param = param.clone();
            (param.mpa_revision, param.peer_to_peer, param.fallback) = (1, false, false);
            let (id, qp) = (Arc::clone(id), Arc::clone(qp));
            base.attempt = Attempt::Failed(Box::new(Retry { id, qp, remote, param, deadline }));
        }
    }

    // ---- for tests ----

    pub(super) fn check(&self, base: &Base, state: &EngineState) -> Check<Holdings> {
        let (is_known, has_deadline) = (base.user.id().is_some(), base.timers.deadline().is_some());
        match &self.role {
            Role::Initiator(_) => {
                ensure!(has_deadline, "startup has no deadline");
                ensure!(is_known, "this end has connected for no user");
            }
            Role::Responder(_, RequestState::Awaited(_)) => {
                ensure!(has_deadline, "startup has no deadline");
                ensure!(is_known || base.admitted.is_some(), "a Request is awaited for nobody");
            }
            Role::Responder(_, RequestState::Deciding { .. }) => {
                // If TCP has lost the connection, the phase waits for TCP's last event.
                let is_there = state.tcp.info(base.conn).is_some();
                ensure!(is_known || !is_there, "nobody decides on the Request");
            }
        }
        Ok(Holdings { buffers: self.reassembly.check(&state.held)?, ..Holdings::default() })
    }
}

/// Why a Request is rejected.
pub(in crate::engine) enum Reject<'a> {
    /// The user rejects the Request. If `stays_open`, the TCP connection returns to streaming mode.
    ByUser { private_data: &'a [u8], stays_open: bool },
    /// The decision timeout has passed, and the user has received an event about the timeout.
    NotInTime,
    /// The Request asks for markers, which the listener refuses.
    Markers,
    /// The Request offers an older version of InfiniBand's semantics.
    OldAgreement,
    /// One of the two queue pairs is of type UC, and the other is not.
    OtherType,
    /// The peer serves fewer Reads than the user needs.
    Insufficient { error: StreamError, needed: u16 },
}

impl Reject<'_> {
    /// Returns the name of the reason, for events.
    fn name(&self) -> &'static str {
        match self {
            Self::ByUser { .. } => "by the user",
            Self::NotInTime => "the user has not decided in time",
            Self::Markers => "markers are refused",
            Self::OldAgreement => {
                "the peer's uwarp is older and has other semantics of InfiniBand: update it"
            }
            Self::OtherType => "one queue pair is of type UC, and the other is not",
            Self::Insufficient { .. } => "the peer serves too few Reads",
        }
    }
}

enum StartupEvent {
    Reply(InitiatorEvent),
    Request(ConnectRequest),
}

/// Writes the event or the fault of a step to `outcome`. Returns the number of bytes that the step has
/// consumed. The result is written to `outcome` because an event is large (it has room for private data): a
/// returned event would be copied in every step. A step without an event leaves `outcome` unchanged.
#[inline]
fn keep<E>(
    step: Result<Step<E>, StartupFault>,
    event: impl FnOnce(E) -> StartupEvent,
    outcome: &mut Result<Option<StartupEvent>, StartupFault>,
) -> usize {
    match step {
        Ok(step) => {
            if let Some(happened) = step.event {
                *outcome = Ok(Some(event(happened)));
            }
            step.consumed
        }
        Err(fault) => {
            *outcome = Err(fault);
            0
        }
    }
}

// The check of the length of private data reserves `AGREEMENT_BYTES`, which must be enough for an offer.
const _: () = assert!(AGREEMENT_BYTES >= agreement::OFFER_BYTES);

/// Returns what the user wants of the agreement on InfiniBand's semantics for this queue pair.
fn own_terms(param: &ConnParam, qp: &QpShared) -> OwnTerms {
    let own = RnrConfig { min_rnr_timer: param.min_rnr_timer, rnr_retry: param.rnr_retry };
    let is_unreliable = qp.config.is_unreliable();
    OwnTerms {
        rnr: param.ib_semantics.then_some(own),
        rnr_timeout: param.rnr_timeout,
        outlives_peer: param.outlives_peer || is_unreliable,
        is_unreliable,
    }
}

/// Returns the mark of a TCP connection, by which an offer of the agreement names the connection.
fn mark(state: &EngineState, conn: ConnId) -> u32 {
    agreement::mark_of(state.tcp.initial_sequence_numbers(conn).unwrap_or_default())
}
