//! Draining and holding the send queue (InfiniBand's state "send queue drained", SQD).
//!
//! A queue that is held starts no request: what has started goes on until it is complete, and what waits, or
//! is posted meanwhile, stays. The engine looks at the flag behind each request that it finds. So it sees the
//! flag with any request that was posted after the flag was set.

use std::sync::atomic::Ordering;

use super::QpShared;
use crate::queues::AsyncEventKind;

impl QpShared {
    /// Requests an event for when no send request is open or, while the queue is held, none is under way.
    pub(crate) fn arm_drain(&self) {
        self.drain.store(true, Ordering::Release);
        {
            // With this lock the flag is seen by a thread that flushes after this, and a flush before this is
            // seen here.
            let consumer = self.consumer();
            // Without a stream none is under way.
            if consumer.is_some() && self.holds_sends() {
                self.report_held();
            } else {
                self.report_if_drained();
            }
        }
        // A stream that completes the last request meanwhile looks again when it answers the doorbell.
        self.ring_again();
    }

    /// Makes the event if it is wanted and no send request is open.
    #[inline]
    pub(crate) fn report_if_drained(&self) {
        if self.drain.load(Ordering::Acquire) && self.send.wqes.open() == 0 {
            self.report_held();
        }
    }

    /// Makes the event if it is wanted. No request is under way, as the caller knows.
    #[cold]
    pub(crate) fn report_held(&self) {
        if self.drain.swap(false, Ordering::AcqRel) {
            self.events.push(AsyncEventKind::SqDrained, None);
        }
    }

    /// Starts no request from now on, until [`resume_sends`](Self::resume_sends).
    pub(crate) fn hold_sends(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// Starts requests again. An event that is still to come does not.
    pub(crate) fn resume_sends(&self) {
        self.drain.store(false, Ordering::Release);
        self.held.store(false, Ordering::Release);
        self.doorbell();
    }

    /// Whether no request starts.
    #[inline]
    pub(crate) fn holds_sends(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Rings the doorbell, if there is an engine: it looks at the send queue again.
    pub(crate) fn ring_again(&self) {
        if let Some(doorbells) = self.doorbells.get() {
            self.ring(doorbells);
        }
    }
}
