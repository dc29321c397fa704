//! Completions for shells and man pages, made from the definition of the command line.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::errors::Error;
use crate::lines;

/// Prints the completions of a shell.
///
/// # Errors
/// Returns [`Error::System`] if the completions cannot be written.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "iwperf", &mut text);
    lines::print(&text)
}

/// Prints the man page of the program, or writes a man page for the program and for each command into a
/// folder.
///
/// # Errors
/// Returns [`Error::System`] if a page cannot be written.
pub fn man(folder: Option<&Path>) -> Result<(), Error> {
    let Some(folder) = folder else {
        let mut text = Vec::new();
        // The command `help` has no man page.
        let command = Cli::command().disable_help_subcommand(true);
        Man::new(command).render(&mut text).map_err(|source| failed("the man page".into(), source))?;
        return lines::print(&text);
    };
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|source| failed(folder.display().to_string(), source))
}

fn failed(what: String, source: io::Error) -> Error {
    Error::System { what, source }
}
