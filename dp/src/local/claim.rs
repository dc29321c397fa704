//! The stations of a wire. Each station belongs to at most one process.
//!
//! The owner of a station listens on the socket `<station>.sock` in the folder. When the owner ends, the
//! kernel closes the socket. Then the file is stale: connections to the file's path are refused. Only the
//! holder of the folder's lock (`flock`) makes or replaces such files, so two processes never claim the same
//! station.

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

/// Maximum time to wait for the folder's lock while no process claims a station. A claim takes much less than
/// a millisecond.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Maximum pause between two attempts to take the lock. If the pauses were shorter, a thousand waiting
/// processes would use the CPUs that the process with the lock needs.
const LOCK_PAUSE: Duration = Duration::from_millis(32);

/// Length of the listener's queue: the maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A station whose process exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The number of the station, 1 to 65535.
    pub number: u16,
    /// The PID of the station's process in this process's PID namespace. The value is 0 if the process has no
    /// PID in this namespace, or if its queue of connections is full.
    pub pid: i32,
}

/// Returns the stations of the wire in `folder` whose processes exist, sorted by number. The list is empty if
/// the folder does not exist.
///
/// # Errors
/// The system's error, if the folder cannot be read, or if no socket can be made to probe the stations.
pub fn stations(folder: &Path) -> io::Result<Vec<Station>> {
    let mut numbers = Vec::new();
    match each_named(folder, |number| numbers.push(number)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    }
    let mut found = Vec::new();
    for number in numbers {
        if let Ok(address) = address(folder, number)
            && let Probed::Listening { pid } = probe(&address)?
        {
            found.push(Station { number, pid });
        }
    }
    found.sort_by_key(|station| station.number);
    Ok(found)
}

/// Calls `take` for each station that has a socket in the folder, even if its process has ended.
///
/// # Errors
/// The system's error, if the folder cannot be read.
pub(super) fn each_named(folder: &Path, mut take: impl FnMut(u16)) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse::<u16>().ok());
        // Some names parse as a number but differ from the name that a claim uses, such as `007.sock`.
        if let Some(number) = number.filter(|number| name == *file_name(*number)) {
            take(number);
        }
    }
    Ok(())
}

fn path(folder: &Path, station: u16) -> PathBuf {
    folder.join(file_name(station))
}

fn file_name(station: u16) -> String {
    format!("{station}.sock")
}

pub(super) fn address(folder: &Path, station: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(path(folder, station))
}

/// Makes a socket in non-blocking mode.
pub(super) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// No process has claimed the station.
    Free,
    /// The station's process has ended, or the file is not a socket.
    Stale,
    /// The station's process listens.
    Listening { pid: i32 },
    /// The state cannot be determined, for instance because the socket has another type than a station's
    /// socket.
    Unclear,
}

/// Connects to a station's socket to determine the station's state.
///
/// # Errors
/// The system's error, if this process has no descriptor or memory for the probe.
fn probe(address: &SocketAddrUnix) -> Result<Probed, Errno> {
    let socket = socket()?;
    let connected = connect(&socket, address);
    state(connected.map(|()| credentials(&socket).map_or(0, |peer| peer.pid)))
}

/// Derives the state of a station from the result of connecting to the station's socket. `connected` is the
/// PID of the other side, or the system's error.
///
/// # Errors
/// The system's error, if this process or the system has run out of descriptors or memory.
pub(super) fn state(connected: Result<i32, Errno>) -> Result<Probed, Errno> {
    match connected {
        Ok(pid) => Ok(Probed::Listening { pid }),
        // The listener's queue of connections is full.
        Err(Errno::AGAIN) => Ok(Probed::Listening { pid: 0 }),
        Err(Errno::CONNREFUSED) => Ok(Probed::Stale),
        Err(Errno::NOENT) => Ok(Probed::Free),
        Err(errno) if is_lack(errno) => Err(errno),
        Err(_) => Ok(Probed::Unclear),
    }
}

/// Whether this process or the system has run out of a resource. Such an error says nothing about the other
/// side.
pub(super) fn is_lack(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)
}

/// Whether a station may exist although an attempt to connect to the station, or to send it a hello, has
/// failed with this error. There are three possible causes. First, the station's queue of connections may be
/// full. Second, the station may have closed the socket, because this process was stopped for long after it
/// connected, or because the station has ended. The next attempt will show whether the station has ended.
/// Third, this process may have no descriptor or memory for the connection now.
pub(super) fn may_be_there(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) || is_lack(errno)
}

/// A claimed station. The station's socket is removed when the claim is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) station: u16,
    pub(super) folder: WireFolder,
    /// Accepts the connections of other stations.
    pub(super) listener: OwnFd,
    path: PathBuf,
    /// The device and inode of the socket's file, by which `drop` detects that the path names another file.
    inode: (u64, u64),
}

impl Claim {
    /// Claims `station` of the wire in `folder`, or any free station if `station` is `None`.
    pub(super) fn new(folder: &Path, station: Option<u16>) -> Result<Self, LocalError> {
        if station == Some(0) {
            return Err(LocalError::Invalid("station 0 does not exist: choose one from 1 to 65535".into()));
        }
        let (wire, opened) = WireFolder::with_lock(folder)?;
        // The longest socket path must fit in an address.
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

/// Binds the socket of a free station. Returns the station and the socket. The search begins at a number that
/// is derived from the PID. So a new process usually has a number that was not used recently. The caller
/// holds the folder's lock.
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

/// Binds the socket of a station and returns the socket. Fails with [`LocalError::Taken`] if a process has
/// claimed the station, or if another file has the name of the socket. The caller holds the folder's lock.
fn take(folder: &Path, station: u16) -> Result<OwnedFd, LocalError> {
    let failed = |source: io::Error| LocalError::Folder { folder: folder.to_owned(), source };
    let system = |errno: Errno| LocalError::System(errno.into());
    let address = address(folder, station).map_err(|errno| failed(errno.into()))?;
    let path = path(folder, station);
    match probe(&address).map_err(system)? {
        Probed::Free => {}
        // A file that is not a socket also refuses connections. Such a file is not removed, since it does not
        // belong to the wire.
        Probed::Stale if !is_socket(&path) => return Err(LocalError::Taken { station, pid: 0 }),
        Probed::Stale => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        },
        Probed::Listening { pid } => return Err(LocalError::Taken { station, pid }),
        Probed::Unclear => return Err(LocalError::Taken { station, pid: 0 }),
    }
    let listener = socket().map_err(system)?;
    bind(&listener, &address).map_err(|errno| failed(errno.into()))?;
    Ok(listener)
}

impl Drop for Claim {
    fn drop(&mut self) {
        // In a forked child the station belongs to the parent.
        if !self.listener.is_open() {
            return;
        }
        // Other processes do not replace the file while this process listens, but a user may remove the
        // folder. If removing the file fails, the next owner of the station replaces the file.
        let ours = std::fs::symlink_metadata(&self.path);
        if ours.is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Locks the folder. The lock is released when `opened` is dropped. Fails with [`LocalError::Locked`] if the
/// lock is not free for [`LOCK_WAIT`] and no process claims a station in this time.
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
        // If the folder's modification time has changed, another process has claimed a station since the last
        // check.
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
