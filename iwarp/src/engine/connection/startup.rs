//! MPA startup of a connection: Request, decision, Reply (RFC 5044 section 7.1, RFC 6581).

use std::sync::Arc;

use tcp_lite::{ConnId, Instant};

use crate::memory::{Accessor, EpochGuard, StreamId};
use crate::mpa::startup::{Accept, ConnectRequest, Rejected, ResponderError, Rtr};
use crate::mpa::{Initiator, InitiatorEvent, MpaError, Negotiated, Responder, StartupFault, TerminateCode};
use crate::queues::QpShared;
use crate::rdmap::stream::Failure;
use crate::rdmap::{Terminate, TerminateError};
use crate::verbs::{CmEventKind, CmShared, ConnParam, ConnectionError, ResponderOptions, StreamError};

use super::super::core::Io;
use super::inbox::Rest;
use super::{Connection, Fallback, Inbox, ListenerOrigin, Phase, Told, duration};

impl Connection {
    /// A connection of ours; its SYN is out. `again`: the first try has failed, and its deadline holds.
    pub(in crate::engine) fn connecting(
        conn: ConnId,
        id: Arc<CmShared>,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
        crc: bool,
        now: Instant,
        again: Option<Instant>,
    ) -> Result<Self, ConnectionError> {
        let deadline = again.unwrap_or(now + duration(param.timeout));
        // Parameters were checked by the call.
        let (initiator, request) = Initiator::start(param.mpa_config(crc), &param.private_data, deadline)
            .map_err(|_| ConnectionError::NoResources)?;
        let phase = Phase::Opening { start: Some((Box::new(initiator), request.to_vec())) };
        let mut connection = Self::new(conn, phase, Some(deadline));
        id.set_conn(conn);
        connection.id = Some(id);
        connection.qp = Some(qp);
        connection.param = Some(param);
        connection.fallback = if again.is_some() { Fallback::Done } else { Fallback::No };
        Ok(connection)
    }

    /// The phase in which the peer's Request is awaited, and by when it has to be whole.
    pub(super) fn await_request(
        options: Box<ResponderOptions>,
        now: Instant,
        inbox: Inbox,
    ) -> Result<(Phase, Instant), MpaError> {
        let deadline = now + duration(options.startup_timeout);
        let responder = Responder::listen(options.mpa_config(), deadline)
            .map_err(|_| MpaError::Startup(StartupFault::NotEnhanced))?;
        Ok((Phase::AwaitRequest { responder: Box::new(responder), options, inbox }, deadline))
    }

    /// Works off what has come in order.
    pub(super) fn run_startup(&mut self, io: &mut Io, guard: &EpochGuard) {
        loop {
            let mut outcome = Ok(None);
            let released = match &mut self.phase {
                Phase::AwaitReply { initiator, inbox } => inbox.take(&mut io.held, |offset, bytes| {
                    if !matches!(outcome, Ok(None)) {
                        return 0;
                    }
                    let step = initiator.receive(offset, bytes);
                    let consumed = step.as_ref().map_or(0, |step| step.consumed);
                    outcome = step.map(|step| step.event.map(Startup::Reply));
                    consumed
                }),
                Phase::AwaitRequest { responder, inbox, .. } | Phase::Deciding { responder, inbox } => inbox
                    .take(&mut io.held, |offset, bytes| {
                        if !matches!(outcome, Ok(None)) {
                            return 0;
                        }
                        let step = responder.receive(offset, bytes);
                        let consumed = step.as_ref().map_or(0, |step| step.consumed);
                        outcome = step.map(|step| step.event.map(Startup::Request));
                        consumed
                    }),
                Phase::Opening { .. }
                | Phase::StreamingMode(_)
                | Phase::FullOperation(_)
                | Phase::Closing => return,
            };
            io.tcp.release(self.conn, released);
            match outcome {
                Ok(None) => return,
                Ok(Some(Startup::Reply(event))) => return self.on_reply(io, guard, event),
                // The loop goes on: a bad peer may have sent something behind its Request.
                Ok(Some(Startup::Request(request))) => self.on_request(io, guard, request),
                Err(error) => return self.fail_startup(io, startup_error(error)),
            }
        }
    }

    // ---- responder ----

    /// The peer's Request is complete: the user decides.
    pub(super) fn on_request(&mut self, io: &mut Io, guard: &EpochGuard, request: ConnectRequest) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::AwaitRequest { responder, options, inbox } = phase else { return };
        self.phase = Phase::Deciding { responder, inbox };
        let Some(info) = io.tcp.info(self.conn) else { return };
        let (got, max) = (request.private_data.len(), options.max_private_data);
        if got > max {
            let fault = StartupFault::PrivateData { got, max };
            return self.fail_startup(io, ConnectionError::Startup(fault));
        }
        let listener = self.origin.as_ref().map(|origin| Arc::clone(&origin.id));
        let id = match (&self.id, &listener) {
            (Some(id), _) => Arc::clone(id),
            (None, Some(listener)) if listener.is_listening() => {
                listener.child(self.conn, (info.local, info.remote))
            }
            // Nobody listens any more.
            (None, _) => return self.fail_startup(io, ConnectionError::PeerClosed),
        };
        if options.refuse_markers && request.markers {
            return self.reject(io, guard, &[], None);
        }
        id.set_requested(&io.shared, self.conn, request.private_data_limit);
        self.deadline = None;
        if let Some(timeout) = options.decision_timeout {
            self.deadline = Some(io.now + duration(timeout));
        }
        if let Some(ListenerOrigin { admitted, .. }) = &self.origin {
            admitted.listener.count(|stats| stats.requests += 1);
        }
        let kind = CmEventKind::ConnectRequest {
            private_data: request.private_data.as_slice().into(),
            remote: info.remote,
            peer_ird: request.peer.map(|depths| depths.ird),
            peer_ord: request.peer.map(|depths| depths.ord),
            revision: request.revision,
            peer_to_peer: request.peer_to_peer,
            markers: request.markers,
        };
        // New to the user only where it comes from a listener.
        let from = if self.id.is_none() { listener } else { None };
        self.id = Some(Arc::clone(&id));
        id.announce(from.as_ref(), kind);
    }

    /// The user accepts.
    pub(in crate::engine) fn accept(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard,
        id: Arc<CmShared>,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
    ) {
        self.decided();
        self.id = Some(id);
        self.qp = Some(qp);
        let deadline = io.now + duration(param.timeout);
        let Phase::Deciding { responder, .. } = &mut self.phase else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let accept = Accept {
            ird: Some(param.responder_resources),
            ord: Some(param.initiator_depth),
            min_ord: param.min_initiator_depth,
            markers: Some(param.markers),
            crc: Some(io.config.crc),
            private_data: &param.private_data,
        };
        let answer = responder.accept(accept, deadline);
        self.param = Some(param);
        let (negotiated, reply) = match answer {
            Ok(answer) => answer,
            Err(ResponderError::InsufficientIrd { needed }) => {
                // Told locally alone: nothing but the Reply may be sent (RFC 5044 section 7.1.2 rule 4).
                let TerminateCode { layer, etype, code } = TerminateCode::mpa(6);
                let error = StreamError { layer, etype, code, from_peer: false };
                self.error = Some(ConnectionError::Stream(error));
                if let Some(qp) = &self.qp {
                    qp.ended().error = Some(error);
                }
                self.end_qp();
                return self.reject(io, guard, &[], Some(needed));
            }
            // The call has looked at the length.
            Err(_) => return self.fail_startup(io, ConnectionError::NoResources),
        };
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::Deciding { inbox, .. } = phase else { return };
        self.peer = negotiated.peer;
        self.apply_keepalive(io);
        self.deadline = None;
        self.say(io, &reply);
        if matches!(negotiated.rtr, Rtr::Expect(_)) {
            // Announced when the RTR has come.
            self.deadline = Some(deadline);
            self.stream(io, &negotiated, false, Some(Box::new(negotiated.clone())));
        } else {
            // Else the user is told that it has to wait for the peer's first message.
            let ready = self.param.as_ref().is_some_and(|param| !param.await_first_fpdu);
            self.stream(io, &negotiated, ready, None);
            self.announce_established(io, negotiated, ready);
        }
        self.receive_rest(io, guard, inbox);
    }

    /// The user rejects, or nobody is there to decide. `needed_ord`: the peer's IRD is too small.
    pub(in crate::engine) fn reject(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard,
        private_data: &[u8],
        needed_ord: Option<u16>,
    ) {
        self.decided();
        if let Some(ListenerOrigin { admitted, .. }) = &self.origin {
            admitted.listener.count(|stats| stats.rejected += 1);
        }
        let Phase::Deciding { responder, inbox } = &mut self.phase else {
            return io.tcp.abort(io.now, self.conn);
        };
        let Ok(reply) = responder.reject(private_data, needed_ord) else {
            return io.tcp.abort(io.now, self.conn);
        };
        let mut inbox = std::mem::take(inbox);
        self.deadline = None;
        self.say(io, &reply);
        let stays = self.id.as_ref().is_some_and(|id| id.is_streaming());
        if stays && self.error.is_none() {
            // MPA is left, and the TCP connection is the user's (RFC 5044 section 7.1.2 rule 2).
            self.told = Told::Streaming;
            return self.enter_streaming_mode(io, guard, inbox);
        }
        io.tcp.release(self.conn, inbox.clear(&mut io.held));
        if self.error.is_none() {
            // The user has decided: nothing more is announced.
            self.id = None;
        }
        self.close_behind(io);
    }

    /// The user has not decided in time: the peer is told no.
    pub(super) fn decision_timeout(&mut self, io: &mut Io, guard: &EpochGuard) {
        if !self.id.as_ref().is_some_and(|id| id.expire()) {
            return;
        }
        if let Some(ListenerOrigin { admitted, .. }) = &self.origin {
            admitted.listener.count(|stats| stats.decision_timeouts += 1);
        }
        if let Some(id) = self.id.take() {
            id.announce(
                None,
                CmEventKind::ConnectError { error: ConnectionError::DecisionTimeout, peer: self.peer },
            );
        }
        self.reject(io, guard, &[], None);
    }

    /// It leaves its listener's backlog.
    fn decided(&mut self) {
        if let Some(ListenerOrigin { admitted, .. }) = &mut self.origin {
            admitted.decide();
        }
    }

    // ---- initiator ----

    /// The Reply is complete.
    fn on_reply(&mut self, io: &mut Io, guard: &EpochGuard, event: InitiatorEvent) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::AwaitReply { mut inbox, .. } = phase else { return };
        self.deadline = None;
        match event {
            InitiatorEvent::Accepted(negotiated) => {
                self.peer = negotiated.peer;
                self.stream(io, &negotiated, true, None);
                self.announce_established(io, negotiated, true);
                self.receive_rest(io, guard, inbox);
            }
            InitiatorEvent::Rejected(Rejected { private_data, peer, .. }) => {
                self.end_qp();
                let kind = CmEventKind::Rejected { private_data: private_data.as_slice().into(), peer };
                if let (Some(id), Some(stream)) = (&self.id, &self.stream) {
                    // MPA is left, and the TCP connection is the user's (RFC 5044 section 7.1.2 rule 3).
                    id.set_streaming(&io.shared, stream);
                    id.announce(None, kind);
                    self.enter_streaming_mode(io, guard, inbox);
                    self.qp = None;
                    return;
                }
                self.announce(kind);
                self.id = None;
                io.tcp.release(self.conn, inbox.clear(&mut io.held));
                self.close(io);
            }
            InitiatorEvent::Unmet { error, negotiated } => {
                self.peer = negotiated.peer;
                self.stream(io, &Negotiated { rtr: Rtr::None, ..negotiated }, true, None);
                let TerminateCode { layer, etype, code } = error.terminate_code();
                let known = TerminateError::from_codes(layer, etype, code);
                let terminate = Terminate::local(known.unwrap_or(TerminateError::MpaStartupCatastrophic));
                self.fail(io, Failure::Local(terminate));
                io.tcp.release(self.conn, inbox.clear(&mut io.held));
            }
        }
    }

    /// The peer closes without a Reply: perhaps it does not know revision 2 (RFC 6581 section 10).
    pub(super) fn consider_fallback(&mut self) {
        if let Phase::AwaitReply { initiator, .. } = &self.phase
            && self.stream.is_none()
            && self.fallback == Fallback::No
            && initiator.fallback().is_some()
        {
            self.fallback = Fallback::Due;
        }
    }

    // ---- both ----

    /// Full Operation begins. `may_send`: without waiting for the peer's first FPDU. `announce`: what to tell
    /// the user when that has come.
    fn stream(
        &mut self,
        io: &mut Io,
        negotiated: &Negotiated,
        may_send: bool,
        announce: Option<Box<Negotiated>>,
    ) {
        let Some(qp) = self.qp.clone() else { return };
        let by = Accessor { pd: qp.pd.id(), stream: StreamId(u64::from(qp.num)) };
        self.enter_full_operation(io, qp, by, negotiated, may_send, announce);
    }

    /// What came behind the startup frame are FPDUs; and there may be something to send.
    fn receive_rest(&mut self, io: &mut Io, guard: &EpochGuard, mut inbox: Inbox) {
        while let Some(Rest { offset, buf, frontier, released }) = inbox.pop_rest(&mut io.held) {
            io.tcp.release(self.conn, released);
            self.receive(io, guard, offset, buf, frontier);
        }
        self.activate(io);
    }

    pub(super) fn announce_established(&mut self, io: &mut Io, negotiated: Negotiated, ready: bool) {
        self.told = Told::Established;
        io.counters.connections += 1;
        io.counters.connections_without_crc += u64::from(!negotiated.crc);
        self.watch_idle(io);
        let Negotiated { tx_markers, rx_markers, ird, ord, private_data, peer, revision, .. } = negotiated;
        self.announce(CmEventKind::Established {
            private_data: private_data.as_slice().into(),
            ord,
            ird,
            peer,
            revision,
            fell_back: self.fallback == Fallback::Done,
            markers: (tx_markers, rx_markers),
            ready,
        });
    }
}

/// What startup came to.
enum Startup {
    Reply(InitiatorEvent),
    Request(ConnectRequest),
}

pub(super) fn startup_error(error: MpaError) -> ConnectionError {
    match error {
        MpaError::StartupTimeout => ConnectionError::StartupTimeout,
        MpaError::Startup(fault) => ConnectionError::Startup(fault),
        // Startup raises no other.
        _ => ConnectionError::PeerClosed,
    }
}
