//! How other threads notify an engine of new work, and wake the engine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Notifier;
use super::work_list::{Full, WorkList};

/// The doorbells of an engine.
pub(crate) struct Doorbells {
    /// The slots of connections with new posts or an [`Ask`](super::Ask). A slot is seldom in this list
    /// twice.
    slots: WorkList,
    /// Whether the list had no room for a slot. If so, the engine visits every connection.
    lost: AtomicBool,
    /// Whether commands to the engine may wait (`engine_handle.rs`). Because of this flag, a poll of an idle
    /// engine takes no lock.
    commanded: AtomicBool,
    waker: Notifier,
}

impl Doorbells {
    pub(crate) fn new(max_connections: usize, waker: Notifier) -> Self {
        Self {
            slots: WorkList::new(max_connections),
            lost: AtomicBool::new(false),
            commanded: AtomicBool::new(false),
            waker,
        }
    }

    /// Notifies the engine that the queue pair of connection `slot` has new posts or an `Ask`, and wakes the
    /// engine if it sleeps.
    #[inline]
    pub(crate) fn ring(&self, slot: u32) {
        match self.slots.add(slot) {
            Ok(true) => self.waker.notify(),
            Ok(false) => {}
            Err(Full) => {
                self.lost.store(true, Ordering::Release);
                self.wake();
            }
        }
    }

    /// Removes and returns the slot of the next connection with new posts or an `Ask`, if any. Only the
    /// engine calls this function.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.slots.take()
    }

    /// Whether a doorbell was lost since the last call.
    pub(crate) fn take_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) && self.lost.swap(false, Ordering::AcqRel)
    }

    /// Sets whether commands wait. A caller that has added a command must also call [`wake`](Self::wake).
    pub(crate) fn set_commanded(&self, commanded: bool) {
        self.commanded.store(commanded, Ordering::Release);
    }

    pub(crate) fn is_commanded(&self) -> bool {
        self.commanded.load(Ordering::Acquire)
    }

    /// Wakes the engine if it sleeps.
    pub(crate) fn wake(&self) {
        if self.slots.announce() {
            self.waker.notify();
        }
    }

    /// Wakes the engine if it sleeps, and otherwise ends its next sleep at once. This function is for events
    /// that [`prepare_sleep`](Self::prepare_sleep) does not check.
    pub(crate) fn interrupt(&self) {
        self.waker.notify();
    }

    /// Announces that the engine is going to sleep. Returns `false` if work is already waiting.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.slots.prepare_sleep(|| !self.is_commanded() && !self.lost.load(Ordering::Acquire))
    }

    /// Consumes the notifications that woke the engine. The engine calls this function when it is awake.
    pub(crate) fn end_sleep(&self) -> std::io::Result<()> {
        self.slots.end_sleep();
        self.waker.take_if_any().map(drop)
    }

    /// The descriptor that becomes readable to wake the engine.
    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_out_in_order_over_and_over() {
        // The upper half of an entry has only the lower 32 bits of the addition's number, which repeat after
        // four billion additions. The second list begins shortly before such a repetition.
        for list in [WorkList::new(3), WorkList::after(u64::from(u32::MAX) - 9, 3)] {
            let add = |slot| list.add(slot).is_ok_and(|wakes| !wakes);
            for round in 0..10 {
                assert_eq!(list.take(), None);
                assert!((0..4).all(|slot| add(round + slot)));
                assert!(!add(9), "four entries are a power of two");
                assert_eq!([(); 4].map(|()| list.take()), [0, 1, 2, 3].map(|slot| Some(round + slot)));
            }
        }
    }

    #[test]
    fn an_engine_sleeps_only_without_work_and_is_woken_once() {
        let list = WorkList::new(2);
        assert!(list.prepare_sleep(|| true));
        assert!(list.add(1).is_ok_and(|wakes| wakes) && list.add(2).is_ok_and(|wakes| !wakes));
        assert!(!list.prepare_sleep(|| true), "two slots wait");
        assert_eq!([(); 2].map(|()| list.take()), [Some(1), Some(2)]);
        assert!(!list.prepare_sleep(|| false), "work waits elsewhere");
        assert!(!list.announce(), "it stayed awake");
        assert!(list.prepare_sleep(|| true) && list.announce() && !list.announce());
    }

    /// If the list has no room for a doorbell, the engine is notified that a doorbell was lost, and does not
    /// sleep.
    #[test]
    fn a_doorbell_that_finds_no_room_is_answered_too() {
        let doorbells = Doorbells::new(1, Notifier::new().unwrap());
        (1..3).for_each(|slot| doorbells.ring(slot));
        assert_eq!([(); 2].map(|()| doorbells.next()), [Some(1), None]);
        assert!(!doorbells.prepare_sleep());
        assert!(doorbells.take_lost() && !doorbells.take_lost());
        assert!(doorbells.prepare_sleep());
        doorbells.ring(3);
        assert_eq!(doorbells.waker.take().unwrap(), 1);
    }
}
