//! Tests of events for missed completions, while one thread adds completions and another thread polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Added, CompletionQueue, CqEventHandler, CqOptions, CqPlace};
use crate::queues::wqe::WqeCount;
use crate::queues::{WorkCompletion, test_objects};

/// Returns a completion queue, a place of a work queue at it, and the number of events that the completion
/// queue has generated.
fn counted() -> (CompletionQueue, CqPlace, Arc<AtomicU64>) {
    let (resources, ..) = test_objects();
    let events = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&events);
    let handler: CqEventHandler = Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let options = CqOptions { handler: Some(&handler), ..CqOptions::new(16) };
    let cq = CompletionQueue::new(resources, &options).unwrap();
    let place = CqPlace::new(&cq, WqeCount::new(usize::MAX, None), 1);
    (cq, place, events)
}

/// Adds a completion, and calls the handler if the completion has generated an event.
fn add(place: &CqPlace) {
    place.push(WorkCompletion::default());
    place.report();
}

/// The thread that adds a completion generates the event somewhat later, and a program may poll the
/// completion in between. The program has then polled since the event, and the next arming reports a further
/// completion.
#[test]
fn a_poll_between_a_completion_and_its_event_counts_as_a_poll_after_the_event() {
    let (cq, place, events) = counted();
    let generated = || events.swap(0, Ordering::Relaxed);
    for waiting in 0..3 {
        (0..waiting).for_each(|_| add(&place));
        cq.req_notify(false).unwrap();
        // This is the first half of `CqPlace::push`.
        let added = cq.shared.entries.push([WorkCompletion::default()].into_iter(), place.index, &place.wqes);
        let Added::Except { lost: 0, first } = added else { panic!("the queue has room") };
        assert!(cq.shared.arm.fires(false));
        let polled = std::iter::from_fn(|| cq.poll_one()).count();
        assert_eq!(polled, waiting + 1);
        // This is the second half.
        cq.shared.make_event(first);
        place.report();
        assert_eq!(generated(), 1);
        add(&place);
        assert_eq!(generated(), 0, "the queue is not armed");
        cq.req_notify_with_missed(false).unwrap();
        assert_eq!(generated(), 1, "{waiting} completions waited");
        cq.req_notify_with_missed(false).unwrap();
        assert_eq!(generated(), 0, "the queue was not polled since the event");
        assert!(cq.poll_one().is_some());
        // The request is still open, and this completion generates its event.
        add(&place);
        assert_eq!((generated(), cq.poll_one().is_some()), (1, true));
    }
}

/// As the previous test, with two threads: one thread adds a completion and generates its event, while the
/// other thread polls as soon as it can. In some rounds the poll is between the completion and its event.
#[test]
fn a_poll_beside_the_event_counts_as_a_poll_after_the_event() {
    const ROUNDS: u32 = 100_000;
    let (cq, place, events) = counted();
    let generated = || events.swap(0, Ordering::Relaxed);
    let (started, added) = (AtomicU32::new(0), AtomicU32::new(0));
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                until(|| started.load(Ordering::Acquire) == round);
                add(&place);
                added.store(round, Ordering::Release);
            }
        });
        // A panic of this thread would leave the other thread waiting, so failures are only collected here.
        for round in 1..=ROUNDS {
            cq.req_notify(false).unwrap();
            started.store(round, Ordering::Release);
            until(|| cq.poll_one().is_some());
            until(|| added.load(Ordering::Acquire) == round);
            let first = generated();
            add(&place);
            cq.req_notify_with_missed(false).unwrap();
            if (first, generated(), cq.poll_one().is_some()) != (1, 1, true) {
                failed.push(round);
            }
        }
    });
    assert!(failed.is_empty(), "a completion was missed in {} rounds: {failed:?}", failed.len());
}

/// Spins until `is_so` returns `true`.
fn until(mut is_so: impl FnMut() -> bool) {
    let mut tries = 0_u32;
    while !is_so() {
        tries = tries.wrapping_add(1);
        if tries.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}
