//! The consuming end of a queue pair: takes the posted requests, and completes them.
//!
//! There is one for each queue pair. The stream has it while there is a stream. Before and after that it is
//! with the queue pair, behind a lock, for threads that flush. So requests are taken and completed by one
//! thread at a time, without a locked instruction for each.

use rtrb::Consumer;
use rtrb::chunks::ReadChunk;

use super::{QpShared, RecvRequest, SendEntry, StreamError, WcOpcode, WcStatus, WorkCompletion, send_opcode};

/// See the module.
pub(crate) struct QpConsumer {
    sq: Consumer<SendEntry>,
    rq: Consumer<RecvRequest>,
    /// Receive requests that are taken for messages of the peer and not completed. Those of a queue of our
    /// own stay at its front.
    taken: usize,
    /// The one that is taken from a shared queue.
    shared: Option<RecvRequest>,
}

/// A request that was sent and makes a completion.
pub(crate) struct Signaled {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
}

impl QpConsumer {
    pub(super) fn new(sq: Consumer<SendEntry>, rq: Consumer<RecvRequest>) -> Self {
        Self { sq, rq, taken: 0, shared: None }
    }

    /// The oldest send request, which stays in its queue.
    #[inline]
    pub(crate) fn next_send(&self) -> Option<&SendEntry> {
        self.sq.peek().ok()
    }

    /// Removes the oldest send request.
    #[inline]
    pub(crate) fn remove_send(&mut self) {
        drop(self.sq.pop());
    }

    /// The oldest send requests, at most `limit`, which stay in their queue. They leave it with
    /// [`commit`](ReadChunk::commit).
    #[inline]
    pub(crate) fn next_sends(&mut self, limit: usize) -> Option<ReadChunk<'_, SendEntry>> {
        let count = self.sq.slots().min(limit);
        self.sq.read_chunk(count).ok()
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
        match &qp.srq {
            None if self.rq.slots() <= self.taken => return false,
            None => {}
            Some(_) if self.shared.is_some() => return false,
            Some(srq) => {
                self.shared = qp.take_shared(srq);
                if self.shared.is_none() {
                    return false;
                }
            }
        }
        self.taken += 1;
        qp.recv_taken.add(1);
        true
    }

    /// Receive requests that are taken and not completed.
    #[inline]
    pub(crate) fn taken_recvs(&self) -> usize {
        self.taken
    }

    /// The oldest receive request that is taken.
    #[inline]
    pub(crate) fn recv(&self) -> Option<&RecvRequest> {
        match self.taken {
            0 => None,
            _ => self.shared.as_ref().or_else(|| self.rq.peek().ok()),
        }
    }

    /// A copy of the receive request that was taken `behind` requests after the oldest one.
    pub(crate) fn recv_behind(&mut self, behind: usize) -> Option<RecvRequest> {
        if behind == 0 {
            return self.recv().cloned();
        }
        let taken = self.rq.read_chunk(self.taken).ok()?;
        let (front, rest) = taken.as_slices();
        front.iter().chain(rest).nth(behind).cloned()
    }

    /// Completes a send request. It makes a completion if one was requested or if the request failed;
    /// otherwise the entry of the request is free at once.
    #[inline(always)]
    pub(crate) fn complete_send(&mut self, qp: &QpShared, signaled: bool, completion: WorkCompletion) {
        self.finish_send(qp, signaled, completion);
        qp.send.cq.shared.report_overflow();
    }

    #[inline(always)]
    fn finish_send(&mut self, qp: &QpShared, signaled: bool, completion: WorkCompletion) {
        let wqes = &qp.send.wqes;
        wqes.complete();
        if signaled || qp.sq_sig_all || completion.status != WcStatus::Success {
            qp.send.push(completion);
        } else {
            wqes.free();
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
        (signaled.len()..count).for_each(|_| wqes.free());
        qp.report_if_drained();
        qp.send.cq.shared.report_overflow();
    }

    /// Completes the oldest receive request that is taken.
    pub(crate) fn complete_recv(&mut self, qp: &QpShared, completion: WorkCompletion) {
        debug_assert!(self.taken > 0, "only taken requests are completed");
        if self.shared.is_some() {
            self.shared = None;
        } else {
            drop(self.rq.pop());
        }
        self.taken -= 1;
        qp.recv_done.add(1);
        qp.recv.wqes.complete();
        qp.recv.push(completion);
        qp.recv.cq.shared.report_overflow();
    }

    /// Completes all receive requests that are taken as flushed.
    pub(crate) fn abandon_recvs(&mut self, qp: &QpShared, error: Option<StreamError>) {
        while let Some(wr_id) = self.recv().map(|request| request.wr_id) {
            self.complete_recv(qp, qp.flushed(wr_id, WcOpcode::Recv, error));
        }
    }

    /// Completes all requests of both queues as flushed. No receive request is taken. The caller has to call
    /// [`report_overflow`](QpShared::report_overflow) when it holds no lock.
    pub(crate) fn flush(&mut self, qp: &QpShared) {
        let error = qp.ended().error;
        {
            // A thread that posts enters its request with this lock, and then looks at the state. So either
            // the request is seen here, or the thread sees that the stream is over, and flushes as well.
            let _posting = qp.send_queue();
            while let Ok(entry) = self.sq.pop() {
                self.finish_send(qp, true, qp.flushed(entry.wr_id, send_opcode(&entry.op), error));
            }
        }
        {
            let _posting = qp.recv_queue();
            while let Ok(request) = self.rq.pop() {
                qp.recv.wqes.complete();
                qp.recv.push(qp.flushed(request.wr_id, WcOpcode::Recv, error));
            }
        }
        qp.report_if_drained();
    }
}
