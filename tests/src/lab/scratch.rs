//! A folder for one test's files: vhost sockets, captures, JSON results.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Result;

/// The name under which everything of this run is made: given by `scripts/test`, which sweeps by it, or made
/// from the process id.
pub fn run_name() -> String {
    std::env::var("UWARP_LAB").unwrap_or_else(|_| format!("uw{}", std::process::id()))
}

/// A number that no other call in this process gets.
pub(super) fn ordinal() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A fresh folder, removed with everything in it on drop. Its path is short: a unix socket's has 107 bytes.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the folder, below `UWARP_SCRATCH` where that is set.
    ///
    /// # Errors
    /// When the system refuses.
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
        // Nothing to be done about a folder that will not go; `scripts/test` removes the parent.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
