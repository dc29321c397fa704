//! Formats the lines of the table that `measure compare` prints.

use serde_json::Value;

use crate::compare::measures::{Direction, Measure};
use crate::compare::sample::Verdict;
use crate::compare::session::Row;
use crate::kinds::kept::KeptRow;

pub(crate) fn heading() -> String {
    let names = ["id", "ours", "theirs", "unit", "ratio", "spread", "goal", "aim", "reached", "one way"];
    line(names.map(str::to_owned))
}

/// Returns the line of a row. The last column has the distances of the two cores, if the row used both.
pub(crate) fn row(row: &Row) -> String {
    kept_row(row.measure, &kept(row, String::new(), String::new()))
}

/// Returns the figures of a row that are kept, with the day and the kernel of the run.
pub(crate) fn kept(row: &Row, date: String, kernel: String) -> KeptRow {
    let sample = row.sample();
    KeptRow {
        date,
        kernel,
        ours: sample.median.ours,
        theirs: sample.median.theirs,
        unit: row.measure.unit.to_owned(),
        ratio: sample.ratio(),
        spread: sample.spread,
        one_way: sample.distances().map(|distances| distances.to_string()),
    }
}

/// Returns the line of kept figures.
pub(crate) fn kept_row(measure: &Measure, row: &KeptRow) -> String {
    line([
        measure.id.to_owned(),
        short(row.ours),
        short(row.theirs),
        row.unit.clone(),
        short(row.ratio),
        row.spread.map(short).join(" to "),
        mark(measure, measure.goal),
        mark(measure, measure.aim),
        Verdict::of(measure, row.ratio).word().to_owned(),
        row.one_way.clone().unwrap_or_default(),
    ])
}

/// Formats the goal or the aim of a row.
pub(crate) fn mark(measure: &Measure, mark: f64) -> String {
    let sign = if measure.better == Direction::HigherIsBetter { ">=" } else { "<=" };
    format!("{sign} {}", short(mark))
}

/// Returns the line after a row for figures that are not the row's baseline. These are figures of the kernel
/// with `sendfile`, which avoids the copy at the sender, or of a program that spins on memory. Returns `None`
/// if the row has no such figures.
pub(crate) fn beside(row: &Row) -> Option<String> {
    if let Some(us) = row.also.get("ib_write_lat_us").and_then(Value::as_f64) {
        return Some(format!(
            "beside {}: ib_write_lat, which spins on memory, there and back: {} us",
            row.measure.id,
            short(us)
        ));
    }
    if let Some(us) = row.also.get("mlock_munlock_us").and_then(Value::as_f64) {
        let us = short(us);
        return Some(format!("beside {}: mlock and munlock of the same page: {us} us", row.measure.id));
    }
    let tried = row.also.get("kernel_sendfile")?.as_object()?;
    let best = tried.values().filter_map(Value::as_f64).reduce(f64::max)?;
    Some(format!(
        "for comparison with {}: the kernel with sendfile, no copy at its sender: {}",
        row.measure.id,
        short(best)
    ))
}

/// Returns the line of a row that could not be measured.
pub(crate) fn missing(measure: &Measure, reason: &str) -> String {
    format!("{:<14} not measured: {reason}", measure.id)
}

fn line([id, ours, theirs, unit, ratio, spread, goal, aim, reached, one_way]: [String; 10]) -> String {
    let line =
        format!("{id:<14} {ours:>8} {theirs:>8} {unit:<6} {ratio:>7}  {spread:<16} {goal:>8} {aim:>8}");
    format!("{line}  {reached:<7}  {one_way}").trim_end().to_owned()
}

/// Formats `value` with three significant digits. All digits before the decimal point are printed, and at
/// most three digits after the point.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        x if x >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::distance::{Distances, Ranged};
    use crate::compare::measures::find;
    use crate::compare::sample::Pair;
    use crate::compare::session::Tally;

    #[test]
    fn three_digits_are_enough() {
        let texts = [1234.5, 99.96, 31.25, 9.999, 4.0, 0.9, 0.125].map(short);
        assert_eq!(texts, ["1234", "100", "31.2", "10.0", "4.00", "0.900", "0.125"]);
    }

    #[test]
    fn the_best_without_a_copy_stands_beside_its_row() {
        let mut tally = Tally::default();
        tally.add("write_1500", "there", Ok(Pair::new(4.0, 2.0)));
        let row = |tally: &Tally| tally.row(find("write_1500").unwrap()).unwrap();
        assert_eq!(beside(&row(&tally)), None);
        tally.note("write_1500", "kernel_sendfile", serde_json::json!({ "a": 3.25, "b": 31.25 }));
        assert!(beside(&row(&tally)).unwrap().ends_with(": 31.2"));
    }

    #[test]
    fn the_time_of_mlock_stands_beside_that_of_registrations() {
        let mut tally = Tally::default();
        tally.add("reg_mr_4k", "both", Ok(Pair::new(2.5, 5.0)));
        tally.note("reg_mr_4k", "mlock_munlock_us", 0.75);
        let line = beside(&tally.row(find("reg_mr_4k").unwrap()).unwrap()).unwrap();
        assert_eq!(line, "beside reg_mr_4k: mlock and munlock of the same page: 0.750 us");
    }

    #[test]
    fn a_row_stands_below_its_heading() {
        let mut tally = Tally::default();
        for ours in [1.0, 2.0, 4.0] {
            tally.add("pingpong_64", "there", Ok(Pair::new(ours, 8.0)));
        }
        let text = row(&tally.row(find("pingpong_64").unwrap()).unwrap());
        let words: Vec<&str> = text.split_whitespace().collect();
        let spread = ["0.125", "to", "0.500", "<=", "0.350", "<=", "0.250", "aim"];
        assert_eq!(words, [&["pingpong_64", "2.00", "8.00", "us", "0.250"], &spread[..]].concat());
        let column = heading().find("reached").unwrap();
        assert_eq!(text.find("aim"), Some(column));
    }

    #[test]
    fn the_distances_of_the_worse_direction_end_its_line() {
        let mut tally = Tally::default();
        for (ours, direction, ns) in [(9.0, "there", 300.0), (8.0, "back", 80.0), (7.0, "back", 82.0)] {
            let distances = Some(Distances::of(ns));
            tally.add("pingpong_64", direction, Ok(Ranged { result: (ours, 7.0), distances }.into()));
        }
        let text = row(&tally.row(find("pingpong_64").unwrap()).unwrap());
        assert!(text.ends_with("missed   300 ns"), "{text}");
        assert_eq!(text.find("300 ns"), heading().find("one way"));
    }
}
