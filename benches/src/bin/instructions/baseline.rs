//! The committed counts, and their comparison with new counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::row::{Limit, SAME_PERCENT, same_as};

/// The file with the counts.
pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines/instructions.csv");

/// The command that records new counts.
pub(crate) const RECORD: &str = "scripts/instructions --record";

/// Allowed difference in percent. A change of the code may also change how other code is inlined.
const TOLERANCE: f64 = 2.0;

/// Allowed absolute difference of locked instructions. A difference within this limit passes even if it
/// exceeds the percentage, since a small change is a large percentage if many FPDUs share one locked
/// instruction.
const TOLERANCE_LOCKED: f64 = 0.1;

/// Allowed difference in percent if the compiler, C library or valgrind differs from the baseline's.
const TOLERANCE_ELSEWHERE: f64 = 10.0;

/// Allowed absolute difference of locked instructions between rows that have to cost the same. A difference
/// within this limit passes even if it exceeds the percentage.
const SAME_LOCKED: f64 = 0.02;

const COLUMNS: &str = "row,instructions,locked";
const TOOLS: &str = "# tools: ";
const CPU: &str = "# cpu under valgrind: ";

/// The properties of a machine on which the counts depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Versions of compiler, C library and valgrind.
    pub(crate) tools: String,
    /// The processor, as the loads see it.
    pub(crate) cpu: String,
}

/// The cost of one FPDU or acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowCost {
    pub(crate) instructions: f64,
    /// Number of the instructions that lock the bus.
    pub(crate) locked: f64,
}

/// Counts by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Baseline {
    pub(crate) machine: Machine,
    pub(crate) rows: BTreeMap<String, RowCost>,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The count is within the tolerance.
    Pass,
    /// The difference is too large. The value is a line with the reason.
    Fail(String),
}

/// The file with the last counts, in cargo's target folder. `scripts/structure` prints them beside the
/// baseline.
pub(crate) fn last_run() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    target.join("instructions.csv")
}

impl Baseline {
    /// # Errors
    /// Fails if the text does not have the format of [`text`](Self::text).
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut baseline = Self::default();
        for line in text.lines().filter(|line| *line != COLUMNS) {
            if let Some(tools) = line.strip_prefix(TOOLS) {
                baseline.machine.tools = tools.to_owned();
            } else if let Some(cpu) = line.strip_prefix(CPU) {
                baseline.machine.cpu = cpu.to_owned();
            } else if !line.starts_with('#') {
                let fields: Vec<_> = line.split(',').collect();
                let [row, instructions, locked] = fields[..] else {
                    return Err(format!("{FILE}: {line:?} has not the columns {COLUMNS}").into());
                };
                let number =
                    |field: &str| field.parse().map_err(|error| format!("{FILE}: {line:?}: {error}"));
                let count = RowCost { instructions: number(instructions)?, locked: number(locked)? };
                baseline.rows.insert(row.to_owned(), count);
            }
        }
        Ok(baseline)
    }

    /// Returns the contents of the baseline file.
    pub(crate) fn text(&self) -> String {
        let Machine { tools, cpu } = &self.machine;
        let mut text = format!(
            "# Instructions for each FPDU sent or received, or each acknowledgement, and how many of them lock the\n\
             # bus. The rows and their limits are in benches/src/bin/instructions/row.rs. Written by `{RECORD}`.\n{TOOLS}{tools}\n{CPU}{cpu}\n{COLUMNS}\n"
        );
        for (row, RowCost { instructions, locked }) in &self.rows {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{row},{instructions:.1},{locked:.2}");
        }
        text
    }

    /// Leaves the counts in `file`. Rows of other loads stay there, if the file is from the same machine.
    pub(crate) fn leave(&self, file: &Path) -> Result<()> {
        let mut all = self.clone();
        let earlier = std::fs::read_to_string(file).ok().and_then(|text| Self::parse(&text).ok());
        if let Some(earlier) = earlier.filter(|earlier| earlier.machine == self.machine) {
            all.rows = earlier.rows;
            all.rows.extend(self.rows.clone());
        }
        std::fs::write(file, all.text()).map_err(|error| format!("{}: {error}", file.display()).into())
    }

    /// The allowed difference on `machine`, in percent. `None` means that the counts cannot be compared,
    /// since `machine` has another processor, which may run other code.
    pub(crate) fn tolerance(&self, machine: &Machine) -> Option<f64> {
        if machine.cpu != self.machine.cpu {
            None
        } else if machine.tools != self.machine.tools {
            Some(TOLERANCE_ELSEWHERE)
        } else {
            Some(TOLERANCE)
        }
    }

    /// Compares `count` of `row` with the baseline. A row without a baseline fails. A count that is too low
    /// also fails, since otherwise the improvement could be lost again unnoticed. A row that exceeds its
    /// limit fails if the baseline was within the limit.
    pub(crate) fn compare(&self, row: &str, count: RowCost, limit: Limit, tolerance: f64) -> Verdict {
        let Some(recorded) = self.rows.get(row) else {
            return Verdict::Fail(format!("{row}: no baseline: record one with {RECORD}"));
        };
        let (now, before) = (count.instructions, recorded.instructions);
        let instructions =
            differs(before, now, tolerance, 0.0).or_else(|| exceeds(before, now, limit.instructions));
        if let Some(what) = instructions {
            return Verdict::Fail(format!("{row}: baseline {before:.1} instructions, now {now:.1}: {what}"));
        }
        let (now, before) = (count.locked, recorded.locked);
        let locked =
            differs(before, now, tolerance, TOLERANCE_LOCKED).or_else(|| exceeds(before, now, limit.locked));
        if let Some(what) = locked {
            return Verdict::Fail(format!(
                "{row}: baseline {before:.2} locked instructions, now {now:.2}: {what}"
            ));
        }
        Verdict::Pass
    }

    /// Compares `count` of `row` with the count of the row that has to cost the same as `row`. Passes if
    /// there is no such row, or if that row was not counted.
    pub(crate) fn compare_same(&self, row: &str, count: RowCost) -> Verdict {
        let pair = same_as(row).and_then(|other| Some((*self.rows.get(&other)?, other)));
        let Some((expected, other)) = pair else { return Verdict::Pass };
        let within = |now: f64, other: f64, least: f64| {
            let difference = (now - other).abs();
            difference <= least || difference <= other * SAME_PERCENT / 100.0
        };
        let RowCost { instructions, locked } = count;
        if within(instructions, expected.instructions, 0.0) && within(locked, expected.locked, SAME_LOCKED) {
            return Verdict::Pass;
        }
        Verdict::Fail(format!(
            "{row}: {instructions:.1} instructions and {locked:.2} locked, {other}: {:.1} and {:.2}: more than \
             {SAME_PERCENT} % apart",
            expected.instructions, expected.locked
        ))
    }
}

impl Verdict {
    /// The reason for a failure, or `None` if the row passes.
    pub(crate) fn words(self) -> Option<String> {
        match self {
            Self::Pass => None,
            Self::Fail(words) => Some(words),
        }
    }
}

/// Describes the difference between `now` and `before` if the difference exceeds both `tolerance` percent and
/// `least`.
fn differs(before: f64, now: f64, tolerance: f64, least: f64) -> Option<String> {
    let change = (now / before - 1.0) * 100.0;
    if change.abs() <= tolerance || (now - before).abs() <= least {
        return None;
    }
    let what = if change > 0.0 {
        "more expensive: find out why; if it cannot be avoided"
    } else {
        "cheaper: to keep the improvement"
    };
    Some(format!("{change:+.2} % (allowed: {tolerance} %). It has become {what}, run {RECORD}"))
}

/// Describes a limit that `now` exceeds and `before` did not.
fn exceeds(before: f64, now: f64, limit: Option<f64>) -> Option<String> {
    let limit = limit.filter(|limit| before <= *limit && now > *limit)?;
    Some(format!("beyond its limit of {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::ROWS;

    fn baseline() -> Baseline {
        let machine = Machine { tools: "rustc 1, glibc 2".into(), cpu: "avx2".into() };
        Baseline { machine, rows: [("write/sent".to_owned(), count(1000.0, 10.0))].into() }
    }

    fn count(instructions: f64, locked: f64) -> RowCost {
        RowCost { instructions, locked }
    }

    const NO_LIMIT: Limit = Limit { instructions: None, locked: None };

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Baseline::parse(&baseline().text()).unwrap(), baseline());
        for text in
            ["write/sent", "write/sent,many,1", "write/sent,1", "write/sent,1,few", "write/sent,1,1,1"]
        {
            assert!(Baseline::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_last_counts_stay_until_they_are_counted_again_or_the_machine_changes() {
        let folder = testkit::folder::Folder::new("uwarp-last-counts");
        let file = folder.join("instructions.csv");
        let left = |now: &Baseline| {
            now.leave(&file).unwrap();
            Baseline::parse(&std::fs::read_to_string(&file).unwrap()).unwrap()
        };
        let mut now = baseline();
        assert_eq!(left(&now), now, "there was no file");
        now.rows = [("read/sent".to_owned(), count(5.0, 0.5))].into();
        assert_eq!(left(&now).rows.len(), 2);
        now.rows = [("read/sent".to_owned(), count(6.0, 0.5))].into();
        assert_eq!(left(&now).rows["read/sent"], count(6.0, 0.5));
        now.machine.tools = "rustc 2, glibc 2".into();
        assert_eq!(left(&now), now);
    }

    #[test]
    fn the_committed_file_has_every_row_and_no_other() {
        let committed = Baseline::parse(&std::fs::read_to_string(FILE).unwrap()).unwrap();
        let mut rows: Vec<String> =
            ROWS.iter().flat_map(|row| row.sides().iter().map(|side| row.full_name(*side))).collect();
        rows.sort();
        assert_eq!(committed.rows.into_keys().collect::<Vec<_>>(), rows);
    }

    #[test]
    fn a_change_beyond_the_tolerance_fails_in_either_direction_and_says_all_there_is_to_say() {
        let baseline = baseline();
        for now in [count(980.5, 10.1), count(1000.0, 9.9), count(1019.5, 10.05)] {
            assert_eq!(baseline.compare("write/sent", now, NO_LIMIT, 2.0), Verdict::Pass, "{now:?}");
        }
        let changes = [
            (count(979.0, 10.0), "1000.0", "979.0", "-2.10 %"),
            (count(1021.0, 10.0), "1000.0", "1021.0", "+2.10 %"),
            (count(1000.0, 11.0), "10.00", "11.00", "+10.00 %"),
            (count(1000.0, 9.0), "10.00", "9.00", "-10.00 %"),
        ];
        for (now, before, after, percent) in changes {
            let Verdict::Fail(words) = baseline.compare("write/sent", now, NO_LIMIT, 2.0) else {
                panic!("{now:?} holds")
            };
            for part in ["write/sent", before, after, percent, RECORD] {
                assert!(words.contains(part), "{part} is not in: {words}");
            }
        }
        assert!(matches!(baseline.compare("new/sent", count(1.0, 1.0), NO_LIMIT, 2.0), Verdict::Fail(_)));
    }

    #[test]
    fn a_limit_that_was_kept_may_not_be_passed_by_little() {
        let baseline = baseline();
        let verdict = |now, instructions, locked| {
            let limit = Limit { instructions: Some(instructions), locked: Some(locked) };
            matches!(baseline.compare("write/sent", now, limit, 2.0), Verdict::Pass)
        };
        assert!(verdict(count(1005.0, 10.0), 1005.0, 10.0));
        assert!(!verdict(count(1005.0, 10.0), 1004.0, 10.0));
        assert!(!verdict(count(1000.0, 10.1), 1004.0, 10.05));
        assert!(verdict(count(1005.0, 10.1), 900.0, 9.0), "not reached yet");
    }

    #[test]
    fn rows_that_cost_the_same_may_differ_by_a_hundredth() {
        let (row, other) = ("write-1m-1500-engines-2/sent", "write-1m-1500/sent");
        let counted = Baseline { rows: [(other.to_owned(), count(1000.0, 0.5))].into(), ..baseline() };
        let same = |now| counted.compare_same(row, now) == Verdict::Pass;
        assert!(same(count(1009.0, 0.5)) && same(count(991.0, 0.51)));
        assert!(!same(count(1011.0, 0.5)) && !same(count(989.0, 0.5)) && !same(count(1000.0, 0.53)));
        let words = counted.compare_same(row, count(1011.0, 0.5)).words().unwrap();
        assert!(words.contains("1011.0") && words.contains("1000.0"), "{words}");
        assert_eq!(baseline().compare_same(row, count(1.0, 1.0)), Verdict::Pass, "the other was not counted");
    }

    #[test]
    fn the_committed_rows_that_cost_the_same_do() {
        let committed = Baseline::parse(&std::fs::read_to_string(FILE).unwrap()).unwrap();
        for (row, count) in &committed.rows {
            assert_eq!(committed.compare_same(row, *count), Verdict::Pass);
        }
    }

    #[test]
    fn other_tools_may_differ_more_and_another_processor_says_nothing() {
        let baseline = baseline();
        let mut machine = baseline.machine.clone();
        assert_eq!(baseline.tolerance(&machine), Some(TOLERANCE));
        machine.tools = "rustc 2, glibc 2".into();
        assert_eq!(baseline.tolerance(&machine), Some(TOLERANCE_ELSEWHERE));
        machine.cpu = "sse4.2".into();
        assert_eq!(baseline.tolerance(&machine), None);
    }
}
