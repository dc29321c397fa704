//! The results of a run.

use crate::latency::{Distribution, Latencies, LatencySummary};
use crate::profile::Profiled;

/// The result for one message size.
#[derive(Clone, Copy, Debug)]
pub enum Figures {
    /// Of a bandwidth test.
    Bandwidth(BandwidthRow),
    /// Of a latency test.
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
    /// Messages a second that were asked for.
    pub asked_messages_per_s: f64,
    /// Latencies end when the target confirms the message; otherwise when TCP has taken it.
    pub confirmed: bool,
    /// Messages that were due at the end of the time and could not be posted. Their latencies are their waits
    /// so far.
    pub unsent: u64,
    /// Latencies, each from when the message was due.
    pub latency: LatencySummary,
    /// Each latency.
    pub latencies: Latencies,
}

impl LoadFigures {
    /// Two loads at the same time.
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

/// The work of one of several cores.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct CoreFigures {
    /// Number of the CPU.
    pub cpu: usize,
    /// Its queue pairs.
    pub queue_pairs: u32,
    /// Messages on them.
    pub messages: u64,
    /// Bytes a second, over this core's own time.
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
    /// Whether the bandwidth counts confirmed messages; otherwise messages that TCP took.
    pub confirmed: bool,
    /// Cycles that this end spent on frames, without spinning.
    pub busy_cycles: u64,
    /// All latencies; empty where none were measured.
    pub distribution: Distribution,
    /// Of a run at a given rate, when this end was its source.
    pub load: Option<LoadFigures>,
    /// The profile of this end's thread, if it was profiled.
    pub profile: Option<Profiled>,
    /// Queue pairs that took part.
    pub queue_pairs: u32,
    /// When it began and ended here, cycles; of bandwidth tests.
    pub span: (u64, u64),
    /// The work of each core, if there were several.
    pub cores: Vec<CoreFigures>,
    /// The run was interrupted: the figures are those until then.
    pub is_partial: bool,
    /// The CPU time of this process, percent of one CPU.
    pub cpu_percent: f64,
    /// What this end sent and what it received, in a run in both directions.
    pub ways: Option<[BandwidthRow; 2]>,
    /// Each latency in the order of measurement, microseconds, if they are wanted.
    pub samples_us: Vec<f64>,
}

impl Row {
    /// With the distribution of latencies of a run at a given rate, if there is one.
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
    /// Best part of the run, bytes a second; 0 when not looked for.
    pub peak: f64,
    /// Whole run, bytes a second.
    pub average: f64,
    /// Messages a second.
    pub messages_per_s: f64,
}
