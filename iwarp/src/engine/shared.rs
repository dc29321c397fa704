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

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::queues::{Notifier, wait_any};
use crate::verbs::VerbsError;

use super::{Engine, EngineCounters, thread};

/// How the thread of a [`SharedEngine`] polls.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// The CPU to pin it to, as in [`ThreadOptions::cpu`](super::ThreadOptions::cpu).
    pub cpu: Option<usize>,
    /// Idle polls before the thread sleeps.
    pub spin_polls: u32,
    /// How often the thread looks whether callers still come.
    pub step_back: Duration,
    /// The longest sleep on a port without a file descriptor.
    pub max_sleep: Duration,
}

impl Default for SharedOptions {
    fn default() -> Self {
        // The thread has a CPU to itself seldom, so it spins for some tens of microseconds only. A thousand
        // looks in a second cost less than half a percent of a CPU; without callers, work waits no longer.
        Self {
            cpu: None,
            spin_polls: 100,
            step_back: Duration::from_millis(1),
            max_sleep: Duration::from_micros(200),
        }
    }
}

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
    shared: Arc<crate::verbs::EngineShared>,
    /// Called after each poll, by the thread that polled, while it holds the lock of the engine.
    after_poll: Box<dyn Fn() + Send + Sync>,
    /// Turns of callers.
    turns: AtomicU64,
    /// Turns of callers since the last one that had something to do.
    empty_turns: AtomicU64,
    /// The thread sleeps, or is about to. Written with the lock of the engine held.
    asleep: AtomicBool,
    /// Callers have said that they will not come.
    handed_over: AtomicBool,
    /// The thread waits here while callers come.
    stepped_back: AtomicBool,
    call: Notifier,
    stop: AtomicBool,
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
        let shared = Arc::clone(engine.shared());
        // The thread waits without the lock, so it needs a descriptor that outlives any state of the port.
        let port = engine.port_fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let inner = Arc::new(Turned {
            engine: Mutex::new(Some(engine)),
            shared,
            after_poll,
            turns: AtomicU64::new(0),
            empty_turns: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            stepped_back: AtomicBool::new(false),
            call: Notifier::new()?,
            stop: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name(format!("iwarp-engine-{}", inner.shared.index()))
            .spawn(move || of_thread.run(options, port))
            .map_err(VerbsError::System)?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Polls the engine once, if nobody else does now. Returns whether there was anything to do.
    ///
    /// Call it where a program waits in a loop. Turns that find nothing yield the CPU now and then.
    pub fn turn(&self) -> bool {
        self.inner.turn()
    }

    /// Says that callers will wait in another way from now on: for a descriptor, or not at all. The thread
    /// takes over at once.
    pub fn hand_over(&self) {
        let inner = &*self.inner;
        inner.handed_over.store(true, Ordering::SeqCst);
        if inner.stepped_back.load(Ordering::SeqCst) {
            inner.call.notify();
        }
    }

    /// Looks at the engine. Waits until nobody polls it. `None` once it is stopped.
    pub fn with<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        self.inner.engine().as_mut().map(look)
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
    fn engine(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().expect("no holder of this lock panics")
    }

    fn halt(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.call.notify();
        self.shared.doorbells().interrupt();
    }

    fn turn(&self) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let busy = match self.engine.try_lock() {
            Ok(mut engine) => {
                if self.asleep.load(Ordering::Relaxed) {
                    self.wake(engine.as_mut());
                }
                self.poll(engine.as_mut())
            }
            Err(_) => false,
        };
        if busy {
            self.empty_turns.store(0, Ordering::Relaxed);
        } else if self.empty_turns.fetch_add(1, Ordering::Relaxed) % TURNS_BEFORE_YIELD
            == TURNS_BEFORE_YIELD - 1
        {
            std::thread::yield_now();
        }
        busy
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
        self.handed_over.store(false, Ordering::SeqCst);
        if let Some(engine) = engine {
            engine.end_sleep();
        }
        self.call.notify();
    }

    // ---- the thread ----

    fn run(&self, options: SharedOptions, port: Option<OwnedFd>) {
        if let Some(cpu) = options.cpu {
            thread::pin(cpu);
        }
        let mut turns = self.turns.load(Ordering::Relaxed);
        let mut idle: u32 = 0;
        while !self.stop.load(Ordering::SeqCst) {
            let now = self.turns.load(Ordering::Relaxed);
            let callers_come = std::mem::replace(&mut turns, now) != now;
            if callers_come && !self.handed_over.swap(false, Ordering::SeqCst) {
                self.step_back(options.step_back);
                idle = 0;
                continue;
            }
            let mut engine = self.engine();
            if self.poll(engine.as_mut()) {
                idle = 0;
            } else {
                idle = idle.saturating_add(1);
            }
            if idle > options.spin_polls {
                let limit = engine.as_mut().and_then(|engine| engine.begin_sleep(options.max_sleep));
                self.asleep.store(limit.is_some(), Ordering::Relaxed);
                drop(engine);
                if let Some(limit) = limit {
                    self.sleep(limit, port.as_ref());
                }
            } else {
                drop(engine);
                std::hint::spin_loop();
            }
        }
    }

    /// Waits while callers poll, until one hands over or `limit` passes.
    fn step_back(&self, limit: Duration) {
        self.stepped_back.store(true, Ordering::SeqCst);
        if !self.handed_over.load(Ordering::SeqCst) {
            // A failed wait ends at once: the thread polls beside the callers.
            let waited = self.call.wait(Some(limit));
            debug_assert!(waited.is_ok(), "a private descriptor stays open");
        }
        self.stepped_back.store(false, Ordering::SeqCst);
        let taken = self.call.take();
        debug_assert!(taken.is_ok(), "a private descriptor stays open");
    }

    /// Sleeps until a doorbell, a frame, a caller or `limit`.
    fn sleep(&self, limit: Duration, port: Option<&OwnedFd>) {
        let mut fds = arrayvec::ArrayVec::<PollFd<'_>, 3>::new();
        fds.push(PollFd::from_borrowed_fd(self.shared.doorbells().waker(), PollFlags::IN));
        fds.push(PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN));
        if let Some(port) = port {
            fds.push(PollFd::new(port, PollFlags::IN));
        }
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
