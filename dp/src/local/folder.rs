//! The rendezvous folder of a wire: which folder it is, and whether it can be trusted.
//!
//! The folder itself has to belong to this user, and nobody else may enter it. The folders on the way to it
//! have to belong to this user or to root. Where others may write to one of these and it is not sticky, they
//! can rename what is in it, and put something else in its place. A folder that is only reached by such a way
//! is used through a descriptor, which names it wherever it is moved ([`WireFolder`]).

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

/// The owner that a user namespace shows for a user that it does not map: in a container, the real root.
const OVERFLOW_UID: u32 = 65_534;

/// Symbolic links on the way to a folder, as for the kernel.
const MAX_LINKS: usize = 40;

/// The permissions of others: their mode bits. The sticky bit and those of set-ID change nothing for the
/// owner. A folder that is made in one with the setgid bit inherits that bit.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const OWNER: u32 = 0o700;
const STICKY: u32 = 0o1000;

/// The folder of the wire `net`: `$UWARP_DIR/<net>`, else `$XDG_RUNTIME_DIR/uwarp/<net>`, else
/// `/tmp/uwarp-<uid>/<net>`. A variable that is empty or not absolute counts as unset.
///
/// # Errors
/// [`LocalError::Name`] if `net` is no plain name.
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

/// Opens the folder, which is made if it is not there, for this user alone. Nobody else can put another
/// folder in its place, so that its path can be used later on.
///
/// # Errors
/// [`LocalError`], if it is not absolute, belongs to somebody else, or others may enter it or move it.
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
    /// Keeps `path` valid, if that is the path of a descriptor.
    _held: Option<File>,
}

impl WireFolder {
    /// Opens the folder, which is made if it is not there. Others may be able to move it: then
    /// [`path`](Self::path) is that of a descriptor.
    ///
    /// # Errors
    /// [`LocalError`], if it is not absolute, belongs to somebody else, or others may enter it; and if others
    /// may move it and `/proc` is not there.
    pub fn open(folder: &Path) -> Result<Self, LocalError> {
        Self::with_lock(folder).map(|(folder, _)| folder)
    }

    /// As [`open`](Self::open), with a descriptor of its own for the folder's lock.
    pub(super) fn with_lock(folder: &Path) -> Result<(Self, File), LocalError> {
        let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
        let (opened, movable) = open(folder)?;
        let Some(movable) = movable else {
            return Ok((Self { path: folder.to_owned(), _held: None }, opened));
        };
        // Another open file than the one of the lock: a lock ends with its open file.
        let held = rustix::fs::openat(&opened, ".", FOLDER, Mode::empty());
        let held = File::from(held.map_err(|errno| failed(errno.into()))?);
        let path = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        if leads_to(&path, &opened) { Ok((Self { path, _held: Some(held) }, opened)) } else { Err(movable) }
    }

    /// Where it is, for as long as this lives.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether `path` names the folder that is `opened`. A path through `/proc` does not where `/proc` is not
/// there, or is something else.
fn leads_to(path: &Path, opened: &File) -> bool {
    let inode = |found: Metadata| (found.dev(), found.ino());
    match (std::fs::metadata(path), opened.metadata()) {
        (Ok(named), Ok(known)) => inode(named) == inode(known),
        _ => false,
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder that is ours, and makes it before if it is not there. The second value is the error for
/// somebody who needs that nobody can move it, if others can.
fn open(folder: &Path) -> Result<(File, Option<LocalError>), LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    if !folder.is_absolute() {
        return Err(LocalError::Relative(folder.to_owned()));
    }
    let us = User::current();
    // Before anything is made, and again for what somebody else has made in between.
    us.check_way(folder)?;
    DirBuilder::new().recursive(true).mode(OWNER).create(folder).map_err(failed)?;
    let movable = us.check_way(folder)?;
    let opened =
        File::from(rustix::fs::open(folder, FOLDER, Mode::empty()).map_err(|errno| match errno {
            // A symbolic link, which others could point elsewhere.
            Errno::LOOP | Errno::NOTDIR => LocalError::Link(folder.to_owned()),
            errno => failed(errno.into()),
        })?);
    let found = opened.metadata().map_err(failed)?;
    us.check_own(folder, found.uid(), found.mode())?;
    Ok((opened, movable))
}

/// Who this process is, and whom it trusts.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    /// Files of [`OVERFLOW_UID`] may be those of the real root.
    trusts_overflow: bool,
}

/// What others can do with the entries of a folder that is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entries {
    /// Only their owners can move them.
    Stay,
    /// Others can move them.
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

    /// Checks the folder itself.
    fn check_own(self, folder: &Path, owner: u32, mode: u32) -> Result<(), LocalError> {
        if owner != self.uid {
            return Err(LocalError::Owner { folder: folder.to_owned(), owner, uid: self.uid });
        }
        if mode & OTHERS != 0 || mode & OWNER != OWNER {
            return Err(LocalError::Mode { folder: folder.to_owned(), mode: mode & 0o7777 });
        }
        Ok(())
    }

    /// Checks a folder on the way.
    fn check_ancestor(self, folder: &Path, owner: u32, mode: u32) -> Result<Entries, LocalError> {
        if !self.trusts(owner) {
            return Err(LocalError::Owner { folder: folder.to_owned(), owner, uid: self.uid });
        }
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 { Ok(Entries::Move) } else { Ok(Entries::Stay) }
    }

    /// Checks each folder and each symbolic link on the way to `folder`, as far as they are there. Returns
    /// the error that names a folder whose entries others may move, if there is one.
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
            // To the next folder, by way of links.
            loop {
                let Some(name) = left.pop_front() else { return Ok(movable) };
                let next = at.join(&name);
                let found = match std::fs::symlink_metadata(&next) {
                    // The rest is made.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(movable),
                    found => found.map_err(|source| LocalError::Folder { folder: next.clone(), source })?,
                };
                if !found.is_symlink() {
                    // `..` leads back to a folder that is checked, or to one beside the target of a link.
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

/// Puts the names of a path before those that are left.
fn prepend(left: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Whether a user namespace with this `/proc/self/uid_map` has no user of the number [`OVERFLOW_UID`]. Then
/// files that have this owner belong to users outside of it. Where there are all users, it is `nobody`.
fn leaves_out_overflow(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) => Some(first..first + count),
            _ => None,
        }
    });
    // Without a map nothing is known.
    let is_known = !map.is_empty();
    is_known && ranges.all(|range| range.is_some_and(|range| !range.contains(&u64::from(OVERFLOW_UID))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/a/b";

    /// A wire is not used through a path that names another folder than the one that was checked.
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
            // An emptyDir of Kubernetes.
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
            // Outside of user namespaces.
            ("         0          0 4294967295\n", false),
            // A rootless container.
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
