//! One run of `compare`: its programs and CPUs, and the results of each row.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};
use testing::lab::{LabError, Result, Run};
use testing::lab_error;

use crate::compare::cpus;
use crate::compare::distance::{self, Distances, Ranged};
use crate::compare::disturbed::{RunCount, undisturbed};
use crate::compare::measures::Measure;
use crate::compare::options::{CompareOptions, Pace};
use crate::compare::sample::{Pair, Sample, Verdict, worst};

/// The programs, CPUs and options of a run.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) options: CompareOptions,
    pub(crate) pace: Pace,
    /// The cores of the two sides. If there is only one core, both sides use this core.
    pub(crate) cpus: [usize; 2],
    pub(crate) no_huge: bool,
    /// The runs of pollers so far.
    pub(crate) runs: Cell<RunCount>,
    /// The time that repeats took so far because the cores had moved.
    repeated: Cell<Duration>,
    /// Measures the distance of the two cores.
    distance: fn([usize; 2]) -> Result<Option<Distances>>,
    programs: PathBuf,
}

impl Session {
    /// Makes a run on the first two CPUs that this process may use. The programs of the run are in the folder
    /// of this program.
    ///
    /// # Errors
    /// Fails if the path of this program is unknown or has no folder, or if the system does not report the
    /// CPUs.
    pub(crate) fn new(options: CompareOptions) -> Result<Self> {
        let own = std::env::current_exe()?;
        let programs = own.parent().ok_or_else(|| lab_error!("{} has no folder", own.display()))?.to_owned();
        let no_huge = options.no_huge;
        let (pace, cpus, runs) = (options.pace(), cpus::two_cpus()?, Cell::default());
        let (repeated, distance) = (Cell::default(), distance::measure);
        Ok(Self { pace, cpus, no_huge, runs, repeated, distance, programs, options })
    }

    /// Returns the path of a program that was built together with this program.
    ///
    /// # Errors
    /// Fails if the program was not built.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.programs.join(name);
        if path.exists() {
            return Ok(path);
        }
        Err(lab_error!("{name} is not built (scripts/compare builds it)"))
    }

    /// Calls `run`, which runs pollers of ours or of the kernel. Calls `run` again if the pollers were
    /// disturbed.
    ///
    /// # Errors
    /// Returns the first error of `run`, or an error if the system does not report context switches.
    pub(crate) fn undisturbed<T>(&self, run: impl FnMut() -> Result<T>) -> Result<T> {
        undisturbed(&self.runs, self.pace.repeats, run)
    }

    /// Calls `run`, and measures the distance of the two cores before and after.
    ///
    /// # Errors
    /// Returns the error of `run`, or an error if this process may not use the cores.
    pub(crate) fn ranged<T>(&self, run: impl FnOnce() -> Result<T>) -> Result<Ranged<T>> {
        let before = (self.distance)(self.cpus)?;
        let result = run()?;
        let distances = distance::both(before, (self.distance)(self.cpus)?);
        Ok(Ranged { result, distances })
    }

    /// Calls `attempt` with `false`, and then with `true` as long as the cores moved and the limits of
    /// repeats allow this. Returns the attempt in which the cores moved least.
    ///
    /// # Errors
    /// Returns the first error of `attempt`.
    pub(crate) fn steadiest<T>(&self, attempt: impl FnMut(bool) -> Result<Ranged<T>>) -> Result<Ranged<T>> {
        distance::steadiest(self.pace.moved, &self.repeated, attempt)
    }

    /// Calls `theirs`, whose result is compared with `first`. If the cores moved during both runs or between
    /// them, calls `ours`, which measures `first` again, and then `theirs`.
    ///
    /// # Errors
    /// Returns the error of `first`, or the first error of the calls.
    pub(crate) fn beside<A: Clone, B>(
        &self,
        first: &Result<Ranged<A>>,
        mut ours: impl FnMut() -> Result<A>,
        mut theirs: impl FnMut() -> Result<B>,
    ) -> Result<Ranged<(A, B)>> {
        self.steadiest(|again| {
            let ours = if again { self.ranged(&mut ours) } else { first.clone() }?;
            let theirs = self.ranged(&mut theirs)?;
            let distances = distance::both(ours.distances, theirs.distances);
            Ok(Ranged { result: (ours.result, theirs.result), distances })
        })
    }

    /// Measures a pair of figures on two cores, in the order of the arguments.
    ///
    /// # Errors
    /// Returns the first error of the calls.
    pub(crate) fn pair(
        &self,
        mut ours: impl FnMut() -> Result<f64>,
        theirs: impl FnMut() -> Result<f64>,
    ) -> Result<Pair> {
        let first = self.ranged(&mut ours);
        self.beside(&first, ours, theirs).map(Pair::from)
    }

    /// Returns a run of another subcommand of this program.
    ///
    /// # Errors
    /// Fails if the system does not report the path of this program.
    pub(crate) fn part(command: &str) -> Result<Run> {
        Ok(Run::new(std::env::current_exe()?).arg(command))
    }
}

/// One measured row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) measure: &'static Measure,
    /// Samples by direction. A row without directions has one sample, named `both`, `memory` or `loss`.
    pub(crate) directions: Vec<(&'static str, Sample)>,
    /// The index of the sample of the worse direction. This sample is the row's result.
    pub(crate) counts: usize,
    /// Further results, for the JSON.
    pub(crate) also: Map<String, Value>,
}

impl Row {
    /// Returns the sample of the worse direction.
    pub(crate) fn sample(&self) -> &Sample {
        &self.directions[self.counts].1
    }

    /// Returns the mark that the row reached.
    pub(crate) fn verdict(&self) -> Verdict {
        Verdict::of(self.measure, self.sample().ratio())
    }
}

/// Collects pairs by row and direction.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pairs: BTreeMap<&'static str, Vec<(&'static str, Vec<Pair>)>>,
    failures: BTreeMap<&'static str, String>,
    also: BTreeMap<&'static str, Map<String, Value>>,
    is_silent: bool,
}

impl Tally {
    /// Returns a tally that prints nothing. [`default`](Self::default) returns one that prints a line for
    /// each pair and for each failure.
    pub(crate) fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }

    /// Adds a pair of row `id`, or its error. The first error of a row is kept.
    pub(crate) fn add(&mut self, id: &'static str, direction: &'static str, pair: Result<Pair>) {
        let pair = match pair {
            Ok(pair) => pair,
            Err(error) => return self.fail(id, &error),
        };
        if !self.is_silent {
            let distances = pair.distances.map(|distances| format!("  {distances}")).unwrap_or_default();
            eprintln!(
                "  {id:<14} {direction:<18} {:>10.3} against {:>10.3}{distances}",
                pair.ours, pair.theirs
            );
        }
        let directions = self.pairs.entry(id).or_default();
        match directions.iter_mut().find(|(name, _)| *name == direction) {
            Some((_, pairs)) => pairs.push(pair),
            None => directions.push((direction, vec![pair])),
        }
    }

    /// Records that row `id` cannot be measured.
    pub(crate) fn fail(&mut self, id: &'static str, error: &LabError) {
        if !self.is_silent {
            eprintln!("  {id:<14} {error}");
        }
        self.failures.entry(id).or_insert_with(|| error.to_string());
    }

    /// Adds a further result of row `id`.
    pub(crate) fn note(&mut self, id: &'static str, name: &str, value: impl Into<Value>) {
        self.also.entry(id).or_default().insert(name.to_owned(), value.into());
    }

    /// Returns the row of the table for `measure`.
    ///
    /// # Errors
    /// Returns one line that says why the row could not be measured.
    pub(crate) fn row(&self, measure: &'static Measure) -> std::result::Result<Row, String> {
        if let Some(reason) = self.failures.get(measure.id) {
            return Err(reason.lines().next().unwrap_or_default().to_owned());
        }
        let of = |(direction, pairs): &(&'static str, Vec<Pair>)| {
            Sample::new(pairs.clone()).map(|sample| (*direction, sample))
        };
        let directions = self.pairs.get(measure.id).map(|directions| directions.iter().map(of).collect());
        let directions: Option<Vec<_>> = directions.unwrap_or_default();
        let directions = directions.ok_or("a figure is not a positive number")?;
        let counts = worst(&directions, measure.better).ok_or("nothing was measured")?;
        let also = self.also.get(measure.id).cloned().unwrap_or_default();
        Ok(Row { measure, directions, counts, also })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use clap::Parser;

    use super::*;
    use crate::compare::measures::find;

    fn pair(ours: f64) -> Result<Pair> {
        Ok(Pair::new(ours, 10.0))
    }

    thread_local! {
        /// The distances in ns that [`scripted`] returns in turn.
        static SCRIPT: RefCell<VecDeque<f64>> = RefCell::default();
    }

    fn scripted(_: [usize; 2]) -> Result<Option<Distances>> {
        Ok(SCRIPT.with_borrow_mut(VecDeque::pop_front).map(Distances::of))
    }

    /// A session whose distances are those of `script`, and then none.
    fn session(script: &[f64]) -> Session {
        SCRIPT.set(script.iter().copied().collect());
        let options = CompareOptions::parse_from(["compare", "--quick"]);
        Session { distance: scripted, ..Session::new(options).unwrap() }
    }

    /// Measures a pair whose first side was measured before as 100. Each further call of this side adds 1,
    /// and each call of the other side adds 10. Returns the figures and the distances of the pair that
    /// counts.
    fn calls(script: &[f64]) -> ([f64; 2], String) {
        let session = session(script);
        let [ours, theirs] = [Cell::new(0.0), Cell::new(0.0)];
        let next = |calls: &Cell<f64>, step: f64| {
            calls.set(calls.get() + step);
            Ok(calls.get())
        };
        let first = session.ranged(|| Ok(100.0));
        let pair = session.beside(&first, || next(&ours, 1.0), || next(&theirs, 10.0));
        let pair = Pair::from(pair.unwrap());
        let distances = pair.distances.map(|distances| distances.to_string()).unwrap_or_default();
        ([pair.ours, pair.theirs], distances)
    }

    #[test]
    fn a_pair_at_one_distance_is_measured_once() {
        assert_eq!(calls(&[80.0, 81.0, 82.0, 80.0, 300.0]), ([100.0, 10.0], "81 ns".to_owned()));
        assert_eq!(calls(&[]), ([100.0, 10.0], String::new()));
    }

    #[test]
    fn both_sides_are_measured_again_if_the_cores_moved_at_any_time() {
        let far = [300.0; 4];
        let again = ([1.0, 20.0], "300 ns".to_owned());
        for moved in [[80.0, 300.0, 300.0, 300.0], [80.0, 80.0, 300.0, 300.0], [80.0, 80.0, 80.0, 300.0]] {
            assert_eq!(calls(&[moved, far].concat()), again, "{moved:?}");
        }
        // A quick run repeats once.
        let moved = [80.0, 300.0, 300.0, 300.0];
        assert_eq!(calls(&[moved, moved, far].concat()), ([100.0, 10.0], "80..300 ns".to_owned()));
    }

    #[test]
    fn the_worse_direction_makes_the_row() {
        let mut tally = Tally::default();
        for ours in [50.0, 70.0, 60.0] {
            tally.add("default_9000", "there", pair(ours));
            tally.add("default_9000", "back", pair(ours / 1.2));
        }
        let row = tally.row(find("default_9000").unwrap()).unwrap();
        assert_eq!(row.directions[row.counts].0, "back");
        assert_eq!((row.sample().ratio(), row.verdict()), (5.0, Verdict::Goal));
    }

    #[test]
    fn one_failure_fails_its_row_in_one_line_and_no_other() {
        let mut tally = Tally::default();
        tally.add("send", "there", pair(9.0));
        tally.add("send", "back", Err(LabError::new("no peer\nand a long log")));
        tally.add("read", "there", pair(9.0));
        assert_eq!(tally.row(find("send").unwrap()).unwrap_err(), "no peer");
        assert!(tally.row(find("read").unwrap()).is_ok());
        assert!(tally.row(find("markers").unwrap()).is_err());
    }

    #[test]
    fn a_row_of_zeros_is_none() {
        let mut tally = Tally::default();
        tally.add("send", "there", pair(0.0));
        assert!(tally.row(find("send").unwrap()).is_err());
    }
}
