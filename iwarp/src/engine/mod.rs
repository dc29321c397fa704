//! The engine moves data between a queue of a port and the queue pairs of a context. An engine has one TCP
//! stack, and one thread at a time polls the engine.
//!
//! | file | what |
//! |---|---|
//! | `poller.rs`, `poller/` | one poll: receives frames, passes events to connections, lets queue pairs send, sends frames |
//! | `connection.rs`, `connection/` | one connection from SYN to the last FIN: startup, stream, teardown |
//! | `acks.rs` | acknowledgements that requests wait for |
//! | `carrier.rs` | polls the link state of the port |
//! | `tx_scheduler.rs` | which connection sends next |
//! | `listening.rs` | a listening port |
//! | `orphans.rs` | queue pairs that outlive their peer |
//! | `polled_time.rs` | time without standstills of the process |
//! | `rate.rs` | limits on the connections of an address in a second |
//! | `thread.rs` | an engine in its own thread |
//! | `shared_engine.rs` | an engine that its thread and threads of the user poll in turns |
//! | `siblings.rs` | engines on several queues of one device |
//! | `trace.rs` | events of `tracing` |
//! | `state.rs` | the state that the connections of an engine share |
//! | `config.rs` | the configuration of an engine |
//! | `two_engines.rs` | two connected engines, for tests |
//!
//! The poller starts no thread, and reads no clock except the CPU's cycle counter for
//! [`EngineCounters::busy_cycles`]. The caller of [`Engine::poll_at`] passes the time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use dp::{Clock, Port};
use tcp_lite::{Instant, StackUsage};

use crate::memory::Participant;
use crate::queues::Notifier;
use crate::verbs::{Context, EngineHandle, VerbsError};

mod acks;
mod carrier;
mod config;
mod connection;
mod datagrams;
mod listening;
mod orphans;
mod polled_time;
mod poller;
mod rate;
mod shared_engine;
mod siblings;
mod state;
mod thread;
mod trace;
#[cfg(test)]
mod two_engines;
mod tx_scheduler;

pub use crate::verbs::EngineCounters;
pub use config::EngineConfig;
pub use shared_engine::{SLEEP_LIMITS, SharedEngine, SharedOptions, Sleep, Waiting};
pub use thread::{EngineThread, ThreadOptions};

use self::poller::Poller;

/// Moves data between one port and the queue pairs of one context.
///
/// Either call [`poll`](Self::poll) from your own loop (lowest latency), or let a thread poll the engine
/// ([`spawn`](Self::spawn)). Nothing is sent, received, acknowledged or retransmitted between polls. Dropping
/// the engine resets its connections and flushes their posted requests.
pub struct Engine {
    context: Context,
    participant: Participant,
    clock: Clock,
    /// The reading of [`Clock::cycles`] at the start of the last [`poll`](Self::poll).
    polled_at: u64,
    poller: Poller,
}

impl Engine {
    /// Creates an engine of `context` on `port`.
    ///
    /// # Errors
    /// [`VerbsError::System`] if a file descriptor cannot be created.
    pub fn new(context: &Context, port: Box<dyn Port>, config: EngineConfig) -> Result<Self, VerbsError> {
        let waker = Notifier::new()?;
        let connections = config.stack.limits.connections;
        let handle = context.shared.add_engine(|index| EngineHandle::new(index, connections, waker));
        Ok(Self {
            context: context.clone(),
            participant: context.shared.resources.memory.join(),
            clock: Clock::new(),
            polled_at: 0,
            poller: Poller::new(handle, port, config, context.shared.resources.events.clone()),
        })
    }

    /// Polls once at time `now`: receives frames, runs timers, and lets queue pairs send. Returns whether
    /// there was any work. `now` must not go backwards.
    pub fn poll_at(&mut self, now: Instant) -> bool {
        let guard = self.participant.enter();
        self.poller.poll(now, Clock::cycles(), &guard)
    }

    /// Polls once at the time of the engine's own clock. Returns whether there was any work.
    pub fn poll(&mut self) -> bool {
        let cycles = Clock::cycles();
        self.polled_at = cycles;
        let now = self.time_at(cycles);
        let guard = self.participant.enter();
        self.poller.poll(now, cycles, &guard)
    }

    /// Sets the maximum time that an acknowledgement waits for a user's answer to the acknowledged message.
    /// Returns whether an acknowledgement or a limit waits.
    fn await_answers(&mut self, patience: Duration) -> bool {
        self.poller.await_answers(patience)
    }

    /// Runs the commands of users and sends posted requests, without the rest of a poll.
    fn send_posted(&mut self) {
        let now = self.now();
        let guard = self.participant.enter();
        self.poller.send_posted(now, &guard);
    }

    /// Returns the time when [`poll_at`](Self::poll_at) next has work if no frame and no request arrives
    /// before; `None` if no work is scheduled.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        self.poller.next_deadline(now)
    }

    /// Sleeps until there is work, for example a posted request, a call of `CmId::connect`, or a deadline. A
    /// frame ends the sleep only if the port has a file descriptor ([`Sleep::poll_fd`](dp::Sleep::poll_fd)
    /// lists such ports). The sleep lasts at most `limit`.
    pub fn sleep(&mut self, limit: Duration) {
        let Some(most) = self.begin_sleep(limit) else { return };
        thread::wait(self.poller.handle(), self.poller.poll_fd(), most.min(limit));
        self.end_sleep();
    }

    /// As [`sleep`](Self::sleep), but without a limit on a port whose frames end the sleep. On other ports
    /// the sleep lasts at most `nap`. Use this function in a thread that has no other work than the engine.
    fn sleep_until_woken(&mut self, nap: Duration) {
        let Some(most) = self.begin_sleep(nap) else { return };
        thread::wait(self.poller.handle(), self.poller.poll_fd(), most);
        self.end_sleep();
    }

    /// Prepares a sleep. Until [`end_sleep`](Self::end_sleep), no thread polls the engine, and new work is
    /// announced on the descriptors. Returns how long the sleep may last. Returns `None` if there is work
    /// now; then the engine stays awake.
    fn begin_sleep(&mut self, limit: Duration) -> Option<Duration> {
        let deadline = self.until_deadline();
        let limit = thread::longest_sleep(self.poller.poll_fd().is_some(), deadline, limit);
        if limit.is_zero() || !self.poller.handle().doorbells().prepare_sleep() {
            return None;
        }
        // A frame that arrived before this call would not end the sleep, so `arm_wakeup` reports such a
        // frame.
        if self.poller.has_handed() || !self.poller.port_mut().arm_wakeup() {
            self.end_sleep();
            return None;
        }
        Some(limit)
    }

    /// Returns how long the engine, which sleeps on a port with a descriptor, may sleep further. Returns
    /// `None` if it has to be polled now.
    fn rest(&mut self) -> Option<Duration> {
        let rest = thread::longest_sleep(true, self.until_deadline(), Duration::ZERO);
        (!rest.is_zero()).then_some(rest)
    }

    /// Returns the time until the next deadline, if there is one.
    fn until_deadline(&mut self) -> Option<Duration> {
        let now = self.now();
        // A deadline in the past is due now: without `max`, the difference would be the absolute value.
        let until = |at: Instant| Duration::from_micros((at.max(now) - now).total_micros());
        self.next_deadline(now).map(until)
    }

    /// Marks the engine as awake.
    fn end_sleep(&mut self) {
        self.poller.port_mut().disarm_wakeup();
        let woken = self.poller.handle().doorbells().end_sleep();
        debug_assert!(woken.is_ok(), "the engine's descriptors stay open");
    }

    /// Returns the descriptor that becomes readable for each frame; `None` if there is no such descriptor.
    fn port_fd(&self) -> Option<BorrowedFd<'_>> {
        self.poller.poll_fd()
    }

    /// Whether a datagram or a frame waits to be sent, for example until a neighbour answers. Datagrams that
    /// wait when the engine is dropped are lost, although their requests have completed.
    pub fn has_unsent(&self) -> bool {
        self.poller.has_unsent()
    }

    /// Returns the counters of all layers.
    pub fn counters(&self) -> EngineCounters {
        self.poller.counters()
    }

    /// Returns the current usage of all resources that [`Limits`](tcp_lite::Limits) bounds.
    pub fn stack_usage(&self) -> StackUsage {
        self.poller.stack().usage()
    }

    /// Checks the invariants of the engine, of its stack and of its context's memory table. These invariants
    /// hold between any two calls. The function is for tests, since it walks all state. No other thread may
    /// use the context during the call.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    #[doc(hidden)]
    pub fn check_invariants(&self) -> Result<(), String> {
        self.poller.check()?;
        self.context.check_invariants()
    }

    /// Returns name, Ethernet address, MTU and offloads of the port.
    pub fn port_info(&self) -> &dp::PortInfo {
        self.poller.port().info()
    }

    /// Returns the context whose queue pairs the engine serves.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Runs the engine in a new thread until the returned handle is dropped or stopped.
    ///
    /// # Errors
    /// [`VerbsError::System`] if the thread cannot be created.
    pub fn spawn(self, options: ThreadOptions) -> Result<EngineThread, VerbsError> {
        EngineThread::spawn(self, options)
    }

    /// Returns the time of the engine's own clock, which [`poll`](Self::poll) uses.
    pub fn now(&self) -> Instant {
        self.time_at(Clock::cycles())
    }

    #[inline]
    fn time_at(&self, cycles: u64) -> Instant {
        // The value is the number of microseconds since the clock was created, which is far below 2^63.
        Instant::from_micros(self.clock.us_at(cycles) as i64)
    }

    fn handle(&self) -> &Arc<EngineHandle> {
        self.poller.handle()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let now = self.now();
        self.poller.shut_down(now);
    }
}
