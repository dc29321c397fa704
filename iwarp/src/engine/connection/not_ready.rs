//! Messages that find no receive request, at either end, where both ends have agreed on InfiniBand's semantics
//! ([`ib_profile`](crate::stream::ib_profile)): how long they wait.
//!
//! InfiniBand counts how often the sender sends such a message again, each time after a time that the receiver
//! has told. Here the sender counts how long the message waits: as long as these tries would take. Then its
//! request fails with [`WcStatus::RnrRetryExceeded`](crate::queues::WcStatus), and the connection is reset.
//!
//! The receiver may have a limit of its own, behind which the message is an error, as it is without the
//! agreement at once.

use tcp_lite::{Deadline, Instant};

use super::super::state::EngineState;
use super::full_operation::FullState;
use super::{Connection, Phase, duration};
use crate::stream::ib_profile::News;
use crate::verbs::{ConnectionError, QpState, RNR_RETRY_FOR_EVER};

impl Connection {
    /// Something has happened to the requests of either end.
    #[cold]
    pub(super) fn on_news(&mut self, state: &mut EngineState, news: News) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if news.peer_takes {
            // Each message has the whole time.
            full.peer_not_ready_since = None;
            self.timers.watch_peer_rnr(Deadline::NONE);
        }
        if news.peer_not_ready {
            let since = *full.peer_not_ready_since.get_or_insert(state.now);
            let fails = full.peer_rnr_deadline(since);
            self.timers.watch_peer_rnr(fails);
        }
        if news.refused {
            full.stream.await_recv();
            if matches!(full.state, FullState::Open) && self.timers.deadline().is_none() {
                self.timers.watch_rnr(state.now);
            }
        }
        self.activate(state);
    }

    /// A receive request was posted: the message of the peer that waits for one gets it.
    pub(super) fn on_recv_posted(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if full.is_terminating() || !full.stream.awaits_recv() {
            return;
        }
        if !full.stream.bind_awaited() {
            // Another queue pair has taken it.
            return full.stream.await_recv();
        }
        if matches!(full.state, FullState::Open) {
            self.timers.clear_deadline();
        }
        self.activate(state);
    }

    /// A message of the peer has waited for too long: the peer gets the Terminate that it would have got at
    /// once without the agreement.
    pub(super) fn on_rnr_timeout(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        if let Some(failure) = full.stream.stop_waiting() {
            self.fail(state, failure);
        }
    }

    /// The time has passed for which a message of this end may wait.
    pub(super) fn on_peer_rnr_timeout(&mut self, state: &mut EngineState) {
        let Phase::FullOperation(full) = &mut self.phase else { return };
        // By now the peer may have said that there is a receive request. The end of the connection has
        // deadlines of its own.
        if !full.stream.awaits_peer() || !matches!(full.state, FullState::Open) {
            return;
        }
        self.report.add(ConnectionError::ReceiverNotReady);
        self.name_cause();
        let Phase::FullOperation(full) = &mut self.phase else { return };
        full.stream.fail_untaken();
        full.stream.qp().state.set(QpState::Error);
        state.tcp.abort(state.now, self.conn);
    }
}

impl super::full_operation::FullOperation {
    /// When a message fails for which the peer has had no receive request since then.
    fn peer_rnr_deadline(&self, since: Instant) -> Deadline {
        let retry = self.stream.qp().attributes.rnr_retry().unwrap_or(self.peer_rnr.rnr_retry);
        let time = self.peer_rnr.rnr_time() * u32::from(retry);
        (retry < RNR_RETRY_FOR_EVER).then(|| since + duration(time)).into()
    }
}
