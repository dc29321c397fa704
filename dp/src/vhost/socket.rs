//! The path of the socket on which a port listens.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::config::VhostError;

/// A listening socket, whose file is removed at the end.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// The device and the inode of the file. If another file has the path at the end, that file stays.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Listens at `path`. The file of a process that has ended is removed first.
    pub(super) fn listen(path: &Path) -> Result<Self, VhostError> {
        let failed = |cause| VhostError::Socket { path: path.to_owned(), cause };
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                clear_stale(path)?;
                UnixListener::bind(path).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, file: file_at(path), path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            // An error is ignored: the next process that listens at the path removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The device and the inode of the file at `path`.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Removes the socket of a process that has ended.
///
/// # Errors
/// [`VhostError::InUse`] if a process may listen, or [`VhostError::NoSocket`] if the file is not a socket.
fn clear_stale(path: &Path) -> Result<(), VhostError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(VhostError::NoSocket { path: path.to_owned() });
        }
        _ => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|cause| VhostError::Socket { path: path.to_owned(), cause })
        }
        // Another process has removed the file.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        _ => Err(VhostError::InUse { path: path.to_owned() }),
    }
}
