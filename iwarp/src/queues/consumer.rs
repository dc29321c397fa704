//! The consuming end of a queue pair: takes the posted requests, and completes them.
//!
//! There is one for each queue pair. The stream has it while there is a stream. Before and after that it is
//! with the queue pair, behind a lock, for threads that flush. So requests are taken and completed by one
//! thread at a time, without a locked instruction for each.

use std::mem::ManuallyDrop;

use super::ring::{Oldest, RingReader};
use super::{
    ConnectionError, QpShared, RecvRequest, SendEntry, WcOpcode, WcStatus, WorkCompletion, send_opcode,
};

/// See the module.
pub(crate) struct QpConsumer {
    sq: RingReader<SendEntry>,
    rq: RingReader<RecvEntry>,
    /// Receive requests that are taken for messages of the peer and not completed. Those of a queue of our
    /// own stay at its front.
    taken: usize,
    /// With a shared queue: the place of the one that is taken from it.
    shared: Option<Box<Option<RecvRequest>>>,
}

/// A posted request in the receive queue. It owns nothing.
pub(super) type RecvEntry = ManuallyDrop<RecvRequest>;

/// A request that was sent and makes a completion.
pub(crate) struct Signaled {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
}

impl QpConsumer {
    /// `is_shared`: the receive requests come from a shared queue.
    pub(super) fn new(sq: RingReader<SendEntry>, rq: RingReader<RecvEntry>, is_shared: bool) -> Self {
        Self { sq, rq, taken: 0, shared: is_shared.then(Box::default) }
    }

    /// The oldest send request, which stays in its queue.
    #[inline]
    pub(crate) fn next_send(&self) -> Option<&SendEntry> {
        self.sq.first()
    }

    /// Removes the oldest send request.
    #[inline]
    pub(crate) fn remove_send(&mut self) {
        self.sq.remove(1);
    }

    /// The oldest send requests, at most `limit`, which stay in their queue until they are
    /// [removed](Oldest::remove).
    #[inline]
    pub(crate) fn next_sends(&mut self, limit: usize) -> Oldest<'_, SendEntry> {
        self.sq.oldest(limit)
    }

    /// Whether send requests wait.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        !self.sq.is_empty()
    }

    /// Takes the next receive request, for a message of the peer that begins; `false` if there is none. From
    /// a shared queue only one is taken at a time.
    #[inline]
    pub(crate) fn take_recv(&mut self, qp: &QpShared) -> bool {
        match (&qp.srq, &mut self.shared) {
            (Some(_), Some(place)) if place.is_some() => return false,
            (Some(srq), Some(place)) => {
                **place = qp.take_shared(srq);
                if place.is_none() {
                    return false;
                }
            }
            _ if self.rq.len() <= self.taken => return false,
            _ => {}
        }
        self.taken += 1;
        qp.recv_taken.add(1);
        true
    }

    /// Whether its own receive queue has requests that are not taken.
    pub(crate) fn has_recvs(&self) -> bool {
        self.rq.len() > self.taken
    }

    /// Receive requests that are taken and not completed.
    #[inline]
    pub(crate) fn taken_recvs(&self) -> usize {
        self.taken
    }

    /// The oldest receive request that is taken.
    #[inline]
    pub(crate) fn recv(&self) -> Option<&RecvRequest> {
        match (self.taken, &self.shared) {
            (0, _) => None,
            (_, None) => self.rq.first().map(|entry| &**entry),
            (_, Some(shared)) => shared.as_ref().as_ref(),
        }
    }

    /// A copy of the receive request that was taken `behind` requests after the oldest one.
    pub(crate) fn recv_behind(&self, behind: usize) -> Option<RecvRequest> {
        if behind == 0 {
            return self.recv().cloned();
        }
        let entry = if behind < self.taken { self.rq.get(behind) } else { None };
        entry.map(|entry| RecvRequest::clone(entry))
    }

    /// Completes a send request. It makes a completion if it is `signaled`: one was requested, or the request
    /// failed. Otherwise the entry of the request is free at once.
    #[inline(always)]
    pub(crate) fn complete_send(&mut self, qp: &QpShared, signaled: bool, completion: WorkCompletion) {
        self.finish_send(qp, signaled, completion);
        qp.send.cq.shared.report();
    }

    #[inline(always)]
    fn finish_send(&mut self, qp: &QpShared, signaled: bool, completion: WorkCompletion) {
        let wqes = &qp.send.wqes;
        wqes.complete();
        debug_assert!(signaled || completion.status == WcStatus::Success, "a failure is always told");
        if signaled || qp.sq_sig_all {
            qp.send.push(completion);
        } else {
            wqes.free(1);
        }
        qp.report_if_drained();
    }

    /// Completes `count` send requests that have succeeded, after they left their queue. Those in `signaled`
    /// make completions, in this order, which enter the completion queue together.
    #[inline]
    pub(crate) fn complete_sends(&mut self, qp: &QpShared, count: usize, signaled: &[Signaled]) {
        let wqes = &qp.send.wqes;
        wqes.complete_all(count);
        if !signaled.is_empty() {
            let completions = signaled.iter().map(|sent| qp.succeeded(sent.wr_id, sent.opcode, 0));
            qp.send.push_all(completions, false);
        }
        if signaled.len() < count {
            wqes.free(count - signaled.len());
        }
        qp.report_if_drained();
        qp.send.cq.shared.report();
    }

    /// Completes the oldest receive request that is taken.
    pub(crate) fn complete_recv(&mut self, qp: &QpShared, completion: WorkCompletion) {
        debug_assert!(self.taken > 0, "only taken requests are completed");
        match &mut self.shared {
            Some(shared) => **shared = None,
            None => self.rq.remove(1),
        }
        self.taken -= 1;
        qp.recv_done.add(1);
        qp.recv.wqes.complete();
        qp.recv.push(completion);
        qp.recv.cq.shared.report();
    }

    /// Completes all receive requests that are taken as flushed.
    pub(crate) fn abandon_recvs(&mut self, qp: &QpShared, cause: Option<ConnectionError>) {
        while let Some(wr_id) = self.recv().map(|request| request.wr_id) {
            self.complete_recv(qp, qp.flushed(wr_id, WcOpcode::Recv, cause));
        }
    }

    /// Completes the oldest send request with `status`, a failure; `false` if there is none. The caller has
    /// to call [`report`](QpShared::report) when it holds no lock.
    pub(crate) fn fail_next_send(&mut self, qp: &QpShared, status: WcStatus) -> bool {
        // As in `flush`: either the request of a thread that posts is seen here, or it sees the new state.
        let _posting = qp.send_queue();
        let Some(entry) = self.sq.first() else { return false };
        let completion = qp.failed(entry.wr_id, send_opcode(&entry.op), status, qp.cause());
        self.sq.remove(1);
        self.finish_send(qp, true, completion);
        true
    }

    /// Completes all requests of both queues as flushed. No receive request is taken. The caller has to call
    /// [`report`](QpShared::report) when it holds no lock.
    pub(crate) fn flush(&mut self, qp: &QpShared) {
        let cause = qp.cause();
        {
            // A thread that posts enters its request with this lock, and then looks at the state. So either
            // the request is seen here, or the thread sees that the stream is over, and flushes as well.
            let _posting = qp.send_queue();
            while let Some(entry) = self.sq.first() {
                let completion = qp.flushed(entry.wr_id, send_opcode(&entry.op), cause);
                self.sq.remove(1);
                self.finish_send(qp, true, completion);
            }
            // They were posted after all others.
            while let Some(late) = qp.next_late_send() {
                self.finish_send(qp, true, qp.flushed(late.wr_id, late.opcode, cause));
            }
        }
        {
            let _posting = qp.recv_queue();
            while let Some(wr_id) = self.rq.first().map(|entry| entry.wr_id) {
                self.rq.remove(1);
                qp.recv.wqes.complete();
                qp.recv.push(qp.flushed(wr_id, WcOpcode::Recv, cause));
            }
        }
        qp.report_if_drained();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::super::ring::ring;

    /// Against a `VecDeque`, with capacities from none to several and every order of calls that a simple
    /// generator makes.
    #[test]
    fn entries_come_out_in_order_over_and_over() {
        for capacity in 0..5 {
            let ((mut writer, mut reader), mut model) = (ring::<u64>(capacity), VecDeque::new());
            let mut random = 12_345_u64;
            for step in 0..2_000_u64 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let count = (random >> 60) as usize % 4;
                match (random >> 40) % 3 {
                    0 => {
                        let fits = model.len() < capacity;
                        assert_eq!(writer.push_with(|entry| *entry += step), fits);
                        if fits {
                            model.push_back(step);
                        }
                    }
                    1 => {
                        reader.remove(count);
                        model.drain(..count.min(model.len()));
                    }
                    _ => {
                        let oldest = reader.oldest(count);
                        let found = oldest.iter().count();
                        // Those behind the end of the ring may be missing, but never all.
                        assert!(found <= count && (found > 0 || count.min(model.len()) == 0));
                        assert!(oldest.iter().eq(model.iter().take(found)));
                        assert_eq!(oldest.is_all(), found == model.len());
                        oldest.remove(1);
                        model.drain(..1.min(found));
                    }
                }
                assert_eq!((reader.first(), reader.get(count)), (model.front(), model.get(count)));
                assert_eq!((reader.len(), reader.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}
