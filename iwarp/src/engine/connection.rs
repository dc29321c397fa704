//! One connection from SYN to the last FIN: MPA startup, the stream, teardown.

use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use tcp_lite::{CloseReason, ConnId, Instant, Received};

use crate::memory::{Accessor, StreamId, Turn};
use crate::mpa::startup::{Accept, ConnectRequest, Rejected, Revision, Rtr};
use crate::mpa::{Initiator, InitiatorEvent, MpaConfig, MpaError, Negotiated, Responder, TerminateCode};
use crate::rdmap::{Terminate, TerminateError};
use crate::verbs::{CmEventKind, CmId, ConnParam, ConnectionError, QpShared, QpState};

use super::core::Io;
use super::startup::{Inbox, Rest};
use super::stream::{Failure, Outcome, Stream};

mod teardown;

/// One connection.
pub(super) struct Connection {
    conn: ConnId,
    /// `None` until a connect request was announced.
    id: Option<CmId>,
    qp: Option<Arc<QpShared>>,
    phase: Phase,
    /// The listener whose backlog it counts in, while it does.
    pub(super) backlog_of: Option<u16>,
    /// By when the phase has to be over.
    deadline: Option<Instant>,
    /// In a ring of those that want to send.
    pub(super) active: bool,
    /// The user knows of it as established.
    established: bool,
    /// TCP is gone: to be removed.
    pub(super) gone: bool,
    error: Option<ConnectionError>,
}

enum Phase {
    /// Our SYN is out. The Request follows it.
    Opening { initiator: Initiator, request: Vec<u8> },
    /// The Request is out.
    AwaitReply { initiator: Initiator, inbox: Inbox },
    /// The peer's Request is awaited.
    AwaitRequest { responder: Responder, inbox: Inbox },
    /// Our user decides.
    Deciding { responder: Responder, inbox: Inbox },
    /// Full Operation.
    Streaming(Streaming),
    /// FIN is out: what still comes is acknowledged and dropped.
    Closing,
}

struct Streaming {
    stream: Box<Stream>,
    /// Announced when the peer's first FPDU has come.
    announce: Option<Negotiated>,
    /// FIN follows when everything is sent.
    draining: bool,
    /// While that waits for answers to Reads: the stream's progress when the deadline was set.
    progress: u64,
    /// It has failed: what comes is acknowledged and dropped, only a Terminate is still sent.
    failed: bool,
}

impl Connection {
    /// A connection of ours; its SYN is out.
    pub(super) fn connecting(
        conn: ConnId,
        id: CmId,
        qp: Arc<QpShared>,
        param: &ConnParam,
        now: Instant,
    ) -> Result<Self, ConnectionError> {
        let deadline = now + duration(param.timeout);
        let (initiator, request) = Initiator::start(mpa_config(param), &param.private_data, deadline)
            .map_err(|_| ConnectionError::Startup("the parameters contradict each other"))?;
        let phase = Phase::Opening { initiator, request: request.to_vec() };
        let mut connection = Self::new(conn, phase, deadline);
        connection.id = Some(id);
        connection.qp = Some(qp);
        Ok(connection)
    }

    /// A connection that a listener accepted.
    pub(super) fn accepted(
        conn: ConnId,
        port: u16,
        timeout: Duration,
        now: Instant,
    ) -> Result<Self, MpaError> {
        let deadline = now + duration(timeout);
        let responder =
            Responder::listen(MpaConfig::default(), deadline).map_err(|_| MpaError::StartupTimeout)?;
        let mut connection =
            Self::new(conn, Phase::AwaitRequest { responder, inbox: Inbox::default() }, deadline);
        connection.backlog_of = Some(port);
        Ok(connection)
    }

    fn new(conn: ConnId, phase: Phase, deadline: Instant) -> Self {
        Self {
            conn,
            id: None,
            qp: None,
            phase,
            backlog_of: None,
            deadline: Some(deadline),
            active: false,
            established: false,
            gone: false,
            error: None,
        }
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(super) fn id(&self) -> Option<&CmId> {
        self.id.as_ref()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    // ---- events of TCP ----

    /// TCP is established.
    pub(super) fn on_established(&mut self, io: &mut Io) {
        if let (Some(id), Some(info)) = (&self.id, io.tcp.info(self.conn)) {
            id.set_addresses((info.local, info.remote));
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        self.phase = match phase {
            Phase::Opening { initiator, request } => {
                if io.tcp.send(self.conn, &request).is_ok_and(|sent| sent == request.len()) {
                    Phase::AwaitReply { initiator, inbox: Inbox::default() }
                } else {
                    return self.fail_startup(io, ConnectionError::NoResources);
                }
            }
            other => other,
        };
    }

    /// Octets arrived.
    pub(super) fn on_received(&mut self, io: &mut Io, turn: &Turn, received: Received) {
        let Received { offset, buf, frontier } = received;
        match &mut self.phase {
            Phase::Streaming(_) => self.receive(io, turn, offset, buf, frontier),
            Phase::AwaitReply { inbox, .. }
            | Phase::AwaitRequest { inbox, .. }
            | Phase::Deciding { inbox, .. } => {
                if inbox.push(offset, buf, frontier).is_err() {
                    return self.fail_startup(io, ConnectionError::Startup("too many octets out of order"));
                }
                self.run_startup(io, turn);
            }
            // Acknowledged and dropped.
            Phase::Opening { .. } | Phase::Closing => self.discard(io, offset, &buf, frontier),
        }
    }

    /// The peer's FIN.
    pub(super) fn on_peer_closed(&mut self, io: &mut Io) {
        match &mut self.phase {
            Phase::Streaming(streaming) => {
                if streaming.failed {
                    // The Terminate is still on its way out; FIN follows it.
                } else if streaming.stream.may_end_here() && streaming.stream.may_send() {
                    self.drain(io);
                } else {
                    self.error.get_or_insert(ConnectionError::PeerClosed);
                    self.fail(io, Failure::Lost(MpaError::Closed));
                }
            }
            Phase::Closing => io.tcp.close(io.now, self.conn),
            Phase::Opening { .. }
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => self.fail_startup(io, ConnectionError::PeerClosed),
        }
    }

    /// TCP is over: the last that is heard of it.
    pub(super) fn on_closed(&mut self, io: &mut Io, reason: CloseReason) {
        if reason != CloseReason::Graceful {
            self.error.get_or_insert(ConnectionError::Tcp(reason));
        } else if !self.established {
            self.error.get_or_insert(ConnectionError::PeerClosed);
        }
        self.finish(io);
    }

    /// The deadline of the phase has passed.
    pub(super) fn on_deadline(&mut self, io: &mut Io) {
        self.deadline = None;
        match &self.phase {
            Phase::Closing => {
                self.error.get_or_insert(ConnectionError::CloseTimeout);
                io.tcp.abort(io.now, self.conn);
            }
            Phase::Streaming(streaming) if streaming.failed => self.abort(io),
            Phase::Streaming(streaming) if streaming.draining => self.await_answers(io),
            // The RTR did not come.
            Phase::Streaming(_)
            | Phase::Opening { .. }
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => self.fail_startup(io, ConnectionError::StartupTimeout),
        }
    }

    // ---- startup ----

    fn run_startup(&mut self, io: &mut Io, turn: &Turn) {
        loop {
            let step = match &mut self.phase {
                Phase::AwaitReply { initiator, inbox } => {
                    let Some((offset, octets)) = inbox.front() else { return };
                    initiator.receive(offset, octets).map(|step| {
                        io.tcp.release(self.conn, inbox.consume(step.consumed));
                        step.event.map(Startup::Reply)
                    })
                }
                Phase::AwaitRequest { responder, inbox } | Phase::Deciding { responder, inbox } => {
                    let Some((offset, octets)) = inbox.front() else { return };
                    responder.receive(offset, octets).map(|step| {
                        io.tcp.release(self.conn, inbox.consume(step.consumed));
                        step.event.map(Startup::Request)
                    })
                }
                Phase::Opening { .. } | Phase::Streaming(_) | Phase::Closing => return,
            };
            match step {
                Ok(None) => {}
                Ok(Some(Startup::Reply(event))) => return self.on_reply(io, turn, event),
                Ok(Some(Startup::Request(request))) => self.on_request(io, request),
                Err(error) => return self.fail_startup(io, startup_error(error)),
            }
        }
    }

    /// The peer's Request is complete: the user decides.
    fn on_request(&mut self, io: &mut Io, request: ConnectRequest) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::AwaitRequest { responder, inbox } = phase else { return };
        let listener = self.backlog_of.and_then(|port| io.listener(port));
        let (Some(listener), Some(info)) = (listener, io.tcp.info(self.conn)) else {
            return self.fail_startup(io, ConnectionError::Startup("nobody listens any more"));
        };
        self.phase = Phase::Deciding { responder, inbox };
        self.deadline = None;
        let id = listener.requested(&io.shared, self.conn, (info.local, info.remote));
        self.id = Some(id.clone());
        let kind = CmEventKind::ConnectRequest {
            private_data: request.private_data,
            remote: info.remote,
            peer_ird: request.peer.map(|depths| depths.ird),
            peer_ord: request.peer.map(|depths| depths.ord),
        };
        id.announce(Some(&listener), kind);
    }

    /// The user accepts.
    pub(super) fn accept(
        &mut self,
        io: &mut Io,
        turn: &Turn,
        id: CmId,
        qp: Arc<QpShared>,
        param: &ConnParam,
    ) {
        self.backlog_of = None;
        self.id = Some(id);
        self.qp = Some(qp);
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::Deciding { mut responder, inbox } = phase else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let deadline = io.now + duration(param.timeout);
        let accept = Accept {
            ird: Some(param.responder_resources),
            ord: Some(param.initiator_depth),
            markers: Some(param.markers),
            crc: Some(param.crc),
            private_data: &param.private_data,
        };
        let (negotiated, reply) = match responder.accept(accept, deadline) {
            Ok(answer) => answer,
            Err(_) => {
                return self
                    .fail_startup(io, ConnectionError::Startup("private data too long for this peer"));
            }
        };
        if !io.tcp.send(self.conn, &reply).is_ok_and(|sent| sent == reply.len()) {
            return self.fail_startup(io, ConnectionError::NoResources);
        }
        if matches!(negotiated.rtr, Rtr::Expect(_)) {
            // Announced when the RTR has come.
            self.arm(io, deadline);
            self.stream(&negotiated, false, Some(negotiated.clone()));
        } else {
            // Else the user is told that it has to wait for the peer's first message.
            let ready = !param.await_first_fpdu;
            self.stream(&negotiated, ready, None);
            self.announce_established(io, negotiated, ready);
        }
        self.receive_rest(io, turn, inbox);
    }

    /// The user rejects.
    pub(super) fn reject(&mut self, io: &mut Io, private_data: &[u8]) {
        self.backlog_of = None;
        if let Phase::Deciding { responder, .. } = &mut self.phase
            && let Ok(reply) = responder.reject(private_data, None)
            && io.tcp.send(self.conn, &reply).is_ok()
        {
            // The user has decided: nothing more is announced.
            self.id = None;
            self.close(io);
        } else {
            io.tcp.abort(io.now, self.conn);
        }
    }

    /// The Reply is complete.
    fn on_reply(&mut self, io: &mut Io, turn: &Turn, event: InitiatorEvent) {
        let phase = std::mem::replace(&mut self.phase, Phase::Closing);
        let Phase::AwaitReply { inbox, .. } = phase else { return };
        self.deadline = None;
        match event {
            InitiatorEvent::Accepted(negotiated) => {
                self.stream(&negotiated, true, None);
                self.announce_established(io, negotiated, true);
                self.receive_rest(io, turn, inbox);
            }
            InitiatorEvent::Rejected(Rejected { private_data, .. }) => {
                self.end_qp();
                self.announce(CmEventKind::Rejected { private_data });
                self.id = None;
                self.close(io);
            }
            InitiatorEvent::Unmet { error, negotiated } => {
                self.stream(&Negotiated { rtr: Rtr::None, ..negotiated }, true, None);
                let TerminateCode { layer, etype, code } = error.terminate_code();
                let known = TerminateError::from_codes(layer, etype, code);
                let terminate = Terminate::local(known.unwrap_or(TerminateError::MpaStartupCatastrophic));
                self.fail(io, Failure::Local(terminate));
            }
        }
    }

    /// Full Operation begins. `may_send`: without waiting for the peer's first FPDU. `announce`: what to tell the user
    /// when that has come.
    fn stream(&mut self, negotiated: &Negotiated, may_send: bool, announce: Option<Negotiated>) {
        let Some(qp) = self.qp.clone() else { return };
        let by = Accessor { pd: qp.pd.id(), stream: StreamId(u64::from(qp.num)) };
        qp.connected(negotiated.ord, negotiated.ird);
        let stream = Box::new(Stream::new(qp, by, negotiated, may_send));
        self.phase =
            Phase::Streaming(Streaming { stream, announce, draining: false, progress: 0, failed: false });
    }

    /// What came behind the startup frame are FPDUs; and there may be something to send.
    fn receive_rest(&mut self, io: &mut Io, turn: &Turn, inbox: Inbox) {
        for Rest { offset, buf, frontier, released } in inbox.into_rest() {
            io.tcp.release(self.conn, released);
            self.receive(io, turn, offset, buf, frontier);
        }
        self.activate(io);
    }

    fn announce_established(&mut self, io: &mut Io, negotiated: Negotiated, ready: bool) {
        self.established = true;
        io.counters.connections += 1;
        let Negotiated { tx_markers, rx_markers, crc, ird, ord, private_data, .. } = negotiated;
        self.announce(CmEventKind::Established {
            private_data,
            ord,
            ird,
            crc,
            markers: (tx_markers, rx_markers),
            ready,
        });
    }

    // ---- the stream ----

    fn receive(&mut self, io: &mut Io, turn: &Turn, offset: u64, buf: Mbuf, frontier: u64) {
        let Phase::Streaming(streaming) = &mut self.phase else {
            return self.discard(io, offset, &buf, frontier);
        };
        if streaming.failed {
            return self.discard(io, offset, &buf, frontier);
        }
        let result = streaming.stream.receive((offset, buf, frontier), &mut io.held, turn, &mut io.counters);
        let established = if streaming.stream.may_send() { streaming.announce.take() } else { None };
        if let Some(negotiated) = established {
            self.deadline = None;
            self.announce_established(io, negotiated, true);
        }
        match result {
            Ok(released) => {
                io.tcp.release(self.conn, released);
                if self.wants_to_send() {
                    self.activate(io);
                }
            }
            Err(failure) => self.fail(io, failure),
        }
    }

    /// Drops what nobody reads any more. Octets ahead of the frontier count in TCP's budget until they are released.
    fn discard(&self, io: &mut Io, offset: u64, buf: &Mbuf, frontier: u64) {
        if offset >= frontier {
            io.tcp.release(self.conn, buf.len());
        }
    }

    fn wants_to_send(&self) -> bool {
        matches!(&self.phase, Phase::Streaming(streaming) if streaming.draining || streaming.stream.wants_to_send())
    }

    /// Its queue pair was posted to, or TCP has room again.
    pub(super) fn activate(&mut self, io: &mut Io) {
        if !self.active {
            self.active = true;
            io.want_turn(self.conn);
        }
    }

    /// Its turn to send. Returns whether it wants another one.
    pub(super) fn transmit(&mut self, io: &mut Io, turn: &Turn) -> bool {
        if let Some(qp) = &self.qp {
            qp.answer();
            let asked = qp.take_asked();
            self.obey(io, asked);
        }
        let Phase::Streaming(streaming) = &mut self.phase else {
            self.flush_late();
            return false;
        };
        let Io { tcp, counters, config, .. } = io;
        match streaming.stream.transmit(tcp, self.conn, config.turn_octets, turn, counters) {
            Ok(Outcome::Idle) => {
                if streaming.draining {
                    self.drained(io);
                }
                false
            }
            Ok(Outcome::Full) => false,
            Ok(Outcome::More | Outcome::NoMbuf) => true,
            Ok(Outcome::Terminated) => {
                io.counters.tx_terminates += 1;
                self.close(io);
                false
            }
            Err(failure) => {
                self.fail(io, failure);
                self.wants_to_send()
            }
        }
    }

    /// What was posted after the stream had ended.
    fn flush_late(&self) {
        if let Some(qp) = &self.qp
            && matches!(qp.state(), QpState::Terminate | QpState::Error)
        {
            qp.flush();
        }
    }
}

/// What startup came to.
enum Startup {
    Reply(InitiatorEvent),
    Request(ConnectRequest),
}

fn startup_error(error: MpaError) -> ConnectionError {
    match error {
        MpaError::StartupTimeout => ConnectionError::StartupTimeout,
        MpaError::Closed => ConnectionError::PeerClosed,
        _ => ConnectionError::Startup("a frame that the documents forbid"),
    }
}

/// What a user's parameters mean for MPA.
fn mpa_config(param: &ConnParam) -> MpaConfig {
    let revision = if param.mpa_revision == 1 { Revision::One } else { Revision::Two };
    MpaConfig {
        markers: param.markers,
        crc: param.crc,
        revision,
        peer_to_peer: param.peer_to_peer && revision == Revision::Two,
        ird: param.responder_resources,
        ord: param.initiator_depth,
        max_ird: param.responder_resources.max(128),
        ..MpaConfig::default()
    }
}

/// The stack's own kind of duration.
fn duration(duration: Duration) -> tcp_lite::Duration {
    tcp_lite::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}
