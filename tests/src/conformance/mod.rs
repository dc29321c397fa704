//! What the documents require, row by row, and what shows that it holds.
//!
//! A *row* is one requirement of `tests/conformance/spec/*.csv`. A *proof* is a test whose comment names the
//! row ([`proof`]), or a wire case of `iwprobe` that does ([`case`]). A *claim* is a line of
//! `tests/conformance/claims/*.csv` for a row that no test can show ([`claim`]). A *mutation* breaks one
//! requirement in the code, to see that the tests which name its rows fail ([`mutation`]). A *place* is a
//! comment in the code that names the row which the code below it obeys ([`place`]).
//!
//! [`Ledger`] joins them, finds what contradicts itself, and renders `CONFORMANCE.md`. Everything is read
//! from source text: no test is linked or run, so the report needs neither DPDK nor rights. [`ran`] compares
//! the proofs with the record of the tests that ran.

pub mod case;
pub mod claim;
pub mod ledger;
pub mod mutation;
pub mod place;
pub mod proof;
pub mod ran;
pub mod render;
pub mod row;
pub mod statement;
pub mod trial;

use std::path::{Path, PathBuf};

pub use ledger::{Ledger, Standing};
pub use ran::Ran;
pub use row::{Doc, RowId};

/// Where the index lies, from the top of the repository.
pub const SPEC: &str = "tests/conformance/spec";
/// Where the claims lie.
pub const CLAIMS: &str = "tests/conformance/claims";
/// Where it is said why a row has no place in the code.
pub const PLACES: &str = "tests/conformance/places";
/// Where the mutations lie.
pub const MUTATIONS: &str = "tests/conformance/mutations";
/// What the last trial of each mutation gave.
pub const TRIALS: &str = "tests/conformance/mutations.csv";
/// The report.
pub const REPORT: &str = "CONFORMANCE.md";

/// A file that cannot be read at all. What is wrong *in* a file is a finding instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing failed.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Its form is broken.
    #[error("{path}: {reason}")]
    Form {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// This module's results.
pub type Result<T> = std::result::Result<T, Error>;

/// The top of the repository this was built in.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies below the top of the repository")
}

/// The text of a file of the repository.
///
/// # Errors
/// When it is not there or is no text.
pub fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Replaces the text of a file of the repository.
///
/// # Errors
/// When it cannot be written.
pub fn write(root: &Path, path: &str, text: &str) -> Result<()> {
    std::fs::write(root.join(path), text).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// The names of the files in a folder whose names end so, sorted; none when there is no such folder.
///
/// # Errors
/// When the folder cannot be read.
pub fn files(root: &Path, folder: &str, extension: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        let fault = |source| Error::File { path: folder.display().to_string(), source };
        let entries = match std::fs::read_dir(root.join(&folder)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            other => other.map_err(fault)?,
        };
        for entry in entries {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if entry.file_type().map_err(fault)?.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path.display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}
