//! A folder for the files of one test, such as vhost sockets, captures and JSON results.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Result;

/// Returns the name of this run. The names of all namespaces of the run begin with this name. `scripts/test`
/// sets the name, and uses it to remove the namespaces. Without `scripts/test`, the name is `uw` and the
/// process id.
pub fn run_name() -> String {
    std::env::var("UWARP_LAB").unwrap_or_else(|_| format!("uw{}", std::process::id()))
}

/// Returns a number that is unique in this process.
pub(super) fn ordinal() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A new folder. When the value is dropped, the folder and its contents are removed. The path is short, since
/// the path of a unix socket has at most 107 bytes.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the folder below the folder that the environment variable `UWARP_SCRATCH` names, or below the
    /// system's folder for temporary files.
    ///
    /// # Errors
    /// If the system reports an error.
    pub fn new() -> Result<Self> {
        let base = std::env::var_os("UWARP_SCRATCH").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = base.join(format!("{}-{}-{}", run_name(), std::process::id(), ordinal()));
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If the folder cannot be removed, `scripts/test` removes the parent folder.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
