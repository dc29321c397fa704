//! The distance of the two cores: the time that a cache line takes from one core to the other. A hypervisor
//! may move a virtual CPU to another core at any time, and the distance may then be several times as long.
//! Figures that were measured at different distances cannot be compared.
//!
//! So the distance is measured right before and right after each run that uses both cores. If the cores moved
//! between the two runs of a pair, or during a run, both runs are repeated ([`steadiest`]).

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use testing::lab::Result;
use testing::lab_error;

use crate::compare::cpus::pin;

/// The cores have moved if the longest distance is more than this multiple of the shortest distance. Without
/// a move, the distances differ by less than a tenth. A move to another chip multiplies the distance by
/// three.
const MOVED: f64 = 1.5;

/// The shortest and the longest of several distances, in ns for one way of a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Distances {
    least_ns: f64,
    most_ns: f64,
}

impl Distances {
    pub(crate) fn of(ns: f64) -> Self {
        Self { least_ns: ns, most_ns: ns }
    }

    /// Returns the distances of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { least_ns: self.least_ns.min(other.least_ns), most_ns: self.most_ns.max(other.most_ns) }
    }

    fn ratio(self) -> f64 {
        self.most_ns / self.least_ns
    }

    /// Whether the cores stayed where they were.
    pub(crate) fn are_equal(self) -> bool {
        self.ratio() <= MOVED
    }
}

/// Formats one figure if the cores did not move, and otherwise the shortest and the longest distance.
impl fmt::Display for Distances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least_ns, most_ns } = *self;
        match self.are_equal() {
            true => write!(f, "{:.0} ns", f64::midpoint(least_ns, most_ns)),
            false => write!(f, "{least_ns:.0}..{most_ns:.0} ns"),
        }
    }
}

/// Returns the distances of both runs, or those of the run that has distances.
pub(crate) fn both(first: Option<Distances>, second: Option<Distances>) -> Option<Distances> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.and(second)),
        (first, second) => first.or(second),
    }
}

/// The result of one or more runs, and the distances before and after each run. There are no distances if
/// both sides share one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranged<T> {
    pub(crate) result: T,
    pub(crate) distances: Option<Distances>,
}

impl<T> Ranged<T> {
    /// Returns another result of the same runs.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Ranged<U> {
        let Self { result, distances } = self;
        Ranged { result: change(result), distances }
    }
}

/// The limits of the repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeats {
    /// Maximum number of repeats of a pair.
    pub(crate) pair: u32,
    /// The time that the repeats of all pairs may take together. A repeat that has begun is finished.
    pub(crate) time: Duration,
}

impl Repeats {
    /// Whether a pair is measured again: the cores moved, and the limits allow another repeat after `done`
    /// repeats of this pair, and after `spent` for the repeats of all pairs.
    fn again(self, distances: Option<Distances>, done: u32, spent: Duration) -> bool {
        let moved = distances.is_some_and(|distances| !distances.are_equal());
        moved && done < self.pair && spent < self.time
    }
}

/// Calls `attempt` with `false`, and then with `true` as long as the cores moved and `repeats` allows this.
/// Returns the attempt whose distances differ least. `spent` is the time that all repeats took so far.
///
/// # Errors
/// Returns the first error of `attempt`.
pub(crate) fn steadiest<T>(
    repeats: Repeats,
    spent: &Cell<Duration>,
    mut attempt: impl FnMut(bool) -> Result<Ranged<T>>,
) -> Result<Ranged<T>> {
    let (mut best, mut done) = (attempt(false)?, 0);
    while repeats.again(best.distances, done, spent.get()) {
        if let Some(distances) = best.distances {
            eprintln!("  measured again: the distance of the cores was {distances}");
        }
        let started = Instant::now();
        let next = attempt(true)?;
        spent.set(spent.get() + started.elapsed());
        done += 1;
        let ratio = |ranged: &Ranged<T>| ranged.distances.map_or(1.0, Distances::ratio);
        if ratio(&next) < ratio(&best) {
            best = next;
        }
    }
    Ok(best)
}

/// Number of round trips that are timed together, and the number of such batches. All batches together take
/// about 5 ms if the cores are far apart.
const BATCH: u32 = 16;
const BATCHES: usize = 500;

/// No batch begins after this time. The time is reached only if other programs use the CPUs.
const LIMIT: Duration = Duration::from_millis(100);

/// The value that ends the answering thread.
const END: u32 = u32::MAX;

/// A number in a cache line of its own. The line is twice as long, since processors also fetch the line
/// beside a line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU32);

/// Measures the distance of two cores. Returns `None` if both are the same core.
///
/// # Errors
/// Fails if this process may not use the CPUs.
pub(crate) fn measure([first, second]: [usize; 2]) -> Result<Option<Distances>> {
    if first == second {
        return Ok(None);
    }
    let (question, answer) = (Line::default(), Line::default());
    let batches = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let batches = pin(first).map(|()| ask(&question.0, &answer.0));
            question.0.store(END, Ordering::Release);
            batches
        });
        let answering = scope.spawn(|| {
            let pinned = pin(second);
            reply(&question.0, &answer.0);
            pinned
        });
        let answered = answering.join().map_err(|_| lab_error!("the answering thread panicked"))?;
        let batches = asking.join().map_err(|_| lab_error!("the asking thread panicked"))??;
        answered.and(Ok(batches))
    })?;
    Ok(Some(Distances::of(one_way_ns(batches))))
}

/// Sends numbers there and back. Returns the time of each batch in ns.
fn ask(question: &AtomicU32, answer: &AtomicU32) -> Vec<f64> {
    let (mut batches, begun, mut number) = (Vec::with_capacity(BATCHES), Instant::now(), 0);
    while batches.len() < BATCHES && (batches.is_empty() || begun.elapsed() < LIMIT) {
        let started = Instant::now();
        for _ in 0..BATCH {
            number += 1;
            question.store(number, Ordering::Release);
            while answer.load(Ordering::Acquire) != number {}
        }
        batches.push(started.elapsed().as_nanos() as f64);
    }
    batches
}

/// Sends each number back, until the number is [`END`].
fn reply(question: &AtomicU32, answer: &AtomicU32) {
    let mut last = 0;
    while last != END {
        let number = question.load(Ordering::Acquire);
        if number != last {
            answer.store(number, Ordering::Release);
            last = number;
        }
    }
}

/// Returns the time in ns of one way in the median batch. The times of the batches are in ns, and there is at
/// least one batch.
fn one_way_ns(mut batches: Vec<f64>) -> f64 {
    batches.sort_by(f64::total_cmp);
    batches[batches.len() / 2] / f64::from(2 * BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cpus::two_cpus;

    fn between(least_ns: f64, most_ns: f64) -> Option<Distances> {
        Some(Distances { least_ns, most_ns })
    }

    const ONCE: Repeats = Repeats { pair: 1, time: Duration::from_secs(10) };

    #[test]
    fn cores_have_moved_if_a_distance_is_more_than_half_as_long_again() {
        let again = |distances| ONCE.again(distances, 0, Duration::ZERO);
        assert!(!again(between(80.0, 80.0)) && !again(between(80.0, 120.0)) && !again(None));
        assert!(again(between(80.0, 121.0)) && again(between(80.0, 300.0)));
    }

    #[test]
    fn repeats_of_a_pair_and_of_all_pairs_are_bounded() {
        let repeats = Repeats { pair: 2, ..ONCE };
        let again = |done, spent| repeats.again(between(80.0, 300.0), done, Duration::from_secs(spent));
        assert!(again(0, 0) && again(1, 9));
        assert!(!again(2, 0) && !again(0, 10) && !again(0, 11));
    }

    /// Makes attempts with these distances. Returns the index of the attempt that counts, the number of
    /// attempts, and the arguments of the attempts.
    fn attempts(repeats: Repeats, distances: &[Option<Distances>]) -> (usize, Vec<bool>) {
        let mut again = Vec::new();
        let best = steadiest(repeats, &Cell::default(), |is_again| {
            again.push(is_again);
            Ok(Ranged { result: again.len() - 1, distances: distances[again.len() - 1] })
        });
        let best = best.unwrap();
        assert_eq!(best.distances, distances[best.result]);
        (best.result, again)
    }

    #[test]
    fn a_pair_is_repeated_until_the_cores_stay() {
        let [near, far, moved] = [between(80.0, 84.0), between(300.0, 310.0), between(80.0, 300.0)];
        let repeats = Repeats { pair: 3, ..ONCE };
        assert_eq!(attempts(repeats, &[near]), (0, vec![false]));
        assert_eq!(attempts(repeats, &[None]), (0, vec![false]));
        assert_eq!(attempts(repeats, &[moved, far]), (1, vec![false, true]));
        assert_eq!(attempts(repeats, &[moved, moved, near]), (2, vec![false, true, true]));
    }

    #[test]
    fn the_attempt_whose_distances_differ_least_counts() {
        let all = [between(80.0, 300.0), between(100.0, 200.0), between(80.0, 300.0)];
        assert_eq!(attempts(Repeats { pair: 2, ..ONCE }, &all), (1, vec![false, true, true]));
        assert_eq!(attempts(Repeats { pair: 0, ..ONCE }, &all), (0, vec![false]));
    }

    #[test]
    fn time_of_repeats_is_added_up_and_no_first_attempt_costs() {
        let spent = Cell::new(Duration::ZERO);
        let run = |distances| {
            let wait = Duration::from_millis(2);
            let result = steadiest(ONCE, &spent, |again| {
                std::thread::sleep(wait);
                Ok(Ranged { result: again, distances })
            });
            (result.unwrap().result, spent.get() >= wait)
        };
        assert_eq!(run(between(80.0, 80.0)), (false, false));
        assert_eq!(spent.get(), Duration::ZERO);
        // The repeat is no better than the first attempt, so the first attempt counts.
        assert_eq!(run(between(80.0, 300.0)), (false, true));
        run(between(80.0, 300.0));
        assert!(spent.get() >= Duration::from_millis(4), "two repeats took at least 2 ms each");
    }

    #[test]
    fn an_error_ends_the_attempts() {
        let mut calls = 0;
        let result = steadiest(ONCE, &Cell::default(), |again| {
            calls += 1;
            if again {
                Err(lab_error!("no"))
            } else {
                Ok(Ranged { result: (), distances: between(1.0, 9.0) })
            }
        });
        assert_eq!((result.unwrap_err().to_string().as_str(), calls), ("no", 2));
    }

    #[test]
    fn one_distance_is_one_figure_and_two_are_a_range() {
        let text = |least, most| between(least, most).unwrap().to_string();
        assert_eq!(text(80.2, 80.2), "80 ns");
        assert_eq!(text(80.0, 90.0), "85 ns");
        assert_eq!(text(80.4, 300.0), "80..300 ns");
    }

    #[test]
    fn distances_of_two_runs_cover_both() {
        assert_eq!(both(between(80.0, 90.0), between(70.0, 85.0)), between(70.0, 90.0));
        assert_eq!(both(between(80.0, 90.0), None), between(80.0, 90.0));
        assert_eq!(both(None, between(80.0, 90.0)), between(80.0, 90.0));
        assert_eq!(both(None, None), None);
    }

    #[test]
    fn the_median_batch_counts_and_a_round_trip_is_two_ways() {
        assert_eq!(one_way_ns(vec![9e9, 2560.0, 2.0]), 80.0);
        assert_eq!(one_way_ns(vec![9600.0]), 300.0);
    }

    #[test]
    fn each_number_comes_back() {
        let (question, answer) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| reply(&question, &answer));
            let batches = ask(&question, &answer);
            assert!((1..=BATCHES).contains(&batches.len()));
            assert_eq!(answer.load(Ordering::Acquire), BATCH * batches.len() as u32);
            question.store(END, Ordering::Release);
        });
    }

    #[test]
    fn cores_are_apart_and_one_core_is_not() {
        let cpus = two_cpus().unwrap();
        assert_eq!(measure([cpus[0]; 2]).unwrap(), None);
        if cpus[0] != cpus[1] {
            let Distances { least_ns, most_ns } = measure(cpus).unwrap().unwrap();
            // Light takes 1 ns for 30 cm. A busy machine may take a time slice for a round trip.
            assert!(least_ns > 0.5 && least_ns == most_ns && least_ns < 1e9, "{least_ns}");
        }
        assert!(measure([cpus[0], usize::MAX]).is_err());
    }
}
