//! A task of an async runtime that serves a shared engine in place of the engine's thread.
//!
//! The reactor of the runtime watches the descriptors of the engine. When one of them is readable, the task
//! polls the engine. So a frame wakes the worker of the runtime that runs the tasks of the program, and no
//! thread that would have to wake this worker.
//!
//! A worker may be busy or blocked, and a runtime may be dropped. So the sleeping thread also watches the
//! descriptors. If one of them becomes readable, the thread leaves the engine to the task, and looks again
//! after [`STEP`]. If no caller has polled by then, the thread serves as usual, until the task runs again.
//! While callers poll, the thread only looks once per `STEP`, or less often if
//! [`SharedOptions::step_back`](super::SharedOptions::step_back) is longer. So work waits for the thread for
//! at most three of these times: the thread steps back, steps back once more for the last poll of a caller,
//! and then leaves the first readable descriptor to the task.
//!
//! The thread also watches the deadlines of the engine, such as those of retransmissions. The thread may find
//! a deadline late by the same time. So a caller lets the engine sleep only if the next deadline is not near.
//!
//! If a caller wakes the engine without a frame, it sets the thread's alarm instead of waking the thread. All
//! changes of the engine's sleep and of the thread's watch are made with the lock of the engine, so none of
//! them is missed. The thread sees a readable descriptor even if the reactor has reported this descriptor
//! before, so no sleep depends on the reactor alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::waiters::Alarm;
use super::{SharedEngine, Turned, next};

/// The time for which the thread leaves the engine to callers before it looks whether they poll.
pub(super) const STEP: Duration = Duration::from_millis(1);

/// The shortest sleep for which a caller lets the engine sleep.
const SHORTEST: Duration = Duration::from_micros(200);

/// Maximum number of polls of [`SharedEngine::settle`].
const POLLS: usize = 4;

pub(super) struct Attendance {
    /// Whether a task serves the engine when a descriptor is readable. The thread clears this flag when it
    /// had to serve in place of the task.
    is_attended: AtomicBool,
    /// Whether the thread sleeps until a descriptor is readable. Only a thread that holds the lock of the
    /// engine uses this flag.
    is_watched: AtomicBool,
    alarm: Alarm,
}

impl Attendance {
    pub(super) fn new() -> io::Result<Self> {
        let flag = || AtomicBool::new(false);
        Ok(Self { is_attended: flag(), is_watched: flag(), alarm: Alarm::new()? })
    }

    pub(super) fn is_attended(&self) -> bool {
        self.is_attended.load(Ordering::SeqCst)
    }

    /// The task did not serve in time. From now on the thread serves.
    pub(super) fn miss(&self) {
        self.is_attended.store(false, Ordering::SeqCst);
    }

    /// The thread begins to sleep.
    pub(super) fn watch(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    /// The thread is awake.
    pub(super) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
    }

    /// The caller wakes the engine. Returns false if the caller has to wake the thread as well.
    pub(super) fn replace_thread(&self) -> bool {
        if !self.is_attended() {
            return false;
        }
        if self.is_watched.swap(false, Ordering::Relaxed) {
            self.alarm.set(STEP);
        }
        true
    }

    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    pub(super) fn take_alarm(&self) {
        self.alarm.has_rung();
    }
}

impl SharedEngine {
    /// The descriptors of received frames and of posted requests, for the reactor of a runtime. Returns
    /// `None` if a task cannot serve the engine, because the engine has no thread, its thread never sleeps,
    /// or its port has no descriptor.
    ///
    /// A task serves the engine as follows. First, and whenever a descriptor has become readable:
    ///
    /// 1. It calls [`attend`](Self::attend).
    /// 2. It calls [`turn`](Self::turn), which may wake other tasks.
    /// 3. It calls [`settle`](Self::settle). If the result is false, the task lets other tasks run, and
    ///    begins again at the second step.
    ///
    /// When the task ends, it calls [`leave`](Self::leave). The task also calls `leave` instead of polling
    /// without work for long: the thread can sleep until a near deadline, but `settle` cannot.
    ///
    /// The engine's thread does not wait for the task: if a descriptor is readable and no caller polls for a
    /// millisecond, the thread serves until the next call of `attend`. So the task may be delayed or
    /// blocked, and its runtime may end.
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let port = self.inner.waiters.port_of_callers()?;
        Some([port.as_fd(), self.inner.handle.doorbells().waker()])
    }

    /// From now on, a task serves the engine. A descriptor has become readable.
    pub fn attend(&self) {
        let inner = &*self.inner;
        inner.attendance.is_attended.store(true, Ordering::SeqCst);
        // A wake-up that was sent during a sleep may arrive after this sleep. The reactor does not report the
        // wake-up again, so it is consumed before the next sleep.
        if let Ok(mut engine) = inner.engine.try_lock()
            && !inner.asleep.load(Ordering::Relaxed)
            && let Some(engine) = engine.as_mut()
        {
            engine.end_sleep();
        }
    }

    /// Whether a task serves the engine.
    pub fn is_attended(&self) -> bool {
        self.inner.attendance.is_attended()
    }

    /// No task serves the engine any more. The thread serves at once, or within a millisecond if a caller has
    /// just woken the engine.
    pub fn leave(&self) {
        self.inner.attendance.miss();
        self.hand_over();
    }

    /// Wakes the engine if it sleeps. So a request that is posted next does not wake the task.
    pub fn rouse(&self) {
        let inner = &*self.inner;
        if inner.asleep.load(Ordering::Relaxed)
            && let Ok(mut engine) = inner.engine.try_lock()
            && inner.asleep.load(Ordering::Relaxed)
        {
            inner.wake(engine.as_mut(), None);
        }
    }

    /// Polls, and lets the engine sleep when it has no work. Returns false if the engine still has work, or
    /// another thread is polling it. Then the caller has to poll again, or has to wake the task.
    pub fn settle(&self) -> bool {
        let inner = &*self.inner;
        let Ok(mut locked) = inner.engine.try_lock() else { return false };
        if inner.asleep.load(Ordering::Relaxed) {
            return true;
        }
        next(&inner.turns);
        for _ in 0..POLLS {
            if inner.poll(locked.as_mut()) {
                continue;
            }
            let Some(engine) = locked.as_mut() else { return true };
            // The thread may find the deadline of the sleep late.
            if engine.rest().is_some_and(|rest| rest >= SHORTEST)
                && engine.begin_sleep(Duration::ZERO).is_some()
            {
                inner.asleep.store(true, Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}

impl Turned {
    /// Wakes the engine for the thread, which holds the lock.
    pub(super) fn wake_for_thread(&self, engine: Option<&mut super::Engine>) {
        self.asleep.store(false, Ordering::Relaxed);
        if let Some(engine) = engine {
            engine.end_sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::pair::{Pair, until};
    use super::super::{SharedOptions, wait_any};
    use super::*;

    /// A pair whose thread does not poll beside a caller, once it has stepped back.
    fn without_help() -> Pair {
        let hour = Duration::from_secs(3600);
        let options = SharedOptions { step_back: hour, longest_step_back: hour, ..SharedOptions::default() };
        let pair = Pair::with(options);
        until("the thread does not begin", || pair.polled_by_thread());
        until("the thread does not step back", || {
            pair.engine.turn();
            pair.polls.lock().unwrap().clear();
            thread::sleep(Duration::from_millis(20));
            !pair.polled_by_thread()
        });
        pair
    }

    /// Serves, until the thread watches the engine's sleep.
    fn watched(pair: &Pair) {
        pair.attend();
        until("the thread does not watch", || {
            let engine = pair.engine.inner.engine();
            let is_watched = pair.engine.inner.attendance.is_watched.load(Ordering::Relaxed);
            drop(engine);
            is_watched && pair.is_asleep()
        });
    }

    /// A frame finds the task busy or blocked. Later the task serves again.
    #[test]
    fn the_thread_serves_what_the_task_does_not_serve() {
        let pair = Pair::new();
        for _ in 0..3 {
            watched(&pair);
            assert!(pair.engine.is_attended());
            pair.polls.lock().unwrap().clear();
            let _connecting = pair.connect();
            until("nobody serves", || {
                pair.other.turn();
                pair.polled_by_thread() && !pair.engine.is_attended()
            });
        }
    }

    /// The task serves within a millisecond, unless the machine is busy.
    #[test]
    fn the_thread_does_not_poll_what_the_task_serves() {
        let pair = Pair::new();
        pair.attend();
        until("the thread polls beside the task", || {
            pair.polls.lock().unwrap().clear();
            for _ in 0..20 {
                let _connecting = pair.connect();
                until("no frame arrives", || {
                    pair.other.turn();
                    pair.is_readable() || pair.polled_by_thread()
                });
                pair.attend();
            }
            !pair.polled_by_thread()
        });
    }

    /// The thread sleeps, or has stepped back. If the engine sleeps, the thread need not poll before the next
    /// frame.
    #[test]
    fn when_the_task_leaves_the_thread_serves() {
        let serves = |pair: &Pair| {
            pair.polls.lock().unwrap().clear();
            pair.engine.leave();
            assert!(!pair.engine.is_attended());
            let _connecting = pair.connect();
            until("nobody serves", || {
                pair.other.turn();
                pair.polled_by_thread()
            });
        };
        let pair = Pair::new();
        watched(&pair);
        serves(&pair);
        let pair = without_help();
        pair.attend();
        serves(&pair);
        let pair = without_help();
        pair.engine.attend();
        pair.engine.turn();
        serves(&pair);
    }

    /// A task has prepared a post or polled, and then computes.
    #[test]
    fn an_engine_that_callers_leave_awake_is_polled() {
        for is_poll in [true, false] {
            let pair = Pair::new();
            watched(&pair);
            if is_poll {
                pair.engine.turn();
            } else {
                pair.engine.rouse();
            }
            assert!(!pair.is_asleep() || pair.polled_by_thread());
            pair.thread_takes_over();
            assert!(pair.engine.is_attended());
        }
    }

    /// Otherwise the reactor, which has reported the wake-up, would not see that the descriptor is still
    /// readable.
    #[test]
    fn a_late_wake_up_is_consumed() {
        let pair = without_help();
        pair.engine.rouse();
        pair.engine.inner.handle.doorbells().interrupt();
        assert!(pair.is_readable());
        pair.engine.attend();
        assert!(!pair.is_readable());
        // A wake-up during a sleep is left to the poll.
        pair.attend();
        pair.engine.inner.handle.doorbells().interrupt();
        pair.engine.attend();
        assert!(pair.is_asleep() && pair.is_readable());
    }

    /// The thread finds a readable descriptor, but no work.
    #[test]
    fn a_wake_up_without_work_is_no_miss() {
        let pair = Pair::new();
        watched(&pair);
        pair.polls.lock().unwrap().clear();
        pair.engine.inner.handle.doorbells().interrupt();
        until("nobody serves", || pair.polled_by_thread());
        // The thread's poll has ended.
        pair.engine.with(|_| ());
        assert!(pair.engine.is_attended());
    }

    /// The task's sleep begins after the thread's, and has to end earlier.
    #[test]
    fn the_thread_meets_the_deadlines_of_sleeps() {
        let pair = Pair::new();
        watched(&pair);
        pair.due_us.store(3000, Ordering::SeqCst);
        pair.attend();
        pair.thread_takes_over();
        pair.engine.with(|_| ());
        assert!(pair.engine.is_attended(), "the task is not late");
    }

    #[test]
    fn no_sleep_ends_soon() {
        let pair = without_help();
        pair.engine.attend();
        pair.due_us.store(SHORTEST.as_micros() as u64 - 1, Ordering::SeqCst);
        for _ in 0..100 {
            assert!(!pair.engine.settle() && !pair.is_asleep());
        }
        pair.due_us.store(60_000_000, Ordering::SeqCst);
        pair.attend();
        assert!(pair.is_asleep());
        // The engine sleeps already, so this call does not poll.
        let turns = pair.engine.inner.turns.load(Ordering::Relaxed);
        assert!(pair.engine.settle());
        assert_eq!(pair.engine.inner.turns.load(Ordering::Relaxed), turns);
    }

    /// The engine that another thread polls is not asleep, so the task has to come back.
    #[test]
    fn an_engine_in_use_is_not_settled() {
        let pair = without_help();
        let is_settled =
            pair.engine.with(|_| thread::scope(|scope| scope.spawn(|| pair.engine.settle()).join()));
        assert!(!is_settled.unwrap().unwrap());
        // A stopped engine needs no service.
        pair.engine.reset_within(Duration::from_secs(10));
        assert!(pair.engine.settle());
    }

    #[test]
    fn the_descriptors_are_those_that_wake() {
        let pair = without_help();
        pair.attend();
        let fds = pair.engine.descriptors().unwrap();
        let is_readable = |at: usize| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fds[at], rustix::event::PollFlags::IN)];
            wait_any(&mut fds, Some(Duration::ZERO)).unwrap()
        };
        assert!(!is_readable(0) && !is_readable(1));
        pair.engine.inner.handle.doorbells().interrupt();
        assert!(!is_readable(0) && is_readable(1));
        let _connecting = pair.connect();
        until("a frame makes no descriptor readable", || {
            pair.other.turn();
            is_readable(0)
        });
    }
}
