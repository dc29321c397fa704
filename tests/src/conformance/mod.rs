//! The requirements of the RFCs, row by row, and the proofs that the code meets them.
//!
//! A *row* is one requirement of `tests/conformance/spec/*.csv`. A *proof* is a test whose comment names the
//! row ([`proof`]), or a wire case of `iwprobe` that names the row ([`case`]). A *claim* is a line of
//! `tests/conformance/claims/*.csv` for a row that no test proves, or that the code deliberately does not
//! follow ([`claim`]). A *mutation* breaks one or more requirements in the code; for each of these
//! requirements, at least one of the tests that name its row has to fail ([`mutation`]). A *place* is a
//! comment in the code that names the row that the code below it obeys ([`place`]).
//!
//! [`Ledger`] joins these data and finds contradictions, and [`render`] writes the text of `CONFORMANCE.md`.
//! All data are read from files of the repository. No test is linked or run, so the report needs neither DPDK
//! nor privileges. [`ran`] compares the proofs with the record of the tests that ran.

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

pub use ledger::{Ledger, RowState};
pub use ran::Ran;
pub use row::{Doc, RowId};

/// The path of the index's folder, relative to the root of the repository.
pub const SPEC: &str = "tests/conformance/spec";
/// Folder of the claims.
pub const CLAIMS: &str = "tests/conformance/claims";
/// Folder of the reasons why rows have no place in the code.
pub const PLACES: &str = "tests/conformance/places";
/// Folder of the mutations.
pub const MUTATIONS: &str = "tests/conformance/mutations";
/// File with the result of the last trial of each mutation.
pub const TRIALS: &str = "tests/conformance/mutations.csv";
/// The report.
pub const REPORT: &str = "CONFORMANCE.md";

/// A file that cannot be read, written or parsed. Errors in single claims, statements and edits are findings
/// instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has the wrong format.
    #[error("{path}: {reason}")]
    Form {
        /// The path of the file.
        path: String,
        /// What is wrong with the format.
        reason: String,
    },
}

/// The result of this module's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the root of the repository in which this program was built.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is below the root of the repository")
}

/// Returns the text of a file of the repository.
///
/// # Errors
/// If the file is missing or is not text.
pub fn read(root: &Path, path: &str) -> Result<String> {
    std::fs::read_to_string(root.join(path)).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Replaces the text of a file of the repository.
///
/// # Errors
/// If the file cannot be written.
pub fn write(root: &Path, path: &str, text: &str) -> Result<()> {
    std::fs::write(root.join(path), text).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Returns the sorted paths of the files with this extension below a folder, without hidden folders and
/// folders named `target`. If there is no such folder, there are no paths.
///
/// # Errors
/// If the folder cannot be read.
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
