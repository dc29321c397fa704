//! The current state of a queue pair, and why its connection ended.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::queues::{ConnectionError, Origin, Outcome, QpState, StreamError, TerminateReport};
use crate::rdmap::TerminateError;

use super::signals::Signals;

pub(crate) struct StateCell {
    state: AtomicU8,
    ended: Mutex<Ended>,
}

/// The reason for which the connection ended, the error that ended the stream, and the Terminate.
#[derive(Default)]
struct Ended {
    /// The first reason, which is recorded before the first request is flushed.
    cause: Option<ConnectionError>,
    /// The error of the stream. The error has layer, type and code even if TCP is the cause.
    error: Option<StreamError>,
    /// The Terminate that was sent or received, if any.
    terminate: Option<Arc<TerminateReport>>,
}

impl StateCell {
    pub(super) fn new() -> Self {
        Self { state: AtomicU8::new(QpState::Idle as u8), ended: Mutex::default() }
    }

    #[inline]
    pub(crate) fn get(&self) -> QpState {
        match self.state.load(Ordering::SeqCst) {
            0 => QpState::Idle,
            1 => QpState::Rts,
            2 => QpState::Closing,
            3 => QpState::Terminate,
            4 => QpState::Error,
            orphaned => {
                debug_assert_eq!(orphaned, QpState::Orphaned as u8, "only `set` stores a state");
                QpState::Orphaned
            }
        }
    }

    pub(crate) fn set(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    /// Records why the connection ends, unless a reason is already recorded. Called before requests are
    /// flushed.
    pub(crate) fn blame(&self, cause: ConnectionError) {
        self.ended().cause.get_or_insert(cause);
    }

    /// Returns the reason for which the connection ended, if it has ended.
    pub(crate) fn cause(&self) -> Option<ConnectionError> {
        self.ended().cause
    }

    /// Returns the error of the stream, if the stream has failed.
    pub(crate) fn error(&self) -> Option<StreamError> {
        self.ended().error
    }

    pub(crate) fn terminate(&self) -> Option<Arc<TerminateReport>> {
        self.ended().terminate.clone()
    }

    /// Records the error and the Terminate, enters the state that belongs to the error, generates the event,
    /// and returns the outcome. Called when the stream has failed. The caller completes the open requests,
    /// and the oldest send request completes with the status of the outcome.
    pub(crate) fn fail(
        &self,
        signals: &Signals,
        origin: Origin,
        error: StreamError,
        terminate: Option<Arc<TerminateReport>>,
    ) -> Outcome {
        let outcome = Outcome::of(origin, error.layer, error.etype);
        let cause = {
            let mut ended = self.ended();
            ended.error = Some(error);
            ended.terminate = terminate;
            *ended.cause.get_or_insert(ConnectionError::Stream(error))
        };
        self.end(signals, &outcome, Some(cause));
        outcome
    }

    /// Enters `Error` and generates the event, because TCP, and therefore the stream, has ended. The caller
    /// has already [recorded](Self::blame) the reason.
    pub(crate) fn lose(&self, signals: &Signals) {
        let (layer, etype, _) = TerminateError::MpaConnectionLost.codes();
        self.end(signals, &Outcome::of(Origin::Lost, layer, etype), self.cause());
    }

    /// Records `error` as the reason why no connection can be made. The caller enters `Error`.
    pub(super) fn refuse(&self, error: StreamError) {
        let mut ended = self.ended();
        ended.error = Some(error);
        ended.cause.get_or_insert(ConnectionError::Stream(error));
    }

    fn end(&self, signals: &Signals, outcome: &Outcome, cause: Option<ConnectionError>) {
        self.set(outcome.state);
        signals.report(outcome.event, cause);
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use tcp_lite::CloseReason;

    use super::*;
    use crate::queues::{AsyncEventKind, AsyncEvents};

    const ERROR: StreamError = StreamError { layer: 0, etype: 1, code: 2, from_peer: false };
    const RESET: ConnectionError = ConnectionError::Tcp(CloseReason::Reset);

    fn objects() -> (AsyncEvents, Signals, StateCell) {
        let events = AsyncEvents::new(8).unwrap();
        let signals = Signals::new(&events, 7);
        (events, signals, StateCell::new())
    }

    #[test]
    fn each_state_is_what_was_set() {
        let (_, _, state) = objects();
        assert_eq!(state.get(), QpState::Idle);
        for each in [
            QpState::Rts,
            QpState::Closing,
            QpState::Terminate,
            QpState::Error,
            QpState::Orphaned,
            QpState::Idle,
        ] {
            state.set(each);
            assert_eq!(state.get(), each);
        }
    }

    /// After a failure, the queue pair is in the state that [`Outcome`] gives for the failure. The event has
    /// the first reason, which may have been recorded before the failure.
    #[test]
    fn a_failure_is_told_with_the_first_reason() {
        for earlier in [None, Some(RESET)] {
            let (events, signals, state) = objects();
            earlier.into_iter().for_each(|cause| state.blame(cause));
            let outcome = state.fail(&signals, Origin::Here, ERROR, None);
            assert_eq!((outcome.event, state.get()), (AsyncEventKind::QpAccessError, QpState::Terminate));
            let cause = Some(earlier.unwrap_or(ConnectionError::Stream(ERROR)));
            assert_eq!((state.cause(), state.error()), (cause, Some(ERROR)));
            assert!(state.terminate().is_none());
            let event = events.poll().unwrap().unwrap();
            assert_eq!((event.kind, event.number, event.cause), (outcome.event, 7, cause));
            assert!(events.poll().unwrap().is_none());
        }
    }

    #[test]
    fn the_end_of_tcp_is_told_with_its_reason() {
        let (events, signals, state) = objects();
        state.blame(RESET);
        state.blame(ConnectionError::PeerClosed);
        state.lose(&signals);
        let event = events.poll().unwrap().unwrap();
        assert_eq!((event.kind, event.cause), (AsyncEventKind::QpFatal, Some(RESET)));
        assert_eq!((state.get(), state.error()), (QpState::Error, None));
    }

    /// If a connection cannot be made, the error is recorded and no event is generated: the call reports the
    /// error to the user.
    #[test]
    fn a_refusal_makes_no_event() {
        let (events, _, state) = objects();
        state.refuse(ERROR);
        assert_eq!((state.error(), state.cause()), (Some(ERROR), Some(ConnectionError::Stream(ERROR))));
        assert_eq!(state.get(), QpState::Idle);
        assert!(events.poll().unwrap().is_none());
    }
}
