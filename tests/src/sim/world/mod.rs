//! Two hosts and their work.
//!
//! | file | hosts | workload |
//! |---|---|---|
//! | `streams.rs` | tcp-lite (`lite.rs`) or smoltcp (`smoltcp_host.rs`) | bytes both ways, with readers, aborts and closes; TCP's states (`states.rs`) |
//! | `rdma.rs` | tcp-lite with iWARP | connections (`connection.rs`) with Writes, Sends, Reads, atomics (`operations.rs`) |

mod connection;
mod lite;
mod operations;
mod rdma;
mod smoltcp_host;
mod states;
mod streams;

use tcp_lite::StackCounters;

use super::coverage::{Coverage, Occurrence};
use super::setup::HostSetup;
use super::watch::{Condition, Watch};

pub use connection::{Close, Fault, RdmaPlan};
pub use operations::{Kind, Operation};
pub use rdma::RdmaWorld;
pub use streams::{Chunks, EndPlan, Reader, StreamPlan, StreamWorld};

/// The client port of the first connection. Other connections use the ports after it, or reuse the port of an
/// earlier connection.
pub const CLIENT_PORT: u16 = 40_000;

/// The progress of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// A number that grows with every byte, event and completion that a user of the connection gets.
    pub steps: u64,
    /// Whether both users have finished.
    pub done: bool,
}

/// The work that was done in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transferred {
    /// Number of bytes delivered and checked.
    pub bytes: u64,
    /// Number of operations completed and checked.
    pub operations: u64,
    /// Number of bytes of plain streams, or of FPDUs, that were accepted ahead of the next expected byte.
    pub early: u64,
    /// Number of segments that tcp-lite retransmitted, without tail loss probes.
    pub retransmits: u64,
    /// Number of retransmission timeouts of tcp-lite.
    pub timeouts: u64,
    /// Number of splits that tcp-lite counted.
    pub cuts: u64,
    /// Number of times that tcp-lite raised a path MTU.
    pub raises: u64,
}

/// Two hosts.
pub trait World {
    /// Polls host `side` once: receives the frames of its port, does the work of its users, and sends frames.
    /// Returns whether anything was done.
    ///
    /// # Errors
    /// The broken rule.
    fn poll(&mut self, side: usize, now_us: u64, watch: &mut Watch) -> Result<bool, String>;

    /// Returns the time at which host `side` needs its next poll if no frame arrives before.
    fn next_us(&mut self, side: usize, now_us: u64) -> Option<u64>;

    /// Whether the last poll of the other host gave the users of host `side` something to do without a frame.
    fn is_due(&self, _side: usize) -> bool {
        false
    }

    /// Returns the state of host `side` that the tap needs.
    fn condition(&self, side: usize) -> Condition;

    /// Sets the time of the last fault of wire, ports and hosts.
    fn set_last_fault(&mut self, _harmed_us: u64) {}

    /// Records that a payload on the connection with this client port was corrupted so that only MPA's CRC
    /// shows it.
    fn poisoned(&mut self, port: u16);

    /// Returns the number of connections of the run.
    fn connections(&self) -> usize;

    /// Returns the client port of a connection.
    fn port(&self, connection: usize) -> u16;

    /// Returns the connection that has to be over before this connection begins, or `None` if there is no
    /// such connection.
    fn before(&self, _connection: usize) -> Option<usize> {
        None
    }

    /// Whether the user of host `side` has received the event that the connection is over.
    fn is_over(&self, side: usize, connection: usize) -> bool;

    /// Returns the progress of a connection.
    fn progress(&self, connection: usize) -> Progress;

    /// Checks the final state, after all connections are over. Returns the work that was done.
    ///
    /// # Errors
    /// A description of the error in the final state.
    fn finish(&mut self) -> Result<Transferred, String>;

    /// Counts the events that the wire does not count: events in the hosts' counters, and the settings and
    /// outcomes of the connections.
    fn cover(&self, coverage: &mut Coverage);

    /// Returns a description of the state, for a failed run.
    fn describe(&self) -> String;
}

/// Counts the events that the counters of a host show.
fn cover_stack(coverage: &mut Coverage, setup: &HostSetup, counters: &StackCounters, timestamps: bool) {
    let undone = if timestamps {
        Occurrence::TimeoutUndoneByTimestamp
    } else {
        Occurrence::TimeoutUndoneWithoutTimestamp
    };
    for (occurrence, times) in [
        (Occurrence::Timeout, counters.rto_expired),
        (Occurrence::TailProbe, counters.tail_loss_probes),
        (Occurrence::Recovery, counters.fast_retransmits),
        (Occurrence::RetransmissionLost, counters.lost_retransmits),
        (Occurrence::Reordering, counters.reordering_seen),
        (undone, counters.spurious_timeouts),
        (Occurrence::RecoveryUndone, counters.spurious_recoveries),
        (Occurrence::DsackReceived, counters.dsack_received),
        (Occurrence::WindowProbe, counters.window_probes),
        (Occurrence::CutByPersist, counters.tx_cut_by_persist),
        (Occurrence::CutByEmss, counters.tx_cut_by_emss),
        (Occurrence::CookieSent, counters.tx_syn_cookies),
        (Occurrence::CookieAccepted, counters.rx_syn_cookies),
        (Occurrence::ChallengeAck, counters.challenge_acks),
        (Occurrence::OldTimestamp, counters.rx_old_timestamps),
        (Occurrence::BadChecksum, counters.rx_bad_checksum),
        (Occurrence::WindowReducedByMarks, counters.ecn_reductions),
    ] {
        coverage.count(occurrence, times);
    }
    coverage.count_if(Occurrence::WithoutSack, !setup.tcp.sack);
    coverage.count_if(Occurrence::WithoutTimestamps, !setup.tcp.timestamps);
}

/// Returns the number of segments that a stack retransmitted because it considered them lost. Tail loss
/// probes do not count, since a probe may be unnecessary if the peer delays its acknowledgement (RFC 8985
/// section 7.2).
fn repairs(counters: &StackCounters) -> u64 {
    counters.tx_retransmits.saturating_sub(counters.tail_loss_probes)
}
