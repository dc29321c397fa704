//! Streaming mode before MPA, and the switch to MPA (RFC 5044 sections 7.1, 7.1.3, 7.1.5).
//!
//! RFC 5044 section 7.1.5 (MPA-222): both modes use one TCP connection, so TCP recovers loss and reordering
//! during the switch as at any other time.
//!
//! The switch loses no byte. Bytes that the user has sent go before our startup frame. Bytes that the user
//! has not read belong to the peer's startup frame. Positions of FPDUs and markers count from the end of the
//! startup frames.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use dp::Mbuf;
use dp::invariant::Check;
use tcp_lite::{ConnId, Instant, SendError};

use crate::memory::EpochGuard;
use crate::mpa::{HeldSlab, Initiator, MpaError, StartupFault};
use crate::queues::QpShared;
use crate::verbs::{CmEventKind, CmShared, ConnParam, ConnectionError, ResponderOptions, StreamShared};

use super::super::core::Io;
use super::startup::startup_error;
use super::{Announced, Connection, Phase, Reassembly, duration};

/// A connection in streaming mode.
#[derive(Default)]
pub(super) struct StreamingMode {
    reassembly: Reassembly,
    pub(super) peer_closed: bool,
    /// FIN follows the bytes that the user has sent.
    pub(super) closing: bool,
}

impl StreamingMode {
    pub(super) fn clear(&mut self, io: &mut Io) -> usize {
        self.reassembly.clear(&mut io.held)
    }

    pub(super) fn give_up(
        &mut self,
        bytes: usize,
        held: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.reassembly.give_up(bytes, held, may);
    }

    pub(super) fn pinned_bytes(&self) -> usize {
        self.reassembly.pinned_bytes()
    }

    /// As [`Reassembly::check`].
    pub(super) fn check(&self, slab: &HeldSlab) -> Check<usize> {
        self.reassembly.check(slab)
    }
}

/// The result of sending.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// TCP has taken everything.
    All,
    /// TCP's send buffer is full. TCP says when there is space.
    Blocked,
    /// No packet buffer is free: try again in the next poll.
    NoMbuf,
}

impl Connection {
    /// A connection that this end opens in streaming mode; its SYN is sent.
    pub(in crate::engine) fn connecting_stream(
        conn: ConnId,
        id: Arc<CmShared>,
        stream: Arc<StreamShared>,
        param: Box<ConnParam>,
        now: Instant,
    ) -> Self {
        let deadline = now + duration(param.timeout);
        let mut connection = Self::new(conn, Phase::Opening { start: None }, Some(deadline));
        id.set_conn(conn);
        connection.id = Some(id);
        connection.stream = Some(stream);
        connection.param = Some(param);
        connection
    }

    /// A connection that a listener accepted.
    pub(super) fn streaming(conn: ConnId, stream: Arc<StreamShared>) -> Self {
        let mut connection = Self::new(conn, Phase::StreamingMode(StreamingMode::default()), None);
        connection.stream = Some(stream);
        connection
    }

    /// Announces a connection of a listener to the user, if it begins in streaming mode.
    pub(in crate::engine) fn announce_in_streaming_mode(&mut self, io: &mut Io) {
        let (Some(origin), Some(info)) = (&mut self.origin, io.tcp.info(self.conn)) else { return };
        if self.stream.is_none() {
            return;
        }
        origin.admitted.decide();
        let listener = Arc::clone(&origin.id);
        let id = listener.child(self.conn, (info.local, info.remote));
        self.id = Some(id);
        self.announce_streaming(io, Some(&listener), info.remote);
    }

    /// Enters streaming mode, at first or again after a reject.
    pub(super) fn enter_streaming_mode(&mut self, io: &mut Io, guard: &EpochGuard, reassembly: Reassembly) {
        self.deadline = None;
        self.phase = Phase::StreamingMode(StreamingMode { reassembly, ..StreamingMode::default() });
        let addresses = self.id.as_ref().and(io.tcp.info(self.conn)).map(|info| info.remote);
        if let (Announced::Nothing, Some(remote)) = (self.announced, addresses)
            && self.qp.is_none()
        {
            self.announce_streaming(io, None, remote);
        }
        self.announced = Announced::Streaming;
        self.deliver_to_user(io, guard);
        // The user may have sent bytes since the reject.
        self.activate(io);
    }

    fn announce_streaming(&mut self, io: &mut Io, listener: Option<&Arc<CmShared>>, remote: SocketAddr) {
        let (Some(id), Some(stream)) = (self.id.clone(), self.stream.clone()) else { return };
        self.announced = Announced::Streaming;
        id.set_streaming(&io.shared, &stream);
        self.watch_idle(io);
        id.announce(listener, CmEventKind::StreamEstablished { remote });
    }

    /// Bytes arrived in streaming mode. TCP's budget counts bytes in order as well, until the user has read
    /// them.
    pub(super) fn receive_in_streaming_mode(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard,
        bytes: (u64, Mbuf, u64),
    ) {
        let Phase::StreamingMode(mode) = &mut self.phase else { return };
        let (offset, buf, frontier) = bytes;
        if offset < frontier {
            io.tcp.hold(self.conn, buf.len());
        }
        match mode.reassembly.push(&mut io.held, (offset, buf, frontier), true) {
            Ok(()) => self.deliver_to_user(io, guard),
            Err(error) => self.fail_startup(io, error),
        }
    }

    /// The user has sent or read bytes.
    pub(in crate::engine) fn streamed(&mut self, io: &mut Io, guard: &EpochGuard) {
        if let Some(stream) = &self.stream {
            stream.answer();
        }
        if matches!(self.phase, Phase::StreamingMode(_)) {
            self.deliver_to_user(io, guard);
            self.activate(io);
        }
    }

    /// Moves bytes to the user's buffer, as many as fit.
    pub(super) fn deliver_to_user(&mut self, io: &mut Io, _guard: &EpochGuard) {
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, &self.stream) else { return };
        let before = mode.reassembly.next();
        let released = mode.reassembly.take(&mut io.held, |_, bytes| stream.fill(bytes));
        io.tcp.release(self.conn, released);
        let all = io.tcp.info(self.conn).is_none_or(|info| mode.reassembly.next() >= info.frontier);
        if mode.peer_closed && all {
            stream.end();
        }
        let moved = mode.reassembly.next() > before;
        if stream.take_readable() {
            self.announce(CmEventKind::StreamReadable);
        }
        if moved {
            self.note_progress(io);
        }
    }

    /// Sends bytes of a startup frame, after those of the user.
    pub(super) fn send_startup_bytes(&mut self, io: &mut Io, bytes: &[u8]) {
        self.startup_tx.extend(bytes);
        self.has_pre_fpdu_bytes = true;
        if self.send_pre_fpdu_bytes(io) == Sent::NoMbuf {
            self.activate(io);
        }
    }

    /// Hands to TCP the bytes that go before the first FPDU.
    pub(super) fn send_pre_fpdu_bytes(&mut self, io: &mut Io) -> Sent {
        let mut result = Sent::All;
        let (conn, now) = (self.conn, io.now);
        let tcp = &mut io.tcp;
        let mut send = |bytes: &[u8]| match tcp.send(now, conn, bytes) {
            Ok(sent) => {
                if sent < bytes.len() {
                    result = Sent::Blocked;
                }
                sent
            }
            Err(SendError::NoMbuf) => {
                result = Sent::NoMbuf;
                0
            }
            Err(SendError::BufferFull | SendError::Closed) => {
                result = Sent::Blocked;
                0
            }
        };
        let mut writable = self.stream.as_ref().is_some_and(|stream| stream.drain(&mut send));
        if self.stream.as_ref().is_none_or(|stream| stream.is_sent()) {
            while !self.startup_tx.is_empty() {
                let sent = send(self.startup_tx.as_slices().0);
                self.startup_tx.drain(..sent);
                if sent == 0 {
                    break;
                }
            }
        }
        if let (Phase::StreamingMode(_), true, Some(stream)) =
            (&self.phase, self.startup_tx.is_empty(), &self.stream)
        {
            stream.reopen();
            writable |= stream.drain(&mut send);
        }
        if result == Sent::Blocked {
            // A short write can mean that the send buffer is full or that the packet pool is empty. TCP
            // reports only when the send buffer has space again.
            let blocked = matches!(
                io.tcp.sender(io.now, conn).and_then(|mut sender| sender.segment().map(drop)),
                Err(SendError::BufferFull | SendError::Closed)
            );
            result = if blocked { Sent::Blocked } else { Sent::NoMbuf };
        }
        self.has_pre_fpdu_bytes = result != Sent::All;
        if writable && matches!(self.phase, Phase::StreamingMode(_)) {
            self.announce(CmEventKind::StreamWritable);
        }
        result
    }

    /// The user closes in streaming mode: FIN follows the bytes that it has sent.
    pub(super) fn close_streaming_mode(&mut self, io: &mut Io) {
        if let Phase::StreamingMode(mode) = &mut self.phase {
            mode.closing = true;
        }
        self.deadline = Some(io.now + duration(io.config.close_timeout));
        self.activate(io);
    }

    /// Sends FIN after the bytes that TCP has not taken yet.
    pub(super) fn close_when_sent(&mut self, io: &mut Io) {
        if !self.has_pre_fpdu_bytes {
            return self.close(io);
        }
        self.phase = Phase::StreamingMode(StreamingMode { closing: true, ..StreamingMode::default() });
        self.deadline = Some(io.now + duration(io.config.close_timeout));
        self.activate(io);
    }

    /// Sends in streaming mode or startup. Returns whether it has to try again in the next poll.
    pub(super) fn transmit_pre_fpdu_bytes(&mut self, io: &mut Io) -> bool {
        let sent = self.send_pre_fpdu_bytes(io);
        if let Phase::StreamingMode(mode) = &self.phase {
            self.note_progress(io);
            if mode.closing && sent == Sent::All {
                self.close(io);
            }
        }
        io.no_mbuf |= sent == Sent::NoMbuf;
        sent == Sent::NoMbuf
    }

    /// The user starts MPA as initiator.
    pub(in crate::engine) fn start_initiator(
        &mut self,
        io: &mut Io,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
    ) {
        self.qp = Some(qp);
        self.announced = Announced::Nothing;
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, &self.stream) else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let reassembly = std::mem::take(&mut mode.reassembly);
        let stray = !stream.take_unread().is_empty();
        let deadline = io.now + duration(param.timeout);
        let started = Initiator::start(param.mpa_config(io.config.crc), &param.private_data, deadline);
        self.idle_deadline = None;
        self.param = Some(param);
        // The call of the user has checked the parameters.
        let Ok((initiator, request)) = started else {
            return self.fail_startup(io, ConnectionError::NoResources);
        };
        self.phase = Phase::AwaitReply { initiator: Box::new(initiator), reassembly };
        if stray {
            // RFC 5044 section 7.1 (MPA-134): both ends start MPA at the same byte. A byte before the Reply
            // is not of MPA: the peer does not know that it is the responder.
            return self.fail_startup(io, ConnectionError::Startup(StartupFault::EarlyBytes));
        }
        self.deadline = Some(deadline);
        self.send_startup_bytes(io, &request);
    }

    /// The user starts MPA as responder. The bytes that it has not read are the beginning of the Request.
    pub(in crate::engine) fn start_responder(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard,
        options: Box<ResponderOptions>,
    ) {
        self.announced = Announced::Nothing;
        self.idle_deadline = None;
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, self.stream.clone()) else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let reassembly = std::mem::take(&mut mode.reassembly);
        let next = reassembly.next();
        let Ok((phase, deadline)) = Self::await_request(options, io.now, reassembly) else {
            return self.fail_startup(io, ConnectionError::NoResources);
        };
        self.phase = phase;
        self.deadline = Some(deadline);
        // Sends the last bytes of the user now.
        self.send_startup_bytes(io, &[]);
        // RFC 5044 section 7.1 (MPA-134): MPA starts at the first byte that the user has not read.
        let unread: Vec<u8> = stream.take_unread().into();
        let offset = next - unread.len() as u64;
        match self.feed_request(offset, &unread) {
            Ok(None) => self.run_startup(io, guard),
            Ok(Some(request)) => {
                self.on_request(io, guard, request);
                self.run_startup(io, guard);
            }
            Err(error) => self.fail_startup(io, startup_error(error)),
        }
    }

    fn feed_request(
        &mut self,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Option<crate::mpa::ConnectRequest>, MpaError> {
        match &mut self.phase {
            Phase::AwaitRequest { responder, .. } if !bytes.is_empty() => {
                responder.receive(offset, bytes).map(|step| step.event)
            }
            _ => Ok(None),
        }
    }
}
