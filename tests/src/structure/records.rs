//! Records that other programs have written: the number of instructions for each FPDU, and the times of the
//! last run of `.ci/run`.

use std::path::Path;
use std::{fs, io};

/// The path of the baseline of `scripts/instructions`, relative to the root of the checkout.
const INSTRUCTIONS: &str = "benches/baselines/instructions.csv";
/// The record of `.ci/run`, relative to cargo's target folder.
const CI_TIMES: &str = "ci-times";

/// A row of the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Instructions {
    /// The load, and the part of it that was counted.
    pub row: String,
    /// Number of instructions for each FPDU or acknowledgement.
    pub instructions: f64,
    /// Number of bus-locking instructions for each FPDU or acknowledgement.
    pub locked: f64,
}

/// Returns the rows of the baseline of the checkout at `root`.
///
/// # Errors
/// If the baseline cannot be read.
pub fn instructions(root: &Path) -> io::Result<Vec<Instructions>> {
    let text = fs::read_to_string(root.join(INSTRUCTIONS))?;
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    let wrong = |error: &dyn std::fmt::Display| io::Error::other(format!("{INSTRUCTIONS}: {error}"));
    reader
        .deserialize()
        .map(|row| {
            let (row, instructions, locked) = row.map_err(|error| wrong(&error))?;
            Ok(Instructions { row, instructions, locked })
        })
        .collect()
}

/// Returns the lines that the last run of `.ci/run` has written to the folder `target`; `None` if there was
/// no run, or if the last run did not finish.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn ci_times(target: &Path) -> io::Result<Option<Vec<String>>> {
    match fs::read_to_string(target.join(CI_TIMES)) {
        Ok(text) => Ok(Some(text.lines().map(str::to_owned).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    #[test]
    fn the_baseline_of_this_checkout_is_read() {
        let rows = instructions(Path::new(ROOT)).unwrap();
        let lines = fs::read_to_string(Path::new(ROOT).join(INSTRUCTIONS)).unwrap();
        let wanted = lines.lines().filter(|line| line.contains('/') && !line.starts_with('#')).count();
        assert_eq!(rows.len(), wanted);
        let write = rows.iter().find(|row| row.row == "write-64/sent").unwrap();
        assert!(write.instructions > 1000.0 && write.locked < 20.0, "{write:?}");
    }

    #[test]
    fn times_are_those_of_the_last_run_if_there_was_one() {
        let target = std::env::temp_dir().join(format!("uwarp-ci-times-{}", std::process::id()));
        fs::create_dir(&target).unwrap();
        assert_eq!(ci_times(&target).unwrap(), None);
        fs::write(target.join(CI_TIMES), "tests 5 s\nall 7 s\n").unwrap();
        let found = ci_times(&target).unwrap().unwrap();
        fs::remove_dir_all(&target).unwrap();
        assert_eq!(found, ["tests 5 s", "all 7 s"]);
    }

    #[test]
    fn ci_leaves_its_times_under_the_name_that_is_read() {
        let script = fs::read_to_string(Path::new(ROOT).join(".ci/run")).unwrap();
        let files = script.matches("\"$target/ci-times\"").count();
        assert_eq!((files, CI_TIMES), (2, "ci-times"), "once removed, once written");
    }
}
