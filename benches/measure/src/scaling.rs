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

use results::Results;

/// The lines before and after the table.
const MARKERS: [&str; 2] = ["<!-- scaling: begin -->", "<!-- scaling: end -->"];

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
        if parts(&read(&path)?)?[1] != text {
            return Err(format!(
                "the table in {DOCUMENT} is not that of {}: run scripts/scaling --write",
                json.display()
            ));
        }
    } else if options.write {
        std::fs::write(&path, with(&read(&path)?, &text)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    } else {
        print!("{text}");
    }
    Ok(())
}

fn of_repository(file: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(file)
}

fn read(path: &PathBuf) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Splits the document into the text before the table, the table, and the text after the table. The table
/// does not include the markers.
fn parts(document: &str) -> Result<[&str; 3], String> {
    let missing = || format!("{DOCUMENT} has no lines {} and {}", MARKERS[0], MARKERS[1]);
    let first = format!("{}\n", MARKERS[0]);
    let begin = document.find(&first).ok_or_else(missing)? + first.len();
    let end = begin + document[begin..].find(MARKERS[1]).ok_or_else(missing)?;
    Ok([&document[..begin], &document[begin..end], &document[end..]])
}

/// Returns the document with this table in place of its table.
fn with(document: &str, table: &str) -> Result<String, String> {
    let [before, _, behind] = parts(document)?;
    Ok([before, table, behind].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_document_is_that_of_the_committed_results() {
        take(&ScalingOptions { json: None, check: true, write: false }).unwrap();
    }

    #[test]
    fn the_table_is_what_is_between_the_markers() {
        let [begin, end] = MARKERS;
        for table in ["", "b\nc\n"] {
            let document = format!("a\n{begin}\n{table}{end}\nd\n");
            assert_eq!(parts(&document).unwrap()[1], table);
            assert_eq!(with(&document, "new\n").unwrap(), format!("a\n{begin}\nnew\n{end}\nd\n"));
        }
        for document in ["a\n".to_owned(), format!("{end}\n{begin}\n")] {
            assert!(parts(&document).unwrap_err().contains(begin));
        }
    }
}
