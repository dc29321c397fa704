//! Makes many runs, and reports the runs that failed.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dp::pcap::Tap;

use super::coverage::OccurrenceTotals;
use super::run::{Stats, Violation, run};
use super::scenario::Scenario;
use super::setup::Setup;

/// A failed run, with the information that is needed to replay it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The scenario of the run.
    pub scenario: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// The broken rule.
    pub violation: Violation,
    /// The files with the frames captured at each host.
    pub captures: Vec<PathBuf>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, violation: Violation { at_us, what, state }, captures } = self;
        writeln!(f, "scenario {scenario}, seed {seed}, at {at_us} us: {what}")?;
        write!(f, "{state}")?;
        for capture in captures {
            writeln!(f, "capture: {}", capture.display())?;
        }
        write!(
            f,
            "cargo run -p tests --no-default-features --bin simulate -- --scenario {scenario} --seed {seed} --pcap FILE"
        )
    }
}

/// Makes one run. A panic counts as a violation. With `captures`, writes the frames of each host to these
/// files.
///
/// # Errors
/// The first broken rule.
pub fn attempt(scenario: &Scenario, seed: u64, captures: Option<&[PathBuf; 2]>) -> Result<Stats, Violation> {
    attempt_of(&scenario.setup(seed), seed, captures)
}

/// Makes the run of `setup`, as [`attempt`] makes the run of a scenario.
///
/// # Errors
/// The first broken rule.
pub fn attempt_of(setup: &Setup, seed: u64, captures: Option<&[PathBuf; 2]>) -> Result<Stats, Violation> {
    let mut wrap = |side: usize, port: Box<dyn dp::Port>| -> std::io::Result<Box<dyn dp::Port>> {
        match captures {
            None => Ok(port),
            Some(paths) => {
                let path = queue_path(&paths[side], port.info().queue.index);
                Ok(Box::new(Tap::new(port, Box::new(File::create(path)?), Some(0))?))
            }
        }
    };
    match catch_unwind(AssertUnwindSafe(|| run(setup, seed, &mut wrap))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            Err(Violation { at_us: 0, what: format!("panicked: {text}"), state: String::new() })
        }
    }
}

/// Returns the path of the capture of one queue of a host: the path of the host for the first queue, and
/// `NAME.q1.pcapng` for the second.
fn queue_path(host: &Path, queue: u16) -> PathBuf {
    if queue == 0 { host.to_owned() } else { host.with_extension(format!("q{queue}.pcapng")) }
}

/// Returns the paths of the captures of a failed run, one for each host.
pub fn capture_paths(base: &Path) -> [PathBuf; 2] {
    ["a", "b"].map(|side| base.with_extension(format!("{side}.pcapng")))
}

/// Makes one run. If the run fails, repeats it with captures.
///
/// # Errors
/// The failed run.
pub fn check(scenario: &Scenario, seed: u64) -> Result<Stats, Box<Failure>> {
    attempt(scenario, seed, None).map_err(|violation| {
        let base = std::env::temp_dir().join(format!("uwarp-sim-{}-{seed}", scenario.name));
        let paths = capture_paths(&base);
        let again = attempt(scenario, seed, Some(&paths)).err();
        let same = again.is_some_and(|again| again.what == violation.what);
        let mut violation = violation;
        if !same {
            violation.state +=
                "the run with captures differed: something does not depend on the seed alone\n";
        }
        Box::new(Failure { scenario: scenario.name, seed, violation, captures: paths.to_vec() })
    })
}

/// The totals of many runs. All totals except `seeds` and `failures` count only the runs that passed.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// Number of runs.
    pub seeds: u64,
    /// Number of runs that failed.
    pub failures: u64,
    /// Number of bytes delivered and checked.
    pub bytes: u64,
    /// Number of operations completed and checked.
    pub operations: u64,
    /// Number of frames sent.
    pub frames: u64,
    /// Number of frames lost.
    pub lost: u64,
    /// Number of segments retransmitted.
    pub retransmits: u64,
    /// Number of segments split, as counted by the stack.
    pub cuts: u64,
    /// Number of times that a path MTU was raised.
    pub raises: u64,
    /// Number of bytes, or of FPDUs, that a receiver accepted ahead of the next expected byte.
    pub early: u64,
    /// Faults and events in the runs that passed.
    pub occurrences: OccurrenceTotals,
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seeds, failures, bytes, operations, frames, lost, retransmits, cuts, raises, early, ..
        } = self;
        write!(
            f,
            "seeds {seeds} failures {failures} bytes {bytes} operations {operations} frames {frames} lost {lost} \
             retransmits {retransmits} cuts {cuts} raises {raises} early {early}"
        )
    }
}

/// Makes the runs `jobs` on as many threads as there are cores, and calls `failed` for each failure. With `n`
/// scenarios, job `j` is seed `j / n` of scenario `j % n`. With one scenario, the number of a job is its
/// seed.
pub fn check_all(scenarios: &[Scenario], jobs: Range<u64>, failed: &(dyn Fn(&Failure) + Sync)) -> Total {
    check_all_with(scenarios, jobs, failed, &|_, _| {})
}

/// Makes the runs as [`check_all`] does, and also calls `held` for each job that passed.
pub fn check_all_with(
    scenarios: &[Scenario],
    jobs: Range<u64>,
    failed: &(dyn Fn(&Failure) + Sync),
    held: &(dyn Fn(u64, &Stats) + Sync),
) -> Total {
    let next = AtomicU64::new(jobs.start);
    let count = scenarios.len().max(1) as u64;
    let total = Mutex::new(Total::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Total::default();
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get((job % count) as usize).filter(|_| job < jobs.end)
                    else {
                        break;
                    };
                    own.seeds += 1;
                    match check(scenario, job / count) {
                        Ok(stats) => {
                            held(job / count, &stats);
                            own.add(&stats);
                        }
                        Err(failure) => {
                            own.failures += 1;
                            failed(&failure);
                        }
                    }
                }
                if let Ok(mut total) = total.lock() {
                    total.join(&own);
                }
            });
        }
    });
    total.into_inner().unwrap_or_default()
}

impl Total {
    fn add(&mut self, stats: &Stats) {
        self.bytes += stats.transferred.bytes;
        self.operations += stats.transferred.operations;
        self.frames += stats.frames;
        self.lost += stats.lost;
        self.retransmits += stats.transferred.retransmits;
        self.cuts += stats.transferred.cuts;
        self.raises += stats.transferred.raises;
        self.early += stats.transferred.early;
        self.occurrences.add(&stats.coverage);
    }

    /// Adds the totals of `other`.
    pub fn join(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.failures += other.failures;
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.frames += other.frames;
        self.lost += other.lost;
        self.retransmits += other.retransmits;
        self.cuts += other.cuts;
        self.raises += other.raises;
        self.early += other.early;
        self.occurrences.join(&other.occurrences);
    }
}
