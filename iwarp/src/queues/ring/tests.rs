//! Order, bounds and resizing, alone and under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ResizeError, Ring};

fn drain(ring: &Ring<u32>) -> Vec<u32> {
    std::iter::from_fn(|| ring.pop()).collect()
}

#[test]
fn order_and_bound() {
    let ring = Ring::new(2);
    assert_eq!((ring.push(1), ring.push(2), ring.push(3)), (Ok(()), Ok(()), Err(3)));
    assert_eq!(drain(&ring), [1, 2]);
    assert_eq!(ring.push(4), Ok(()));
    assert_eq!(drain(&ring), [4]);
}

#[test]
fn a_resize_keeps_items_and_order() {
    let ring = Ring::new(2);
    ring.push(1).unwrap();
    ring.push(2).unwrap();
    ring.resize(4).unwrap();
    for item in 3..7 {
        ring.push(item).unwrap();
    }
    assert_eq!(ring.push(7), Err(7));
    assert_eq!((ring.len(), ring.capacity()), (6, 4));
    assert_eq!(drain(&ring), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_resize_that_fails_leaves_all_as_it_was() {
    let ring = Ring::new(4);
    for item in 0..4 {
        ring.push(item).unwrap();
    }
    assert_eq!(ring.resize(3), Err(ResizeError::TooSmall(4)));
    assert_eq!((ring.capacity(), ring.push(9)), (4, Err(9)));
    ring.resize(5).unwrap();
    assert_eq!(ring.resize(6), Err(ResizeError::Busy), "items of the first queue still wait");
    assert_eq!(drain(&ring), [0, 1, 2, 3]);
    ring.resize(6).unwrap();
    assert_eq!(ring.capacity(), 6);
}

/// What is left behind by resizes that follow each other at once is not kept.
#[test]
fn an_empty_queue_can_be_resized_for_ever() {
    let ring = Ring::new(1);
    for round in 0..10_000 {
        ring.resize(1 + round % 3).unwrap();
    }
    ring.push(1).unwrap();
    assert_eq!(drain(&ring), [1]);
}

/// Again and again, so that also the first resize, which closes the way without locks, meets everyone at
/// work.
#[test]
fn nothing_is_lost_under_load() {
    for _ in 0..50 {
        nothing_is_lost(2);
    }
    nothing_is_lost(500);
}

/// Three producers and two consumers are at work until `resizes` have succeeded: nothing is lost, doubled, or
/// out of its producer's order.
fn nothing_is_lost(resizes: u32) {
    let ring = Arc::new(Ring::new(8));
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let producers: Vec<_> = (0..3)
        .map(|producer| {
            let (ring, stop) = (Arc::clone(&ring), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut count = 0;
                while !stop.load(Ordering::Acquire) {
                    match ring.push((producer, count)) {
                        Ok(()) => count += 1,
                        Err(_) => std::thread::yield_now(),
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
                    match ring.pop() {
                        Some(item) => got.push(item),
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
    let pushed: Vec<u32> = producers.into_iter().map(|thread| thread.join().unwrap()).collect();
    done.store(true, Ordering::Release);
    let got: Vec<Vec<(u32, u32)>> = consumers.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (producer, count) in (0..).zip(pushed) {
        let mut all: Vec<u32> = Vec::new();
        for consumer in &got {
            let own: Vec<u32> =
                consumer.iter().filter(|item| item.0 == producer).map(|item| item.1).collect();
            assert!(own.is_sorted(), "a consumer saw producer {producer} out of order");
            all.extend(own);
        }
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..count), "producer {producer}: {} of {count} items", all.len());
    }
}
