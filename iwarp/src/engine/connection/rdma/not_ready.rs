//! Messages that find no receive request, at either peer, if both peers have agreed on InfiniBand's semantics
//! ([`ib_profile`](crate::stream::ib_profile)). This file limits how long such messages wait.
//!
//! InfiniBand counts the retries of such a message, and the receiver announces the time between two retries.
//! Here the sender waits instead, at most as long as these retries would take. If the number of retries is
//! limited, then after this time the message's request fails with
//! [`WcStatus::RnrRetryExceeded`](crate::queues::WcStatus), and the connection is reset.
//!
//! The receiver may have its own time limit, after which the message is an error. Without the agreement, a
//! message that finds no receive request is an error at once.

use std::time::Duration as StdDuration;

use tcp_lite::Duration;

use super::super::super::state::EngineState;
use super::super::base::Base;
use super::super::duration;
use super::{Next, Rdma, RdmaStage};
use crate::stream::ib_profile::News;
use crate::verbs::{ConnectionError, QpState, RNR_RETRY_FOR_EVER};

/// The least time between two retries. InfiniBand's shortest times are for receivers in hardware; a receiving
/// program may first have to wait for a processor. Linux's `rxe` waits for at least one tick of the kernel's
/// clock, which lasts 4 ms in Debian's kernel.
const LEAST_RNR_TIME: StdDuration = StdDuration::from_millis(4);

impl Rdma {
    /// Acts on changes that received FPDUs have caused in the requests of either peer.
    #[cold]
    pub(super) fn on_news(&mut self, base: &mut Base, state: &mut EngineState, news: News) {
        if news.peer_takes {
            // The time restarts for each message.
            self.rnr.peer_takes();
        }
        if news.peer_not_ready {
            let time = self.peer_rnr_time();
            self.rnr.peer_is_not_ready(state.now, time);
        }
        if news.refused {
            self.stream.await_recv();
            if matches!(self.stage, RdmaStage::Open)
                && base.timers.deadline().is_none()
                && let Some(limit) = self.rnr.limit(state.now)
            {
                base.timers.set_deadline(limit);
            }
        }
        base.schedule_tx(state);
    }

    /// Called when a receive request may have been posted. If a message of the peer waits for a receive
    /// request, and a receive request is available now, binds this request to the message.
    pub(super) fn on_recv_posted(&mut self, base: &mut Base, state: &mut EngineState) {
        if self.is_terminating() || !self.stream.awaits_recv() {
            return;
        }
        if !self.stream.bind_awaited() {
            // There is no receive request, for example because another queue pair has consumed it.
            return self.stream.await_recv();
        }
        if matches!(self.stage, RdmaStage::Open) {
            base.timers.clear_deadline();
        }
        base.schedule_tx(state);
    }

    /// Called when a message of the peer has waited for too long. Fails the stream with the Terminate that a
    /// stream without the agreement sends at once.
    pub(super) fn on_rnr_timeout(&mut self, base: &mut Base, state: &mut EngineState) -> Next {
        match self.stream.stop_waiting() {
            Some(failure) => self.fail(base, state, failure),
            None => Next::Same,
        }
    }

    /// If our waiting message has waited for too long, fails the message's request and resets the connection.
    pub(super) fn on_time(&mut self, base: &mut Base, state: &mut EngineState) {
        // A message waits only while the peer has not reported a receive request. The time does not apply to
        // a connection that is ending, which has other deadlines.
        if self.rnr.take_peer_due(state.now)
            && self.stream.awaits_peer()
            && matches!(self.stage, RdmaStage::Open)
        {
            base.report.add(ConnectionError::ReceiverNotReady);
            base.name_cause();
            self.stream.fail_rnr();
            self.stream.qp().state.set(QpState::Error);
            state.tcp.abort(state.now, base.conn);
        }
    }

    /// Returns the maximum time that a message of ours may wait for a receive request; `None` means that
    /// there is no limit.
    fn peer_rnr_time(&self) -> Option<Duration> {
        let retry = self.stream.qp().attributes.rnr_retry().unwrap_or(self.peer_rnr.rnr_retry);
        let time = self.peer_rnr.rnr_time().max(LEAST_RNR_TIME);
        (retry < RNR_RETRY_FOR_EVER).then(|| duration(time * u32::from(retry)))
    }
}
