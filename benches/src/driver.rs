//! Who polls the engine: this thread, between looks at its queues, or a thread of the engine's own
//! (`--events`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iwarp::engine::{Engine, EngineCounters, EngineThread, ThreadOptions};
use iwarp::verbs::{CompletionChannel, CompletionQueue};

use crate::errors::Error;

/// How eagerly this thread looks again when nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Spins while a test runs; gives the core away now and then, every time where it is
    /// [shared](Driver::share_cpu).
    Measuring,
    /// Yields, then sleeps: waiting for somebody who may never come.
    Waiting,
}

/// Idle polls that [`Manner::Measuring`] spins before it yields.
const SPIN_POLLS: u32 = 2_000;

/// Idle polls that [`Manner::Waiting`] yields before it sleeps.
const YIELD_POLLS: u32 = 200;

/// Longest sleep, when nothing says when frames come.
const NAP: Duration = Duration::from_micros(200);

/// Longest wait for a completion event before looking at everything else.
const EVENT_WAIT: Duration = Duration::from_millis(10);

/// Set by Ctrl-C and SIGTERM; looked at in every poll.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that SIGINT and SIGTERM set. A second signal ends the process at once.
    ///
    /// # Errors
    /// What the system says.
    pub fn on_signals() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Sets it: the other end of a local test has failed.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was set.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

enum Mover {
    Inline(Box<Engine>),
    Thread(EngineThread),
}

/// Polls the engine, or sleeps while another thread does.
pub struct Driver {
    mover: Mover,
    interrupt: Interrupt,
    manner: Manner,
    spin_polls: u32,
    idle_polls: u32,
    was_idle: bool,
    channel: Option<CompletionChannel>,
    armed: bool,
    queues: Vec<CompletionQueue>,
}

impl Driver {
    /// This thread polls `engine`.
    pub fn inline(engine: Engine, interrupt: Interrupt) -> Self {
        Self::new(Mover::Inline(Box::new(engine)), None, interrupt)
    }

    /// A thread polls `engine`; this one sleeps on `channel` between completions.
    ///
    /// # Errors
    /// [`Error::Verbs`] when no thread can be made.
    pub fn threaded(
        engine: Engine,
        channel: CompletionChannel,
        cpu: Option<usize>,
        interrupt: Interrupt,
    ) -> Result<Self, Error> {
        let thread = engine.spawn(ThreadOptions { cpu, ..Default::default() })?;
        Ok(Self::new(Mover::Thread(thread), Some(channel), interrupt))
    }

    fn new(mover: Mover, channel: Option<CompletionChannel>, interrupt: Interrupt) -> Self {
        Self {
            mover,
            interrupt,
            manner: Manner::Waiting,
            spin_polls: SPIN_POLLS,
            idle_polls: 0,
            was_idle: false,
            channel,
            armed: false,
            queues: Vec::new(),
        }
    }

    /// The channel that completion queues should announce themselves on, if any.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// Makes completions on `queue` end this thread's sleep.
    pub fn watch(&mut self, queue: &CompletionQueue) {
        if self.channel.is_some() {
            self.queues.push(queue.clone());
        }
    }

    /// Whether idle polls sleep.
    pub fn sleeps(&self) -> bool {
        self.channel.is_some() || self.manner == Manner::Waiting
    }

    /// Another end runs on this thread's CPU: an idle poll lets it.
    pub fn share_cpu(&mut self) {
        self.spin_polls = 0;
    }

    /// How eagerly to look again.
    pub fn set_manner(&mut self, manner: Manner) {
        (self.manner, self.idle_polls) = (manner, 0);
    }

    /// One poll. Returns whether the engine did anything; with a thread, always false.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    #[inline]
    pub fn poll(&mut self) -> Result<bool, Error> {
        if self.interrupt.is_raised() {
            return Err(Error::Interrupted);
        }
        dp::profile::mark(std::mem::take(&mut self.was_idle));
        Ok(match &mut self.mover {
            Mover::Inline(engine) => engine.poll(),
            Mover::Thread(_) => false,
        })
    }

    /// Called when the caller found something: start spinning anew.
    #[inline]
    pub fn busy(&mut self) {
        (self.idle_polls, self.armed) = (0, false);
    }

    /// Called when neither the engine nor the caller found anything.
    ///
    /// # Errors
    /// What the system says of the completion channel.
    pub fn idle(&mut self) -> Result<(), Error> {
        self.idle_polls = self.idle_polls.saturating_add(1);
        self.was_idle = true;
        if let Some(channel) = &self.channel {
            // Arm, let the caller look once more, and only then sleep: nothing is missed in between.
            if self.armed {
                channel.wait(Some(EVENT_WAIT))?;
            } else {
                self.queues.iter().try_for_each(|queue| queue.req_notify(false))?;
            }
            self.armed = !self.armed;
            return Ok(());
        }
        match self.manner {
            Manner::Measuring if self.idle_polls <= self.spin_polls => std::hint::spin_loop(),
            Manner::Waiting if self.idle_polls > YIELD_POLLS => std::thread::sleep(NAP),
            Manner::Measuring | Manner::Waiting => std::thread::yield_now(),
        }
        Ok(())
    }

    /// Counters of all layers.
    pub fn counters(&self) -> EngineCounters {
        match &self.mover {
            Mover::Inline(engine) => engine.counters(),
            Mover::Thread(thread) => thread.counters(),
        }
    }
}
