//! `measure scaling`: computes how many cores 100, 200 and 400 Gb/s need, and the other limits of these
//! rates. The input is the results of `scripts/compare`.
//!
//! The results contain the goodput with one core on each side. The slower of these cores is always busy. So a
//! core needs at most the time `payload bits / goodput` for each FPDU. Each further core is assumed to add as
//! much as the second core adds in `cores_2`.

mod results;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::marked::{of_repository, parts, with};
use results::Results;

/// The name of the part of the document with the table.
const PART: &str = "scaling";

/// The results from which the table in docs/performance.md is made.
const COMMITTED: &str = "benches/results/epyc-25-17.json";

/// The document with the table of cores.
const DOCUMENT: &str = "docs/performance.md";

/// Cores for 100, 200 and 400 Gb/s, computed from results of `measure compare --json`
#[derive(Args, Debug)]
pub(crate) struct ScalingOptions {
    /// File with the results. Without this option: the results of the table in docs/performance.md
    json: Option<PathBuf>,
    /// Fail if the table in docs/performance.md differs from the table of the results
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Put the table into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Prints, checks or writes the table.
pub(crate) fn run(options: &ScalingOptions) -> ExitCode {
    match take(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("measure scaling: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn take(options: &ScalingOptions) -> Result<(), String> {
    let json = options.json.clone().unwrap_or_else(|| of_repository(COMMITTED));
    let text =
        table::text(&Results::parse(&read(&json)?).map_err(|error| format!("{}: {error}", json.display()))?);
    let path = of_repository(DOCUMENT);
    if options.check {
        if parts(&read(&path)?, PART)?[1] != text {
            return Err(format!(
                "the table in {DOCUMENT} is not that of {}: run scripts/scaling --write",
                json.display()
            ));
        }
    } else if options.write {
        std::fs::write(&path, with(&read(&path)?, PART, &text)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    } else {
        print!("{text}");
    }
    Ok(())
}

fn read(path: &PathBuf) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_document_is_that_of_the_committed_results() {
        take(&ScalingOptions { json: None, check: true, write: false }).unwrap();
    }
}
