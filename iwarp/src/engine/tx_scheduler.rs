//! Whose turn it is to hand FPDUs to TCP: connections that have just begun to send, then the others around.

use std::collections::VecDeque;

/// Slots of connections that want to send.
///
/// A place in a queue belongs to the slot and not to the connection: one that a dead connection left behind
/// serves the next one. So no queue outgrows the slots, however fast connections come and go.
pub(super) struct TxScheduler {
    /// By slot: it is in a queue.
    queued: Vec<bool>,
    /// They go first, once: what is small is not kept waiting by bulk.
    fresh: VecDeque<u32>,
    /// They have used up a turn and want another.
    bulk: VecDeque<u32>,
}

impl TxScheduler {
    /// For `slots` connections, with all memory that takes.
    pub(super) fn new(slots: usize) -> Self {
        let (fresh, bulk) = (VecDeque::with_capacity(slots), VecDeque::with_capacity(slots));
        Self { queued: vec![false; slots], fresh, bulk }
    }

    /// The connection in `slot` begins to send, unless it waits for a turn already.
    pub(super) fn begin(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.fresh.push_back(slot);
        }
    }

    /// The connection in `slot` has had a turn and goes on.
    pub(super) fn go_on(&mut self, slot: u32) {
        if !std::mem::replace(&mut self.queued[slot as usize], true) {
            self.bulk.push_back(slot);
        }
    }

    /// Who of those that have just begun is `behind` the next.
    pub(super) fn fresh_behind(&self, behind: usize) -> Option<u32> {
        self.fresh.get(behind).copied()
    }

    /// Who of the others is `behind` the next.
    pub(super) fn bulk_behind(&self, behind: usize) -> Option<u32> {
        self.bulk.get(behind).copied()
    }

    /// The next of those that have just begun.
    pub(super) fn next_fresh(&mut self) -> Option<u32> {
        let slot = self.fresh.pop_front()?;
        self.queued[slot as usize] = false;
        Some(slot)
    }

    /// The next of the others.
    pub(super) fn next_bulk(&mut self) -> Option<u32> {
        let slot = self.bulk.pop_front()?;
        self.queued[slot as usize] = false;
        Some(slot)
    }

    /// How many have just begun, and how many others there are.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.fresh.len(), self.bulk.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_waits_once_whoever_has_it() {
        let mut turns = TxScheduler::new(3);
        for slot in [0, 1, 0, 0] {
            turns.begin(slot);
        }
        turns.go_on(1);
        assert_eq!(turns.waiting(), (2, 0));
        assert_eq!([0, 1, 2].map(|behind| turns.fresh_behind(behind)), [Some(0), Some(1), None]);
        assert_eq!(turns.next_fresh(), Some(0));
        turns.go_on(0);
        turns.begin(0);
        assert_eq!(turns.waiting(), (1, 1));
        assert_eq!([0, 1].map(|behind| turns.bulk_behind(behind)), [Some(0), None]);
        assert_eq!((turns.next_fresh(), turns.next_bulk()), (Some(1), Some(0)));
        assert_eq!((turns.next_fresh(), turns.next_bulk()), (None, None));
        turns.begin(0);
        assert_eq!(turns.waiting(), (1, 0));
    }
}
