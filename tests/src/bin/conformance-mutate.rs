//! Breaks requirements in a copy of the tree, one at a time, and sees that the tests which name them fail.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tests::conformance::mutation::{self, Mutation};
use tests::conformance::trial::Bench;
use tests::conformance::{self, Ledger};
use tests::lab::{LabError, Result};

/// Tries mutations and records the tests that killed them.
#[derive(Parser)]
struct Options {
    /// Part of the names of those to try; all when it is not given.
    #[arg(default_value = "")]
    pattern: String,
    /// Only those that have not been tried as they are.
    #[arg(long)]
    new: bool,
    /// Where the copy and what is built from it are kept.
    #[arg(long)]
    scratch: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance-mutate: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all were killed.
fn run(options: &Options) -> Result<bool> {
    let root = conformance::root();
    let say = |error: conformance::Error| LabError::new(error.to_string());
    let ledger = Ledger::load(root).map_err(say)?;
    let mut trials = ledger.trials.clone();
    trials.retain(|name, _| ledger.mutations.iter().any(|mutation| mutation.name == *name));
    let tried = |it: &Mutation| trials.get(&it.name).is_some_and(|trial| trial.digest == it.digest());
    let chosen = ledger.mutations.iter().filter(|it| it.name.contains(&options.pattern));
    let chosen: Vec<&Mutation> = chosen.filter(|it| !options.new || !tried(it)).collect();
    if chosen.is_empty() {
        println!("nothing to try");
        return Ok(true);
    }
    let scratch = options.scratch.clone().unwrap_or_else(default_scratch);
    let mut bench = Bench::new(root, &scratch)?;
    let mut survivors = 0;
    for mutation in chosen {
        match bench.attempt(mutation, &ledger) {
            Ok(trial) => {
                println!("{}: killed by {}", mutation.name, trial.killers.join("; "));
                trials.insert(mutation.name.clone(), trial);
            }
            Err(error) => {
                survivors += 1;
                eprintln!("conformance-mutate: {error}");
                trials.remove(&mutation.name);
            }
        }
        // After each one: an interrupted run has not been for nothing.
        mutation::record(root, &trials).map_err(say)?;
    }
    Ok(survivors == 0)
}

/// Beside what cargo builds.
fn default_scratch() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| conformance::root().join("target")).join("mutations")
}
