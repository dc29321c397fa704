use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::ffi::abi::Errno as Number;
use crate::ffi::pending_acks::PendingAcks;

const LIMIT: Duration = Duration::from_secs(60);

fn pop<T>(queue: &EventQueue<T>) -> Outcome<T> {
    queue.pop(|item| item, |locked| locked.wait())
}

fn push<T>(queue: &EventQueue<T>, item: T) {
    queue.lock().push(item);
}

fn is_readable<T>(queue: &EventQueue<T>) -> bool {
    let mut fds = [PollFd::new(&queue.fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn nonblocking<T>() -> EventQueue<T> {
    let queue = EventQueue::new().unwrap();
    rustix::io::ioctl_fionbio(&queue.fd, true).unwrap();
    queue
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_descriptor_counts_items_and_blocks_as_the_program_wants() {
    let queue = nonblocking();
    assert_eq!(pop(&queue), Err(Number(libc::EAGAIN)));
    (1..5).for_each(|item| push(&queue, item));
    assert_eq!(queue.lock().remove(|item| item % 2 == 0), [2, 4]);
    assert_eq!([pop(&queue), pop(&queue)], [Ok(1), Ok(3)]);
    assert!(!is_readable(&queue));
    assert_eq!(pop(&queue), Err(Number(libc::EAGAIN)));
    push(&queue, 5);
    assert!(is_readable(&queue));
    assert_eq!(pop(&queue), Ok(5));
}

/// Whichever items are removed, the descriptor is readable exactly while the queue has an item. The count of
/// the descriptor equals the number of items: a program that reads one item each time the descriptor is
/// readable finds every item.
#[test]
fn items_that_are_removed_leave_nothing_in_the_descriptor() {
    for waits in [true, false] {
        let queue = EventQueue::new().unwrap();
        rustix::io::ioctl_fionbio(&queue.fd, !waits).unwrap();
        for gone in 0..1 << 4 {
            (0..4).for_each(|item| push(&queue, item));
            let removed = queue.lock().remove(|item| gone & 1 << item != 0);
            let left: Vec<i32> = (0..4).filter(|item| !removed.contains(item)).collect();
            assert!(removed.iter().all(|item| gone & 1 << item != 0));
            for item in left {
                assert!(is_readable(&queue), "{gone:b}");
                assert_eq!(pop(&queue), Ok(item));
            }
            assert!(!is_readable(&queue), "{gone:b}");
            assert!(queue.lock().remove(|_| true).is_empty());
        }
    }
}

#[test]
fn a_descriptor_may_come_after_others() {
    let queue = EventQueue::above(500).unwrap();
    assert!(queue.fd() >= 500, "{}", queue.fd());
    push(&queue, 1);
    assert_eq!(pop(&queue), Ok(1));
}

/// Each item wakes one waiting thread, even if several items are added at the same time.
#[test]
fn threads_that_wait_get_an_item_each() {
    let queue = EventQueue::new().unwrap();
    for round in 0..200 {
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| pop(&queue).unwrap())).collect();
            if round % 2 == 0 {
                until("three wait", || queue.lock().items.waiters == 3);
            }
            (0..3).for_each(|item| push(&queue, item));
            let mut all: Vec<i32> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        });
        assert!(!is_readable(&queue));
        assert_eq!(queue.lock().items.waiters, 0);
    }
}

/// Two threads pass an item back and forth, so that the item arrives just when the other thread is about to
/// wait.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u32 = 100_000;
    let [there, back]: [EventQueue<u32>; 2] = [(); 2].map(|()| EventQueue::new().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(pop(&there), Ok(round));
                push(&back, round);
            }
        });
        for round in 0..ROUNDS {
            push(&there, round);
            assert_eq!(pop(&back), Ok(round));
        }
    });
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn handle(signal: c_int, flags: c_int) {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(c_int) as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: `action` is valid, and the handler is a function that only changes an atomic counter.
    let done = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// As with a read of the kernel's descriptor, a handler with `SA_RESTART` does not end the wait, and a
/// handler without `SA_RESTART` ends it.
#[test]
fn signals_end_a_wait_as_they_end_a_read() {
    for (signal, flags) in [(libc::SIGUSR2, libc::SA_RESTART), (libc::SIGWINCH, 0)] {
        handle(signal, flags);
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            let (id, told) = std::sync::mpsc::channel();
            let queue = &queue;
            let waiting = scope.spawn(move || {
                // SAFETY: `pthread_self` has no precondition.
                id.send(unsafe { libc::pthread_self() }).unwrap();
                pop(queue)
            });
            let thread = told.recv().unwrap();
            until("it waits", || queue.lock().items.waiters == 1);
            let before = SIGNALS.load(Ordering::SeqCst);
            until("signals", || {
                if !waiting.is_finished() {
                    // SAFETY: `thread` is valid, since the thread is not joined yet.
                    unsafe { libc::pthread_kill(thread, signal) };
                }
                std::thread::sleep(Duration::from_millis(1));
                waiting.is_finished() || SIGNALS.load(Ordering::SeqCst) - before >= 20
            });
            if flags == 0 {
                assert_eq!(waiting.join().unwrap(), Err(Number(libc::EINTR)));
            } else {
                assert!(!waiting.is_finished());
                push(queue, 3);
                assert_eq!(waiting.join().unwrap(), Ok(3));
            }
        });
        assert_eq!(queue.lock().items.waiters, 0);
    }
}

/// An object with events, such as a completion queue.
#[derive(Default)]
struct EventOwner {
    is_gone: AtomicBool,
    pending_acks: PendingAcks,
}

/// Threads read events while other threads destroy the objects. Destroying an object waits until all events
/// of the object that were read are acknowledged. After the destruction, no thread reads an event of the
/// object. At the end the descriptor is not readable.
#[test]
fn no_event_of_a_destroyed_object_is_taken() {
    const GETTERS: usize = 3;
    for waits in [true, false] {
        let queue: EventQueue<Option<Arc<EventOwner>>> =
            if waits { EventQueue::new().unwrap() } else { nonblocking() };
        let (taken, removed, pushed) = Default::default();
        let (taken, removed, pushed): (&AtomicUsize, &AtomicUsize, &AtomicUsize) =
            (&taken, &removed, &pushed);
        let (queue, start) = (&queue, &Barrier::new(GETTERS + 1));
        std::thread::scope(|scope| {
            for _ in 0..GETTERS {
                scope.spawn(move || {
                    start.wait();
                    loop {
                        let take = |item: Option<Arc<EventOwner>>| {
                            if let Some(object) = &item {
                                assert!(!object.is_gone.load(Ordering::SeqCst), "of a destroyed object");
                                object.pending_acks.add();
                            }
                            item
                        };
                        match queue.pop(take, |locked| locked.wait()) {
                            Ok(None) => return,
                            Ok(Some(object)) => {
                                taken.fetch_add(1, Ordering::SeqCst);
                                std::thread::yield_now();
                                assert!(!object.is_gone.load(Ordering::SeqCst), "it was not acknowledged");
                                object.pending_acks.ack(1);
                            }
                            Err(Number(libc::EAGAIN)) => std::thread::yield_now(),
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
            }
            start.wait();
            for round in 0..5_000 {
                let object = Arc::new(EventOwner::default());
                for _ in 0..round % 4 {
                    queue.lock().push(Some(Arc::clone(&object)));
                    pushed.fetch_add(1, Ordering::SeqCst);
                }
                let is_ours = |item: &Option<Arc<EventOwner>>| {
                    item.as_ref().is_some_and(|other| Arc::ptr_eq(other, &object))
                };
                removed.fetch_add(queue.lock().remove(is_ours).len(), Ordering::SeqCst);
                object.pending_acks.wait();
                object.is_gone.store(true, Ordering::SeqCst);
            }
            assert!(!is_readable(queue));
            (0..GETTERS).for_each(|_| queue.lock().push(None));
        });
        let [taken, removed, pushed] = [taken, removed, pushed].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(taken + removed, pushed);
        assert!(removed > 0 && !is_readable(queue));
    }
}
