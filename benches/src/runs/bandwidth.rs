//! Bandwidth: posts as many messages as the depth of the queues, the credits, the rate (with `--rate_limit`)
//! and the slots (with validation) allow. The run ends when the last message has completed and, if the peer
//! confirms messages, is confirmed.
//!
//! The average covers the time from the first post to the target's confirmation of the last message. A peer
//! that is perftest confirms neither Writes nor the Sends of a bidirectional test. In these cases the average
//! ends with the last completion, as in perftest.

use dp::Clock;
use iwarp::engine::EngineCounters;

use super::cpu_time::CpuTime;
use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::live::{Live, Snapshot};
use crate::params::Verb;
use crate::path::Path;
use crate::perftest::exchange::Control;
use crate::profile::{Profiled, Profiling};
use crate::runs::{BandwidthRow, Figures, LoadFigures, OnRow, Row};
use crate::silence::SilenceDetector;

/// The role of this side in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether this side posts messages.
    pub source: bool,
    /// Whether the peer posts messages. If the messages consume receives, this side counts them.
    pub target: bool,
    /// True if the peer is perftest. In this case the target of Sends has to count the Sends, because no
    /// message of perftest shows that all Sends have arrived.
    pub counts: bool,
}

/// The result of a run. The caller can still move the end of the run ([`prolong`](Self::prolong)).
#[derive(Debug)]
pub struct Run {
    size: u32,
    queue_pairs: u32,
    started: u64,
    ended: u64,
    busy_at_start: u64,
    busy_cycles: u64,
    messages: u64,
    peak_bytes_per_s: f64,
    hz: u64,
    load: Option<LoadFigures>,
    cpu_percent: f64,
    is_partial: bool,
    /// The profile of this side's thread, if the thread was profiled.
    pub profile: Option<Profiled>,
}

impl Run {
    /// Moves the end of the run to the present time, since the target has just confirmed the run.
    pub fn prolong(&mut self, end: &Endpoint) {
        self.ended = Clock::cycles();
        self.busy_cycles = end.driver.counters().busy_cycles - self.busy_at_start;
    }

    /// Sets the number of received messages as the result of the run. The side that was the target calls this
    /// function.
    pub fn received(&mut self, path: &Path) {
        self.messages = path.received();
    }

    /// The row of the run. `confirmed` is true if the target has confirmed the messages.
    pub fn row(&self, confirmed: bool) -> Row {
        let seconds = (self.ended.saturating_sub(self.started)).max(1) as f64 / self.hz as f64;
        let messages_per_s = self.messages as f64 / seconds;
        let average = messages_per_s * f64::from(self.size);
        let row = BandwidthRow {
            bytes: u64::from(self.size),
            iterations: self.messages,
            // No peak is measured if the run has fewer than ten messages or no limit. In this case the
            // average is shown as the peak.
            peak: self.peak_bytes_per_s.max(average),
            average,
            messages_per_s,
        };
        let (size, messages, busy_cycles) = (self.size, self.messages, self.busy_cycles);
        let (figures, load) = (Figures::Bandwidth(row), self.load.clone());
        let profile = self.profile.clone();
        Row {
            size,
            messages,
            figures,
            confirmed,
            busy_cycles,
            load,
            profile,
            queue_pairs: self.queue_pairs,
            span: (self.started, self.ended),
            cpu_percent: self.cpu_percent,
            is_partial: self.is_partial,
            ..Row::default()
        }
        .with_distribution()
    }
}

/// The course of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// The role of this side.
    pub part: Part,
    /// Number of messages of each queue pair. `None` means that the number is not limited.
    pub limit: Option<u64>,
    /// How a run without a limit ends.
    pub ending: Ending,
    /// True if a signal may end the run in an orderly way, since the peer needs no message from this side to
    /// continue.
    pub can_conclude: bool,
}

/// How a run ends if its number of messages is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run ends after the duration in the parameters.
    InTime,
    /// The run ends when a side that posts messages is interrupted. A row is printed each time the duration
    /// in the parameters has passed.
    Never,
}

/// Runs until this side's part is done. A source is done when all its messages have completed and, if the
/// peer confirms messages, are confirmed. A side that is only a target is done when the peer sends on the
/// control connection. If the peer is perftest, a target of Sends also waits for all Sends. If there is an
/// error, the returned run covers the time until the error.
///
/// # Errors
/// Returns [`Error::Silent`] if nothing arrives within the time limit, [`Error::Disconnected`] if a
/// connection ends, [`Error::Interrupted`] if the run is interrupted, or an error of [`Path`].
pub fn run(
    end: &mut Endpoint,
    control: &mut Control,
    path: &mut Path,
    course: &RunPlan,
    live: &mut Live,
    on_row: OnRow<'_>,
) -> (Run, Result<(), Error>) {
    let total = course.limit.map(|limit| limit * u64::from(path.params.qps));
    let before = end.driver.counters();
    let mut moved = Moved { meter: Meter::new(total), started: Clock::cycles(), stopped: false };
    let cpu = CpuTime::now();
    let met = end.rendezvous.clone().map_or(Ok(()), |rendezvous| {
        rendezvous.meet(|| {
            if !end.driver.poll()? {
                return end.driver.idle();
            }
            end.driver.busy();
            Ok(())
        })
    });
    let profiling = Profiling::start(end);
    let outcome = met.and_then(|()| moved.messages(end, control, path, course, live, on_row));
    let (ended, after, hz) = (Clock::cycles(), end.driver.counters(), end.clock.hz());
    let is_partial = outcome.is_err() || (moved.stopped && end.driver.is_concluding());
    let source = course.part.source;
    let run = Run {
        size: path.size(),
        queue_pairs: path.params.qps,
        started: moved.started,
        ended,
        busy_at_start: before.busy_cycles,
        busy_cycles: after.busy_cycles - before.busy_cycles,
        messages: match (source, outcome.is_err()) {
            (true, false) => path.posted(),
            (true, true) => path.completed(),
            (false, _) => arrived(path, &before, &after),
        },
        peak_bytes_per_s: moved.meter.peak_messages_per_cycle() * hz as f64 * f64::from(path.size()),
        hz,
        load: path.take_load(),
        profile: profiling.map(|profiling| profiling.stop(end)),
        cpu_percent: cpu.percent_since(ended.saturating_sub(moved.started) as f64 / hz as f64),
        is_partial,
    };
    (run, outcome)
}

/// Number of messages that a target has received or answered. For Writes, Reads and atomics, the number is
/// calculated from the counters of the engine, since these operations cause no completions at the target.
fn arrived(path: &Path, before: &EngineCounters, after: &EngineCounters) -> u64 {
    let size = u64::from(path.size()).max(1);
    match path.params.test.verb() {
        Verb::Send | Verb::WriteImmediate => path.received(),
        Verb::Write => (after.rx_placed_bytes - before.rx_placed_bytes) / size,
        Verb::Read | Verb::Atomic => (after.tx_fetched_bytes - before.tx_fetched_bytes) / size,
    }
}

/// A run in progress.
struct Moved {
    meter: Meter,
    started: u64,
    stopped: bool,
}

impl Moved {
    fn messages(
        &mut self,
        end: &mut Endpoint,
        control: &mut Control,
        path: &mut Path,
        course: &RunPlan,
        live: &mut Live,
        on_row: OnRow<'_>,
    ) -> Result<(), Error> {
        const DOING: &str = "measuring";
        let RunPlan { part, ending, mut limit, .. } = *course;
        let hz = end.clock.hz();
        let period = u64::from(path.params.duration_s) * hz;
        self.started = Clock::cycles();
        let mut deadline = self.started + period;
        let mut last_row = LastRow { since: self.started, messages: 0 };
        let mut silence = SilenceDetector::new(end);
        live.start(moment(end, path), if ending == Ending::Never { 0 } else { deadline });
        if part.source {
            path.start_pacing(self.started, hz);
        }
        loop {
            let mut moved = match end.driver.poll() {
                Err(Error::Interrupted) if course.can_conclude && end.driver.conclude() => {
                    (self.stopped, limit) = (true, None);
                    path.stop_pacing(Clock::cycles());
                    true
                }
                polled => polled?,
            };
            let mut worked = path.poll()?;
            if ending == Ending::Never && part.source && !self.stopped && control.has_message()? {
                // The peer is also a source and was interrupted, so the run ends in both directions.
                (self.stopped, limit) = (true, None);
                path.stop_pacing(Clock::cycles());
            }
            if part.source && !self.stopped {
                worked |= path.post(limit)?;
                if limit.is_none() && Clock::cycles() >= deadline {
                    match ending {
                        Ending::InTime => {
                            self.stopped = true;
                            path.stop_pacing(deadline);
                        }
                        Ending::Never => {
                            on_row(&last_row.row(path, hz));
                            deadline += period;
                        }
                    }
                }
            }
            moved |= worked;
            if worked {
                self.meter.see(path.completed());
                if live.is_due() {
                    live.show(moment(end, path));
                }
            }
            if is_done(control, path, part, limit, self.stopped)? {
                return Ok(());
            }
            if moved {
                end.driver.busy();
                if worked {
                    silence.renew();
                }
                continue;
            }
            end.driver.idle()?;
            if !silence.check(end, DOING)? {
                continue;
            }
            if let Some(error) = connection_ended(end, control, path, part) {
                return Err(Error::Disconnected { doing: DOING, error });
            }
        }
    }
}

fn moment(end: &Endpoint, path: &Path) -> Snapshot {
    Snapshot {
        now: Clock::cycles(),
        messages: path.completed(),
        size: path.size(),
        counters: end.driver.counters(),
        latency_us: None,
    }
}

/// The time and the number of messages at the last row of an endless run.
struct LastRow {
    since: u64,
    messages: u64,
}

impl LastRow {
    /// The row for the time since the last row.
    fn row(&mut self, path: &Path, hz: u64) -> Row {
        let (now, completed) = (Clock::cycles(), path.completed());
        let messages = completed - self.messages;
        let messages_per_s = messages as f64 * hz as f64 / (now - self.since).max(1) as f64;
        let average = messages_per_s * f64::from(path.size());
        let row = BandwidthRow {
            bytes: path.size().into(),
            iterations: messages,
            peak: average,
            average,
            messages_per_s,
        };
        let span = (self.since, now);
        *self = Self { since: now, messages: completed };
        Row {
            size: path.size(),
            messages,
            figures: Figures::Bandwidth(row),
            queue_pairs: path.params.qps,
            span,
            ..Row::default()
        }
    }
}

fn is_done(
    control: &mut Control,
    path: &mut Path,
    part: Part,
    limit: Option<u64>,
    stopped: bool,
) -> Result<bool, Error> {
    let params = &path.params;
    let counts = part.target && part.counts && params.test.verb().uses_receives();
    let qps = u64::from(params.qps);
    let counted = !counts || limit.is_none_or(|limit| path.received() >= limit * qps);
    if part.source {
        let finished = limit.is_some() || stopped;
        return Ok(finished && path.source_done(limit)? && counted);
    }
    Ok(counted && control.has_message()?)
}

/// Returns `Some` if a connection that the run still needs has ended, with the error of the connection if
/// there was an error.
fn connection_ended(
    end: &mut Endpoint,
    control: &Control,
    path: &Path,
    part: Part,
) -> Option<Option<iwarp::verbs::ConnectionError>> {
    let control = end.ended(control.id());
    if control.is_some() || !part.source {
        return control;
    }
    path.flows.iter().find_map(|flow| end.ended(&flow.id))
}

/// Finds the peak of a run: the rate of the tenth of the run that completed in the shortest time.
///
/// perftest's peak is the shortest time from one post to its completion. With our TCP, a request completes
/// when the send buffer has accepted the data, so this time would measure a copy. A tenth of the run, in
/// contrast, is sent at the speed of the wire.
#[derive(Debug)]
struct Meter {
    /// Number of messages of a tenth of the run. 0 means that no peak is measured: the run has no limit, or
    /// fewer than ten messages.
    part: u64,
    /// Minimum number of messages between two samples.
    step: u64,
    /// Samples: a time, and the number of messages completed by that time.
    samples: Vec<(u64, u64)>,
}

/// Number of intervals between the samples of a run.
const SAMPLES: u64 = 100;

impl Meter {
    fn new(total: Option<u64>) -> Self {
        let total = total.unwrap_or(0);
        Self {
            part: total / 10,
            step: (total / SAMPLES).max(1),
            samples: Vec::with_capacity(SAMPLES as usize + 1),
        }
    }

    #[inline]
    fn see(&mut self, completed: u64) {
        let next = self.samples.last().map_or(0, |(_, seen)| seen + self.step);
        if self.part > 0 && completed >= next && self.samples.len() < self.samples.capacity() {
            self.samples.push((Clock::cycles(), completed));
        }
    }

    fn peak_messages_per_cycle(&self) -> f64 {
        let rate = |(i, &(from, before)): (usize, &(u64, u64))| {
            // Only some messages request a completion, so messages complete in groups. Therefore the part may
            // be longer than a tenth.
            let &(to, after) = self.samples[i..].iter().find(|(_, after)| after - before >= self.part)?;
            (to > from).then(|| (after - before) as f64 / (to - from) as f64)
        };
        self.samples.iter().enumerate().filter_map(rate).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_fastest_tenth() {
        let mut meter = Meter::new(Some(500));
        assert_eq!((meter.part, meter.step), (50, 5));
        // Each sample adds 10 messages. Five samples take 100 cycles each, and the other samples take 1000
        // cycles each.
        let mut now = 0;
        for sample in 0..50 {
            now += if (20..25).contains(&sample) { 100 } else { 1000 };
            meter.samples.push((now, 10 * (sample + 1)));
        }
        assert!((meter.peak_messages_per_cycle() - 50.0 / 500.0).abs() < 1e-9);
    }

    #[test]
    fn all_completions_at_once_are_no_peak() {
        let mut meter = Meter::new(Some(100));
        meter.see(100);
        meter.see(100);
        assert_eq!((meter.samples.len(), meter.peak_messages_per_cycle()), (1, 0.0));
    }

    #[test]
    fn a_run_by_time_or_a_short_one_has_no_peak() {
        for total in [None, Some(5)] {
            let mut meter = Meter::new(total);
            meter.see(1);
            meter.see(5);
            assert_eq!(meter.peak_messages_per_cycle(), 0.0);
        }
    }
}
