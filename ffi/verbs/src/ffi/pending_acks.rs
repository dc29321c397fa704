//! Events that a program has to acknowledge before it may destroy their object.

use std::sync::{Condvar, Mutex};

/// Counts the events that were delivered and are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    open: Mutex<u64>,
    all_acked: Condvar,
}

impl PendingAcks {
    /// Counts one event that was delivered.
    pub(crate) fn add(&self) {
        *self.open.lock().expect("no holder of this lock panics") += 1;
    }

    /// Subtracts `count` events that the program has acknowledged.
    pub(crate) fn ack(&self, count: u64) {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        *open = open.saturating_sub(count);
        if *open == 0 {
            self.all_acked.notify_all();
        }
    }

    /// Waits until every delivered event is acknowledged, as `ibv_destroy_cq(3)` does.
    pub(crate) fn wait(&self) {
        let open = self.open.lock().expect("no holder of this lock panics");
        let none_open = self.all_acked.wait_while(open, |open| *open > 0);
        drop(none_open.expect("no holder of this lock panics"));
    }
}
