//! The send queue of a queue pair: adding requests, completing requests, draining the queue, and holding the
//! queue.
//!
//! Sending ends when the user has requested a graceful close, or at the peer's FIN. By RFC 5041 section
//! 6.2.1, sends that are posted later (late sends) are refused. The verbs of RDMA devices accept late sends:
//! a program posts such a send, and its flushed completion shows that all earlier requests are done. So a
//! queue can be set to keep late sends. Late sends are not added to the ring, where the engine would find and
//! send them, and are flushed after the requests in the ring.
//!
//! While a queue is held (InfiniBand's state "send queue drained", SQD), no request starts. Requests that
//! have already started continue until they are complete. All other requests, including new requests, stay in
//! the queue. The engine loads the flag `held` after it has read the requests. So the engine sees the flag
//! before it starts a request that was posted after the flag was set.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::queues::cq::{CqPlace, CqShared};
use crate::queues::lock::{Lock, LockGuard};
use crate::queues::request_ring::{RingReader, RingWriter, ring};
use crate::queues::wqe::WqeCount;
use crate::queues::{
    AsyncEventKind, ConnectionError, Payload, PreparedPayload, QpInit, QpState, SendEntry, SendRequest,
    Signaled, VerbsError, WcOpcode, WcStatus, WorkCompletion, send_opcode,
};

use super::signals::Signals;

pub(crate) struct SendQueue {
    /// The writer of the queue. Each thread that posts takes the lock.
    posting: Lock<Posting>,
    cq_place: CqPlace,
    /// The states of the queue pair in which the queue accepts requests.
    states: u8,
    /// Whether every request generates a completion, even if it is unsignaled.
    signals_all: bool,
    /// Whether the user has requested an event for the time when no request is open.
    drain: AtomicBool,
    /// Whether the queue is held, so that no request starts.
    held: AtomicBool,
}

/// The writer of the send queue's ring, and the late sends.
pub(in crate::queues) struct Posting {
    ring: RingWriter<SendEntry>,
    /// The late sends, oldest first, or `None` if late sends are refused. Late sends use entries of the
    /// queue, so their number is at most the depth of the queue.
    #[allow(clippy::box_collection, reason = "most queues refuse them: a pointer takes less of each")]
    late: Option<Box<VecDeque<LateSend>>>,
}

/// The data for the flushed completion of a late send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queues) struct LateSend {
    pub(in crate::queues) wr_id: u64,
    pub(in crate::queues) opcode: WcOpcode,
}

impl Posting {
    /// Removes and returns the oldest late send, if any. The caller completes this send. Only the holder of
    /// the consumer calls this function.
    pub(in crate::queues) fn next_late(&mut self) -> Option<LateSend> {
        self.late.as_mut()?.pop_front()
    }
}

impl SendQueue {
    /// Returns the send queue of queue pair `num`, and the reader of its ring.
    pub(super) fn new(init: &QpInit<'_>, num: u32) -> (Self, RingReader<SendEntry>) {
        let (writer, reader) = ring(init.max_send_wr);
        let queue = Self {
            posting: Lock::new(Posting { ring: writer, late: None }),
            cq_place: CqPlace::new(init.send_cq, WqeCount::new(init.max_send_wr, None), num),
            states: QpState::taking_sends(init.early_sends),
            signals_all: init.sq_sig_all,
            drain: AtomicBool::new(false),
            held: AtomicBool::new(false),
        };
        (queue, reader)
    }

    #[inline]
    pub(crate) fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// Maximum number of used entries (`max_send_wr`).
    pub(crate) fn depth(&self) -> usize {
        self.cq_place.wqes().max()
    }

    /// Number of requests that are not completed.
    pub(crate) fn open(&self) -> u64 {
        self.cq_place.wqes().open()
    }

    /// Number of used entries: of requests that are not completed, and of requests whose completion has not
    /// been polled.
    pub(crate) fn used(&self) -> u64 {
        self.cq_place.wqes().used()
    }

    // ---- posting ----

    /// Whether the queue accepts requests in this state.
    #[inline]
    pub(super) fn accepts_in(&self, state: QpState) -> bool {
        self.states & state.bit() != 0
    }

    /// Keeps other threads from posting until the guard is dropped.
    #[inline]
    pub(in crate::queues) fn lock(&self) -> LockGuard<'_, Posting> {
        self.posting.lock()
    }

    /// Adds a checked request, whose payload `set` sets. Fails if the queue is full.
    #[inline(always)]
    pub(super) fn add(
        &self,
        request: &SendRequest,
        length: u32,
        prepared: PreparedPayload,
        set: impl FnOnce(&mut Payload),
    ) -> Result<(), VerbsError> {
        let mut queue = self.lock();
        if !self.cq_place.wqes().take() {
            return Err(VerbsError::QueueFull("send"));
        }
        // The entry is written in place.
        let is_added = queue.ring.push_with(|entry| {
            entry.wr_id = request.wr_id;
            entry.op = request.op;
            entry.length = length;
            entry.flags = request.flags;
            entry.prepared = prepared;
            set(&mut entry.payload);
        });
        debug_assert!(is_added, "the queue holds as many requests as may be open");
        if is_added { Ok(()) } else { Err(VerbsError::QueueFull("send")) }
    }

    /// Makes the queue keep late sends from now on.
    pub(crate) fn take_late(&self) {
        self.lock().late.get_or_insert_default();
    }

    /// Whether the queue keeps late sends.
    pub(super) fn takes_late(&self) -> bool {
        self.lock().late.is_some()
    }

    /// Keeps a request until the queue is flushed. Returns `false` if late sends are refused.
    pub(super) fn keep_late(&self, request: &SendRequest) -> Result<bool, VerbsError> {
        // The lock has the same effect as for a request that is added to the ring: either a thread that
        // flushes finds the request, or the posting thread sees the new state afterwards, and flushes.
        let mut queue = self.lock();
        let Some(late) = &mut queue.late else { return Ok(false) };
        if !self.cq_place.wqes().take() {
            return Err(VerbsError::QueueFull("send"));
        }
        late.push_back(LateSend { wr_id: request.wr_id, opcode: send_opcode(&request.op) });
        Ok(true)
    }

    // ---- completing: called by the holder of the consumer ----

    /// Returns the completion of a request that has succeeded.
    #[inline]
    pub(crate) fn succeeded(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> WorkCompletion {
        self.cq_place.succeeded(wr_id, opcode, byte_len)
    }

    /// Returns the completion of a failed request, with the cause of the connection's end.
    pub(crate) fn failed(
        &self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        cause: Option<ConnectionError>,
    ) -> WorkCompletion {
        self.cq_place.failed(wr_id, opcode, status, cause)
    }

    /// Completes a request. The request generates a completion if it is `signaled` (a completion was
    /// requested, or the request failed), and in a queue with `sq_sig_all`. Otherwise the entry of the
    /// request is free at once. Afterwards the caller must call [`report`](Self::report) while it holds no
    /// lock.
    #[inline(always)]
    pub(in crate::queues) fn complete(&self, signals: &Signals, signaled: bool, completion: WorkCompletion) {
        let wqes = self.cq_place.wqes();
        wqes.complete();
        debug_assert!(signaled || completion.status == WcStatus::Success, "a failure is always told");
        if signaled || self.signals_all {
            self.cq_place.push(completion);
        } else {
            wqes.free(1);
        }
        self.report_if_drained(signals);
    }

    /// Completes `count` requests that have succeeded and were removed from the ring. The requests in
    /// `signaled` generate completions in the order of this slice. These completions are added to the
    /// completion queue together. Afterwards the caller must call [`report`](Self::report) while it holds no
    /// lock.
    #[inline]
    pub(in crate::queues) fn complete_all(&self, signals: &Signals, count: usize, signaled: &[Signaled]) {
        let wqes = self.cq_place.wqes();
        wqes.count_completed(count);
        if !signaled.is_empty() {
            let completions = signaled.iter().map(|sent| self.succeeded(sent.wr_id, sent.opcode, 0));
            self.cq_place.push_all(completions, false);
        }
        if signaled.len() < count {
            wqes.free(count - signaled.len());
        }
        self.report_if_drained(signals);
    }

    /// Reports lost completions and events of the completion queue. The caller must hold no lock.
    #[inline]
    pub(in crate::queues) fn report(&self) {
        self.cq_place.report();
    }

    /// Removes the send completions of this queue pair from the completion queue. From now on send requests
    /// generate no completions.
    pub(super) fn discard_completions(&self) {
        self.cq_place.silence();
    }

    /// The completion queue of the send queue.
    pub(crate) fn cq(&self) -> &CqShared {
        self.cq_place.cq()
    }

    // ---- draining and holding ----

    /// Requests an event for the time when no request is open. While the queue is held, the event is due when
    /// no request is in progress. The caller checks whether the event is already due.
    pub(super) fn arm_drain(&self) {
        self.drain.store(true, Ordering::Release);
    }

    /// Generates the drain event if the user has requested it and no request is open.
    #[inline]
    pub(crate) fn report_if_drained(&self, signals: &Signals) {
        if self.drain.load(Ordering::Acquire) && self.open() == 0 {
            self.report_held(signals);
        }
    }

    /// Generates the drain event if the user has requested it. The caller guarantees that no request is in
    /// progress.
    #[cold]
    pub(crate) fn report_held(&self, signals: &Signals) {
        if self.drain.swap(false, Ordering::AcqRel) {
            signals.report(AsyncEventKind::SqDrained, None);
        }
    }

    /// Prevents requests from starting until [`resume`](Self::resume).
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// Allows requests to start again, and cancels a pending drain event. The caller must ring the doorbell.
    pub(super) fn resume(&self) {
        self.drain.store(false, Ordering::Release);
        self.held.store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use arrayvec::ArrayVec;

    use super::*;
    use crate::queues::{CompletionQueue, CqOptions, MAX_INLINE, SendFlags, SendOp, Sge, test_objects};

    fn send(wr_id: u64) -> SendRequest {
        SendRequest { wr_id, op: SendOp::Send, sg_list: ArrayVec::new(), flags: SendFlags::empty() }
    }

    fn add(queue: &SendQueue, wr_id: u64) -> Result<(), VerbsError> {
        queue.add(&send(wr_id), 0, PreparedPayload::Inline, |payload| payload.copy(&[]))
    }

    fn polled(cq: &CompletionQueue) -> Vec<(u64, WcStatus, u32)> {
        std::iter::from_fn(|| cq.poll_one()).map(|it| (it.wr_id, it.status, it.qp_num)).collect()
    }

    /// A request uses an entry from its post until its completion is polled. If the request generates no
    /// completion, it uses the entry until it is complete.
    #[test]
    fn an_entry_is_used_until_its_completion_is_polled() {
        let (resources, _, cq) = test_objects();
        let signals = Signals::new(&resources.events, 1);
        let (queue, reader) = SendQueue::new(&QpInit { max_send_wr: 2, ..QpInit::new(&cq) }, 9);
        add(&queue, 1).unwrap();
        add(&queue, 2).unwrap();
        assert!(matches!(add(&queue, 3), Err(VerbsError::QueueFull(_))));
        assert_eq!((reader.len(), queue.open(), queue.used()), (2, 2, 2));
        queue.complete(&signals, false, queue.succeeded(1, WcOpcode::Send, 0));
        assert_eq!((queue.open(), queue.used()), (1, 1));
        queue.complete(&signals, true, queue.failed(2, WcOpcode::Send, WcStatus::WrFlushError, None));
        assert_eq!((queue.open(), queue.used()), (0, 1));
        assert_eq!(polled(&cq), [(2, WcStatus::WrFlushError, 9)]);
        assert_eq!(queue.used(), 0);
    }

    /// The bytes of an inline request are copied into the entry, whatever the entry had before.
    #[test]
    fn inline_bytes_are_copied_part_by_part() {
        let (resources, _, cq) = test_objects();
        let signals = Signals::new(&resources.events, 1);
        let (queue, mut reader) = SendQueue::new(&QpInit { max_send_wr: 1, ..QpInit::new(&cq) }, 9);
        let all: Vec<u8> = (0..MAX_INLINE as u8).collect();
        let element = [Sge { addr: 1, length: 2, lkey: 3 }].into_iter().collect();
        let lists: [&[&[u8]]; 5] = [&[&all], &[b"ab", b"", b"cde"], &[], &[&all[..1], &all[1..]], &[b"x"]];
        for parts in lists {
            let length = parts.concat().len() as u32;
            queue.add(&send(1), length, PreparedPayload::Inline, |payload| payload.copy(parts)).unwrap();
            let Payload::Inline(bytes) = &*reader.first().unwrap().payload else { panic!("not inline") };
            assert_eq!(bytes[..], parts.concat());
            reader.remove(1);
            queue.complete(&signals, false, queue.succeeded(1, WcOpcode::Send, 0));
        }
        let request = SendRequest { sg_list: element, ..send(2) };
        let gather = |payload: &mut Payload| payload.gather(&request.sg_list);
        queue.add(&request, 2, PreparedPayload::Unprepared, gather).unwrap();
        assert!(
            matches!(&*reader.first().unwrap().payload, Payload::Gather(elements) if elements.len() == 1)
        );
    }

    /// If requests complete together, the signaled requests generate completions, and the entries of the
    /// unsignaled requests become free. With `sq_sig_all` every request generates a completion.
    #[test]
    fn requests_complete_together() {
        let (resources, _, cq) = test_objects();
        let signals = Signals::new(&resources.events, 1);
        let (queue, _reader) = SendQueue::new(&QpInit::new(&cq), 9);
        (0..3).for_each(|wr_id| add(&queue, wr_id).unwrap());
        let signaled = [0, 2].map(|wr_id| Signaled { wr_id, opcode: WcOpcode::Send });
        queue.complete_all(&signals, 3, &signaled);
        assert_eq!((queue.open(), queue.used()), (0, 2));
        assert_eq!(polled(&cq), [(0, WcStatus::Success, 9), (2, WcStatus::Success, 9)]);
        let (queue, _reader) = SendQueue::new(&QpInit { sq_sig_all: true, ..QpInit::new(&cq) }, 9);
        add(&queue, 7).unwrap();
        queue.complete(&signals, false, queue.succeeded(7, WcOpcode::Send, 0));
        assert_eq!(polled(&cq), [(7, WcStatus::Success, 9)]);
    }

    /// The drain event is generated once, when no request is open, but not after the queue was resumed.
    #[test]
    fn a_drained_queue_is_told_once() {
        let (resources, _, cq) = test_objects();
        let signals = Signals::new(&resources.events, 1);
        let events = || resources.events.poll().unwrap().map(|event| event.kind);
        let (queue, _reader) = SendQueue::new(&QpInit::new(&cq), 9);
        add(&queue, 1).unwrap();
        queue.report_if_drained(&signals);
        queue.arm_drain();
        queue.report_if_drained(&signals);
        assert_eq!(events(), None, "one is open");
        queue.complete(&signals, false, queue.succeeded(1, WcOpcode::Send, 0));
        assert_eq!([(); 2].map(|()| events()), [Some(AsyncEventKind::SqDrained), None]);
        queue.hold();
        queue.arm_drain();
        assert!(queue.is_held());
        queue.resume();
        queue.report_held(&signals);
        assert_eq!((queue.is_held(), events()), (false, None));
    }

    /// Late sends are kept in their order, use entries of the queue, and are not in the ring.
    #[test]
    fn late_sends_are_kept_apart() {
        let (_, _, cq) = test_objects();
        let (queue, reader) = SendQueue::new(&QpInit { max_send_wr: 2, ..QpInit::new(&cq) }, 9);
        assert!(!queue.takes_late() && !queue.keep_late(&send(1)).unwrap());
        assert_eq!((queue.used(), queue.lock().next_late()), (0, None));
        queue.take_late();
        assert!(queue.takes_late() && queue.keep_late(&send(1)).unwrap());
        queue.take_late();
        let other = SendRequest { op: SendOp::LocalInvalidate { rkey: 0 }, ..send(2) };
        assert!(queue.keep_late(&other).unwrap(), "they stay where they are");
        assert!(matches!(queue.keep_late(&send(3)), Err(VerbsError::QueueFull(_))));
        assert_eq!((reader.len(), queue.open()), (0, 2));
        let kept: Vec<_> = std::iter::from_fn(|| queue.lock().next_late()).collect();
        let expected = [(1, WcOpcode::Send), (2, WcOpcode::LocalInvalidate)];
        assert_eq!(kept, expected.map(|(wr_id, opcode)| LateSend { wr_id, opcode }));
    }

    #[test]
    fn only_an_early_queue_accepts_before_the_connection() {
        let (_, _, cq) = test_objects();
        for early_sends in [false, true] {
            let (queue, _reader) = SendQueue::new(&QpInit { early_sends, ..QpInit::new(&cq) }, 9);
            assert_eq!(queue.accepts_in(QpState::Idle), early_sends);
            assert!(queue.accepts_in(QpState::Rts) && !queue.accepts_in(QpState::Closing));
        }
    }

    /// After its completions were discarded, a queue frees its entries at once.
    #[test]
    fn discarded_completions_are_gone() {
        let (resources, _, _) = test_objects();
        let cq = CompletionQueue::new(resources.clone(), &CqOptions::new(4)).unwrap();
        let signals = Signals::new(&resources.events, 1);
        let (queue, _reader) = SendQueue::new(&QpInit::new(&cq), 9);
        (0..2).for_each(|wr_id| add(&queue, wr_id).unwrap());
        queue.complete(&signals, true, queue.succeeded(0, WcOpcode::Send, 0));
        queue.discard_completions();
        queue.complete(&signals, true, queue.succeeded(1, WcOpcode::Send, 0));
        assert_eq!((queue.used(), cq.is_empty()), (0, true));
    }
}
