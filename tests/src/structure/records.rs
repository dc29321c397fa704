//! Records that other programs have written: the number of instructions for each FPDU, and the times of the
//! last run of `.ci/run`.

use std::io;
use std::path::Path;

/// The path of the baseline of `scripts/instructions`, relative to the root of the checkout.
const BASELINE: &str = "benches/baselines/instructions.csv";
/// The last counts of `scripts/instructions`, relative to cargo's target folder.
const COUNTED: &str = "instructions.csv";
/// The record of `.ci/run`, relative to cargo's target folder.
const CI_TIMES: &str = "ci-times";

/// A row of the baseline, or of the last counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Instructions {
    /// The load, and the part of it that was counted.
    pub row: String,
    /// Number of instructions for each FPDU or acknowledgement.
    pub instructions: f64,
    /// Number of bus-locking instructions for each FPDU or acknowledgement.
    pub locked: f64,
}

/// Returns the rows of the baseline of the checkout at `root`; `None` if there is no baseline.
///
/// # Errors
/// If the baseline exists but cannot be read.
pub fn baseline(root: &Path) -> io::Result<Option<Vec<Instructions>>> {
    rows(&root.join(BASELINE))
}

/// Returns the rows that `scripts/instructions` has last written to the folder `target`; `None` if there was
/// no run.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn counted(target: &Path) -> io::Result<Option<Vec<Instructions>>> {
    rows(&target.join(COUNTED))
}

fn rows(file: &Path) -> io::Result<Option<Vec<Instructions>>> {
    let Some(text) = super::text_if_any(file)? else { return Ok(None) };
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let wrong = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", file.display()));
    let rows = reader.deserialize().map(|row| {
        let (row, instructions, locked) = row.map_err(|error| wrong(&error))?;
        Ok(Instructions { row, instructions, locked })
    });
    rows.collect::<io::Result<_>>().map(Some)
}

/// Returns the lines that the last run of `.ci/run` has written to the folder `target`; `None` if there was
/// no run, or if the last run did not finish.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn ci_times(target: &Path) -> io::Result<Option<Vec<String>>> {
    let text = super::text_if_any(&target.join(CI_TIMES))?;
    Ok(text.map(|text| text.lines().map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    #[test]
    fn the_baseline_of_this_checkout_is_read() {
        let rows = baseline(Path::new(ROOT)).unwrap().unwrap();
        let lines = fs::read_to_string(Path::new(ROOT).join(BASELINE)).unwrap();
        let wanted = lines.lines().filter(|line| line.contains('/') && !line.starts_with('#')).count();
        assert_eq!(rows.len(), wanted);
        let write = rows.iter().find(|row| row.row == "write-64/sent").unwrap();
        assert!(write.instructions > 1000.0 && write.locked < 20.0, "{write:?}");
    }

    #[test]
    fn times_and_counts_are_those_of_the_last_run_if_there_was_one() {
        let target = testkit::folder::Folder::new("uwarp-ci-times");
        assert_eq!((ci_times(&target).unwrap(), counted(&target).unwrap()), (None, None));
        fs::write(target.join(CI_TIMES), "tests 5 s\nall 7 s\n").unwrap();
        fs::write(target.join(COUNTED), "# cpu\nrow,instructions,locked\na/sent,12.5,0.50\n").unwrap();
        let (times, counts) = (ci_times(&target).unwrap().unwrap(), counted(&target).unwrap().unwrap());
        fs::write(target.join(COUNTED), "row,instructions,locked\na/sent,many,0.50\n").unwrap();
        let wrong = counted(&target);
        assert_eq!(times, ["tests 5 s", "all 7 s"]);
        assert_eq!(counts, [Instructions { row: "a/sent".into(), instructions: 12.5, locked: 0.5 }]);
        assert!(wrong.is_err_and(|error| error.to_string().contains(COUNTED)));
    }

    #[test]
    fn ci_leaves_its_times_under_the_name_that_is_read() {
        let script = fs::read_to_string(Path::new(ROOT).join(".ci/run")).unwrap();
        let files = script.matches("\"$target/ci-times\"").count();
        assert_eq!((files, CI_TIMES), (2, "ci-times"), "once removed, once written");
    }
}
