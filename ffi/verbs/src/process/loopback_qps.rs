//! Queue pairs that are connected to themselves. Each of these queue pairs has two engine queue pairs.
//!
//! As with a hardware device, the program must see such a queue pair in ERR, with both queues flushed, as
//! soon as one of its two sides has failed. If the receiving side refuses a message, it sends a Terminate,
//! and both sides fail. If a request fails at the sending side (for instance because of an unknown key), the
//! receiving side does not fail, since the two sides of a connection are normally different queue pairs. So
//! in this case this module fails the receiving side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::{QpState, QueuePair};

/// The queue pairs that are connected to themselves, and whose sending sides have not failed.
#[derive(Default)]
pub(crate) struct LoopbackQps {
    all: Mutex<Vec<LoopbackQp>>,
    count: AtomicUsize,
}

struct LoopbackQp {
    /// The queue pair number that the program sees.
    number: u32,
    /// The side that receives.
    near: QueuePair,
    /// The side that sends.
    far: QueuePair,
}

impl LoopbackQps {
    fn all(&self) -> MutexGuard<'_, Vec<LoopbackQp>> {
        self.all.lock().expect("no holder of this lock panics")
    }

    /// Inserts a queue pair that is connected to itself.
    pub(crate) fn insert(&self, number: u32, near: QueuePair, far: QueuePair) {
        let mut all = self.all();
        all.push(LoopbackQp { number, near, far });
        self.count.store(all.len(), Ordering::Release);
    }

    /// Removes a queue pair. This function is called when the queue pair is reset or destroyed.
    pub(crate) fn remove(&self, number: u32) {
        drop(self.take(|own| own.number == number));
    }

    /// Whether the table has any queue pair.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Flushes the receives of queue pairs whose sending side has failed. This function is called after a
    /// poll.
    pub(crate) fn sweep(&self) {
        for LoopbackQp { near, .. } in self.take(|own| has_failed(&own.far)) {
            if !has_failed(&near) {
                // Errors are ignored: if the receiving side has failed in the meantime, its receives are
                // already flushed.
                let _ = near.modify(QpState::Error);
            }
        }
    }

    /// Removes entries, and returns them so that they are dropped after the lock is released: an entry may
    /// have the last handle of a queue pair.
    fn take(&self, is_taken: impl Fn(&LoopbackQp) -> bool) -> Vec<LoopbackQp> {
        if !self.any() {
            return Vec::new();
        }
        let mut all = self.all();
        let (taken, rest): (Vec<_>, Vec<_>) = all.drain(..).partition(is_taken);
        *all = rest;
        self.count.store(all.len(), Ordering::Release);
        taken
    }
}

fn has_failed(qp: &QueuePair) -> bool {
    matches!(qp.state(), QpState::Terminate | QpState::Error)
}

#[cfg(test)]
mod tests {
    use iwarp::verbs::{Context, ContextConfig, CqOptions, QpInit};

    use super::*;

    /// Queue pairs without a connection.
    fn queue_pairs<const N: usize>() -> [QueuePair; N] {
        let context = Context::new(ContextConfig::default()).unwrap();
        let cq = context.create_cq_with(&CqOptions::new(64)).unwrap();
        let pd = context.alloc_pd().unwrap();
        std::array::from_fn(|_| pd.create_qp(&QpInit::new(&cq)).unwrap())
    }

    fn fail(qp: &QueuePair) {
        qp.modify(QpState::Error).unwrap();
    }

    #[test]
    fn the_receiving_end_fails_with_the_sending_one_and_not_the_other_way_round() {
        let [near, far, other_near, other_far] = queue_pairs();
        let loopback_qps = LoopbackQps::default();
        loopback_qps.insert(1, near.clone(), far.clone());
        loopback_qps.insert(2, other_near.clone(), other_far.clone());
        loopback_qps.sweep();
        assert!(!has_failed(&near) && !has_failed(&other_near));
        fail(&far);
        fail(&other_near);
        loopback_qps.sweep();
        assert!(has_failed(&near));
        assert!(!has_failed(&other_far), "its peer tells it");
        assert!(loopback_qps.any(), "the other one is watched on");
        fail(&other_far);
        loopback_qps.sweep();
        assert!(!loopback_qps.any());
    }

    #[test]
    fn one_that_leaves_is_not_watched_any_more() {
        let [near, far, other_near, other_far] = queue_pairs();
        let loopback_qps = LoopbackQps::default();
        loopback_qps.insert(1, near.clone(), far.clone());
        loopback_qps.insert(2, other_near.clone(), other_far.clone());
        loopback_qps.remove(1);
        fail(&far);
        fail(&other_far);
        loopback_qps.sweep();
        assert!(!has_failed(&near) && has_failed(&other_near));
        assert!(!loopback_qps.any());
    }
}
