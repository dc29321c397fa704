//! Decides which connection hands FPDUs to TCP next. Connections that have just begun to send come first,
//! then the others round robin.

use std::collections::{HashSet, VecDeque};

use dp::invariant::{Check, ensure};

/// Slots of connections that want to send.
///
/// An entry in a queue belongs to the slot, not to the connection. If a connection ends, the next connection
/// in the slot uses the slot's entry. So no queue has more entries than there are slots, even if connections
/// begin and end quickly.
pub(super) struct TxScheduler {
    /// For each slot, whether the slot is in a queue.
    queued: Vec<bool>,
    /// Slots of queue pairs that have just begun to send. The first turn of such a queue pair comes before
    /// the turns of `bulk`, so that small messages do not wait for bulk data.
    fresh: VecDeque<u32>,
    /// Slots of queue pairs that have had their first turn and have more to send.
    bulk: VecDeque<u32>,
}

impl TxScheduler {
    /// Creates a scheduler for `slots` connections, and allocates all memory that it needs.
    pub(super) fn new(slots: usize) -> Self {
        let (fresh, bulk) = (VecDeque::with_capacity(slots), VecDeque::with_capacity(slots));
        Self { queued: vec![false; slots], fresh, bulk }
    }

    /// Queues `slot`, whose connection begins to send. Does nothing if the slot is already in a queue.
    pub(super) fn schedule(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.fresh.push_back(slot);
        }
    }

    /// Queues `slot` again, because its connection has sent and has more to send.
    pub(super) fn requeue(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.bulk.push_back(slot);
        }
    }

    /// Returns the slot that is `behind` entries after the next slot in `fresh`.
    pub(super) fn fresh_behind(&self, behind: usize) -> Option<u32> {
        self.fresh.get(behind).copied()
    }

    /// Returns the slot that is `behind` entries after the next slot in `bulk`.
    pub(super) fn bulk_behind(&self, behind: usize) -> Option<u32> {
        self.bulk.get(behind).copied()
    }

    /// Removes and returns the next slot of a queue pair that has just begun to send.
    pub(super) fn next_fresh(&mut self) -> Option<u32> {
        let slot = self.fresh.pop_front()?;
        self.queued[slot as usize] = false;
        Some(slot)
    }

    /// Removes and returns the next slot of a queue pair that has had its first turn.
    pub(super) fn next_bulk(&mut self) -> Option<u32> {
        let slot = self.bulk.pop_front()?;
        self.queued[slot as usize] = false;
        Some(slot)
    }

    /// Returns the number of slots in `fresh` and in `bulk`.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.fresh.len(), self.bulk.len())
    }

    /// Checks that each queued slot is marked as queued, and is in only one queue; for tests.
    pub(super) fn check(&self) -> Check {
        let mut waiting = HashSet::new();
        for slot in self.fresh.iter().chain(&self.bulk) {
            ensure!(waiting.insert(*slot), "slot {slot} waits twice");
            ensure!(self.queued.get(*slot as usize) == Some(&true), "slot {slot} waits and is not marked");
        }
        let marked = self.queued.iter().filter(|queued| **queued).count();
        ensure!(marked == waiting.len(), "{marked} slots marked, {} wait", waiting.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_once_whoever_has_it() {
        let mut scheduler = TxScheduler::new(3);
        for slot in [0, 1, 0, 0] {
            scheduler.schedule(slot);
        }
        scheduler.requeue(1);
        assert_eq!(scheduler.waiting(), (2, 0));
        assert_eq!([0, 1, 2].map(|behind| scheduler.fresh_behind(behind)), [Some(0), Some(1), None]);
        assert_eq!(scheduler.next_fresh(), Some(0));
        scheduler.requeue(0);
        scheduler.schedule(0);
        assert_eq!(scheduler.waiting(), (1, 1));
        assert_eq!([0, 1].map(|behind| scheduler.bulk_behind(behind)), [Some(0), None]);
        assert_eq!((scheduler.next_fresh(), scheduler.next_bulk()), (Some(1), Some(0)));
        assert_eq!((scheduler.next_fresh(), scheduler.next_bulk()), (None, None));
        scheduler.schedule(0);
        assert_eq!(scheduler.waiting(), (1, 0));
    }

    #[test]
    fn slots_that_wait_twice_or_in_no_queue_are_found() {
        type Break = fn(&mut TxScheduler);
        let broken: [(Break, &str); 4] = [
            (|scheduler| scheduler.bulk.push_back(0), "slot 0 waits twice"),
            (|scheduler| scheduler.bulk.push_back(2), "slot 2 waits and is not marked"),
            (|scheduler| scheduler.queued[1] = false, "slot 1 waits and is not marked"),
            (|scheduler| assert!(scheduler.fresh.pop_front().is_some()), "2 slots marked, 1 wait"),
        ];
        for (break_it, found) in broken {
            let mut scheduler = TxScheduler::new(3);
            scheduler.schedule(0);
            scheduler.requeue(1);
            scheduler.check().unwrap();
            break_it(&mut scheduler);
            assert_eq!(scheduler.check(), Err(found.into()));
        }
    }
}
