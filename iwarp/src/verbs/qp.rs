//! Queue pairs.

use super::{CompletionQueue, RecvRequest, SendRequest, StreamError, VerbsError};

/// How a queue pair is made (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send completions go.
    pub send_cq: &'a CompletionQueue,
    /// Where receive completions go; may be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Send requests outstanding.
    pub max_send_wr: usize,
    /// Receive requests outstanding.
    pub max_recv_wr: usize,
    /// Every send request makes a completion, signalled or not.
    pub sq_sig_all: bool,
}

impl<'a> QpInit<'a> {
    /// 128 requests each way, one completion queue for both.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self { send_cq: cq, recv_cq: cq, max_send_wr: 128, max_recv_wr: 128, sq_sig_all: false }
    }
}

/// States of RFC 5040 section 6 (and of the iWARP verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Not connected. Receives may be posted.
    Idle,
    /// Connected: everything may be posted.
    Rts,
    /// A graceful close is under way: nothing new is sent.
    Closing,
    /// A Terminate was sent or received, or the connection failed: work is being flushed.
    Terminate,
    /// Over. Everything posted is flushed.
    Error,
}

/// A queue pair: one RDMA stream. Cheap to clone.
#[derive(Clone)]
pub struct QueuePair {}

pub(crate) struct QpShared {}

impl QueuePair {
    /// Its number, unique in the context while it lives.
    pub fn qp_num(&self) -> u32 {
        todo!()
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        todo!()
    }

    /// Posts to the send queue, from any thread (`ibv_post_send`). Requests complete in the order posted.
    ///
    /// In `Closing`, `Terminate` and `Error` the request is taken and completes as flushed.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let _ = request;
        todo!()
    }

    /// Posts several, ringing the doorbell once. Returns how many were posted with the error that stopped it.
    ///
    /// # Errors
    /// The count posted, and why the next one was refused.
    pub fn post_send_list(&self, requests: &[SendRequest]) -> Result<(), (usize, VerbsError)> {
        let _ = requests;
        todo!()
    }

    /// Posts a receive buffer, from any thread, in any state but `Error` (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let _ = request;
        todo!()
    }

    /// The error that ended the stream, found here or told by the peer's Terminate.
    pub fn error(&self) -> Option<StreamError> {
        todo!()
    }
}
