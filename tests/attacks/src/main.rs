//! Runs attacks next to honest connections, and prints their cost. Built as a test, this program tests the
//! limits (`limits.rs`).
#![forbid(unsafe_code)]

#[cfg(test)]
mod limits;

use std::process::ExitCode;

use clap::Parser;
use tests::attack::counted;
use tests::attack::measure::{Figures, Plan, measure};
use tests::attack::stag_guess::guess_many;
use tests::attack::{SCENARIOS, Scenario};

/// Attacks on an engine in memory, on one core, with as many attack frames as honest frames.
#[derive(Parser)]
struct Options {
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Run a scenario once with a nominal clock (used under callgrind).
    #[arg(long, value_name = "SCENARIO", hide = true)]
    count: Option<String>,
    /// Scenarios to run [default: all].
    scenarios: Vec<String>,
    /// Number of pairs of rounds: one round next to the attack, one next to harmless frames.
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Number of honest batches in a round.
    #[arg(long, default_value_t = 400)]
    batches: u64,
    /// Number of guesses of STags in addition to the guesses of the scenarios; 0: none.
    #[arg(long, default_value_t = 1_000_000)]
    guesses: u64,
}

fn main() -> ExitCode {
    // The test of the limits is part of this program, since a separate program would take another minute to
    // compile.
    #[cfg(test)]
    if !std::env::args().any(|word| word == "--count") {
        return limits::run();
    }
    let options = Options::parse();
    // With `--count`, the process runs only the scenario, since callgrind counts all of its instructions.
    if options.count.is_none() {
        tests::end_when_output_is_lost("attacks");
    }
    if options.list {
        for scenario in SCENARIOS {
            println!("{:<18} {}", scenario.name, scenario.about);
        }
        return ExitCode::SUCCESS;
    }
    let mut scenarios = Vec::new();
    for name in options.count.iter().chain(&options.scenarios) {
        match Scenario::find(name) {
            Some(scenario) => scenarios.push(scenario),
            None => {
                eprintln!("no scenario {name}: see --list");
                return ExitCode::from(2);
            }
        }
    }
    if options.count.is_some() {
        return match counted::run(&scenarios[0]) {
            Ok(said) => {
                print!("{said}");
                ExitCode::SUCCESS
            }
            Err(text) => {
                eprintln!("{text}");
                ExitCode::FAILURE
            }
        };
    }
    if options.scenarios.is_empty() {
        scenarios = SCENARIOS.to_vec();
    }
    let plan = Plan { pairs: options.pairs, batches: options.batches };
    let mut failed = false;
    println!("{}", Figures::HEADING);
    for scenario in scenarios {
        match measure(&scenario, plan) {
            Ok(figures) => println!("{figures}"),
            Err(text) => {
                failed = true;
                println!("{:<18} FAILED: {text}", scenario.name);
            }
        }
    }
    if options.guesses > 0 {
        match guess_many(options.guesses) {
            Ok(rate) => println!("{} STags guessed, none right, {rate:.0} a second", options.guesses),
            Err(text) => {
                failed = true;
                println!("guesses FAILED: {text}");
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
