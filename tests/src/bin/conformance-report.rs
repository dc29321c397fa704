//! Writes `CONFORMANCE.md`: the requirements of the RFCs, and the tests that prove them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tests::conformance::{self, Doc, Error, Ledger, REPORT, Ran, Result, render};
use tests::sim::defect;

/// Writes CONFORMANCE.md from the index of requirements, the tests that name them, and the claims
#[derive(Parser)]
struct Options {
    /// Print a line for each finding, and exit with status 1 if there is a finding.
    #[arg(long, conflicts_with = "open")]
    check: bool,
    /// With `--check`: the record that `scripts/test` wrote. A proof that did not run is a finding.
    #[arg(long, value_name = "FILE", requires = "check")]
    ran: Option<PathBuf>,
    /// Write nothing. List the open rows of one document or of all: MPA, MPA2, DDP, RDMAP, EXT, SEC.
    #[arg(long, value_name = "DOC", num_args = 0..=1)]
    open: Option<Option<Doc>>,
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("conformance-report");
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("conformance-report: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let root = conformance::root();
    let ledger = Ledger::load(root)?;
    if let Some(doc) = options.open {
        print!("{}", render::open(&ledger, doc));
        return Ok(ExitCode::SUCCESS);
    }
    conformance::write(root, REPORT, &render::report(&ledger))?;
    let mut complaints = ledger.complaints();
    if let Some(path) = &options.ran {
        complaints.extend(record(path)?.missing(&ledger));
    }
    complaints.extend(defect::stale(root).unwrap_or_else(|reason| vec![reason]));
    if !options.check {
        println!("{REPORT} written; `--check` finds {} things wrong", complaints.len());
        return Ok(ExitCode::SUCCESS);
    }
    for complaint in &complaints {
        eprintln!("conformance: {complaint}");
    }
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn record(path: &Path) -> Result<Ran> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: name.clone(), source })?;
    Ran::parse(&text).map_err(|reason| Error::Form { path: name, reason })
}
