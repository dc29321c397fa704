//! The receives of a queue pair: its own receive queue, or its use of a shared receive queue.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Weak};

use crate::memory::PdId;
use crate::queues::cq::{CqPlace, CqShared};
use crate::queues::line::{Turn, TurnCell, Waiter};
use crate::queues::lock::{Lock, LockGuard};
use crate::queues::request_ring::{RingReader, RingWriter, ring};
use crate::queues::wqe::{Counter, WqeCount};
use crate::queues::{
    AsyncEventKind, ConnectionError, QpInit, RecvRequest, SharedReceiveQueue, VerbsError, WcOpcode, WcStatus,
    WorkCompletion,
};

use super::signals::Signals;

/// A posted request in the receive queue. The entry owns nothing.
pub(in crate::queues) type RecvEntry = ManuallyDrop<RecvRequest>;

pub(crate) struct Receives {
    /// The writer of the ring. Each thread that posts takes the lock.
    ring: Lock<RingWriter<RecvEntry>>,
    cq_place: CqPlace,
    srq: Option<SharedReceiveQueue>,
    /// Number of requests that were taken for messages. `done` is the number of these requests that are
    /// completed.
    taken: Counter,
    done: Counter,
    /// The number of shared requests above which one event is generated. 0 means no event.
    high_water: AtomicU32,
    /// Whether a message of the peer waits for a request.
    turn: TurnCell,
    /// Whether messages may wait for requests, which InfiniBand's semantics allow.
    may_wait: AtomicBool,
    /// Whether `LastWqeReached` was reported.
    last_wqe_reported: AtomicBool,
}

impl Receives {
    /// Returns the receives of queue pair `num`, and the reader of the queue pair's own receive queue.
    pub(super) fn new(init: &QpInit<'_>, num: u32) -> (Self, RingReader<RecvEntry>) {
        let (shared, depth) = match init.srq {
            Some(srq) => (Some(srq.shared.outstanding()), 0),
            None => (None, init.max_recv_wr),
        };
        let (writer, reader) = ring(depth);
        let receives = Self {
            ring: Lock::new(writer),
            cq_place: CqPlace::new(init.recv_cq, WqeCount::new(init.max_recv_wr, shared), num),
            srq: init.srq.cloned(),
            taken: Counter::default(),
            done: Counter::default(),
            high_water: AtomicU32::new(mark_of(init.high_water)),
            turn: TurnCell::new(),
            may_wait: AtomicBool::new(false),
            last_wqe_reported: AtomicBool::new(false),
        };
        (receives, reader)
    }

    /// Whether receive requests are taken from a shared receive queue.
    pub(crate) fn are_shared(&self) -> bool {
        self.srq.is_some()
    }

    /// Number and depth of the shared receive queue, if the queue pair uses one.
    pub(crate) fn shared_queue(&self) -> Option<(u32, usize)> {
        self.srq.as_ref().map(|srq| (srq.shared.num, srq.shared.max_wr))
    }

    /// The protection domain of the shared receive queue, if the queue pair uses one.
    pub(crate) fn shared_pd(&self) -> Option<PdId> {
        self.srq.as_ref().map(|srq| srq.shared.pd.id())
    }

    /// Maximum number of requests whose completion has not been polled (`max_recv_wr`).
    pub(crate) fn depth(&self) -> usize {
        self.cq_place.wqes().max()
    }

    /// Number of requests that are not completed. With a shared receive queue, only requests that this queue
    /// pair has taken count.
    pub(crate) fn open(&self) -> u64 {
        self.cq_place.wqes().open()
    }

    /// Number of requests whose completion has not been polled.
    pub(crate) fn used(&self) -> u64 {
        self.cq_place.wqes().used()
    }

    /// Returns the number of requests that were taken for messages of the peer, and the number of these
    /// requests that are not completed.
    pub(crate) fn taken(&self) -> (u64, u64) {
        // `done` is read first. Otherwise a request could be counted as done but not as taken.
        let done = self.done.get();
        let taken = self.taken.get();
        (taken, taken.wrapping_sub(done))
    }

    // ---- posting ----

    /// Keeps other threads from posting until the guard is dropped.
    #[inline]
    pub(in crate::queues) fn lock(&self) -> LockGuard<'_, RingWriter<RecvEntry>> {
        self.ring.lock()
    }

    /// Adds a checked request to the queue pair's own queue. Fails if the queue is full.
    #[inline(always)]
    pub(super) fn add(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        let mut queue = self.lock();
        if !self.cq_place.wqes().take() {
            return Err(VerbsError::QueueFull("receive"));
        }
        // The entry is written in place.
        let is_added = queue.push_with(|entry| {
            entry.wr_id = request.wr_id;
            entry.sg_list.extend(request.sg_list.iter().copied());
        });
        debug_assert!(is_added, "the queue holds as many requests as may be open");
        if is_added { Ok(()) } else { Err(VerbsError::QueueFull("receive")) }
    }

    // ---- taking and completing: called by the holder of the consumer ----

    /// Counts a request that was taken for a message.
    #[inline]
    pub(in crate::queues) fn count_taken(&self) {
        self.taken.add(1);
    }

    /// Counts requests that were taken and are returned without a completion.
    pub(in crate::queues) fn count_returned(&self, count: usize) {
        self.done.add(count as u64);
    }

    /// Takes a request from the shared receive queue. Returns `None` if no request is posted, if another
    /// queue pair must take the request first, or if this queue pair already holds its maximum number of
    /// shared requests.
    pub(in crate::queues) fn take_shared(&self, signals: &Signals) -> Option<RecvRequest> {
        let srq = &self.srq.as_ref()?.shared;
        // RFC 5041 section 8.3.2 (DDP-239), RFC 5040 section 8.1.2 (RDMAP-371): each stream has a limit of
        // shared buffers.
        let wqes = self.cq_place.wqes();
        if !wqes.is_free() {
            return None;
        }
        let request = if self.may_wait() { srq.take_in_turn(&self.turn)? } else { srq.take()? };
        let is_counted = wqes.take();
        debug_assert!(is_counted, "an entry was free, and only this thread takes them");
        // RFC 5042 section 6.4.3.1 (SEC-136): a queue pair that holds its maximum of shared buffers receives
        // no further buffers, and a queue pair that exceeds its high-water mark is reported.
        self.check_high_water(signals, wqes.used());
        self.count_taken();
        Some(request)
    }

    /// Whether the queue pair may take another request from its shared receive queue. Always `true` without a
    /// shared receive queue.
    pub(crate) fn may_take_shared(&self) -> bool {
        self.srq.is_none() || self.cq_place.wqes().is_free()
    }

    /// Completes a request that was taken.
    #[inline(always)]
    pub(in crate::queues) fn complete(&self, completion: WorkCompletion) {
        self.done.add(1);
        self.cq_place.wqes().complete();
        self.cq_place.push(completion);
        self.report();
    }

    /// Completes, with the status "flushed", a request of the queue pair's own queue that was not taken.
    /// Afterwards the caller must call [`report`](Self::report) while it holds no lock.
    pub(in crate::queues) fn flush(&self, wr_id: u64, cause: Option<ConnectionError>) {
        self.cq_place.wqes().complete();
        self.cq_place.push(self.flushed(wr_id, cause));
    }

    /// Returns the completion of a request that has succeeded.
    #[inline]
    pub(crate) fn succeeded(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        self.cq_place.succeeded(wr_id, opcode, byte_len)
    }

    /// Returns the completion of a failed request, with the cause of the connection's end.
    pub(crate) fn failed(
        &self,
        wr_id: u64,
        status: WcStatus,
        cause: Option<ConnectionError>,
    ) -> WorkCompletion {
        self.cq_place.failed(wr_id, WcOpcode::Recv, status, cause)
    }

    /// Returns the completion of a flushed request.
    pub(in crate::queues) fn flushed(&self, wr_id: u64, cause: Option<ConnectionError>) -> WorkCompletion {
        self.failed(wr_id, WcStatus::WrFlushError, cause)
    }

    /// Reports lost completions and events of the completion queue. The caller must hold no lock.
    #[inline]
    pub(super) fn report(&self) {
        self.cq_place.report();
    }

    /// Removes the receive completions of this queue pair from the completion queue. From now on receive
    /// requests generate no completions.
    pub(super) fn discard_completions(&self) {
        self.cq_place.silence();
    }

    /// The completion queue of the receives.
    pub(crate) fn cq(&self) -> &CqShared {
        self.cq_place.cq()
    }

    /// Generates, once, the `LastWqeReached` event of a queue pair with a shared receive queue. Called when
    /// the queue pair has entered `Error` and flushed its requests.
    pub(super) fn report_last(&self, signals: &Signals) {
        if self.srq.is_some() && !self.last_wqe_reported.swap(true, Ordering::AcqRel) {
            signals.report(AsyncEventKind::LastWqeReached, None);
        }
    }

    // ---- the high-water mark ----

    /// Requests an event for the time when this queue pair holds more than `mark` requests of the shared
    /// receive queue. If the queue pair already holds more, the event is generated at once.
    pub(crate) fn arm_high_water(&self, signals: &Signals, mark: usize) {
        self.high_water.store(mark_of(mark), Ordering::SeqCst);
        self.check_high_water(signals, self.used());
    }

    fn check_high_water(&self, signals: &Signals, held: u64) {
        let mark = self.high_water.load(Ordering::Relaxed);
        if mark != 0
            && held > mark.into()
            && self.high_water.compare_exchange(mark, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            signals.report(AsyncEventKind::QpHighWater, None);
        }
    }

    // ---- waiting ----

    /// Allows messages of the peer to wait for requests from now on.
    pub(super) fn allow_waiting(&self) {
        self.may_wait.store(true, Ordering::Release);
        if let Some(srq) = &self.srq {
            srq.shared.join_line();
        }
    }

    /// Whether messages of the peer may wait for requests.
    #[inline]
    pub(super) fn may_wait(&self) -> bool {
        self.may_wait.load(Ordering::Acquire)
    }

    /// The queue pair's turn to take a request.
    pub(super) fn turn(&self) -> &TurnCell {
        &self.turn
    }

    /// Records that a message of the peer to `who` waits for a request. If the queue is shared, `who` is
    /// called back when a request is reserved for it. Otherwise `is_posted` says whether the queue pair's own
    /// queue has a request. If the queue has a request, the message does not wait, and the function returns
    /// `true`.
    pub(super) fn wait(&self, who: &Arc<impl Waiter + 'static>, is_posted: impl FnOnce() -> bool) -> bool {
        if let Some(srq) = &self.srq {
            let who: Weak<dyn Waiter> = Arc::downgrade(who) as _;
            srq.shared.wait_in_line(who, &self.turn);
            return false;
        }
        self.turn.set(Turn::Waits);
        // This fence pairs with the fence of a thread that has posted a receive request.
        fence(Ordering::SeqCst);
        is_posted() && self.end_wait()
    }

    /// Ends the wait of a message for a request of this queue pair's own queue. Returns whether a message was
    /// waiting.
    pub(super) fn end_wait(&self) -> bool {
        self.srq.is_none() && self.turn.get() == Turn::Waits && self.turn.replace(Turn::Out) == Turn::Waits
    }

    /// Ends the wait of a message, and removes the queue pair from the line of its shared receive queue.
    /// Called at the end of the stream.
    pub(crate) fn stop_waiting(&self) {
        match &self.srq {
            Some(srq) if self.may_wait() => srq.shared.leave_line(&self.turn),
            Some(_) => {}
            None => self.turn.set(Turn::Out),
        }
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        if self.may_wait()
            && let Some(srq) = &self.srq
        {
            srq.shared.quit_line();
        }
    }
}

/// Returns the mark in 32 bits. No number of requests exceeds 32 bits, so all larger marks have the same
/// effect.
fn mark_of(mark: usize) -> u32 {
    mark.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
