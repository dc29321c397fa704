//! The measurements themselves: what runs between the synchronisations of the exchange.

pub mod bandwidth;
pub mod latency;

use crate::latency::LatencySummary;
use crate::table::BandwidthRow;

/// What came of one size.
#[derive(Clone, Copy, Debug)]
pub enum Figures {
    /// Of a bandwidth test.
    Bandwidth(BandwidthRow),
    /// Of a latency test.
    Latency(LatencySummary),
}

/// One row of the result.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Octets of a message.
    pub size: u32,
    /// Messages.
    pub messages: u64,
    /// The figures.
    pub figures: Figures,
    /// Whether the bandwidth is what the target confirmed (else: what TCP took).
    pub confirmed: bool,
    /// Cycles that this end spent on frames, without spinning.
    pub busy_cycles: u64,
}
