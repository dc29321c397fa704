//! Streaming mode in front of MPA, and the switch (RFC 5044 sections 7.1, 7.1.3, 7.1.5).
//!
//! Nothing is lost at the switch: what the user has sent goes out in front of our startup frame, and what it
//! has not read belongs to the peer's. Positions of FPDUs and markers count from behind the startup frames.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use dp::Mbuf;
use tcp_lite::{ConnId, Instant, SendError};

use crate::memory::EpochGuard;
use crate::mpa::{HeldSlab, Initiator, MpaError, StartupFault};
use crate::queues::QpShared;
use crate::verbs::{CmEventKind, CmShared, ConnParam, ConnectionError, ResponderOptions, StreamShared};

use super::super::core::Io;
use super::startup::startup_error;
use super::{Connection, Inbox, Phase, Told, duration};

/// A connection in streaming mode.
#[derive(Default)]
pub(super) struct StreamingMode {
    inbox: Inbox,
    pub(super) peer_closed: bool,
    /// FIN follows what the user has sent.
    pub(super) closing: bool,
}

impl StreamingMode {
    pub(super) fn clear(&mut self, io: &mut Io) -> usize {
        self.inbox.clear(&mut io.held)
    }

    pub(super) fn give_up(
        &mut self,
        bytes: usize,
        held: &mut HeldSlab,
        may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        self.inbox.give_up(bytes, held, may);
    }

    pub(super) fn pinned_bytes(&self) -> usize {
        self.inbox.pinned_bytes()
    }
}

/// How sending went.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything is with TCP.
    All,
    /// TCP says when it has room.
    Later,
    /// No packet buffer: try again in the next turn.
    Again,
}

impl Connection {
    /// A connection of ours in streaming mode; its SYN is out.
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

    /// One that a listener accepted.
    pub(super) fn streaming(conn: ConnId, stream: Arc<StreamShared>) -> Self {
        let mut connection = Self::new(conn, Phase::StreamingMode(StreamingMode::default()), None);
        connection.stream = Some(stream);
        connection
    }

    /// A listener's connection begins in streaming mode: the user has it.
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

    /// Streaming mode begins, or is back after a reject.
    pub(super) fn enter_streaming_mode(&mut self, io: &mut Io, guard: &EpochGuard, inbox: Inbox) {
        self.deadline = None;
        self.phase = Phase::StreamingMode(StreamingMode { inbox, ..StreamingMode::default() });
        let addresses = self.id.as_ref().and(io.tcp.info(self.conn)).map(|info| info.remote);
        if let (Told::Nothing, Some(remote)) = (self.told, addresses)
            && self.qp.is_none()
        {
            self.announce_streaming(io, None, remote);
        }
        self.told = Told::Streaming;
        self.pump(io, guard);
        // What the user may have sent since a reject.
        self.activate(io);
    }

    fn announce_streaming(&mut self, io: &mut Io, listener: Option<&Arc<CmShared>>, remote: SocketAddr) {
        let (Some(id), Some(stream)) = (self.id.clone(), self.stream.clone()) else { return };
        self.told = Told::Streaming;
        id.set_streaming(&io.shared, &stream);
        self.watch_idle(io);
        id.announce(listener, CmEventKind::StreamEstablished { remote });
    }

    /// Bytes arrived in streaming mode. Those in order count in TCP's budget, too, until the user has taken
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
        match mode.inbox.push(&mut io.held, (offset, buf, frontier), true) {
            Ok(()) => self.pump(io, guard),
            Err(error) => self.fail_startup(io, error),
        }
    }

    /// The user has sent or received bytes.
    pub(in crate::engine) fn streamed(&mut self, io: &mut Io, guard: &EpochGuard) {
        if let Some(stream) = &self.stream {
            stream.answer();
        }
        if matches!(self.phase, Phase::StreamingMode(_)) {
            self.pump(io, guard);
            self.activate(io);
        }
    }

    /// Moves bytes to the user, as many as it has room for.
    pub(super) fn pump(&mut self, io: &mut Io, _guard: &EpochGuard) {
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, &self.stream) else { return };
        let before = mode.inbox.next();
        let released = mode.inbox.take(&mut io.held, |_, bytes| stream.fill(bytes));
        io.tcp.release(self.conn, released);
        let all = io.tcp.info(self.conn).is_none_or(|info| mode.inbox.next() >= info.frontier);
        if mode.peer_closed && all {
            stream.end();
        }
        let moved = mode.inbox.next() > before;
        if stream.take_readable() {
            self.announce(CmEventKind::StreamReadable);
        }
        if moved {
            self.touch(io);
        }
    }

    /// Sends bytes of startup, behind those of the user.
    pub(super) fn say(&mut self, io: &mut Io, bytes: &[u8]) {
        self.outbox.extend(bytes);
        self.fronted = true;
        if self.send_front(io) == Sent::Again {
            self.activate(io);
        }
    }

    /// Hands to TCP what goes in front of FPDUs.
    pub(super) fn send_front(&mut self, io: &mut Io) -> Sent {
        let mut result = Sent::All;
        let (conn, now) = (self.conn, io.now);
        let tcp = &mut io.tcp;
        let mut send = |bytes: &[u8]| match tcp.send(now, conn, bytes) {
            Ok(sent) => {
                if sent < bytes.len() {
                    result = Sent::Later;
                }
                sent
            }
            Err(SendError::NoMbuf) => {
                result = Sent::Again;
                0
            }
            Err(SendError::BufferFull | SendError::Closed) => {
                result = Sent::Later;
                0
            }
        };
        let mut writable = self.stream.as_ref().is_some_and(|stream| stream.drain(&mut send));
        if self.stream.as_ref().is_none_or(|stream| stream.is_sent()) {
            while !self.outbox.is_empty() {
                let sent = send(self.outbox.as_slices().0);
                self.outbox.drain(..sent);
                if sent == 0 {
                    break;
                }
            }
        }
        if let (Phase::StreamingMode(_), true, Some(stream)) =
            (&self.phase, self.outbox.is_empty(), &self.stream)
        {
            stream.reopen();
            writable |= stream.drain(&mut send);
        }
        if result == Sent::Later {
            // What was cut off may have met an empty pool rather than a full buffer: that tells nobody.
            let blocked = matches!(
                io.tcp.sender(io.now, conn).and_then(|mut sender| sender.segment().map(drop)),
                Err(SendError::BufferFull | SendError::Closed)
            );
            result = if blocked { Sent::Later } else { Sent::Again };
        }
        self.fronted = result != Sent::All;
        if writable && matches!(self.phase, Phase::StreamingMode(_)) {
            self.announce(CmEventKind::StreamWritable);
        }
        result
    }

    /// The user closes in streaming mode: FIN follows what it has sent.
    pub(super) fn close_streaming_mode(&mut self, io: &mut Io) {
        if let Phase::StreamingMode(mode) = &mut self.phase {
            mode.closing = true;
        }
        self.deadline = Some(io.now + duration(io.config.close_timeout));
        self.activate(io);
    }

    /// FIN behind what TCP has not taken yet.
    pub(super) fn close_behind(&mut self, io: &mut Io) {
        if !self.fronted {
            return self.close(io);
        }
        self.phase = Phase::StreamingMode(StreamingMode { closing: true, ..StreamingMode::default() });
        self.deadline = Some(io.now + duration(io.config.close_timeout));
        self.activate(io);
    }

    /// A turn to send in streaming mode or startup. Returns whether it wants another one.
    pub(super) fn transmit_front(&mut self, io: &mut Io) -> bool {
        let sent = self.send_front(io);
        if let Phase::StreamingMode(mode) = &self.phase {
            self.touch(io);
            if mode.closing && sent == Sent::All {
                self.close(io);
            }
        }
        io.no_mbuf |= sent == Sent::Again;
        sent == Sent::Again
    }

    /// Our user starts MPA as initiator.
    pub(in crate::engine) fn start_initiator(
        &mut self,
        io: &mut Io,
        qp: Arc<QpShared>,
        param: Box<ConnParam>,
    ) {
        self.qp = Some(qp);
        self.told = Told::Nothing;
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, &self.stream) else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let inbox = std::mem::take(&mut mode.inbox);
        let stray = !stream.take_unread().is_empty();
        let deadline = io.now + duration(param.timeout);
        let started = Initiator::start(param.mpa_config(io.config.crc), &param.private_data, deadline);
        self.idle_deadline = None;
        self.param = Some(param);
        // Parameters were checked by the call.
        let Ok((initiator, request)) = started else {
            return self.fail_startup(io, ConnectionError::NoResources);
        };
        self.phase = Phase::AwaitReply { initiator: Box::new(initiator), inbox };
        if stray {
            // The peer does not know that it is to respond.
            return self.fail_startup(io, ConnectionError::Startup(StartupFault::EarlyBytes));
        }
        self.deadline = Some(deadline);
        self.say(io, &request);
    }

    /// Our user starts MPA as responder. What it has not read is the beginning of the Request.
    pub(in crate::engine) fn start_responder(
        &mut self,
        io: &mut Io,
        guard: &EpochGuard,
        options: Box<ResponderOptions>,
    ) {
        self.told = Told::Nothing;
        self.idle_deadline = None;
        let (Phase::StreamingMode(mode), Some(stream)) = (&mut self.phase, self.stream.clone()) else {
            return self.fail_startup(io, ConnectionError::PeerClosed);
        };
        let inbox = std::mem::take(&mut mode.inbox);
        let next = inbox.next();
        let Ok((phase, deadline)) = Self::await_request(options, io.now, inbox) else {
            return self.fail_startup(io, ConnectionError::NoResources);
        };
        self.phase = phase;
        self.deadline = Some(deadline);
        // The last message of the user goes out now.
        self.say(io, &[]);
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
