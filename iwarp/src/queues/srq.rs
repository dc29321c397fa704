//! Shared receive queues: one pool of buffers for many queue pairs, of any engines (RFC 5042 section
//! 6.4.3.1).
//!
//! A buffer is taken when a message begins, so an idle stream holds none. What protects the others from a
//! stream that takes too many:
//!
//! | | here |
//! |---|---|
//! | per-stream limit | [`QpInit::max_recv_wr`](super::QpInit::max_recv_wr): who holds as many is terminated by the next message, 1/2/02 |
//! | high-water mark | [`QpInit::high_water`](super::QpInit::high_water): an event names the queue pair |
//! | low-water mark | [`SharedReceiveQueue::arm_limit`]: an event when few buffers are left |
//! | who took how many | [`QpAttr::recv_taken`](crate::verbs::QpAttr::recv_taken) and its neighbours |

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use super::usage::{Permit, within};
use super::{AsyncEventKind, ProtectionDomain, RecvRequest, Resources, VerbsError};

/// How a shared receive queue is made (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receive requests outstanding: one counts until its completion is reaped.
    pub max_wr: usize,
    /// Elements of one request.
    pub max_sge: usize,
}

impl Default for SrqInit {
    /// 1024 requests of up to [`MAX_SGE`](super::MAX_SGE) elements.
    fn default() -> Self {
        Self { max_wr: 1024, max_sge: super::MAX_SGE }
    }
}

/// A shared receive queue as it is now (`ibv_query_srq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Its depth.
    pub max_wr: usize,
    /// Elements of one request.
    pub max_sge: usize,
    /// The limit that is armed; 0: none.
    pub limit: usize,
    /// Requests that wait for messages.
    pub posted: usize,
    /// Requests whose completion is not reaped, those that wait included.
    pub outstanding: usize,
}

/// A queue of receive buffers for several queue pairs of its protection domain
/// ([`QpInit::srq`](super::QpInit::srq)). Cheap to clone.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    pub(crate) shared: Arc<SrqShared>,
}

pub(crate) struct SrqShared {
    pub(crate) num: u32,
    pub(crate) pd: ProtectionDomain,
    pub(crate) max_wr: usize,
    max_sge: usize,
    requests: ArrayQueue<RecvRequest>,
    /// Requests in `requests`; counted before they are entered.
    posted: AtomicUsize,
    /// Requests whose completion is not reaped.
    outstanding: Arc<AtomicUsize>,
    /// An event is due when fewer than this are posted; 0: not armed.
    limit: AtomicUsize,
    _permit: Permit,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, init: &SrqInit) -> Result<Self, VerbsError> {
        let SrqInit { max_wr, max_sge } = *init;
        let context = &pd.shared.resources;
        if max_wr == 0 {
            return Err(VerbsError::Invalid(
                "a shared receive queue needs room for at least one request".into(),
            ));
        }
        within("max_srq_wr", max_wr, context.limits.max_srq_wr)?;
        within("MAX_SGE", max_sge, super::MAX_SGE)?;
        let shared = SrqShared {
            num: context.next_srq_num(),
            pd: pd.clone(),
            max_wr,
            max_sge,
            requests: ArrayQueue::new(max_wr),
            posted: AtomicUsize::new(0),
            outstanding: Arc::new(AtomicUsize::new(0)),
            limit: AtomicUsize::new(0),
            _permit: context.quotas.srq.take(1)?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its number, as asynchronous events name it.
    pub fn srq_num(&self) -> u32 {
        self.shared.num
    }

    /// Posts a receive buffer, from any thread (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`VerbsError`]; nothing was posted.
    pub fn post_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        self.shared.post(request)
    }

    /// Posts several.
    ///
    /// # Errors
    /// How many were posted, and why the next one was refused.
    pub fn post_recv_list(&self, requests: &[RecvRequest]) -> Result<(), (usize, VerbsError)> {
        super::post_each(requests, |request| self.shared.post(request))
    }

    /// Asks for one [`AsyncEventKind::SrqLimitReached`] when fewer than `limit` requests wait; at once, if
    /// that is so now. 0 takes it back (`ibv_modify_srq` with `IBV_SRQ_LIMIT`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a limit beyond the queue's depth.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        let shared = &self.shared;
        if limit > shared.max_wr {
            return Err(VerbsError::Invalid(format!(
                "a limit of {limit} is beyond the {} requests of the queue: arm a lower one",
                shared.max_wr
            )));
        }
        shared.limit.store(limit, Ordering::Release);
        // Against the fence in `take`: either a taker sees the limit, or we see what it has left.
        fence(Ordering::SeqCst);
        shared.check_limit(shared.posted.load(Ordering::Acquire));
        Ok(())
    }

    /// Depth, limit, and how full it is (`ibv_query_srq`).
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
    fn resources(&self) -> &Arc<Resources> {
        &self.pd.shared.resources
    }

    /// Where queue pairs count down what they have reaped.
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
            // Not reached: there is a place in the queue for each that is outstanding.
            self.posted.fetch_sub(1, Ordering::AcqRel);
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            return Err(VerbsError::QueueFull("shared receive"));
        }
        Ok(())
    }

    /// Takes the oldest request, for a message that begins.
    pub(crate) fn take(&self) -> Option<RecvRequest> {
        let request = self.requests.pop()?;
        let left = self.posted.fetch_sub(1, Ordering::AcqRel) - 1;
        fence(Ordering::SeqCst);
        self.check_limit(left);
        Some(request)
    }

    /// Makes the event, once, where fewer than the limit are left.
    fn check_limit(&self, left: usize) {
        let limit = self.limit.load(Ordering::Relaxed);
        if left < limit && self.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.resources().events.push(AsyncEventKind::SrqLimitReached, self.num, None);
        }
    }
}
