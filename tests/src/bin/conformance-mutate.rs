//! Breaks requirements in a copy of the tree, one at a time, and sees that the tests which name them fail.

use std::process::ExitCode;

use clap::Parser;
use tests::conformance::mutation::{self, Mutation, Trial};
use tests::conformance::trial::Bench;
use tests::conformance::{self, Ledger};
use tests::edit::slice;
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
    /// Only so many of those on record, chosen by `--seed`, with the tests that found them; records nothing.
    #[arg(long, value_name = "COUNT", requires = "seed", conflicts_with = "new")]
    slice: Option<usize>,
    /// What a slice is chosen by: any text, such as a commit.
    #[arg(long)]
    seed: Option<String>,
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
    let text = |killer: &str| mutation::killer_text(root, killer);
    let mut trials = ledger.trials.clone();
    trials.retain(|name, _| ledger.mutations.iter().any(|mutation| mutation.name == *name));
    let chosen = ledger.mutations.iter().filter(|it| it.name.contains(&options.pattern));
    if let (Some(count), Some(seed)) = (options.slice, &options.seed) {
        let known: Vec<(&Mutation, &Trial)> =
            chosen.filter_map(|it| Some((it, trials.get(&it.name)?))).collect();
        return again(&ledger, &known[slice(seed, count, known.len())]);
    }
    let tried = |it: &Mutation| trials.get(&it.name).is_some_and(|trial| it.is_tried(trial, &text));
    let chosen: Vec<&Mutation> = chosen.filter(|it| !options.new || !tried(it)).collect();
    if chosen.is_empty() {
        println!("nothing to try");
        return Ok(true);
    }
    let mut bench = Bench::new(root)?;
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

/// Tries a slice of those on record once more, and says how it went as `cargo test` does.
fn again(ledger: &Ledger, known: &[(&Mutation, &Trial)]) -> Result<bool> {
    let mut bench = Bench::new(conformance::root())?;
    let mut survivors = 0;
    for (mutation, before) in known {
        match bench.attempt_again(mutation, ledger, before) {
            Ok(trial) => println!("{}: killed by {}", mutation.name, trial.killers.join("; ")),
            Err(error) => {
                survivors += 1;
                println!("{error}");
            }
        }
    }
    let (verdict, killed) = (if survivors == 0 { "ok" } else { "FAILED" }, known.len() - survivors);
    println!("test result: {verdict}. {killed} passed; {survivors} failed; 0 ignored");
    Ok(survivors == 0)
}
