//! The link of a queue pair to the engine that carries its connection: its doorbell there, and the inbound
//! Reads that the connection was granted.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::queues::Doorbells;
use crate::queues::rung::Rung;
use crate::queues::usage::{Permit, Quota};

/// See the module.
pub(crate) struct EngineLink {
    /// The doorbells of the engine; set once, by connect or accept.
    doorbells: OnceLock<Arc<Doorbells>>,
    /// The connection's slot in that engine.
    slot: AtomicU32,
    /// Inbound Reads and atomics that were granted, out of `max_read_slots`.
    read_slots: AtomicU32,
    /// Whether the doorbell was rung and the engine has not answered it.
    rung: Rung,
}

impl EngineLink {
    pub(super) fn new() -> Self {
        Self {
            doorbells: OnceLock::new(),
            slot: AtomicU32::new(u32::MAX),
            read_slots: AtomicU32::new(0),
            rung: Rung::new(),
        }
    }

    /// Whether there is an engine.
    pub(super) fn is_there(&self) -> bool {
        self.doorbells.get().is_some()
    }

    /// The engine with these doorbells is to carry the connection, which was granted `read_slots`. Returns
    /// `false` if there is an engine already.
    pub(super) fn reserve(&self, doorbells: &Arc<Doorbells>, read_slots: Permit) -> bool {
        if self.doorbells.set(Arc::clone(doorbells)).is_err() {
            return false;
        }
        self.read_slots.store(read_slots.into_count() as u32, Ordering::Release);
        true
    }

    /// Returns the inbound Reads and atomics above `count` to the quota that they are from.
    pub(super) fn shrink_read_slots(&self, quota: &Quota, count: usize) {
        let left = u32::try_from(count).unwrap_or(u32::MAX);
        let fewer = |granted: u32| (granted > left).then_some(left);
        if let Ok(granted) = self.read_slots.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer) {
            quota.take_back((granted - left) as usize);
        }
    }

    /// The connection has this slot in its engine.
    pub(crate) fn set_slot(&self, slot: usize) {
        self.slot.store(slot as u32, Ordering::Release);
    }

    /// Rings the doorbell, if there is an engine: it looks at the queue pair again. Returns whether there is.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        let Some(doorbells) = self.doorbells.get() else { return false };
        if self.rung.ring() {
            doorbells.ring(self.slot.load(Ordering::Acquire));
        }
        true
    }

    /// The engine answers the doorbell: the next post rings it again.
    #[inline]
    pub(crate) fn clear_doorbell(&self) {
        self.rung.answer();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::Notifier;

    fn doorbells() -> Arc<Doorbells> {
        Arc::new(Doorbells::new(8, Notifier::new().unwrap()))
    }

    /// Many posts ring once, with the slot, until the engine has answered.
    #[test]
    fn a_doorbell_rings_once_until_it_is_answered() {
        let (link, doorbells) = (EngineLink::new(), doorbells());
        assert!(!link.is_there() && !link.ring());
        assert!(link.reserve(&doorbells, Quota::new("", 9).take(1).unwrap()));
        link.set_slot(5);
        assert!(link.is_there() && link.ring() && link.ring());
        assert_eq!([(); 2].map(|()| doorbells.next()), [Some(5), None]);
        assert!(link.ring());
        assert_eq!(doorbells.next(), None, "it was not answered");
        link.clear_doorbell();
        assert!(link.ring());
        assert_eq!(doorbells.next(), Some(5));
    }

    /// The Reads that were granted come back when they are too many, each once.
    #[test]
    fn granted_reads_are_returned_once() {
        let (link, quota) = (EngineLink::new(), Quota::new("", 100));
        let used = || quota.usage().used;
        link.shrink_read_slots(&quota, 0);
        assert!(link.reserve(&doorbells(), quota.take(60).unwrap()));
        assert_eq!(used(), 60);
        for (count, left) in [(70, 60), (60, 60), (20, 20), (30, 20), (0, 0), (0, 0)] {
            link.shrink_read_slots(&quota, count);
            assert_eq!(used(), left, "{count}");
        }
    }

    /// A second engine gets nothing, and its grant is returned.
    #[test]
    fn a_queue_pair_has_one_engine() {
        let (link, quota) = (EngineLink::new(), Quota::new("", 100));
        let [first, second] = [(); 2].map(|()| doorbells());
        assert!(link.reserve(&first, quota.take(10).unwrap()));
        assert!(!link.reserve(&second, quota.take(20).unwrap()));
        assert_eq!(quota.usage().used, 10);
        link.set_slot(1);
        link.ring();
        assert_eq!((first.next(), second.next()), (Some(1), None));
    }
}
