//! The queue pairs of the engine behind one of a program: one, or two if it is connected to itself.
//!
//! A TCP connection has two ends, and each end is a queue pair of the engine. So a queue pair that a program
//! connects to itself needs a second one, which takes its sends. What it sends arrives at the first.

use iwarp::memory::Access;
use iwarp::verbs::{QpAttr, QpState, QueuePair, RNR_RETRY_FOR_EVER, SendBatch, SendOp, SendRequest};

use crate::ffi::abi::Outcome;
use crate::ibverbs::wr_batch::WrBuilder;

/// See the module.
pub(crate) struct EngineQps {
    /// Takes receives, and sends unless there is a far end.
    pub(crate) qp: QueuePair,
    /// The other end of a connection to itself.
    pub(crate) far: Option<QueuePair>,
}

impl EngineQps {
    pub(crate) fn new(qp: QueuePair) -> Self {
        Self { qp, far: None }
    }

    /// All queue pairs.
    pub(crate) fn all(&self) -> impl Iterator<Item = &QueuePair> {
        [&self.qp].into_iter().chain(&self.far)
    }

    /// The state of the stream: that of an end that has failed, before that of the other one.
    #[inline]
    pub(crate) fn state(&self) -> QpState {
        let has_failed = |state: &QpState| matches!(state, QpState::Terminate | QpState::Error);
        let far = self.far.as_ref().map(QueuePair::state).filter(has_failed);
        far.unwrap_or_else(|| self.qp.state())
    }

    /// Limits the rights of the peer.
    pub(crate) fn set_remote_access(&self, access: Access) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.set_remote_access(access)?))
    }

    /// Sets how often a message is tried again that finds no receive.
    pub(crate) fn set_rnr_retry(&self, retry: u8) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.set_rnr_retry(retry.min(RNR_RETRY_FOR_EVER))?))
    }

    /// Starts no further send. `asks`: an event tells when none is under way.
    pub(crate) fn hold_sends(&self, asks: bool) {
        self.all().for_each(QueuePair::hold_sends);
        if asks {
            self.sender().drain();
        }
    }

    /// Starts sends again.
    pub(crate) fn resume_sends(&self) {
        self.all().for_each(QueuePair::resume_sends);
    }

    /// Whether the send queues have room for all of these requests.
    pub(crate) fn has_room(&self, requests: &[WrBuilder]) -> bool {
        let is_near = |builder: &&WrBuilder| self.far.is_none() || is_of_window(&builder.request.op);
        let near = requests.iter().filter(is_near).count();
        let has_room = |qp: &QueuePair, more: usize| {
            let QpAttr { send_outstanding, max_send_wr, .. } = qp.query();
            send_outstanding + more <= max_send_wr
        };
        has_room(&self.qp, near) && has_room(self.sender(), requests.len() - near)
    }

    /// Ends the connection.
    pub(crate) fn fail(&self) -> Outcome<()> {
        self.all().try_for_each(|qp| Ok(qp.modify(QpState::Error)?))
    }

    /// The queue pair whose send queue has the requests of the program.
    pub(crate) fn sender(&self) -> &QueuePair {
        self.far.as_ref().unwrap_or(&self.qp)
    }

    /// Begins a list of requests; the doorbell rings when the list is dropped.
    pub(crate) fn begin(&self) -> SendBatches<'_> {
        SendBatches { near: self.qp.send_batch(), far: self.far.as_ref().map(QueuePair::send_batch) }
    }
}

/// Requests that are being posted.
pub(crate) struct SendBatches<'a> {
    near: SendBatch<'a>,
    far: Option<SendBatch<'a>>,
}

/// Whether it is for the end where the peer's requests arrive: there a window is used.
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

    /// Posts a request, with the bytes that are to be copied now if it is inline.
    pub(crate) fn push(&mut self, request: &SendRequest, inline: Option<&[&[u8]]>) -> Outcome<()> {
        let batch = self.of(&request.op);
        match inline {
            None => Ok(batch.push(request)?),
            Some(parts) => Ok(batch.push_inline(request, parts)?),
        }
    }

    /// Whether [`push`](Self::push) would post it, if there is room.
    pub(crate) fn check(&mut self, request: &SendRequest, inline: Option<&[u8]>) -> Outcome<()> {
        let batch = self.of(&request.op);
        match inline {
            None => Ok(batch.check(request)?),
            Some(bytes) => Ok(batch.check_inline(request, bytes.len())?),
        }
    }
}
