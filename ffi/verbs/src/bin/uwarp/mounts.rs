//! A mount namespace that has the files of the device (`uwarp run --files mount`), for programs that read
//! files by system calls of their own.
//!
//! sysfs has no place for new entries. So each folder that gets an entry is covered by a folder of a tmpfs,
//! which has the new entry, and a bind mount of each other entry. Mounts of the host continue to appear in
//! the namespace. The mounts of the program stay in it.
//!
//! A user without the privilege to mount also gets a user namespace. In it, the user keeps the number, and
//! all other users are shown as `nobody`. Programs in it get no privileges over the host: `sudo` and `ping`
//! do not work, and packet sockets cannot be opened.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    unmount,
};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;

/// The folders of the system that get entries.
const COVERED: [&str; 3] = ["sys/class", "sys/devices/virtual", "dev"];

/// Moves this process to a new mount namespace, with the files.
///
/// # Errors
/// Returns one line that tells the user what to do.
pub(crate) fn enter() -> Result<(), String> {
    let stage = uwarp::files::stage()?;
    unshare().map_err(|error| {
        format!("there can be no mount namespace here ({error}): use --files interpose, or run as root")
    })?;
    cover(&stage).map_err(|error| format!("the files cannot be mounted ({error}): use --files interpose"))
}

fn unshare() -> io::Result<()> {
    match unshare_unsafe(UnshareFlags::NEWNS) {
        Err(Errno::PERM) => {}
        result => return Ok(result?),
    }
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn unshare_unsafe(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the flags do not separate the table of descriptors.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn cover(stage: &Path) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount("uwarp", stage, "tmpfs", MountFlags::NOSUID, Some(c"mode=755"))?;
    uwarp::files::write(stage)?;
    for node in uwarp::files::nodes() {
        let at = stage.join(node.trim_start_matches('/'));
        fs::remove_file(&at)?;
        fs::File::create(&at)?;
        mount_bind("/dev/null", &at)?;
    }
    for folder in COVERED {
        add_others(&Path::new("/").join(folder), &stage.join(folder))?;
    }
    for folder in COVERED {
        mount_bind_recursive(stage.join(folder), Path::new("/").join(folder))?;
    }
    Ok(unmount(stage, UnmountFlags::DETACH)?)
}

/// Adds the entries of `from` that `to` does not have.
fn add_others(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if target.exists() {
            continue;
        }
        let added = match entry.file_type()? {
            kind if kind.is_symlink() => fs::read_link(&source).and_then(|leads| symlink(leads, &target)),
            kind if kind.is_dir() => fs::create_dir(&target)
                .and_then(|()| fs::set_permissions(&target, fs::Permissions::from_mode(0o755)))
                .and_then(|()| Ok(mount_bind_recursive(&source, &target)?)),
            _ => fs::File::create(&target).and_then(|_| Ok(mount_bind(&source, &target)?)),
        };
        match added {
            // A device may have disappeared in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound && !source.exists() => {}
            added => added?,
        }
    }
    Ok(())
}
