//! The use of a queue pair of type UD: the queue pair is opened in one engine, and stays there until its end.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::QpShared;
use crate::queues::{Doorbells, QpState, QpType, Resources, VerbsError};

/// The bit that distinguishes, in the doorbells of an engine, the number of an open queue pair of datagrams
/// from the slot of a connection.
pub(crate) const DATAGRAM_SLOT: u32 = 1 << 31;

/// The highest number that a queue pair may have on the wire: the next number means all queue pairs of a
/// multicast group.
const MAX_NUMBER: u32 = 0xFF_FFFE;

/// The lowest number: queue pair 0 carries subnet management on InfiniBand, and no RoCE device has it.
const MIN_NUMBER: u32 = 1;

impl QpShared {
    /// Reserves a queue pair of datagrams for the engine with these doorbells. The queue pair has `number` on
    /// the wire. Fails if the queue pair belongs to another context, is of another type, or is not idle.
    pub(crate) fn reserve_for_datagrams(
        &self,
        context: &Resources,
        doorbells: &Arc<Doorbells>,
        number: u32,
    ) -> Result<(), VerbsError> {
        context.same(self.config.resources())?;
        if !matches!(self.config.qp_type, QpType::Ud { .. }) {
            return Err(VerbsError::Invalid("a queue pair of type RC sends no datagrams".into()));
        }
        if !(MIN_NUMBER..=MAX_NUMBER).contains(&number) {
            return Err(VerbsError::Invalid(format!(
                "number {number:#x} of a queue pair: use {MIN_NUMBER} to {MAX_NUMBER:#x}"
            )));
        }
        let state = self.state.get();
        if state != QpState::Idle || !self.engine.reserve(doorbells) {
            return Err(VerbsError::InvalidState(state));
        }
        self.engine.set_slot((DATAGRAM_SLOT | number) as usize);
        Ok(())
    }

    /// Returns the number of a queue pair of datagrams on the wire; `None` before the queue pair was opened.
    pub(crate) fn datagram_number(&self) -> Option<u32> {
        let slot = self.engine.slot();
        (matches!(self.config.qp_type, QpType::Ud { .. }) && slot != u32::MAX)
            .then_some(slot & !DATAGRAM_SLOT)
    }

    /// Enters `Rts`. Called by the engine in which the queue pair is open. The engine checks for requests
    /// after this call.
    pub(crate) fn opened(&self) {
        self.state.set(QpState::Rts);
        // This fence pairs with the fence in `doorbell_in`.
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::{Notifier, QpInit, test_objects};

    const UD: QpType = QpType::Ud { max_message: 1024 };

    fn doorbells() -> Arc<Doorbells> {
        Arc::new(Doorbells::new(8, Notifier::new().unwrap()))
    }

    /// A queue pair of type UD can be opened once, with a number of at most 24 bits that has no special
    /// meaning. Its doorbell has this number.
    #[test]
    fn a_queue_pair_of_datagrams_is_opened_once() {
        let (resources, pd, cq) = test_objects();
        let doorbells = doorbells();
        let qp = QpShared::new(&pd, &QpInit { qp_type: UD, ..QpInit::new(&cq) }).unwrap();
        for number in [0, 0xFF_FFFF, 1 << 24] {
            let refused = qp.reserve_for_datagrams(&resources, &doorbells, number);
            assert!(matches!(refused, Err(VerbsError::Invalid(_))), "{number:#x}");
        }
        qp.reserve_for_datagrams(&resources, &doorbells, 0xFF_FFFE).unwrap();
        let again = qp.reserve_for_datagrams(&resources, &doorbells, 7);
        assert!(matches!(again, Err(VerbsError::InvalidState(QpState::Idle))));
        qp.opened();
        assert_eq!(qp.state.get(), QpState::Rts);
        assert!(qp.engine.ring());
        assert_eq!(doorbells.next(), Some(DATAGRAM_SLOT | 0xFF_FFFE));
    }

    /// A queue pair of type UD cannot be connected, and a queue pair of type RC cannot be opened.
    #[test]
    fn each_type_has_its_own_use() {
        let (resources, pd, cq) = test_objects();
        let doorbells = doorbells();
        let ud = QpShared::new(&pd, &QpInit { qp_type: UD, ..QpInit::new(&cq) }).unwrap();
        assert!(matches!(ud.reserve(&resources, &doorbells, 1), Err(VerbsError::Invalid(_))));
        let rc = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        let refused = rc.reserve_for_datagrams(&resources, &doorbells, 2);
        assert!(matches!(refused, Err(VerbsError::Invalid(_))));
        rc.reserve(&resources, &doorbells, 1).unwrap();
        // Number 1 is that of connection managers.
        ud.reserve_for_datagrams(&resources, &doorbells, 1).unwrap();
    }
}
