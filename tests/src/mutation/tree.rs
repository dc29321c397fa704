//! A copy of the work tree in which mutations are applied. The copy is kept and updated, so that builds in it
//! are incremental.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Edit;
use crate::lab::{Ended, LabError, Result, Run};
use crate::lab_error;

/// The copy of the work tree.
#[derive(Debug)]
pub struct Tree {
    /// The path of the work tree.
    root: PathBuf,
    path: PathBuf,
    /// Cargo's build folder, shared with the work tree. Dependencies have been built there, and the crates of
    /// the copy get other file names because of their paths.
    built: PathBuf,
    /// The folder of the copy's finished programs. The folder is separate, since programs of the work tree
    /// have the same names: a program of the copy could be replaced before it is started.
    programs: PathBuf,
    /// The lock on the copy: no other process applies mutations to it.
    _lock: File,
}

impl Tree {
    /// Updates and returns the shared copy, which is in cargo's target folder.
    ///
    /// # Errors
    /// If git or the file system fails.
    pub fn beside(root: &Path) -> Result<Self> {
        let built = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let built = built.unwrap_or_else(|| root.join("target"));
        let path = built.join("mutations/tree");
        Self::of(root, path, built)
    }

    /// Updates the copy at `path` from the work tree at `root`, with all files that git tracks or does not
    /// ignore. Unchanged files keep their time stamps, so that cargo does not build them again.
    fn of(root: &Path, path: PathBuf, built: PathBuf) -> Result<Self> {
        let listed = Run::new("git")
            .arg("-C")
            .arg(root)
            .args(["-c", "core.quotePath=false", "ls-files", "--cached", "--others", "--exclude-standard"])
            .check(Duration::from_secs(60))?;
        let wanted: BTreeSet<&str> = listed.lines().filter(|name| root.join(name).is_file()).collect();
        std::fs::create_dir_all(&path)?;
        let lock = File::create(path.with_extension("lock"))?;
        lock.lock()?;
        let programs = path.with_extension("programs");
        let tree = Self { root: root.to_owned(), path, built, programs, _lock: lock };
        for name in &wanted {
            let bytes = std::fs::read(root.join(name))?;
            tree.put(name, &bytes)?;
        }
        tree.sweep(Path::new(""), &wanted)?;
        Ok(tree)
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a program of the copy that [`cargo`](Self::cargo) built.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join("debug").join(name)
    }

    /// Runs cargo on the copy.
    ///
    /// # Errors
    /// If cargo cannot be started, or does not end within `limit`.
    pub fn cargo(&self, command: &str, arguments: &[&str], limit: Duration) -> Result<Ended> {
        let run = Run::new("cargo").args([command, "--quiet", "--manifest-path"]);
        let run = run.arg(self.path.join("Cargo.toml")).args(arguments);
        // Our crates are built without optimisation, since a program runs only for seconds after a build that
        // takes a minute.
        let run = run.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        let run = run.env("CARGO_BUILD_BUILD_DIR", &self.built).env("CARGO_TARGET_DIR", &self.programs);
        run.spawn()?.finish(limit)
    }

    /// Applies `edit` to the copy, calls `action`, and undoes the edit.
    ///
    /// # Errors
    /// If the edit does not apply, if the file system fails, or if `action` returns an error.
    pub fn broken<T>(&self, edit: &Edit, action: impl FnOnce() -> Result<T>) -> Result<T> {
        let whole = std::fs::read_to_string(self.root.join(&edit.file))?;
        let broken = edit.apply(&whole).map_err(LabError)?;
        self.put(&edit.file, broken.as_bytes())?;
        let result = action();
        self.put(&edit.file, whole.as_bytes())?;
        result
    }

    /// Writes a file of the copy, if its contents have changed.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if std::fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        let folder = path.parent().ok_or_else(|| lab_error!("{name} has no folder"))?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, bytes).map_err(|error| lab_error!("{}: {error}", path.display()))
    }

    /// Removes files of the copy that are no longer in the work tree.
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

    /// Returns a repository in the folder, and a function that writes files of the repository.
    fn repository(scratch: &Scratch) -> (PathBuf, impl Fn(&str, &str)) {
        let root = scratch.file("tree");
        std::fs::create_dir_all(root.join("src")).unwrap();
        let init = Run::new("git").args(["init", "--quiet"]).arg(&root);
        init.check(Duration::from_secs(10)).unwrap();
        let folder = root.clone();
        (root, move |name, text| std::fs::write(folder.join(name), text).unwrap())
    }

    #[test]
    fn the_copy_follows_the_tree_and_leaves_alone_what_is_the_same() {
        let scratch = Scratch::new().unwrap();
        let (root, write) = repository(&scratch);
        let path = scratch.file("copy");
        write(".gitignore", "built\n");
        write("built", "");
        write("src/a.rs", "a");
        write("src/b.rs", "b");
        let copy = Tree::of(&root, path.clone(), scratch.file("built")).unwrap();
        assert!(File::open(path.with_extension("lock")).unwrap().try_lock().is_err());
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        assert_eq!((read("src/a.rs").as_deref(), read("built")), (Some("a"), None));
        let changed = || std::fs::metadata(path.join("src/a.rs")).unwrap().modified().unwrap();
        let before = changed();
        copy.put("src/b.rs", b"broken").unwrap();
        std::fs::remove_file(root.join(".gitignore")).unwrap();
        drop(copy);
        Tree::of(&root, path.clone(), scratch.file("built")).unwrap();
        assert_eq!((read("src/b.rs").as_deref(), read(".gitignore")), (Some("b"), None));
        assert_eq!(changed(), before);
    }

    #[test]
    fn a_build_of_the_tree_leaves_the_programs_of_the_copy() {
        const LIMIT: Duration = Duration::from_secs(120);
        let scratch = Scratch::new().unwrap();
        let (root, write) = repository(&scratch);
        write("Cargo.toml", "[package]\nname = \"said\"\nedition = \"2024\"\n");
        write("src/main.rs", "fn main() { print!(\"whole\") }");
        let built = scratch.file("built");
        let copy = Tree::of(&root, scratch.file("copy"), built.clone()).unwrap();
        let edit = Edit {
            name: "another-word".into(),
            file: "src/main.rs".into(),
            find: "whole".into(),
            replace: "broken".into(),
        };
        let said = copy.broken(&edit, || {
            let build = copy.cargo("build", &["--offline"], LIMIT)?;
            build.success()?;
            let tree = Run::new("cargo").args(["build", "--quiet", "--offline", "--manifest-path"]);
            tree.arg(root.join("Cargo.toml")).env("CARGO_TARGET_DIR", &built).check(LIMIT)?;
            Run::new(copy.program("said")).check(LIMIT)
        });
        assert_eq!(said.unwrap(), "broken");
        assert_eq!(Run::new(built.join("debug/said")).check(LIMIT).unwrap(), "whole");
    }
}
