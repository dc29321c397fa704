//! Shared receive queues: one pool of receive buffers for many queue pairs, which may belong to different
//! engines (RFC 5042 section 6.4.3.1).
//!
//! A queue pair takes a buffer when a message begins, so an idle stream holds no buffer. Four mechanisms
//! protect the other streams from a stream that takes too many buffers:
//!
//! | mechanism | implementation |
//! |---|---|
//! | per-stream limit | [`QpInit::max_recv_wr`](super::QpInit::max_recv_wr): a queue pair that holds this number of buffers gets no further buffer, and the next message ends its stream with 1/2/02 |
//! | high-water mark | [`QpInit::high_water`](super::QpInit::high_water): an event names a queue pair that holds more buffers |
//! | low-water mark | [`SharedReceiveQueue::arm_limit`]: an event says that few buffers are left |
//! | counters | [`QpAttr::recv_taken`](crate::verbs::QpAttr::recv_taken) and the fields next to it |

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};

use crossbeam_queue::ArrayQueue;

use super::line::{RecvLine, TurnCell, Waiter};
use super::usage::{Permit, within};
use super::{AsyncEventKind, EventSource, PdShared, RecvRequest, VerbsError};

/// Options of a new shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Maximum number of outstanding receive requests. A request counts until its completion is polled.
    /// Default: 1024.
    pub max_wr: usize,
    /// Maximum number of elements of one request. Default: [`MAX_SGE`](super::MAX_SGE).
    pub max_sge: usize,
    /// Whether the queue refuses queue pairs of other protection domains. If `false`, the queue also serves
    /// such queue pairs, as on InfiniBand: their messages are placed in buffers of this queue's protection
    /// domain. Default: `true`.
    pub one_pd: bool,
}

impl Default for SrqInit {
    /// At most 1024 requests (eight times the default depth of a receive queue) of up to
    /// [`MAX_SGE`](super::MAX_SGE) elements, only for queue pairs of the queue's own protection domain.
    fn default() -> Self {
        Self { max_wr: 1024, max_sge: super::MAX_SGE, one_pd: true }
    }
}

/// The state of a shared receive queue (`ibv_query_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// The depth of the queue, as in [`SrqInit::max_wr`].
    pub max_wr: usize,
    /// Maximum number of elements of one request.
    pub max_sge: usize,
    /// The armed limit, or 0 if no limit is armed.
    pub limit: usize,
    /// Number of requests that wait for messages.
    pub posted: usize,
    /// Number of requests whose completion has not been polled, including requests that wait for messages.
    pub outstanding: usize,
}

/// A queue of receive buffers for several queue pairs ([`QpInit::srq`](super::QpInit::srq)). This value is
/// cheap to clone.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    pub(crate) shared: Arc<SrqShared>,
}

pub(crate) struct SrqShared {
    pub(crate) num: u32,
    pub(crate) pd: Arc<PdShared>,
    pub(crate) max_wr: usize,
    max_sge: usize,
    /// The value of [`SrqInit::one_pd`].
    pub(super) one_pd: bool,
    requests: ArrayQueue<RecvRequest>,
    /// Number of requests in `requests`. A request is counted before it is added.
    posted: AtomicUsize,
    /// Number of requests whose completion has not been polled.
    outstanding: Arc<AtomicUsize>,
    /// The limit (`srq_limit`): the SRQ_LIMIT_REACHED event is generated when fewer requests than this number
    /// are posted. 0 means that no limit is armed.
    limit: AtomicUsize,
    /// The queue pairs whose messages wait for a request.
    line: RecvLine,
    events: EventSource,
    _permit: Permit,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &Arc<PdShared>, init: &SrqInit) -> Result<Self, VerbsError> {
        let SrqInit { max_wr, max_sge, one_pd } = *init;
        let context = &pd.resources;
        if max_wr == 0 {
            return Err(VerbsError::Invalid(
                "a shared receive queue needs room for at least one request".into(),
            ));
        }
        within("max_srq_wr", max_wr, context.limits.max_srq_wr)?;
        within("MAX_SGE", max_sge, super::MAX_SGE)?;
        let num = context.next_srq_num()?;
        let shared = SrqShared {
            num,
            pd: Arc::clone(pd),
            max_wr,
            max_sge,
            one_pd,
            requests: ArrayQueue::new(max_wr),
            posted: AtomicUsize::new(0),
            outstanding: Arc::new(AtomicUsize::new(0)),
            limit: AtomicUsize::new(0),
            line: RecvLine::new(),
            events: EventSource::new(&context.events, num),
            _permit: context.quotas.srq.take(1)?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The number that names this queue in asynchronous events.
    pub fn srq_num(&self) -> u32 {
        self.shared.num
    }

    /// Posts a receive buffer, from any thread (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`VerbsError::QueueFull`] if the queue already has its maximum number of outstanding requests.
    /// [`VerbsError::TooManySge`], [`VerbsError::TooLong`] or [`VerbsError::LocalProtection`] if the number,
    /// the length or the memory of the elements is not allowed. (With
    /// [`ContextConfig::late_memory_checks`](crate::verbs::ContextConfig::late_memory_checks) the memory is
    /// checked when a message arrives.) After an error the request is not posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        self.shared.post(request)
    }

    /// Posts several requests.
    ///
    /// # Errors
    /// The number of posted requests, and the error with which the next request was refused.
    pub fn post_recv_list(&self, requests: &[RecvRequest]) -> Result<(), (usize, VerbsError)> {
        super::post_each(requests, |request| self.shared.post(request))
    }

    /// Requests one [`AsyncEventKind::SrqLimitReached`] event for the time when fewer than `limit` requests
    /// are posted. If fewer requests are already posted, the event is generated at once. A limit of 0 cancels
    /// the request for the event (`ibv_modify_srq` with `IBV_SRQ_LIMIT`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the limit exceeds the queue's depth.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        let shared = &self.shared;
        if limit > shared.max_wr {
            return Err(VerbsError::Invalid(format!(
                "a limit of {limit} is beyond the {} requests of the queue: arm a lower one",
                shared.max_wr
            )));
        }
        shared.limit.store(limit, Ordering::Release);
        // This fence pairs with the fence in `take`: either the thread that takes a request sees the limit,
        // or this thread sees the lower count.
        fence(Ordering::SeqCst);
        shared.check_limit(shared.posted.load(Ordering::Acquire));
        Ok(())
    }

    /// Returns depth, limit and fill level (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        let shared = &self.shared;
        SrqAttr {
            max_wr: shared.max_wr,
            max_sge: shared.max_sge,
            limit: shared.limit.load(Ordering::Acquire),
            posted: shared.posted.load(Ordering::Acquire),
            outstanding: shared.outstanding.load(Ordering::Acquire),
        }
    }
}

impl SrqShared {
    /// Returns the count of outstanding requests, which a queue pair lowers when a completion is polled.
    pub(crate) fn outstanding(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.outstanding)
    }

    fn post(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        self.pd.check_recv(request, self.max_sge)?;
        let more = |count: usize| (count < self.max_wr).then_some(count + 1);
        if self.outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(VerbsError::QueueFull("shared receive"));
        }
        self.posted.fetch_add(1, Ordering::AcqRel);
        if self.requests.push(request.clone()).is_err() {
            // This code is never reached: the queue has an entry for each request that may be outstanding.
            self.posted.fetch_sub(1, Ordering::AcqRel);
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            return Err(VerbsError::QueueFull("shared receive"));
        }
        self.line.posted(|| self.requests.len());
        Ok(())
    }

    /// Does what [`take`](Self::take) does, for a queue pair whose messages may wait. Returns `None` if no
    /// request is posted, or if another queue pair must take the request first.
    pub(super) fn take_in_turn(&self, turn: &TurnCell) -> Option<RecvRequest> {
        if self.line.take_turn(turn, || self.requests.len()) { self.take() } else { None }
    }

    /// Adds `who` to the line, because a message to `who` waits for a request.
    pub(super) fn wait_in_line(&self, who: Weak<dyn Waiter>, turn: &TurnCell) {
        self.line.enter(who, turn, || self.requests.len());
    }

    /// Removes a queue pair from the line, because no message to it waits any more.
    pub(super) fn leave_line(&self, turn: &TurnCell) {
        self.line.leave(turn, || self.requests.len());
    }

    /// Adds a queue pair whose messages may wait.
    pub(super) fn join_line(&self) {
        self.line.join();
    }

    /// Removes a queue pair whose messages might wait.
    pub(super) fn quit_line(&self) {
        self.line.quit();
    }

    #[cfg(test)]
    pub(super) fn line_members(&self) -> usize {
        self.line.members()
    }

    /// Removes and returns the oldest request, if any, for a message that begins.
    pub(crate) fn take(&self) -> Option<RecvRequest> {
        let request = self.requests.pop()?;
        let left = self.posted.fetch_sub(1, Ordering::AcqRel) - 1;
        fence(Ordering::SeqCst);
        self.check_limit(left);
        Some(request)
    }

    /// Generates the event, once, if `left` is less than the limit.
    fn check_limit(&self, left: usize) {
        let limit = self.limit.load(Ordering::Relaxed);
        if left < limit && self.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.events.push(AsyncEventKind::SrqLimitReached, None);
        }
    }
}
