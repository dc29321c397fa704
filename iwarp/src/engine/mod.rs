//! The engine: what moves the data. One port queue, one stack, one thread.
//!
//! | file | what |
//! |---|---|
//! | `core.rs`, `core/` | one turn: frames in, events to connections, queue pairs send, frames out |
//! | `connection.rs`, `connection/` | one connection from SYN to the last FIN: startup, stream, teardown |
//! | `carrier.rs` | when the port is asked for its link |
//! | `tx_scheduler.rs` | whose turn it is to send |
//! | `listening.rs` | a port that is listened on |
//! | `rate.rs` | how many connections an address may begin, and fail, in a second |
//! | `thread.rs` | an engine in a thread of its own |
//!
//! The core of it reads no clock and starts no thread: [`Engine::turn`] is given the time.

use std::sync::Arc;
use std::time::Duration;

use dp::{Clock, Port};
use tcp_lite::{Instant, StackUsage};

use crate::memory::Participant;
use crate::queues::Notifier;
use crate::verbs::{Context, EngineShared, VerbsError};

mod carrier;
mod config;
mod connection;
mod core;
mod counters;
mod listening;
mod rate;
mod thread;
mod tx_scheduler;

pub use config::EngineConfig;
pub use counters::EngineCounters;
pub use thread::{EngineThread, ThreadOptions};

use self::core::Core;

/// Moves data between one port and the queue pairs of one context.
///
/// Either call [`poll`](Self::poll) from your own loop (lowest latency), or hand it to a thread with
/// [`spawn`](Self::spawn). Nothing is sent, received, acknowledged or retransmitted while nobody does.
/// Dropping it resets its connections; their work is flushed.
pub struct Engine {
    context: Context,
    participant: Participant,
    clock: Clock,
    core: Core,
}

impl Engine {
    /// An engine on `port` for `context`.
    ///
    /// # Errors
    /// [`VerbsError::System`] when no descriptor is left.
    pub fn new(context: &Context, port: Box<dyn Port>, config: EngineConfig) -> Result<Self, VerbsError> {
        let waker = Notifier::new()?;
        let connections = config.stack.limits.connections;
        let shared = context.shared.add_engine(|index| EngineShared::new(index, connections, waker));
        Ok(Self {
            context: context.clone(),
            participant: context.shared.resources.memory.join(),
            clock: Clock::new(),
            core: Core::new(shared, port, config, context.shared.resources.events.clone()),
        })
    }

    /// One turn at time `now`: receives a burst, runs timers, lets queue pairs send. Returns whether there
    /// was anything to do. Times must not go backwards.
    pub fn turn(&mut self, now: Instant) -> bool {
        let turn = self.participant.enter();
        self.core.turn(now, &turn)
    }

    /// A turn at the time of the engine's own clock: for callers without one.
    pub fn poll(&mut self) -> bool {
        self.turn(self.now())
    }

    /// When [`turn`](Self::turn) has something to do next, if nothing comes from outside before; `None`:
    /// never.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        self.core.next_deadline(now)
    }

    /// Sleeps until there is something to do: a frame (where the port has a descriptor), a posted request, a
    /// deadline; at most `limit` where the port has no descriptor.
    pub fn sleep(&mut self, limit: Duration) {
        let now = self.now();
        // What is due already is no time from now: an `Instant` less a later one would be the distance.
        let until = |at: Instant| Duration::from_micros((at.max(now) - now).total_micros());
        let deadline = self.next_deadline(now).map(until);
        let port = self.core.port().poll_fd();
        let limit = match deadline {
            Some(deadline) => deadline.min(limit),
            // A day stands for ever: nothing but the descriptor or a doorbell ends this sleep.
            None if port.is_some() => Duration::from_secs(86_400),
            None => limit,
        };
        thread::sleep(self.core.shared(), port, limit);
    }

    /// Counters of all layers.
    pub fn counters(&self) -> EngineCounters {
        self.core.counters()
    }

    /// What its stack holds now of what [`Limits`](tcp_lite::Limits) bound.
    pub fn stack_usage(&self) -> StackUsage {
        self.core.stack().usage()
    }

    /// Whether its stack is as it must be between any two calls; for tests. See
    /// [`tcp_lite::Stack::check_invariants`].
    ///
    /// # Errors
    /// The first invariant that does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.core.stack().check_invariants()
    }

    /// What the port is.
    pub fn port_info(&self) -> &dp::PortInfo {
        self.core.port().info()
    }

    /// The context it serves.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs it in a thread of its own until the handle is dropped or stopped.
    ///
    /// # Errors
    /// [`VerbsError::System`] when no thread can be made.
    pub fn spawn(self, options: ThreadOptions) -> Result<EngineThread, VerbsError> {
        EngineThread::spawn(self, options)
    }

    fn now(&self) -> Instant {
        // Microseconds since the clock was made: far below 2^63.
        Instant::from_micros(self.clock.now_us() as i64)
    }

    fn shared(&self) -> &Arc<EngineShared> {
        self.core.shared()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let now = self.now();
        self.core.shut_down(now);
    }
}
