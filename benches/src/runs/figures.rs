//! The results of a run of a test.

use crate::latency::{Distribution, Latencies, LatencySummary};
use crate::profile::Profiled;

/// The result for one message size.
#[derive(Clone, Copy, Debug)]
pub enum Figures {
    /// The result of a bandwidth test.
    Bandwidth(BandwidthRow),
    /// The result of a latency test.
    Latency(LatencySummary),
}

impl Default for Figures {
    fn default() -> Self {
        Self::Bandwidth(BandwidthRow::default())
    }
}

/// The result of a run at a given rate.
#[derive(Clone, Debug, Default)]
pub struct LoadFigures {
    /// Requested messages per second.
    pub asked_messages_per_s: f64,
    /// True if latencies end when the target confirms the message. Otherwise latencies end when TCP has
    /// accepted the message.
    pub confirmed: bool,
    /// Number of messages that were due before the end but could not be posted. The latency of such a message
    /// is its wait so far.
    pub unsent: u64,
    /// Latencies, measured from the time at which each message was due.
    pub latency: LatencySummary,
    /// The latency of each message.
    pub latencies: Latencies,
}

impl LoadFigures {
    /// Adds up the figures of two loads that ran at the same time.
    pub fn merged(mut self, other: Self) -> Self {
        self.latencies.add(&other.latencies);
        Self {
            asked_messages_per_s: self.asked_messages_per_s + other.asked_messages_per_s,
            confirmed: self.confirmed && other.confirmed,
            unsent: self.unsent + other.unsent,
            latency: self.latencies.summary(self.latencies.count()),
            latencies: self.latencies,
        }
    }
}

/// The work of one core in a test with several cores.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct CoreFigures {
    /// Number of the CPU.
    pub cpu: usize,
    /// Number of queue pairs of this core.
    pub queue_pairs: u32,
    /// Number of messages on these queue pairs.
    pub messages: u64,
    /// Bytes per second over this core's own time.
    pub bytes_per_s: f64,
    /// Messages per second over this core's own time.
    pub messages_per_s: f64,
    /// Number of cycles that this core spent on frames, without spinning.
    pub busy_cycles: u64,
}

/// A function that is called with each row.
pub type OnRow<'a> = &'a mut dyn FnMut(&Row);

/// One row of the result.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Number of bytes of a message.
    pub size: u32,
    /// Number of messages.
    pub messages: u64,
    /// The figures.
    pub figures: Figures,
    /// True if the bandwidth counts confirmed messages. Otherwise the bandwidth counts messages that TCP has
    /// accepted.
    pub confirmed: bool,
    /// Number of cycles that this side spent on frames, without spinning.
    pub busy_cycles: u64,
    /// All latencies. Empty if no latencies were measured.
    pub distribution: Distribution,
    /// The figures of a run at a given rate, if this side was its source.
    pub load: Option<LoadFigures>,
    /// The profile of this side's thread, if the thread was profiled.
    pub profile: Option<Profiled>,
    /// Number of queue pairs that took part.
    pub queue_pairs: u32,
    /// Start and end of the run on this side, in cycles.
    pub span: (u64, u64),
    /// The work of each core, if there were several cores.
    pub cores: Vec<CoreFigures>,
    /// True if an interrupt or an error ended the run early. The figures cover the time until then.
    pub is_partial: bool,
    /// The CPU time of this process in percent of one CPU.
    pub cpu_percent: f64,
    /// The figures of the sent and of the received messages, if both sides sent.
    pub ways: Option<[BandwidthRow; 2]>,
    /// Each latency in microseconds, in the order of measurement, if the user wants each latency.
    pub samples_us: Vec<f64>,
}

impl Row {
    /// Adds the distribution of latencies, if the run has a given rate.
    pub(super) fn with_distribution(mut self) -> Self {
        if let Some(load) = &self.load {
            self.distribution = load.latencies.distribution();
        }
        self
    }
}

/// One row of a bandwidth table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BandwidthRow {
    /// Number of bytes of a message.
    pub bytes: u64,
    /// Number of messages on all queue pairs.
    pub iterations: u64,
    /// Bytes per second of the fastest tenth of the run, or the average if no peak was measured. With `-N`
    /// the output shows 0.
    pub peak: f64,
    /// Bytes per second, averaged over the whole run.
    pub average: f64,
    /// Messages per second.
    pub messages_per_s: f64,
}
