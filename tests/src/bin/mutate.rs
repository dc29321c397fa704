//! Inserts mutations into a copy of the tree, one at a time, and checks that tests find each mutation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tests::conformance::root;
use tests::conformance::trial::Requirements;
use tests::lab::Result;
use tests::mutation::{self, Choice};
use tests::sim::defect_trial::Defects;

/// Tries mutations, and records the results.
#[derive(Parser)]
enum Command {
    /// Break requirements (`tests/conformance/mutations`): a test that names the row has to fail.
    Requirements {
        #[command(flatten)]
        choice: Choice,
    },
    /// Break the protocols (`tests/sim-defects`): the simulator has to find each defect, in the run that the
    /// defect names.
    Simulator {
        #[command(flatten)]
        choice: Choice,
        /// Number of further runs, over all scenarios, for a defect that the named run does not find.
        #[arg(long, default_value_t = 2000)]
        runs: u64,
    },
}

fn main() -> ExitCode {
    benches::lines::end_when_output_is_lost("mutate");
    match run(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutate: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the command. Returns whether all mutations were found.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Requirements { choice } => mutation::run(&mut Requirements::new(root())?, &choice),
        Command::Simulator { choice, runs } => mutation::run(&mut Defects::new(root(), runs)?, &choice),
    }
}
