//! MPA startup of a connection: Request, decision, Reply (RFC 5044 section 7.1, RFC 6581).

use std::sync::Arc;

use crate::memory::EpochGuard;
use crate::mpa::startup::{Accept, ConnectRequest, Rejected, ResponderError, Rtr, Step};
use crate::mpa::{InitiatorEvent, Negotiated, StartupFault, TerminateCode};
use crate::queues::QpShared;
use crate::rdmap::{Terminate, TerminateError};
use crate::stream::Failure;
use crate::stream::ib_profile::agreement::{self, Agreement, Offer};
use crate::verbs::{AGREEMENT_BYTES, CmEventKind, CmShared, ConnParam, ConnectionError, StreamError};

use super::super::state::EngineState;
use super::super::trace;
use super::full_operation::Announcement;
use super::reassembly::Rest;
use super::report::{Announced, User};
use super::{Attempt, Connection, Initiating, Phase, Reassembly, duration};

impl Connection {
    /// Processes the bytes that have come in order.
    pub(super) fn run_startup(&mut self, state: &mut EngineState, guard: &EpochGuard<'_>) {
        loop {
            let mut outcome = Ok(None);
            let released = match &mut self.phase {
                Phase::AwaitReply { initiating, reassembly } => {
                    let initiator = &mut initiating.initiator;
                    reassembly.take(&mut state.held, |offset, bytes| {
                        if !matches!(outcome, Ok(None)) {
                            return 0;
                        }
                        keep(initiator.receive(offset, bytes), StartupEvent::Reply, &mut outcome)
                    })
                }
                Phase::AwaitRequest { responder, reassembly, .. }
                | Phase::Deciding { responder, reassembly, .. } => {
                    reassembly.take(&mut state.held, |offset, bytes| {
                        if !matches!(outcome, Ok(None)) {
                            return 0;
                        }
                        keep(responder.receive(offset, bytes), StartupEvent::Request, &mut outcome)
                    })
                }
                Phase::Opening(_) | Phase::StreamingMode(_) | Phase::FullOperation(_) | Phase::Ended(_) => {
                    return;
                }
            };
            state.tcp.release(self.conn, released);
            match outcome {
                Ok(None) => return,
                Ok(Some(StartupEvent::Reply(event))) => return self.on_reply(state, guard, event),
                // The loop continues: bytes after the Request are an error of the peer.
                Ok(Some(StartupEvent::Request(request))) => self.on_request(state, request),
                Err(fault) => return self.fail_startup(state, ConnectionError::Startup(fault)),
            }
        }
    }

    // ---- responder ----

    /// The peer's Request is complete. The user has to decide.
    pub(super) fn on_request(&mut self, state: &mut EngineState, mut request: ConnectRequest) {
        trace::request_received(state, self.conn, &request);
        let mark = state.tcp.sequence_mark(self.conn).unwrap_or_default();
        let offer = agreement::take_offer(&mut request.private_data, mark);
        let offers_ib = match offer {
            Offer::Made(peer_rnr) => Some(peer_rnr),
            Offer::ByProxy => {
                trace::proxy_found(state, self.conn);
                None
            }
            Offer::None | Offer::Old => None,
        };
        let options = match self.take_phase() {
            Phase::AwaitRequest { responder, options, reassembly } => {
                self.phase = Phase::Deciding { responder, reassembly, offers_ib };
                options
            }
            other => return self.phase = other,
        };
        // TCP has lost the connection meanwhile. Its last event follows, and ends this.
        let Some(info) = state.tcp.info(self.conn) else { return };
        // RFC 5044 section 7.1.2 (MPA-204): no more private data than the application has room for.
        if request.private_data.len() > options.max_private_data {
            return self.fail_startup(state, ConnectionError::Startup(StartupFault::PrivateData));
        }
        let listener = self.admitted.as_ref().map(|admitted| Arc::clone(&admitted.id));
        let id = match (self.user.id(), &listener) {
            (Some(id), _) => Arc::clone(id),
            (None, Some(listener)) if listener.is_listening() => {
                listener.child(self.conn, (info.local, info.remote))
            }
            // The listener is closed.
            (None, Some(_)) => return self.fail_startup(state, ConnectionError::PeerClosed),
            (None, None) => {
                debug_assert!(false, "a Request for no user, at no listener");
                return self.fail_startup(state, ConnectionError::NoResources);
            }
        };
        if options.refuse_markers && request.markers {
            return self.reject(state, Reject::Markers);
        }
        if offer == Offer::Old {
            return self.reject(state, Reject::OldAgreement);
        }
        let limit = request.private_data_limit - if offers_ib.is_some() { AGREEMENT_BYTES } else { 0 };
        id.set_requested(&state.handle, self.conn, limit);
        self.timers.clear_deadline();
        if let Some(timeout) = options.decision_timeout {
            self.timers.set_deadline(state.now + duration(timeout));
        }
        if let Some(admitted) = &self.admitted {
            admitted.listener.count(|stats| stats.requests += 1);
        }
        let kind = CmEventKind::ConnectRequest {
            private_data: request.private_data.as_slice().into(),
            remote: info.remote,
            // RFC 6581 section 9.1 (MPA2-058): the user gets the peer's depths.
            peer_ird: request.peer.map(|depths| depths.ird),
            peer_ord: request.peer.map(|depths| depths.ord),
            revision: request.revision,
            peer_to_peer: request.peer_to_peer,
            markers: request.markers,
            ib_semantics: offers_ib.is_some(),
        };
        // A connection of a listener is new to the user.
        let from = if matches!(self.user, User::Unaware) { listener } else { None };
        self.user = User::Known(Arc::clone(&id));
        id.announce(from.as_ref(), kind);
    }

    /// The user accepts.
    pub(in crate::engine) fn accept(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        id: Arc<CmShared>,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
    ) {
        self.leave_backlog();
        self.user = User::Known(id);
        let deadline = state.now + duration(param.timeout);
        let Phase::Deciding { responder, reassembly, offers_ib } = &mut self.phase else {
            return self.fail_startup_of(state, qp, ConnectionError::PeerClosed);
        };
        let agreement = Agreement::new(offers_ib.filter(|_| param.ib_semantics), &param);
        let accept = Accept {
            ird: Some(param.responder_resources),
            ord: Some(param.initiator_depth),
            min_ord: param.min_initiator_depth,
            markers: Some(param.markers),
            crc: Some(state.config.crc),
            private_data: &agreement::reply_data(&param, agreement.ib_semantics()),
        };
        let (mut negotiated, reply) = match responder.accept(accept, deadline) {
            Ok(answer) => answer,
            Err(ResponderError::InsufficientIrd { needed }) => {
                // RFC 6581 section 9.1 (MPA2-063): layer 2, type 0, code 6. It is reported locally only:
                // before the first FPDU of the peer only the Reply may be sent (RFC 5044 section 7.1.2 rule
                // 4).
                let TerminateCode { layer, etype, code } = TerminateCode::mpa(6);
                let error = StreamError { layer, etype, code, from_peer: false };
                qp.refuse(error);
                self.reject(state, Reject::Insufficient { error, needed });
                return self.end_stream_of(state, qp);
            }
            Err(error @ (ResponderError::NoRequest | ResponderError::PrivateData(_))) => {
                debug_assert!(false, "the call of the user has checked the answer: {error}");
                return self.fail_startup_of(state, qp, ConnectionError::NoResources);
            }
        };
        // The next phase follows below.
        let reassembly = std::mem::take(reassembly);
        let mark = state.tcp.sequence_mark(self.conn).unwrap_or_default();
        agreement::take_offer(&mut negotiated.private_data, mark);
        self.report.peer = negotiated.peer;
        self.apply_keepalive(state, param.keepalive);
        self.timers.clear_deadline();
        trace::reply_sent(state, self.conn, &negotiated);
        self.send_frame(state, &reply);
        let idle_timeout = param.idle_timeout;
        if matches!(negotiated.rtr, Rtr::Expect(_)) {
            // It is announced when the RTR has come.
            self.timers.set_deadline(deadline);
            let announcement =
                Announcement { negotiated: negotiated.clone(), agreement, idle_timeout, ready: true };
            let announcement = Some(Box::new(announcement));
            self.enter_full_operation(state, qp, (&negotiated, agreement), false, announcement);
        } else {
            // The event says whether the user has to wait for the peer's first message.
            let ready = !param.await_first_fpdu;
            self.enter_full_operation(state, qp, (&negotiated, agreement), ready, None);
            self.announce_established(state, Announcement { negotiated, agreement, idle_timeout, ready });
        }
        self.receive_rest(state, guard, *reassembly);
    }

    /// Rejects the Request.
    pub(in crate::engine) fn reject(&mut self, state: &mut EngineState, why: Reject<'_>) {
        self.leave_backlog();
        if let Some(admitted) = &self.admitted {
            admitted.listener.count(|stats| stats.rejected += 1);
        }
        let Phase::Deciding { responder, reassembly, .. } = &mut self.phase else {
            return state.tcp.abort(state.now, self.conn);
        };
        let (private_data, needed_ord) = match why {
            Reject::ByUser { private_data, .. } => (private_data, None),
            Reject::Insufficient { needed, .. } => (&[][..], Some(needed)),
            Reject::OldAgreement => (agreement::REFUSES_OLD, None),
            Reject::NotInTime | Reject::Markers => (&[][..], None),
        };
        let Ok(reply) = responder.reject(private_data, needed_ord) else {
            debug_assert!(false, "the call of the user has checked the answer");
            return self.abort(state);
        };
        let reassembly = std::mem::take(reassembly);
        trace::reject_sent(state, self.conn, why.name());
        self.send_frame(state, &reply);
        match why {
            // RFC 5044 section 7.1.2 (MPA-180): MPA ends, and the TCP connection stays open for the user.
            Reject::ByUser { stays_open: true, .. } => {
                if let Some(plain) = self.plain.clone() {
                    return self.enter_streaming_mode(state, plain, *reassembly);
                }
                debug_assert!(false, "a connection that began with MPA has no streaming mode");
            }
            // The user has decided, or knows that it is too late.
            Reject::ByUser { stays_open: false, .. } | Reject::NotInTime => self.user = User::Done,
            // A connection that a listener accepted has no user yet. Otherwise the user gets the error when
            // the connection closes.
            Reject::Markers | Reject::OldAgreement if matches!(self.user, User::Unaware) => {}
            Reject::OldAgreement => self.report.add(ConnectionError::Startup(StartupFault::OldAgreement)),
            Reject::Markers => self.report.add(ConnectionError::Startup(StartupFault::Markers)),
            Reject::Insufficient { error, .. } => self.report.add(ConnectionError::Stream(error)),
        }
        self.drop_reassembly(state, *reassembly);
        self.close(state);
    }

    /// The user has not decided in time: rejects the Request.
    pub(super) fn decision_timeout(&mut self, state: &mut EngineState) {
        if !self.user.id().is_some_and(|id| id.expire()) {
            return;
        }
        if let Some(admitted) = &self.admitted {
            admitted.listener.count(|stats| stats.decision_timeouts += 1);
        }
        if let User::Known(id) = self.user.take() {
            id.announce(
                None,
                CmEventKind::ConnectError { error: ConnectionError::DecisionTimeout, peer: None },
            );
        }
        self.reject(state, Reject::NotInTime);
    }

    /// The connection no longer counts in its listener's backlog.
    fn leave_backlog(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            admitted.decide();
        }
    }

    // ---- initiator ----

    /// The Reply is complete.
    fn on_reply(&mut self, state: &mut EngineState, guard: &EpochGuard<'_>, event: InitiatorEvent) {
        let (qp, param, reassembly) = match self.take_phase() {
            Phase::AwaitReply { initiating, reassembly } => {
                let Initiating { qp, param, .. } = *initiating;
                (qp, param, *reassembly)
            }
            other => return self.phase = other,
        };
        let idle_timeout = param.idle_timeout;
        self.timers.clear_deadline();
        match event {
            InitiatorEvent::Accepted(mut negotiated) => {
                trace::reply_received(state, self.conn, &negotiated);
                let told = match param.ib_semantics {
                    true => agreement::take_consent(&mut negotiated.private_data),
                    false => None,
                };
                let agreement = Agreement::new(told, &param);
                self.report.peer = negotiated.peer;
                self.enter_full_operation(state, qp, (&negotiated, agreement), true, None);
                let announcement = Announcement { negotiated, agreement, idle_timeout, ready: true };
                self.announce_established(state, announcement);
                self.receive_rest(state, guard, reassembly);
            }
            InitiatorEvent::Rejected(Rejected { private_data, peer, revision }) => {
                trace::rejected(state, self.conn, revision, private_data.len());
                qp.state.blame(ConnectionError::Rejected);
                qp.unreached();
                let kind = CmEventKind::Rejected { private_data: private_data.as_slice().into(), peer };
                if let (Some(id), Some(plain)) = (self.user.id(), self.plain.clone()) {
                    // RFC 5044 section 7.1.2 (MPA-190): MPA ends, and the TCP connection stays open
                    // for the user.
                    id.set_streaming(&state.handle, &plain);
                    id.announce(None, kind);
                    return self.enter_streaming_mode(state, plain, reassembly);
                }
                // As at the end of a connection: first the identifier is over, then the user is told.
                if let User::Known(id) = self.user.take() {
                    id.set_over(Some(ConnectionError::Rejected));
                    id.announce(None, kind);
                }
                self.drop_reassembly(state, reassembly);
                self.close(state);
                self.end_stream_of(state, qp);
            }
            InitiatorEvent::Unmet { error, negotiated } => {
                trace::reply_received(state, self.conn, &negotiated);
                self.report.peer = negotiated.peer;
                self.enter_full_operation(state, qp, (&negotiated, Agreement::default()), true, None);
                // RFC 6581 sections 9.1 and 9.2 (MPA2-066, MPA2-067, MPA2-087, MPA2-088): a Terminate with
                // code 6 or 7, then the end.
                let TerminateCode { layer, etype, code } = error.terminate_code();
                let known = TerminateError::from_codes(layer, etype, code);
                let terminate = Terminate::bare(known.unwrap_or(TerminateError::MpaStartupCatastrophic));
                let terminate = Box::new(terminate);
                self.fail(state, Failure::Here(terminate));
                self.drop_reassembly(state, reassembly);
            }
        }
    }

    // ---- both ----

    /// Startup has failed for this queue pair, which ends with the connection.
    pub(super) fn fail_startup_of(
        &mut self,
        state: &mut EngineState,
        qp: Arc<QpShared>,
        error: ConnectionError,
    ) {
        self.fail_startup(state, error);
        self.end_stream_of(state, qp);
    }

    /// Receives the bytes after the startup frame as FPDUs, and schedules the connection to send.
    fn receive_rest(&mut self, state: &mut EngineState, guard: &EpochGuard<'_>, mut reassembly: Reassembly) {
        while let Some(Rest { offset, buf, frontier, released }) = reassembly.pop_rest(&mut state.held) {
            state.tcp.release(self.conn, released);
            self.receive(state, guard, offset, buf, frontier);
        }
        self.activate(state);
    }

    fn drop_reassembly(&self, state: &mut EngineState, mut reassembly: Reassembly) {
        state.tcp.release(self.conn, reassembly.clear(&mut state.held));
    }

    pub(super) fn announce_established(&mut self, state: &mut EngineState, announcement: Announcement) {
        let Announcement { negotiated, agreement, idle_timeout, ready } = announcement;
        self.report.announced = Announced::Established;
        state.counters.connections += 1;
        state.counters.connections_without_crc += u64::from(!negotiated.crc);
        self.set_established(state, idle_timeout);
        trace::established(state, self.conn, self.phase.qp(), &negotiated);
        let Negotiated { tx_markers, rx_markers, ird, ord, private_data, peer, revision, .. } = negotiated;
        // RFC 5044 section 3 (MPA-037), RFC 6581 section 9.1 (MPA2-058): the user gets the peer's revision
        // and depths.
        self.announce(CmEventKind::Established {
            private_data: private_data.as_slice().into(),
            ord,
            ird,
            peer,
            revision,
            fell_back: matches!(self.attempt, Attempt::Second { .. }),
            markers: (tx_markers, rx_markers),
            ib_semantics: agreement.ib_semantics(),
            ready,
        });
    }
}

/// Why a Request is rejected.
pub(in crate::engine) enum Reject<'a> {
    /// The user rejects it. `stays_open`: the TCP connection returns to streaming mode.
    ByUser { private_data: &'a [u8], stays_open: bool },
    /// The decision timeout has passed, and the user has got an event for that.
    NotInTime,
    /// The Request asks for markers, and the listener refuses that.
    Markers,
    /// The Request offers an older version of InfiniBand's semantics.
    OldAgreement,
    /// The peer serves fewer Reads than the user needs.
    Insufficient { error: StreamError, needed: u16 },
}

impl Reject<'_> {
    /// The reason, for events.
    fn name(&self) -> &'static str {
        match self {
            Self::ByUser { .. } => "by the user",
            Self::NotInTime => "the user has not decided in time",
            Self::Markers => "markers are refused",
            Self::OldAgreement => {
                "the peer's uwarp is older and has other semantics of InfiniBand: update it"
            }
            Self::Insufficient { .. } => "the peer serves too few Reads",
        }
    }
}

/// An event of startup.
enum StartupEvent {
    Reply(InitiatorEvent),
    Request(ConnectRequest),
}

/// Keeps the event or the fault of a step in `outcome`. Returns how many bytes the step has consumed. A step
/// without an event copies nothing, although there is room for private data in it.
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
