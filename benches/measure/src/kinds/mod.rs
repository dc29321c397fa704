//! `measure kinds`: the tables of README.md and docs/performance.md with the last figures of each kind of
//! machine. `scripts/compare --keep` puts the figures into `docs/performance`.
//!
//! README.md has a few rows. Each of them was measured on at least two kinds of machines, and its table shows
//! the figure of each kind, so that no figure that holds on a single kind looks like a property of uwarp.

pub(crate) mod kept;
mod tables;

use std::process::ExitCode;

use clap::Args;

use crate::marked::{of_repository, parts, with};

/// The folder with a file for each kind of machine.
pub(crate) const FOLDER: &str = "docs/performance";

/// The documents, with the name of the part that has the table, and the function that makes the table.
type Document = (&'static str, &'static str, fn(&[kept::Kind]) -> Result<String, String>);

const DOCUMENTS: [Document; 2] =
    [("README.md", "kinds", tables::few), ("docs/performance.md", "kinds", tables::all)];

/// Tables of the documents with the last figures of each kind of machine (`docs/performance`)
#[derive(Args, Debug)]
pub(crate) struct KindsOptions {
    /// Fail if a table in a document differs from the table of the figures
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Put the tables into the documents
    #[arg(long)]
    write: bool,
}

/// Prints, checks or writes the tables.
pub(crate) fn run(options: &KindsOptions) -> ExitCode {
    match take(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("measure kinds: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn take(options: &KindsOptions) -> Result<(), String> {
    let kinds = kept::read_all(&of_repository(FOLDER))?;
    for (document, part, table) in DOCUMENTS {
        let (path, text) = (of_repository(document), table(&kinds)?);
        let error = |error: String| format!("{document}: {error}");
        let read = || std::fs::read_to_string(&path).map_err(|reason| error(reason.to_string()));
        if options.check {
            if parts(&read()?, part).map_err(error)?[1] != text {
                let hint = "cargo run -p measure --no-default-features -- kinds --write";
                return Err(format!("the table in {document} is not that of {FOLDER}: {hint}"));
            }
        } else if options.write {
            let new = with(&read()?, part, &text).map_err(error)?;
            std::fs::write(&path, new).map_err(|reason| error(reason.to_string()))?;
        } else {
            println!("{text}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_documents_are_those_of_the_kept_figures() {
        take(&KindsOptions { check: true, write: false }).unwrap();
    }
}
