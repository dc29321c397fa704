//! Two hosts and what they do with each other.
//!
//! | file | hosts | workload |
//! |---|---|---|
//! | `streams.rs` | tcp-lite (`lite.rs`) or smoltcp (`stock.rs`) | bytes both ways, with readers, aborts and closes; TCP's states (`states.rs`) |
//! | `rdma.rs` | tcp-lite with iWARP | connections (`connection.rs`) with Writes, Sends, Reads, atomics (`operations.rs`) |

mod connection;
mod lite;
mod operations;
mod rdma;
mod states;
mod stock;
mod streams;

use tcp_lite::StackCounters;

use super::coverage::{Coverage, Sight};
use super::setup::HostSetup;
use super::watch::{Condition, Watch};

pub use connection::{Close, Fault, RdmaPlan};
pub use operations::{Kind, Operation};
pub use rdma::RdmaWorld;
pub use streams::{Chunks, EndPlan, Reader, StreamPlan, StreamWorld};

/// Client ports of connections, by number.
pub const CLIENT_PORT: u16 = 40_000;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Grows with everything that a user of the connection has got: bytes, events, completions.
    pub steps: u64,
    /// Both users are through.
    pub done: bool,
}

/// What a run has moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// Bytes delivered and checked.
    pub bytes: u64,
    /// Operations completed and checked.
    pub operations: u64,
    /// Bytes handed up ahead of their frontier, by tcp-lite.
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

    /// Wire, ports and hosts have done harm until then.
    fn set_harmed(&mut self, _harmed_us: u64) {}

    /// A payload on the connection with this client port was damaged so that only MPA's CRC shows it.
    fn poisoned(&mut self, port: u16);

    /// Connections of the run.
    fn connections(&self) -> usize;

    /// The client port of one of them.
    fn port(&self, connection: usize) -> u16;

    /// The connection that has to be over before this one begins.
    fn before(&self, _connection: usize) -> Option<usize> {
        None
    }

    /// Whether the user of host `side` was told that it is over.
    fn is_over(&self, side: usize, connection: usize) -> bool;

    /// How far one of them is.
    fn progress(&self, connection: usize) -> Progress;

    /// Everything is over: what must be true now.
    ///
    /// # Errors
    /// What is not.
    fn finish(&mut self) -> Result<Moved, String>;

    /// What was seen to happen, beside what the wire shows.
    fn cover(&self, coverage: &mut Coverage);

    /// Everything that helps to see why a run stands still.
    fn describe(&self) -> String;
}

/// What the counters of a host show.
fn cover_stack(coverage: &mut Coverage, setup: &HostSetup, counters: &StackCounters, timestamps: bool) {
    let undone = if timestamps { Sight::TimeoutUndoneByTime } else { Sight::TimeoutUndoneByOrder };
    for (sight, times) in [
        (Sight::Timeout, counters.rto_expired),
        (Sight::TailProbe, counters.tail_loss_probes),
        (Sight::Recovery, counters.fast_retransmits),
        (Sight::RepairLost, counters.lost_retransmits),
        (Sight::Reordering, counters.reordering_seen),
        (undone, counters.spurious_timeouts),
        (Sight::RecoveryUndone, counters.spurious_recoveries),
        (Sight::DuplicateHeard, counters.dsack_received),
        (Sight::WindowProbe, counters.window_probes),
        (Sight::CutByPersist, counters.tx_cut_by_persist),
        (Sight::CutByEmss, counters.tx_cut_by_emss),
        (Sight::CookieSent, counters.tx_syn_cookies),
        (Sight::CookieTaken, counters.rx_syn_cookies),
        (Sight::Challenge, counters.challenge_acks),
        (Sight::OldTimestamp, counters.rx_old_timestamps),
        (Sight::BadChecksum, counters.rx_bad_checksum),
        (Sight::MarksHeard, counters.ecn_reductions),
    ] {
        coverage.saw(sight, times);
    }
    coverage.saw_if(Sight::WithoutSack, !setup.tcp.sack);
    coverage.saw_if(Sight::WithoutTimestamps, !setup.tcp.timestamps);
}

/// Segments that a stack sent again because it held them for lost. A probe of the tail may go for nothing,
/// where the peer delays its acknowledgement (RFC 8985 section 7.2).
fn repairs(counters: &StackCounters) -> u64 {
    counters.tx_retransmits.saturating_sub(counters.tail_loss_probes)
}
