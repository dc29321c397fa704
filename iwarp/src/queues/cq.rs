//! Completion queues.
//!
//! # Overflow
//!
//! A completion for which there is no room is lost, and with it the queue: a
//! [`CqError`](AsyncEventKind::CqError) event is made and every queue pair that completes here ends (its peer
//! is sent a Terminate 0/0, local catastrophic). Queue pairs on other completion queues do not notice (RFC
//! 5042 section 6.4.6). [`cqe_for`] computes a size that cannot overflow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dp::profile::{self, Layer};

use super::arm::Arm;
use super::cq_users::CqUsers;
use super::places::Place;
use super::ring::{ResizeError, Ring};
use super::usage::{Permit, within};
use super::{AsyncEventKind, CompletionChannel, QpShared, Resources, VerbsError, WcStatus, WorkCompletion};

/// How a completion queue is made.
#[derive(Clone, Copy)]
pub struct CqOptions<'a> {
    /// Entries.
    pub cqe: usize,
    /// Where its events go.
    pub channel: Option<&'a CompletionChannel>,
    /// Whether a queue pair that could make it overflow is refused: one with which the depths of all queues
    /// that complete here exceed the entries. `None`: as soon as queue pairs of several protection domains
    /// share it, since these may not trust each other (RFC 5042 section 6.4.3.2).
    pub strict: Option<bool>,
}

impl CqOptions<'_> {
    /// `cqe` entries, without a channel, strict where several protection domains share it.
    pub fn new(cqe: usize) -> Self {
        Self { cqe, channel: None, strict: None }
    }
}

/// Entries that a completion queue needs so as never to overflow: one for each request of each queue that
/// completes there (RFC 5042 section 6.4.3.2). `depths` are those of the send queues, receive queues and
/// shared receive queues (each once), as given when they are made: `max_send_wr`, `max_recv_wr`, `max_wr`.
/// Posting beyond them is refused until completions are reaped, so this also holds for programs that post as
/// much as they can.
pub fn cqe_for(depths: impl IntoIterator<Item = usize>) -> usize {
    depths.into_iter().fold(0, usize::saturating_add)
}

/// A completion queue as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqAttr {
    /// Entries.
    pub cqe: usize,
    /// Completions that wait to be reaped.
    pub waiting: usize,
    /// Entries that the queues attached need so that it cannot overflow ([`cqe_for`]).
    pub needed: usize,
    /// Completions that were lost.
    pub lost: u64,
}

/// A completion queue. Cheap to clone. Several queue pairs, of several engines, may share one.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

/// A completion, and the place that it gives back when it is reaped.
struct Entry {
    completion: WorkCompletion,
    place: Place,
}

impl Entry {
    fn reap(self) -> WorkCompletion {
        self.place.give_back();
        self.completion
    }
}

pub(crate) struct CqShared {
    num: u32,
    entries: Ring<Entry>,
    channel: Option<CompletionChannel>,
    arm: Arm,
    /// Completions were lost.
    overflowed: AtomicBool,
    /// ... and its users have not been told.
    unsettled: AtomicBool,
    lost: AtomicU64,
    users: Mutex<CqUsers>,
    _permit: Permit,
    resources: Arc<Resources>,
}

impl CqShared {
    /// Adds a completion, from any thread and holding no lock.
    pub(crate) fn push(&self, completion: WorkCompletion, place: Place) {
        self.enter(completion, place);
        self.settle();
    }

    /// Adds a completion. Without room it is lost, and [`settle`](Self::settle) is due.
    pub(crate) fn enter(&self, completion: WorkCompletion, place: Place) {
        let solicited = completion.solicited || completion.status != WcStatus::Success;
        if let Err(entry) = self.entries.push(Entry { completion, place }) {
            entry.reap();
            self.lost.fetch_add(1, Ordering::Relaxed);
            if !self.overflowed.swap(true, Ordering::AcqRel) {
                self.unsettled.store(true, Ordering::Release);
            }
        }
        if self.arm.fires(solicited)
            && let Some(channel) = &self.channel
        {
            channel.notifier.notify();
        }
    }

    /// Ends every queue pair that completes here, if completions were lost since the last call. The caller
    /// holds no lock.
    pub(crate) fn settle(&self) {
        if !self.unsettled.load(Ordering::Relaxed) || !self.unsettled.swap(false, Ordering::AcqRel) {
            return;
        }
        // RFC 5040 section 8.1.1 (RDMAP-360): an overflow ends the queue pairs that complete here, and no
        // others.
        self.resources.events.push(AsyncEventKind::CqError, self.num, None);
        let mut after = None;
        loop {
            // One at a time: a queue pair that goes with our reference to it takes the lock itself.
            let next = self.users().next(after);
            let Some(qp) = next else { return };
            after = Some(qp.num);
            qp.fail_for_cq();
        }
    }

    /// A queue pair is to complete here.
    ///
    /// # Errors
    /// [`VerbsError::CqTooSmall`] where that is checked, [`VerbsError::CqOverflowed`].
    pub(crate) fn attach(&self, qp: &Arc<QpShared>) -> Result<(), VerbsError> {
        let mut users = self.users();
        if self.overflowed.load(Ordering::Acquire) {
            return Err(VerbsError::CqOverflowed);
        }
        users.attach(qp, qp.demand(self), self.entries.capacity())
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// A queue pair is gone.
    pub(crate) fn detach(&self, qp_num: u32) {
        self.users().detach(qp_num);
    }

    fn users(&self) -> MutexGuard<'_, CqUsers> {
        self.users.lock().expect("no holder of this lock panics")
    }
}

impl CompletionQueue {
    pub(crate) fn new(resources: Arc<Resources>, options: &CqOptions<'_>) -> Result<Self, VerbsError> {
        let CqOptions { cqe, channel, strict } = *options;
        check_cqe(&resources, cqe)?;
        let permit = resources.quotas.cq.take(1)?;
        // RFC 5040 section 8.1.2 (RDMAP-368): entries of all completion queues count against one limit.
        let users = Mutex::new(CqUsers::new(strict, resources.quotas.cqe.take(cqe)?));
        let shared = CqShared {
            num: resources.next_cq_num(),
            entries: Ring::new(cqe),
            channel: channel.cloned(),
            arm: Arm::new(),
            overflowed: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            users,
            _permit: permit,
            resources,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its number, as asynchronous events name it.
    pub fn cq_num(&self) -> u32 {
        self.shared.num
    }

    /// Moves completions into `out`, oldest first; returns how many (`ibv_poll_cq`).
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let _poll = profile::scope(Layer::Poll);
        let mut places = out.iter_mut();
        self.shared.entries.take(places.len(), |entry| {
            if let Some(place) = places.next() {
                *place = entry.reap();
            }
        })
    }

    /// The oldest completion, if any.
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        let _poll = profile::scope(Layer::Poll);
        self.shared.entries.pop().map(Entry::reap)
    }

    /// Asks for one event on the channel when the next completion comes (`ibv_req_notify_cq`); with
    /// `solicited_only` when the next solicited or failed one comes. Completions that are there already make
    /// no event: arm, then poll once more.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when the queue has no channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.shared.channel.is_none() {
            return Err(VerbsError::Invalid("this completion queue was made without a channel".into()));
        }
        self.shared.arm.arm(solicited_only);
        Ok(())
    }

    /// Changes the number of entries, while it is used (`ibv_resize_cq`). No completion is lost, and their
    /// order stays. Until those that wait now are reaped, a few more than `cqe` fit.
    ///
    /// # Errors
    /// The queue is as it was: [`VerbsError::Limit`]; [`VerbsError::Invalid`] for 0 entries, fewer than wait
    /// now, or while completions from before the last resize wait; [`VerbsError::CqTooSmall`] where that is
    /// checked.
    pub fn resize(&self, cqe: usize) -> Result<(), VerbsError> {
        let shared = &self.shared;
        check_cqe(&shared.resources, cqe)?;
        // Held throughout: nothing attaches, and nobody else resizes.
        let mut users = shared.users();
        users.check(cqe)?;
        let more = shared.resources.quotas.cqe.take(cqe.saturating_sub(users.granted.count()))?;
        shared.entries.resize(cqe).map_err(|error| match error {
            ResizeError::TooSmall(waiting) => VerbsError::Invalid(format!(
                "{waiting} completions wait: reap them, or leave the completion queue more than {cqe} entries"
            )),
            ResizeError::Busy => VerbsError::Invalid(
                "completions from before the last resize wait: reap them before the next one".into(),
            ),
        })?;
        users.granted.merge(more);
        users.granted.shrink_to(cqe);
        Ok(())
    }

    /// Whether completions were lost because nobody reaped them. The queue serves no further queue pairs
    /// then.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }

    /// Its size, and how full it is.
    pub fn query(&self) -> CqAttr {
        let shared = &self.shared;
        CqAttr {
            cqe: shared.entries.capacity(),
            waiting: shared.entries.len(),
            needed: shared.users().needed(),
            lost: shared.lost.load(Ordering::Relaxed),
        }
    }
}

fn check_cqe(resources: &Resources, cqe: usize) -> Result<(), VerbsError> {
    if cqe == 0 {
        return Err(VerbsError::Invalid("a completion queue needs at least one entry".into()));
    }
    within("max_cqe", cqe, resources.limits.max_cqe)
}
