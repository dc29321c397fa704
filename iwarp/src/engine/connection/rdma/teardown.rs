//! How an RDMA stream is ended by its user, by a failure, or by TCP (RFC 5040 section 7; RFC 5041 section 7).

use tcp_lite::CloseReason;

use crate::queues::{QpState, WcStatus};
use crate::stream::{Ending, Failure};
use crate::verbs::ConnectionError;

use super::super::super::state::EngineState;
use super::super::super::trace;
use super::super::base::Base;
use super::super::closing::{Closing, EndablePhase};
use super::super::duration;
use super::{Next, Rdma, RdmaStage};

impl Rdma {
    /// Begins a graceful close, as the user has requested.
    pub(super) fn disconnect(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        if self.is_terminating() {
            // The connection is ending already.
        } else if self.stream.may_send() {
            self.close_gracefully(base, state);
        } else {
            // Nothing may be sent yet, so there is nothing to drain.
            base.abort(state);
        }
        Next::Same
    }

    /// Sends the posted requests, waits for the responses to Reads and atomics, then sends FIN. While data is
    /// being sent, no deadline is set here: TCP has a deadline for a peer that does not acknowledge.
    pub(super) fn close_gracefully(&mut self, base: &mut Base, state: &mut EngineState) {
        if !self.is_draining() {
            if self.stream.awaits_recv() {
                // The close sets other deadlines.
                base.timers.clear_deadline();
            }
            self.stage = RdmaStage::Draining { progress: 0 };
        }
        // A queue pair that outlives its peer does not enter `Closing`: it must still accept send requests,
        // also after the connection has ended.
        if !self.stream.qp().outlives_peer() {
            self.stream.begin_close();
        }
        base.schedule_tx(state);
    }

    /// Called when nothing can be sent now; acts only in a graceful close. Sends a limit if the peer waits
    /// for one, and otherwise FIN if all requests are finished. If neither is possible, sets a deadline,
    /// since the peer may never send what is missing.
    pub(super) fn close_or_await(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        let Self { stream, stage: RdmaStage::Draining { progress }, .. } = self else { return Next::Same };
        // The limit is sent so that the accepted requests of the peer succeed, since no later message
        // contains the limit.
        if stream.tell_limit() {
            base.schedule_tx(state);
            return Next::Same;
        }
        if stream.is_drained() {
            return Next::Close;
        }
        if base.timers.deadline().is_none() {
            *progress = stream.progress();
            base.timers.set_deadline(state.now + duration(state.config.close_timeout));
        }
        Next::Same
    }

    /// Called when TCP accepts no more bytes; acts only in a graceful close. If messages may wait for receive
    /// requests, calls [`close_or_await`](Self::close_or_await), which sets a deadline, since the peer may
    /// keep its window closed and acknowledge probes for ever.
    pub(super) fn await_space(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        if self.is_draining() && self.stream.completes_by_acknowledgement() {
            return self.close_or_await(base, state);
        }
        Next::Same
    }

    /// Called when the deadline of a graceful close has passed. Does nothing if the close can wait neither
    /// for answers nor, with InfiniBand's semantics, for receive requests of the peer. Otherwise aborts the
    /// connection if there was no progress since the deadline was set, and calls
    /// [`close_or_await`](Self::close_or_await) if there was progress.
    pub(super) fn await_answers(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        let Self { stream, stage: RdmaStage::Draining { progress }, .. } = &*self else { return Next::Same };
        if !stream.awaits_answers() && !stream.completes_by_acknowledgement() {
            return Next::Same;
        }
        if *progress == stream.progress() {
            base.close_timeout(state);
            return Next::Same;
        }
        self.close_or_await(base, state)
    }

    /// Called when the stream has failed: sends a Terminate if possible, flushes the requests, and closes the
    /// connection.
    #[cold]
    pub(in super::super) fn fail(
        &mut self,
        base: &mut Base,
        state: &mut EngineState,
        failure: Failure,
    ) -> Next {
        base.report.add(ConnectionError::Stream(failure.stream_error()));
        // RFC 5041 section 3 (DDP-038): the stream is marked as failed. RFC 5040 section 7.1 (RDMAP-331):
        // only its first error is reported to the peer.
        if matches!(std::mem::replace(&mut self.stage, RdmaStage::Terminating), RdmaStage::Terminating) {
            return Next::Same;
        }
        if failure.is_peers() {
            base.count_peer_failure(state);
        }
        base.name_cause();
        // From now on, received bytes are dropped, no matter which peer is at fault. With InfiniBand's
        // semantics, TCP must not acknowledge them before the peer knows that they are dropped.
        let offset = self.deframer.accepted_end();
        if self.stream.end_taking(offset) {
            state.tcp.withhold(base.conn, Some(offset));
        }
        state.tcp.release(base.conn, self.deframer.clear(&mut state.held));
        let (terminate, ending) = self.stream.fail(&mut state.request_pool, &failure);
        base.report.terminate = terminate;
        match ending {
            // RFC 5044 section 8 (MPA-239), RFC 6581 section 9.3 (MPA2-095): the Terminate is sent before TCP
            // is closed.
            Ending::Terminating => {
                base.timers.set_deadline(state.now + duration(state.config.close_timeout));
                base.schedule_tx(state);
                Next::Same
            }
            Ending::Terminated => {
                state.counters.rx_terminates += 1;
                trace::terminate_received(state, base.conn, base.qp.as_ref(), &failure);
                Next::Close
            }
            Ending::Silent => Next::Close,
            Ending::Lost => {
                state.tcp.abort(state.now, base.conn);
                Next::Same
            }
        }
    }

    /// Called when TCP is closed. Puts the queue pair into the state of a lost connection if the loss has
    /// ended the stream ([`is_lost`](Self::is_lost)), and ends the phase.
    pub(super) fn lose(self: Box<Self>, base: &mut Base, state: &mut EngineState) -> Closing {
        // RFC 5041 section 6.2.2 (DDP-155): the loss of the connection is a fatal error of the queue pair.
        // The state is set before `end`, which drops the stream.
        base.name_cause();
        if self.is_lost(base) {
            self.stream.lose();
        }
        self.end(base, state)
    }

    /// Whether the loss of the TCP connection has ended the stream. Returns `false` if something else has
    /// ended the stream: an earlier failure, an abort by the user, or a message that has waited for too long.
    /// Also returns `false` if no error was reported, or if the queue pair outlives the connection.
    fn is_lost(&self, base: &Base) -> bool {
        let others = [ConnectionError::Tcp(CloseReason::Aborted), ConnectionError::ReceiverNotReady];
        !self.is_terminating()
            && base.report.error().is_some_and(|error| !others.contains(&error))
            && !base.is_orphan()
    }

    /// Flushes requests that were posted after the stream failed.
    pub(super) fn flush_late(&mut self) {
        if matches!(self.stream.qp().state.get(), QpState::Terminate | QpState::Error) {
            self.stream.flush();
        }
    }
}

impl EndablePhase for Box<Rdma> {
    fn end(self, base: &mut Base, state: &mut EngineState) -> Closing {
        base.name_cause();
        let (is_orphan, is_lost) = (base.is_orphan(), self.is_lost(base));
        let Rdma { mut deframer, stream, .. } = *self;
        let closing = Closing::of_stream(&stream);
        state.tcp.release(base.conn, deframer.clear(&mut state.held));
        if is_orphan && stream.may_retry() {
            stream.end_unfinished(&mut state.request_pool);
            return closing;
        }
        // If the peer vanishes on InfiniBand, the oldest request runs out of retries, and the other requests
        // are flushed. A peer that resets the connection is alive, so programs expect that all requests are
        // flushed.
        let has_vanished = is_lost
            && matches!(base.report.error(), Some(ConnectionError::Tcp(reason)) if reason != CloseReason::Reset);
        let fails = is_orphan || (has_vanished && stream.fails_when_peer_vanishes());
        let first = if fails { WcStatus::RetryExceeded } else { WcStatus::WrFlushError };
        let failed = stream.end(&mut state.request_pool, first);
        if failed
            && is_orphan
            && let Some(qp) = &base.qp
        {
            qp.state.set(QpState::Error);
        }
        closing
    }
}
