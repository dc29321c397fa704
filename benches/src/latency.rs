//! Latencies of one run in an HDR histogram, and the figures of a latency table, including those that
//! perftest reports.

use hdrhistogram::Histogram;

/// The figures of a latency table.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct LatencySummary {
    /// Number of messages that this side has posted, or number of latencies of a run at a given rate.
    pub iterations: u64,
    /// Minimum in microseconds.
    pub min_us: f64,
    /// Maximum in microseconds.
    pub max_us: f64,
    /// Median in microseconds.
    pub typical_us: f64,
    /// Mean in microseconds.
    pub avg_us: f64,
    /// Standard deviation in microseconds.
    pub stdev_us: f64,
    /// 90th percentile in microseconds.
    pub p90_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// 99.99th percentile in microseconds.
    pub p9999_us: f64,
}

/// Latencies by quantile. Each point is a quantile from 0 to below 1, and a latency in microseconds. The
/// points are closer together towards 1.
pub type Distribution = Vec<(f64, f64)>;

/// The round trips of one run, with three significant digits. Recording allocates no memory.
#[derive(Clone, Debug)]
pub struct Latencies {
    round_trip_ns: Histogram<u64>,
    /// The exact shortest and longest round trip in microseconds, which the histogram rounds. Without round
    /// trips these are infinity and 0.
    extremes_us: [f64; 2],
    /// 2 if half of the round trip is reported, otherwise 1.
    divisor: f64,
}

/// Number of points of a distribution for each halving of the share above the quantile.
const POINTS_PER_HALVING: u32 = 4;

impl Default for Latencies {
    fn default() -> Self {
        Self::new(false)
    }
}

/// Maximum round trip that the histogram can record. A longer round trip is recorded as this maximum.
const LONGEST_NS: u64 = 60_000_000_000;

impl Latencies {
    /// Makes an empty histogram. If `half` is true (Write and Send), half of the round trip is reported,
    /// otherwise the whole round trip (Read and atomics).
    pub fn new(half: bool) -> Self {
        let round_trip_ns = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            // The bounds are constants for which the constructor cannot fail.
            .expect("1..60e9 with 3 digits is a valid range");
        Self { round_trip_ns, extremes_us: [f64::INFINITY, 0.0], divisor: if half { 2.0 } else { 1.0 } }
    }

    /// Records a round trip of `cycles` of a counter that counts `hz` cycles per second.
    #[inline]
    pub fn record_cycles(&mut self, cycles: u64, hz: u64) {
        let ns = (u128::from(cycles) * 1_000_000_000 / u128::from(hz)).min(u64::MAX.into()) as u64;
        self.record_exactly(ns, cycles as f64 * 1e6 / hz as f64);
    }

    /// Adds the round trips of `other`.
    pub fn add(&mut self, other: &Self) {
        // Both histograms have the same bounds, so no value is too large.
        let added = self.round_trip_ns.add(&other.round_trip_ns);
        debug_assert!(added.is_ok(), "{added:?}");
        let ([least, most], [others_least, others_most]) = (self.extremes_us, other.extremes_us);
        self.extremes_us = [least.min(others_least), most.max(others_most)];
    }

    /// Number of round trips recorded.
    pub fn count(&self) -> u64 {
        self.round_trip_ns.len()
    }

    /// Records one round trip.
    pub fn record(&mut self, round_trip_ns: u64) {
        self.record_exactly(round_trip_ns, round_trip_ns as f64 / 1e3);
    }

    #[inline]
    fn record_exactly(&mut self, round_trip_ns: u64, us: f64) {
        self.round_trip_ns.saturating_record(round_trip_ns.max(1));
        let [least, most] = self.extremes_us;
        self.extremes_us = [least.min(us), most.max(us)];
    }

    /// The value in microseconds that is reported for a value of the histogram. Since the histogram rounds,
    /// the result is limited to the extremes.
    fn reported_us(&self, ns: f64) -> f64 {
        let [least, most] = self.extremes_us;
        (ns / 1000.0).max(least).min(most) / self.divisor
    }

    /// The figures of the run. `iterations` is the number shown in the table (perftest measures one message
    /// less than it runs).
    pub fn summary(&self, iterations: u64) -> LatencySummary {
        let at = |quantile| self.reported_us(self.round_trip_ns.value_at_quantile(quantile) as f64);
        let [least, most] = self.extremes_us;
        LatencySummary {
            iterations,
            min_us: least.min(most) / self.divisor,
            max_us: most / self.divisor,
            typical_us: at(0.5),
            avg_us: self.reported_us(self.round_trip_ns.mean()),
            stdev_us: self.round_trip_ns.stdev() / 1000.0 / self.divisor,
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
        }
    }

    /// The median and the 99th percentile in microseconds.
    pub fn median_and_p99_us(&self) -> [f64; 2] {
        [0.5, 0.99].map(|quantile| self.reported_us(self.round_trip_ns.value_at_quantile(quantile) as f64))
    }

    /// The value in microseconds that is reported for a round trip of `cycles` at `hz` cycles per second.
    pub fn us(&self, cycles: u64, hz: u64) -> f64 {
        cycles as f64 * 1e6 / hz as f64 / self.divisor
    }

    /// The whole distribution, with as many points as the number of samples allows. Without samples, the
    /// distribution is empty.
    pub fn distribution(&self) -> Distribution {
        let count = self.round_trip_ns.len();
        // The last point is the largest sample. Its quantile is the middle of the share of this sample.
        let last = 1.0 - 0.5 / count.max(1) as f64;
        let mut points: Distribution = self
            .round_trip_ns
            .iter_quantiles(POINTS_PER_HALVING)
            .map(|step| {
                (step.quantile_iterated_to().min(last), self.reported_us(step.value_iterated_to() as f64))
            })
            .collect();
        points.dedup_by_key(|point| point.0);
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= b.abs() * 0.002
    }

    #[test]
    fn the_figures_are_those_of_the_samples() {
        let mut whole = Latencies::new(false);
        for us in 1..=1000 {
            whole.record(us * 1000);
        }
        let s = whole.summary(1001);
        assert_eq!(s.iterations, 1001);
        let expected = [(s.min_us, 1.0), (s.max_us, 1000.0), (s.typical_us, 500.0), (s.avg_us, 500.5)];
        for (got, want) in expected.into_iter().chain([
            (s.p90_us, 900.0),
            (s.p9999_us, 1000.0),
            (s.p99_us, 990.0),
            (s.p999_us, 999.0),
            (s.stdev_us, 288.7),
        ]) {
            assert!(close(got, want), "{got} {want}");
        }
    }

    #[test]
    fn the_least_and_the_most_are_samples_and_bound_the_rest() {
        let hz = 2_900_000_000;
        let samples = [1_024_901, 1_030_007, 1_040_003];
        let mut half = Latencies::new(true);
        samples.iter().for_each(|&cycles| half.record_cycles(cycles, hz));
        let summary = half.summary(4);
        assert_eq!(summary.min_us, half.us(samples[0], hz));
        assert_eq!(summary.max_us, half.us(samples[2], hz));
        assert_eq!(summary.p9999_us, summary.max_us);
        let mut all = Latencies::new(true);
        all.record_cycles(2_000_000, hz);
        all.add(&half);
        assert_eq!(all.summary(5).min_us, summary.min_us);
        assert_eq!(all.summary(5).max_us, half.us(2_000_000, hz));
        let points = half.distribution();
        let (first, last) = (points[0].1, points[points.len() - 1].1);
        assert!(first >= summary.min_us && last == summary.max_us, "{points:?}");
    }

    #[test]
    fn write_and_send_report_half_a_round_trip() {
        let mut half = Latencies::new(true);
        half.record(10_000);
        assert!(close(half.summary(2).avg_us, 5.0));
    }

    #[test]
    fn the_distribution_reaches_from_the_least_to_the_most() {
        let mut whole = Latencies::new(false);
        assert!(whole.distribution().is_empty());
        for us in 1..=1000 {
            whole.record(us * 1000);
        }
        let points = whole.distribution();
        let (first, last) = (points[0], points[points.len() - 1]);
        assert!(first.0 == 0.0 && close(first.1, 1.0), "{first:?}");
        assert!(close(last.0, 0.9995) && close(last.1, 1000.0), "{last:?}");
        let median = points.iter().find(|point| point.0 >= 0.5).unwrap();
        assert!(close(median.1, 500.0), "{median:?}");
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn no_sample_and_a_huge_one_are_survived() {
        let mut l = Latencies::new(true);
        assert_eq!(l.summary(0).max_us, 0.0);
        l.record(u64::MAX);
        assert!(l.summary(1).max_us > 29e6);
    }
}
