//! The rendezvous folder of a wire: the folder's path, and the checks that the folder is safe against other
//! users.
//!
//! The folder itself has to belong to this user, and the folder's mode must not allow other users to enter
//! it. The ancestor folders have to belong to this user or to root. (In a user namespace, root's number may
//! be shown as 65534.) If an ancestor has no sticky bit and other users may write to it, they can replace its
//! entries. A folder below such an ancestor is used through a descriptor, which still refers to the same
//! folder after the folder was moved ([`WireFolder`]).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::LocalError;

/// The owner that a user namespace shows for users that it does not map, for instance for the real root in a
/// container.
const OVERFLOW_UID: u32 = 65_534;

/// Maximum number of symbolic links in a path. The kernel has the same limit.
const MAX_LINKS: usize = 40;

/// The mode bits that give permissions to other users. The sticky and set-ID bits are not checked: these bits
/// give no access, and a new folder inherits the setgid bit of its parent.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const OWNER: u32 = 0o700;
const STICKY: u32 = 0o1000;

/// Returns the folder of the wire `net`. The folder is `$UWARP_DIR/<net>`. If `UWARP_DIR` is not set, the
/// folder is `$XDG_RUNTIME_DIR/uwarp/<net>`. If neither variable is set, the folder is
/// `/tmp/uwarp-<uid>/<net>`. A variable that is empty or is not an absolute path counts as not set.
///
/// # Errors
/// [`LocalError::Name`] if `net` is not a plain name.
pub fn default_folder(net: &str) -> Result<PathBuf, LocalError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if net.is_empty() || net.len() > 64 || net.starts_with('.') || !net.bytes().all(plain) {
        return Err(LocalError::Name(net.to_owned()));
    }
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let parent = folder("UWARP_DIR")
        .or_else(|| Some(folder("XDG_RUNTIME_DIR")?.join("uwarp")))
        .unwrap_or_else(|| format!("/tmp/uwarp-{}", rustix::process::geteuid().as_raw()).into());
    Ok(parent.join(net))
}

/// Opens a folder that only this user may enter. Creates the folder if it does not exist. Other users cannot
/// replace the folder, so the folder's path can be used later.
///
/// # Errors
/// [`LocalError`] if `folder` is not absolute, cannot be created or opened, or belongs to another user, or if
/// other users can enter or move it.
pub fn private_folder(folder: &Path) -> Result<File, LocalError> {
    match open(folder)? {
        (opened, None) => Ok(opened),
        (_, Some(movable)) => Err(movable),
    }
}

/// The folder of a wire, which only this user may enter.
#[derive(Debug)]
pub struct WireFolder {
    path: PathBuf,
    /// The open folder, if `path` leads through the folder's descriptor.
    _held: Option<File>,
}

impl WireFolder {
    /// Opens the folder, and creates it if it does not exist. If other users can move the folder,
    /// [`path`](Self::path) leads through a descriptor of the folder.
    ///
    /// # Errors
    /// [`LocalError`] if `folder` is not absolute, cannot be created or opened, or belongs to another user.
    /// The function also fails if other users can enter the folder, or if other users can move the folder and
    /// `/proc` is missing.
    pub fn open(folder: &Path) -> Result<Self, LocalError> {
        Self::with_lock(folder).map(|(folder, _)| folder)
    }

    /// Opens the folder like [`open`](Self::open). Also returns another descriptor for the folder's lock.
    pub(super) fn with_lock(folder: &Path) -> Result<(Self, File), LocalError> {
        let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
        let (opened, movable) = open(folder)?;
        let Some(movable) = movable else {
            return Ok((Self { path: folder.to_owned(), _held: None }, opened));
        };
        // `held` is a second open file of the folder: the first open file is closed to release the lock.
        let held = rustix::fs::openat(&opened, ".", FOLDER, Mode::empty());
        let held = File::from(held.map_err(|errno| failed(errno.into()))?);
        let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        if leads_to(&path, &opened) { Ok((Self { path, _held: Some(held) }, opened)) } else { Err(movable) }
    }

    /// A path to the folder. The path is valid until this value is dropped.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether `path` names the folder `opened`. For a path through `/proc`, the result is `false` if `/proc` is
/// missing or is not procfs.
fn leads_to(path: &Path, opened: &File) -> bool {
    let inode = |found: Metadata| (found.dev(), found.ino());
    match (std::fs::metadata(path), opened.metadata()) {
        (Ok(named), Ok(known)) => inode(named) == inode(known),
        _ => false,
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder of this user. Creates the folder first if it does not exist. If other users can move the
/// folder, the second value is the error for callers that do not accept such a folder.
fn open(folder: &Path) -> Result<(File, Option<LocalError>), LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    if !folder.is_absolute() {
        return Err(LocalError::Relative(folder.to_owned()));
    }
    let us = User::current();
    // The path is checked before anything is created. The path is checked again afterwards, since another
    // user may have created a part of it after the first check.
    us.check_way(folder)?;
    DirBuilder::new().recursive(true).mode(OWNER).create(folder).map_err(failed)?;
    let movable = us.check_way(folder)?;
    let opened =
        File::from(rustix::fs::open(folder, FOLDER, Mode::empty()).map_err(|errno| match errno {
            // The path names a symbolic link, which other users could change, or something that is not a
            // folder.
            Errno::LOOP | Errno::NOTDIR => LocalError::Link(folder.to_owned()),
            errno => failed(errno.into()),
        })?);
    let found = opened.metadata().map_err(failed)?;
    us.check_own(folder, found.uid(), found.mode())?;
    Ok((opened, movable))
}

/// The user of this process, and the users that this process trusts.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    /// `true` if files with the owner [`OVERFLOW_UID`] may belong to the real root.
    trusts_overflow: bool,
}

/// What other users can do with the entries of a trusted folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entries {
    /// Other users cannot move entries that belong to this user or to root.
    Stay,
    /// Other users can move the entries.
    Move,
}

impl User {
    fn current() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { uid: rustix::process::geteuid().as_raw(), trusts_overflow: leaves_out_overflow(&map) }
    }

    fn trusts(self, owner: u32) -> bool {
        owner == self.uid || owner == 0 || owner == OVERFLOW_UID && self.trusts_overflow
    }

    /// Checks that `folder` belongs to this user, and that only this user may use it.
    fn check_own(self, folder: &Path, owner: u32, mode: u32) -> Result<(), LocalError> {
        if owner != self.uid {
            return Err(LocalError::Owner { folder: folder.to_owned(), owner, uid: self.uid });
        }
        if mode & OTHERS != 0 || mode & OWNER != OWNER {
            return Err(LocalError::Mode { folder: folder.to_owned(), mode: mode & 0o7777 });
        }
        Ok(())
    }

    /// Checks that an ancestor of the wire's folder has a trusted owner. Returns what other users can do with
    /// the entries of the ancestor.
    fn check_ancestor(self, folder: &Path, owner: u32, mode: u32) -> Result<Entries, LocalError> {
        if !self.trusts(owner) {
            return Err(LocalError::Owner { folder: folder.to_owned(), owner, uid: self.uid });
        }
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 { Ok(Entries::Move) } else { Ok(Entries::Stay) }
    }

    /// Checks each existing ancestor folder of `folder`, and each symbolic link in the path. If other users
    /// may move the entries of an ancestor, returns the error that names the first such ancestor.
    fn check_way(self, folder: &Path) -> Result<Option<LocalError>, LocalError> {
        let mut movable = None;
        let mut at = PathBuf::from("/");
        let mut left: VecDeque<OsString> = VecDeque::new();
        let parent = folder.parent().unwrap_or(folder);
        prepend(&mut left, parent);
        let mut links = 0;
        loop {
            let failed = |source: io::Error| LocalError::Folder { folder: at.clone(), source };
            let found = std::fs::symlink_metadata(&at).map_err(failed)?;
            let mode = found.mode() & 0o7777;
            if self.check_ancestor(&at, found.uid(), mode)? == Entries::Move && movable.is_none() {
                movable = Some(LocalError::Movable { folder: at.clone(), mode });
            }
            // Resolves the next component of the path, and follows links.
            loop {
                let Some(name) = left.pop_front() else { return Ok(movable) };
                let next = at.join(&name);
                let found = match std::fs::symlink_metadata(&next) {
                    // The rest of the path does not exist yet.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(movable),
                    found => found.map_err(|source| LocalError::Folder { folder: next.clone(), source })?,
                };
                if !found.is_symlink() {
                    // `..` is a folder that was already checked, or the parent of a link's target.
                    at = if name == ".." { at.parent().unwrap_or(&at).to_owned() } else { next };
                    break;
                }
                let (uid, owner) = (self.uid, found.uid());
                if !self.trusts(owner) {
                    return Err(LocalError::Owner { folder: next, owner, uid });
                }
                links += 1;
                let target = match std::fs::read_link(&next) {
                    Ok(target) if links <= MAX_LINKS => target,
                    Ok(_) => return Err(LocalError::Folder { folder: next, source: Errno::LOOP.into() }),
                    Err(source) => return Err(LocalError::Folder { folder: next, source }),
                };
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                prepend(&mut left, &target);
            }
        }
    }
}

/// Inserts the components of a path in front of the components in `left`.
fn prepend(left: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Whether a user namespace with this `/proc/self/uid_map` does not map [`OVERFLOW_UID`]. If the namespace
/// does not map this number, files with this owner belong to users outside of the namespace. In a namespace
/// that maps all users, the number belongs to `nobody`.
fn leaves_out_overflow(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) => Some(first..first + count),
            _ => None,
        }
    });
    // An empty map means that the map could not be read.
    let is_known = !map.is_empty();
    is_known && ranges.all(|range| range.is_some_and(|range| !range.contains(&u64::from(OVERFLOW_UID))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/a/b";

    #[test]
    fn a_path_leads_to_the_folder_that_is_open_or_to_another_one() {
        let opened = File::open("/dev").unwrap();
        assert!(leads_to(Path::new("/dev"), &opened) && leads_to(Path::new("/proc/../dev"), &opened));
        assert!(!leads_to(Path::new("/"), &opened), "another folder");
        assert!(!leads_to(Path::new("/dev/none"), &opened), "nothing");
    }

    fn line(error: LocalError) -> String {
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn the_owner_of_the_folder_is_this_user_and_nobody_else_may_enter_it() {
        let root = User { uid: 0, trusts_overflow: true };
        let user = User { uid: 1000, trusts_overflow: true };
        for (us, owner, mode, refused) in [
            (user, 1000, 0o700, None),
            (user, 1000, 0o2700, None),
            (user, 1000, 0o1700, None),
            (user, 1000, 0o7700, None),
            (user, 1000, 0o710, Some("has mode 710")),
            (user, 1000, 0o740, Some("has mode 740")),
            (user, 1000, 0o720, Some("has mode 720")),
            (user, 1000, 0o701, Some("has mode 701")),
            (user, 1000, 0o704, Some("has mode 704")),
            (user, 1000, 0o2702, Some("has mode 2702")),
            (user, 1000, 0o600, Some("has mode 600")),
            (user, 1000, 0o500, Some("has mode 500")),
            (user, 1000, 0o300, Some("has mode 300")),
            (user, 0, 0o700, Some("belongs to user 0, not to user 1000")),
            (user, 1001, 0o700, Some("belongs to user 1001, not to user 1000")),
            (user, OVERFLOW_UID, 0o700, Some("belongs to user 65534")),
            (root, OVERFLOW_UID, 0o700, Some("belongs to user 65534, not to user 0")),
            (root, 0, 0o700, None),
        ] {
            let found = us.check_own(Path::new(FOLDER), owner, mode).err().map(line);
            let fits = match (&found, refused) {
                (None, None) => true,
                (Some(line), Some(says)) => line.starts_with("/a/b ") && line.contains(says),
                _ => false,
            };
            assert!(fits, "{us:?}, owner {owner}, mode {mode:o}: {found:?}");
        }
    }

    #[test]
    fn folders_on_the_way_belong_to_this_user_or_root_and_their_modes_say_who_moves_entries() {
        let user = User { uid: 1000, trusts_overflow: false };
        let in_container = User { uid: 1000, trusts_overflow: true };
        for (us, owner, mode, found) in [
            (user, 1000, 0o755, Some(Entries::Stay)),
            (user, 0, 0o755, Some(Entries::Stay)),
            (user, 0, 0o1777, Some(Entries::Stay)),
            (user, 0, 0o3777, Some(Entries::Stay)),
            (user, 1000, 0o1770, Some(Entries::Stay)),
            (user, 0, 0o777, Some(Entries::Move)),
            // The mode of a Kubernetes emptyDir.
            (user, 0, 0o2777, Some(Entries::Move)),
            (user, 1000, 0o775, Some(Entries::Move)),
            (user, 1000, 0o702, Some(Entries::Move)),
            (user, 1000, 0o2755, Some(Entries::Stay)),
            (user, 1001, 0o755, None),
            (user, 1001, 0o1777, None),
            (user, OVERFLOW_UID, 0o755, None),
            (in_container, OVERFLOW_UID, 0o755, Some(Entries::Stay)),
            (in_container, OVERFLOW_UID, 0o777, Some(Entries::Move)),
            (in_container, 1001, 0o755, None),
        ] {
            let checked = us.check_ancestor(Path::new(FOLDER), owner, mode).ok();
            assert_eq!(checked, found, "{us:?}, owner {owner}, mode {mode:o}");
        }
    }

    #[test]
    fn the_overflow_uid_is_trusted_only_where_a_user_namespace_leaves_it_out() {
        for (map, trusted) in [
            // The map outside of user namespaces.
            ("         0          0 4294967295\n", false),
            // The maps of rootless containers.
            ("         0       1000          1\n", true),
            ("         0       1000          1\n         1     100000      65533\n", true),
            ("         0       1000          1\n         1     100000      65534\n", false),
            ("         0     100000      65536\n", false),
            ("     65534       1000          1\n", false),
            ("     65535       1000          1\n", true),
            ("", false),
            ("0 0\n", false),
            ("nonsense\n", false),
        ] {
            assert_eq!(leaves_out_overflow(map), trusted, "{map}");
        }
    }
}
