//! Queue pairs.

use std::sync::Arc;
use std::time::Duration;

use dp::profile::{self, Layer};

use crate::memory::Access;
use crate::queues::{Ask, QpShared, post_each};
use crate::rdmap::Extensions;

use super::{
    ConnectionError, ProtectionDomain, QpInit, QpState, RecvRequest, SendRequest, StreamError,
    TerminateReport, VerbsError,
};

/// The state of a queue pair (`ibv_query_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// As [`QueuePair::qp_num`].
    pub qp_num: u32,
    /// The state at the time of the call.
    pub state: QpState,
    /// Number of the queue pair's protection domain.
    pub pd_num: u32,
    /// Number of the send queue's completion queue.
    pub send_cq: u32,
    /// Number of the receive queue's completion queue.
    pub recv_cq: u32,
    /// Number of the shared receive queue; `None`: the queue pair has its own receive queue.
    pub srq: Option<u32>,
    /// As in [`QpInit::max_send_wr`].
    pub max_send_wr: usize,
    /// As in [`QpInit::max_recv_wr`].
    pub max_recv_wr: usize,
    /// As in [`QpInit::max_send_sge`].
    pub max_send_sge: usize,
    /// As in [`QpInit::max_recv_sge`].
    pub max_recv_sge: usize,
    /// As in [`QpInit::max_inline`].
    pub max_inline: usize,
    /// As in [`QpInit::sq_sig_all`].
    pub sq_sig_all: bool,
    /// As in [`QpInit::early_sends`].
    pub early_sends: bool,
    /// As in [`QueuePair::set_remote_access`].
    pub remote_access: Access,
    /// Maximum number of our outstanding Reads and atomics; `None` before the queue pair is connected.
    pub ord: Option<u16>,
    /// Maximum number of the peer's Reads that are served at a time, and also of its atomics; `None` before
    /// the queue pair is connected.
    pub ird: Option<u16>,
    /// Whether both peers have agreed on [`ConnParam::ib_semantics`](super::ConnParam::ib_semantics); `None`
    /// before the queue pair is connected.
    pub ib_semantics: Option<bool>,
    /// As [`QueuePair::cause`].
    pub cause: Option<ConnectionError>,
    /// Number of posted send requests that are not completed.
    pub send_open: usize,
    /// Number of send requests whose completion has not been polled, including incomplete requests.
    pub send_outstanding: usize,
    /// Number of receive requests that were posted to the queue pair, or taken from the shared receive queue,
    /// and whose completion has not been polled.
    pub recv_outstanding: usize,
    /// Total number of receive requests taken for messages of the peer.
    pub recv_taken: u64,
    /// Number of taken receive requests whose message is not complete yet.
    pub recv_in_process: u64,
}

/// How a queue pair of type UD is opened ([`Context::open_datagrams`](super::Context::open_datagrams)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramOptions {
    /// The index of the engine. Default: 0.
    pub engine: usize,
    /// The number of the queue pair on the wire, from 1 to 0xFF_FFFE. Number 1 is that of the queue pair of
    /// connection managers ([`roce::sidr`](crate::roce::sidr)). `None`: [`QueuePair::qp_num`].
    pub number: Option<u32>,
    /// The Q_Key: datagrams with another Q_Key are dropped. Default: 0.
    pub qkey: u32,
}

/// A queue pair, which is one RDMA stream. Cheap to clone. Dropping the last clone aborts an open connection,
/// unless the stream has already failed or our FIN was sent. So after
/// [`CmId::disconnect`](super::CmId::disconnect) keep the queue pair until the `Disconnected` event;
/// otherwise posted requests may be lost.
pub struct QueuePair {
    /// The queue pair. The users' handles are counted separately, since the engine also has references.
    pub(crate) shared: Arc<QpShared>,
}

impl Clone for QueuePair {
    fn clone(&self) -> Self {
        let is_added = self.shared.signals.add_handle();
        debug_assert!(is_added, "this one is a handle");
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.shared.signals.drop_handle() {
            self.shared.ask(Ask::Abandon);
        }
    }
}

/// A batch of requests that are being posted ([`QueuePair::send_batch`]).
pub struct SendBatch<'a> {
    qp: &'a QpShared,
}

impl SendBatch<'_> {
    /// Posts a request, as [`QueuePair::post_send`] does.
    ///
    /// # Errors
    /// [`VerbsError`] if this request was not posted. The earlier requests are posted.
    pub fn push(&mut self, request: &SendRequest) -> Result<(), VerbsError> {
        self.qp.config.check_window_kind(&request.op)?;
        self.qp.queue_send(request)
    }

    /// Checks whether [`push`](Self::push) would post this request if the queue had room.
    ///
    /// # Errors
    /// The errors of [`push`](Self::push), except [`VerbsError::QueueFull`].
    pub fn check(&self, request: &SendRequest) -> Result<(), VerbsError> {
        self.qp.config.check_window_kind(&request.op)?;
        self.qp.check_send(request)
    }

    /// Checks whether [`push_inline`](Self::push_inline) would post this request with `bytes` bytes if the
    /// queue had room.
    ///
    /// # Errors
    /// The errors of [`push_inline`](Self::push_inline), except [`VerbsError::QueueFull`].
    pub fn check_inline(&self, request: &SendRequest, bytes: usize) -> Result<(), VerbsError> {
        self.qp.check_inline(request, bytes)
    }

    /// Posts an inline request with the bytes in `parts`, which are sent one part after the other. The bytes
    /// need not be registered. The request has no scatter/gather elements.
    ///
    /// # Errors
    /// The errors of [`push`](Self::push), and [`VerbsError::TooLong`] if there are more bytes than the queue
    /// pair's limit.
    pub fn push_inline(&mut self, request: &SendRequest, parts: &[&[u8]]) -> Result<(), VerbsError> {
        self.qp.queue_inline(request, parts)
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        self.qp.doorbell();
    }
}

impl QueuePair {
    pub(crate) fn new(pd: &ProtectionDomain, init: &QpInit<'_>) -> Result<Self, VerbsError> {
        Ok(Self { shared: QpShared::new(&pd.shared, init)? })
    }

    /// Returns another handle of the queue pair if a user still has a handle.
    pub(super) fn again(shared: Arc<QpShared>) -> Option<Self> {
        if shared.signals.add_handle() { Some(Self { shared }) } else { None }
    }

    /// Returns the number of the queue pair: from 2 to 0xFF_FFFE, and unique in the context. After the queue
    /// pair is destroyed, the number is reused only after all other numbers.
    pub fn qp_num(&self) -> u32 {
        self.shared.config.num
    }

    /// Returns the enabled messages of RFC 7306.
    pub fn extensions(&self) -> Extensions {
        self.shared.config.extensions
    }

    /// Whether the send queue has requests that are not complete.
    pub fn has_open_sends(&self) -> bool {
        self.shared.sends.open() > 0
    }

    /// Returns the state of the queue pair.
    pub fn state(&self) -> QpState {
        self.shared.state.get()
    }

    /// Posts a request to the send queue, from any thread (`ibv_post_send`). Requests complete in the order
    /// in which they are posted.
    ///
    /// In `Terminate` and `Error` the request is accepted and completes as flushed, unless the user has
    /// requested a graceful close. In `Idle` the request waits for the connection, if [`QpInit::early_sends`]
    /// is set. A request that is posted while another thread requests a graceful close is refused, sent or
    /// flushed.
    ///
    /// # Errors
    /// [`VerbsError`] if the request was not posted. The error is [`VerbsError::InvalidState`] in `Closing`,
    /// in `Idle` without [`QpInit::early_sends`], and in every state once the user has requested a graceful
    /// close; see [`take_late_sends`](Self::take_late_sends).
    pub fn post_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let _post = profile::scope(Layer::Post);
        self.shared.config.check_window_kind(&request.op)?;
        self.post_checked(request)
    }

    /// Posts a request. If the request binds a window, the caller has checked the type of the window.
    pub(super) fn post_checked(&self, request: &SendRequest) -> Result<(), VerbsError> {
        self.shared.queue_send(request)?;
        self.shared.doorbell();
        Ok(())
    }

    /// Posts several requests, and rings the doorbell once.
    ///
    /// # Errors
    /// The number of posted requests, and why the next request was refused.
    pub fn post_send_list(&self, requests: &[SendRequest]) -> Result<(), (usize, VerbsError)> {
        let _post = profile::scope(Layer::Post);
        let result = post_each(requests, |request| {
            self.shared.config.check_window_kind(&request.op)?;
            self.shared.queue_send(request)
        });
        self.shared.doorbell();
        result
    }

    /// Begins a batch of requests that are posted one by one. The doorbell rings when the batch is dropped.
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch { qp: &self.shared }
    }

    /// Posts a receive buffer, from any thread (`ibv_post_recv`). In `Terminate` and `Error` the receive
    /// completes as flushed.
    ///
    /// # Errors
    /// [`VerbsError`] if the receive was not posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let _post = profile::scope(Layer::Post);
        self.shared.queue_recv(request)?;
        self.shared.recv_posted();
        Ok(())
    }

    /// Posts several receive buffers.
    ///
    /// # Errors
    /// The number of posted receive buffers, and why the next buffer was refused.
    pub fn post_recv_list(&self, requests: &[RecvRequest]) -> Result<(), (usize, VerbsError)> {
        let _post = profile::scope(Layer::Post);
        let result = post_each(requests, |request| self.shared.queue_recv(request));
        self.shared.recv_posted();
        result
    }

    /// Changes the state (`ibv_modify_qp`). If there is a connection, its engine changes the state in its
    /// next poll:
    ///
    /// | to | from | effect |
    /// |---|---|---|
    /// | `Closing` | `Rts` | earlier requests are sent, then FIN |
    /// | `Closing` | `Orphaned` | requests are flushed |
    /// | `Terminate` | `Rts`, `Closing` | a Terminate for a local catastrophic error (0/0/00) is sent, requests are flushed |
    /// | `Error` | any | the connection is reset, requests are flushed |
    ///
    /// A change to the present state has no effect. To connect, use [`CmId`](super::CmId). A queue pair
    /// serves one connection.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] for any other change.
    pub fn modify(&self, to: QpState) -> Result<(), VerbsError> {
        let from = self.shared.state.get();
        let ask = match (from, to) {
            (QpState::Rts | QpState::Orphaned, QpState::Closing) if self.has_connections() => Ask::Close,
            (QpState::Rts | QpState::Closing, QpState::Terminate) => Ask::Terminate,
            (_, QpState::Error) if from != QpState::Error => Ask::Abort,
            _ if from == to => return Ok(()),
            _ => return Err(VerbsError::InvalidState(from)),
        };
        if ask == Ask::Close {
            self.shared.signals.refuse_sends();
        }
        self.shared.ask(ask);
        Ok(())
    }

    /// Whether the type of the queue pair has connections.
    fn has_connections(&self) -> bool {
        self.shared.config.qp_type.has_connections()
    }

    /// Gives up a peer that has not been reached. The oldest send completes with
    /// [`WcStatus::RetryExceeded`](super::WcStatus::RetryExceeded), all other requests are flushed, and the
    /// queue pair enters `Error`. A queue pair of type [`Uc`](super::QpType::Uc) instead drops its sends,
    /// which succeed, and can still be connected. Returns `false`, and has no effect, if the queue pair is no
    /// longer in `Idle`, for example because there is a connection.
    ///
    /// The engine must not make the connection during this call, so call this while the engine is not polled.
    pub fn give_up(&self) -> bool {
        self.shared.give_up()
    }

    /// Declares that the user no longer needs completions of this queue pair, as `ibv_destroy_qp` does. The
    /// queue pair's unpolled completions are removed from their completion queues, which frees their entries.
    /// From now on the queue pair's requests end without a completion, and without an event of a completion
    /// queue. The entries that its receives use in a shared receive queue become free.
    ///
    /// A thread that polls concurrently may still get earlier completions.
    pub fn discard_completions(&self) {
        self.shared.discard_completions();
    }

    /// Limits the peer's access to registered memory by messages of this queue pair, in addition to the
    /// limits of the STags (`qp_access_flags`). `access` is any set of the three remote rights. A new queue
    /// pair has all three rights. A message without the necessary right ends the stream, as it does if the
    /// STag lacks the right. The limit applies to messages that arrive after this call.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a right other than the three remote rights.
    pub fn set_remote_access(&self, access: Access) -> Result<(), VerbsError> {
        if !Access::REMOTE.contains(access) {
            return Err(VerbsError::Invalid("a queue pair has remote rights only".into()));
        }
        self.shared.attributes.set_remote_access(access);
        Ok(())
    }

    /// Sets the Q_Key of a queue pair of type UD: datagrams that arrive with another Q_Key are dropped.
    pub fn set_qkey(&self, qkey: u32) {
        self.shared.attributes.set_qkey(qkey);
    }

    /// Sets how often a message of ours is retried if it finds no receive request at the peer (`rnr_retry`):
    /// 0 to 6 times, or 7 for ever. After the last retry the request completes with
    /// [`WcStatus::RnrRetryExceeded`](super::WcStatus::RnrRetryExceeded), and the connection ends. The time
    /// between retries is the peer's [`ConnParam::min_rnr_timer`](super::ConnParam::min_rnr_timer), or 4 ms
    /// if that is shorter. The number applies to messages that begin to wait after this call, and only with
    /// [`ConnParam::ib_semantics`](super::ConnParam::ib_semantics). Before the first call, the peer's
    /// [`ConnParam::rnr_retry`](super::ConnParam::rnr_retry) applies.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a number above 7.
    pub fn set_rnr_retry(&self, retry: u8) -> Result<(), VerbsError> {
        if retry > super::RNR_RETRY_FOR_EVER {
            return Err(VerbsError::Invalid(format!("an rnr_retry of {retry}: use 0 to 7")));
        }
        self.shared.attributes.set_rnr_retry(retry);
        Ok(())
    }

    /// With [`ConnParam::outlives_peer`](super::ConnParam::outlives_peer): sets how long a request is retried
    /// after the peer has ended the connection, as InfiniBand does (`timeout` and `retry_cnt` of
    /// `ibv_qp_attr`). During this time, new sends and sends that the peer has not accepted wait. At the end
    /// of this time, the oldest of these sends fails. So a program whose peer ends first sees its earlier
    /// completions before this failure. A send that is posted later fails at once. Initially the time is
    /// zero. The time is at most 71 minutes.
    pub fn set_retry_time(&self, time: Duration) {
        self.shared.attributes.set_retry_time(time);
    }

    /// Accepts late sends, as the verbs of RDMA devices do. A send is late if it is posted in `Closing`, or
    /// in any state once the user has requested a graceful close. Late sends are not sent: they complete as
    /// flushed when the connection has ended, after all other requests. Without this call, the post of a late
    /// send is refused (RFC 5041 section 6.2.1).
    pub fn take_late_sends(&self) {
        self.shared.sends.take_late();
    }

    /// Requests one [`AsyncEventKind::SqDrained`](super::AsyncEventKind::SqDrained) event. The event is
    /// reported when all requests of the send queue are completed, including requests that are posted after
    /// this call. If no request is open, the event is reported at once. While the queue is
    /// [held](Self::hold_sends), requests that have not started do not count.
    pub fn drain(&self) {
        self.shared.arm_drain();
    }

    /// Starts no further request of the send queue (`IBV_QPS_SQD`). Requests that have started continue until
    /// they are complete. Requests may be posted, and wait for [`resume_sends`](Self::resume_sends) like the
    /// other waiting requests. An error flushes the waiting requests, and a graceful close does not wait for
    /// them.
    pub fn hold_sends(&self) {
        self.shared.sends.hold();
    }

    /// Starts requests again after [`hold_sends`](Self::hold_sends). Cancels a pending event of
    /// [`drain`](Self::drain).
    pub fn resume_sends(&self) {
        self.shared.resume_sends();
    }

    /// Sets the mark of [`QpInit::high_water`] again. The mark can be set even after its event. 0 disables
    /// the mark.
    pub fn arm_high_water(&self, mark: usize) {
        self.shared.receives.arm_high_water(&self.shared.signals, mark);
    }

    /// Returns the first known reason why the connection ended, or was not made. The reason is set before the
    /// first request is flushed, so the [completion](super::WorkCompletion::cause) of each flushed request
    /// contains it. Returns `None` before the end, and after an end by this side:
    /// [`CmId::disconnect`](super::CmId::disconnect), [`CmId::abort`](super::CmId::abort), a
    /// [change](Self::modify) to `Closing` or `Error`, or a drop.
    ///
    /// After a graceful close by the peer the reason is [`ConnectionError::PeerClosed`], although the event
    /// of the close has no error ([`CmEventKind::Disconnected`](super::CmEventKind::Disconnected)).
    pub fn cause(&self) -> Option<ConnectionError> {
        self.shared.state.cause()
    }

    /// Returns the error that ended the stream, found here or reported by a Terminate of the peer. If the
    /// peer's FIN arrived too early, for example in the middle of an FPDU, the error is 2/0/01 (layer, type,
    /// code). For every other end, returns `None`; see [`cause`](Self::cause).
    pub fn error(&self) -> Option<StreamError> {
        self.shared.state.error()
    }

    /// Returns the Terminate that ended the stream, with the headers of the failing message: the Terminate of
    /// the peer, or the Terminate of this side, even if it was not sent. Returns `None` if there was no
    /// Terminate, or if the peer's Terminate contained no readable error. In the latter case,
    /// [`error`](Self::error) is layer 0, type 2, code 0xFF.
    pub fn terminate(&self) -> Option<Arc<TerminateReport>> {
        self.shared.state.terminate()
    }

    /// Returns the state, sizes, depths and counters of the queue pair (`ibv_query_qp`).
    pub fn query(&self) -> QpAttr {
        let shared = &self.shared;
        let config = &shared.config;
        let [ord, ird] = shared.attributes.depths();
        let (recv_taken, recv_in_process) = shared.receives.taken();
        QpAttr {
            qp_num: config.num,
            state: shared.state.get(),
            pd_num: config.pd.id().0,
            send_cq: shared.sends.cq().num(),
            recv_cq: shared.receives.cq().num(),
            srq: shared.receives.shared_queue().map(|(num, _)| num),
            max_send_wr: shared.sends.depth(),
            max_recv_wr: shared.receives.depth(),
            max_send_sge: config.caps.max_send_sge(),
            max_recv_sge: config.caps.max_recv_sge(),
            max_inline: config.caps.max_inline(),
            sq_sig_all: shared.sends.signals_all(),
            early_sends: config.early_sends,
            remote_access: shared.attributes.remote_access(),
            ord,
            ird,
            ib_semantics: shared.attributes.ib_semantics(),
            cause: self.cause(),
            send_open: shared.sends.open() as usize,
            send_outstanding: shared.sends.used() as usize,
            recv_outstanding: shared.receives.used() as usize,
            recv_taken,
            recv_in_process,
        }
    }
}
