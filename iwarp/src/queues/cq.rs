//! Completion queues.
//!
//! # Overflow
//!
//! If a completion queue is full, it loses the next completion, and then accepts no further queue pairs. The
//! queue generates a [`CqError`](AsyncEventKind::CqError) event, and every queue pair that completes to this
//! queue ends. A Terminate 0/0 (local catastrophic error) is sent to each connected peer. Queue pairs of
//! other completion queues are not affected (RFC 5042 section 6.4.6). [`cqe_for`] computes a number of
//! entries with which the queue cannot overflow.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dp::profile::{self, Layer};

use super::arm::Arm;
use super::completions::{Added, Completions};
use super::cq_users::{AttachedQps, Demand};
use super::usage::{Permit, within};
use super::wqe::WqeCount;
use super::{
    AsyncEventKind, CompletionChannel, ConnectionError, EventSource, Resources, VerbsError, WcOpcode,
    WcStatus, WorkCompletion,
};

/// A function that is called with the number of an armed completion queue when this queue has an event
/// ([`CqOptions::handler`]). For each call of [`CompletionQueue::req_notify`] the function is called at most
/// once, and for several such calls in quick succession perhaps only once.
///
/// The handler runs on the thread that completes a request. Usually this is a thread that polls an engine.
/// Another thread of the program may also complete a request, for example a thread that posts to, modifies or
/// drops a queue pair, or that drops an engine. During the call the thread holds no lock of this crate,
/// except that of a `SharedEngine` that it polls or stops. So the handler may poll and arm completion queues,
/// post requests, and create and drop objects. But the thread may be inside an engine, which cannot do any
/// other work during the call. Therefore the handler must follow these rules:
///
/// - The handler returns soon, and takes only locks that no thread holds while calling this crate.
/// - The handler does not deregister or invalidate memory and does not free windows, since these calls wait
///   for engines.
/// - The handler does not poll, inspect or drop an engine: the engine that calls the handler is in use, and
///   dropping an engine waits for the engine's thread.
/// - The handler does not panic.
pub type CqEventHandler = Arc<dyn Fn(u32) + Send + Sync>;

/// Options of a new completion queue.
#[derive(Clone, Copy)]
pub struct CqOptions<'a> {
    /// Maximum number of completions that the queue can hold, at least 1 ([`cqe_for`] computes the number).
    pub cqe: usize,
    /// The channel for the queue's events. Without a channel and a handler the queue generates no events, and
    /// [`CompletionQueue::req_notify`] returns an error. Default: `None`.
    pub channel: Option<&'a CompletionChannel>,
    /// The handler for the queue's events, instead of a channel. A channel only counts the events of its
    /// completion queues; a handler receives the number of the queue that has the event. Default: `None`.
    pub handler: Option<&'a CqEventHandler>,
    /// Whether to refuse a queue pair with which the completion queue could overflow: the sum of the depths
    /// of all work queues that complete to it would exceed its number of entries. `None`: only while queue
    /// pairs of several protection domains share the completion queue, since their peers need not trust each
    /// other (RFC 5042 section 6.4.3.2). Default: `None`.
    pub strict: Option<bool>,
}

impl CqOptions<'_> {
    /// Returns options for a queue of `cqe` entries without a channel and a handler, and with `strict` set to
    /// `None`.
    pub fn new(cqe: usize) -> Self {
        Self { cqe, channel: None, handler: None, strict: None }
    }
}

/// Returns the number of entries with which a completion queue cannot overflow: one entry for each request of
/// each work queue that completes to it (RFC 5042 section 6.4.3.2). `depths` has the depths of the send
/// queues (`max_send_wr`), the receive queues (`max_recv_wr`) and the shared receive queues (`max_wr`, each
/// counted once). If a work queue has as many unpolled requests as its depth, further posts are refused. So
/// this number is sufficient even for programs that post as many requests as they can.
pub fn cqe_for(depths: impl IntoIterator<Item = usize>) -> usize {
    depths.into_iter().fold(0, usize::saturating_add)
}

/// The state of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqAttr {
    /// Maximum number of completions that the queue can hold.
    pub cqe: usize,
    /// Number of completions that wait to be polled.
    pub waiting: usize,
    /// Maximum number of entries that all attached work queues together can fill ([`cqe_for`]).
    pub needed: usize,
    /// Number of completions that were lost.
    pub lost: u64,
}

/// A completion queue. Several queue pairs, of several engines, may share a completion queue. This value is
/// cheap to clone.
///
/// [`CompletionChannel`](CompletionChannel#arm-poll-wait) describes how to wait for a completion.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

/// The place of a work queue at its completion queue. Dropping this value removes the work queue from the
/// completion queue.
pub(super) struct CqPlace {
    cq: CompletionQueue,
    /// The count of the work queue's used entries.
    wqes: Arc<WqeCount>,
    index: u32,
    /// The number of the work queue's queue pair, which each completion of the work queue contains.
    qp_num: u32,
}

impl CqPlace {
    /// Returns a place at `cq` for a work queue of queue pair `qp_num`. `wqes` counts the used entries of
    /// this work queue.
    pub(super) fn new(cq: &CompletionQueue, wqes: Arc<WqeCount>, qp_num: u32) -> Self {
        Self { cq: cq.clone(), index: cq.shared.entries.enter(Arc::clone(&wqes)), wqes, qp_num }
    }

    pub(super) fn cq(&self) -> &CqShared {
        &self.cq.shared
    }

    #[inline]
    pub(super) fn wqes(&self) -> &WqeCount {
        &self.wqes
    }

    /// Calls [`CqShared::report`] of the completion queue.
    #[inline]
    pub(super) fn report(&self) {
        self.cq.shared.report();
    }

    /// Returns the completion of a successful request.
    #[inline]
    pub(super) fn succeeded(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        WorkCompletion { byte_len, ..WorkCompletion::new(self.qp_num, wr_id, opcode, WcStatus::Success) }
    }

    /// Returns the completion of a failed request, with the cause of the connection's end.
    pub(super) fn failed(
        &self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        cause: Option<ConnectionError>,
    ) -> WorkCompletion {
        WorkCompletion { cause, ..WorkCompletion::new(self.qp_num, wr_id, opcode, status) }
    }

    /// Adds the completion of a request. Afterwards the caller must call [`report`](Self::report) while it
    /// holds no lock: the queue may be full and lose the completion, or the completion may generate an event.
    /// Only the holder of the queue pair's consumer calls this function.
    #[inline(always)]
    pub(super) fn push(&self, completion: WorkCompletion) {
        let solicited = completion.solicited || completion.status != WcStatus::Success;
        self.push_all(std::iter::once(completion), solicited);
    }

    /// Does what [`push`](Self::push) does, for several completions. `solicited` says whether at least one of
    /// these completions is a solicited event or an error.
    #[inline(always)]
    pub(super) fn push_all(
        &self,
        completions: impl ExactSizeIterator<Item = WorkCompletion>,
        solicited: bool,
    ) {
        let cq = &self.cq.shared;
        let first = match cq.entries.push(completions, self.index, &self.wqes) {
            Added::Except { lost: 0, first } => first,
            Added::Except { lost, first } => {
                self.wqes.free(lost);
                cq.lose(lost);
                first
            }
            Added::Silent(count) => return self.wqes.free(count),
        };
        if matches!(cq.events, Events::None) {
            return;
        }
        if solicited {
            cq.solicited.fetch_max(cq.entries.added(), Ordering::Release);
        }
        if cq.arm.fires(solicited) {
            cq.make_event(first);
        }
    }

    /// Removes the completions of the work queue from its completion queue. From now on requests generate no
    /// completions.
    pub(super) fn silence(&self) {
        self.cq.shared.entries.silence(self.index);
    }
}

impl Drop for CqPlace {
    fn drop(&mut self) {
        self.cq.shared.entries.leave(self.index);
    }
}

/// The receiver of the events of a completion queue.
enum Events {
    None,
    Channel(CompletionChannel),
    Handler(CqEventHandler),
}

/// The bit that is set when a completion is lost, and cleared before the queue pairs are ended.
const OVERFLOW: u8 = 1 << 0;
/// The bit that is set when an event is generated for a handler, and cleared before the handler is called.
const EVENT: u8 = 1 << 1;

pub(crate) struct CqShared {
    num: u32,
    entries: Completions,
    events: Events,
    arm: Arm,
    /// The number of added completions when the last solicited or failed completion was added.
    solicited: AtomicU64,
    /// The number of polled completions when the last event was generated, or `u64::MAX` before the first
    /// event.
    polled_at_event: AtomicU64,
    /// Whether a completion was lost.
    overflowed: AtomicBool,
    /// The bits `OVERFLOW` and `EVENT`, for [`report`](Self::report).
    unreported: AtomicU8,
    lost: AtomicU64,
    users: Mutex<AttachedQps>,
    errors: EventSource,
    _permit: Permit,
    resources: Arc<Resources>,
}

impl CqShared {
    /// Records that `count` completions were lost.
    #[cold]
    fn lose(&self, count: usize) {
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        if !self.overflowed.swap(true, Ordering::AcqRel) {
            self.unreported.fetch_or(OVERFLOW, Ordering::Release);
        }
    }

    /// Generates an event. The queue was armed, and a completion was added after `first` other completions.
    #[cold]
    fn make_event(&self, first: u64) {
        // A thread may have polled the completion before this call, so the number of polled completions alone
        // could hide that poll from `wake_for_missed`.
        self.polled_at_event.store(self.entries.taken().min(first), Ordering::Release);
        match &self.events {
            Events::None => {}
            Events::Channel(channel) => channel.notifier.notify(),
            // The handler is called later, in `report`, since this thread may hold locks that the handler
            // takes.
            Events::Handler(_) => {
                self.unreported.fetch_or(EVENT, Ordering::Release);
            }
        }
    }

    /// Generates the event for which the queue is armed, if completions wait and the user has polled since
    /// the last event. Such a user has seen the queue's end, or has left completions in the queue. A user who
    /// has not polled since the last event knows by this event that completions wait.
    fn wake_for_missed(&self, solicited_only: bool) {
        let taken = self.entries.taken();
        let newest =
            if solicited_only { self.solicited.load(Ordering::Acquire) } else { self.entries.added() };
        if newest > taken && self.polled_at_event.load(Ordering::Acquire) != taken && self.arm.fires(true) {
            self.make_event(taken);
            self.report();
        }
    }

    /// Reports what has happened since the last call. If a completion was lost, ends every queue pair that
    /// completes to this queue. If an event was generated, calls the handler. Each thread that has added
    /// completions calls this function afterwards, while it holds no lock except that of a `SharedEngine`.
    #[inline]
    pub(crate) fn report(&self) {
        if self.unreported.load(Ordering::Relaxed) != 0 {
            self.report_now();
        }
    }

    #[cold]
    fn report_now(&self) {
        let unreported = self.unreported.swap(0, Ordering::AcqRel);
        if let Events::Handler(handler) = &self.events
            && unreported & EVENT != 0
        {
            handler(self.num);
        }
        if unreported & OVERFLOW != 0 {
            self.end_queue_pairs();
        }
    }

    #[cold]
    fn end_queue_pairs(&self) {
        // RFC 5040 section 8.1.1 (RDMAP-360): an overflow ends the queue pairs that complete to this queue,
        // and no other queue pairs.
        self.errors.push(AsyncEventKind::CqError, None);
        let mut after = None;
        loop {
            let next = self.users().next(after);
            let Some(num) = next else { return };
            after = Some(num);
            // This thread holds no lock while it fails a queue pair: this thread may have the last reference
            // to the queue pair, and dropping the reference takes locks. A queue pair that no longer exists
            // need not be ended.
            let Some(qp) = self.resources.qp(num) else { continue };
            // RFC 5042 section 6.4.6 (SEC-159): an overflow ends the queue pairs of this completion queue,
            // and no other queue pairs.
            qp.fail_for_cq();
        }
    }

    #[inline(never)]
    fn take_oldest(&self) -> Option<WorkCompletion> {
        let mut oldest = None;
        self.entries.take(1, |completion| oldest = Some(*completion));
        oldest
    }

    pub(crate) fn num(&self) -> u32 {
        self.num
    }

    /// Adds queue pair `qp_num`, which completes to this queue.
    ///
    /// # Errors
    /// [`VerbsError::CqTooSmall`] if the size is checked and is too small, [`VerbsError::CqOverflowed`] if
    /// the queue has lost a completion.
    pub(super) fn attach(&self, qp_num: u32, demand: Demand) -> Result<(), VerbsError> {
        let mut users = self.users();
        if self.overflowed.load(Ordering::Acquire) {
            return Err(VerbsError::CqOverflowed);
        }
        users.attach(qp_num, demand, self.entries.capacity())
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Removes a queue pair. `demand` must be the value with which the queue pair was added.
    pub(super) fn detach(&self, qp_num: u32, demand: Demand) {
        self.users().detach(qp_num, demand);
    }

    fn users(&self) -> MutexGuard<'_, AttachedQps> {
        self.users.lock().expect("no holder of this lock panics")
    }
}

impl CompletionQueue {
    pub(crate) fn new(resources: Arc<Resources>, options: &CqOptions<'_>) -> Result<Self, VerbsError> {
        let CqOptions { cqe, channel, handler, strict } = *options;
        check_cqe(&resources, cqe)?;
        let events = match (channel, handler) {
            (None, None) => Events::None,
            (Some(channel), None) => Events::Channel(channel.clone()),
            (None, Some(handler)) => Events::Handler(Arc::clone(handler)),
            (Some(_), Some(_)) => {
                let text = "events go to a channel or to a handler: choose one of them";
                return Err(VerbsError::Invalid(text.into()));
            }
        };
        // RFC 5042 section 6.4.3.2 (SEC-139): the number of completion queues and the total number of their
        // entries are limited.
        let permit = resources.quotas.cq.take(1)?;
        // RFC 5040 section 8.1.2 (RDMAP-368): the total number of entries of all completion queues has a
        // limit.
        let users = Mutex::new(AttachedQps::new(strict, resources.quotas.cqe.take(cqe)?));
        let num = resources.next_cq_num()?;
        let shared = CqShared {
            num,
            entries: Completions::new(cqe),
            events,
            arm: Arm::new(),
            solicited: AtomicU64::new(0),
            polled_at_event: AtomicU64::new(u64::MAX),
            overflowed: AtomicBool::new(false),
            unreported: AtomicU8::new(0),
            lost: AtomicU64::new(0),
            users,
            errors: EventSource::new(&resources.events, num),
            _permit: permit,
            resources,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The number that names this queue in asynchronous events.
    pub fn cq_num(&self) -> u32 {
        self.shared.num
    }

    /// Moves completions into `out`, oldest first, and returns their number (`ibv_poll_cq`).
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut room = out.iter_mut();
        self.poll_each(room.len(), |completion| {
            if let Some(place) = room.next() {
                *place = *completion;
            }
        })
    }

    /// Removes up to `limit` completions, oldest first, and passes them to `each` in place. Returns their
    /// number. `each` must not poll this queue.
    #[inline]
    pub fn poll_each(&self, limit: usize, each: impl FnMut(&WorkCompletion)) -> usize {
        let _poll = profile::scope(Layer::Poll);
        if self.shared.entries.is_empty() { 0 } else { self.shared.entries.take(limit, each) }
    }

    /// Whether the queue has no completions.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.entries.is_empty()
    }

    /// Removes and returns the oldest completion. Returns `None` if the queue is empty.
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        let _poll = profile::scope(Layer::Poll);
        // Most polls find an empty queue, and return without a further function call.
        if self.shared.entries.is_empty() { None } else { self.shared.take_oldest() }
    }

    /// Requests one event, on the channel or by the handler, for the next completion (`ibv_req_notify_cq`).
    /// With `solicited_only`, requests the event for the next solicited or failed completion. Completions
    /// that are already in the queue may generate no event, so the order of calls is important: [arm, poll,
    /// wait](CompletionChannel#arm-poll-wait).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the queue has no channel and no handler.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if matches!(self.shared.events, Events::None) {
            let text = "this completion queue was made without a channel and without a handler";
            return Err(VerbsError::Invalid(text.into()));
        }
        self.shared.arm.arm(solicited_only);
        Ok(())
    }

    /// Does what [`req_notify`](Self::req_notify) does, for programs that wait without polling once more.
    /// Generates the event at once if completions wait and this queue was polled since its last event, as
    /// NICs of Mellanox do. A handler is then called during this call.
    ///
    /// # Errors
    /// As [`req_notify`](Self::req_notify).
    pub fn req_notify_with_missed(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.req_notify(solicited_only)?;
        self.shared.wake_for_missed(solicited_only);
        Ok(())
    }

    /// Changes the number of entries while the queue is in use (`ibv_resize_cq`). No completion is lost, and
    /// the completions keep their order.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if a limit is exceeded. [`VerbsError::Invalid`] if `cqe` is 0 or less than the
    /// number of waiting completions. [`VerbsError::CqTooSmall`] if the size is checked and is too small.
    /// After an error the queue is unchanged.
    pub fn resize(&self, cqe: usize) -> Result<(), VerbsError> {
        let shared = &self.shared;
        check_cqe(&shared.resources, cqe)?;
        // The lock is held until the end of this function, so that no queue pair is attached and no other
        // thread resizes the queue.
        let mut users = shared.users();
        users.check(cqe)?;
        // RFC 5042 section 6.4.3.2 (SEC-139): the entries that a resize adds also count towards the limit.
        let more = shared.resources.quotas.cqe.take(cqe.saturating_sub(users.granted.count()))?;
        shared.entries.resize(cqe).map_err(|waiting| {
            VerbsError::Invalid(format!(
                "{waiting} completions wait: poll them, or resize to more than {cqe} entries"
            ))
        })?;
        users.granted.merge(more);
        users.granted.shrink_to(cqe);
        Ok(())
    }

    /// Whether a completion was lost because the queue was full. If so, the queue accepts no further queue
    /// pairs.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }

    /// Returns the size and the fill level of the queue.
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

#[cfg(test)]
mod tests;
