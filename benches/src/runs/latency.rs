//! Latency: one message is in flight at a time.
//!
//! Writes and Sends go back and forth. Each side measures the time from one of its posts to the next, and
//! reports half of that time. With Writes the *server* begins, as in `ib_write_lat`. The last byte of a Write
//! is a counter that starts with 1, and the receiver polls this byte in memory. With Sends the client begins.
//! Reads and atomics are posted only by the client, and the whole time from post to post is reported.

use dp::Clock;

use super::cpu_time::CpuTime;
use crate::endpoint::Endpoint;
use crate::errors::Error;
use crate::latency::Latencies;
use crate::live::{Live, Snapshot};
use crate::params::Verb;
use crate::path::Path;
use crate::perftest::exchange::Control;
use crate::profile::Profiling;
use crate::runs::{Figures, Row};
use crate::silence::SilenceDetector;

const DOING: &str = "measuring";

/// Runs one size on the only queue pair. If there is an error, the row covers the time until the error.
///
/// # Errors
/// Returns [`Error::Silent`] if nothing arrives within the time limit, [`Error::Disconnected`] if the
/// connection ends, [`Error::Interrupted`] if the run is interrupted, or an error of [`Path`].
pub fn run(
    end: &mut Endpoint,
    control: &mut Control,
    path: &mut Path,
    limit: Option<u64>,
    live: &mut Live,
) -> (Row, Result<(), Error>) {
    let verb = path.params.test.verb();
    let posts_first = match verb {
        Verb::Write => !control.is_client,
        Verb::Send | Verb::WriteImmediate | Verb::Read | Verb::Atomic => control.is_client,
    };
    let profiling = Profiling::start(end);
    let mut turns = Turns::new(end, path, limit, verb);
    live.start(turns.moment(end, path), if turns.limit.is_some() { 0 } else { turns.deadline });
    let outcome = if verb.is_answered() {
        turns.reads(end, control, path, live)
    } else {
        turns.back_and_forth(end, control, path, posts_first, live)
    };
    let profile = profiling.map(|profiling| profiling.stop(end));
    (Row { profile, is_partial: outcome.is_err(), ..turns.row(end, path) }, outcome)
}

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// The message arrived.
    Arrived,
    /// The duration of the run ended at least a second ago, or the peer has sent on the control connection.
    Over,
}

struct Turns {
    latencies: Latencies,
    busy_at_start: u64,
    last_post: Option<u64>,
    /// Number of cycles of a round trip that ended with the last post and is not recorded yet.
    unrecorded: Option<u64>,
    started: u64,
    deadline: u64,
    limit: Option<u64>,
    hz: u64,
    posted: u64,
    cpu: CpuTime,
    /// Each round trip in cycles, if the user wants each latency.
    samples: Option<Vec<u64>>,
}

impl Turns {
    fn new(end: &Endpoint, path: &Path, limit: Option<u64>, verb: Verb) -> Self {
        let (hz, params) = (end.clock.hz(), &path.params);
        let started = Clock::cycles();
        Self {
            latencies: Latencies::new(!verb.is_answered()),
            busy_at_start: end.driver.counters().busy_cycles,
            last_post: None,
            unrecorded: None,
            started,
            deadline: started + u64::from(params.duration_s) * hz,
            limit,
            hz,
            posted: 0,
            cpu: CpuTime::now(),
            samples: end.keeps_samples.then(Vec::new),
        }
    }

    fn moment(&self, end: &Endpoint, path: &Path) -> Snapshot {
        Snapshot {
            now: Clock::cycles(),
            messages: self.posted,
            size: path.size(),
            counters: end.driver.counters(),
            latency_us: Some(self.latencies.median_and_p99_us()),
        }
    }

    fn record(&mut self, cycles: u64) {
        self.latencies.record_cycles(cycles, self.hz);
        if let Some(samples) = &mut self.samples {
            samples.push(cycles);
        }
    }

    fn row(&self, end: &Endpoint, path: &Path) -> Row {
        let ended = Clock::cycles();
        Row {
            size: path.size(),
            messages: self.posted,
            figures: Figures::Latency(self.latencies.summary(self.posted)),
            confirmed: true,
            busy_cycles: end.driver.counters().busy_cycles - self.busy_at_start,
            distribution: self.latencies.distribution(),
            queue_pairs: path.params.qps,
            span: (self.started, ended),
            cpu_percent: self.cpu.percent_since(ended.saturating_sub(self.started) as f64 / self.hz as f64),
            samples_us: self
                .samples
                .iter()
                .flatten()
                .map(|&cycles| self.latencies.us(cycles, self.hz))
                .collect(),
            ..Row::default()
        }
    }

    fn is_over(&self) -> bool {
        match self.limit {
            Some(limit) => self.posted >= limit,
            None => Clock::cycles() >= self.deadline,
        }
    }

    fn post(&mut self, path: &mut Path) -> Result<(), Error> {
        let number = self.posted;
        let now = Clock::cycles();
        // The round trip is recorded after the message was sent, so that no message waits for the statistics
        // of the previous message.
        self.unrecorded = self.last_post.replace(now).map(|last| now.saturating_sub(last));
        self.posted += 1;
        // perftest's last byte is a counter that starts with 1 and wraps.
        path.post_ping(number, counter(number))
    }

    fn reads(
        &mut self,
        end: &mut Endpoint,
        control: &mut Control,
        path: &mut Path,
        live: &mut Live,
    ) -> Result<(), Error> {
        while !self.is_over() {
            self.post(path)?;
            let number = self.posted;
            self.wait(end, control, path, live, |path| Ok(path.flows[0].completed >= number))?;
        }
        if let Some(last) = self.last_post {
            self.record(Clock::cycles().saturating_sub(last));
        }
        Ok(())
    }

    fn back_and_forth(
        &mut self,
        end: &mut Endpoint,
        control: &mut Control,
        path: &mut Path,
        posts_first: bool,
        live: &mut Live,
    ) -> Result<(), Error> {
        let mut arrived = 0;
        if posts_first {
            self.post(path)?;
        }
        // With a limit, both sides post and receive the same number of messages. The side that does not post
        // first posts last.
        while self.limit.is_none_or(|limit| arrived < limit) {
            if self.arrival(end, control, path, live, arrived)? == Waited::Over {
                break;
            }
            arrived += 1;
            if self.is_over() {
                if self.limit.is_none() {
                    break;
                }
                continue;
            }
            self.post(path)?;
        }
        let posted = self.posted;
        self.wait(end, control, path, live, |path| Ok(path.flows[0].completed >= posted)).map(|_waited| ())
    }

    fn arrival(
        &mut self,
        end: &mut Endpoint,
        control: &mut Control,
        path: &mut Path,
        live: &mut Live,
        number: u64,
    ) -> Result<Waited, Error> {
        if path.params.test.verb() == Verb::Send {
            return self.wait(end, control, path, live, |path| Ok(path.flows[0].received > number));
        }
        let expected = counter(number);
        let waited = self.wait(end, control, path, live, |path| Ok(path.last_byte()? == expected))?;
        if waited == Waited::Arrived {
            path.check_ping(number)?;
        }
        Ok(waited)
    }

    fn wait(
        &mut self,
        end: &mut Endpoint,
        control: &mut Control,
        path: &mut Path,
        live: &mut Live,
        mut look: impl FnMut(&Path) -> Result<bool, Error>,
    ) -> Result<Waited, Error> {
        let mut silence = SilenceDetector::new(end);
        loop {
            let polled = end.driver.poll()?;
            if let Some(cycles) = self.unrecorded.take() {
                self.record(cycles);
                if live.is_due() {
                    live.show(self.moment(end, path));
                    // Showing the figures has taken time, so the round trip of the message in flight is not
                    // recorded.
                    self.last_post = None;
                }
            }
            let moved = polled | path.poll()?;
            if look(path)? {
                end.driver.busy();
                return Ok(Waited::Arrived);
            }
            if moved {
                end.driver.busy();
                continue;
            }
            end.driver.idle()?;
            if !silence.check(end, DOING)? {
                continue;
            }
            if self.limit.is_none() && (control.has_message()? || Clock::cycles() >= self.deadline + self.hz)
            {
                return Ok(Waited::Over);
            }
            if let Some(error) = end.ended(&path.flows[0].id) {
                // A message that arrived just before the end also counts.
                path.poll()?;
                return if look(path)? {
                    Ok(Waited::Arrived)
                } else {
                    Err(Error::Disconnected { doing: DOING, error })
                };
            }
        }
    }
}

/// The last byte of message `number`: a counter that starts with 1 and wraps.
fn counter(number: u64) -> u8 {
    (number + 1) as u8
}
