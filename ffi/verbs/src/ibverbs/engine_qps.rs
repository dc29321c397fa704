//! The engine's queue pairs behind a program's queue pair: one, or two if the queue pair is connected to
//! itself.
//!
//! A TCP connection has two sides, and each side is a queue pair of the engine. So a queue pair that a
//! program connects to itself needs a second engine queue pair. The second engine queue pair sends, and the
//! first engine queue pair receives.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use iwarp::memory::Access;
use iwarp::verbs::{
    QpAttr, QpState, QueuePair, RNR_RETRY_FOR_EVER, SendBatch, SendFlags, SendOp, SendRequest, Sge,
};

use crate::ffi::abi::Outcome;
use crate::ibverbs::long_inline::{LongInline, is_long};
use crate::ibverbs::wr_batch::WrBuilder;

/// The engine's queue pairs of one queue pair of the program.
pub(crate) struct EngineQps {
    /// The engine queue pair to which receive requests and window operations are posted, and also all other
    /// send requests if `far` is `None`.
    pub(crate) qp: QueuePair,
    /// The second engine queue pair, if the queue pair is connected to itself.
    pub(crate) far: Option<QueuePair>,
    /// The memory for long inline data, if the program has asked for such data when it made the queue pair.
    long_inline: Option<Mutex<LongInline>>,
}

impl EngineQps {
    pub(crate) fn new(qp: QueuePair, long_inline: Option<LongInline>) -> Self {
        Self { qp, far: None, long_inline: long_inline.map(Mutex::new) }
    }

    /// Both engine queue pairs, or the only engine queue pair if there is no second engine queue pair.
    pub(crate) fn all(&self) -> impl Iterator<Item = &QueuePair> {
        [&self.qp].into_iter().chain(&self.far)
    }

    /// The state of the stream. If one of the two sides has failed, this is the state of the failed side.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        let has_failed = |state: &QpState| matches!(state, QpState::Terminate | QpState::Error);
        let far = self.far.as_ref().map(QueuePair::state).filter(has_failed);
        far.unwrap_or_else(|| self.qp.state())
    }

    /// Sets the access rights of the peer.
    pub(crate) fn set_remote_access(&self, access: Access) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.set_remote_access(access)?))
    }

    /// Sets how often a message is retried if the peer has no receive posted.
    pub(crate) fn set_rnr_retry(&self, retry: u8) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.set_rnr_retry(retry.min(RNR_RETRY_FOR_EVER))?))
    }

    /// Sets the time from the end of the connection by the peer until waiting requests fail.
    pub(crate) fn set_retry_time(&self, time: Duration) {
        self.all().for_each(|qp| qp.set_retry_time(time));
    }

    /// Holds back further sends. If `asks`, an event is generated when no send is in progress.
    pub(crate) fn hold_sends(&self, asks: bool) {
        self.all().for_each(QueuePair::hold_sends);
        if asks {
            self.sender().drain();
        }
    }

    pub(crate) fn resume_sends(&self) {
        self.all().for_each(QueuePair::resume_sends);
    }

    /// Whether the send queues have room for all requests of the list.
    pub(crate) fn has_room(&self, requests: &[WrBuilder]) -> bool {
        let is_near = |builder: &&WrBuilder| self.far.is_none() || is_of_window(&builder.request.op);
        let near = requests.iter().filter(is_near).count();
        let has_room = |qp: &QueuePair, more: usize| {
            let QpAttr { send_outstanding, max_send_wr, .. } = qp.query();
            send_outstanding + more <= max_send_wr
        };
        has_room(&self.qp, near) && has_room(self.sender(), requests.len() - near)
    }

    /// Moves the engine queue pairs to the error state, which ends the connection.
    pub(crate) fn fail(&self) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.modify(QpState::Error)?))
    }

    /// The engine queue pair to which the program's send requests are posted, except window operations.
    pub(crate) fn sender(&self) -> &QueuePair {
        self.far.as_ref().unwrap_or(&self.qp)
    }

    /// Begins a list of requests. When the list is dropped, the doorbell of each engine queue pair rings.
    pub(crate) fn begin(&self) -> SendBatches<'_> {
        SendBatches {
            near: self.qp.send_batch(),
            far: self.far.as_ref().map(QueuePair::send_batch),
            long_inline: self.long_inline.as_ref(),
        }
    }
}

/// A list of requests that is being posted.
pub(crate) struct SendBatches<'a> {
    near: SendBatch<'a>,
    far: Option<SendBatch<'a>>,
    long_inline: Option<&'a Mutex<LongInline>>,
}

/// Whether the operation binds or invalidates a window. Such an operation is posted to the engine queue pair
/// that receives the peer's requests, since the peer's requests use the windows.
fn is_of_window(op: &SendOp) -> bool {
    matches!(op, SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. })
}

impl<'a> SendBatches<'a> {
    fn of(&mut self, op: &SendOp) -> &mut SendBatch<'a> {
        match &mut self.far {
            Some(far) if !is_of_window(op) => far,
            _ => &mut self.near,
        }
    }

    /// Posts a request. For an inline request, `inline` has the bytes to copy now.
    pub(crate) fn push(&mut self, request: &SendRequest, inline: Option<&[&[u8]]>) -> Outcome<()> {
        let long_inline = self.long_inline;
        let batch = self.of(&request.op);
        match (inline, long_inline) {
            (None, _) => Ok(batch.push(request)?),
            (Some(parts), Some(memory)) if is_long(parts) => {
                // Other threads wait, so slots are used in the order of the requests.
                let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.post(parts, |slot| Ok(batch.push(&with_slot(request, slot))?))
            }
            (Some(parts), _) => Ok(batch.push_inline(request, parts)?),
        }
    }

    /// Checks that [`push`](Self::push) would accept the request, if the queue has room.
    pub(crate) fn check(&mut self, request: &SendRequest, inline: Option<&[u8]>) -> Outcome<()> {
        let long_inline = self.long_inline;
        let batch = self.of(&request.op);
        match (inline, long_inline) {
            (None, _) => Ok(batch.check(request)?),
            (Some(bytes), Some(memory)) if is_long(&[bytes]) => {
                let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(batch.check(&with_slot(request, memory.element(&[bytes])?))?)
            }
            (Some(bytes), _) => Ok(batch.check_inline(request, bytes.len())?),
        }
    }
}

/// The request for long inline data, which are in `slot`.
fn with_slot(request: &SendRequest, slot: Sge) -> SendRequest {
    let mut with_slot = request.clone();
    with_slot.flags -= SendFlags::INLINE;
    with_slot.sg_list = [slot].into_iter().collect();
    with_slot
}
