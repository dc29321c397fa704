//! Pairs of figures that are measured alternately. The result is the pair whose ratio is the median, and the
//! spread of the ratios.

use serde::Serialize;

use crate::compare::distance::{Distances, Ranged, both};
use crate::compare::measures::{Direction, Measure};

/// Two figures in the unit of their row, usually measured shortly after each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Pair {
    /// The figure of uwarp.
    pub(crate) ours: f64,
    /// The figure of the baseline.
    pub(crate) theirs: f64,
    /// The distances of the two cores, if the runs used both cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) distances: Option<Distances>,
}

/// Figures of ours and of the baseline, with the distances around their runs.
impl From<Ranged<(f64, f64)>> for Pair {
    fn from(ranged: Ranged<(f64, f64)>) -> Self {
        let Ranged { result: (ours, theirs), distances } = ranged;
        Self { ours, theirs, distances }
    }
}

impl Pair {
    /// Returns a pair whose runs did not use two pinned cores.
    pub(crate) fn new(ours: f64, theirs: f64) -> Self {
        Self { ours, theirs, distances: None }
    }

    /// Returns the ratio of our figure to the baseline's figure.
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }
}

/// The result of several pairs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// The pair whose ratio is the median. If the number of pairs is even, this is the pair with the lower of
    /// the middle two ratios.
    pub(crate) median: Pair,
    /// Smallest and largest ratio.
    pub(crate) spread: [f64; 2],
    /// All pairs, in the order of measurement.
    pub(crate) pairs: Vec<Pair>,
}

impl Sample {
    /// Returns the result of `pairs`, which are in the order of measurement. Returns `None` if there is no
    /// pair, or if a ratio is not a positive number.
    pub(crate) fn new(pairs: Vec<Pair>) -> Option<Self> {
        let mut sorted = pairs.clone();
        sorted.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let (first, last) = (sorted.first()?, sorted.last()?);
        let is_sound = |pair: &Pair| pair.ratio().is_finite() && pair.ratio() > 0.0;
        if !sorted.iter().all(is_sound) {
            return None;
        }
        let spread = [first.ratio(), last.ratio()];
        Some(Self { median: sorted[(sorted.len() - 1) / 2], spread, pairs })
    }

    /// Returns the distances of the two cores in all pairs, if the pairs have distances.
    pub(crate) fn distances(&self) -> Option<Distances> {
        self.pairs.iter().map(|pair| pair.distances).fold(None, both)
    }

    /// Returns the median ratio.
    pub(crate) fn ratio(&self) -> f64 {
        self.median.ratio()
    }
}

/// Returns the index of the sample of the worst direction, or `None` if there is no sample. This sample is
/// the row's result.
pub(crate) fn worst(samples: &[(&'static str, Sample)], better: Direction) -> Option<usize> {
    (0..samples.len()).reduce(|worst, next| {
        if better.is_worse(samples[next].1.ratio(), samples[worst].1.ratio()) { next } else { worst }
    })
}

/// Which of its two marks a ratio has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The ratio has reached neither the goal nor the aim.
    Missed,
    /// The ratio has reached the goal, but not the aim.
    Goal,
    /// The ratio has reached the goal and the aim.
    Aim,
}

impl Verdict {
    /// Returns the verdict on a ratio of a row.
    pub(crate) fn of(measure: &Measure, ratio: f64) -> Self {
        if measure.better.reaches(ratio, measure.aim) {
            Self::Aim
        } else if measure.better.reaches(ratio, measure.goal) {
            Self::Goal
        } else {
            Self::Missed
        }
    }

    /// Returns the word for the verdict in the table.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Goal => "goal",
            Self::Aim => "aim",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::measures::find;

    fn pair(ours: f64, theirs: f64) -> Pair {
        Pair::new(ours, theirs)
    }

    #[test]
    fn the_median_is_that_of_the_ratios_not_of_the_figures() {
        // The ratios are 2, 5, 3, 1 and 4. The median of `ours` would be 30, and the median of `theirs` would
        // be 10.
        let pairs = vec![pair(20., 10.), pair(50., 10.), pair(30., 10.), pair(40., 40.), pair(4., 1.)];
        let sample = Sample::new(pairs.clone()).unwrap();
        assert_eq!((sample.median, sample.ratio()), (pair(30., 10.), 3.0));
        assert_eq!((sample.spread, sample.pairs), ([1.0, 5.0], pairs));
    }

    #[test]
    fn of_an_even_number_the_lower_in_the_middle_counts() {
        let sample = Sample::new(vec![pair(4., 1.), pair(1., 1.), pair(3., 1.), pair(2., 1.)]).unwrap();
        assert_eq!(sample.ratio(), 2.0);
    }

    #[test]
    fn no_pair_and_no_number_are_no_sample() {
        assert_eq!(Sample::new(Vec::new()), None);
        for bad in [pair(1., 0.), pair(0., 1.), pair(f64::NAN, 1.), pair(-1., 1.)] {
            assert_eq!(Sample::new(vec![pair(1., 1.), bad]), None, "{bad:?}");
        }
    }

    #[test]
    fn distances_of_a_sample_are_those_of_all_its_pairs() {
        let ranged = |ns: [f64; 2]| {
            let distances = both(Some(Distances::of(ns[0])), Some(Distances::of(ns[1])));
            Pair::from(Ranged { result: (1.0, 1.0), distances })
        };
        let of = |pairs| Sample::new(pairs).unwrap().distances().map(|distances| distances.to_string());
        let pairs = vec![ranged([80.0, 90.0]), ranged([290.0, 300.0]), pair(1., 1.)];
        assert_eq!(of(pairs), Some("80..300 ns".to_owned()));
        assert_eq!(of(vec![pair(1., 1.)]), None);
    }

    #[test]
    fn the_worse_direction_counts() {
        let of = |ratio| Sample::new(vec![pair(ratio, 1.)]).unwrap();
        let samples = [("there", of(2.0)), ("back", of(3.0))];
        assert_eq!(worst(&samples, Direction::HigherIsBetter), Some(0));
        assert_eq!(worst(&samples, Direction::LowerIsBetter), Some(1));
        assert_eq!(worst(&[], Direction::HigherIsBetter), None);
    }

    #[test]
    fn a_verdict_looks_the_right_way() {
        let more = find("write_9000").unwrap();
        let verdicts = [1.3, 1.4, 1.9, 2.0].map(|ratio| Verdict::of(more, ratio));
        assert_eq!(verdicts, [Verdict::Missed, Verdict::Goal, Verdict::Goal, Verdict::Aim]);
        let less = find("pingpong_64").unwrap();
        let verdicts = [0.4, 0.35, 0.3, 0.25].map(|ratio| Verdict::of(less, ratio));
        assert_eq!(verdicts, [Verdict::Missed, Verdict::Goal, Verdict::Goal, Verdict::Aim]);
    }
}
