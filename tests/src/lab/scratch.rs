//! A folder for one test's files: vhost sockets, captures, JSON results.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Result;

/// The name of this run, a prefix of the names of all its namespaces: set by `scripts/test`, which uses it
/// to remove the namespaces, or made from the process id.
pub fn run_name() -> String {
    std::env::var("UWARP_LAB").unwrap_or_else(|_| format!("uw{}", std::process::id()))
}

/// A number that is unique in this process.
pub(super) fn ordinal() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A new folder, removed with its contents when dropped. Its path is short, since a unix socket's path has at
/// most 107 bytes.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the folder, below `UWARP_SCRATCH` if that is set.
    ///
    /// # Errors
    /// An error of the system.
    pub fn new() -> Result<Self> {
        let base = std::env::var_os("UWARP_SCRATCH").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = base.join(format!("{}-{}-{}", run_name(), std::process::id(), ordinal()));
        std::fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, `scripts/test` removes the parent folder.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
