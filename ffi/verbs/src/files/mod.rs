//! The files in which programs look for a device: in `/sys/class/infiniband`, `/sys/class/infiniband_verbs`
//! and `/dev/infiniband`.
//!
//! Programs that are started with this library find the files by their calls of libc, which this library
//! exports. The launcher can also mount the files, for programs that make system calls themselves. In both
//! cases programs do not find the devices of the host, which they cannot use with this library.
//!
//! | file | contents |
//! |---|---|
//! | `table.rs` | the files and their contents |
//! | `facts.rs` | the values in them, for this process |
//! | `place.rs` | the paths of the files |
//! | `tree.rs` | the real folder that has the files |
//! | `calls.rs` | the calls of libc |
//! | `sysfs.rs` | libibverbs's function that reads a file |

mod calls;
mod facts;
mod place;
mod sysfs;
mod table;
mod tree;

use std::io;
use std::path::{Path, PathBuf};

use place::{Node, Place};

use crate::process::identity;

/// The folders that have the files, as absolute paths.
pub const PLACES: [&str; 4] =
    [Place::Class.path(), Place::Verbs.path(), Place::Devices.path(), Place::Nodes.path()];

/// The paths of the nodes.
pub fn nodes() -> Vec<String> {
    Node::ALL.iter().map(|node| format!("{}/{}", Place::Nodes.path(), node.name())).collect()
}

/// Whether programs find the files, by the settings.
pub fn are_shown() -> bool {
    identity::has_files()
}

/// Whether the launcher mounts the files: `chosen` if the user has chosen on the command line, and otherwise
/// what the settings say.
///
/// # Errors
/// If the setting is wrong, returns one line that tells the user what to do.
pub fn are_mounted(chosen: Option<bool>) -> Result<bool, String> {
    let of_settings = identity::mounts_files()?;
    Ok(chosen.unwrap_or(of_settings))
}

/// An empty folder of this user, on which the launcher can mount the files.
///
/// # Errors
/// If there is no place for the folder, returns one line that tells the user what to do.
pub fn stage() -> Result<PathBuf, String> {
    tree::private_folder(Path::new("mount"))
}

/// Writes the files below `root`, with the values that the settings determine. The nodes are symbolic links
/// to `/dev/null`.
///
/// # Errors
/// Returns the system's error if a file cannot be made.
pub fn write(root: &Path) -> io::Result<()> {
    tree::write(root, &table::table(&facts::before_start()))
}
