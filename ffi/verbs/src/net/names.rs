//! The name service of a `local` wire: which process listens at an address that programs see.
//!
//! Processes on one host share its addresses, so a listener makes a file `listen/PORT@ADDRESS` in the folder
//! of the wire when it binds, and writes its address on the wire into it when it listens. The file is locked
//! as long as the process lives. A file without a lock is left over, and the next one to want the name takes
//! it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dp::local;
use iwarp_wire::address_of_station;

use super::address::Peer;
use crate::abi::Errno;

/// The names of one wire.
pub(crate) struct Names {
    /// The folder of the wire.
    wire: PathBuf,
    /// The folder of names.
    folder: PathBuf,
    /// Where names have led.
    found: Mutex<HashMap<SocketAddr, IpAddr>>,
}

/// Names that are remembered at a time.
const MAX_FOUND: usize = 1024;

/// A name that is taken until this is dropped.
pub(crate) struct Listening {
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

/// Why a name could not be announced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// Another listener has it.
    #[error("the address is in use")]
    InUse,
    /// The system refused it.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl NameError {
    /// The kernel's error of binding a socket.
    pub(super) fn of_bind(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::AddrInUse => Self::InUse,
            _ => Self::System(error),
        }
    }
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Self {
        match error {
            NameError::InUse => Self(libc::EADDRINUSE),
            NameError::System(error) => error.into(),
        }
    }
}

impl Names {
    /// The names of the wire in `folder`.
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let wire = folder.to_owned();
        let folder = folder.join("listen");
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Self { wire, folder, found: Mutex::default() }),
        }
    }

    fn path(&self, address: IpAddr, port: u16) -> PathBuf {
        // A wildcard is one name for both families, as a listener of IPv6 takes both.
        let address = address.to_canonical();
        match address.is_unspecified() {
            true => self.folder.join(format!("{port}@any")),
            false => self.folder.join(format!("{port}@{address}")),
        }
    }

    /// Takes the name of `visible`. It leads nowhere before it is published.
    pub(super) fn take(&self, visible: SocketAddr) -> Result<Listening, NameError> {
        let path = self.path(visible.ip(), visible.port());
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            lock(&file)?;
            // The one before may have removed the file after it was opened here.
            if !is_at(&file, &path) {
                continue;
            }
            file.set_len(0)?;
            return Ok(Listening { path, file });
        }
    }

    /// The listener at `visible`.
    pub(super) fn find(&self, visible: SocketAddr) -> Peer {
        let address = visible.ip().to_canonical();
        let any = IpAddr::from([0, 0, 0, 0]);
        let found = [address, any].map(|address| read(&self.path(address, visible.port())));
        let peer = found.into_iter().find(|peer| *peer != Peer::Nobody).unwrap_or(Peer::Nobody);
        if let Peer::At(wire) = peer {
            let mut found = self.found.lock().expect("no holder of this lock panics");
            if found.len() == MAX_FOUND {
                found.clear();
            }
            found.insert(visible, wire.ip());
        }
        peer
    }

    /// Whether the process that has listened at `visible` when this end asked before still lives; `None` if
    /// none has.
    pub(super) fn lives(&self, visible: SocketAddr) -> Option<bool> {
        let found = self.found.lock().expect("no holder of this lock panics").get(&visible).copied();
        let address = found?;
        let stations = local::stations(&self.wire).unwrap_or_default();
        Some(stations.iter().any(|station| address_of_station(station.number) == address))
    }

    /// Whether a listener has announced `address`.
    pub(super) fn knows(&self, address: IpAddr) -> bool {
        let suffix = format!("@{}", address.to_canonical());
        let Ok(entries) = fs::read_dir(&self.folder) else { return false };
        entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))
    }
}

impl Listening {
    /// The name leads to `wire` from now on.
    pub(super) fn publish(&mut self, wire: SocketAddr) -> std::io::Result<()> {
        // One write of some twenty bytes: a reader sees all of them or none.
        self.file.write_all(wire.to_string().as_bytes())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In a child of fork the file belongs to the parent.
        if !crate::fork::is_child() {
            // A file that cannot be removed is taken over by the next one: its lock goes with this process.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether `path` names this file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// The lock of a whole file, which belongs to the open file: it ends when the last descriptor is closed.
fn lock_of_file() -> libc::flock {
    let kind = libc::F_WRLCK as libc::c_short;
    libc::flock { l_type: kind, l_whence: libc::SEEK_SET as libc::c_short, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the lock of a file.
fn lock(file: &File) -> Result<(), NameError> {
    let lock = lock_of_file();
    // SAFETY: the descriptor is open, and the struct is read only.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(NameError::InUse),
        _ => Err(error.into()),
    }
}

/// Whether another open file has the lock. It is only asked for: one that were taken for a moment would keep
/// off the process that wants the name.
fn is_locked(file: &File) -> bool {
    let mut lock = lock_of_file();
    // SAFETY: the descriptor is open, and the struct is a writable place.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// What a name leads to, if its process lives.
fn read(path: &Path) -> Peer {
    let Ok(mut file) = File::open(path) else { return Peer::Nobody };
    // Nobody holds the lock of a file that is left over.
    if !is_locked(&file) {
        return Peer::Nobody;
    }
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(0) => Peer::Bound,
        Ok(_) => text.parse().map_or(Peer::Nobody, Peer::At),
        Err(_) => Peer::Nobody,
    }
}

/// The names of the wire in `folder` that lead somewhere: as programs see them, and where they lead.
pub(super) fn listening(folder: &Path) -> Vec<(String, SocketAddr)> {
    let Ok(entries) = fs::read_dir(folder.join("listen")) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (port, address) = name.split_once('@')?;
            let address = if address == "any" { "*" } else { address };
            match read(&entry.path()) {
                Peer::At(wire) => Some((format!("{address}:{port}"), wire)),
                Peer::Bound | Peer::Nobody | Peer::Silent => None,
            }
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    fn names() -> (PathBuf, Names) {
        let folder = std::env::temp_dir().join(format!(
            "uwarp-names-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let names = Names::new(&folder).unwrap();
        (folder, names)
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_is_known_while_its_listener_lives() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Nobody);
        let mut any = names.take(at("0.0.0.0:7471")).unwrap();
        assert!(matches!(names.take(at("[::]:7471")), Err(NameError::InUse)));
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Bound);
        any.publish(wire).unwrap();
        // A lock is that of an open file, so this process sees it as others do.
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::At(wire));
        assert_eq!(names.find(at("[::1]:7471")), Peer::At(wire));
        assert_eq!(names.find(at("127.0.0.1:7472")), Peer::Nobody);
        let mut own = names.take(at("127.0.0.1:7471")).unwrap();
        own.publish(at("100.64.0.8:1")).unwrap();
        assert_eq!(
            names.find(at("127.0.0.1:7471")),
            Peer::At(at("100.64.0.8:1")),
            "the specific one comes first"
        );
        drop((any, own));
        assert_eq!(names.find(at("127.0.0.1:7471")), Peer::Nobody);
        // No process of the wire has the address at which the name was found.
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(false));
        assert_eq!(fs::read_dir(folder.join("listen")).unwrap().count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_that_is_left_over_is_nobodys_and_is_taken() {
        let (folder, names) = names();
        let wire = at("100.64.0.7:18515");
        fs::write(names.path(at("10.0.0.1:5").ip(), 5), "100.64.0.9:5").unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")), Peer::Nobody);
        let mut taken = names.take(at("10.0.0.1:5")).unwrap();
        taken.publish(wire).unwrap();
        assert_eq!(names.find(at("10.0.0.1:5")), Peer::At(wire));
        assert!(names.knows(at("10.0.0.1:0").ip()) && !names.knows(at("10.0.0.2:0").ip()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_listener_that_goes_may_come_again_while_its_process_lives() {
        let (folder, names) = names();
        let port = local::open(&local::LocalConfig::new(folder.clone())).unwrap();
        let mut name = names.take(at("127.0.0.1:7471")).unwrap();
        name.publish(SocketAddr::new(address_of_station(port.station()), 5)).unwrap();
        assert_eq!(names.lives(at("127.0.0.1:7471")), None, "nobody has asked for it");
        assert!(matches!(names.find(at("127.0.0.1:7471")), Peer::At(_)));
        drop(name);
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(true));
        drop(port);
        assert_eq!(names.lives(at("127.0.0.1:7471")), Some(false));
        fs::remove_dir_all(folder).unwrap();
    }

    /// A program may look for a name at any moment while another one takes it.
    #[test]
    fn those_who_look_for_a_name_keep_nobody_from_taking_it() {
        let (folder, names) = names();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = names.find(at("127.0.0.1:7471"));
                    }
                });
            }
            let refused = (0..3000).find(|_| names.take(at("127.0.0.1:7471")).is_err());
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, None);
        });
        fs::remove_dir_all(folder).unwrap();
    }
}
