//! The tree: a real folder with the files of the device, from which the program's calls read.
//!
//! The name of the folder is a hash of the contents, so processes with the same settings share a tree, and
//! the files of a tree never change. A tree is in a folder of this user, like the folders of the wires. It
//! stays there when its processes end, and later processes use it again. A process that finds an incomplete
//! tree adds what is missing: other processes may do so at the same time, with the same contents.

use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{fs, ptr};

use super::facts;
use super::place::Node;
use super::table::{Entry, What, table};
use crate::ffi::abi;
use crate::net::{files_folders, fnv1a};

/// The file that is written last.
const COMPLETE: &str = "complete";

/// A complete tree of a user.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    uid: u32,
}

/// The tree of this process. The first call makes the tree if there is none. Returns `None` if no folder for
/// it can be made.
///
/// The function takes no lock, since it may be called in a forked child of a process with several threads.
pub(super) fn get() -> Option<&'static Tree> {
    static TREE: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: the pointer is NULL or the address of a leaked `Box`.
    let known = unsafe { TREE.load(Ordering::Acquire).as_ref() };
    // A program may change its user, and another program may remove old files from the folder.
    if let Some(tree) = known
        && tree.uid == uid()
        && is_complete(&tree.root)
    {
        return Some(tree);
    }
    let root = make()?;
    // Rarely a tree is replaced. The old value stays, since another thread may use it.
    let tree = Box::leak(Box::new(Tree { root, uid: uid() }));
    TREE.store(tree, Ordering::Release);
    Some(tree)
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_complete(root: &Path) -> bool {
    rustix::fs::access(root.join(COMPLETE), rustix::fs::Access::EXISTS).is_ok()
}

fn make() -> Option<PathBuf> {
    let table = table(&facts::before_start());
    let root = private_folder(Path::new(&format!("{:016x}", hash(&table))));
    let made = root.and_then(|root| match complete(&root, &table) {
        Ok(()) => Ok(root),
        Err(error) => Err(format!("{}: {error}", root.display())),
    });
    let say = |why: &String| abi::log(|| format!("there is no place for the files of the device: {why}"));
    made.inspect_err(say).ok()
}

/// A folder with this name, which only this user may enter and nobody else can replace.
///
/// # Errors
/// Returns one line that tells the user what to do.
pub(super) fn private_folder(name: &Path) -> Result<PathBuf, String> {
    let mut why = None;
    for folder in files_folders() {
        let folder = folder.join(name);
        match dp::local::private_folder(&folder) {
            Ok(_) => return Ok(folder),
            // The first folder is that of the user's choice.
            Err(error) => why = why.or(Some(error.to_string())),
        }
    }
    Err(why.unwrap_or_default())
}

fn complete(root: &Path, table: &[Entry]) -> io::Result<()> {
    if is_complete(root) {
        return Ok(());
    }
    write(root, table)?;
    put_file(root, COMPLETE, "")
}

/// A hash of the paths and contents of a tree.
fn hash(table: &[Entry]) -> u64 {
    fnv1a(format!("{table:?}").into_bytes())
}

/// Writes the entries that are missing below `root`.
pub(super) fn write(root: &Path, table: &[Entry]) -> io::Result<()> {
    for Entry { path, what } in table {
        let at = root.join(path);
        match what {
            What::Folder => put_folder(&at)?,
            What::File(content) => put_file(root, path, content)?,
            What::Link(target) => put_link(&at, target)?,
            What::Node => put_link(&at, &Node::STAND_IN.to_string_lossy())?,
        }
    }
    Ok(())
}

fn put_folder(at: &Path) -> io::Result<()> {
    fs::create_dir_all(at)?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o755))
}

/// Makes a file by an atomic rename from `root`, so that no process sees a part of the file. As in sysfs,
/// nobody may write to the file.
fn put_file(root: &Path, path: &str, content: &str) -> io::Result<()> {
    // SAFETY: the call has no conditions.
    let thread = unsafe { libc::gettid() };
    let draft = root.join(format!(".new.{}.{thread}", std::process::id()));
    fs::write(&draft, content)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o444))?;
    fs::rename(&draft, root.join(path))
}

fn put_link(at: &Path, target: &str) -> io::Result<()> {
    match symlink(target, at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_each_entry_and_is_mended() {
        let root = std::env::temp_dir().join(format!("uwarp-tree-{}", std::process::id()));
        let table = table(&facts::before_start());
        let check = || {
            for Entry { path, what } in &table {
                let at = root.join(path);
                let is_right = match what {
                    What::Folder => at.is_dir() && !at.is_symlink(),
                    What::File(content) => fs::read_to_string(&at).is_ok_and(|found| found == *content),
                    What::Link(target) => fs::read_link(&at).is_ok_and(|found| found == Path::new(target)),
                    What::Node => fs::read_link(&at).is_ok_and(|found| found == Path::new("/dev/null")),
                };
                assert!(is_right, "{path}");
            }
            assert!(is_complete(&root));
        };
        put_folder(&root).unwrap();
        for _ in 0..2 {
            complete(&root, &table).unwrap();
            check();
        }
        for path in ["complete", "sys/class/infiniband/uwarp0", "sys/class/infiniband_verbs/abi_version"] {
            fs::remove_file(root.join(path)).unwrap();
        }
        complete(&root, &table).unwrap();
        check();
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn other_contents_have_another_name() {
        let mut facts = facts::before_start();
        let hash_of = |facts: &_| hash(&table(facts));
        let before = hash_of(&facts);
        assert_eq!(hash_of(&facts), before);
        facts.numa_node += 7;
        assert_ne!(hash_of(&facts), before);
    }
}
