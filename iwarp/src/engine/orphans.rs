//! Queue pairs that have no peer any more, and whose requests are retried for a while, as InfiniBand does
//! ([`QueuePair::set_retry_time`](crate::verbs::QueuePair::set_retry_time)).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use tcp_lite::Instant;

use crate::queues::QpShared;

/// The queue pairs and the times at which their requests fail, sorted by these times. If the user drops a
/// queue pair before its time, the queue pair is destroyed at once.
#[derive(Default)]
pub(super) struct Orphans {
    all: VecDeque<(Instant, Weak<QpShared>)>,
    /// The time of the queue pair that was added since the last call of [`take_added`](Self::take_added).
    added: Option<Instant>,
}

impl Orphans {
    /// Adds a queue pair whose requests fail at `at`.
    pub(super) fn insert(&mut self, at: Instant, qp: &Arc<QpShared>) {
        let place = self.all.partition_point(|(other, _)| *other <= at);
        self.all.insert(place, (at, Arc::downgrade(qp)));
        self.added = Some(at);
    }

    /// Returns the time of the queue pair that was added since the last call; `None` if no queue pair was
    /// added. The caller has to call [`end_due`](Self::end_due) at that time.
    #[inline]
    pub(super) fn take_added(&mut self) -> Option<Instant> {
        self.added.take()
    }

    /// Fails the requests of the queue pairs whose time is at most `now`.
    pub(super) fn end_due(&mut self, now: Instant) {
        let due = self.all.partition_point(|(at, _)| *at <= now);
        self.end(due);
    }

    /// Fails the requests of all queue pairs, because no thread polls the engine any more.
    pub(super) fn end_all(&mut self) {
        self.end(self.all.len());
    }

    fn end(&mut self, count: usize) {
        for qp in self.all.drain(..count).filter_map(|(_, qp)| qp.upgrade()) {
            qp.end_retries();
        }
    }
}
