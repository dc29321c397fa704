//! How a connection ends: by its users, by a failure of the stream, by TCP (RFC 5040 section 7; RFC 5041
//! section 7).

use std::sync::Arc;

use tcp_lite::CloseReason;

use crate::queues::Ask;
use crate::rdmap::stream::Failure;
use crate::rdmap::{Terminate, TerminateError};
use crate::verbs::{CmEventKind, ConnectionError, QpState, TerminateOrigin, TerminateReport};

use super::super::core::Io;
use super::{Connection, Fallback, ListenerOrigin, Phase, Told, duration};

impl Connection {
    /// The user wants a graceful close.
    pub(in crate::engine) fn disconnect(&mut self, io: &mut Io) {
        match &self.phase {
            _ if self.is_ending() => {}
            Phase::FullOperation(full) if full.stream.may_send() => self.drain(io),
            Phase::StreamingMode(_) => self.close_streaming_mode(io),
            // Nothing may be sent yet, so nothing can be drained.
            _ => self.abort(io),
        }
    }

    /// Whether nothing of the queue pair is needed any more: a FIN or a Terminate is on its way, with a
    /// deadline.
    pub(super) fn is_ending(&self) -> bool {
        match &self.phase {
            Phase::FullOperation(full) => full.failed,
            Phase::Closing => true,
            Phase::StreamingMode(mode) => mode.closing,
            Phase::Opening { .. }
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => false,
        }
    }

    /// Sends what is posted, waits for the answers to Reads, then FIN. There is no deadline while something
    /// is being sent: TCP has its own for a peer that does not take it.
    pub(super) fn drain(&mut self, io: &mut Io) {
        if let Phase::FullOperation(full) = &mut self.phase {
            full.draining = true;
        }
        if let Some(qp) = &self.qp {
            qp.set_state(QpState::Closing);
        }
        self.activate(io);
    }

    /// Nothing is left to send: FIN, or a wait for the answers to Reads. A peer that has closed, or does not
    /// mean to, gives none.
    pub(super) fn drained(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if full.stream.is_drained() {
            self.close(io);
        } else if self.deadline.is_none() {
            full.progress = full.stream.progress();
            self.deadline = Some(io.now + duration(io.config.close_timeout));
        }
    }

    /// The time for an answer to a Read has passed: was there one?
    pub(super) fn await_answers(&mut self, io: &mut Io) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if !full.stream.awaits_answers() {
            return;
        }
        if full.progress == full.stream.progress() {
            self.error.get_or_insert(ConnectionError::CloseTimeout);
            return self.abort(io);
        }
        self.drained(io);
    }

    /// What the queue pair's user wants, or a completion queue that has lost a completion.
    pub(super) fn obey(&mut self, io: &mut Io, asked: Ask) {
        match asked {
            Ask::Nothing => {}
            Ask::Abort => self.abort(io),
            _ if self.is_ending() => {}
            Ask::Close => self.disconnect(io),
            Ask::Terminate if matches!(self.phase, Phase::FullOperation(_)) => {
                self.fail(io, Failure::Local(Terminate::local(TerminateError::LocalCatastrophic)));
            }
            Ask::Terminate | Ask::Abandon => self.abort(io),
        }
    }

    /// The user wants an end at once.
    pub(in crate::engine) fn abort(&mut self, io: &mut Io) {
        self.error.get_or_insert(ConnectionError::Tcp(CloseReason::Aborted));
        io.tcp.abort(io.now, self.conn);
    }

    /// The stream has failed: tell the peer where that is possible, flush, close.
    pub(super) fn fail(&mut self, io: &mut Io, failure: Failure) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        let error = failure.stream_error();
        self.error.get_or_insert(ConnectionError::Stream(error));
        if std::mem::replace(&mut full.failed, true) {
            return;
        }
        if failure.is_peers() {
            self.blame(io);
        }
        let Phase::FullOperation(full) = &mut self.phase else { return };
        self.terminate = report(&failure, full.stream.may_send());
        io.tcp.release(self.conn, full.stream.drop_held(&mut io.held));
        if let Some(qp) = &self.qp {
            let oldest = qp.fail(failure.origin(), error, self.terminate.clone());
            full.stream.flush(&mut io.records, oldest, Some(error));
            qp.flush();
        }
        match failure {
            Failure::Local(terminate) | Failure::User(terminate) if full.stream.may_send() => {
                full.stream.terminate(&terminate);
                self.deadline = Some(io.now + duration(io.config.close_timeout));
                self.activate(io);
            }
            Failure::Peer(_) => {
                io.counters.rx_terminates += 1;
                self.close(io);
            }
            Failure::Local(_) | Failure::User(_) | Failure::Lost(_) => io.tcp.abort(io.now, self.conn),
        }
    }

    /// Startup has failed: close at once, and say why.
    pub(super) fn fail_startup(&mut self, io: &mut Io, error: ConnectionError) {
        self.error.get_or_insert(error);
        if matches!(error, ConnectionError::StartupTimeout | ConnectionError::Startup(_)) {
            self.blame(io);
        }
        self.end_stream(io);
        io.tcp.abort(io.now, self.conn);
    }

    /// It comes to nothing by the peer's fault, which its listener may hold against the address.
    fn blame(&self, io: &mut Io) {
        if let Some(ListenerOrigin { id, admitted }) = &self.origin {
            io.blame(id, admitted.address());
        }
    }

    /// Sends FIN; what still comes is dropped.
    pub(super) fn close(&mut self, io: &mut Io) {
        self.end_stream(io);
        self.deadline = Some(io.now + duration(io.config.close_timeout));
        io.tcp.close(io.now, self.conn);
    }

    /// TCP is gone: flush what is left and tell the user, once.
    pub(in crate::engine) fn finish(&mut self, io: &mut Io) {
        self.tell_lost();
        self.end_stream(io);
        self.gone = true;
        if self.fallback == Fallback::Due {
            return;
        }
        self.end_qp();
        let error = self.error;
        self.count_end(error);
        io.counters.connections_failed += u64::from(error.is_some());
        let kind = if self.told == Told::Nothing {
            let error = error.unwrap_or(ConnectionError::PeerClosed);
            CmEventKind::ConnectError { error, peer: self.peer }
        } else {
            CmEventKind::Disconnected { error, terminate: self.terminate.take() }
        };
        // Over before it is told: who still accepts after this is refused, who did before is told by this.
        if let Some(id) = self.id.take() {
            id.set_over();
            id.announce(None, kind);
        }
    }

    /// TCP took the stream with it, and not because our user wanted that.
    fn tell_lost(&self) {
        let wanted = ConnectionError::Tcp(CloseReason::Aborted);
        if let (Phase::FullOperation(full), Some(qp)) = (&self.phase, &self.qp)
            && !full.failed
            && self.error.is_some_and(|error| error != wanted)
        {
            qp.lose();
        }
    }

    /// Leaves the stream, if there is one. What it holds of slots that all connections share goes back, and
    /// the requests it has taken from the queue pair are flushed: a receive may be under way even after a
    /// graceful close.
    fn end_stream(&mut self, io: &mut Io) {
        match &mut self.phase {
            Phase::FullOperation(full) => {
                io.tcp.release(self.conn, full.stream.drop_held(&mut io.held));
                full.stream.end(&mut io.records);
            }
            Phase::AwaitReply { inbox, .. }
            | Phase::AwaitRequest { inbox, .. }
            | Phase::Deciding { inbox, .. } => {
                io.tcp.release(self.conn, inbox.clear(&mut io.held));
            }
            Phase::StreamingMode(mode) => {
                let released = mode.clear(io);
                io.tcp.release(self.conn, released);
            }
            Phase::Opening { .. } | Phase::Closing => {}
        }
        self.phase = Phase::Closing;
    }

    /// An end in startup, for the listener it came to.
    fn count_end(&self, error: Option<ConnectionError>) {
        let Some(ListenerOrigin { admitted, .. }) = self.origin.as_ref().filter(|_| self.id.is_none()) else {
            return;
        };
        if admitted.is_undecided() {
            admitted.listener.count(|stats| match error {
                Some(ConnectionError::StartupTimeout) => stats.startup_timeouts += 1,
                Some(ConnectionError::Startup(_)) => stats.startup_faults += 1,
                _ => stats.startup_lost += 1,
            });
        }
    }

    pub(super) fn end_qp(&self) {
        if let Some(qp) = &self.qp {
            qp.enter_error();
        }
    }

    pub(super) fn announce(&self, kind: CmEventKind) {
        if let Some(id) = &self.id {
            id.announce(None, kind);
        }
    }
}

/// What the application can ask about a Terminate.
fn report(failure: &Failure, may_send: bool) -> Option<Arc<TerminateReport>> {
    let origin = match failure {
        Failure::Peer(_) => TerminateOrigin::Received,
        Failure::Local(_) | Failure::User(_) | Failure::Lost(_) if may_send => TerminateOrigin::Sent,
        Failure::Local(_) | Failure::User(_) | Failure::Lost(_) => TerminateOrigin::NotSent,
    };
    Some(Arc::new(TerminateReport { origin, terminate: failure.terminate()?.clone() }))
}
