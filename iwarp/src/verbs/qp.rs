//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bitflags::bitflags;
use dp::profile::{self, Layer};

use crate::rdmap::Extensions;

use super::{
    CompletionQueue, MAX_INLINE, MAX_SGE, ProtectionDomain, RecvRequest, SendRequest, SharedReceiveQueue,
    StreamError, TerminateReport, VerbsError,
};

mod post;
mod shared;

pub(crate) use shared::{Ask, Payload, QpShared, SendEntry, send_opcode};

/// How a queue pair is made (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send completions go.
    pub send_cq: &'a CompletionQueue,
    /// Where receive completions go; may be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Where receive buffers come from, if not from a queue of its own; of the same protection domain.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Send requests outstanding: a request counts until its completion is reaped.
    pub max_send_wr: usize,
    /// Receive requests outstanding: a request counts until its completion is reaped. With a shared receive queue: how many
    /// of its buffers this queue pair may hold, each from the beginning of a message until its completion is reaped. The
    /// peer's next message then finds no buffer (Terminate 1/2/02), as it would in a queue of its own of this depth.
    pub max_recv_wr: usize,
    /// With a shared receive queue: an [`AsyncEventKind::QpHighWater`](super::AsyncEventKind::QpHighWater) is made, once,
    /// when this queue pair holds more buffers than this; 0: none.
    pub high_water: usize,
    /// Elements of one send request, at most [`MAX_SGE`].
    pub max_send_sge: usize,
    /// Elements of one receive request, at most [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// Octets of one inline request, at most [`MAX_INLINE`].
    pub max_inline: usize,
    /// Every send request makes a completion, signalled or not.
    pub sq_sig_all: bool,
    /// The messages of RFC 7306 that may be posted and are understood from the peer; all of them by default. What is
    /// left out is refused when posted, and answered as an unexpected opcode when the peer tries it. Nothing of this
    /// goes over the wire: see the crate's front page on finding out what the peer understands.
    pub extensions: Extensions,
    /// What its send queue may do to STags.
    pub grants: QpGrants,
}

bitflags! {
    /// What a send queue may do to STags, beside invalidating them: nothing, by default (RFC 5042 section 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpGrants: u8 {
        /// Memory windows may be bound.
        const BIND_WINDOWS = 1 << 0;
        /// Memory may be registered fast.
        const FAST_REGISTER = 1 << 1;
    }
}

impl<'a> QpInit<'a> {
    /// 128 requests each way, one completion queue for both, nothing shared, every extension.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            high_water: 0,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            sq_sig_all: false,
            extensions: Extensions::all(),
            grants: QpGrants::empty(),
        }
    }
}

/// States of RFC 5040 section 6 (and of the iWARP verbs).
///
/// | state | `post_send` | `post_recv` | entered by |
/// |---|---|---|---|
/// | `Idle` | refused | waits | creation |
/// | `Rts` | is sent | waits | `connect`, `accept` |
/// | `Closing` | refused | waits | `disconnect`, the peer's FIN, `modify` |
/// | `Terminate` | is flushed | is flushed | an error, `modify` |
/// | `Error` | is flushed | is flushed | the end of the connection, `modify` |
///
/// Once `disconnect` or `modify` to `Closing` is called, `post_send` is refused in every state, also before the engine has
/// entered `Closing` and after it has left it (RFC 5041 section 6.2.1). A receive is no transfer: it may be posted until the
/// end, for messages of the peer that come before our FIN, and is flushed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected. Receives may be posted.
    Idle,
    /// Connected: everything may be posted.
    Rts,
    /// A graceful close is under way: what was posted before is sent, then FIN.
    Closing,
    /// A Terminate was sent or received, or the connection failed: work is being flushed.
    Terminate,
    /// Over. Everything posted is flushed.
    Error,
}

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
    /// Receive requests whose completion is not reaped: posted here or, with a shared receive queue, taken from it.
    pub recv_outstanding: usize,
    /// Receive requests taken for messages of the peer's, ever.
    pub recv_taken: u64,
    /// Of these, taken for a message that is not complete yet.
    pub recv_in_process: u64,
}

/// A queue pair: one RDMA stream. Cheap to clone; when the last clone is dropped an open connection is aborted, unless
/// its end is under way: a Terminate or FIN that is out is not cut short. So after
/// [`CmId::disconnect`](super::CmId::disconnect) keep it until the `Disconnected` event, or what is posted may be lost.
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
    /// In `Terminate` and `Error` the request is taken and completes as flushed. One that is posted while another thread asks
    /// for a graceful close is refused, or sent, or flushed.
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted. [`VerbsError::InvalidState`] in `Idle` and `Closing`, and always once our user has
    /// asked for a graceful close.
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

    /// Posts a receive buffer, from any thread (`ibv_post_recv`). In `Terminate` and `Error` it completes as flushed.
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
    /// Where it is already changes nothing. Connecting is [`CmId`](super::CmId)'s, and a queue pair serves one connection.
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

    /// Asks for one [`AsyncEventKind::SqDrained`](super::AsyncEventKind::SqDrained) when everything posted to the send queue
    /// is completed; at once, if it is. What is posted meanwhile is waited for as well.
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

    /// The Terminate that ended the stream, as it was sent or received: with the headers of the message at fault.
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

/// Posts until one is refused; then says how many were posted.
pub(crate) fn post_each<R>(
    requests: &[R],
    post: impl Fn(&R) -> Result<(), VerbsError>,
) -> Result<(), (usize, VerbsError)> {
    requests
        .iter()
        .enumerate()
        .try_for_each(|(posted, request)| post(request).map_err(|error| (posted, error)))
}
