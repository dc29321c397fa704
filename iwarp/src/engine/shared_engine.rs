//! An engine that its own thread and threads of the user poll in turns.
//!
//! A program that polls a completion queue waits for the engine. If the program itself polls the engine, the
//! program's request is sent without a context switch, and two threads do not compete for one CPU. So each
//! call of [`turn`](SharedEngine::turn) polls the engine, unless another thread is polling it. As long as
//! callers poll, the engine's thread steps back, and only checks from time to time whether they still poll.
//! When callers stop polling, or call [`hand_over`](SharedEngine::hand_over), the thread polls, and sleeps
//! when there is no work.
//!
//! The polling thread holds the lock of the engine. A call of `turn` does not wait for the lock, since an
//! engine that is being polled needs no second poll.
//!
//! An engine may have no thread of its own ([`SharedEngine::without_thread`]). Then a waiting caller does the
//! thread's work (`shared_engine/callers.rs`).

mod absence;
mod attendance;
mod callers;
mod handover;
#[cfg(test)]
mod pair;
mod service;
mod waiters;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{self, AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use dp::Clock;
use rustix::event::{PollFd, PollFlags};

use crate::queues::{Notifier, wait_any};
use crate::verbs::VerbsError;

use super::{Engine, EngineCounters, thread};
use absence::Absence;
use attendance::Attendance;
use callers::Callers;
use handover::Handover;
use waiters::Waiters;
pub use waiters::{Sleep, Waiting};

/// How the thread of a [`SharedEngine`] polls. Without a thread, a waiting caller polls in the same way, but
/// the option `cpu` has no effect.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// The CPU to which the thread is pinned, as in [`ThreadOptions::cpu`](super::ThreadOptions::cpu).
    /// Default: `None`.
    pub cpu: Option<usize>,
    /// Number of idle polls before the thread sleeps. Default: 100.
    pub spin_polls: u32,
    /// The shortest time for which the thread leaves the polling to callers before it checks whether they
    /// still poll. Default: 1 ms.
    pub step_back: Duration,
    /// The longest time for which the thread leaves the polling to callers before it checks whether they
    /// still poll. The time grows from `step_back` up to this value while callers poll without a pause.
    /// Default: 8 ms.
    pub longest_step_back: Duration,
    /// Maximum time of a sleep on a port without a file descriptor. Default: 200 us.
    pub max_sleep: Duration,
}

impl Default for SharedOptions {
    fn default() -> Self {
        // The thread rarely has a CPU to itself, so it spins for only some tens of microseconds. On a virtual
        // machine, a thousand checks per second reduce the bandwidth of callers on the same CPU by 6 %. So
        // the wait between two checks grows while callers poll.
        Self {
            cpu: None,
            spin_polls: 100,
            step_back: Duration::from_millis(1),
            longest_step_back: Duration::from_millis(8),
            max_sleep: Duration::from_micros(200),
        }
    }
}

/// Maximum time that the acknowledgement of a message waits for the program's answer, if the thread has
/// received the message. A program that polls its memory for a change answers within a few hundred
/// nanoseconds. If the answer carries the acknowledgement, the programs of both peers keep polling, so a test
/// such as `ib_write_lat` does not wait for an engine's thread.
const PATIENCE: Duration = Duration::from_micros(2);

/// Number of empty turns of callers after which a caller yields the CPU, since the peer may need the CPU to
/// answer.
const TURNS_BEFORE_YIELD: u64 = 64;

/// The longest time since the last poll for which [`SharedEngine::was_just_polled`] returns true. In this
/// time, a program can take a completion and look for more completions several times.
const RECENT: Duration = Duration::from_micros(20);

/// An engine that its own thread and callers poll. Dropping this value stops the thread and resets the
/// engine's connections.
pub struct SharedEngine {
    inner: Arc<Turned>,
    thread: Option<JoinHandle<()>>,
}

/// The state that callers and the thread share.
struct Turned {
    /// `None` after the engine was stopped.
    engine: Mutex<Option<Engine>>,
    handle: Arc<crate::verbs::EngineHandle>,
    /// Called after each poll, by the thread that polled, while it holds the lock of the engine.
    after_poll: Box<dyn Fn() + Send + Sync>,
    /// The reading of [`Clock::cycles`] at the start of the last poll.
    polled_at: AtomicU64,
    /// The cycles of [`RECENT`].
    recent_cycles: u64,
    /// Number of turns of callers.
    turns: AtomicU64,
    /// Number of turns of callers without work since the last turn with work.
    empty_turns: AtomicU64,
    /// Whether the engine sleeps: a thread waits for the engine's descriptors, or is about to wait. Only a
    /// thread that holds the lock of the engine writes this flag.
    asleep: AtomicBool,
    handover: Handover,
    /// Wakes the thread, or the caller that does the thread's work.
    call: Notifier,
    stop: AtomicBool,
    /// The limits of [`SharedEngine::limit_sleep`], in microseconds.
    longest_sleeps: [AtomicU64; SLEEP_LIMITS],
    /// The waiting callers of an engine without a thread.
    callers: Option<Callers>,
    /// The waiting callers of an engine with a thread.
    waiters: Waiters,
    attendance: Attendance,
}

/// Counts by a load and a store, since locked instructions would be a large part of an empty turn. If two
/// threads count at the same time, one step may not be counted, which is harmless.
fn next(count: &AtomicU64) -> u64 {
    let counted = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(counted, Ordering::Relaxed);
    counted
}

/// The number of limits of [`SharedEngine::limit_sleep`].
pub const SLEEP_LIMITS: usize = 3;

impl SharedEngine {
    /// Starts the engine's thread. The polling thread calls `after_poll` after each poll, with the engine
    /// locked, so that events of one engine are handled in order. `after_poll` must not call the engine.
    ///
    /// # Errors
    /// [`VerbsError::System`] if the thread or a descriptor cannot be created.
    pub fn spawn(
        engine: Engine,
        options: SharedOptions,
        after_poll: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        // The thread waits without the lock, so it needs a descriptor that stays valid when the port is
        // dropped.
        let port = engine.port_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let inner = Arc::new(Turned::new(engine, after_poll, None, Waiters::new(port, Some(options))?)?);
        let of_thread = Arc::clone(&inner);
        let run = move || {
            if let Some(cpu) = options.cpu {
                thread::pin(cpu);
            }
            of_thread.serve(options, of_thread.waiters.port(), None);
        };
        let name = format!("iwarp-engine-{}", inner.handle.index());
        let thread = dp::thread::start(name, run).map_err(VerbsError::System)?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Creates an engine without a thread. The engine is polled only in calls such as [`turn`](Self::turn)
    /// and [`poll`](Self::poll), and while a caller is in [`wait_readable`](Self::wait_readable). Without
    /// these calls nothing is received.
    ///
    /// # Errors
    /// [`VerbsError::System`] if a descriptor cannot be created.
    pub fn without_thread(
        engine: Engine,
        options: SharedOptions,
        after_poll: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        let port = engine.port_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let callers = Callers::new(options, port)?;
        Ok(Self {
            inner: Arc::new(Turned::new(engine, after_poll, Some(callers), Waiters::new(None, None)?)?),
            thread: None,
        })
    }

    /// Whether the engine has its own thread.
    pub fn has_thread(&self) -> bool {
        self.inner.callers.is_none()
    }

    /// Call this before waiting until `fd` is readable. If the engine has a thread, this is the same as
    /// [`hand_over`](Self::hand_over), and returns at once. Otherwise the call returns when `fd` is readable
    /// or the engine is stopped. Until then the caller does the work of the thread, unless another caller is
    /// doing this work.
    ///
    /// # Errors
    /// An error of the operating system if the wait fails, for example because a descriptor is closed.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.inner.callers {
            Some(callers) => self.inner.serve_until_readable(callers, fd),
            None => {
                self.hand_over();
                Ok(())
            }
        }
    }

    /// Polls the engine once, unless another thread is polling it. Returns whether there was any work.
    ///
    /// Call this in a loop in which a program waits. Some of the turns that find no work yield the CPU.
    pub fn turn(&self) -> bool {
        self.inner.turn()
    }

    /// Whether the last poll began at most 20 us ago. This costs less than a [`turn`](Self::turn).
    pub fn was_just_polled(&self) -> bool {
        let cycles = Clock::cycles().wrapping_sub(self.inner.polled_at.load(Ordering::Relaxed));
        cycles <= self.inner.recent_cycles
    }

    /// Polls the engine once, after waiting for any other poll to end. This poll handles earlier requests,
    /// and sends their frames as far as TCP and the port accept them. So call this before the process may
    /// end.
    pub fn poll(&self) {
        self.inner.poll_now();
    }

    /// Sends posted requests, if the engine is awake and no other thread is polling it. Otherwise the next
    /// poll sends them.
    ///
    /// Call this after a post to a queue pair that has nothing else to send. If several requests are posted
    /// together, the next poll sends all of them at a lower cost.
    pub fn send_posted(&self) {
        if let Ok(mut engine) = self.inner.engine.try_lock()
            && !self.inner.asleep.load(Ordering::Relaxed)
            && let Some(engine) = engine.as_mut()
        {
            engine.send_posted();
        }
    }

    /// Announces that callers will not poll from now on: they wait for a descriptor, or do not wait at all.
    /// If the engine has a thread, the thread begins to poll at once, unless a waiting caller serves.
    pub fn hand_over(&self) {
        if !self.inner.waiters.any_serves() && self.inner.handover.give() {
            self.inner.call.notify();
        }
    }

    /// Calls `look` with the engine, after waiting for any poll to end. Returns `None` after the engine was
    /// stopped.
    pub fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        self.inner.engine().as_mut().map(look)
    }

    /// Does the same as [`with`](Self::with), but without waiting. Returns `None` also while another call
    /// uses the engine, so a handler of a signal may call this function.
    pub fn try_with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        self.inner.engine.try_lock().ok()?.as_mut().map(look)
    }

    /// Makes the thread poll at least once in `longest`, so that `after_poll` is called even if nothing
    /// happens. `None`, which is the initial setting, sets no limit. There are [`SLEEP_LIMITS`] limits for
    /// different purposes, of which the shortest counts.
    ///
    /// # Panics
    /// If `which` is not less than [`SLEEP_LIMITS`].
    pub fn limit_sleep(&self, which: usize, longest: Option<Duration>) {
        let micros = longest.map_or(u64::MAX, |longest| longest.as_micros() as u64);
        self.inner.longest_sleeps[which].store(micros, Ordering::SeqCst);
        if longest.is_some() {
            self.inner.call.notify();
            self.inner.handle.doorbells().interrupt();
        }
    }

    /// Returns the counters of all layers; zeros after the engine was stopped.
    pub fn counters(&self) -> EngineCounters {
        self.with(|engine| engine.counters()).unwrap_or_default()
    }

    /// Stops the engine, which resets the engine's connections, but does not wait for the engine's thread.
    /// Call this at the end of a process. No connection is reset if another thread polls during all of
    /// `limit`.
    pub fn reset_within(&self, limit: Duration) {
        let inner = &*self.inner;
        inner.halt();
        let pause = Duration::from_micros(100);
        for _ in 0..(limit.as_micros() / pause.as_micros()).max(1) {
            match inner.engine.try_lock() {
                Ok(mut engine) => return drop(engine.take()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
                Err(TryLockError::Poisoned(_)) => return,
            }
        }
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        self.inner.halt();
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Turned {
    fn new(
        engine: Engine,
        after_poll: Box<dyn Fn() + Send + Sync>,
        callers: Option<Callers>,
        waiters: Waiters,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            handle: Arc::clone(engine.handle()),
            engine: Mutex::new(Some(engine)),
            after_poll,
            polled_at: AtomicU64::new(0),
            recent_cycles: (u128::from(Clock::new().hz()) * RECENT.as_nanos() / 1_000_000_000) as u64,
            turns: AtomicU64::new(0),
            empty_turns: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            handover: Handover::new(),
            call: Notifier::new()?,
            stop: AtomicBool::new(false),
            longest_sleeps: [const { AtomicU64::new(u64::MAX) }; SLEEP_LIMITS],
            callers,
            waiters,
            attendance: Attendance::new()?,
        })
    }

    fn engine(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().expect("no holder of this lock panics")
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.call.notify();
        self.handle.doorbells().interrupt();
    }

    fn turn(&self) -> bool {
        next(&self.turns);
        let busy = match self.engine.try_lock() {
            Ok(mut engine) => self.poll_awake(&mut engine, None),
            Err(_) => false,
        };
        if busy {
            self.empty_turns.store(0, Ordering::Relaxed);
        } else if next(&self.empty_turns).is_multiple_of(TURNS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
        busy
    }

    /// Polls once. The poll does not count as a turn, so the thread does not step back because of this poll.
    fn poll_now(&self) {
        self.poll_awake(&mut self.engine(), None);
    }

    /// Polls for a caller, and wakes the engine before the poll if the engine is asleep. `wait` is the wait
    /// of a caller that serves.
    #[inline]
    fn poll_awake(&self, engine: &mut Option<Engine>, wait: Option<Waiting>) -> bool {
        if self.asleep.load(Ordering::Relaxed) {
            self.wake(engine.as_mut(), wait);
        }
        self.poll(engine.as_mut())
    }

    fn poll(&self, engine: Option<&mut Engine>) -> bool {
        let busy = engine.is_some_and(|engine| {
            let busy = engine.poll();
            self.polled_at.store(engine.polled_at, Ordering::Relaxed);
            busy
        });
        (self.after_poll)();
        busy
    }

    /// Records that the engine is awake because the caller polls, so that no thread writes to a descriptor to
    /// wake the engine. The engine's thread, if it waits for these descriptors, has to step back.
    #[cold]
    fn wake(&self, engine: Option<&mut Engine>, wait: Option<Waiting>) {
        self.asleep.store(false, Ordering::Relaxed);
        self.handover.withdraw();
        if let Some(engine) = engine {
            engine.end_sleep();
        }
        if !self.waiters.replace_sleeper(wait) && !self.attendance.replace_thread() {
            self.call.notify();
        }
    }

    /// The shortest limit of [`SharedEngine::limit_sleep`].
    fn longest_sleep(&self) -> Duration {
        let limits = self.longest_sleeps.iter().map(|longest| longest.load(Ordering::SeqCst));
        Duration::from_micros(limits.min().unwrap_or(u64::MAX))
    }

    // ---- the thread, or a caller in its place ----

    /// Polls until the engine is stopped or `until` is readable.
    fn serve(&self, options: SharedOptions, port: Option<&OwnedFd>, until: Option<BorrowedFd<'_>>) {
        let mut turns = self.turns.load(Ordering::Relaxed);
        let mut absence = Absence::new(options.step_back, options.longest_step_back);
        let mut idle: u32 = 0;
        // Whether the thread has left a readable descriptor to the task that serves the engine.
        let mut is_left = false;
        while !self.stop.load(Ordering::SeqCst) && !until.is_some_and(callers::is_readable) {
            let now = self.turns.load(Ordering::Relaxed);
            let new_turns = now.wrapping_sub(std::mem::replace(&mut turns, now));
            if self.waiters.any_serves() {
                if self.park(absence.next(new_turns)) {
                    absence.end();
                }
                idle = 0;
                continue;
            }
            if new_turns != 0 && !self.handover.take() {
                let absence = absence.next(new_turns);
                let is_attended = self.attendance.is_attended();
                self.step_back(if is_attended { absence.max(attendance::STEP) } else { absence }, until);
                (idle, is_left) = (0, false);
                continue;
            }
            absence.end();
            let mut engine = self.engine();
            if self.asleep.load(Ordering::Relaxed) && !self.waiters.any_sleeps() {
                let limit = engine.as_mut().and_then(Engine::rest);
                if let Some(limit) = limit.filter(|_| !is_left) {
                    self.attendance.watch();
                    drop(engine);
                    is_left = self.sleep(limit, port, until);
                    continue;
                }
                self.wake_for_thread(engine.as_mut());
            }
            let was_left = std::mem::take(&mut is_left);
            await_answers(&mut engine, PATIENCE);
            if self.poll(engine.as_mut()) {
                idle = 0;
                // Without work, the descriptor was readable because of an earlier wake-up.
                if was_left {
                    self.attendance.miss();
                }
            } else {
                idle = idle.saturating_add(1);
            }
            let awaits = await_answers(&mut engine, Duration::ZERO);
            if awaits {
                // The CPU is yielded because the program may need the CPU to answer.
                drop(engine);
                std::thread::yield_now();
            } else if idle > options.spin_polls {
                let limit = engine.as_mut().and_then(|engine| engine.begin_sleep(options.max_sleep));
                self.asleep.store(limit.is_some(), Ordering::Relaxed);
                if limit.is_some() {
                    self.attendance.watch();
                }
                drop(engine);
                if let Some(limit) = limit {
                    is_left = self.sleep(limit, port, until);
                }
            } else {
                drop(engine);
                std::hint::spin_loop();
            }
        }
    }

    /// Waits while callers poll, until a caller hands over, `until` is readable, or `limit` passes.
    fn step_back(&self, limit: Duration, until: Option<BorrowedFd<'_>>) {
        if self.handover.step_back() {
            // A failed wait ends at once; then the thread competes with the callers for the engine's lock.
            let mut fds = arrayvec::ArrayVec::<PollFd<'_>, 2>::new();
            fds.push(PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN));
            fds.extend(until.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let waited = wait_any(&mut fds, Some(limit));
            debug_assert!(waited.is_ok(), "a private descriptor stays open");
        }
        self.handover.return_from_waiting();
        let taken = self.call.take();
        debug_assert!(taken.is_ok(), "a private descriptor stays open");
    }

    /// Sleeps until a doorbell rings, a frame arrives on a port with a descriptor, another thread notifies
    /// `call`, `until` is readable, or `limit` passes. Another thread that has woken the engine in the
    /// meantime may have let it sleep again. Returns whether a descriptor was readable whose work the thread
    /// has left to a task, for [`attendance::STEP`].
    fn sleep(&self, limit: Duration, port: Option<&OwnedFd>, until: Option<BorrowedFd<'_>>) -> bool {
        let mut fds = arrayvec::ArrayVec::<PollFd<'_>, 5>::new();
        fds.push(PollFd::from_borrowed_fd(self.handle.doorbells().waker(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.attendance.alarm(), PollFlags::IN));
        fds.extend(port.map(|port| PollFd::new(port, PollFlags::IN)));
        fds.extend(until.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let waited = wait_any(&mut fds, Some(limit.min(self.longest_sleep())));
        debug_assert!(waited.is_ok(), "the engine's descriptors stay open");
        let is_called = waited.is_ok_and(|any| any);
        let is_readable = |at| fds.get(at).is_some_and(|fd: &PollFd<'_>| !fd.revents().is_empty());
        let has_work = is_readable(0) || (port.is_some() && is_readable(3));
        if is_readable(2) {
            self.attendance.take_alarm();
        }
        let mut engine = self.engine();
        self.attendance.end_watch();
        let is_asleep = self.asleep.load(Ordering::Relaxed) && !self.waiters.any_sleeps();
        let is_of_task = is_called && self.attendance.is_attended();
        if is_asleep && !is_of_task {
            self.wake_for_thread(engine.as_mut());
        }
        drop(engine);
        let taken = self.call.take();
        debug_assert!(taken.is_ok(), "a private descriptor stays open");
        let is_left = is_of_task && is_asleep && has_work;
        if is_left {
            self.step_back(attendance::STEP, until);
        }
        is_left
    }
}

/// Sets how long an acknowledgement waits for an answer of the user. Returns whether one waits.
fn await_answers(engine: &mut Option<Engine>, patience: Duration) -> bool {
    engine.as_mut().is_some_and(|engine| engine.await_answers(patience))
}
