//! Rates that are measured in turn, so that a slow phase of the machine affects all of them.

use std::time::{Duration, Instant};

use benches::errors::Error;
use serde::Serialize;

/// Duration of a slice: longer than any side needs to start, and far shorter than a run.
const SLICE: Duration = Duration::from_millis(50);

/// Time limit of each step that is not measured.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The result of a comparison. The ratio is `ours / theirs`. For times and for bytes of memory, a smaller
/// ratio is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    pub(crate) unit: &'static str,
}

impl Comparison {
    /// Returns the line that the program prints.
    pub(crate) fn json(&self, id: &str) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            id: &'a str,
            ours: f64,
            theirs: f64,
            unit: &'a str,
        }
        let Self { ours, theirs, unit } = *self;
        // Writing strings and numbers into a string of JSON does not fail.
        serde_json::to_string(&Line { id, ours, theirs, unit }).unwrap_or_default()
    }
}

/// Work done in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

impl Rate {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.time += other.time;
    }

    /// Returns the rate in GB/s (10^9 bytes per second), or 0 if no time has passed.
    pub(crate) fn gigabytes_per_s(&self) -> f64 {
        let ns = self.time.as_nanos();
        if ns == 0 { 0.0 } else { self.bytes as f64 / ns as f64 }
    }
}

/// Calls `work`, which returns the number of bytes that it moved, until `slice` is over.
///
/// # Errors
/// Returns the first error of `work`.
pub(crate) fn timed(slice: Duration, mut work: impl FnMut() -> Result<u64, Error>) -> Result<Rate, Error> {
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        bytes += work()?;
        let time = start.elapsed();
        if time >= slice {
            return Ok(Rate { bytes, time });
        }
    }
}

/// Runs the `sides` in turn, each for a slice and at least once, until `time` is over. The first slice of
/// each side is not counted.
///
/// # Errors
/// Returns the first error of one of the sides.
pub(crate) fn alternate<const N: usize>(
    time: Duration,
    mut sides: [&mut dyn FnMut(Duration) -> Result<Rate, Error>; N],
) -> Result<[Rate; N], Error> {
    let slice = SLICE.min(time / N as u32);
    for side in &mut sides {
        side(slice)?;
    }
    let mut rates = [Rate::default(); N];
    let start = Instant::now();
    loop {
        for (rate, side) in rates.iter_mut().zip(&mut sides) {
            rate.add(side(slice)?);
        }
        if start.elapsed() >= time {
            return Ok(rates);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bytes_by_nanoseconds() {
        let mut rate = Rate { bytes: 1_000, time: Duration::from_nanos(600) };
        rate.add(Rate { bytes: 1_000, time: Duration::from_nanos(400) });
        assert_eq!(rate.gigabytes_per_s(), 2.0);
        assert_eq!(Rate::default().gigabytes_per_s(), 0.0);
    }

    #[test]
    fn each_side_has_as_many_turns_and_the_first_does_not_count() {
        let calls = [std::cell::Cell::new(0_u64), std::cell::Cell::new(0)];
        let side = |nr: usize| {
            let calls = &calls;
            move |slice| {
                calls[nr].set(calls[nr].get() + 1);
                std::thread::sleep(slice);
                Ok(Rate { bytes: 1, time: slice })
            }
        };
        let [a, b] = alternate(Duration::from_millis(8), [&mut side(0), &mut side(1)]).unwrap();
        assert_eq!([a.bytes + 1, b.bytes + 1], [calls[0].get(), calls[1].get()]);
        assert_eq!(calls[0], calls[1]);
        assert!(a.bytes >= 1, "{a:?}");
    }

    #[test]
    fn work_goes_on_until_the_slice_is_over() {
        let slice = Duration::from_millis(2);
        let rate = timed(slice, || Ok(7)).unwrap();
        assert!(rate.time >= slice && rate.bytes > 7 && rate.bytes % 7 == 0, "{rate:?}");
    }

    #[test]
    fn the_line_is_json() {
        let pair = Comparison { ours: 1.5, theirs: 2.0, unit: "GB/s" };
        assert_eq!(pair.json("one_core"), r#"{"id":"one_core","ours":1.5,"theirs":2.0,"unit":"GB/s"}"#);
    }
}
