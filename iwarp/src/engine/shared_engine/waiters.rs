//! Callers that wait for descriptors of their own, and meanwhile do the work of the engine's thread.
//!
//! If the thread serves a program that waits, each message costs two wake-ups: the frame wakes the thread,
//! and the thread wakes the program. So the waiting caller itself serves: it polls the engine, and sleeps
//! until one of its own descriptors or one of the engine's descriptors is readable.
//!
//! The caller that has begun to wait last serves, since a program usually answers a message and waits again,
//! while its other threads wait for rare events. The caller that served before notices when it wakes.
//!
//! While a caller serves, the thread is parked: it waits without a limit. A caller that stops serving sets
//! the thread's alarm, but only if the thread is parked without an alarm. So a program that waits often
//! makes one system call for each alarm, and the thread wakes about once per millisecond. If the alarm finds
//! that no caller serves, and callers neither wait nor poll, the thread polls the engine, as it does for a
//! program that stops polling.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::service::Service;
use super::{SharedEngine, SharedOptions, Turned, await_answers, next};
use crate::queues::wait_any;

/// A wait of a caller, from [`SharedEngine::begin_wait`] until [`SharedEngine::end_wait`]. The value owns
/// nothing, so a thread that waits may be cancelled. Then another call of `end_wait` has to end the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting(u64);

/// What a caller may do after it has found no event ([`SharedEngine::begin_sleep`]).
#[derive(Clone, Copy, Debug)]
pub enum Sleep<'a> {
    /// The engine has work, or another thread polls the engine. The caller has to poll again.
    Busy,
    /// Another caller or the thread serves. So the caller only waits for its own descriptors.
    OfOthers,
    /// The caller sleeps until one of these descriptors or one of its own is readable, at most for `limit`.
    /// Then the caller calls [`SharedEngine::end_sleep`].
    OfEngine {
        /// The descriptors of received frames and of posted requests.
        fds: [BorrowedFd<'a>; 2],
        /// The engine has to be polled after this time.
        limit: Duration,
    },
}

/// Maximum age of an acknowledgement that the first poll of a wait does not send by itself. A program that
/// has received a message answers about so soon, if it answers at once.
pub(super) const ANSWER: Duration = Duration::from_micros(20);

/// No caller lets the engine sleep.
const NOBODY: u64 = 0;

/// A thread with at least so many idle polls before its sleep is meant never to sleep.
const NEVER_SLEEPS: u32 = u32::MAX - 1;

pub(super) struct Waiters {
    /// The descriptor of received frames.
    port: Option<OwnedFd>,
    /// Whether callers may serve. They do not serve if frames do not wake them, or if the thread never
    /// sleeps.
    may_serve: bool,
    service: Service,
    /// The number of the wait whose caller lets the engine sleep. [`NOBODY`] if the engine is awake, or if
    /// the thread lets it sleep. Only a thread that holds the lock of the engine writes this number.
    sleeping: AtomicU64,
    /// The number of the last wait.
    last: AtomicU64,
    alarm: Alarm,
    /// The time until an alarm, in microseconds.
    until_alarm: AtomicU64,
}

impl Waiters {
    /// `options` are those of the engine's thread, if it has one.
    pub(super) fn new(port: Option<OwnedFd>, options: Option<SharedOptions>) -> io::Result<Self> {
        let sleeps = options.is_some_and(|options| options.spin_polls < NEVER_SLEEPS);
        Ok(Self {
            may_serve: port.is_some() && sleeps,
            port,
            service: Service::new(),
            sleeping: AtomicU64::new(NOBODY),
            last: AtomicU64::new(NOBODY),
            alarm: Alarm::new()?,
            until_alarm: AtomicU64::new(0),
        })
    }

    pub(super) fn port(&self) -> Option<&OwnedFd> {
        self.port.as_ref()
    }

    /// The descriptor of received frames, if callers may serve.
    pub(super) fn port_of_callers(&self) -> Option<&OwnedFd> {
        self.port().filter(|_| self.may_serve)
    }

    /// Whether a caller serves.
    #[inline]
    pub(super) fn any_serves(&self) -> bool {
        self.service.any_serves()
    }

    /// Whether a caller lets the engine sleep. Only for a thread that holds the lock of the engine.
    pub(super) fn any_sleeps(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != NOBODY
    }

    /// Ends the service of the caller that lets the engine sleep, because another thread has woken the
    /// engine. Returns false if the thread has let the engine sleep.
    pub(super) fn replace_sleeper(&self, by: Option<Waiting>) -> bool {
        let sleeper = self.sleeping.swap(NOBODY, Ordering::Relaxed);
        if sleeper == NOBODY {
            return false;
        }
        if by.is_none() {
            self.leave(sleeper);
        }
        true
    }

    /// From now on, the caller of this wait does not serve.
    fn leave(&self, wait: u64) {
        if self.service.end(wait) {
            self.alarm.set(Duration::from_micros(self.until_alarm.load(Ordering::Relaxed)));
        }
    }
}

impl SharedEngine {
    /// Begins a wait for descriptors of the caller. From now on the caller serves the engine in place of the
    /// thread, as follows:
    ///
    /// 1. [`poll_waiting`](Self::poll_waiting), which may make the caller's descriptors readable. The first
    ///    time, [`poll_at_start`](Self::poll_at_start).
    /// 2. If none of them is readable, [`begin_sleep`](Self::begin_sleep).
    /// 3. Sleep as the result says, then [`end_sleep`](Self::end_sleep), and continue with the first step.
    ///
    /// Returns `None` if callers cannot serve, because the engine has no thread, its thread never sleeps, or
    /// its port has no descriptor. Then the thread of the engine, if any, begins to poll, as after
    /// [`hand_over`](Self::hand_over).
    pub fn begin_wait(&self) -> Option<Waiting> {
        let inner = &*self.inner;
        let waiters = &inner.waiters;
        if !waiters.may_serve {
            self.hand_over();
            return None;
        }
        // The thread steps back for a while after each wait, as after a turn.
        next(&inner.turns);
        let wait = waiters.last.fetch_add(1, Ordering::Relaxed) + 1;
        waiters.service.begin(wait);
        Some(Waiting(wait))
    }

    /// Polls the engine once, unless another thread is polling it or serves it. Returns whether there was any
    /// work.
    pub fn poll_waiting(&self, wait: Waiting) -> bool {
        self.poll_in(wait, Duration::ZERO)
    }

    /// Does the same for the first poll of a wait. The wait may end at once, since one of the caller's
    /// descriptors is readable already, and then the caller may answer messages that the engine has received
    /// before. So this poll does not send an acknowledgement that is younger than [`ANSWER`] in a frame of
    /// its own: the answer can carry it. A peer that sleeps is then woken once, and not twice.
    pub fn poll_at_start(&self, wait: Waiting) -> bool {
        self.poll_in(wait, ANSWER)
    }

    /// Polls for a wait. An acknowledgement waits for an answer of the user for at most `patience`.
    #[inline]
    fn poll_in(&self, wait: Waiting, patience: Duration) -> bool {
        let inner = &*self.inner;
        let Ok(mut engine) = inner.engine.try_lock() else { return false };
        if !inner.waiters.service.is_of(wait.0) {
            return false;
        }
        await_answers(&mut engine, patience);
        let busy = inner.poll_awake(&mut engine, Some(wait));
        await_answers(&mut engine, Duration::ZERO);
        busy
    }

    /// Prepares the caller's sleep.
    pub fn begin_sleep(&self, wait: Waiting) -> Sleep<'_> {
        let inner = &*self.inner;
        let waiters = &inner.waiters;
        if !waiters.service.is_of(wait.0) {
            return Sleep::OfOthers;
        }
        let (Ok(mut locked), Some(port)) = (inner.engine.try_lock(), &waiters.port) else {
            return Sleep::Busy;
        };
        let Some(engine) = locked.as_mut().filter(|_| !inner.stop.load(Ordering::SeqCst)) else {
            return Sleep::OfOthers;
        };
        if inner.asleep.load(Ordering::Relaxed) {
            // The thread has begun to sleep since the last poll.
            return Sleep::Busy;
        }
        // The second limit is for ports without a descriptor.
        let Some(limit) = engine.begin_sleep(Duration::ZERO) else { return Sleep::Busy };
        inner.asleep.store(true, Ordering::Relaxed);
        waiters.sleeping.store(wait.0, Ordering::Relaxed);
        let fds = [port.as_fd(), inner.handle.doorbells().waker()];
        Sleep::OfEngine { fds, limit: limit.min(inner.longest_sleep()) }
    }

    /// Ends the caller's sleep. The engine is awake afterwards, unless another thread lets it sleep.
    pub fn end_sleep(&self, wait: Waiting) {
        let mut engine = self.inner.engine();
        if self.inner.waiters.sleeping.load(Ordering::Relaxed) == wait.0 {
            self.inner.waiters.sleeping.store(NOBODY, Ordering::Relaxed);
            self.inner.asleep.store(false, Ordering::Relaxed);
            if let Some(engine) = engine.as_mut() {
                engine.end_sleep();
            }
        }
    }

    /// Ends the wait. The engine is awake, and the next turn, wait or poll of the thread continues its work.
    pub fn end_wait(&self, wait: Waiting) {
        self.inner.waiters.leave(wait.0);
    }
}

impl Turned {
    /// Parks the thread while callers serve. `until_alarm` is the time after which the thread wakes when they
    /// stop. Returns whether the alarm has woken the thread.
    pub(super) fn park(&self, until_alarm: Duration) -> bool {
        let waiters = &self.waiters;
        waiters.until_alarm.store(until_alarm.as_micros() as u64, Ordering::Relaxed);
        // An earlier announcement does not count, since a caller serves now.
        self.handover.withdraw();
        let may_wait = self.handover.step_back();
        let may_park = waiters.service.park();
        if may_wait && may_park && !self.stop.load(Ordering::SeqCst) {
            let mut fds = [
                PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(waiters.alarm.as_fd(), PollFlags::IN),
            ];
            let waited = wait_any(&mut fds, None);
            debug_assert!(waited.is_ok(), "a private descriptor stays open");
        }
        waiters.service.unpark();
        self.handover.return_from_waiting();
        let taken = self.call.take();
        debug_assert!(taken.is_ok(), "a private descriptor stays open");
        waiters.alarm.has_rung()
    }
}

/// A timer that wakes the thread.
#[cfg(target_os = "linux")]
pub(super) struct Alarm(OwnedFd);

#[cfg(target_os = "linux")]
impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Makes the timer ring once after `time`.
    pub(super) fn set(&self, time: Duration) {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        // Zero would stop the timer.
        let time = Timespec::try_from(time.max(Duration::from_nanos(1))).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value: time };
        let set = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
        debug_assert!(set.is_ok(), "a private descriptor stays open");
    }

    /// Returns whether the timer has rung since the last call.
    pub(super) fn has_rung(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Without timers that are descriptors, the alarm wakes the thread at once, and the thread then waits.
#[cfg(not(target_os = "linux"))]
pub(super) struct Alarm(crate::queues::Notifier);

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(crate::queues::Notifier::new()?))
    }

    pub(super) fn set(&self, _: Duration) {
        self.0.notify();
    }

    pub(super) fn has_rung(&self) -> bool {
        self.0.take().is_ok_and(|rung| rung != 0)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::pair::{Pair, until};
    use super::*;
    use crate::engine::{Engine, EngineConfig};
    use crate::verbs::{Context, ContextConfig};

    /// Frames and doorbells wake the caller that serves, and not the thread. After the caller has stopped,
    /// the thread serves.
    #[test]
    fn a_waiting_caller_serves_in_place_of_the_thread() {
        let pair = Pair::new();
        let turns = || pair.engine.inner.turns.load(Ordering::Relaxed);
        let earlier = turns();
        let wait = pair.engine.begin_wait().unwrap();
        assert_ne!(turns(), earlier, "a wait counts as a turn, so the thread steps back");
        pair.sleep(wait);
        // The thread may have been in the middle of a poll.
        until("the thread does not park", || {
            pair.polls.lock().unwrap().clear();
            thread::sleep(Duration::from_millis(20));
            !pair.polled_by_thread()
        });
        for _ in 0..20 {
            pair.receive(wait);
            pair.sleep(wait);
        }
        assert!(!pair.polled_by_thread());
        pair.engine.end_sleep(wait);
        pair.engine.end_wait(wait);
        pair.thread_takes_over();
        assert!(!pair.engine.poll_waiting(wait), "this caller serves no more");
        assert!(matches!(pair.engine.begin_sleep(wait), Sleep::OfOthers));
    }

    /// The caller has to poll before it sleeps, since the frames that it receives have woken the thread.
    #[test]
    fn a_caller_does_not_sleep_while_the_thread_lets_the_engine_sleep() {
        let pair = Pair::new();
        until("the thread does not sleep", || pair.is_asleep());
        let wait = pair.engine.begin_wait().unwrap();
        // The thread may wake in between, but then it has not let the engine sleep on the caller's behalf.
        if pair.is_asleep() {
            assert!(matches!(pair.engine.begin_sleep(wait), Sleep::Busy));
        }
        pair.sleep(wait);
        // A caller that polls during its sleep, for example in the handler of a signal, still serves.
        pair.engine.poll_waiting(wait);
        assert!(pair.engine.inner.waiters.any_serves());
        pair.sleep(wait);
    }

    #[test]
    fn the_caller_that_has_begun_last_serves() {
        let pair = Pair::new();
        let first = pair.engine.begin_wait().unwrap();
        pair.sleep(first);
        let second = pair.engine.begin_wait().unwrap();
        assert!(matches!(pair.engine.begin_sleep(first), Sleep::OfOthers));
        assert!(!pair.engine.poll_waiting(first));
        pair.sleep(second);
        // The first caller wakes, and ends its wait. The engine still sleeps.
        pair.engine.end_sleep(first);
        pair.engine.end_wait(first);
        assert!(pair.is_asleep() && pair.engine.inner.waiters.any_serves());
        pair.receive(second);
        pair.engine.end_wait(second);
        pair.thread_takes_over();
    }

    /// A thread that polls wakes the engine, so the caller that sleeps is not woken by frames any more.
    #[test]
    fn a_caller_that_polls_ends_the_service_of_one_that_sleeps() {
        let turn: fn(&SharedEngine) = |engine| {
            engine.turn();
        };
        for poll in [turn, SharedEngine::poll] {
            let pair = Pair::new();
            let wait = pair.engine.begin_wait().unwrap();
            pair.sleep(wait);
            poll(&pair.engine);
            assert!(!pair.is_asleep());
            assert!(matches!(pair.engine.begin_sleep(wait), Sleep::OfOthers));
            pair.thread_takes_over();
        }
    }

    /// The limit of a sleep, and the end of the engine, also reach a caller that sleeps.
    #[test]
    fn limits_and_the_end_reach_the_caller_that_sleeps() {
        let pair = Pair::new();
        let wait = pair.engine.begin_wait().unwrap();
        pair.sleep(wait);
        let limit = Duration::from_millis(3);
        pair.engine.limit_sleep(1, Some(limit));
        assert!(pair.is_readable());
        pair.engine.end_sleep(wait);
        until("the sleep has no limit", || {
            pair.engine.poll_waiting(wait);
            let sleep = pair.engine.begin_sleep(wait);
            matches!(sleep, Sleep::OfEngine { limit: until, .. } if until <= limit)
        });
        pair.engine.inner.halt();
        assert!(pair.is_readable());
        pair.engine.end_sleep(wait);
        assert!(matches!(pair.engine.begin_sleep(wait), Sleep::OfOthers));
    }

    #[test]
    fn without_a_descriptor_the_thread_serves() {
        let (port, _other) = dp::link::pair(&dp::link::LinkConfig::default());
        let context = Context::new(ContextConfig::default()).unwrap();
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let engine = Engine::new(&context, port, config).unwrap();
        let engine = SharedEngine::spawn(engine, SharedOptions::default(), Box::new(|| {})).unwrap();
        assert_eq!(engine.begin_wait(), None);
        assert!(engine.descriptors().is_none());
    }

    #[test]
    fn a_thread_that_never_sleeps_is_not_replaced() {
        for (spin_polls, is_replaced) in [(u32::MAX, false), (u32::MAX - 1, false), (u32::MAX - 2, true)] {
            let options = SharedOptions { spin_polls, ..SharedOptions::default() };
            let pair = Pair::with(options);
            assert_eq!(pair.engine.begin_wait().is_some(), is_replaced);
            assert_eq!(pair.engine.descriptors().is_some(), is_replaced);
        }
        let without_thread = Pair::new().other;
        assert!(without_thread.begin_wait().is_none() && without_thread.descriptors().is_none());
    }
}
