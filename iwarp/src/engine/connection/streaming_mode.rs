//! Streaming mode before MPA, and the switch to MPA (RFC 5044 sections 7.1, 7.1.3, 7.1.5).
//!
//! The switch loses no byte. Bytes that the user has sent go before our startup frame. Bytes that the user
//! has not read belong to the peer's startup frame. Positions of FPDUs and markers count from the end of the
//! startup frames.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dp::Mbuf;
use dp::invariant::Check;
use tcp_lite::CloseReason;

use crate::memory::EpochGuard;
use crate::mpa::{ConnectRequest, HeldSlab, StartupFault};
use crate::queues::QpShared;
use crate::verbs::{CmEventKind, CmShared, ConnParam, ConnectionError, PlainBytes, ResponderOptions};

use super::super::state::EngineState;
use super::super::trace;
use super::pre_fpdu::{Progress, Sent};
use super::report::{Announced, User};
use super::{Connection, Initiating, Phase, Reassembly, duration};

/// A connection in streaming mode.
pub(super) struct StreamingMode {
    /// The bytes from and to the user.
    pub(super) plain: Arc<PlainBytes>,
    reassembly: Reassembly,
    pub(super) peer_closed: bool,
    /// FIN follows the bytes that the user has sent. So many bytes had the peer acknowledged when the
    /// deadline was set.
    pub(super) closing: Option<u64>,
}

impl StreamingMode {
    pub(super) fn new(plain: Arc<PlainBytes>, reassembly: Reassembly) -> Self {
        Self { plain, reassembly, peer_closed: false, closing: None }
    }

    pub(super) fn clear(&mut self, state: &mut EngineState) -> usize {
        self.reassembly.clear(&mut state.held)
    }

    pub(super) fn give_up(
        &mut self,
        bytes: usize,
        held: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.reassembly.give_up(bytes, held, may);
    }

    /// Why MPA cannot start any more, if so.
    fn prevents_start(&self) -> Option<ConnectionError> {
        if self.closing.is_some() {
            // Another thread of the user has closed the connection at the same time.
            return Some(ConnectionError::Tcp(CloseReason::Aborted));
        }
        // No Reply and no FPDU can follow the peer's FIN. TCP reports a FIN only once, so nothing would end
        // a startup that begins after it.
        self.peer_closed.then_some(ConnectionError::PeerClosed)
    }

    pub(super) fn pinned_bytes(&self) -> usize {
        self.reassembly.pinned_bytes()
    }

    /// As [`Reassembly::check`].
    pub(super) fn check(&self, slab: &HeldSlab) -> Check<usize> {
        self.reassembly.check(slab)
    }
}

impl Connection {
    /// Announces a connection of a listener to the user, if it begins in streaming mode.
    pub(in crate::engine) fn announce_accepted(&mut self, state: &mut EngineState) {
        let Phase::StreamingMode(mode) = &self.phase else { return };
        let plain = Arc::clone(&mode.plain);
        let (Some(admitted), Some(info)) = (&mut self.admitted, state.tcp.info(self.conn)) else { return };
        admitted.decide();
        let listener = Arc::clone(&admitted.id);
        let id = listener.child(self.conn, (info.local, info.remote));
        self.user = User::Known(id);
        self.announce_streaming(state, &plain, Some(&listener), info.remote, None);
    }

    /// Our SYN was answered: streaming mode begins.
    pub(super) fn begin_streaming_mode(
        &mut self,
        state: &mut EngineState,
        plain: Arc<PlainBytes>,
        idle_timeout: Option<Duration>,
    ) {
        if let Some(info) = state.tcp.info(self.conn) {
            self.announce_streaming(state, &plain, None, info.remote, idle_timeout);
        }
        self.enter_streaming_mode(state, plain, Reassembly::default());
    }

    /// Enters streaming mode, at first or again after a reject.
    pub(super) fn enter_streaming_mode(
        &mut self,
        state: &mut EngineState,
        plain: Arc<PlainBytes>,
        reassembly: Reassembly,
    ) {
        self.timers.clear_deadline();
        self.phase = Phase::StreamingMode(Box::new(StreamingMode::new(plain, reassembly)));
        self.report.announced = Announced::Streaming;
        // The startup frames were progress.
        self.note_progress(state);
        self.timers.rewatch_idle(state.now);
        self.deliver_to_user(state);
        // The user may have sent bytes since the reject.
        self.activate(state);
    }

    fn announce_streaming(
        &mut self,
        state: &mut EngineState,
        plain: &Arc<PlainBytes>,
        listener: Option<&Arc<CmShared>>,
        remote: SocketAddr,
        idle_timeout: Option<Duration>,
    ) {
        let Some(id) = self.user.id().cloned() else { return };
        self.report.announced = Announced::Streaming;
        id.set_streaming(&state.handle, plain);
        self.set_established(state, idle_timeout);
        id.announce(listener, CmEventKind::StreamEstablished { remote });
    }

    /// Bytes arrived in streaming mode. TCP's budget counts bytes in order as well, until the user has read
    /// them.
    pub(super) fn receive_in_streaming_mode(&mut self, state: &mut EngineState, bytes: (u64, Mbuf, u64)) {
        let Phase::StreamingMode(mode) = &mut self.phase else { return };
        let (offset, buf, frontier) = bytes;
        if offset < frontier {
            state.tcp.hold(self.conn, buf.len());
        }
        match mode.reassembly.push(&mut state.held, (offset, buf, frontier), true) {
            Ok(()) => self.deliver_to_user(state),
            Err(error) => self.fail_startup(state, error),
        }
    }

    /// The user has sent or read bytes.
    pub(in crate::engine) fn on_plain_bytes(&mut self, state: &mut EngineState) {
        if let Some(plain) = &self.plain {
            plain.answer();
        }
        if matches!(self.phase, Phase::StreamingMode(_)) {
            self.deliver_to_user(state);
            self.activate(state);
        }
    }

    /// Moves bytes to the user's buffer, as many as fit.
    pub(super) fn deliver_to_user(&mut self, state: &mut EngineState) {
        let Phase::StreamingMode(mode) = &mut self.phase else { return };
        let plain = &mode.plain;
        let before = mode.reassembly.next();
        let released = mode.reassembly.take(&mut state.held, |_, bytes| plain.fill(bytes));
        state.tcp.release(self.conn, released);
        let all = state.tcp.info(self.conn).is_none_or(|info| mode.reassembly.next() >= info.frontier);
        if mode.peer_closed && all {
            plain.set_ended();
        }
        let moved = mode.reassembly.next() > before;
        if plain.take_readable() {
            self.announce(CmEventKind::StreamReadable);
        }
        if moved {
            self.note_progress(state);
        }
    }

    /// Sends a startup frame, behind the bytes that are queued already.
    pub(super) fn send_frame(&mut self, state: &mut EngineState, bytes: &[u8]) {
        self.pre_fpdu.push_frame(bytes);
        self.begin_to_send(state);
    }

    /// Sends what TCP takes now of the bytes before the first FPDU.
    fn begin_to_send(&mut self, state: &mut EngineState) {
        if self.send_pre_fpdu_bytes(state) == Sent::NoMbuf {
            self.activate(state);
        }
    }

    /// Hands to TCP the bytes that go before the first FPDU.
    fn send_pre_fpdu_bytes(&mut self, state: &mut EngineState) -> Sent {
        let plain = match &self.phase {
            Phase::StreamingMode(mode) => Some(&*mode.plain),
            _ => None,
        };
        let Progress { result, some, writable } = self.pre_fpdu.send(state, self.conn, plain);
        if some {
            self.note_progress(state);
        }
        if writable {
            self.announce(CmEventKind::StreamWritable);
        }
        result
    }

    /// The user closes in streaming mode: FIN follows the bytes that it has sent.
    pub(super) fn close_streaming_mode(&mut self, state: &mut EngineState) {
        self.set_close_deadline(state);
        self.activate(state);
    }

    /// Sends what goes before the first FPDU.
    pub(super) fn transmit_pre_fpdu_bytes(&mut self, state: &mut EngineState) -> Sent {
        let sent = self.send_pre_fpdu_bytes(state);
        match &self.phase {
            Phase::StreamingMode(mode) if mode.closing.is_some() && sent == Sent::All => self.close(state),
            Phase::Ended(_) if sent == Sent::All => state.tcp.close(state.now, self.conn),
            _ => {}
        }
        sent
    }

    /// The user starts MPA as initiator, after position `after` of its stream.
    pub(in crate::engine) fn start_initiator(
        &mut self,
        state: &mut EngineState,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
        after: u64,
    ) {
        self.report.announced = Announced::Nothing;
        let Phase::StreamingMode(mode) = &mut self.phase else {
            return self.fail_startup_of(state, qp, ConnectionError::PeerClosed);
        };
        if let Some(error) = mode.prevents_start() {
            return self.fail_startup_of(state, qp, error);
        }
        let deadline = state.now + duration(param.timeout);
        self.timers.unwatch_idle();
        let mark = state.tcp.sequence_mark(self.conn).unwrap_or_default();
        let (initiating, request) = match Initiating::new((qp, param), state.config.crc, mark, deadline) {
            Ok(started) => started,
            Err(qp) => return self.fail_startup_of(state, qp, ConnectionError::NoResources),
        };
        let (plain, reassembly) = (Arc::clone(&mode.plain), Box::new(std::mem::take(&mut mode.reassembly)));
        self.apply_keepalive(state, initiating.param.keepalive);
        trace::request_sent(state, self.conn, &initiating.param);
        // RFC 5044 section 7.1.5 (MPA-222): the phase changes, and TCP's connection stays. It recovers loss
        // and reordering during the switch as at any other time.
        self.phase = Phase::AwaitReply { initiating: Box::new(initiating), reassembly };
        if !plain.take_unread().is_empty() {
            // RFC 5044 section 7.1 (MPA-134): both ends start MPA at the same byte. A byte before the Reply
            // is not of MPA: the peer does not know that it is the responder.
            return self.fail_startup(state, ConnectionError::Startup(StartupFault::EarlyBytes));
        }
        self.timers.set_deadline(deadline);
        self.pre_fpdu.push_user_bytes(plain, after);
        self.send_frame(state, &request);
    }

    /// The user starts MPA as responder, after position `after` of its stream. The bytes that it has not read
    /// are the beginning of the Request.
    pub(in crate::engine) fn start_responder(
        &mut self,
        state: &mut EngineState,
        guard: &EpochGuard<'_>,
        options: Box<ResponderOptions>,
        after: u64,
    ) {
        self.report.announced = Announced::Nothing;
        self.timers.unwatch_idle();
        let Phase::StreamingMode(mode) = &mut self.phase else {
            return self.fail_startup(state, ConnectionError::PeerClosed);
        };
        if let Some(error) = mode.prevents_start() {
            return self.fail_startup(state, error);
        }
        let Some((responder, deadline)) = Self::make_responder(&options, state.now) else {
            return self.fail_startup(state, ConnectionError::NoResources);
        };
        let (plain, reassembly) = (Arc::clone(&mode.plain), Box::new(std::mem::take(&mut mode.reassembly)));
        let next = reassembly.next();
        // RFC 5044 section 7.1.5 (MPA-222): as for the initiator, TCP's connection stays.
        self.phase = Phase::AwaitRequest { responder, options, reassembly };
        self.timers.set_deadline(deadline);
        // Sends the last bytes of the user now.
        self.pre_fpdu.push_user_bytes(Arc::clone(&plain), after);
        self.begin_to_send(state);
        // RFC 5044 section 7.1 (MPA-134): MPA starts at the first byte that the user has not read.
        let unread: Vec<u8> = plain.take_unread().into();
        let offset = next - unread.len() as u64;
        match self.feed_request(offset, &unread) {
            Ok(None) => self.run_startup(state, guard),
            Ok(Some(request)) => {
                self.on_request(state, request);
                self.run_startup(state, guard);
            }
            Err(fault) => self.fail_startup(state, ConnectionError::Startup(fault)),
        }
    }

    fn feed_request(&mut self, offset: u64, bytes: &[u8]) -> Result<Option<ConnectRequest>, StartupFault> {
        match &mut self.phase {
            Phase::AwaitRequest { responder, .. } if !bytes.is_empty() => {
                responder.receive(offset, bytes).map(|step| step.event)
            }
            _ => Ok(None),
        }
    }
}
