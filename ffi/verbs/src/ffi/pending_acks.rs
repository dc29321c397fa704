//! Events that a program has to acknowledge before it may destroy their object.

use std::sync::{Condvar, Mutex};

/// Counts the events that were delivered and are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    open: Mutex<Open>,
    all_acked: Condvar,
}

#[derive(Debug, Default)]
struct Open {
    events: u64,
    /// Whether a thread waits for the acknowledgements. Without such a thread, an acknowledgement makes no
    /// system call.
    is_awaited: bool,
}

impl PendingAcks {
    /// Counts one event that was delivered.
    pub(crate) fn add(&self) {
        self.open.lock().expect("no holder of this lock panics").events += 1;
    }

    /// Subtracts `count` events that the program has acknowledged.
    pub(crate) fn ack(&self, count: u64) {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        open.events = open.events.saturating_sub(count);
        if open.events == 0 && open.is_awaited {
            self.all_acked.notify_all();
        }
    }

    /// Waits until every delivered event is acknowledged, as `ibv_destroy_cq(3)` does.
    pub(crate) fn wait(&self) {
        let mut open = self.open.lock().expect("no holder of this lock panics");
        // The object is destroyed after this wait, so the flag is not cleared.
        open.is_awaited = true;
        let none_open = self.all_acked.wait_while(open, |open| open.events > 0);
        drop(none_open.expect("no holder of this lock panics"));
    }
}
