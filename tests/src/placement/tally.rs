//! Means and percentiles.

use std::fmt;

/// A level over time: each value holds until the next value is recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    area: f64,
    time_us: u64,
    max: u64,
}

impl Level {
    /// Records that the level was `value` for `us` microseconds.
    pub fn hold(&mut self, value: u64, us: u64) {
        self.area += value as f64 * us as f64;
        self.time_us += us;
        self.max = self.max.max(value);
    }

    /// Adds the values of another run.
    pub fn merge(&mut self, other: &Self) {
        self.area += other.area;
        self.time_us += other.time_us;
        self.max = self.max.max(other.max);
    }

    /// Returns the mean over time.
    pub fn mean(&self) -> f64 {
        if self.time_us == 0 { 0.0 } else { self.area / self.time_us as f64 }
    }

    /// Returns the highest value.
    pub fn max(&self) -> u64 {
        self.max
    }
}

/// All values of a distribution.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    values: Vec<u64>,
}

impl Quantiles {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.values.push(value);
    }

    /// Adds the values of another run.
    pub fn merge(&mut self, other: &Self) {
        self.values.extend(&other.values);
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the smallest value that at least this share of all values do not exceed; 0 if there is no
    /// value.
    pub fn at(&self, share: f64) -> u64 {
        let mut values = self.values.clone();
        values.sort_unstable();
        let rank = (share * values.len() as f64).ceil() as usize;
        values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

impl fmt::Display for Quantiles {
    /// Prints p50, p90, p99, p99.9 and the largest value, in columns of eight characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for share in [0.5, 0.9, 0.99, 0.999, 1.0] {
            write!(f, "{:>8}", self.at(share))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Quantiles};

    #[test]
    fn a_quantile_is_a_value_that_occurred() {
        let mut values = Quantiles::default();
        assert_eq!(values.at(0.5), 0);
        (1..=100).rev().for_each(|value| values.add(value));
        assert_eq!([0.5, 0.9, 0.99, 1.0].map(|share| values.at(share)), [50, 90, 99, 100]);
    }

    #[test]
    fn a_level_is_weighted_by_its_time() {
        let mut level = Level::default();
        level.hold(0, 30);
        level.hold(8, 10);
        assert_eq!((level.mean(), level.max()), (2.0, 8));
    }
}
