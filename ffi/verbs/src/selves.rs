//! Queue pairs that are connected to themselves, and their two ends in the engine.
//!
//! For its program such a queue pair is in ERR as soon as one of its ends has failed, and both of its queues are
//! flushed, as those of a device. But an end whose own request has failed, for instance by a key that is not there,
//! does not tell the other end, as that belongs to another queue pair everywhere else. So the end that takes the
//! receives fails here as well. The other way round there is nothing to do: an end that refuses a message says so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::{QpState, QueuePair};

/// The queue pairs that are connected to themselves and have not failed.
#[derive(Default)]
pub(crate) struct Selves {
    all: Mutex<Vec<Own>>,
    count: AtomicUsize,
}

struct Own {
    /// The number that the program knows.
    number: u32,
    /// The end that takes receives.
    near: QueuePair,
    /// The end that sends.
    far: QueuePair,
}

impl Selves {
    fn all(&self) -> MutexGuard<'_, Vec<Own>> {
        self.all.lock().expect("no holder of this lock panics")
    }

    /// A queue pair is connected to itself.
    pub(crate) fn enter(&self, number: u32, near: QueuePair, far: QueuePair) {
        let mut all = self.all();
        all.push(Own { number, near, far });
        self.count.store(all.len(), Ordering::Release);
    }

    /// A queue pair is reset or destroyed.
    pub(crate) fn leave(&self, number: u32) {
        drop(self.take(|own| own.number == number));
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Flushes the receives of those whose sending end has failed. Called after a poll.
    pub(crate) fn sweep(&self) {
        for Own { near, .. } in self.take(|own| has_failed(&own.far)) {
            if !has_failed(&near) {
                // One that has failed meanwhile is flushed already.
                let _ = near.modify(QpState::Error);
            }
        }
    }

    /// Takes some out. They are dropped without the lock: the last handle of a queue pair may go.
    fn take(&self, is_taken: impl Fn(&Own) -> bool) -> Vec<Own> {
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
