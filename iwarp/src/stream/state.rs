//! The part of a stream's state that sending and receiving share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ddp::UntaggedQueue;
use crate::memory::{Accessor, PdId};
use crate::queues::{Pending, QpConsumer, QpShared, SendEntry, WorkCompletion};
use crate::rdmap::Extensions;

use super::ib_profile::Rules;
use super::slot_pool::PoolQueue;

/// The state that sending and receiving share: the queue pair, and its requests that are started.
/// `outstanding.rs` starts and completes these requests.
pub(super) struct StreamState {
    pub(super) qp: Arc<QpShared>,
    /// Takes requests from the queues of the queue pair, and completes the requests.
    pub(super) consumer: QpConsumer,
    pub(super) by: Accessor,
    /// The protection domain of the buffers in receive requests.
    pub(super) recv_pd: PdId,
    pub(super) extensions: Extensions,
    pub(super) rules: Rules,
    /// Our Reads and atomics that wait for their responses, in the order of their requests.
    pub(super) outstanding: PoolQueue,
    /// Queue 3, with one buffer for each of our outstanding atomics (RFC 7306 section 5.2.2).
    pub(super) atomic_responses: UntaggedQueue,
    /// Requests that are started and not yet completed, in post order. Normally, a Send or Write is added
    /// only when its last segment is written, and only if it cannot complete at once. The entries of all
    /// pending requests are still in the send queue.
    pub(super) pending: VecDeque<Pending>,
    /// Number of requests at the end of `pending` that still have to be sent: a Read that has elements left,
    /// and requests that the peer has dropped.
    pub(super) unsent: usize,
    /// A stream offset below which the peer's TCP has acknowledged all bytes. The peer's TCP may have
    /// acknowledged more bytes.
    pub(super) acknowledged: u64,
    /// Maximum number of our outstanding Reads and atomics.
    pub(super) ord: u32,
    /// If the next request is a Read: the scatter/gather element for its next Read Request. 0: the Read has
    /// not begun.
    pub(super) next_element: u8,
    /// Number of FPDUs sent, plus the number of delivered segments of responses to our Reads and atomics.
    pub(super) progress: u64,
}

impl StreamState {
    /// Creates the state. The records of pending requests use the memory of the queue pair, which has room
    /// for as many records as the send queue has entries.
    pub(super) fn new(qp: Arc<QpShared>, by: Accessor, ord: u16, rules: Rules) -> Self {
        let (consumer, pending) = qp.consumer.take();
        Self {
            extensions: qp.config.extensions,
            rules,
            recv_pd: qp.receives.shared_pd().unwrap_or(by.pd),
            by,
            outstanding: PoolQueue::default(),
            atomic_responses: UntaggedQueue::new(),
            pending,
            consumer,
            qp,
            unsent: 0,
            acknowledged: 0,
            ord: ord.into(),
            next_element: 0,
            progress: 0,
        }
    }

    /// Returns the request that is sent next: a request that has to be sent again, or the oldest request that
    /// is not started.
    #[inline]
    pub(super) fn next_request(&self) -> Option<&SendEntry> {
        match self.unsent {
            0 => self.consumer.next_send(),
            back => self.consumer.started_send(back),
        }
    }

    /// Whether requests wait to be sent.
    #[inline]
    pub(super) fn has_requests(&self) -> bool {
        self.unsent | self.consumer.count_sends() != 0
    }

    /// Removes the next receive request from its queue. Returns `false` if no receive request is available.
    #[inline]
    pub(super) fn take_recv(&mut self) -> bool {
        self.consumer.take_recv(&self.qp.receives, &self.qp.signals)
    }

    /// Completes the oldest receive request that is taken. If the frame of the message has also acknowledged
    /// requests of ours, these requests complete first: on InfiniBand, the acknowledgement of a Send arrives
    /// before any answer to it.
    #[inline]
    pub(super) fn complete_recv(&mut self, completion: WorkCompletion) {
        if self.rules.complete_by_acknowledgement() && !self.pending.is_empty() {
            self.complete_acknowledged();
        }
        self.consumer.complete_recv(&self.qp.receives, completion);
    }
}
