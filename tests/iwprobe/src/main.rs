//! The program `iwprobe`: parses a command line, runs the command, and returns an exit status.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use iwprobe::cli::Cli;

/// Exit status for wrong usage, and if the command fails, for example without a connection.
const TROUBLE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error)
            if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            eprintln!("iwprobe: {}", one_line(&error));
            return ExitCode::from(TROUBLE);
        }
        // clap prints the help or the version, for example if there are no arguments.
        Err(error) => error.exit(),
    };
    match cli.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("iwprobe: {reason}");
            ExitCode::from(TROUBLE)
        }
    }
}

/// Returns what is wrong with the command line: the first paragraph of clap's message.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let wrong = text.split("\n\n").next().unwrap_or(&text);
    let words: Vec<&str> = wrong.trim_start_matches("error:").split_whitespace().collect();
    format!("{} (see --help)", words.join(" "))
}
