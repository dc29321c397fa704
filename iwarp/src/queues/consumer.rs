//! The consumer of a queue pair, which takes the posted requests and completes them.
//!
//! Each queue pair has one consumer. While the queue pair has a stream, the stream owns the consumer. Before
//! and after that, the queue pair keeps the consumer behind a lock, for threads that flush requests. So only
//! one thread at a time takes and completes requests. To take a request from the queue pair's own queues,
//! this thread needs no locked instruction.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use super::qp::{Receives, RecvEntry, SendQueue, Signals};
use super::request_ring::{Oldest, RingReader};
use super::{
    ConnectionError, Pending, PreparedPayload, RecvRequest, SendEntry, SendFlags, Signaled, WcStatus,
    WorkCompletion, send_opcode,
};

pub(crate) struct QpConsumer {
    sq: RingReader<SendEntry>,
    rq: RingReader<RecvEntry>,
    /// Number of receive requests that are taken for messages of the peer and not completed. Without a shared
    /// receive queue, these requests stay at the front of the receive queue.
    taken: usize,
    /// With a shared receive queue, the place for the request that is taken from that queue.
    shared: Option<Box<Option<RecvRequest>>>,
}

/// A consumer that no stream owns.
pub(crate) struct IdleConsumer {
    consumer: QpConsumer,
    /// The empty queue for the records of the next stream, with room for as many records as the send queue
    /// has entries.
    records: VecDeque<Pending>,
}

impl Deref for IdleConsumer {
    type Target = QpConsumer;

    fn deref(&self) -> &QpConsumer {
        &self.consumer
    }
}

impl DerefMut for IdleConsumer {
    fn deref_mut(&mut self) -> &mut QpConsumer {
        &mut self.consumer
    }
}

/// The place of a queue pair's consumer while no stream owns the consumer. The consumer is boxed, since the
/// place is empty most of the time.
pub(crate) struct ConsumerPlace(Mutex<Option<Box<IdleConsumer>>>);

impl ConsumerPlace {
    /// Returns the place of a consumer whose send queue has `depth` entries.
    pub(super) fn new(consumer: QpConsumer, depth: usize) -> Self {
        let records = VecDeque::with_capacity(depth.max(1));
        Self(Mutex::new(Some(Box::new(IdleConsumer { consumer, records }))))
    }

    /// Locks the place. The place contains `None` while a stream owns the consumer.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Box<IdleConsumer>>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Removes and returns the consumer, for the stream, and the queue for the records of started requests,
    /// which is empty and has room for all requests of the send queue.
    ///
    /// # Panics
    /// Panics if the consumer was taken and not put back. A queue pair is reserved for one connection, which
    /// has only one stream at a time.
    pub(crate) fn take(&self) -> (QpConsumer, VecDeque<Pending>) {
        let IdleConsumer { consumer, records } = *self.lock().take().expect("a queue pair has one stream");
        (consumer, records)
    }

    /// Puts the consumer back after the end of the stream, and keeps the memory of `records` for the next
    /// stream.
    pub(crate) fn put_back(&self, consumer: QpConsumer, mut records: VecDeque<Pending>) {
        records.clear();
        *self.lock() = Some(Box::new(IdleConsumer { consumer, records }));
    }
}

impl QpConsumer {
    /// Returns the consumer that reads the requests from `sq` and `rq`. `is_shared` says whether the receive
    /// requests are in a shared receive queue.
    pub(super) fn new(sq: RingReader<SendEntry>, rq: RingReader<RecvEntry>, is_shared: bool) -> Self {
        Self { sq, rq, taken: 0, shared: is_shared.then(Box::default) }
    }

    /// Returns the oldest send request that is not started, if any.
    #[inline]
    pub(crate) fn next_send(&self) -> Option<&SendEntry> {
        self.sq.first()
    }

    /// Starts the oldest send request, whose entry is kept until it is [released](Self::release_sends).
    #[inline]
    pub(crate) fn start_send(&mut self) {
        self.sq.keep(1);
    }

    /// Returns a send request that is started and not released: the request that was started last if `back`
    /// is 1, the request before that if `back` is 2, and so on. Returns `None` if no such request exists.
    pub(crate) fn started_send(&self, back: usize) -> Option<&SendEntry> {
        self.sq.kept(back)
    }

    /// Removes the `count` oldest send requests that are started.
    #[inline]
    pub(crate) fn release_sends(&mut self, count: usize) {
        self.sq.release(count);
    }

    /// Puts the send requests that are started and not released back into the queue, as if they had not been
    /// started.
    pub(crate) fn return_sends(&mut self) {
        self.sq.return_kept();
    }

    /// Removes the oldest send request, which completes at once. No started request may exist.
    #[inline]
    pub(crate) fn remove_send(&mut self) {
        self.sq.remove(1);
    }

    /// Returns the oldest send requests that are not started: at most `limit` requests, and fewer if they are
    /// not contiguous in the ring's memory. These requests stay in their queue until they are
    /// [started](Oldest::keep) or [removed](Oldest::remove).
    #[inline]
    pub(crate) fn next_sends(&mut self, limit: usize) -> Oldest<'_, SendEntry> {
        self.sq.oldest(limit)
    }

    /// Returns the number of send requests that are not started.
    #[inline]
    pub(crate) fn count_sends(&self) -> usize {
        self.sq.len()
    }

    /// Takes the next receive request for a new message of the peer. Returns `false` if no request can be
    /// taken. From a shared receive queue, at most one request at a time is taken.
    #[inline(always)]
    pub(crate) fn take_recv(&mut self, receives: &Receives, signals: &Signals) -> bool {
        match &mut self.shared {
            Some(place) if place.is_some() => return false,
            Some(place) => {
                **place = receives.take_shared(signals);
                if place.is_none() {
                    return false;
                }
            }
            None if self.rq.len() <= self.taken => return false,
            None => receives.count_taken(),
        }
        self.taken += 1;
        true
    }

    /// Returns the number of receive requests that no other queue pair can take: all requests in the queue
    /// pair's own queue, or the requests that were taken from the shared receive queue.
    pub(crate) fn promised_recvs(&self) -> u32 {
        let count = if self.shared.is_some() { self.taken } else { self.rq.len() };
        count as u32
    }

    /// Whether the queue pair's own receive queue has requests that are not taken.
    pub(crate) fn has_recvs(&self) -> bool {
        self.rq.len() > self.taken
    }

    /// Returns the number of receive requests that are taken and not completed.
    #[inline]
    pub(crate) fn taken_recvs(&self) -> usize {
        self.taken
    }

    /// Returns the oldest receive request that is taken, if any.
    #[inline]
    pub(crate) fn recv(&self) -> Option<&RecvRequest> {
        match (self.taken, &self.shared) {
            (0, _) => None,
            (_, None) => self.rq.first().map(|entry| &**entry),
            (_, Some(shared)) => shared.as_ref().as_ref(),
        }
    }

    /// Returns a copy of the receive request that was taken `behind` requests after the oldest taken request,
    /// if any.
    pub(crate) fn recv_behind(&self, behind: usize) -> Option<RecvRequest> {
        if behind == 0 {
            return self.recv().cloned();
        }
        let entry = if behind < self.taken { self.rq.get(behind) } else { None };
        entry.map(|entry| RecvRequest::clone(entry))
    }

    /// Completes a send request ([`SendQueue::complete`]), and reports the events of its completion queue.
    #[inline(always)]
    pub(crate) fn complete_send(
        &mut self,
        sends: &SendQueue,
        signals: &Signals,
        signaled: bool,
        completion: WorkCompletion,
    ) {
        sends.complete(signals, signaled, completion);
        sends.report();
    }

    /// Completes `count` send requests that have succeeded and were removed from their queue
    /// ([`SendQueue::complete_all`]), and reports the events of their completion queue.
    #[inline]
    pub(crate) fn complete_sends(
        &mut self,
        sends: &SendQueue,
        signals: &Signals,
        count: usize,
        signaled: &[Signaled],
    ) {
        sends.complete_all(signals, count, signaled);
        sends.report();
    }

    /// Completes the oldest receive request that is taken.
    #[inline(always)]
    pub(crate) fn complete_recv(&mut self, receives: &Receives, completion: WorkCompletion) {
        debug_assert!(self.taken > 0, "only taken requests are completed");
        match &mut self.shared {
            Some(shared) => **shared = None,
            None => self.rq.remove(1),
        }
        self.taken -= 1;
        receives.complete(completion);
    }

    /// Completes all taken receive requests with the status "flushed".
    pub(crate) fn abandon_recvs(&mut self, receives: &Receives, cause: Option<ConnectionError>) {
        while let Some(wr_id) = self.recv().map(|request| request.wr_id) {
            self.complete_recv(receives, receives.flushed(wr_id, cause));
        }
    }

    /// Returns the taken receive requests, since the rest of their messages will not arrive. Requests of the
    /// queue pair's own queue are posted as before. A request of a shared receive queue completes as flushed.
    pub(crate) fn return_recvs(&mut self, receives: &Receives, cause: Option<ConnectionError>) {
        if self.shared.is_some() {
            return self.abandon_recvs(receives, cause);
        }
        receives.count_returned(self.taken);
        self.taken = 0;
    }

    /// Completes the oldest send request with the failure `status`. Returns `false` if no send request is
    /// left. Afterwards the caller must call [`report`](super::QpShared::report) while it holds no lock.
    pub(crate) fn fail_next_send(
        &mut self,
        sends: &SendQueue,
        signals: &Signals,
        status: WcStatus,
        cause: Option<ConnectionError>,
    ) -> bool {
        // The lock has the same purpose as in `flush`: either this thread sees the request of a thread that
        // posts, or the posting thread sees the new state.
        let _posting = sends.lock();
        let Some(entry) = self.sq.first() else { return false };
        let completion = sends.failed(entry.wr_id, send_opcode(&entry.op), status, cause);
        self.sq.remove(1);
        sends.complete(signals, true, completion);
        true
    }

    /// Completes all send requests as if their messages had been sent, though there is no peer, up to a
    /// request that fails without a peer: its memory is not valid, or it is an operation on an STag, which
    /// only a stream executes. Returns `false` if there was such a request. No started request may exist.
    /// Afterwards the caller must call [`report`](super::QpShared::report) while it holds no lock.
    pub(crate) fn drop_sends(
        &mut self,
        sends: &SendQueue,
        signals: &Signals,
        cause: Option<ConnectionError>,
    ) -> bool {
        // The lock has the same purpose as in `flush`.
        let _posting = sends.lock();
        while let Some(entry) = self.sq.first() {
            let (wr_id, opcode) = (entry.wr_id, send_opcode(&entry.op));
            let fault = match entry.prepared {
                PreparedPayload::InvalidMemory => Some(WcStatus::LocalProtectionError),
                _ if !entry.op.sends_elements() => Some(WcStatus::MwBindError),
                _ => None,
            };
            let signaled = fault.is_some() || entry.flags.contains(SendFlags::SIGNALED);
            self.sq.remove(1);
            let completion = match fault {
                Some(status) => sends.failed(wr_id, opcode, status, cause),
                None => sends.succeeded(wr_id, opcode, 0),
            };
            sends.complete(signals, signaled, completion);
            if fault.is_some() {
                return false;
            }
        }
        true
    }

    /// Completes all requests of the queue pair's own queues, and its late sends, with the status "flushed".
    /// No receive request may be taken. Afterwards the caller must call [`report`](super::QpShared::report)
    /// while it holds no lock.
    pub(crate) fn flush(
        &mut self,
        sends: &SendQueue,
        receives: &Receives,
        signals: &Signals,
        cause: Option<ConnectionError>,
    ) {
        {
            // A thread that posts adds its request under this lock, and then checks the state. So either this
            // thread sees the request, or the posting thread sees that the stream has ended and flushes the
            // queue itself.
            let mut posting = sends.lock();
            let flushed = |wr_id, opcode| sends.failed(wr_id, opcode, WcStatus::WrFlushError, cause);
            while let Some(entry) = self.sq.first() {
                let completion = flushed(entry.wr_id, send_opcode(&entry.op));
                self.sq.remove(1);
                sends.complete(signals, true, completion);
            }
            // Late sends were posted after all other sends.
            while let Some(late) = posting.next_late() {
                sends.complete(signals, true, flushed(late.wr_id, late.opcode));
            }
        }
        {
            let _posting = receives.lock();
            while let Some(wr_id) = self.rq.first().map(|entry| entry.wr_id) {
                self.rq.remove(1);
                receives.flush(wr_id, cause);
            }
        }
        sends.report_if_drained(signals);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use arrayvec::ArrayVec;

    use super::super::request_ring::ring;
    use super::super::{
        CompletionQueue, PdShared, QpInit, QpShared, SendOp, SendRequest, SharedReceiveQueue, SrqInit,
        WcOpcode, test_objects,
    };
    use super::*;

    const CAUSE: Option<ConnectionError> = Some(ConnectionError::PeerClosed);

    fn send(wr_id: u64) -> SendRequest {
        SendRequest { wr_id, op: SendOp::Send, sg_list: ArrayVec::new(), flags: SendFlags::empty() }
    }

    fn recv(wr_id: u64) -> RecvRequest {
        RecvRequest { wr_id, sg_list: ArrayVec::new() }
    }

    fn polled(cq: &CompletionQueue) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| cq.poll_one())
            .map(|completion| {
                assert_eq!(completion.cause, CAUSE);
                (completion.wr_id, completion.status)
            })
            .collect()
    }

    /// Returns a queue pair with requests in its send and receive queue, and with one late send.
    fn with_requests(pd: &std::sync::Arc<PdShared>, cq: &CompletionQueue) -> std::sync::Arc<QpShared> {
        let qp = QpShared::new(pd, &QpInit { early_sends: true, ..QpInit::new(cq) }).unwrap();
        (1..3).for_each(|wr_id| qp.queue_send(&send(wr_id)).unwrap());
        qp.sends.take_late();
        qp.signals.refuse_sends();
        qp.queue_send(&send(3)).unwrap();
        (4..6).for_each(|wr_id| qp.queue_recv(&recv(wr_id)).unwrap());
        qp
    }

    /// The requests of each queue are flushed in the order in which they were posted, late sends after all
    /// other sends.
    #[test]
    fn requests_are_flushed_in_order() {
        let (_, pd, cq) = test_objects();
        let qp = with_requests(&pd, &cq);
        let mut consumer = qp.consumer.take().0;
        assert!(consumer.fail_next_send(&qp.sends, &qp.signals, WcStatus::RetryExceeded, CAUSE));
        consumer.flush(&qp.sends, &qp.receives, &qp.signals, CAUSE);
        let flushed = (2..6).map(|wr_id| (wr_id, WcStatus::WrFlushError));
        let expected: Vec<_> = [(1, WcStatus::RetryExceeded)].into_iter().chain(flushed).collect();
        assert_eq!(polled(&cq), expected);
        assert_eq!((qp.sends.open(), qp.receives.open()), (0, 0));
        assert!(!consumer.fail_next_send(&qp.sends, &qp.signals, WcStatus::RetryExceeded, CAUSE));
        qp.consumer.put_back(consumer, VecDeque::new());
        assert!(qp.consumer.lock().is_some());
    }

    /// Taken requests stay in their order until they are completed. `abandon_recvs` completes all of them.
    #[test]
    fn taken_receives_are_completed_first() {
        let (_, pd, cq) = test_objects();
        let qp = with_requests(&pd, &cq);
        let mut consumer = qp.consumer.take().0;
        assert!(consumer.has_recvs() && consumer.recv().is_none());
        assert!(
            consumer.take_recv(&qp.receives, &qp.signals) && consumer.take_recv(&qp.receives, &qp.signals)
        );
        assert!(!consumer.take_recv(&qp.receives, &qp.signals) && !consumer.has_recvs());
        assert_eq!((consumer.taken_recvs(), qp.receives.taken()), (2, (2, 2)));
        let at = |behind| consumer.recv_behind(behind).map(|request| request.wr_id);
        assert_eq!([at(0), at(1), at(2)], [Some(4), Some(5), None]);
        consumer.abandon_recvs(&qp.receives, CAUSE);
        assert_eq!((consumer.taken_recvs(), qp.receives.taken()), (0, (2, 0)));
        assert_eq!(polled(&cq), [4, 5].map(|wr_id| (wr_id, WcStatus::WrFlushError)));
    }

    /// Without a peer, messages succeed up to a request that fails without a peer. Only signaled requests
    /// have completions.
    #[test]
    fn dropped_messages_succeed() {
        let (_, pd, cq) = test_objects();
        let qp = QpShared::new(&pd, &QpInit { early_sends: true, ..QpInit::new(&cq) }).unwrap();
        let mut consumer = qp.consumer.take().0;
        let signaled = |wr_id| send(wr_id).flags(SendFlags::SIGNALED);
        [signaled(1), send(2), signaled(3)].iter().for_each(|request| qp.queue_send(request).unwrap());
        assert!(consumer.drop_sends(&qp.sends, &qp.signals, CAUSE));
        let dropped: Vec<_> = std::iter::from_fn(|| cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(dropped, [1, 3].map(|wr_id| (wr_id, WcStatus::Success)));
        let local = SendRequest { op: SendOp::LocalInvalidate { rkey: 0 }, ..send(4) };
        [local, signaled(5)].iter().for_each(|request| qp.queue_send(request).unwrap());
        assert!(!consumer.drop_sends(&qp.sends, &qp.signals, CAUSE));
        assert_eq!((polled(&cq), qp.sends.open()), (vec![(4, WcStatus::MwBindError)], 1));
    }

    /// Returned requests of the queue pair's own queue are the next requests again. A returned request of a
    /// shared queue is flushed.
    #[test]
    fn returned_receives_are_posted_again() {
        let (_, pd, cq) = test_objects();
        let qp = with_requests(&pd, &cq);
        let mut consumer = qp.consumer.take().0;
        assert!(consumer.take_recv(&qp.receives, &qp.signals));
        consumer.return_recvs(&qp.receives, CAUSE);
        assert_eq!((consumer.taken_recvs(), qp.receives.taken(), qp.receives.open()), (0, (1, 0), 2));
        assert!(cq.poll_one().is_none() && consumer.take_recv(&qp.receives, &qp.signals));
        assert_eq!(consumer.recv().map(|request| request.wr_id), Some(4));
        let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
        srq.post_recv(&recv(1)).unwrap();
        let qp = QpShared::new(&pd, &QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
        let mut consumer = qp.consumer.take().0;
        assert!(consumer.take_recv(&qp.receives, &qp.signals));
        consumer.return_recvs(&qp.receives, CAUSE);
        assert_eq!(polled(&cq), [(1, WcStatus::WrFlushError)]);
        assert_eq!(qp.receives.taken(), (1, 0));
    }

    /// At most one request at a time is taken from a shared receive queue.
    #[test]
    fn one_shared_receive_is_taken_at_a_time() {
        let (_, pd, cq) = test_objects();
        let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
        (1..3).for_each(|wr_id| srq.post_recv(&recv(wr_id)).unwrap());
        let qp = QpShared::new(&pd, &QpInit { srq: Some(&srq), ..QpInit::new(&cq) }).unwrap();
        let mut consumer = qp.consumer.take().0;
        for wr_id in 1..3 {
            assert!(consumer.take_recv(&qp.receives, &qp.signals));
            assert!(!consumer.take_recv(&qp.receives, &qp.signals));
            assert_eq!(
                (consumer.recv().map(|request| request.wr_id), qp.receives.taken().1),
                (Some(wr_id), 1)
            );
            consumer
                .complete_recv(&qp.receives, qp.receives.failed(wr_id, WcStatus::LocalLengthError, CAUSE));
            assert_eq!(polled(&cq), [(wr_id, WcStatus::LocalLengthError)]);
        }
        assert!(!consumer.take_recv(&qp.receives, &qp.signals), "it is empty");
        assert_eq!((consumer.taken_recvs(), qp.receives.taken()), (0, (2, 0)));
    }

    /// The memory for the records of all requests of the send queue is there before the first stream, and the
    /// next stream gets the same memory.
    #[test]
    fn records_keep_their_memory_from_stream_to_stream() {
        let (_, pd, cq) = test_objects();
        let qp = QpShared::new(&pd, &QpInit { max_send_wr: 300, ..QpInit::new(&cq) }).unwrap();
        let (mut places, record) = (Vec::new(), |wr_id| Pending {
            wr_id,
            opcode: WcOpcode::Send,
            signaled: true,
            byte_len: 0,
            awaits: None,
            sent_to: super::super::SentTo::default(),
            fault: None,
        });
        for _ in 0..3 {
            let (consumer, mut records) = qp.consumer.take();
            assert!(records.is_empty() && records.capacity() >= 300);
            records.extend((0..300).map(record));
            places.push(records.as_slices().0.as_ptr());
            qp.consumer.put_back(consumer, records);
        }
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    }

    /// An unsignaled send that succeeds generates no completion, and its entry becomes free at once.
    #[test]
    fn an_unsignaled_send_completes_in_silence() {
        let (_, pd, cq) = test_objects();
        let qp = QpShared::new(&pd, &QpInit { early_sends: true, ..QpInit::new(&cq) }).unwrap();
        qp.queue_send(&send(1)).unwrap();
        let mut consumer = qp.consumer.take().0;
        assert!(matches!(consumer.next_send().unwrap().prepared, PreparedPayload::Unprepared));
        consumer.remove_send();
        let completion = qp.sends.succeeded(1, WcOpcode::Send, 0);
        consumer.complete_send(&qp.sends, &qp.signals, false, completion);
        assert!(cq.is_empty() && consumer.count_sends() == 0);
        assert_eq!((qp.sends.open(), qp.sends.used()), (0, 0));
    }

    /// Compares the ring of `request_ring` with a `VecDeque`, for capacities from 0 to several entries and
    /// for pseudo-random orders of calls.
    #[test]
    fn entries_come_out_in_order_over_and_over() {
        for capacity in 0..5 {
            let ((mut writer, mut reader), mut model) = (ring::<u64>(capacity), VecDeque::new());
            let mut kept = VecDeque::<u64>::new();
            let mut random = 12_345_u64;
            for step in 0..2_000_u64 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let count = (random >> 60) as usize % 4;
                match (random >> 40) % 6 {
                    0 => {
                        let fits = kept.len() + model.len() < capacity;
                        assert_eq!(writer.push_with(|entry| *entry += step), fits);
                        if fits {
                            model.push_back(step);
                        }
                    }
                    1 if kept.is_empty() => {
                        reader.remove(count);
                        model.drain(..count.min(model.len()));
                    }
                    2 => {
                        reader.keep(count);
                        kept.extend(model.drain(..count.min(model.len())));
                    }
                    1 | 3 => {
                        reader.release(count);
                        kept.drain(..count.min(kept.len()));
                    }
                    4 => {
                        reader.return_kept();
                        kept.drain(..).rev().for_each(|entry| model.push_front(entry));
                    }
                    _ => {
                        let oldest = reader.oldest(count);
                        let found = oldest.iter().count();
                        // Entries after the end of the ring's memory may be missing, but at least one entry
                        // is returned.
                        assert!(found <= count && (found > 0 || count.min(model.len()) == 0));
                        assert!(oldest.iter().eq(model.iter().take(found)));
                        assert_eq!(oldest.is_all(), found == model.len());
                        if kept.is_empty() && step % 2 == 0 {
                            oldest.remove(1);
                            model.drain(..1.min(found));
                        } else {
                            oldest.keep(1);
                            kept.extend(model.drain(..1.min(found)));
                        }
                    }
                }
                let started = (1..6).map_while(|back| reader.kept(back));
                assert!(started.eq(kept.iter().rev()) && reader.kept(0).is_none());
                assert_eq!((reader.first(), reader.get(count)), (model.front(), model.get(count)));
                assert_eq!((reader.len(), reader.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}
