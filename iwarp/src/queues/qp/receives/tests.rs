use std::sync::atomic::AtomicUsize;

use arrayvec::ArrayVec;

use super::*;
use crate::queues::{AsyncEvents, CompletionQueue, SrqInit, test_objects};

fn request(wr_id: u64) -> RecvRequest {
    RecvRequest { wr_id, sg_list: ArrayVec::new() }
}

fn kinds(events: &AsyncEvents) -> Vec<AsyncEventKind> {
    std::iter::from_fn(|| events.poll().unwrap()).map(|event| event.kind).collect()
}

/// Returns receives that use a shared receive queue with `posted` requests.
fn shared(init: &QpInit<'_>, posted: u64) -> Receives {
    (0..posted).for_each(|wr_id| init.srq.unwrap().post_recv(&request(wr_id)).unwrap());
    Receives::new(init, 5).0
}

/// A request counts as taken until it is complete, and as used until its completion is polled.
#[test]
fn requests_count_until_they_are_polled() {
    let (_, _, cq) = test_objects();
    let (receives, reader) = Receives::new(&QpInit { max_recv_wr: 2, ..QpInit::new(&cq) }, 5);
    receives.add(&request(1)).unwrap();
    receives.add(&request(2)).unwrap();
    assert!(matches!(receives.add(&request(3)), Err(VerbsError::QueueFull(_))));
    assert_eq!((reader.len(), receives.taken(), receives.open()), (2, (0, 0), 2));
    receives.count_taken();
    assert_eq!(receives.taken(), (1, 1));
    receives.complete(receives.succeeded(1, WcOpcode::Recv, 17));
    assert_eq!((receives.taken(), receives.open(), receives.used()), ((1, 0), 1, 2));
    receives.flush(2, Some(ConnectionError::PeerClosed));
    assert_eq!((receives.taken(), receives.open(), receives.used()), ((1, 0), 0, 2));
    let [first, second] = [(); 2].map(|()| cq.poll_one().unwrap());
    assert_eq!((first.wr_id, first.status, first.byte_len, first.qp_num), (1, WcStatus::Success, 17, 5));
    assert_eq!((second.wr_id, second.status), (2, WcStatus::WrFlushError));
    assert_eq!((second.cause, receives.used()), (Some(ConnectionError::PeerClosed), 0));
}

/// A queue pair holds at most its maximum of shared requests, until completions are polled.
#[test]
fn shared_requests_are_taken_up_to_the_maximum() {
    let (resources, pd, cq) = test_objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let signals = Signals::new(&resources.events, 5);
    let receives = shared(&QpInit { srq: Some(&srq), max_recv_wr: 2, ..QpInit::new(&cq) }, 4);
    assert_eq!((receives.are_shared(), receives.shared_queue()), (true, Some((srq.srq_num(), 1024))));
    assert_eq!(receives.shared_pd(), Some(pd.id()));
    let take = || receives.take_shared(&signals).map(|request| request.wr_id);
    assert_eq!([(); 3].map(|()| take()), [Some(0), Some(1), None]);
    assert!(!receives.may_take_shared());
    assert_eq!(receives.taken(), (2, 2));
    receives.complete(receives.succeeded(0, WcOpcode::Recv, 0));
    assert_eq!(take(), None, "its completion is not polled");
    cq.poll_one().unwrap();
    assert!(receives.may_take_shared());
    assert_eq!((take(), receives.taken()), (Some(2), (3, 2)));
}

/// A queue pair is reported once, and only if it holds more shared requests than its mark.
#[test]
fn only_more_than_the_mark_is_reported_and_once() {
    let (resources, pd, cq) = test_objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let signals = Signals::new(&resources.events, 5);
    let receives = shared(&QpInit { srq: Some(&srq), high_water: 2, ..QpInit::new(&cq) }, 8);
    let take = || receives.take_shared(&signals).unwrap();
    take();
    take();
    assert_eq!(kinds(&resources.events), []);
    take();
    take();
    assert_eq!(kinds(&resources.events), [AsyncEventKind::QpHighWater]);
    receives.arm_high_water(&signals, usize::MAX);
    receives.arm_high_water(&signals, 4);
    assert_eq!(kinds(&resources.events), []);
    receives.arm_high_water(&signals, 3);
    take();
    assert_eq!(kinds(&resources.events), [AsyncEventKind::QpHighWater]);
}

/// `LastWqeReached` is reported once, and only if the queue is shared.
#[test]
fn the_last_request_of_a_shared_queue_is_told_once() {
    let (resources, pd, cq) = test_objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let signals = Signals::new(&resources.events, 5);
    for (init, expected) in [
        (QpInit::new(&cq), &[][..]),
        (QpInit { srq: Some(&srq), ..QpInit::new(&cq) }, &[AsyncEventKind::LastWqeReached]),
    ] {
        let (receives, _reader) = Receives::new(&init, 5);
        receives.report_last(&signals);
        receives.report_last(&signals);
        assert_eq!(kinds(&resources.events), expected);
    }
}

/// A queue pair whose messages may wait for requests of a shared receive queue has a place in the queue's
/// line as long as the queue pair exists.
#[test]
fn a_place_in_line_goes_with_its_receives() {
    let (_, pd, cq) = test_objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    for may_wait in [true, false, true] {
        let all = [(); 3].map(|()| shared(&QpInit { srq: Some(&srq), ..QpInit::new(&cq) }, 0));
        if may_wait {
            all[1..].iter().for_each(Receives::allow_waiting);
        }
        assert_eq!(srq.shared.line_members(), if may_wait { 2 } else { 0 });
        assert_eq!(all.each_ref().map(Receives::may_wait), [false, may_wait, may_wait]);
        drop(all);
        assert_eq!(srq.shared.line_members(), 0);
    }
}

/// A queue pair whose messages wait for requests.
struct Caller {
    receives: Receives,
    calls: AtomicUsize,
}

impl Caller {
    fn new(cq: &CompletionQueue, srq: Option<&SharedReceiveQueue>) -> Arc<Self> {
        let receives = Receives::new(&QpInit { srq, ..QpInit::new(cq) }, 5).0;
        receives.allow_waiting();
        Arc::new(Self { receives, calls: AtomicUsize::new(0) })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Waiter for Caller {
    fn turn(&self) -> &TurnCell {
        self.receives.turn()
    }

    fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// If a message waits for a request of the queue pair's own queue, exactly one post ends the wait. A message
/// does not wait if a request is already posted, or after the stream has ended.
#[test]
fn a_message_waits_for_one_post() {
    let (_, _, cq) = test_objects();
    let caller = Caller::new(&cq, None);
    let receives = &caller.receives;
    assert!(!receives.end_wait(), "none waits");
    assert!(!receives.wait(&caller, || false));
    assert!(receives.end_wait() && !receives.end_wait());
    assert!(receives.wait(&caller, || true), "one is posted");
    assert!(!receives.end_wait());
    assert!(!receives.wait(&caller, || false));
    receives.stop_waiting();
    assert!(!receives.end_wait());
    assert_eq!(caller.calls(), 0, "the caller asks itself");
}

/// A request of a shared receive queue is reserved for the queue pair that has waited longest. When this
/// queue pair stops waiting, the request is reserved for the next queue pair.
#[test]
fn a_message_waits_in_line_for_a_shared_request() {
    let (resources, pd, cq) = test_objects();
    let srq = SharedReceiveQueue::new(&pd, &SrqInit::default()).unwrap();
    let signals = Signals::new(&resources.events, 5);
    let [first, second] = [(); 2].map(|()| Caller::new(&cq, Some(&srq)));
    assert!(!first.receives.wait(&first, || true) && !second.receives.wait(&second, || true));
    assert!(!first.receives.end_wait(), "the line ends it");
    srq.post_recv(&request(1)).unwrap();
    assert_eq!([first.calls(), second.calls()], [1, 0]);
    assert!(second.receives.take_shared(&signals).is_none());
    first.receives.stop_waiting();
    assert_eq!([first.calls(), second.calls()], [1, 1], "what was reserved goes to the next");
    assert_eq!(second.receives.take_shared(&signals).map(|request| request.wr_id), Some(1));
}
