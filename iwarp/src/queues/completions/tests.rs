//! Tests of order, limits, places and resizing, with one thread and with several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Added, Completions};
use crate::queues::WorkCompletion;
use crate::queues::wqe::WqeCount;

/// A work queue, with its place at a completion queue.
struct WorkQueue {
    place: u32,
    wqes: Arc<WqeCount>,
}

/// Returns a work queue that completes to `queue`.
fn enter(queue: &Completions, wqes: &Arc<WqeCount>) -> WorkQueue {
    WorkQueue { place: queue.enter(Arc::clone(wqes)), wqes: Arc::clone(wqes) }
}

/// Returns a completion queue, and one work queue that completes to it.
fn queue(capacity: usize) -> (Completions, WorkQueue) {
    let queue = Completions::new(capacity);
    let work = enter(&queue, &WqeCount::new(usize::MAX >> 1, None));
    (queue, work)
}

fn numbered(wr_id: u64) -> WorkCompletion {
    WorkCompletion { wr_id, ..WorkCompletion::default() }
}

fn push(queue: &Completions, wr_id: u64, work: &WorkQueue) -> bool {
    lost(queue.push(std::iter::once(numbered(wr_id)), work.place, &work.wqes)) == 0
}

fn lost(added: Added) -> usize {
    match added {
        Added::Except { lost, .. } => lost,
        Added::Silent(count) => panic!("{count} are not wanted"),
    }
}

fn drain(queue: &Completions) -> Vec<u64> {
    let mut all = Vec::new();
    queue.take(usize::MAX, |completion| all.push(completion.wr_id));
    all
}

#[test]
fn order_and_bound() {
    let (queue, work) = queue(2);
    assert_eq!([1, 2, 3].map(|wr_id| push(&queue, wr_id, &work)), [true, true, false]);
    assert_eq!(queue.take(1, |completion| assert_eq!(completion.wr_id, 1)), 1);
    assert!(push(&queue, 4, &work));
    assert_eq!(drain(&queue), [2, 4]);
    assert_eq!(queue.len(), 0);
}

/// Several completions enter the queue together, with one update of the count. The completions for which the
/// queue has no room are lost.
#[test]
fn several_at_once_fill_the_queue_and_the_rest_is_lost() {
    let (queue, work) = queue(3);
    assert_eq!(lost(queue.push([1, 2, 3, 4, 5].into_iter().map(numbered), work.place, &work.wqes)), 2);
    assert_eq!(queue.len(), 3);
    assert_eq!(lost(queue.push(std::iter::empty(), work.place, &work.wqes)), 0);
    assert_eq!(drain(&queue), [1, 2, 3]);
}

#[test]
fn a_resize_keeps_completions_and_order() {
    let (queue, work) = queue(2);
    assert!(push(&queue, 1, &work) && push(&queue, 2, &work));
    queue.resize(4).unwrap();
    assert!(push(&queue, 3, &work) && push(&queue, 4, &work));
    assert!(!push(&queue, 5, &work));
    assert_eq!((queue.len(), queue.capacity()), (4, 4));
    assert_eq!(queue.resize(3), Err(4));
    assert_eq!((queue.len(), queue.capacity()), (4, 4), "a resize that fails changes nothing");
    queue.resize(4).unwrap();
    assert_eq!(drain(&queue), [1, 2, 3, 4]);
    queue.resize(1).unwrap();
    assert!(push(&queue, 6, &work) && !push(&queue, 7, &work));
    assert_eq!(drain(&queue), [6]);
}

/// A place becomes free only when its queue pair is destroyed and its last completion is polled. Until then
/// no new work queue may use this place.
#[test]
fn a_place_is_free_after_its_last_completion() {
    let queue = Completions::new(4);
    let (first, second) = (WqeCount::new(4, None), WqeCount::new(4, None));
    let work = enter(&queue, &first);
    let place = work.place;
    for wr_id in 0..2 {
        assert!(first.take());
        first.complete();
        assert!(push(&queue, wr_id, &work));
    }
    queue.leave(place);
    assert_eq!(queue.take(1, |_| ()), 1);
    assert_ne!(queue.enter(Arc::clone(&second)), place);
    assert_eq!((queue.take(1, |_| ()), first.used()), (1, 0));
    assert_eq!(queue.enter(Arc::clone(&second)), place);
    queue.leave(place);
    assert_eq!(queue.enter(second), place, "a work queue without completions leaves at once");
}

/// The completions of a silenced work queue are removed from every position of the ring, and its later
/// completions are not added. The other completions keep their order, and the removed entries are free.
#[test]
fn a_work_queue_that_is_silent_has_no_completions() {
    for turned in 0..6 {
        let (queue, other) = queue(6);
        // The position of the first entry in the ring is different in each turn.
        for wr_id in 0..turned {
            assert!(push(&queue, wr_id, &other));
            assert_eq!(drain(&queue), [wr_id]);
        }
        let shared = Arc::new(AtomicUsize::new(9));
        let wqes = WqeCount::new(8, Some(Arc::clone(&shared)));
        let silent = enter(&queue, &wqes);
        for _ in 0..5 {
            assert!(wqes.take());
        }
        for wr_id in 10..16 {
            let is_silent = wr_id % 2 == 0;
            if is_silent {
                wqes.complete();
            }
            assert!(push(&queue, wr_id, if is_silent { &silent } else { &other }));
        }
        assert!(!push(&queue, 16, &other), "it is full");
        queue.silence(silent.place);
        assert_eq!((queue.len(), wqes.used(), shared.load(Ordering::Relaxed)), (3, 2, 6));
        let more = queue.push([0, 1].into_iter().map(numbered), silent.place, &silent.wqes);
        assert!(matches!(more, Added::Silent(2)), "it enters no more");
        assert!(
            [17, 18, 19].map(|wr_id| push(&queue, wr_id, &other)) == [true; 3] && !push(&queue, 20, &other)
        );
        queue.silence(silent.place);
        assert_eq!(drain(&queue), [11, 13, 15, 17, 18, 19]);
        // The place of the queue pair is free although some requests were never completed.
        queue.leave(silent.place);
        assert_eq!(enter(&queue, &wqes).place, silent.place);
    }
}

#[test]
fn nothing_is_lost_under_load() {
    for _ in 0..50 {
        nothing_is_lost(2);
    }
    nothing_is_lost(500);
}

/// Three producers and two consumers work until `resizes` resizes have succeeded. No completion is lost or
/// duplicated, and the completions of each producer stay in order.
fn nothing_is_lost(resizes: u32) {
    let (queue, work) = queue(8);
    let (ring, work) = (Arc::new(queue), Arc::new(work));
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let producers: Vec<_> = (0..3)
        .map(|producer| {
            let (ring, work, stop) = (Arc::clone(&ring), Arc::clone(&work), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Acquire) {
                    match push(&ring, producer << 32 | count, &work) {
                        true => count += 1,
                        false => std::thread::yield_now(),
                    }
                }
                count
            })
        })
        .collect();
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let (ring, done) = (Arc::clone(&ring), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    let finished = done.load(Ordering::Acquire);
                    let mut oldest = None;
                    ring.take(1, |completion| oldest = Some(completion.wr_id));
                    match oldest {
                        Some(wr_id) => got.push((wr_id >> 32, wr_id & u64::from(u32::MAX))),
                        None if finished => return got,
                        None => std::thread::yield_now(),
                    }
                }
            })
        })
        .collect();
    let (mut tried, mut resized) = (0, 0);
    while resized < resizes {
        resized += u32::from(ring.resize(1 + tried % 16).is_ok());
        tried += 1;
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Release);
    let pushed: Vec<u64> = producers.into_iter().map(|thread| thread.join().unwrap()).collect();
    done.store(true, Ordering::Release);
    let got: Vec<Vec<(u64, u64)>> = consumers.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (producer, count) in (0..).zip(pushed) {
        let mut all: Vec<u64> = Vec::new();
        for consumer in &got {
            let own: Vec<u64> =
                consumer.iter().filter(|item| item.0 == producer).map(|item| item.1).collect();
            assert!(own.is_sorted(), "a consumer saw producer {producer} out of order");
            all.extend(own);
        }
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..count), "producer {producer}: {} of {count} items", all.len());
    }
}
