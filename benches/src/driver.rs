//! Polls the engine. Either this thread polls the engine between polls of its queues, or a thread of the
//! engine does (`--events`).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use iwarp::engine::{Engine, EngineCounters, EngineThread, ThreadOptions};
use iwarp::verbs::{CompletionChannel, CompletionQueue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::errors::Error;
pub use crate::interrupt::Interrupt;

/// How this thread waits after a poll in which nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// The thread spins while a test runs. After 2000 idle polls in a row, the thread yields the core after
    /// each idle poll. If the core is [shared](Driver::share_cpu), the first idle poll already yields.
    Measuring,
    /// The thread yields at first and then sleeps, since the peer may never connect.
    Waiting,
}

/// Number of idle polls in a row after which [`WaitMode::Measuring`] yields instead of spinning.
const SPIN_POLLS: u32 = 2_000;

/// Number of idle polls in a row after which [`WaitMode::Waiting`] sleeps instead of yielding.
const YIELD_POLLS: u32 = 200;

/// Duration of each sleep of [`WaitMode::Waiting`]. Arriving frames do not end such a sleep.
const NAP: Duration = Duration::from_micros(200);

/// Maximum time for which the end of a run waits until a full port accepts frames.
const LONGEST_GOODBYE: Duration = Duration::from_secs(1);

/// If the engine's next deadline is nearer than this many microseconds, frames probably wait for a full port:
/// the engine tries a full port again within a millisecond.
const FULL_PORT_US: i64 = 2_000;

/// Maximum wait for an event before the thread checks for an interrupt and for a silent peer.
const EVENT_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

enum Poller {
    Inline(Box<Engine>),
    Thread(EngineThread),
}

/// Polls the engine, or sleeps while another thread polls the engine.
pub struct Driver {
    mover: Poller,
    interrupt: Interrupt,
    /// True during the orderly end of a run that a signal has interrupted.
    concluding: bool,
    wait_mode: WaitMode,
    spin_polls: u32,
    idle_polls: u32,
    was_idle: bool,
    channel: Option<CompletionChannel>,
    /// A descriptor that is readable while events of connections wait.
    connections: Option<OwnedFd>,
    armed: bool,
    queues: Vec<CompletionQueue>,
}

impl Driver {
    /// Makes a driver that polls `engine` on this thread.
    pub fn inline(engine: Engine, interrupt: Interrupt) -> Self {
        Self::new(Poller::Inline(Box::new(engine)), None, interrupt)
    }

    /// Makes a driver whose engine has its own thread. The calling thread sleeps on `channel` between
    /// completions.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if no thread can be created.
    pub fn threaded(
        engine: Engine,
        channel: CompletionChannel,
        cpu: Option<usize>,
        interrupt: Interrupt,
    ) -> Result<Self, Error> {
        let thread = engine.spawn(ThreadOptions { cpu, ..Default::default() })?;
        Ok(Self::new(Poller::Thread(thread), Some(channel), interrupt))
    }

    fn new(mover: Poller, channel: Option<CompletionChannel>, interrupt: Interrupt) -> Self {
        Self {
            mover,
            interrupt,
            concluding: false,
            wait_mode: WaitMode::Waiting,
            spin_polls: SPIN_POLLS,
            idle_polls: 0,
            was_idle: false,
            channel,
            connections: None,
            armed: false,
            queues: Vec::new(),
        }
    }

    /// The channel for the completion events of completion queues, or `None` if this thread polls.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Makes completions on `queue` wake this thread, if the engine has its own thread.
    pub fn watch(&mut self, queue: &CompletionQueue) {
        if self.channel.is_some() {
            self.queues.push(queue.clone());
        }
    }

    /// Makes events of connections wake this thread, if the engine has its own thread. The descriptor
    /// `channel` is readable while such events wait.
    ///
    /// # Errors
    /// Returns the error of a system call that failed.
    pub fn watch_connections(&mut self, channel: BorrowedFd<'_>) -> Result<(), Error> {
        if self.channel.is_some() {
            self.connections = Some(channel.try_clone_to_owned()?);
        }
        Ok(())
    }

    /// Whether this thread sleeps after idle polls.
    pub fn sleeps(&self) -> bool {
        self.channel.is_some() || self.wait_mode == WaitMode::Waiting
    }

    /// Makes each idle poll yield the core, since the other side runs on the same CPU.
    pub fn share_cpu(&mut self) {
        self.spin_polls = 0;
    }

    /// Sets how this thread waits.
    pub fn set_wait_mode(&mut self, wait_mode: WaitMode) {
        (self.wait_mode, self.idle_polls) = (wait_mode, 0);
    }

    /// Polls once. Returns whether the engine did anything. If the engine has its own thread, always returns
    /// false.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the run is interrupted, unless its orderly end has begun.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, Error> {
        if self.interrupt.is_raised() && !(self.concluding && self.interrupt.is_signal()) {
            return Err(Error::Interrupted);
        }
        dp::profile::mark(std::mem::take(&mut self.was_idle));
        Ok(match &mut self.mover {
            Poller::Inline(engine) => engine.poll(),
            Poller::Thread(_) => false,
        })
    }

    /// Begins the orderly end of a run that a signal has interrupted, during which polls continue. If the
    /// interrupt has another cause than a signal, does nothing and returns `false`.
    pub fn conclude(&mut self) -> bool {
        self.concluding = self.interrupt.is_signal();
        self.concluding
    }

    /// Whether a signal has interrupted the run, and the run ends in an orderly way.
    pub fn is_concluding(&self) -> bool {
        self.concluding
    }

    /// Returns `Ok` unless a signal has interrupted the run and the run ends in an orderly way.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if a signal has interrupted the run.
    pub fn interrupted(&self) -> Result<(), Error> {
        if self.concluding { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Polls for `time`, but at most for a second, even after an interrupt, so that the peer learns of
    /// dropped connections. If frames then still wait for a full port, polls until they are sent or the
    /// second is over. If the engine has its own thread, this function only waits.
    pub fn linger(&mut self, time: Duration) {
        let begun = Instant::now();
        loop {
            let mut has_to_send = false;
            if let Poller::Inline(engine) = &mut self.mover {
                engine.poll();
                let now = engine.now();
                let next = engine.next_deadline(now).map(|at| at.total_micros() - now.total_micros());
                has_to_send = next.is_some_and(|us| us < FULL_PORT_US);
            }
            let passed = begun.elapsed();
            if passed >= LONGEST_GOODBYE || passed >= time && !has_to_send {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Restarts the count of idle polls. Call this function after a poll if the caller found work.
    #[inline]
    pub fn busy(&mut self) {
        (self.idle_polls, self.armed) = (0, false);
    }

    /// Spins, yields or sleeps. Call this function after a poll if the engine and the caller found no work.
    ///
    /// # Errors
    /// Returns an error of a completion queue, of the completion channel or of a system call.
    pub fn idle(&mut self) -> Result<(), Error> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        self.was_idle = true;
        if let Some(channel) = &self.channel {
            // The first idle call arms the channel, then the caller polls once more, and the next idle call
            // sleeps. With this order no completion is missed.
            if self.armed {
                let mut fds = vec![PollFd::new(channel, PollFlags::IN)];
                fds.extend(self.connections.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
                match poll(&mut fds, Some(&EVENT_WAIT)) {
                    Ok(_) | Err(Errno::INTR) => channel.wait(Some(Duration::ZERO))?,
                    Err(error) => return Err(std::io::Error::from(error).into()),
                };
            } else {
                self.queues.iter().try_for_each(|queue| queue.req_notify(false))?;
            }
            self.armed = !self.armed;
            return Ok(());
        }
        match self.wait_mode {
            WaitMode::Measuring if self.idle_polls <= self.spin_polls => std::hint::spin_loop(),
            WaitMode::Waiting if self.idle_polls > YIELD_POLLS => std::thread::sleep(NAP),
            WaitMode::Measuring | WaitMode::Waiting => std::thread::yield_now(),
        }
        Ok(())
    }

    /// Counters of all layers.
    pub fn counters(&self) -> EngineCounters {
        match &self.mover {
            Poller::Inline(engine) => engine.counters(),
            Poller::Thread(thread) => thread.counters(),
        }
    }
}
