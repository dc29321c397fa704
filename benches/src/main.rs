//! The program: parses the command line, runs it, turns an error into one line and an exit status.

use std::process::ExitCode;

use benches::cli::Cli;
use clap::Parser;

fn main() -> ExitCode {
    match benches::app::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iwperf: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
