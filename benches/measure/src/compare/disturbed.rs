//! Detects runs whose pollers lost their CPU. A pinned poller that is descheduled for a while can halve the
//! figure of a short run, so such a run is repeated.
//!
//! The sides of a run are child processes. `getrusage` reports the involuntary context switches of children
//! that have ended. While it measures, a poller does not sleep. So each such switch means that the scheduler
//! gave the CPU to another thread. Streams over the kernel's TCP are not watched, since the kernel's own work
//! for them (`ksoftirqd`) uses their CPU and is part of the measurement. Ping-pongs over the kernel's TCP are
//! watched, since their ends poll like ours.

use std::cell::Cell;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use testing::lab::Result;
use testing::lab_error;

/// A run counts as disturbed if its two sides together have at least this many involuntary context switches
/// per second. On an idle machine, kernel threads cause about ten switches per second. A program that
/// competes for the CPU causes one switch for each time slice of 3 or 4 ms, which is well over a hundred per
/// second.
const DISTURBED_PER_S: f64 = 60.0;

/// The watched runs so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RunCount {
    /// Number of watched runs, including repeats.
    runs: u32,
    disturbed: u32,
    /// Number of disturbed runs whose figure is in the table, since their repeats were also disturbed.
    counted: u32,
}

impl RunCount {
    pub(crate) fn any(&self) -> bool {
        self.runs > 0
    }

    /// Returns the number of runs whose pollers lost their CPU and whose figure counts, and the number of all
    /// runs.
    pub(crate) fn counted(&self) -> [u32; 2] {
        [self.counted, self.runs]
    }
}

impl std::fmt::Display for RunCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { runs, disturbed, counted } = *self;
        let share = 100.0 * f64::from(disturbed) / f64::from(runs.max(1));
        write!(
            f,
            "{disturbed} of {runs} runs of pollers were disturbed ({share:.0} %: {DISTURBED_PER_S} or more \
             context switches a second); each was repeated, but {counted} in the table had no better repeat"
        )
    }
}

/// Calls `run`, and watches the child processes that `run` starts and waits for. Repeats a disturbed run at
/// most `repeats` times. If all runs are disturbed, the least disturbed run counts.
///
/// # Errors
/// Returns the first error of `run`, or an error if the system does not report context switches.
pub(crate) fn undisturbed<T>(
    count: &Cell<RunCount>,
    repeats: u32,
    mut run: impl FnMut() -> Result<T>,
) -> Result<T> {
    quietest(count, repeats, || {
        let (before, started) = (involuntary_switches()?, Instant::now());
        let figure = run()?;
        let switches = involuntary_switches()? - before;
        Ok((figure, switches as f64 / started.elapsed().as_secs_f64()))
    })
}

/// Calls `run` as [`undisturbed`] does, but for runs that return their context switches per second.
fn quietest<T>(count: &Cell<RunCount>, repeats: u32, mut run: impl FnMut() -> Result<(T, f64)>) -> Result<T> {
    let mut quietest: Option<(T, f64)> = None;
    for _ in 0..=repeats {
        let (figure, per_s) = run()?;
        let (mut so_far, is_disturbed) = (count.get(), per_s >= DISTURBED_PER_S);
        so_far.runs += 1;
        so_far.disturbed += u32::from(is_disturbed);
        count.set(so_far);
        if !is_disturbed {
            return Ok(figure);
        }
        if repeats > 0 {
            eprintln!("  disturbed: {per_s:.0} context switches a second");
        }
        if quietest.as_ref().is_none_or(|(_, least)| per_s < *least) {
            quietest = Some((figure, per_s));
        }
    }
    let mut so_far = count.get();
    so_far.counted += 1;
    count.set(so_far);
    quietest.map(|(figure, _)| figure).ok_or_else(|| lab_error!("nothing was run"))
}

/// Returns the number of involuntary context switches of all children of this process that have ended and for
/// which this process has waited.
fn involuntary_switches() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| lab_error!("getrusage: {error}"))?;
    Ok(usage.involuntary_context_switches())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testing::lab::Run;

    use super::*;

    /// Chooses the run whose figure counts. `switches` has the context switches per second of each run.
    /// Returns the index of the chosen run, and the counts of runs.
    fn take(switches: &[f64], repeats: u32) -> (usize, RunCount) {
        let (count, mut next) = (Cell::default(), 0);
        let taken = quietest(&count, repeats, || {
            next += 1;
            Ok((next - 1, switches[next - 1]))
        });
        (taken.unwrap(), count.get())
    }

    #[test]
    fn a_quiet_run_is_taken_at_once() {
        assert_eq!(take(&[59.0], 2), (0, RunCount { runs: 1, disturbed: 0, counted: 0 }));
    }

    #[test]
    fn a_disturbed_run_is_repeated_until_one_is_quiet() {
        assert_eq!(take(&[300.0, 60.0, 3.0], 2), (2, RunCount { runs: 3, disturbed: 2, counted: 0 }));
    }

    #[test]
    fn repeats_are_bounded_and_the_least_disturbed_run_counts() {
        assert_eq!(take(&[300.0, 100.0, 200.0], 2), (1, RunCount { runs: 3, disturbed: 3, counted: 1 }));
        assert_eq!(take(&[300.0], 0), (0, RunCount { runs: 1, disturbed: 1, counted: 1 }));
    }

    #[test]
    fn an_error_is_no_run_and_is_not_repeated() {
        let (count, mut calls) = (Cell::default(), 0);
        let error = quietest(&count, 2, || {
            calls += 1;
            Err::<((), f64), _>(lab_error!("no"))
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), calls, count.get().any()), ("no", 1, false));
    }

    #[test]
    fn the_share_is_said() {
        let text = RunCount { runs: 8, disturbed: 2, counted: 1 }.to_string();
        assert!(text.starts_with("2 of 8 runs") && text.contains("25 %"), "{text}");
    }

    #[test]
    fn two_programs_on_one_cpu_disturb_each_other() {
        let cpu = crate::compare::cpus::two_cpus().unwrap()[0];
        let spin = || Run::new("timeout").args(["0.5", "sh", "-c", "while :; do :; done"]).pinned(cpu);
        let before = involuntary_switches().unwrap();
        let both = [spin().spawn().unwrap(), spin().spawn().unwrap()];
        for one in both {
            let ended = one.finish(Duration::from_secs(20)).unwrap();
            assert_eq!(ended.status.code(), Some(124), "{}", ended.text);
        }
        let switches = involuntary_switches().unwrap() - before;
        // On an idle machine, the two programs cause well over a hundred switches. If other programs use most
        // of the half second, there are fewer switches.
        assert!(switches > 5, "{switches}");
    }
}
