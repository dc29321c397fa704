//! Events that are in a queue, but that the queue's descriptor does not count yet.
//!
//! A thread that waits serves the engine, and often finds the event that it waits for itself. If the event
//! were counted in the channel's descriptor, the thread would make a system call to count it, another one to
//! find the descriptor readable, and a third one to take the event. So the thread keeps the event: it tells
//! the program from memory that the descriptor is readable (`waits.rs`), and the program takes the event from
//! the queue. An event of a poll soon after the wait is kept as well, for the next wait.
//!
//! Kept events are counted in their descriptors as soon as somebody else may look at the descriptors:
//! - A thread does not keep events while another thread waits for the channel or for any set of descriptors.
//! - A wait that finds none of its descriptors ready counts all kept events, also before it sleeps. A wait
//!   that is left to libc does so before.
//! - If the thread does not wait again, its next poll after [`KEPT`] counts the events. If the thread does
//!   not poll either, the engine's thread polls after about this time, and counts the events.
//! - An epoll instance that has the descriptor with other flags than `EPOLLIN`, or a second instance, ends
//!   the keeping for this descriptor (`registrations.rs`).
//!
//! So a descriptor is readable in time for all who wait for it: copies (`dup(2)`), other processes,
//! `io_uring`, and system calls that a program makes itself. Either all events of a queue are kept, or none.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use libc::epoll_event;

use crate::ffi::registrations::REGISTRATIONS;
use crate::ffi::{fd_marks, fork};

/// How long after a wait a thread keeps events.
const KEPT: Duration = Duration::from_millis(1);

/// The number of descriptors with kept events. Further events are counted at once.
const MOST: usize = 64;

/// How long a thread tries to lock the list. The holder may have lost its CPU for some milliseconds. But if a
/// handler of a signal has interrupted the holder, the handler never gets the lock.
const PATIENCE: Duration = Duration::from_millis(200);

/// How often a thread tries before it sleeps between two tries, and how long it sleeps.
const SPINS: u32 = 100;
const NAP: Duration = Duration::from_micros(20);

/// The descriptors with kept events, in the order of their first kept event, and the number of these events.
static LIST: Mutex<Vec<(c_int, u64)>> = Mutex::new(Vec::new());

/// The length of the list.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that wait for sets of descriptors.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// When this thread has waited last.
#[derive(Clone, Copy)]
enum Last {
    Never,
    /// The thread waits for the events of this channel, or for a set of descriptors.
    Now(Option<c_int>),
    At(Instant),
}

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last::Never) };
}

/// Whether any events are kept.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

fn list() -> MutexGuard<'static, Vec<(c_int, u64)>> {
    LIST.lock().expect("no holder of this lock panics")
}

/// The list, for a function that a handler of a signal may call.
fn list_if_free() -> Option<MutexGuard<'static, Vec<(c_int, u64)>>> {
    let mut spins = 0..SPINS;
    let mut begun = None;
    loop {
        match LIST.try_lock() {
            Ok(list) => return Some(list),
            Err(TryLockError::Poisoned(_)) => return None,
            Err(TryLockError::WouldBlock) if spins.next().is_some() => std::hint::spin_loop(),
            Err(TryLockError::WouldBlock) => {
                if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return None;
                }
                std::thread::sleep(NAP);
            }
        }
    }
}

fn set_count(list: &[(c_int, u64)]) {
    COUNT.store(list.len(), Ordering::SeqCst);
}

// ---- waits ----

/// A thread begins to wait for a set of descriptors. The count is not of this thread, since a cancelled
/// thread does not come back: [`ends`] is called in any case.
pub(crate) fn begins() {
    WAITING.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn ends() {
    WAITING.fetch_sub(1, Ordering::SeqCst);
}

/// From now on, this thread keeps events. It waits for this channel, or for a set of descriptors.
pub(crate) fn enter(channel: Option<c_int>) {
    let _ = LAST.try_with(|last| last.set(Last::Now(channel)));
}

/// The wait of this thread has ended.
pub(crate) fn leave() {
    let _ = LAST.try_with(|last| last.set(Last::At(Instant::now())));
}

fn last() -> Last {
    LAST.try_with(Cell::get).unwrap_or(Last::Never)
}

/// Whether this thread waits, or has waited a short time ago.
fn is_recent(last: Last) -> bool {
    match last {
        Last::Never => false,
        Last::Now(_) => true,
        Last::At(then) => then.elapsed() < KEPT,
    }
}

/// Whether a thread other than this one waits for a set of descriptors.
fn others_wait(last: Last) -> bool {
    WAITING.load(Ordering::SeqCst) > u32::from(matches!(last, Last::Now(None)))
}

// ---- queues, which are locked during these calls ----

/// Called when a queue gets an event in addition to `earlier` ones. Returns whether the event is kept.
/// Otherwise the caller counts the event. `waiters` is the number of threads that wait for events of the
/// queue.
pub(crate) fn keep(fd: c_int, earlier: usize, waiters: u32) -> bool {
    let last = last();
    let own = u32::from(matches!(last, Last::Now(Some(channel)) if channel == fd));
    let may_keep = waiters <= own
        && fd_marks::WAITED.has(fd)
        && REGISTRATIONS.allows(fd)
        && is_recent(last)
        && !others_wait(last);
    if !may_keep || !add(&mut list(), fd, earlier as u64) {
        return false;
    }
    // A thread that begins to wait counts itself, then looks for kept events. This thread keeps the event,
    // then looks for such a thread.
    fence(Ordering::SeqCst);
    !others_wait(last) || !take(fd)
}

/// Adds an event, unless the descriptor counts some of the `earlier` events, or the list is full.
fn add(list: &mut Vec<(c_int, u64)>, fd: c_int, earlier: u64) -> bool {
    if let Some((_, count)) = list.iter_mut().find(|(kept, _)| *kept == fd) {
        if *count != earlier {
            return false;
        }
        *count += 1;
    } else {
        if earlier != 0 || list.len() == MOST {
            return false;
        }
        list.push((fd, 1));
    }
    set_count(list);
    true
}

/// Called when an event leaves its queue. Returns whether the event was kept. Otherwise the caller has to
/// lower the descriptor's count.
pub(crate) fn take(fd: c_int) -> bool {
    if !any() {
        return false;
    }
    let mut list = list();
    let Some(at) = list.iter().position(|(kept, _)| *kept == fd) else { return false };
    list[at].1 -= 1;
    if list[at].1 == 0 {
        list.remove(at);
    }
    set_count(&list);
    true
}

/// Called when a channel with this descriptor is made.
pub(crate) fn channel_made(fd: c_int) {
    REGISTRATIONS.clear(fd);
    fd_marks::channel_made(fd);
}

/// Called before the descriptor of a channel is closed.
pub(crate) fn channel_closes(fd: c_int) {
    fd_marks::channel_closes(fd);
    if any() {
        let mut list = list();
        list.retain(|(kept, _)| *kept != fd);
        set_count(&list);
    }
}

// ---- those who look at descriptors ----

/// Whether events of this descriptor are kept.
pub(crate) fn has(fd: c_int) -> bool {
    any() && list_if_free().is_some_and(|list| list.iter().any(|(kept, _)| *kept == fd))
}

/// Calls `each` with the descriptors that have kept events, until the result is false.
pub(crate) fn each(mut each: impl FnMut(c_int) -> bool) {
    if let Some(list) = list_if_free() {
        let _ = list.iter().all(|(fd, _)| each(*fd));
    }
}

/// Counts all kept events in their descriptors.
#[inline]
pub(crate) fn write_all() {
    if any() {
        write(|_| true);
    }
}

/// Called after the program has registered a channel in an epoll instance, has changed the registration, or
/// has removed it (`event` is `None`).
pub(crate) fn registered(epfd: c_int, fd: c_int, event: Option<epoll_event>) {
    if REGISTRATIONS.change(epfd, fd, event) && any() {
        write(|kept| kept == fd);
    }
}

#[cold]
fn write(which: impl Fn(c_int) -> bool) {
    // The events are of the parent, which shares the descriptors with a forked child.
    let Some(mut list) = list_if_free().filter(|_| !fork::is_child()) else { return };
    for (fd, count) in list.extract_if(.., |(fd, _)| which(*fd)) {
        // SAFETY: the descriptor is open: a queue that is dropped removes its entry before.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let written = rustix::io::write(fd, &count.to_ne_bytes());
        debug_assert!(written.is_ok(), "{written:?}");
    }
    set_count(&list);
}

/// Called after each poll of the engine, by the thread that has polled.
#[inline]
pub(crate) fn after_poll() {
    if any() && !is_recent(last()) {
        write(|_| true);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// The list is of the whole process, so the tests run one after the other.
    static ONE: Mutex<()> = Mutex::new(());

    /// A channel for which a call has waited.
    pub(crate) struct Channel(OwnedFd);

    impl Channel {
        pub(crate) fn new() -> Self {
            let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            channel_made(fd.as_raw_fd());
            fd_marks::WAITED.set(fd.as_raw_fd());
            Self(fd)
        }

        pub(crate) fn fd(&self) -> c_int {
            self.0.as_raw_fd()
        }

        /// The number of counted events, which are no longer counted afterwards.
        pub(crate) fn counted(&self) -> u64 {
            let mut bytes = [0; 8];
            rustix::io::read(&self.0, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        }
    }

    impl Drop for Channel {
        fn drop(&mut self) {
            channel_closes(self.fd());
        }
    }

    pub(crate) fn registration(events: c_int) -> Option<epoll_event> {
        Some(epoll_event { events: events as u32, u64: 0 })
    }

    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        assert!(!any());
        one
    }

    #[test]
    fn a_thread_keeps_the_events_of_its_waits_until_they_are_taken_or_counted() {
        let _one = alone();
        let [first, second] = [Channel::new(), Channel::new()];
        assert!(!keep(first.fd(), 0, 0), "this thread has never waited");
        enter(None);
        assert!(keep(first.fd(), 0, 0) && keep(second.fd(), 0, 0) && keep(first.fd(), 1, 0));
        assert!(any() && has(first.fd()) && has(second.fd()));
        let mut found = Vec::new();
        each(|fd| {
            found.push(fd);
            true
        });
        assert_eq!(found, [first.fd(), second.fd()]);
        let mut calls = 0;
        each(|_| {
            calls += 1;
            false
        });
        assert_eq!(calls, 1);
        assert!(take(second.fd()) && !take(second.fd()) && !has(second.fd()));
        registered(9, second.fd(), registration(libc::EPOLLIN));
        assert!(has(first.fd()));
        assert!(keep(second.fd(), 0, 0));
        registered(9, first.fd(), registration(libc::EPOLLIN));
        assert!(has(second.fd()) && !has(first.fd()) && !take(first.fd()));
        assert!(take(second.fd()) && !any());
        assert!(!keep(first.fd(), 2, 0), "either all events are kept, or none");
        assert_eq!((first.counted(), second.counted()), (2, 0));
        // An event of a queue whose other events are counted.
        assert!(keep(second.fd(), 0, 0) && !keep(second.fd(), 2, 0));
        let number = second.fd();
        drop(second);
        assert!(!any(), "the descriptor is closed");
        assert!(!fd_marks::CHANNELS.has(number));
        assert!(keep(first.fd(), 0, 0));
        write_all();
        assert!(!any() && first.counted() == 1);
    }

    #[test]
    fn events_for_which_others_may_wait_are_counted() {
        let _one = alone();
        let channel = Channel::new();
        let fd = channel.fd();
        enter(None);
        assert!(!keep(fd, 0, 1), "a thread waits for the channel");
        begins();
        assert!(keep(fd, 0, 0) && take(fd), "this thread waits for the set");
        begins();
        assert!(!keep(fd, 0, 0), "another thread waits for a set");
        ends();
        enter(Some(fd));
        assert!(!keep(fd, 0, 0), "the set is of another thread");
        ends();
        assert!(keep(fd, 0, 1) && take(fd), "this thread waits for the channel");
        assert!(!keep(fd, 0, 2), "so does another thread");
        enter(Some(fd + 1));
        assert!(!keep(fd, 0, 1), "this thread waits for another channel");
        fd_marks::WAITED.clear(fd);
        assert!(!keep(fd, 0, 0), "the library has not seen a wait for this channel");
        fd_marks::WAITED.set(fd);
        assert!(keep(fd, 0, 0) && take(fd));
        registered(7, fd, registration(libc::EPOLLIN | libc::EPOLLET));
        assert!(!keep(fd, 0, 0));
        registered(7, fd, None);
        assert!(keep(fd, 0, 0));
        registered(7, fd, registration(libc::EPOLLIN));
        assert_eq!((channel.counted(), keep(fd, 0, 0)), (1, true));
        registered(7, fd, registration(libc::EPOLLIN));
        assert!(take(fd), "nothing has changed");
        // A second instance, until a new channel has the number.
        registered(8, fd, registration(libc::EPOLLIN));
        assert!(!keep(fd, 0, 0));
        channel_closes(fd);
        channel_made(fd);
        assert!(!keep(fd, 0, 0), "no wait for the new channel");
        fd_marks::WAITED.set(fd);
        assert!(keep(fd, 0, 0) && take(fd));
    }

    #[test]
    fn after_a_wait_events_are_kept_for_a_short_time() {
        let _one = alone();
        let channel = Channel::new();
        enter(None);
        assert!(keep(channel.fd(), 0, 0));
        after_poll();
        assert!(any(), "this thread waits");
        std::thread::spawn(after_poll).join().unwrap();
        assert!(!any(), "a thread that never waits, like the engine's, counts the events");
        assert_eq!(channel.counted(), 1);
        // The time may pass between two lines of this test, if other threads need the CPU.
        let kept_after_a_wait = || {
            leave();
            let kept = keep(channel.fd(), 0, 0);
            if kept {
                after_poll();
            }
            kept && take(channel.fd())
        };
        assert!((0..10_000).any(|_| kept_after_a_wait()));
        channel.counted();
        leave();
        let kept = keep(channel.fd(), 0, 0);
        std::thread::sleep(2 * KEPT);
        after_poll();
        assert!(!any() && channel.counted() == u64::from(kept));
        assert!(!keep(channel.fd(), 0, 0));
    }

    /// A thread that holds the lock may lose its CPU. A handler that has interrupted the holder gives up.
    #[test]
    fn events_are_found_although_another_thread_holds_the_lock_for_a_while() {
        let _one = alone();
        let channel = Channel::new();
        enter(None);
        assert!(keep(channel.fd(), 0, 0));
        let (locked, is_locked) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let _list = list();
            locked.send(()).unwrap();
            std::thread::sleep(PATIENCE / 10);
        });
        is_locked.recv().unwrap();
        assert!(has(channel.fd()));
        holder.join().unwrap();
        let held = list();
        assert!(!has(channel.fd()));
        drop(held);
        assert!(take(channel.fd()));
    }

    #[test]
    fn few_descriptors_have_kept_events() {
        let _one = alone();
        let channels: Vec<_> = (0..=MOST).map(|_| Channel::new()).collect();
        enter(None);
        let kept = channels.iter().filter(|channel| keep(channel.fd(), 0, 0)).count();
        assert_eq!(kept, MOST);
        assert!(keep(channels[0].fd(), 1, 0));
        write_all();
        assert!(channels[..MOST].iter().enumerate().all(|(at, one)| one.counted() == 1 + u64::from(at == 0)));
    }
}
