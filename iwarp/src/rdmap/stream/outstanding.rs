//! Requests of ours between their start and their completion, and the answers they wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ddp::UntaggedQueue;
use crate::memory::Accessor;
use crate::queues::{QpShared, Sge, WcOpcode, WcStatus};
use crate::rdmap::{Extensions, ReadSink};

use super::records::{Queue, Slots};

/// A request that was started and has not been completed, in post order.
pub(super) struct Pending {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    pub(super) byte_len: u32,
    pub(super) done: bool,
    /// Why it failed, where it is to blame for the end of the stream.
    pub(super) fault: Option<WcStatus>,
}

/// What sending and receiving share: requests of ours that are answered, and who we are.
pub(super) struct Common {
    pub(super) qp: Arc<QpShared>,
    pub(super) by: Accessor,
    pub(super) extensions: Extensions,
    /// Reads and atomics of ours that wait for their responses, in the order of their requests.
    pub(super) outstanding: Queue,
    /// Queue 3: one buffer for each atomic of ours that is outstanding (RFC 7306 section 5.2.2).
    pub(super) atomic_responses: UntaggedQueue,
    /// Requests started and not completed, in post order.
    pub(super) pending: VecDeque<Pending>,
    /// Reads and atomics of ours that may be outstanding together.
    pub(super) ord: usize,
    /// FPDUs sent, and segments delivered that answer Reads and atomics.
    pub(super) progress: u64,
}

/// A request of ours whose answer is on its way.
pub(super) enum Outstanding {
    /// A Read. The RTR's own Read is nobody's request.
    Read { sink: ReadSink, is_rtr: bool },
    /// An atomic, and where the value found before goes.
    Atomic { id: u32, sink: Sge },
}

/// Takes the oldest. Once empty, a queue begins at its front again: one that is never long stays in the
/// memory it has touched, however much it has.
pub(super) fn take_front<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let oldest = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    oldest
}

impl Common {
    /// Takes the memory for the requests of the send queue.
    pub(super) fn new(qp: Arc<QpShared>, by: Accessor, ord: u16) -> Self {
        Self {
            extensions: qp.extensions,
            by,
            outstanding: Queue::default(),
            atomic_responses: UntaggedQueue::new(),
            pending: VecDeque::with_capacity(qp.sq.capacity()),
            qp,
            ord: usize::from(ord),
            progress: 0,
        }
    }

    /// Enters a request as started. `done`: it completes as soon as all before it have.
    pub(super) fn start(&mut self, pending: Pending) {
        if pending.done && self.pending.is_empty() {
            self.complete(&pending);
        } else {
            self.pending.push_back(pending);
        }
    }

    /// Enters a Read or atomic as started: it completes when its answer is delivered, and all before it have.
    pub(super) fn await_answer(
        &mut self,
        slots: &mut Slots<Outstanding>,
        pending: Pending,
        answer: Outstanding,
    ) {
        self.outstanding.push(slots, answer);
        self.pending.push_back(Pending { done: false, ..pending });
    }

    /// The Read or atomic that was outstanding longest has got its answer.
    pub(super) fn answered(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.done = true;
        }
        while self.pending.front().is_some_and(|pending| pending.done) {
            if let Some(pending) = take_front(&mut self.pending) {
                self.complete(&pending);
            }
        }
    }

    /// The Read or atomic outstanding longest cannot be completed, by our user's doing.
    pub(super) fn blame_sink(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.fault = Some(WcStatus::LocalProtectionError);
        }
    }

    fn complete(&self, pending: &Pending) {
        let completion = self.qp.succeeded(pending.wr_id, pending.opcode, pending.byte_len);
        self.qp.complete_send(pending.signaled, completion);
    }
}
