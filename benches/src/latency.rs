//! Latencies of one run in an HDR histogram, and perftest's seven figures from it.

use hdrhistogram::Histogram;

/// What a latency table shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct LatencySummary {
    /// Messages of each end.
    pub iterations: u64,
    /// Least, microseconds.
    pub min_us: f64,
    /// Most, microseconds.
    pub max_us: f64,
    /// Median, microseconds.
    pub typical_us: f64,
    /// Mean, microseconds.
    pub avg_us: f64,
    /// Standard deviation, microseconds.
    pub stdev_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, microseconds.
    pub p999_us: f64,
}

/// Round trips of one run. Three digits are kept; nothing is allocated when recording.
#[derive(Debug)]
pub struct Latencies {
    round_trip_ns: Histogram<u64>,
    /// 2 where half the round trip is reported.
    divisor: f64,
}

/// Longest round trip that is told apart from longer ones.
const LONGEST_NS: u64 = 60_000_000_000;

impl Latencies {
    /// With `half`, half a round trip is reported (Write and Send); else the whole one (Read).
    pub fn new(half: bool) -> Self {
        let round_trip_ns = Histogram::new_with_bounds(1, LONGEST_NS, 3)
            // The bounds are constants for which the constructor cannot fail.
            .expect("1..60e9 with 3 digits is a valid range");
        Self { round_trip_ns, divisor: if half { 2.0 } else { 1.0 } }
    }

    /// Records one round trip.
    pub fn record(&mut self, round_trip_ns: u64) {
        self.round_trip_ns.saturating_record(round_trip_ns.max(1));
    }

    /// The figures; `iterations` is what the table shows (perftest measures one fewer than it runs).
    pub fn summary(&self, iterations: u64) -> LatencySummary {
        let us = |ns: f64| ns / 1000.0 / self.divisor;
        let at = |quantile| us(self.round_trip_ns.value_at_quantile(quantile) as f64);
        LatencySummary {
            iterations,
            min_us: us(self.round_trip_ns.min() as f64),
            max_us: us(self.round_trip_ns.max() as f64),
            typical_us: at(0.5),
            avg_us: us(self.round_trip_ns.mean()),
            stdev_us: us(self.round_trip_ns.stdev()),
            p99_us: at(0.99),
            p999_us: at(0.999),
        }
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
        for (got, want) in
            expected.into_iter().chain([(s.p99_us, 990.0), (s.p999_us, 999.0), (s.stdev_us, 288.7)])
        {
            assert!(close(got, want), "{got} {want}");
        }
    }

    #[test]
    fn write_and_send_report_half_a_round_trip() {
        let mut half = Latencies::new(true);
        half.record(10_000);
        assert!(close(half.summary(2).avg_us, 5.0));
    }

    #[test]
    fn no_sample_and_a_huge_one_are_survived() {
        let mut l = Latencies::new(true);
        assert_eq!(l.summary(0).max_us, 0.0);
        l.record(u64::MAX);
        assert!(l.summary(1).max_us > 29e6);
    }
}
