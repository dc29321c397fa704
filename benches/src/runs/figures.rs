//! The results of a run.

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
    /// True if latencies end when the target confirms the message; otherwise they end when TCP has accepted
    /// it.
    pub confirmed: bool,
    /// Messages that were due before the end but could not be posted. Their latencies are their waits so
    /// far.
    pub unsent: u64,
    /// Latencies, each from when the message was due.
    pub latency: LatencySummary,
    /// Each latency.
    pub latencies: Latencies,
}

impl LoadFigures {
    /// The sum of two loads at the same time.
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
    /// Messages on these queue pairs.
    pub messages: u64,
    /// Bytes per second, over this core's own time.
    pub bytes_per_s: f64,
    /// The same.
    pub messages_per_s: f64,
    /// Cycles that it spent on frames, without spinning.
    pub busy_cycles: u64,
}

/// Called with each row.
pub type OnRow<'a> = &'a mut dyn FnMut(&Row);

/// One row of the result.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Bytes of a message.
    pub size: u32,
    /// Messages.
    pub messages: u64,
    /// The figures.
    pub figures: Figures,
    /// True if the bandwidth counts confirmed messages; otherwise it counts messages that TCP has accepted.
    pub confirmed: bool,
    /// Cycles that this end spent on frames, without spinning.
    pub busy_cycles: u64,
    /// All latencies; empty where none were measured.
    pub distribution: Distribution,
    /// The figures of a run at a given rate, if this end was its source.
    pub load: Option<LoadFigures>,
    /// The profile of this end's thread, if it was profiled.
    pub profile: Option<Profiled>,
    /// Queue pairs that took part.
    pub queue_pairs: u32,
    /// Start and end of a bandwidth test at this end in cycles.
    pub span: (u64, u64),
    /// The work of each core, if there were several.
    pub cores: Vec<CoreFigures>,
    /// True if the run was interrupted; the figures cover the time until then.
    pub is_partial: bool,
    /// The CPU time of this process, percent of one CPU.
    pub cpu_percent: f64,
    /// In a run in both directions, the figures of the sent and of the received messages.
    pub ways: Option<[BandwidthRow; 2]>,
    /// Each latency in the order of measurement, microseconds, if they are wanted.
    pub samples_us: Vec<f64>,
}

impl Row {
    /// With the distribution of latencies, if the run has a given rate.
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
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages on all queue pairs.
    pub iterations: u64,
    /// Best part of the run, bytes per second; 0 if not measured.
    pub peak: f64,
    /// Average over the whole run, bytes per second.
    pub average: f64,
    /// Messages per second.
    pub messages_per_s: f64,
}
