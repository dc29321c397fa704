//! The engine: what moves the data. One port queue, one stack, one thread.

use std::time::Duration;

use dp::Port;
use tcp_lite::{Instant, StackConfig, StackCounters};

use crate::verbs::{Context, VerbsError};

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Addresses, limits and TCP. `mac`, `mtu` and `offloads` are taken from the port by [`EngineConfig::new`].
    pub stack: StackConfig,
    /// Octets of payload one queue pair may hand to TCP in a turn.
    pub turn_octets: usize,
    /// How long a Terminate or a graceful close may take before RST.
    pub close_timeout: Duration,
}

impl EngineConfig {
    /// Defaults for `port` with the addresses `addresses` (`10.0.0.1/24`), and OS entropy.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for an address that cannot be read or too many, [`VerbsError::System`] without entropy.
    pub fn new(port: &dyn Port, addresses: &[&str]) -> Result<Self, VerbsError> {
        let _ = (port, addresses);
        todo!()
    }
}

/// Counters of an engine, never reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineCounters {
    /// Of the port.
    pub port: dp::PortCounters,
    /// Of the stack.
    pub stack: StackCounters,
    /// FPDUs received that passed all of MPA's checks.
    pub rx_fpdus: u64,
    /// FPDUs placed ahead of the in-order frontier.
    pub rx_fpdus_early: u64,
    /// FPDUs sent.
    pub tx_fpdus: u64,
    /// Payload octets placed into registered memory.
    pub rx_placed_octets: u64,
    /// Payload octets fetched from registered memory.
    pub tx_fetched_octets: u64,
    /// Terminates sent.
    pub tx_terminates: u64,
    /// Terminates received.
    pub rx_terminates: u64,
    /// Turns in which there was something to do.
    pub busy_turns: u64,
    /// Cycles spent in those turns.
    pub busy_cycles: u64,
    /// All turns.
    pub turns: u64,
}

/// Moves data between one port and the queue pairs of one context.
///
/// Either call [`turn`](Self::turn) from your own loop (lowest latency), or hand it to a thread with
/// [`spawn`](Self::spawn). Nothing is sent, received, acknowledged or retransmitted while nobody does.
pub struct Engine {}

impl Engine {
    /// An engine on `port` for `context`.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(context: &Context, port: Box<dyn Port>, config: EngineConfig) -> Result<Self, VerbsError> {
        let _ = (context, port, config);
        todo!()
    }

    /// One turn at time `now`: receives a burst, runs timers, lets queue pairs send. Returns whether there was
    /// anything to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        let _ = now;
        todo!()
    }

    /// A turn at the time of the engine's own clock: for callers without one.
    pub fn poll(&mut self) -> bool {
        todo!()
    }

    /// When [`turn`](Self::turn) has something to do by itself next.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let _ = now;
        todo!()
    }

    /// Counters of all layers.
    pub fn counters(&self) -> EngineCounters {
        todo!()
    }

    /// Runs it in a thread of its own until the handle is dropped or stopped.
    ///
    /// # Errors
    /// [`VerbsError::System`] when no thread can be made.
    pub fn spawn(self, options: ThreadOptions) -> Result<EngineThread, VerbsError> {
        let _ = options;
        todo!()
    }
}

/// How an engine thread behaves.
#[derive(Clone, Copy, Debug)]
pub struct ThreadOptions {
    /// CPU to pin it to.
    pub cpu: Option<usize>,
    /// Idle turns before it yields instead of spinning; `u32::MAX` spins for ever.
    pub spin_turns: u32,
    /// Idle turns before it sleeps until the next deadline, a doorbell or (where the port has one) its descriptor.
    pub yield_turns: u32,
    /// Longest sleep for a port without a descriptor.
    pub max_sleep: Duration,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        Self { cpu: None, spin_turns: 2_000, yield_turns: 200, max_sleep: Duration::from_micros(200) }
    }
}

/// A running engine. Dropping it stops the thread.
pub struct EngineThread {}

impl EngineThread {
    /// Counters, as of the engine's last turn.
    pub fn counters(&self) -> EngineCounters {
        todo!()
    }

    /// Stops the thread and gives the engine back.
    pub fn stop(self) -> Engine {
        todo!()
    }
}
