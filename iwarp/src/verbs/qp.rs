//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dp::profile::{self, Layer};

use crate::queues::{Ask, QpShared, post_each};
use crate::rdmap::Extensions;

use super::{
    ProtectionDomain, QpInit, QpState, RecvRequest, SendRequest, SharedReceiveQueue, StreamError,
    TerminateReport, VerbsError,
};

/// A queue pair as it is now (`ibv_query_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// Its number.
    pub qp_num: u32,
    /// Its state.
    pub state: QpState,
    /// Number of its protection domain.
    pub pd_num: u32,
    /// Number of the completion queue of its send queue.
    pub send_cq: u32,
    /// Number of the completion queue of its receives.
    pub recv_cq: u32,
    /// Number of its shared receive queue.
    pub srq: Option<u32>,
    /// As in [`QpInit`].
    pub max_send_wr: usize,
    /// As in [`QpInit`].
    pub max_recv_wr: usize,
    /// As in [`QpInit`].
    pub max_send_sge: usize,
    /// As in [`QpInit`].
    pub max_recv_sge: usize,
    /// As in [`QpInit`].
    pub max_inline: usize,
    /// As in [`QpInit`].
    pub sq_sig_all: bool,
    /// Reads of ours that may be outstanding, once connected.
    pub ord: Option<u16>,
    /// Reads of the peer that are served at a time, once connected.
    pub ird: Option<u16>,
    /// The error that ended the stream.
    pub error: Option<StreamError>,
    /// Send requests posted and not completed.
    pub send_open: usize,
    /// Send requests whose completion is not reaped, open ones included.
    pub send_outstanding: usize,
    /// Receive requests whose completion is not reaped: posted here or, with a shared receive queue, taken
    /// from it.
    pub recv_outstanding: usize,
    /// Receive requests taken for messages of the peer's, ever.
    pub recv_taken: u64,
    /// Of these, taken for a message that is not complete yet.
    pub recv_in_process: u64,
}

/// A queue pair: one RDMA stream. Cheap to clone; when the last clone is dropped an open connection is
/// aborted, unless its end is under way: a Terminate or FIN that is out is not cut short. So after
/// [`CmId::disconnect`](super::CmId::disconnect) keep it until the `Disconnected` event, or what is posted
/// may be lost.
#[derive(Clone)]
pub struct QueuePair {
    pub(crate) shared: Arc<QpShared>,
    /// Told apart from `shared`, which the engine holds as well.
    pub(crate) owner: Arc<QpOwner>,
}

/// Aborts the connection when the user has let go of the queue pair.
pub(crate) struct QpOwner {
    shared: Arc<QpShared>,
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        self.shared.ask(Ask::Abandon);
    }
}

impl QueuePair {
    pub(crate) fn new(pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<Self, VerbsError> {
        let shared = QpShared::new(pd, init)?;
        Ok(Self { owner: Arc::new(QpOwner { shared: Arc::clone(&shared) }), shared })
    }

    /// Its number, unique in the context while it lives.
    pub fn qp_num(&self) -> u32 {
        self.shared.num
    }

    /// The messages of RFC 7306 that it was made with.
    pub fn extensions(&self) -> Extensions {
        self.shared.extensions
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Posts to the send queue, from any thread (`ibv_post_send`). Requests complete in the order posted.
    ///
    /// In `Terminate` and `Error` the request is taken and completes as flushed. One that is posted while
    /// another thread asks for a graceful close is refused, or sent, or flushed.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted. [`VerbsError::InvalidState`] in `Idle` and `Closing`, and always
    /// once our user has asked for a graceful close.
    pub fn post_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let _post = profile::scope(Layer::Post);
        self.shared.check_window_kind(&request.op)?;
        self.post_checked(request)
    }

    /// Posts a request whose window, if it binds one, is of the right type.
    pub(super) fn post_checked(&self, request: &SendRequest) -> Result<(), VerbsError> {
        self.shared.queue_send(request)?;
        self.shared.doorbell();
        Ok(())
    }

    /// Posts several, ringing the doorbell once. Returns how many were posted with the error that stopped it.
    ///
    /// # Errors
    /// The count posted, and why the next one was refused.
    pub fn post_send_list(&self, requests: &[SendRequest]) -> Result<(), (usize, VerbsError)> {
        let _post = profile::scope(Layer::Post);
        let result = post_each(requests, |request| {
            self.shared.check_window_kind(&request.op)?;
            self.shared.queue_send(request)
        });
        self.shared.doorbell();
        result
    }

    /// Posts a receive buffer, from any thread (`ibv_post_recv`). In `Terminate` and `Error` it completes as
    /// flushed.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let _post = profile::scope(Layer::Post);
        self.shared.queue_recv(request)?;
        self.shared.flush_late();
        Ok(())
    }

    /// Posts several.
    ///
    /// # Errors
    /// The count posted, and why the next one was refused.
    pub fn post_recv_list(&self, requests: &[RecvRequest]) -> Result<(), (usize, VerbsError)> {
        let _post = profile::scope(Layer::Post);
        let result = post_each(requests, |request| self.shared.queue_recv(request));
        self.shared.flush_late();
        result
    }

    /// Changes the state (`ibv_modify_qp`), for a connection in the engine's next turn:
    ///
    /// | to | from | what |
    /// |---|---|---|
    /// | `Closing` | `Rts` | what was posted before is sent, then FIN |
    /// | `Terminate` | `Rts`, `Closing` | the peer is told of a local catastrophic error (0/0/00), work is flushed |
    /// | `Error` | any | the connection is reset, work is flushed |
    ///
    /// Where it is already changes nothing. Connecting is [`CmId`](super::CmId)'s, and a queue pair serves
    /// one connection.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] for any other change.
    pub fn modify(&self, to: QpState) -> Result<(), VerbsError> {
        let from = self.shared.state();
        let ask = match (from, to) {
            (QpState::Rts, QpState::Closing) => Ask::Close,
            (QpState::Rts | QpState::Closing, QpState::Terminate) => Ask::Terminate,
            (QpState::Idle | QpState::Rts | QpState::Closing | QpState::Terminate, QpState::Error) => {
                Ask::Abort
            }
            _ if from == to => return Ok(()),
            _ => return Err(VerbsError::InvalidState(from)),
        };
        if ask == Ask::Close {
            self.shared.refuse_sends();
        }
        self.shared.ask(ask);
        Ok(())
    }

    /// Asks for one [`AsyncEventKind::SqDrained`](super::AsyncEventKind::SqDrained) when everything posted to
    /// the send queue is completed; at once, if it is. What is posted meanwhile is waited for as well.
    pub fn drain(&self) {
        self.shared.arm_drain();
    }

    /// Sets the mark of [`QpInit::high_water`] anew, also after its event; 0 takes it back.
    pub fn arm_high_water(&self, mark: usize) {
        self.shared.arm_high_water(mark);
    }

    /// The error that ended the stream, found here or told by the peer's Terminate.
    pub fn error(&self) -> Option<StreamError> {
        self.shared.ended().error
    }

    /// The Terminate that ended the stream, as it was sent or received: with the headers of the message at
    /// fault.
    pub fn terminate(&self) -> Option<Arc<TerminateReport>> {
        self.shared.ended().terminate.clone()
    }

    /// State, sizes, depths and counters (`ibv_query_qp`).
    pub fn query(&self) -> QpAttr {
        let shared = &self.shared;
        let depth = |depth: u32| u16::try_from(depth).ok();
        let done = shared.recv_done.load(Ordering::Acquire);
        QpAttr {
            qp_num: shared.num,
            state: shared.state(),
            pd_num: shared.pd.pd_num(),
            send_cq: shared.send_cq.cq_num(),
            recv_cq: shared.recv_cq.cq_num(),
            srq: shared.srq.as_ref().map(SharedReceiveQueue::srq_num),
            max_send_wr: shared.caps.max_send_wr,
            max_recv_wr: shared.caps.max_recv_wr,
            max_send_sge: shared.caps.max_send_sge,
            max_recv_sge: shared.caps.max_recv_sge,
            max_inline: shared.caps.max_inline,
            sq_sig_all: shared.sq_sig_all,
            ord: depth(shared.ord.load(Ordering::Acquire)),
            ird: depth(shared.ird.load(Ordering::Acquire)),
            error: self.error(),
            send_open: shared.places.open_sends(),
            send_outstanding: shared.places.sends(),
            recv_outstanding: shared.places.recvs(),
            recv_taken: shared.recv_taken.load(Ordering::Acquire),
            recv_in_process: shared.recv_taken.load(Ordering::Acquire).saturating_sub(done),
        }
    }
}
