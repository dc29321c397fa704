//! Stations: each belongs to at most one living process.
//!
//! The owner of a station listens on the socket `<station>.sock` in the folder. When it dies, the kernel
//! closes the socket, and connecting to the file is refused: then the file is stale. Only the holder of the
//! folder's lock (`flock`) makes or replaces such files, so two processes never take over the same one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::credentials::credentials;
use super::fork::OwnFd;
use super::{LocalError, WireFolder};

/// Maximum wait for the folder's lock without progress, that is, while no process claims a station. A claim
/// takes far below a millisecond, but a thousand processes may start at once.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Maximum pause between two attempts to get the lock. With shorter pauses, a thousand waiting processes
/// would take the CPUs away from the one that holds the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(32);

/// Length of the listener's queue of connections: this many processes may start at once.
const BACKLOG: i32 = 1024;

/// A living station ([`stations`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its number, 1 to 65535.
    pub number: u16,
    /// The process that claimed the station, as its PID in this process's namespace; 0 if it is in another
    /// PID namespace, or if its queue of connections is full.
    pub pid: i32,
}

/// The living stations of the wire of `folder`, by number; none if the folder does not exist.
///
/// # Errors
/// The system's error, if the folder cannot be read, or if no socket can be made to probe the stations.
pub fn stations(folder: &Path) -> io::Result<Vec<Station>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse::<u16>().ok());
        // Some names parse as a number but differ from the name that a claim uses, such as `007.sock`.
        if let Some(number) = number.filter(|number| name == *file_name(*number))
            && let Ok(address) = address(folder, number)
            && let Probed::Living { pid } = probe(&address)?
        {
            found.push(Station { number, pid });
        }
    }
    found.sort_by_key(|station| station.number);
    Ok(found)
}

/// The path of the socket of a station.
fn path(folder: &Path, station: u16) -> PathBuf {
    folder.join(file_name(station))
}

fn file_name(station: u16) -> String {
    format!("{station}.sock")
}

/// The address of the socket of a station.
pub(super) fn address(folder: &Path, station: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(path(folder, station))
}

/// A new socket, which never blocks.
pub(super) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The state of a station.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// Nobody has it.
    Free,
    /// Its owner is dead.
    Stale,
    /// Its owner listens.
    Living { pid: i32 },
    /// The state cannot be determined, or the file is not a station's socket.
    Unclear,
}

/// Determines the state of a station by connecting to its socket.
///
/// # Errors
/// The system's error, if this process has no descriptor or memory for the probe.
fn probe(address: &SocketAddrUnix) -> Result<Probed, Errno> {
    let socket = socket()?;
    let connected = connect(&socket, address);
    state(connected.map(|()| credentials(&socket).map_or(0, |peer| peer.pid)))
}

/// The state of a station, from the result of connecting to its socket: the PID of the other side, or the
/// system's error.
///
/// # Errors
/// As [`probe`].
pub(super) fn state(connected: Result<i32, Errno>) -> Result<Probed, Errno> {
    match connected {
        Ok(pid) => Ok(Probed::Living { pid }),
        // The listener's queue of connections is full.
        Err(Errno::AGAIN) => Ok(Probed::Living { pid: 0 }),
        Err(Errno::CONNREFUSED) => Ok(Probed::Stale),
        Err(Errno::NOENT) => Ok(Probed::Free),
        Err(errno) if is_lack(errno) => Err(errno),
        Err(_) => Ok(Probed::Unclear),
    }
}

/// Whether the error means that this process or the system has run out of a resource. Such an error says
/// nothing about the other side.
pub(super) fn is_lack(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// Whether a station may exist although connecting to it, or sending it a hello, has failed with this error.
/// Possible causes: the station's queue of connections is full; the station has closed the socket, because
/// this process was stopped for long after it connected, or because the station has ended (the next attempt
/// finds out); or this process has no descriptor or memory for the connection now.
pub(super) fn may_be_there(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) || is_lack(errno)
}

/// A claimed station: its socket, which is removed when the claim is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) station: u16,
    /// The folder of the wire.
    pub(super) folder: WireFolder,
    /// Accepts the connections of other stations.
    pub(super) listener: OwnFd,
    path: PathBuf,
    /// Tells the file from one that replaced it.
    inode: (u64, u64),
}

impl Claim {
    /// Claims `station` of the wire of `folder`, or any free station.
    pub(super) fn new(folder: &Path, station: Option<u16>) -> Result<Self, LocalError> {
        if station == Some(0) {
            return Err(LocalError::Invalid("station 0 does not exist: choose one from 1 to 65535".into()));
        }
        let (wire, opened) = WireFolder::with_lock(folder)?;
        // The path of the longest socket name must fit.
        address(wire.path(), u16::MAX).map_err(|_| LocalError::TooLong(folder.to_owned()))?;
        lock(&opened, folder)?;
        let (station, listener) = match station {
            Some(station) => (station, take(wire.path(), station)?),
            None => take_any(wire.path())?,
        };
        let path = path(wire.path(), station);
        let found = std::fs::symlink_metadata(&path)
            .map_err(|source| LocalError::Folder { folder: folder.to_owned(), source })?;
        let inode = (found.dev(), found.ino());
        let claim = Self { station, folder: wire, listener: OwnFd::new(listener), path, inode };
        listen(&claim.listener, BACKLOG).map_err(|errno| LocalError::System(errno.into()))?;
        Ok(claim)
        // The lock is released when `opened` is dropped.
    }
}

/// Binds the socket of any free station. The search begins at a number derived from the process id, so that
/// successive processes get numbers that were not used lately. The caller holds the lock.
fn take_any(folder: &Path) -> Result<(u16, OwnedFd), LocalError> {
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
    for step in 0..u32::from(u16::MAX) {
        let station = (pid.wrapping_add(step) % u32::from(u16::MAX)) as u16 + 1;
        match take(folder, station) {
            Err(LocalError::Taken { .. }) => {}
            other => return other.map(|listener| (station, listener)),
        }
    }
    Err(LocalError::Full(folder.to_owned()))
}

/// Binds the socket of a station, if nobody has it. The caller holds the lock.
fn take(folder: &Path, station: u16) -> Result<OwnedFd, LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    let system = |errno: Errno| LocalError::System(errno.into());
    let address = address(folder, station).map_err(|errno| failed(errno.into()))?;
    let path = path(folder, station);
    match probe(&address).map_err(system)? {
        Probed::Free => {}
        // A file of another kind refuses connections as well. It belongs to somebody else: leave it.
        Probed::Stale if !is_socket(&path) => return Err(LocalError::Taken { station, pid: 0 }),
        Probed::Stale => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        },
        Probed::Living { pid } => return Err(LocalError::Taken { station, pid }),
        Probed::Unclear => return Err(LocalError::Taken { station, pid: 0 }),
    }
    let listener = socket().map_err(system)?;
    bind(&listener, &address).map_err(|errno| failed(errno.into()))?;
    Ok(listener)
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A child leaves the station to its parent.
        if !self.listener.is_open() {
            return;
        }
        // While we listen, nobody replaces the file, unless somebody removes the folder. If removing the
        // file fails, the next owner of the station replaces it.
        let ours = std::fs::symlink_metadata(&self.path);
        if ours.is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Takes the folder's lock, until `opened` is dropped.
fn lock(opened: &File, folder: &Path) -> Result<(), LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    let (mut since, mut latest) = (Instant::now(), None);
    let mut pause = Duration::from_millis(1);
    loop {
        match rustix::fs::flock(opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno.into())),
        }
        // A claim creates a file, which changes the folder's time: the lock has passed to another process.
        let changed = Some(opened.metadata().and_then(|folder| folder.modified()).map_err(failed)?);
        if changed != latest {
            (since, latest) = (Instant::now(), changed);
        }
        if since.elapsed() >= LOCK_WAIT {
            return Err(LocalError::Locked(folder.to_owned()));
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(LOCK_PAUSE);
    }
}
