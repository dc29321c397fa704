//! What the free list promises: nothing lost, nothing twice, nothing hidden.

use std::collections::BTreeSet;

use super::*;

fn full(capacity: usize) -> FreeList<usize> {
    let list = FreeList::new(capacity);
    (0..capacity).for_each(|item| list.push(item));
    list
}

#[test]
fn every_item_comes_out_once_whatever_the_size() {
    for capacity in [1, 7, 31, 32, 64, 100, 5000] {
        let list = full(capacity);
        for _ in 0..3 {
            assert_eq!(list.len(), capacity);
            let items: BTreeSet<_> = std::iter::from_fn(|| list.pop()).collect();
            assert_eq!(items, (0..capacity).collect());
            assert_eq!(list.len(), 0);
            items.into_iter().for_each(|item| list.push(item));
        }
    }
}

#[test]
fn what_was_freed_last_comes_first() {
    let list = full(8192);
    let mut seen = BTreeSet::new();
    for _ in 0..10_000 {
        let burst: Vec<_> = (0..32).map(|_| list.pop().unwrap()).collect();
        seen.extend(burst.iter().copied());
        burst.into_iter().for_each(|item| list.push(item));
    }
    assert!(seen.len() <= CACHE_MAX, "{} items touched for 32 in use", seen.len());
}

#[test]
fn items_in_another_threads_cache_are_found() {
    let list = full(64);
    // Numbers differ by one from thread to thread: these have a cache each, and leave something in it.
    for _ in 0..CACHES {
        std::thread::scope(|scope| {
            scope.spawn(|| list.pop().map(|item| list.push(item)));
        });
    }
    assert_eq!(std::iter::from_fn(|| list.pop()).count(), 64);
}

#[test]
fn the_list_takes_no_memory_after_it_was_made() {
    let list = full(4096);
    let capacities = || {
        let of = |cache: &Cache<usize>| cache.try_take().unwrap().items().capacity();
        let depot = list.depot.lock().items.capacity();
        list.caches.iter().map(of).chain([depot]).collect::<Vec<_>>()
    };
    let before = capacities();
    for _ in 0..3 {
        let items: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
        items.into_iter().for_each(|item| list.push(item));
    }
    assert_eq!(before, capacities());
}

#[test]
fn many_threads_lose_nothing() {
    let list = full(1000);
    std::thread::scope(|scope| {
        for _ in 0..2 * CACHES {
            scope.spawn(|| {
                let mut held = Vec::new();
                for round in 0..5_000_usize {
                    if round % 7 < 4 {
                        held.extend(list.pop());
                    } else if let Some(item) = held.pop() {
                        list.push(item);
                    }
                    if held.len() > 60 {
                        held.drain(..).for_each(|item| list.push(item));
                    }
                }
                held.into_iter().for_each(|item| list.push(item));
            });
        }
    });
    let items: BTreeSet<_> = std::iter::from_fn(|| list.pop()).collect();
    assert_eq!(items.len(), 1000);
}
