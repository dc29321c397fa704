//! A copy of the work tree to break: made once, kept, and brought up to date, so that builds in it are incremental.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lab::{Result, Run};
use crate::lab_error;

/// The copy.
#[derive(Debug)]
pub struct Copy {
    path: PathBuf,
    /// Locked: two who break one copy would see each other's defects.
    _lock: File,
}

impl Copy {
    /// The copy that all share, beside what cargo builds, and the folder that cargo builds into: the crates of others are
    /// built there already, while those of the copy, whose paths differ, get names of their own.
    ///
    /// # Errors
    /// As those of [`of`](Self::of).
    pub fn beside(root: &Path) -> Result<(Self, PathBuf)> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| root.join("target"));
        Ok((Self::of(root, target.join("mutations/tree"))?, target))
    }

    /// Brings the copy at `path` up to the work tree at `root`: what git tracks or would track, as it is there.
    /// Files that are the same are not touched, so that nothing is built again for them.
    ///
    /// # Errors
    /// When git or the file system refuses.
    pub fn of(root: &Path, path: PathBuf) -> Result<Self> {
        let listed = Run::new("git")
            .arg("-C")
            .arg(root)
            .args(["-c", "core.quotePath=false", "ls-files", "--cached", "--others", "--exclude-standard"])
            .check(Duration::from_secs(60))?;
        let wanted: BTreeSet<&str> = listed.lines().filter(|name| root.join(name).is_file()).collect();
        std::fs::create_dir_all(&path)?;
        let lock = File::create(path.with_extension("lock"))?;
        lock.lock()?;
        let copy = Self { path, _lock: lock };
        for name in &wanted {
            let octets = std::fs::read(root.join(name))?;
            copy.put(name, &octets)?;
        }
        copy.sweep(Path::new(""), &wanted)?;
        Ok(copy)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a file this content.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn put(&self, name: &str, octets: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if std::fs::read(&path).is_ok_and(|there| there == octets) {
            return Ok(());
        }
        let folder = path.parent().ok_or_else(|| lab_error!("{name} has no folder"))?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, octets).map_err(|error| lab_error!("{}: {error}", path.display()))
    }

    /// Removes files that the work tree no longer has.
    fn sweep(&self, folder: &Path, wanted: &BTreeSet<&str>) -> Result<()> {
        for entry in std::fs::read_dir(self.path.join(folder))? {
            let entry = entry?;
            let name = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.sweep(&name, wanted)?;
            } else if !wanted.contains(name.to_string_lossy().as_ref()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Scratch;

    #[test]
    fn the_copy_follows_the_tree_and_leaves_alone_what_is_the_same() {
        let scratch = Scratch::new().unwrap();
        let (tree, path) = (scratch.file("tree"), scratch.file("copy"));
        std::fs::create_dir_all(tree.join("src")).unwrap();
        let init = Run::new("git").args(["init", "--quiet"]).arg(&tree);
        init.check(Duration::from_secs(10)).unwrap();
        let write = |name: &str, text: &str| std::fs::write(tree.join(name), text).unwrap();
        write(".gitignore", "built\n");
        write("built", "");
        write("src/a.rs", "a");
        write("src/b.rs", "b");
        let copy = Copy::of(&tree, path.clone()).unwrap();
        assert!(File::open(path.with_extension("lock")).unwrap().try_lock().is_err());
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        assert_eq!((read("src/a.rs").as_deref(), read("built")), (Some("a"), None));
        let changed = || std::fs::metadata(path.join("src/a.rs")).unwrap().modified().unwrap();
        let before = changed();
        copy.put("src/b.rs", b"broken").unwrap();
        std::fs::remove_file(tree.join(".gitignore")).unwrap();
        drop(copy);
        Copy::of(&tree, path.clone()).unwrap();
        assert_eq!((read("src/b.rs").as_deref(), read(".gitignore")), (Some("b"), None));
        assert_eq!(changed(), before);
    }
}
