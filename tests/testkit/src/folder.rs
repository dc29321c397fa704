//! Folders of tests.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that only one test uses, among the temporary files. The folder is removed when this value is
/// dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder whose name begins with `name`.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn new(name: &str) -> Self {
        let folder = Self::absent(name);
        std::fs::create_dir(&folder.0).unwrap_or_else(|error| panic!("{}: {error}", folder.0.display()));
        folder
    }

    /// Returns a folder like [`new`](Self::new), but leaves its creation to the code under test.
    pub fn absent(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{name}-{}-{number}", std::process::id()));
        // A killed test whose process had the same PID may have left its folder.
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If the removal fails, the folder remains among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_of_one_test_and_goes_with_it() {
        let (a, b) = (Folder::new("testkit-folder"), Folder::absent("testkit-folder"));
        assert!(a.is_dir() && !b.exists() && *a != *b);
        std::fs::write(a.join("file"), "").unwrap();
        std::fs::create_dir(&*b).unwrap();
        let paths = [a.to_path_buf(), b.to_path_buf()];
        drop((a, b));
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
