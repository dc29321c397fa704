//! Finds queue pairs by the queue pair number that the program sees.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::QueuePair;

/// The queue pairs of the process, by the queue pair number that the program sees.
#[derive(Default)]
pub(crate) struct QpTable {
    known: Mutex<HashMap<u32, Entry>>,
}

struct Entry {
    /// The address of the `ibv_qp` that the program has.
    address: usize,
    /// The engine's queue pair.
    qp: QueuePair,
}

impl QpTable {
    fn known(&self) -> MutexGuard<'_, HashMap<u32, Entry>> {
        self.known.lock().expect("no holder of this lock panics")
    }

    /// Inserts a queue pair that was made, or replaces its engine queue pair.
    pub(crate) fn insert(&self, number: u32, address: usize, qp: QueuePair) {
        let before = self.known().insert(number, Entry { address, qp });
        drop(before);
    }

    pub(crate) fn remove(&self, number: u32) {
        let before = self.known().remove(&number);
        drop(before);
    }

    /// Runs `act` on the address of the queue pair with this number, if there is one. The queue pair is not
    /// destroyed during `act`.
    pub(crate) fn with(&self, number: u32, act: impl FnOnce(usize)) {
        let known = self.known();
        if let Some(entry) = known.get(&number) {
            act(entry.address);
        }
    }

    /// The address of the queue pair with this number, or `None` if there is no such queue pair.
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        self.known().get(&number).map(|entry| entry.address)
    }

    /// The engine queue pair of each queue pair in the table.
    pub(crate) fn all(&self) -> Vec<QueuePair> {
        self.known().values().map(|entry| entry.qp.clone()).collect()
    }
}
