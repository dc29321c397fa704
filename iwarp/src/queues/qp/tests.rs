use std::time::Duration;

use super::*;
use crate::queues::test_objects;

/// If the user ends the queue pair (`Close`, `Terminate` or `Abort`) while the engine detects that the peer
/// has ended the connection, the queue pair enters `Error`. After `Receive` it is `Orphaned`.
#[test]
fn a_close_that_meets_the_peers_end_is_not_forgotten() {
    let (_, pd, cq) = test_objects();
    for (asked, state) in [
        (Ask::Receive, QpState::Orphaned),
        (Ask::Close, QpState::Error),
        (Ask::Terminate, QpState::Error),
        (Ask::Abort, QpState::Error),
    ] {
        let qp = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        qp.connected((1, 1), true, true);
        // As in `ask`, which has left its `Ask` but has not checked the state yet.
        qp.signals.leave(asked);
        qp.orphan(Duration::ZERO);
        assert_eq!(qp.state.get(), state, "{asked:?}");
    }
}

/// When a queue pair is dropped before, during or after its connection, it returns its share of the context's
/// limits, and its completion queue no longer counts its requests.
#[test]
fn a_queue_pair_that_goes_returns_what_it_has_taken() {
    type Step = fn(&QpShared);
    let steps: [Step; 5] = [
        |_| {},
        |qp| qp.connected((1, 3), true, true),
        |qp| qp.enter_error(),
        |qp| qp.orphan(Duration::ZERO),
        |qp| qp.refuse(StreamError { layer: 0, etype: 0, code: 0, from_peer: false }),
    ];
    // Atomics have separate buffers, in addition to the buffers for Reads.
    for (step, left) in steps.into_iter().zip([16, 6, 0, 0, 0]) {
        let (resources, pd, cq) = test_objects();
        let used = || (resources.quotas.qp.usage().used, resources.quotas.read_slots.usage().used);
        let doorbells = Arc::new(Doorbells::new(8, super::super::Notifier::new().unwrap()));
        let qp = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        qp.reserve(&resources, &doorbells, 8).unwrap();
        assert_eq!((used(), cq.query().needed), ((1, 16), 256));
        assert!(qp.reserve(&resources, &doorbells, 8).is_err(), "once");
        step(&qp);
        assert_eq!(used(), (1, left));
        drop(qp);
        assert_eq!((used(), cq.query().needed), ((0, 0), 0));
    }
}
