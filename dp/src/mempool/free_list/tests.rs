//! Tests of the free list: for example, no item is lost, no item is returned twice, and no item stays hidden.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

fn full(capacity: usize) -> FreeList<usize> {
    FreeList::new((0..capacity).collect())
}

/// Locked by tests whose threads leave items in caches. If two such tests ran at the same time, each test
/// could own the slot for which the other test waits.
static ALONE: Mutex<()> = Mutex::new(());

/// Removes and returns all items. Some items may be in the cache of a slot that a thread of another test owns
/// now. These items are found when that thread has ended.
fn drained(list: &FreeList<usize>) -> Vec<usize> {
    let mut items = Vec::new();
    for _ in 0..10_000 {
        items.extend(std::iter::from_fn(|| list.pop()));
        if list.len() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    items
}

#[test]
fn every_item_comes_out_once_whatever_the_size() {
    for capacity in [1, 7, 31, 255, 256, 300, 5000] {
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
fn a_rotating_list_returns_an_item_only_after_others() {
    let list = FreeList::rotating(3, 5);
    assert_eq!((list.len(), list.pop(), list.pop_oldest()), (0, None, None));
    (0..3).for_each(|item| list.push(item));
    assert_eq!((list.len(), list.pop()), (3, None), "three others have to be used before 0");
    list.push(3);
    assert_eq!((list.pop(), list.pop()), (Some(0), None));
    list.push(0);
    list.push(4);
    assert_eq!([list.pop(), list.pop(), list.pop()], [Some(1), Some(2), None], "the oldest first");
    assert_eq!([list.pop_oldest(), list.pop_oldest()], [Some(3), Some(0)], "fewer than three are left");
    assert_eq!((list.len(), list.pop_oldest(), list.pop_oldest()), (1, Some(4), None));
}

/// Other lists return the item that was freed last, however the caller asks.
#[test]
fn the_oldest_item_of_another_list_is_any_item() {
    let list = full(2);
    assert_eq!([list.pop_oldest(), list.pop_oldest(), list.pop_oldest()], [Some(1), Some(0), None]);
}

#[test]
fn items_in_the_cache_of_a_thread_that_has_ended_are_found() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (list, all_there) = (full(512), std::sync::Barrier::new(SLOTS));
    // The threads run at the same time, so no two threads have the same slot. Each thread with a slot leaves
    // items in the slot's cache.
    let work = || {
        all_there.wait();
        list.push(list.pop().unwrap());
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..SLOTS).map(|_| scope.spawn(work)).collect();
        // A joined thread has run its destructors.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(drained(&list).len(), 512);
}

#[test]
fn a_thread_that_lives_hides_no_more_than_its_cache() {
    let list = full(512);
    let (ready, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let items: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
            items.into_iter().for_each(|item| list.push(item));
            ready.wait();
            go.wait();
        });
        ready.wait();
        assert!(std::iter::from_fn(|| list.pop()).count() >= 512 - 512 / (4 * SLOTS));
        assert!(list.len() <= 512 / (4 * SLOTS));
        go.wait();
    });
}

#[test]
fn the_list_takes_no_memory_after_it_was_made() {
    let list = full(4096);
    let capacities = || {
        let own = list.own_cache().map(|mut cache| cache.items().capacity());
        [own, Some(list.depot.lock().items.capacity())]
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
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let list = full(1000);
    let work = || {
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
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * SLOTS).map(|_| scope.spawn(work)).collect();
        // A joined thread has run its destructors.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let items: BTreeSet<_> = drained(&list).into_iter().collect();
    assert_eq!(items.len(), 1000);
}
