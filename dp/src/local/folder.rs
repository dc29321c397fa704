//! The rendezvous folder of a wire: which folder it is, and whether it can be trusted.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::LocalError;

/// The owner that a user namespace shows for a user that it does not know: in a container, the real root.
const OVERFLOW_UID: u32 = 65_534;

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

/// Opens the folder, which is made if it is not there, for this user alone.
///
/// # Errors
/// [`LocalError`], if it is not absolute, belongs to somebody else, or others may enter it.
pub fn private_folder(folder: &Path) -> Result<File, LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    if !folder.is_absolute() {
        return Err(LocalError::Relative(folder.to_owned()));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    check_parent(folder)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    let opened = File::from(opened.map_err(|errno| match errno {
        // A symbolic link, which others could point elsewhere.
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => LocalError::Link(folder.to_owned()),
        errno => failed(errno.into()),
    })?);
    let found = opened.metadata().map_err(failed)?;
    let uid = rustix::process::geteuid().as_raw();
    if found.uid() != uid {
        return Err(LocalError::Owner { folder: folder.to_owned(), owner: found.uid(), uid });
    }
    if found.mode() & 0o7777 != 0o700 {
        return Err(LocalError::Mode { folder: folder.to_owned(), mode: found.mode() & 0o7777 });
    }
    Ok(opened)
}

/// Whoever may rename the folder could put another in its place: its parent has to belong to us or root, and
/// if others may write to it, only owners may rename in it.
fn check_parent(folder: &Path) -> Result<(), LocalError> {
    let parent = folder.parent().unwrap_or(folder);
    let found = std::fs::metadata(parent)
        .map_err(|source| LocalError::Folder { folder: parent.to_owned(), source })?;
    let uid = rustix::process::geteuid().as_raw();
    if ![uid, 0, OVERFLOW_UID].contains(&found.uid()) {
        return Err(LocalError::Owner { folder: parent.to_owned(), owner: found.uid(), uid });
    }
    if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
        return Err(LocalError::Mode { folder: parent.to_owned(), mode: found.mode() & 0o7777 });
    }
    Ok(())
}
