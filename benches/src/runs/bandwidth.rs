//! Bandwidth: as many messages as depth, credit and window allow, until the target has confirmed the last
//! one.
//!
//! The average counts from the first post to the confirmation. If the peer is perftest, Writes are not
//! confirmed, and the average ends with the last completion, as in perftest.

use dp::Clock;

use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::params::Params;
use crate::path::Path;
use crate::perftest::exchange::Control;
use crate::profile::{Profiled, Profiling};
use crate::progress::Progress;
use crate::runs::{BandwidthRow, Figures, LoadFigures, Row};
use crate::silence::SilenceDetector;

/// The role of this end in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// It posts messages.
    pub source: bool,
    /// The peer posts messages, and this end counts the Sends among them.
    pub target: bool,
    /// The peer is perftest: the target of Sends has to count them, because nothing else shows that all have
    /// arrived.
    pub counts: bool,
}

/// One run, as long as it can still be prolonged.
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
    /// The profile of this end's thread, if it was profiled.
    pub profile: Option<Profiled>,
}

impl Run {
    /// Moves the end of the run to now: the target has just confirmed it.
    pub fn prolong(&mut self, end: &Endpoint) {
        self.ended = Clock::cycles();
        self.busy_cycles = end.driver.counters().busy_cycles - self.busy_at_start;
    }

    /// Counts the received messages: this end was the target.
    pub fn received(&mut self, path: &Path) {
        self.messages = path.received();
    }

    /// The row of the table.
    pub fn row(&self, confirmed: bool) -> Row {
        let seconds = (self.ended.saturating_sub(self.started)).max(1) as f64 / self.hz as f64;
        let messages_per_s = self.messages as f64 / seconds;
        let average = messages_per_s * f64::from(self.size);
        let row = BandwidthRow {
            bytes: u64::from(self.size),
            iterations: self.messages,
            // A short run is a single part, and does not include the time of its confirmation.
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
            ..Row::default()
        }
        .with_distribution()
    }
}

/// Runs until this end's part is done: as the source, when everything is confirmed; as a mere target, when
/// the peer sends on the control connection.
///
/// # Errors
/// [`Error::Silent`], [`Error::Disconnected`], [`Error::Completion`].
pub fn run(
    end: &mut Endpoint,
    control: &mut Control,
    path: &mut Path,
    part: Part,
    progress: &mut Progress,
) -> Result<Run, Error> {
    const DOING: &str = "measuring";
    let params = path.params.clone();
    let hz = end.clock.hz();
    let limit = (params.iters > 0).then_some(u64::from(params.iters));
    let total = limit.map(|limit| limit * u64::from(params.qps));
    let busy_at_start = end.driver.counters().busy_cycles;
    let mut meter = Meter::new(total);
    let mut silence = SilenceDetector::new(end);
    if let Some(rendezvous) = end.rendezvous.clone() {
        rendezvous.meet(|| {
            if !end.driver.poll()? {
                return end.driver.idle();
            }
            end.driver.busy();
            Ok(())
        })?;
    }
    let profiling = Profiling::start(end);
    let started = Clock::cycles();
    let deadline = started + u64::from(params.duration_s) * hz;
    let mut stopped = false;
    if part.source {
        path.start_pacing(started, hz);
    }
    loop {
        let mut moved = end.driver.poll()?;
        let mut worked = path.poll()?;
        if part.source && !stopped {
            worked |= path.post(limit)?;
            stopped = limit.is_none() && Clock::cycles() >= deadline;
            if stopped {
                path.stop_pacing(deadline);
            }
        }
        moved |= worked;
        if worked {
            let completed = path.completed();
            meter.see(completed);
            progress.at(completed, started, deadline);
        }
        if is_done(control, path, part, &params, limit, stopped)? {
            break;
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
        if let Some(error) = ended(end, control, path, part) {
            return Err(Error::Disconnected { doing: DOING, error });
        }
    }
    let ended = Clock::cycles();
    Ok(Run {
        size: path.size(),
        queue_pairs: params.qps,
        started,
        ended,
        busy_at_start,
        busy_cycles: end.driver.counters().busy_cycles - busy_at_start,
        messages: path.posted(),
        peak_bytes_per_s: meter.peak_messages_per_cycle() * hz as f64 * f64::from(path.size()),
        hz,
        load: path.take_load(),
        profile: profiling.map(|profiling| profiling.stop(end)),
    })
}

fn is_done(
    control: &mut Control,
    path: &mut Path,
    part: Part,
    params: &Params,
    limit: Option<u64>,
    stopped: bool,
) -> Result<bool, Error> {
    let counts = part.target && part.counts && params.test.verb().uses_receives();
    let counted = !counts || limit.is_none_or(|limit| path.received() >= limit * u64::from(params.qps));
    if part.source {
        let finished = limit.is_some() || stopped;
        return Ok(finished && path.source_done(limit)? && counted);
    }
    Ok(counted && control.has_message()?)
}

/// Whether a connection has ended that is still needed.
fn ended(
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

/// Finds the peak of a run: the shortest time in which a tenth of it completed.
///
/// perftest's peak is the fastest time from one post to its completion. With a send buffer in between, that
/// would measure a copy. A tenth of the run drains at the speed of the wire.
#[derive(Debug)]
struct Meter {
    /// Messages of a part; 0: no peak is wanted.
    part: u64,
    /// Fewest messages between two samples.
    step: u64,
    /// Times, each with the number of messages completed by then.
    samples: Vec<(u64, u64)>,
}

/// Most samples in a run.
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
            // Completions come in groups (moderation), so the part may be longer than a tenth.
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
        // 10 messages in each 1000 cycles, except for five samples of 100.
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
