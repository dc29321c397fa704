//! Posting: a request is checked, and enters its queue if the state of the queue pair allows it.

use super::QpShared;
use super::prepare::{Checked, inline_payload};
use crate::queues::{Payload, PreparedPayload, QpState, RecvRequest, SendRequest, VerbsError};

impl QpShared {
    /// Checks a request and adds it to the send queue. If the send queue does not accept requests, the
    /// request is kept as a late send or refused. Does not ring the doorbell.
    pub(crate) fn queue_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.keep_late(request);
        }
        match self.config.find_registered(request) {
            Ok(Some((length, found))) => {
                let gather = |payload: &mut Payload| payload.gather(&request.sg_list);
                self.sends.add(request, length, PreparedPayload::Registered(found), gather)
            }
            Ok(None) => self.queue_checked(request, self.config.prepare(request, &self.attributes)),
            Err(error) => self.queue_checked(request, Err(error)),
        }
    }

    /// Checks whether [`queue_send`](Self::queue_send) would accept a request if the queue has room.
    pub(crate) fn check_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.check_late();
        }
        // `find_registered` is not called here: the function has a single caller, and is inlined there.
        let checked = self.config.prepare(request, &self.attributes);
        checked.or_else(|error| self.config.accept_fault(request, error)).map(drop)
    }

    /// Adds a request of any form. `checked` is the result of the request's check. If the check has failed,
    /// the function fails with the same error, unless [`accept_fault`](super::QpConfig::accept_fault) accepts
    /// the request nevertheless. Also fails if the queue is full.
    #[inline(never)]
    fn queue_checked(
        &self,
        request: &SendRequest,
        checked: Result<Checked, VerbsError>,
    ) -> Result<(), VerbsError> {
        let (length, prepared, inline) = checked.or_else(|error| self.config.accept_fault(request, error))?;
        self.sends.add(request, length, prepared, |payload| match inline {
            Some(bytes) => payload.copy(&[&bytes]),
            None => payload.gather(&request.sg_list),
        })
    }

    /// Does what [`queue_send`](Self::queue_send) does, for an inline request whose bytes the caller passes
    /// in `parts`, one part after the other.
    pub(crate) fn queue_inline(&self, request: &SendRequest, parts: &[&[u8]]) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.keep_late(request);
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.config.check_bytes(request, length, &self.attributes)?;
        self.sends.add(request, length as u32, inline_payload(request), |payload| payload.copy(parts))
    }

    /// Checks whether [`queue_inline`](Self::queue_inline) would accept a request with `length` bytes if the
    /// queue has room.
    pub(crate) fn check_inline(&self, request: &SendRequest, length: usize) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.check_late();
        }
        self.config.check_bytes(request, length, &self.attributes)
    }

    /// Whether the send queue accepts requests. The queue refuses requests before the connection is
    /// established, unless early sends are allowed. The queue also refuses requests in state `Closing`, and
    /// after a graceful close was requested. After an error the queue accepts requests, which are then
    /// flushed.
    #[inline]
    fn takes_sends(&self) -> bool {
        // RFC 5041 section 6.2.1 (DDP-149): after a request for a graceful close a post is refused.
        !self.signals.is_close_asked() && self.sends.accepts_in(self.state.get())
    }

    /// Checks whether [`keep_late`](Self::keep_late) would keep a request if the queue has room. Called while
    /// the send queue does not accept requests.
    #[cold]
    fn check_late(&self) -> Result<(), VerbsError> {
        if self.is_late() && self.sends.takes_late() { Ok(()) } else { Err(self.refusal()) }
    }

    /// Keeps a request until the queue is flushed, or refuses the request. Called while the send queue does
    /// not accept requests.
    #[cold]
    fn keep_late(&self, request: &SendRequest) -> Result<(), VerbsError> {
        if self.is_late() && self.sends.keep_late(request)? { Ok(()) } else { Err(self.refusal()) }
    }

    /// Whether the send queue does not accept requests because sending has ended.
    fn is_late(&self) -> bool {
        self.signals.is_close_asked() || self.state.get() == QpState::Closing
    }

    /// Returns the error with which the send queue refuses requests.
    fn refusal(&self) -> VerbsError {
        VerbsError::InvalidState(match self.state.get() {
            // The engine has not handled the user's close yet.
            QpState::Rts => QpState::Closing,
            state => state,
        })
    }

    /// Checks a request and adds it to the receive queue. Fails if the queue pair uses a shared receive
    /// queue, if the request is not allowed, or if the queue is full.
    pub(crate) fn queue_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        if self.receives.are_shared() {
            return Err(VerbsError::Invalid(
                "this queue pair receives through its shared receive queue: post there".into(),
            ));
        }
        self.config.pd.check_recv(request, self.config.caps.max_recv_sge())?;
        self.receives.add(request)
    }
}
