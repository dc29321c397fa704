use arrayvec::ArrayVec;

use super::*;
use crate::memory::MemoryTable;
use crate::queues::{ContextLimits, CqOptions, SrqInit};

fn objects() -> (Arc<Resources>, Arc<PdShared>, CompletionQueue) {
    let memory = MemoryTable::new(16, [1; 32]);
    let resources = Resources::new(ContextLimits::default(), memory, false).unwrap();
    let pd = PdShared::new(&resources).unwrap();
    let cq = CompletionQueue::new(Arc::clone(&resources), &CqOptions::new(16)).unwrap();
    (resources, pd, cq)
}

/// A queue pair that holds as many shared buffers as its mark says, and no more, is not reported: not even
/// when it asks for one more and the shared queue has none.
#[test]
fn an_empty_shared_queue_passes_no_mark() {
    let (resources, pd, cq) = objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let init = QpInit { srq: Some(&srq), max_recv_wr: 8, high_water: 4, ..QpInit::new(&cq) };
    let qp = QpShared::new(&pd, &init).unwrap();
    let post = || srq.post_recv(&RecvRequest { wr_id: 0, sg_list: ArrayVec::new() }).unwrap();
    let event = || resources.events.poll().unwrap().map(|event| event.kind);
    let mut consumer = qp.take_consumer();
    for _ in 0..4 {
        post();
        assert!(consumer.take_recv(&qp));
        consumer.complete_recv(&qp, WorkCompletion::default());
    }
    assert!(!consumer.take_recv(&qp), "the shared queue is empty");
    assert_eq!(event(), None, "it holds 4, and 4 is its mark");
    post();
    assert!(consumer.take_recv(&qp));
    assert_eq!(event(), Some(AsyncEventKind::QpHighWater));
    // Once: the mark is armed anew by a call.
    consumer.complete_recv(&qp, WorkCompletion::default());
    post();
    assert!(consumer.take_recv(&qp));
    assert_eq!(event(), None);
    qp.arm_high_water(5);
    assert_eq!((event(), event()), (Some(AsyncEventKind::QpHighWater), None));
}

/// A queue pair that may wait for a shared receive queue has a place in its line as long as it is there, and
/// only then.
#[test]
fn a_place_in_line_goes_with_its_queue_pair() {
    let (_, pd, cq) = objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let init = QpInit { srq: Some(&srq), ..QpInit::new(&cq) };
    for agrees in [true, false, true] {
        let qps = [(); 3].map(|()| QpShared::new(&pd, &init).unwrap());
        qps[1..].iter().for_each(|qp| qp.connected((1, 1), agrees, false));
        assert_eq!(srq.shared.line_members(), if agrees { 2 } else { 0 });
        drop(qps);
        assert_eq!(srq.shared.line_members(), 0);
    }
}

/// The user ends the queue pair while the engine finds that the peer is gone: either of them ends it.
#[test]
fn a_close_that_meets_the_peers_end_is_not_forgotten() {
    let (_, pd, cq) = objects();
    for (asked, state) in [
        (Ask::Receive, QpState::Orphaned),
        (Ask::Close, QpState::Error),
        (Ask::Terminate, QpState::Error),
        (Ask::Abort, QpState::Error),
    ] {
        let qp = QpShared::new(&pd, &QpInit::new(&cq)).unwrap();
        qp.connected((1, 1), true, true);
        // As `ask` leaves it, before that looks at the state.
        qp.asked.store(asked as u8, Ordering::Release);
        qp.orphan();
        assert_eq!(qp.state(), state, "{asked:?}");
    }
}
