//! Requests of our user between their start and their completion, and the responses that they wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ddp::UntaggedQueue;
use crate::memory::Accessor;
use crate::queues::{QpShared, Sge, WcOpcode, WcStatus};
use crate::rdmap::{Extensions, ReadSink};

use super::slot_pool::{PoolQueue, SlotPool};

/// A request that was started and is not yet completed.
pub(super) struct Pending {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    pub(super) byte_len: u32,
    /// It waits for earlier requests only. Otherwise its response, or its last segment, is still to come.
    pub(super) done: bool,
    /// The status of its completion, if it is the cause of the stream's end.
    pub(super) fault: Option<WcStatus>,
}

/// State that sending and receiving share: the queue pair, and its requests that wait for responses.
pub(super) struct Common {
    pub(super) qp: Arc<QpShared>,
    pub(super) by: Accessor,
    pub(super) extensions: Extensions,
    /// Our Reads and atomics that wait for their responses, in the order of their requests.
    pub(super) outstanding: PoolQueue,
    /// Queue 3: one buffer for each of our outstanding atomics (RFC 7306 section 5.2.2).
    pub(super) atomic_responses: UntaggedQueue,
    /// Requests that are started and not yet completed, in post order. A Send or Write gets here only once it
    /// is done, so the first that is not done is the Read or atomic whose response comes next.
    pub(super) pending: VecDeque<Pending>,
    /// How many of our Reads and atomics may be outstanding together.
    pub(super) ord: usize,
    /// Counts FPDUs sent, and delivered segments of responses to our Reads and atomics.
    pub(super) progress: u64,
}

/// One of our requests that waits for its response.
pub(super) enum Outstanding {
    /// A Read. `is_rtr`: it is the ready-to-receive message, which no user posted.
    Read { sink: ReadSink, is_rtr: bool },
    /// An atomic. `sink` receives the value that the word had before.
    Atomic { id: u32, sink: Sge },
}

/// Takes the oldest. An emptied queue starts again at the front of its buffer, so a short queue keeps using
/// the same cache lines, however large its capacity is.
pub(super) fn take_front<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let oldest = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    oldest
}

impl Common {
    /// Allocates for as many pending requests as the send queue holds.
    pub(super) fn new(qp: Arc<QpShared>, by: Accessor, ord: u16) -> Self {
        Self {
            extensions: qp.extensions,
            by,
            outstanding: PoolQueue::default(),
            atomic_responses: UntaggedQueue::new(),
            pending: VecDeque::with_capacity(qp.caps.max_send_wr.max(1)),
            qp,
            ord: usize::from(ord),
            progress: 0,
        }
    }

    /// The last segment of a request is written to TCP, or a request that sends nothing is carried out: it
    /// completes as soon as all earlier ones have.
    ///
    /// RFC 5040 section 5.5 (RDMAP-287): requests complete in post order.
    pub(super) fn complete_in_order(&mut self, pending: Pending) {
        if self.pending.is_empty() {
            self.complete(&pending);
        } else {
            self.pending.push_back(Pending { done: true, ..pending });
        }
    }

    /// Records a Read or atomic as started. It completes when its response is delivered and all earlier
    /// requests have completed.
    ///
    /// RFC 5040 section 5.5 (RDMAP-291): a Read is not complete before its response is delivered.
    pub(super) fn await_response(
        &mut self,
        slots: &mut SlotPool<Outstanding>,
        pending: Pending,
        response: Outstanding,
    ) {
        self.outstanding.push(slots, response);
        self.pending.push_back(pending);
    }

    /// The response to the oldest outstanding Read or atomic is delivered: completes all requests that now
    /// may.
    pub(super) fn on_response(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.done = true;
        }
        while self.pending.front().is_some_and(|pending| pending.done) {
            if let Some(pending) = take_front(&mut self.pending) {
                self.complete(&pending);
            }
        }
    }

    /// The oldest outstanding Read or atomic fails, because our user has revoked the memory for its response.
    pub(super) fn fail_oldest(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.fault = Some(WcStatus::LocalProtectionError);
        }
    }

    fn complete(&self, pending: &Pending) {
        let completion = self.qp.succeeded(pending.wr_id, pending.opcode, pending.byte_len);
        self.qp.complete_send(pending.signaled, completion);
    }
}
