//! Two hosts and what they do with each other.
//!
//! | file | hosts | workload |
//! |---|---|---|
//! | `streams.rs` | tcp-lite (`lite.rs`) or smoltcp (`stock.rs`) | octets both ways, with readers, aborts and closes |
//! | `rdma.rs` | tcp-lite with iWARP | Writes, Sends, Reads, atomics (`operations.rs`) |

mod lite;
mod operations;
mod rdma;
mod stock;
mod streams;

use tcp_lite::StackCounters;

use super::watch::{Condition, Watch};

pub use operations::{Kind, Operation};
pub use rdma::{Close, RdmaPlan, RdmaWorld};
pub use streams::{Chunks, EndPlan, Reader, StreamPlan, StreamWorld};

/// Client ports of connections, by number.
pub const CLIENT_PORT: u16 = 40_000;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Grows with everything that a user of the connection has got: octets, events, completions.
    pub steps: u64,
    /// Both users are through.
    pub done: bool,
}

/// What a run has moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Octets delivered and checked.
    pub octets: u64,
    /// Operations completed and checked.
    pub operations: u64,
    /// Octets handed up ahead of their frontier, by tcp-lite.
    pub early: u64,
    /// Segments sent again by tcp-lite, probes of the tail aside.
    pub retransmits: u64,
    /// Retransmission timeouts, of tcp-lite.
    pub timeouts: u64,
    /// Cuts counted, by tcp-lite.
    pub cuts: u64,
    /// Times that tcp-lite found a path to carry more.
    pub raises: u64,
}

/// Two hosts.
pub trait World {
    /// One turn of host `side`: takes what its port has, works, sends. Whether anything was done.
    ///
    /// # Errors
    /// What rule was broken.
    fn turn(&mut self, side: usize, now_us: u64, watch: &mut Watch) -> Result<bool, String>;

    /// When host `side` wants its next turn, if nothing arrives before.
    fn next_us(&mut self, side: usize, now_us: u64) -> Option<u64>;

    /// What the tap has to know of host `side`.
    fn condition(&self, side: usize) -> Condition;

    /// A payload on the connection with this client port was damaged so that only MPA's CRC shows it.
    fn poisoned(&mut self, port: u16);

    /// Connections of the run.
    fn connections(&self) -> usize;

    /// How far one of them is.
    fn progress(&self, connection: usize) -> Progress;

    /// Everything is over: what must be true now.
    ///
    /// # Errors
    /// What is not.
    fn finish(&mut self) -> Result<Moved, String>;

    /// Everything that helps to see why a run stands still.
    fn describe(&self) -> String;
}

/// Segments that a stack sent again because it held them for lost. A probe of the tail may go for nothing, where the peer
/// delays its acknowledgement (RFC 8985 section 7.2).
fn repairs(counters: &StackCounters) -> u64 {
    counters.tx_retransmits.saturating_sub(counters.tail_loss_probes)
}
