//! The consuming end of a queue pair: takes the posted requests, and completes them.
//!
//! There is one for each queue pair. The stream has it while there is a stream. Before and after that it is
//! with the queue pair, behind a lock, for threads that flush. So requests are taken and completed by one
//! thread at a time, without a locked instruction for each.

use rtrb::Consumer;

use super::{QpShared, RecvRequest, SendEntry, WcOpcode, WcStatus, WorkCompletion, send_opcode};

/// See the module.
pub(crate) struct QpConsumer {
    pub(super) sq: Consumer<SendEntry>,
    pub(super) rq: Consumer<RecvRequest>,
}

impl QpConsumer {
    /// The oldest send request, which stays in its queue.
    #[inline]
    pub(crate) fn next_send(&self) -> Option<&SendEntry> {
        self.sq.peek().ok()
    }

    /// Removes the oldest send request.
    #[inline]
    pub(crate) fn remove_send(&mut self) {
        if let Ok(oldest) = self.sq.read_chunk(1) {
            oldest.commit_all();
        }
    }

    /// Whether send requests wait.
    #[inline]
    pub(crate) fn has_sends(&self) -> bool {
        !self.sq.is_empty()
    }

    /// Takes the oldest receive request, for a message of the peer that begins.
    #[inline]
    pub(crate) fn take_recv(&mut self, qp: &QpShared) -> Option<RecvRequest> {
        let request = match &qp.srq {
            None => self.rq.pop().ok(),
            Some(srq) => qp.take_shared(srq),
        }?;
        qp.recv_taken.add(1);
        Some(request)
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

    /// Completes a receive request that was taken.
    pub(crate) fn complete_recv(&mut self, qp: &QpShared, completion: WorkCompletion) {
        qp.recv_done.add(1);
        qp.recv.wqes.complete();
        qp.recv.push(completion);
        qp.recv.cq.shared.report_overflow();
    }

    /// Completes all requests of both queues as flushed.
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
        qp.send.cq.shared.report_overflow();
        qp.recv.cq.shared.report_overflow();
    }
}
