//! Scales: the position of a value on an axis, the ticks, and the format of their labels.

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear scale.
    Linear,
    /// Powers of two are equally spaced. Values are above 0.
    Log2,
    /// Powers of ten are equally spaced. Values are above 0.
    Log10,
    /// Quantiles from 0 to below 1. 90 %, 99 % and 99.9 % are equally spaced, as in HdrHistogram's plots.
    Nines,
}

/// Approximate number of ticks of a linear axis.
const LINEAR_TICKS: f64 = 8.0;

/// Values whose relative difference is smaller than this count as equal.
const LEAST_SPAN: f64 = 1e-6;

/// Share of an axis that a label needs.
const LABEL_SHARE: f64 = 0.07;

/// Maximum number of ticks at whole powers, for an axis that is not linear.
const LOG_TICKS: i32 = 12;

impl Scale {
    /// The position of `value`, or `None` if `value` has no position on this scale.
    pub fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Self::Linear => value,
            Self::Log2 => value.log2(),
            Self::Log10 => value.log10(),
            Self::Nines => -(1.0 - value).log10(),
        };
        place.is_finite().then_some(place)
    }

    /// The value at position `place`.
    pub fn value(self, place: f64) -> f64 {
        match self {
            Self::Linear => place,
            Self::Log2 => place.exp2(),
            Self::Log10 => 10f64.powf(place),
            Self::Nines => 1.0 - 10f64.powf(-place),
        }
    }

    /// The range of an axis that shows all of `places`, or `None` if there are no places. The range is never
    /// empty.
    pub(super) fn range(self, places: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
        let (low, high) = places
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| (low.min(place), high.max(place)));
        if !low.is_finite() || !high.is_finite() {
            return None;
        }
        Some(match self {
            Self::Linear => {
                // If all values are equal, the axis is as wide as the value, or 1 wide if the value is
                // smaller than 1.
                let least = low.abs().max(high.abs()) * LEAST_SPAN;
                let span = if high - low > least { high - low } else { high.abs().max(1.0) };
                whole_steps(low, high.max(low + span))
            }
            Self::Log10 => (low.floor(), high.ceil().max(low.floor() + 1.0)),
            Self::Log2 | Self::Nines => (low, high.max(low + 1.0)),
        })
    }

    /// Positions of the ticks from `low` to `high`, inclusive.
    pub(super) fn ticks(self, low: f64, high: f64) -> Vec<f64> {
        let mut ticks = self.round_ticks(low, high);
        if self == Self::Linear {
            // The range of a linear axis begins and ends at ticks.
            return ticks;
        }
        for end in [low, high] {
            let room = (high - low) * LABEL_SHARE;
            ticks.retain(|tick| (tick - end).abs() > room);
            ticks.insert(ticks.partition_point(|&tick| tick < end), end);
        }
        ticks
    }

    fn round_ticks(self, low: f64, high: f64) -> Vec<f64> {
        let step = match self {
            Self::Linear => linear_step(high - low),
            // The ticks are at whole powers. There are few enough ticks that their labels do not overlap.
            Self::Log2 | Self::Log10 | Self::Nines => {
                f64::from(((high - low) as i32).div_euclid(LOG_TICKS) + 1)
            }
        };
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        let mut ticks: Vec<f64> = (first..=last).map(|n| n as f64 * step).collect();
        let median = 2f64.log10();
        if self == Self::Nines && step == 1.0 && low < median && median < high {
            // A tick at the median is added, since readers of percentiles look for the median first.
            ticks.insert(ticks.partition_point(|&tick| tick < median), median);
        }
        ticks
    }
}

/// The smallest range around `low` and `high` that begins and ends at ticks of the range.
fn whole_steps(low: f64, high: f64) -> (f64, f64) {
    let (mut from, mut to) = (low, high);
    // A wider range may need a longer step. This happens at most twice in a row.
    for _ in 0..3 {
        let step = linear_step(to - from);
        (from, to) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
    }
    (from, to)
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, so that `span` has about [`LINEAR_TICKS`] ticks.
fn linear_step(span: f64) -> f64 {
    let rough = (span / LINEAR_TICKS).max(f64::MIN_POSITIVE.sqrt());
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

/// A number with as few digits as needed, for instance 0.25, 12, 1.5k or 3M.
pub fn decimal(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{}{suffix}", if text == "-0" { "0" } else { text })
}

/// A number of bytes by powers of two, for instance 64, 4K or 8M.
pub fn bytes(value: f64) -> String {
    let rounded = value.round();
    [(1u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")]
        .into_iter()
        .find(|&(unit, _)| rounded >= unit as f64)
        .map_or_else(|| decimal(rounded), |(unit, name)| format!("{}{name}", decimal(rounded / unit as f64)))
}

/// A quantile as a percentile with as many digits as the quantile has nines, for instance 90% or 99.99%.
pub fn percent(quantile: f64) -> String {
    let nines = -(1.0 - quantile).log10();
    // The number of digits is rounded up, since the logarithm may be slightly above a whole number.
    let digits = (nines.ceil() as usize).saturating_sub(2).min(6);
    let text = format!("{:.digits$}", quantile * 100.0);
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Scale; 4] = [Scale::Linear, Scale::Log2, Scale::Log10, Scale::Nines];

    proptest! {
        #[test]
        fn a_value_is_found_at_its_place(value in 1e-6..0.999_999f64) {
            for scale in ALL {
                let place = scale.place(value).unwrap();
                prop_assert!((scale.value(place) - value).abs() < 1e-9, "{scale:?}");
            }
        }

        #[test]
        fn ticks_are_few_ordered_and_inside(low in -30.0..30f64, span in 0.0..60f64) {
            for scale in ALL {
                let (from, to) = scale.range([low, low + span].into_iter()).unwrap();
                prop_assert!(from <= low && low + span <= to && from < to);
                let ticks = scale.ticks(from, to);
                prop_assert!((1..=16).contains(&ticks.len()), "{scale:?} {from} {to}: {ticks:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(ticks.iter().all(|tick| (from - 1e-6..=to + 1e-6).contains(tick)));
                let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
                let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * (1.0 + a.abs());
                prop_assert!(near(first, from) && near(last, to), "{scale:?} {from} {to}: {ticks:?}");
            }
        }
    }

    #[test]
    fn points_outside_the_axes_are_reported() {
        assert_eq!(Scale::Log2.place(0.0), None);
        assert_eq!(Scale::Log10.place(-1.0), None);
        assert_eq!(Scale::Nines.place(1.0), None);
        assert_eq!(Scale::Linear.range(std::iter::empty()), None);
    }

    #[test]
    fn nines_are_at_equal_distances() {
        let at = |quantile| Scale::Nines.place(quantile).unwrap();
        assert!(
            (at(0.9) - 1.0).abs() < 1e-9 && (at(0.99) - 2.0).abs() < 1e-9 && (at(0.999) - 3.0).abs() < 1e-9
        );
        assert_eq!(
            Scale::Nines
                .ticks(0.0, 3.0)
                .into_iter()
                .map(|t| percent(Scale::Nines.value(t)))
                .collect::<Vec<_>>(),
            ["0%", "50%", "90%", "99%", "99.9%"]
        );
    }

    #[test]
    fn the_first_and_the_last_value_have_ticks_and_room_for_their_labels() {
        let labels = |low: f64, high: f64| {
            let ticks = Scale::Log2.ticks(low, high);
            ticks.into_iter().map(|tick| bytes(Scale::Log2.value(tick))).collect::<Vec<_>>()
        };
        let all = labels(1.0, 23.0);
        assert_eq!((all[0].as_str(), all[1].as_str(), all[all.len() - 1].as_str()), ("2", "16", "8M"));
        assert_eq!(labels(6.0, 8.0), ["64", "128", "256"]);
        let nines = Scale::Nines.ticks(0.0, 3.3);
        assert_eq!(percent(Scale::Nines.value(nines[nines.len() - 1])), "99.95%");
    }

    #[test]
    fn linear_ticks_are_round() {
        assert_eq!(Scale::Linear.range([0.0, 87.0].into_iter()), Some((0.0, 100.0)));
        let ticks = Scale::Linear.ticks(0.0, 100.0);
        assert_eq!(ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn numbers_are_written_short() {
        assert_eq!(
            [0.0, 0.25, 12.0, 9999.0, 15_000.0, 3e6].map(decimal),
            ["0", "0.25", "12", "9999", "15k", "3M"]
        );
        assert_eq!([2.0, 1024.0, 65536.0, 8_388_608.0].map(bytes), ["2", "1K", "64K", "8M"]);
        assert_eq!(
            [0.0, 0.5, 0.9, 0.99, 0.9999, 0.999_498_8].map(percent),
            ["0%", "50%", "90%", "99%", "99.99%", "99.95%"]
        );
    }
}
