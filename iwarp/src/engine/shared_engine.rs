//! An engine that a thread of its own and threads of the user poll in turns.
//!
//! A program that polls a completion queue waits for the engine. If it polls the engine itself, its request
//! leaves without a switch of threads, and two threads do not compete for one CPU. So a caller's
//! [`turn`](SharedEngine::turn) polls, and the engine's thread steps back as long as callers come: it looks
//! once in a while whether they still do. When they stop coming, or say so with
//! [`hand_over`](SharedEngine::hand_over), the thread polls, and sleeps when there is nothing to do.
//!
//! Whoever polls holds the lock of the engine. Nobody waits for it to poll: an engine that is being polled
//! needs no second poll.
//!
//! An engine may do without a thread of its own ([`SharedEngine::without_thread`]): callers that wait take
//! its place (`shared_engine/callers.rs`).

mod absence;
mod callers;
mod handover;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{self, AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::queues::{Notifier, wait_any};
use crate::verbs::VerbsError;

use super::{Engine, EngineCounters, thread};
use absence::Absence;
use callers::Callers;
use handover::Handover;

/// How the thread of a [`SharedEngine`] polls.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// The CPU to pin it to, as in [`ThreadOptions::cpu`](super::ThreadOptions::cpu). Default: `None`.
    pub cpu: Option<usize>,
    /// Idle polls before the thread sleeps. Default: 100.
    pub spin_polls: u32,
    /// For how long the thread stays away while callers come, before it looks whether they still do.
    /// Default: 1 ms.
    pub step_back: Duration,
    /// The same for callers that have polled for long without a pause. Default: 8 ms.
    pub longest_step_back: Duration,
    /// The longest sleep on a port without a file descriptor. Default: 200 us.
    pub max_sleep: Duration,
}

impl Default for SharedOptions {
    fn default() -> Self {
        // The thread has a CPU to itself seldom, so it spins for some tens of microseconds only. On a virtual
        // machine, a thousand looks in a second cost callers on the same CPU 6 % of their bandwidth.
        Self {
            cpu: None,
            spin_polls: 100,
            step_back: Duration::from_millis(1),
            longest_step_back: Duration::from_millis(8),
            max_sleep: Duration::from_micros(200),
        }
    }
}

/// How long a program may take to answer what the thread receives for it, before that is acknowledged without
/// an answer. A program that waits for memory to change answers within some hundred nanoseconds. An answer
/// that carries the acknowledgement keeps both programs polling: `ib_write_lat` then needs no thread.
const PATIENCE: Duration = Duration::from_micros(2);

/// Empty turns of a caller before it yields the CPU between turns: the peer may need it to answer.
const TURNS_BEFORE_YIELD: u64 = 64;

/// An engine that its own thread and callers poll. Dropping it stops the thread and resets the connections of
/// the engine.
pub struct SharedEngine {
    inner: Arc<Turned>,
    thread: Option<JoinHandle<()>>,
}

/// What callers and the thread share.
struct Turned {
    /// `None` once it is stopped.
    engine: Mutex<Option<Engine>>,
    handle: Arc<crate::verbs::EngineHandle>,
    /// Called after each poll, by the thread that polled, while it holds the lock of the engine.
    after_poll: Box<dyn Fn() + Send + Sync>,
    /// Turns of callers.
    turns: AtomicU64,
    /// Turns of callers since the last one that had something to do.
    empty_turns: AtomicU64,
    /// The thread sleeps, or is about to. Written with the lock of the engine held.
    asleep: AtomicBool,
    handover: Handover,
    /// Ends the wait of the thread.
    call: Notifier,
    stop: AtomicBool,
    /// See [`SharedEngine::limit_sleep`]; in microseconds.
    longest_sleep: AtomicU64,
    /// Of an engine without a thread.
    callers: Option<Callers>,
}

impl SharedEngine {
    /// Starts the thread. `after_poll` is called after each poll, with the engine locked: events of one
    /// engine are handled in their order. It must not call the engine.
    ///
    /// # Errors
    /// [`VerbsError::System`] without a thread or a descriptor.
    pub fn spawn(
        engine: Engine,
        options: SharedOptions,
        after_poll: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        // The thread waits without the lock, so it needs a descriptor that outlives any state of the port.
        let port = engine.port_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let inner = Arc::new(Turned::new(engine, after_poll, None)?);
        let of_thread = Arc::clone(&inner);
        let run = move || {
            if let Some(cpu) = options.cpu {
                thread::pin(cpu);
            }
            of_thread.serve(options, port.as_ref(), None);
        };
        let thread = std::thread::Builder::new()
            .name(format!("iwarp-engine-{}", inner.handle.index()))
            .spawn(run)
            .map_err(VerbsError::System)?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// An engine without a thread. It is polled by [`turn`](Self::turn), and while a caller is in
    /// [`wait_readable`](Self::wait_readable): nothing moves when nobody calls.
    ///
    /// # Errors
    /// [`VerbsError::System`] without a descriptor.
    pub fn without_thread(
        engine: Engine,
        options: SharedOptions,
        after_poll: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        let port = engine.port_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let callers = Callers::new(options, port)?;
        Ok(Self { inner: Arc::new(Turned::new(engine, after_poll, Some(callers))?), thread: None })
    }

    /// Whether it has a thread of its own.
    pub fn has_thread(&self) -> bool {
        self.inner.callers.is_none()
    }

    /// Says that the caller is about to wait until `fd` is readable. If the engine has a thread, this is
    /// [`hand_over`](Self::hand_over), and returns at once. Otherwise the caller takes the place of the
    /// thread, and returns when `fd` is readable or the engine is stopped.
    ///
    /// # Errors
    /// The system's, for a descriptor that is closed.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match &self.inner.callers {
            Some(callers) => self.inner.serve_until_readable(callers, fd),
            None => {
                self.hand_over();
                Ok(())
            }
        }
    }

    /// Polls the engine once, if nobody else does now. Returns whether there was anything to do.
    ///
    /// Call it where a program waits in a loop. Turns that find nothing yield the CPU now and then.
    pub fn turn(&self) -> bool {
        self.inner.turn()
    }

    /// Polls the engine once, as soon as nobody else does. What was asked of it before is done then, and its
    /// frames have left: call it where the process may end next.
    pub fn poll(&self) {
        self.inner.poll_now();
    }

    /// Sends what was posted, if the engine is awake and nobody polls it now. Otherwise it leaves with a
    /// poll.
    ///
    /// Call it after a post to a queue pair that has nothing else to send. Requests that are posted one after
    /// the other leave together with the next poll, which costs less.
    pub fn send_posted(&self) {
        if let Ok(mut engine) = self.inner.engine.try_lock()
            && !self.inner.asleep.load(Ordering::Relaxed)
            && let Some(engine) = engine.as_mut()
        {
            engine.send_posted();
        }
    }

    /// Says that callers will wait in another way from now on: for a descriptor, or not at all. The thread
    /// takes over at once.
    pub fn hand_over(&self) {
        if self.inner.handover.give() {
            self.inner.call.notify();
        }
    }

    /// Looks at the engine. Waits until nobody polls it. `None` once it is stopped.
    pub fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        self.inner.engine().as_mut().map(look)
    }

    /// Polls at least once in `longest`, so that the work after a poll is done even if nothing happens;
    /// `None`: the engine alone decides, as in the beginning.
    pub fn limit_sleep(&self, longest: Option<Duration>) {
        let micros = longest.map_or(u64::MAX, |longest| longest.as_micros() as u64);
        self.inner.longest_sleep.store(micros, Ordering::SeqCst);
        if longest.is_some() {
            self.inner.call.notify();
        }
    }

    /// Counters of all layers; zeros once it is stopped.
    pub fn counters(&self) -> EngineCounters {
        self.with(|engine| engine.counters()).unwrap_or_default()
    }

    /// Stops the engine, which resets its connections, without waiting for its thread: for the end of a
    /// process. Does nothing while another thread has polled for all of `limit`.
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
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            handle: Arc::clone(engine.handle()),
            engine: Mutex::new(Some(engine)),
            after_poll,
            turns: AtomicU64::new(0),
            empty_turns: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            handover: Handover::new(),
            call: Notifier::new()?,
            stop: AtomicBool::new(false),
            longest_sleep: AtomicU64::new(u64::MAX),
            callers,
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
        // Turns are counted by loads and stores, since locked instructions would be a good part of an empty
        // turn: if two threads count at the same time, one count is lost, which does no harm.
        let next = |count: &AtomicU64| {
            let counted = count.load(Ordering::Relaxed).wrapping_add(1);
            count.store(counted, Ordering::Relaxed);
            counted
        };
        next(&self.turns);
        let busy = match self.engine.try_lock() {
            Ok(engine) => self.poll_awake(engine),
            Err(_) => false,
        };
        if busy {
            self.empty_turns.store(0, Ordering::Relaxed);
        } else if next(&self.empty_turns).is_multiple_of(TURNS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
        busy
    }

    /// It is no turn: the thread does not step back for it.
    fn poll_now(&self) {
        self.poll_awake(self.engine());
    }

    /// Polls for a caller.
    #[inline]
    fn poll_awake(&self, mut engine: MutexGuard<'_, Option<Engine>>) -> bool {
        if self.asleep.load(Ordering::Relaxed) {
            self.wake(engine.as_mut());
        }
        self.poll(engine.as_mut())
    }

    fn poll(&self, engine: Option<&mut Engine>) -> bool {
        let busy = engine.is_some_and(Engine::poll);
        (self.after_poll)();
        busy
    }

    /// The caller polls, so the engine is awake: nobody needs to write to a descriptor for it. Its thread
    /// waits for descriptors that nobody writes to from now on, and has to step back.
    #[cold]
    fn wake(&self, engine: Option<&mut Engine>) {
        self.asleep.store(false, Ordering::Relaxed);
        self.handover.withdraw();
        if let Some(engine) = engine {
            engine.end_sleep();
        }
        self.call.notify();
    }

    // ---- the thread, or a caller in its place ----

    /// Polls until the engine is stopped or `until` is readable.
    fn serve(&self, options: SharedOptions, port: Option<&OwnedFd>, until: Option<BorrowedFd<'_>>) {
        let mut turns = self.turns.load(Ordering::Relaxed);
        let mut absence = Absence::new(options.step_back, options.longest_step_back);
        let mut idle: u32 = 0;
        while !self.stop.load(Ordering::SeqCst) && !until.is_some_and(callers::is_readable) {
            let now = self.turns.load(Ordering::Relaxed);
            let new_turns = now.wrapping_sub(std::mem::replace(&mut turns, now));
            if new_turns != 0 && !self.handover.take() {
                self.step_back(absence.next(new_turns), until);
                idle = 0;
                continue;
            }
            absence.end();
            let mut engine = self.engine();
            let await_answers = |engine: &mut Option<Engine>, patience| {
                engine.as_mut().is_some_and(|engine| engine.await_answers(patience))
            };
            await_answers(&mut engine, PATIENCE);
            if self.poll(engine.as_mut()) {
                idle = 0;
            } else {
                idle = idle.saturating_add(1);
            }
            let awaits = await_answers(&mut engine, Duration::ZERO);
            if awaits {
                // The program may need this CPU to answer.
                drop(engine);
                std::thread::yield_now();
            } else if idle > options.spin_polls {
                let limit = engine.as_mut().and_then(|engine| engine.begin_sleep(options.max_sleep));
                self.asleep.store(limit.is_some(), Ordering::Relaxed);
                drop(engine);
                if let Some(limit) = limit {
                    let longest = Duration::from_micros(self.longest_sleep.load(Ordering::SeqCst));
                    self.sleep(limit.min(longest), port, until);
                }
            } else {
                drop(engine);
                std::hint::spin_loop();
            }
        }
    }

    /// Waits while callers poll, until one hands over or `limit` passes.
    fn step_back(&self, limit: Duration, until: Option<BorrowedFd<'_>>) {
        if self.handover.step_back() {
            // A failed wait ends at once: the thread polls beside the callers.
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

    /// Sleeps until a doorbell, a frame, a caller or `limit`.
    fn sleep(&self, limit: Duration, port: Option<&OwnedFd>, until: Option<BorrowedFd<'_>>) {
        let mut fds = arrayvec::ArrayVec::<PollFd<'_>, 4>::new();
        fds.push(PollFd::from_borrowed_fd(self.handle.doorbells().waker(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN));
        fds.extend(port.map(|port| PollFd::new(port, PollFlags::IN)));
        fds.extend(until.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let waited = wait_any(&mut fds, Some(limit));
        debug_assert!(waited.is_ok(), "the engine's descriptors stay open");
        let mut engine = self.engine();
        if self.asleep.swap(false, Ordering::Relaxed)
            && let Some(engine) = engine.as_mut()
        {
            engine.end_sleep();
        }
        let taken = self.call.take();
        debug_assert!(taken.is_ok(), "a private descriptor stays open");
    }
}
