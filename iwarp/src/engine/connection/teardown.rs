//! How a connection ends: by its user, by a failure of the stream, or by TCP (RFC 5040 section 7; RFC 5041
//! section 7).

use std::sync::Arc;

use tcp_lite::CloseReason;

use crate::queues::{Ask, QpShared, QpState, WcStatus};
use crate::rdmap::{Terminate, TerminateError};
use crate::stream::{Ending, Failure};
use crate::verbs::{CmEventKind, ConnectionError};

use super::super::state::EngineState;
use super::super::trace;
use super::full_operation::{FullOperation, FullState};
use super::report::User;
use super::{Attempt, Connection, Phase, TcpClosing, duration};

impl Connection {
    /// The user wants a graceful close.
    pub(in crate::engine) fn disconnect(&mut self, state: &mut EngineState) {
        match &self.phase {
            _ if self.is_ending() => {}
            Phase::FullOperation(full) if full.stream.may_send() => self.close_gracefully(state),
            Phase::StreamingMode(_) => self.close_streaming_mode(state),
            // Nothing may be sent yet, so there is nothing to drain.
            _ => self.abort(state),
        }
    }

    /// Whether the connection is ending: a FIN or a Terminate is being sent, with a deadline.
    pub(super) fn is_ending(&self) -> bool {
        match &self.phase {
            Phase::FullOperation(full) => full.is_terminating(),
            Phase::Ended(_) => true,
            Phase::StreamingMode(mode) => mode.closing.is_some(),
            Phase::Opening(_)
            | Phase::AwaitReply { .. }
            | Phase::AwaitRequest { .. }
            | Phase::Deciding { .. } => false,
        }
    }

    /// Sends the posted requests, waits for the answers to Reads, then sends FIN. While something is being
    /// sent there is no deadline here: TCP has its own for a peer that does not acknowledge.
    pub(super) fn close_gracefully(&mut self, state: &mut EngineState) {
        if let Phase::FullOperation(full) = &mut self.phase {
            if !full.is_draining() {
                if full.stream.awaits_recv() {
                    // The close has deadlines of its own.
                    self.timers.clear_deadline();
                }
                full.state = FullState::Draining { progress: 0 };
            }
            // One that outlives its peer takes sends until the end, and after it.
            if !full.stream.qp().outlives_peer() {
                full.stream.begin_close();
            }
        }
        self.activate(state);
    }

    /// Nothing can be sent now. In a graceful close: sends FIN if everything is sent. Otherwise the next
    /// request waits, behind a fence or for an ORD, or only answers to Reads are missing: sets a deadline, as
    /// the peer may never send them.
    pub(super) fn close_or_await(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        let FullOperation { stream, state: FullState::Draining { progress }, .. } = &mut **full else {
            return;
        };
        if stream.is_drained() {
            self.close(state);
        } else if self.timers.deadline().is_none() {
            *progress = stream.progress();
            self.timers.set_deadline(state.now + duration(state.config.close_timeout));
        }
    }

    /// TCP takes no more of what a graceful close still has to send. Where messages wait for receives, the
    /// peer may hold them with its window closed, and acknowledge probes for ever: sets a deadline.
    pub(super) fn await_space(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if full.is_draining() && full.stream.qp().attributes.ib_semantics() == Some(true) {
            self.close_or_await(state);
        }
    }

    /// The deadline for an answer to a Read, or for space, has passed: aborts if there was no progress.
    pub(super) fn await_answers(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &self.phase else { return };
        let FullOperation { stream, state: FullState::Draining { progress }, .. } = &**full else { return };
        if !stream.awaits_answers() && stream.qp().attributes.ib_semantics() != Some(true) {
            return;
        }
        if *progress == stream.progress() {
            return self.close_timeout(state);
        }
        self.close_or_await(state);
    }

    /// Sets the deadline of a close. It counts anew as long as the peer acknowledges bytes: up to a whole
    /// send buffer goes before our FIN.
    pub(super) fn set_close_deadline(&mut self, state: &EngineState) {
        let acknowledged = self.acknowledged_bytes(state);
        match &mut self.phase {
            Phase::Ended(ended) => ended.acknowledged = acknowledged,
            Phase::StreamingMode(mode) => mode.closing = Some(acknowledged),
            _ => debug_assert!(false, "a close without an end"),
        }
        self.timers.set_deadline(state.now + duration(state.config.close_timeout));
    }

    /// The deadline of a close has passed: resets the connection, unless the peer has acknowledged bytes
    /// meanwhile, more than the `acknowledged` ones.
    pub(super) fn on_close_deadline(&mut self, state: &mut EngineState, acknowledged: u64) {
        if self.acknowledged_bytes(state) > acknowledged {
            return self.set_close_deadline(state);
        }
        self.close_timeout(state);
    }

    /// How many bytes of ours the peer has acknowledged.
    fn acknowledged_bytes(&self, state: &EngineState) -> u64 {
        state.tcp.info(self.conn).map_or(0, |info| info.send_offset.saturating_sub(info.unacknowledged))
    }

    /// The end takes too long: resets the connection.
    fn close_timeout(&mut self, state: &mut EngineState) {
        self.report.add(ConnectionError::CloseTimeout);
        state.tcp.abort(state.now, self.conn);
    }

    /// Does what the queue pair asks for: its user, or a completion queue that has lost a completion.
    pub(super) fn on_ask(&mut self, state: &mut EngineState, asked: Ask) {
        match asked {
            // The connection receives after any request.
            Ask::Nothing | Ask::Receive => {}
            Ask::Abort => self.abort(state),
            _ if self.is_ending() => {}
            Ask::Close => self.disconnect(state),
            Ask::Terminate if matches!(self.phase, Phase::FullOperation(_)) => {
                self.fail(state, Failure::Here(Box::new(Terminate::bare(TerminateError::LocalCatastrophic))));
            }
            Ask::Terminate | Ask::Abandon => self.abort(state),
        }
    }

    /// Ends the connection at once.
    pub(in crate::engine) fn abort(&mut self, state: &mut EngineState) {
        if let Some(qp) = self.phase.qp() {
            qp.attributes.end_by_user();
        }
        self.report.add(ConnectionError::Tcp(CloseReason::Aborted));
        state.tcp.abort(state.now, self.conn);
    }

    /// The engine stops: ends the connection at once.
    pub(in crate::engine) fn shut_down(&mut self, state: &mut EngineState) {
        if let Some(qp) = self.phase.qp() {
            qp.state.blame(ConnectionError::Tcp(CloseReason::Aborted));
        }
        self.abort(state);
        self.finish(state);
    }

    /// The stream has failed: sends a Terminate if possible, flushes, closes.
    pub(super) fn fail(&mut self, state: &mut EngineState, failure: Failure) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        self.report.add(ConnectionError::Stream(failure.stream_error()));
        // RFC 5041 section 3 (DDP-038): the stream is marked as failed. RFC 5040 section 7.1 (RDMAP-331):
        // only its first error is told to the peer.
        if matches!(std::mem::replace(&mut full.state, FullState::Terminating), FullState::Terminating) {
            return;
        }
        if failure.is_peers() {
            self.count_peer_failure(state);
        }
        self.name_cause();
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if full.stream.has_ib_semantics() {
            // TCP may acknowledge what is dropped before the peer knows it, whichever end is to blame.
            let offset = full.deframer.untaken_from();
            full.stream.end_taking(offset);
            state.tcp.withhold(self.conn, Some(offset));
        }
        state.tcp.release(self.conn, full.deframer.clear(&mut state.held));
        let (terminate, ending) = full.stream.fail(&mut state.request_pool, &failure);
        self.report.terminate = terminate;
        match ending {
            // RFC 5044 section 8 (MPA-239), RFC 6581 section 9.3 (MPA2-095): the Terminate goes out before
            // TCP is closed.
            Ending::Terminating => {
                self.timers.set_deadline(state.now + duration(state.config.close_timeout));
                self.activate(state);
            }
            Ending::Terminated => {
                state.counters.rx_terminates += 1;
                trace::terminate_received(state, self.conn, self.phase.qp(), &failure);
                self.close(state);
            }
            Ending::Silent => self.close(state),
            Ending::Lost => state.tcp.abort(state.now, self.conn),
        }
    }

    /// Tells the queue pair why the connection ends, before anything is flushed: the first error. Without
    /// one the user has closed it, or else the peer has. The end by the user is no cause. A first attempt
    /// that has failed is followed by another one.
    pub(super) fn name_cause(&self) {
        let Some(qp) = self.phase.qp() else { return };
        let cause = match self.report.error() {
            _ if matches!(self.attempt, Attempt::Failed(_)) => return,
            Some(ConnectionError::Tcp(CloseReason::Aborted)) => return,
            None if qp.signals.is_close_asked() => return,
            None => ConnectionError::PeerClosed,
            Some(error) => error,
        };
        qp.state.blame(cause);
    }

    /// Startup has failed: closes at once, and reports the error.
    pub(super) fn fail_startup(&mut self, state: &mut EngineState, error: ConnectionError) {
        self.report.add(error);
        trace::startup_failed(state, self.conn, error);
        if matches!(error, ConnectionError::StartupTimeout | ConnectionError::Startup(_)) {
            self.count_peer_failure(state);
        }
        // RFC 5044 sections 7.1.2 and 8 (MPA-177, MPA-189, MPA-235): an invalid startup frame closes TCP at
        // once in both roles, and the user gets the error. `crate::mpa` decides what is invalid.
        self.end_stream(state);
        state.tcp.abort(state.now, self.conn);
    }

    /// The connection has failed by the peer's fault. The listener counts that against the peer's address.
    fn count_peer_failure(&self, state: &mut EngineState) {
        if let Some(admitted) = &self.admitted {
            state.count_peer_failure(&admitted.id, admitted.address());
        }
    }

    /// Sends FIN after what is left of the startup frames. Received bytes are dropped from now on.
    pub(super) fn close(&mut self, state: &mut EngineState) {
        self.end_stream(state);
        self.set_close_deadline(state);
        if self.pre_fpdu.is_pending() {
            return self.activate(state);
        }
        // RFC 5041 section 3 (DDP-042), RFC 5040 section 7 (RDMAP-321): the connection ends with its only
        // stream.
        state.tcp.close(state.now, self.conn);
    }

    /// The peer has sent more after our graceful close, and the bytes are dropped. With InfiniBand's
    /// semantics its requests succeed when TCP acknowledges them, so the connection is reset instead (RFC
    /// 9293 section 3.6.1, for data after a CLOSE). All of ours has been acknowledged before our FIN.
    pub(super) fn refuse_after_close(&mut self, state: &mut EngineState) {
        if let Phase::Ended(TcpClosing { qp: Some(qp), .. }) = &self.phase
            && qp.attributes.ib_semantics() == Some(true)
            && self.report.error().is_none()
        {
            state.tcp.abort(state.now, self.conn);
        }
    }

    /// As [`on_acknowledged`](Self::on_acknowledged), when there is no stream any more: TCP withholds no
    /// acknowledgement from a peer that knows what is not taken.
    #[cold]
    pub(super) fn on_acknowledged_in_close(&mut self, state: &mut EngineState) {
        if let Phase::Ended(TcpClosing { withheld_until, .. }) = &mut self.phase
            && let (Some(until), Some(offset)) = (*withheld_until, state.tcp.acknowledged(self.conn))
            && until <= offset
        {
            *withheld_until = None;
            state.tcp.withhold(self.conn, None);
        }
    }

    /// The TCP connection is closed: flushes the queue pair and tells the user, once.
    pub(in crate::engine) fn finish(&mut self, state: &mut EngineState) {
        // RFC 5041 section 6.2.2 (DDP-155): the loss of the connection is a fatal error of the queue pair.
        // It comes before `end_stream`, which drops the stream.
        self.name_cause();
        self.mark_qp_lost();
        let is_orphan = self.is_orphan();
        self.end_stream(state);
        self.closed = true;
        if matches!(self.attempt, Attempt::Failed(_)) {
            return;
        }
        match self.phase.qp() {
            Some(qp) if is_orphan && qp.state.get() == QpState::Orphaned => {}
            Some(qp) if is_orphan && qp.state.get() != QpState::Error => qp.orphan(),
            Some(qp) => qp.enter_error(),
            None => {}
        }
        let kind = self.report.last_event();
        let error = self.report.error();
        state.counters.connections_failed += u64::from(error.is_some());
        trace::ended(state, self.user.id(), self.phase.qp(), error);
        match self.user.take() {
            User::Unaware => self.count_end(error),
            // `set_over` comes first: an `accept` after it is refused, and an earlier one gets this event.
            User::Known(id) => {
                id.set_over(error);
                id.announce(None, kind);
            }
            User::Done => {}
        }
    }

    /// Puts the queue pair of a stream that TCP has lost into its state, unless the user has aborted it, a
    /// request has failed instead, or it outlives that.
    fn mark_qp_lost(&self) {
        if let Phase::FullOperation(full) = &self.phase
            && self.is_lost()
        {
            full.stream.lose();
        }
    }

    /// Whether TCP has lost a stream that neither its user nor an error of its own has ended, and that does
    /// not outlive it.
    fn is_lost(&self) -> bool {
        let others = [ConnectionError::Tcp(CloseReason::Aborted), ConnectionError::ReceiverNotReady];
        matches!(&self.phase, Phase::FullOperation(full) if !full.is_terminating())
            && self.report.error().is_some_and(|error| !others.contains(&error))
            && !self.is_orphan()
    }

    /// Whether the peer has ended the connection, by FIN or RST, or none was made, and the queue pair
    /// outlives that.
    fn is_orphan(&self) -> bool {
        let ended_by_peer =
            matches!(self.report.error(), None | Some(ConnectionError::Tcp(CloseReason::Reset)));
        let Some(qp) = self.phase.qp() else { return false };
        (ended_by_peer || qp.attributes.ib_semantics().is_none()) && qp.outlives_peer()
    }

    /// Ends the stream, if there is one. Frees its slots, which all connections share, and flushes the
    /// requests that it has taken from the queue pair. A receive may be in progress even after a graceful
    /// close.
    pub(super) fn end_stream(&mut self, state: &mut EngineState) {
        self.name_cause();
        let qp = self.phase.qp().cloned();
        let is_orphan = self.is_orphan();
        let is_lost = self.is_lost();
        let mut withheld_until = None;
        match self.take_phase() {
            Phase::FullOperation(full) => {
                let FullOperation { mut deframer, stream, .. } = *full;
                withheld_until = stream.withheld_until();
                state.tcp.release(self.conn, deframer.clear(&mut state.held));
                // On InfiniBand the oldest request runs out of tries, and the others are flushed. A peer that
                // resets the connection is there, and has ended it: programs take flushed requests for that.
                let has_vanished = is_lost
                    && matches!(self.report.error(), Some(ConnectionError::Tcp(reason)) if reason != CloseReason::Reset);
                let fails = is_orphan || (has_vanished && stream.has_ib_semantics());
                let first = if fails { WcStatus::RetryExceeded } else { WcStatus::WrFlushError };
                let failed = stream.end(&mut state.request_pool, first);
                if failed
                    && is_orphan
                    && let Some(qp) = &qp
                {
                    qp.state.set(QpState::Error);
                }
            }
            Phase::AwaitReply { mut reassembly, .. }
            | Phase::AwaitRequest { mut reassembly, .. }
            | Phase::Deciding { mut reassembly, .. } => {
                state.tcp.release(self.conn, reassembly.clear(&mut state.held));
            }
            Phase::StreamingMode(mut mode) => {
                let released = mode.clear(state);
                state.tcp.release(self.conn, released);
            }
            Phase::Opening(_) => {}
            Phase::Ended(ended) => {
                self.phase = Phase::Ended(ended);
                return;
            }
        }
        self.phase = Phase::Ended(TcpClosing { qp, withheld_until, ..TcpClosing::default() });
    }

    /// As [`end_stream`](Self::end_stream), where the phase does not know the queue pair.
    pub(super) fn end_stream_of(&mut self, state: &mut EngineState, qp: Arc<QpShared>) {
        self.end_stream(state);
        if let Phase::Ended(ended) = &mut self.phase {
            ended.qp = Some(qp);
            self.name_cause();
        }
    }

    /// Counts for the listener that a connection ended during startup, before it had a user.
    fn count_end(&self, error: Option<ConnectionError>) {
        if let Some(admitted) = &self.admitted
            && admitted.is_undecided()
        {
            admitted.listener.count(|stats| match error {
                Some(ConnectionError::StartupTimeout) => stats.startup_timeouts += 1,
                Some(ConnectionError::Startup(_)) => stats.startup_faults += 1,
                _ => stats.startup_lost += 1,
            });
        }
    }

    pub(super) fn announce(&self, kind: CmEventKind) {
        if let Some(id) = self.user.id() {
            id.announce(None, kind);
        }
    }
}
