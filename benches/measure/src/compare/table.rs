//! Formats the lines of the table that `measure compare` prints.

use serde_json::Value;

use crate::compare::measures::{Direction, Measure};
use crate::compare::session::Row;

pub(crate) fn heading() -> String {
    line(["id", "ours", "theirs", "unit", "ratio", "spread", "goal", "aim", "reached"].map(str::to_owned))
}

pub(crate) fn row(row: &Row) -> String {
    let Measure { id, unit, better, goal, aim, .. } = row.measure;
    let (sample, sign) = (row.sample(), if *better == Direction::HigherIsBetter { ">= " } else { "<= " });
    line([
        (*id).to_owned(),
        short(sample.median.ours),
        short(sample.median.theirs),
        (*unit).to_owned(),
        short(sample.ratio()),
        sample.spread.map(short).join(" to "),
        format!("{sign}{}", short(*goal)),
        format!("{sign}{}", short(*aim)),
        row.verdict().word().to_owned(),
    ])
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

fn line([id, ours, theirs, unit, ratio, spread, goal, aim, reached]: [String; 9]) -> String {
    format!("{id:<14} {ours:>8} {theirs:>8} {unit:<6} {ratio:>7}  {spread:<16} {goal:>8} {aim:>8}  {reached}")
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
        tally.add("write_1500", "there", Ok(Pair { ours: 4.0, theirs: 2.0 }));
        let row = |tally: &Tally| tally.row(find("write_1500").unwrap()).unwrap();
        assert_eq!(beside(&row(&tally)), None);
        tally.note("write_1500", "kernel_sendfile", serde_json::json!({ "a": 3.25, "b": 31.25 }));
        assert!(beside(&row(&tally)).unwrap().ends_with(": 31.2"));
    }

    #[test]
    fn the_time_of_mlock_stands_beside_that_of_registrations() {
        let mut tally = Tally::default();
        tally.add("reg_mr_4k", "both", Ok(Pair { ours: 2.5, theirs: 5.0 }));
        tally.note("reg_mr_4k", "mlock_munlock_us", 0.75);
        let line = beside(&tally.row(find("reg_mr_4k").unwrap()).unwrap()).unwrap();
        assert_eq!(line, "beside reg_mr_4k: mlock and munlock of the same page: 0.750 us");
    }

    #[test]
    fn a_row_stands_below_its_heading() {
        let mut tally = Tally::default();
        for ours in [1.0, 2.0, 4.0] {
            tally.add("pingpong_64", "there", Ok(Pair { ours, theirs: 8.0 }));
        }
        let text = row(&tally.row(find("pingpong_64").unwrap()).unwrap());
        let words: Vec<&str> = text.split_whitespace().collect();
        let spread = ["0.125", "to", "0.500", "<=", "0.350", "<=", "0.250", "aim"];
        assert_eq!(words, [&["pingpong_64", "2.00", "8.00", "us", "0.250"], &spread[..]].concat());
        let column = heading().find("reached").unwrap();
        assert_eq!(text.find("aim"), Some(column));
    }
}
