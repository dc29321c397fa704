//! The link of a queue pair to the engine that handles its connection: the queue pair's doorbell at this
//! engine.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::queues::Doorbells;
use crate::queues::rung::Rung;

pub(crate) struct EngineLink {
    /// The doorbells of the engine. Connect or accept sets this field once.
    doorbells: OnceLock<Arc<Doorbells>>,
    /// The connection's slot in that engine.
    slot: AtomicU32,
    /// The flag that is set while the doorbell was rung and the engine has not answered it.
    rung: Rung,
}

impl EngineLink {
    pub(super) fn new() -> Self {
        Self { doorbells: OnceLock::new(), slot: AtomicU32::new(u32::MAX), rung: Rung::new() }
    }

    /// Whether the queue pair has an engine.
    pub(super) fn is_there(&self) -> bool {
        self.doorbells.get().is_some()
    }

    /// Sets the engine that handles the connection: the engine with these doorbells. Returns `false` if the
    /// queue pair already has an engine.
    pub(super) fn reserve(&self, doorbells: &Arc<Doorbells>) -> bool {
        self.doorbells.set(Arc::clone(doorbells)).is_ok()
    }

    /// Sets the slot of the connection in the engine.
    pub(crate) fn set_slot(&self, slot: usize) {
        self.slot.store(slot as u32, Ordering::Release);
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Acquire)
    }

    /// Whether the queue pair's engine is the engine with these doorbells.
    pub(crate) fn is_of(&self, doorbells: &Arc<Doorbells>) -> bool {
        self.doorbells.get().is_some_and(|own| Arc::ptr_eq(own, doorbells))
    }

    /// Rings the doorbell, so that the engine visits the queue pair again. Returns `false` if the queue pair
    /// has no engine.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        let Some(doorbells) = self.doorbells.get() else { return false };
        if self.rung.must_ring() {
            doorbells.ring(self.slot.load(Ordering::Acquire));
        }
        true
    }

    /// Records that the engine answers the doorbell, so that the next post rings the doorbell again.
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

    /// Many posts ring the doorbell only once, with the slot, until the engine has answered it.
    #[test]
    fn a_doorbell_rings_once_until_it_is_answered() {
        let (link, doorbells) = (EngineLink::new(), doorbells());
        assert!(!link.is_there() && !link.ring());
        assert!(link.reserve(&doorbells));
        link.set_slot(5);
        assert!(link.is_there() && link.ring() && link.ring());
        assert_eq!([(); 2].map(|()| doorbells.next()), [Some(5), None]);
        assert!(link.ring());
        assert_eq!(doorbells.next(), None, "it was not answered");
        link.clear_doorbell();
        assert!(link.ring());
        assert_eq!(doorbells.next(), Some(5));
    }

    #[test]
    fn a_queue_pair_has_one_engine() {
        let link = EngineLink::new();
        let [first, second] = [(); 2].map(|()| doorbells());
        assert!(link.reserve(&first) && !link.reserve(&second));
        link.set_slot(1);
        link.ring();
        assert_eq!((first.next(), second.next()), (Some(1), None));
    }
}
