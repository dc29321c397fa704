//! The committed counts, and the comparison with new ones.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Result;

/// The file with the counts.
pub(crate) const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baselines/instructions.csv");

/// The command that records new counts.
pub(crate) const RECORD: &str = "scripts/instructions --record";

/// Allowed difference, percent: any change of the code changes inlining elsewhere a little.
const TOLERANCE: f64 = 2.0;

/// Allowed difference if compiler, C library or valgrind differ from those of the baseline.
const TOLERANCE_ELSEWHERE: f64 = 10.0;

const COLUMNS: &str = "row,instructions";
const TOOLS: &str = "# tools: ";
const CPU: &str = "# cpu under valgrind: ";

/// The properties of a machine that counts depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Versions of compiler, C library and valgrind.
    pub(crate) tools: String,
    /// The processor, as the loads see it.
    pub(crate) cpu: String,
}

/// Counts by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Baseline {
    pub(crate) machine: Machine,
    pub(crate) rows: BTreeMap<String, f64>,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Within the tolerance.
    Pass,
    /// The difference is too large: a line with the reason.
    Fail(String),
}

impl Baseline {
    /// # Errors
    /// If the text does not have the format of [`text`](Self::text).
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut baseline = Self::default();
        for line in text.lines().filter(|line| *line != COLUMNS) {
            if let Some(tools) = line.strip_prefix(TOOLS) {
                baseline.machine.tools = tools.to_owned();
            } else if let Some(cpu) = line.strip_prefix(CPU) {
                baseline.machine.cpu = cpu.to_owned();
            } else if !line.starts_with('#') {
                let (row, count) = line.split_once(',').ok_or_else(|| format!("{FILE}: {line:?}"))?;
                let count = count.parse().map_err(|error| format!("{FILE}: {line:?}: {error}"))?;
                baseline.rows.insert(row.to_owned(), count);
            }
        }
        Ok(baseline)
    }

    /// The text of the committed file.
    pub(crate) fn text(&self) -> String {
        let Machine { tools, cpu } = &self.machine;
        let mut text = format!(
            "# Instructions for each FPDU sent or received, or each acknowledgement. The rows are in\n\
             # benches/src/bin/instructions/row.rs. Written by `{RECORD}`.\n{TOOLS}{tools}\n{CPU}{cpu}\n{COLUMNS}\n"
        );
        for (row, count) in &self.rows {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{row},{count:.1}");
        }
        text
    }

    /// The allowed difference on `machine`, in percent. `None` if counts cannot be compared: on another
    /// processor, other code runs.
    pub(crate) fn tolerance(&self, machine: &Machine) -> Option<f64> {
        if machine.cpu != self.machine.cpu {
            None
        } else if machine.tools != self.machine.tools {
            Some(TOLERANCE_ELSEWHERE)
        } else {
            Some(TOLERANCE)
        }
    }

    /// Compares `count` of `row` with the baseline. A lower count fails too, otherwise the improvement could
    /// be lost again unnoticed.
    pub(crate) fn compare(&self, row: &str, count: f64, tolerance: f64) -> Verdict {
        let Some(recorded) = self.rows.get(row) else {
            return Verdict::Fail(format!(
                "{row}: {count:.1} instructions, but no baseline: record one with {RECORD}"
            ));
        };
        let change = (count / recorded - 1.0) * 100.0;
        if change.abs() <= tolerance {
            return Verdict::Pass;
        }
        let what = if change > 0.0 {
            "more expensive: find out why; if it cannot be avoided"
        } else {
            "cheaper: to keep the improvement"
        };
        Verdict::Fail(format!(
            "{row}: baseline {recorded:.1} instructions, now {count:.1}: {change:+.2} % (allowed: {tolerance} %). \
             It has become {what}, run {RECORD}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::ROWS;

    fn baseline() -> Baseline {
        let machine = Machine { tools: "rustc 1, glibc 2".into(), cpu: "avx2".into() };
        Baseline { machine, rows: [("write/sent".to_owned(), 1000.0)].into() }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Baseline::parse(&baseline().text()).unwrap(), baseline());
        for text in ["write/sent", "write/sent,many"] {
            assert!(Baseline::parse(text).is_err(), "{text}");
        }
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
        for count in [980.5, 1000.0, 1019.5] {
            assert_eq!(baseline.compare("write/sent", count, 2.0), Verdict::Pass, "{count}");
        }
        for (count, percent) in [(979.0, "-2.10 %"), (1021.0, "+2.10 %")] {
            let Verdict::Fail(words) = baseline.compare("write/sent", count, 2.0) else {
                panic!("{count} holds")
            };
            for part in ["write/sent", "1000.0", &format!("{count:.1}"), percent, RECORD] {
                assert!(words.contains(part), "{part} is not in: {words}");
            }
        }
        assert!(matches!(baseline.compare("new/sent", 1.0, 2.0), Verdict::Fail(_)));
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
