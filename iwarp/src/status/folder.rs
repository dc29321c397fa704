//! The folder of the sockets on which contexts report their status. Only the owner of the folder can enter
//! the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dp::local::{self, LocalError};

/// The file extension of a socket.
const EXTENSION: &str = "status";

/// Returns the default folder: `.status` in `$UWARP_DIR`, else in `$XDG_RUNTIME_DIR/uwarp`, else in
/// `/tmp/uwarp-<uid>`.
///
/// # Errors
/// The call does not fail in practice. The folder is next to that of the [local
/// wires](dp::local::default_folder), whose function refuses invalid names of wires; the name that is used
/// here is valid.
pub fn default_folder() -> io::Result<PathBuf> {
    let any = local::default_folder("any").map_err(io::Error::other)?;
    Ok(any.with_file_name(".status"))
}

/// Makes the folder if it does not exist.
///
/// # Errors
/// Fails on an error of the operating system, or if the folder belongs to another user, or if other users can
/// enter or move it.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    let failed = |error: LocalError| io::Error::other(error.to_string());
    local::private_folder(folder).map(drop).map_err(failed)
}

/// Returns the path of the socket of a process's context `number`.
pub(super) fn socket(folder: &Path, pid: u32, number: u32) -> PathBuf {
    folder.join(format!("{pid}-{number}.{EXTENSION}"))
}

/// Returns the sockets in the folder, with the numbers of their processes. The list is empty if the folder
/// does not exist.
pub(super) fn sockets(folder: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    make(folder)?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let pid = stem.split_once('-').and_then(|(pid, _)| pid.parse().ok());
        if let Some(pid) = pid
            && path.extension().is_some_and(|extension| extension == EXTENSION)
        {
            found.push((pid, path));
        }
    }
    found.sort();
    Ok(found)
}
