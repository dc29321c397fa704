//! Snapshots of a context and of its engines, with their ports, connections and counters.
//!
//! When a thread requests a snapshot of an engine, the engine takes the snapshot in its next poll. The data
//! path does no extra work for snapshots.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tcp_lite::ConnInfo;

use super::{ContextUsage, EngineCounters, QpState, QpStatus};

/// The state of a context and of its engines ([`Context::status`](super::Context::status)).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextStatus {
    /// The value and the use of the limits on objects and incoming connections.
    pub usage: ContextUsage,
    /// Bytes of all memory regions that are registered now. Bytes in several regions are counted once per
    /// region.
    pub registered_bytes: u64,
    /// All queue pairs, connected or not, by their numbers.
    pub queue_pairs: Vec<QpStatus>,
    /// The engines that have answered, in the order of their indices.
    pub engines: Vec<Arc<EngineStatus>>,
    /// The indices of the engines that did not answer in time.
    pub silent: Vec<usize>,
}

/// The state of an engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineStatus {
    /// The index of the engine in its context.
    pub index: usize,
    /// The name of the engine's port.
    pub port: String,
    /// Ethernet address of the port.
    pub mac: [u8; 6],
    /// Maximum size of an IP packet of the port, in bytes.
    pub mtu: u16,
    /// Whether the link was up when the engine last queried the port.
    pub link_up: bool,
    /// Bytes of memory that the engine's port shares with other processes
    /// ([`dp::Statistics::shared_memory_bytes`]).
    pub shared_memory_bytes: u64,
    /// The engine's IP addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// TCP ports on which the engine listens.
    pub listens: Vec<u16>,
    /// The multicast groups to which queue pairs are attached.
    pub groups: Vec<IpAddr>,
    /// The engine's connections, in the order of their slots.
    pub connections: Vec<ConnectionStatus>,
    /// Counters of all layers.
    pub counters: EngineCounters,
}

/// The state of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionStatus {
    /// The number and the state of the connection's queue pair; `None` before the connection has a queue
    /// pair.
    pub qp: Option<(u32, QpState)>,
    /// The phase of the connection.
    pub phase: ConnectionPhase,
    /// Addresses, windows, times and bytes of TCP.
    pub tcp: ConnInfo,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionPhase {
    /// The TCP handshake is in progress.
    Connecting,
    /// The connection exchanges bytes before MPA.
    Streaming,
    /// The engine waits for MPA's Request or Reply.
    Startup,
    /// The user decides on the Request.
    Deciding,
    /// Full Operation.
    Established,
    /// The connection is ending.
    Ending,
}

impl ConnectionPhase {
    /// Returns the name of the phase, as programs print it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Streaming => "streaming",
            Self::Startup => "startup",
            Self::Deciding => "deciding",
            Self::Established => "established",
            Self::Ending => "ending",
        }
    }
}

impl ConnectionStatus {
    /// Returns the local and the remote address.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.tcp.local, self.tcp.remote)
    }
}

/// The requests of threads for the status of an engine. At most one command is queued at a time, however many
/// threads request the status. So the queue of an engine that is not polled does not grow.
#[derive(Default)]
pub(crate) struct StatusRequests {
    state: Mutex<RequestState>,
    answered: Condvar,
}

#[derive(Default)]
struct RequestState {
    is_pending: bool,
    answers: u64,
    latest: Option<Arc<EngineStatus>>,
}

impl StatusRequests {
    /// Records that the caller requests the status of the engine. Returns the number of answers so far, and
    /// whether the caller has to queue the command.
    pub(crate) fn ask(&self) -> (u64, bool) {
        let mut state = self.state();
        (state.answers, !std::mem::replace(&mut state.is_pending, true))
    }

    /// Waits until `deadline` for the next answer after the first `answers` answers. Returns `None` if there
    /// is no answer in time, or if the engine was dropped.
    pub(crate) fn await_answer(&self, answers: u64, deadline: Instant) -> Option<Arc<EngineStatus>> {
        let mut state = self.state();
        while state.answers == answers {
            let left =
                deadline.checked_duration_since(Instant::now()).filter(|left| *left > Duration::ZERO)?;
            state = self.answered.wait_timeout(state, left).expect("no holder of this lock panics").0;
        }
        state.latest.clone()
    }

    /// Sets the answer of the engine. `None` means that the engine was dropped.
    pub(crate) fn answer(&self, status: Option<EngineStatus>) {
        let mut state = self.state();
        (state.is_pending, state.latest) = (false, status.map(Arc::new));
        state.answers += 1;
        self.answered.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}
