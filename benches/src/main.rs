//! The program `iwperf`: parses the command line, runs the command, and turns an error into one line and an
//! exit status. Without a command, clap prints the help.

use std::process::ExitCode;

use benches::cli::Cli;
use benches::errors::Error;
use benches::lines::{self, tell};
use clap::Parser;
use clap::error::{Error as UsageError, ErrorKind};

/// Exit status for a wrong command line, as in clap and perftest.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error)
            if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            tell(&format!("iwperf: {}", one_line(&error)));
            return ExitCode::from(USAGE);
        }
        // There is no command, so clap prints the help.
        Err(error) if error.use_stderr() => error.exit(),
        // The user has asked for the help or the version.
        Err(help) => return end(lines::print(help.to_string().as_bytes())),
    };
    end(benches::app::run(cli).and_then(|()| lines::check()))
}

fn end(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("iwperf: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// The error in the command line: clap's first paragraph, without its tips and usage.
fn one_line(error: &UsageError) -> String {
    let text = error.to_string();
    let wrong = text.split("\n\n").next().unwrap_or(&text);
    let words: Vec<&str> = wrong.trim_start_matches("error:").split_whitespace().collect();
    format!("{} (see --help)", words.join(" "))
}
