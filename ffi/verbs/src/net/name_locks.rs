//! Locks for the names of a `local` wire, without a descriptor for each name.
//!
//! Each name corresponds to one byte of the file `ports` in the folder of the wire: the process that has
//! locked the byte holds the name. If several processes share a name, each of them holds a shared lock. A
//! process opens the file once. The locks belong to the open file (`F_OFD_SETLK`). So the kernel releases the
//! locks however the process ends, and the PID namespace of the process does not matter. A forked child
//! closes the file, since the child would otherwise keep the locks after the end of its parent. The file has
//! no contents, and is never removed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use dp::local::OwnFd;

use super::claim::Conflict;
use super::hash::fnv1a;
use crate::ffi::abi::{self, Errno};

/// The locks of this process.
pub(super) struct NameLocks {
    file: OwnFd,
    /// The bytes that this process has locked, with a count for each byte, since this process can share a
    /// name that it already shares.
    held: Mutex<HashMap<i64, usize>>,
}

/// A name that this process holds until the value is dropped.
pub(super) struct NameLock {
    locks: Arc<NameLocks>,
    byte: i64,
}

/// The reason why a name could not be reserved or published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// Another process or this process already holds the name.
    #[error("the address is in use")]
    InUse,
    /// A process already holds a wildcard that includes the address, or the requested wildcard includes an
    /// address that a process already holds.
    #[error("the port is in use at an address that this one includes, or is included by")]
    Overlaps,
    #[error("{0}")]
    System(#[from] io::Error),
}

impl NameError {
    /// Converts the kernel's error from binding a socket to an address.
    pub(super) fn of_bind(error: io::Error, address: IpAddr) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse if address.is_unspecified() => Self::Overlaps,
            io::ErrorKind::AddrInUse => Self::InUse,
            _ => Self::System(error),
        }
    }
}

impl From<Conflict> for NameError {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::Same => Self::InUse,
            Conflict::Overlaps => Self::Overlaps,
        }
    }
}

/// The error numbers are those of the kernel.
impl From<Conflict> for Errno {
    fn from(conflict: Conflict) -> Self {
        NameError::from(conflict).into()
    }
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Self {
        match error {
            NameError::InUse => Self(libc::EADDRINUSE),
            NameError::Overlaps => Self(libc::EADDRNOTAVAIL),
            NameError::System(error) => {
                // If no interface has the address, the error number alone tells the program the reason, so
                // nothing is logged.
                if error.kind() != io::ErrorKind::AddrNotAvailable {
                    abi::log(|| format!("refused: an address cannot be taken: {error}"));
                }
                error.into()
            }
        }
    }
}

impl NameLocks {
    /// Opens the file in the folder of the wire.
    pub(super) fn open(wire: &Path) -> io::Result<Arc<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file: File = options.custom_flags(libc::O_NOFOLLOW).open(wire.join("ports"))?;
        Ok(Arc::new(Self { file: OwnFd::new(OwnedFd::from(file)), held: Mutex::default() }))
    }

    fn held(&self) -> MutexGuard<'_, HashMap<i64, usize>> {
        self.held.lock().expect("no holder of this lock panics")
    }

    /// Reserves a name by an exclusive lock.
    pub(super) fn take(self: &Arc<Self>, host: &str, port: u16) -> Result<NameLock, NameError> {
        let byte = byte_of(host, port);
        let mut held = self.held();
        if held.contains_key(&byte) {
            return Err(NameError::InUse);
        }
        lock(&self.file, range(libc::F_WRLCK, byte))?;
        held.insert(byte, 1);
        Ok(NameLock { locks: Arc::clone(self), byte })
    }

    /// Reserves a name by a shared lock: other processes may also hold the name by shared locks.
    pub(super) fn share(self: &Arc<Self>, host: &str, port: u16) -> Result<NameLock, NameError> {
        let byte = byte_of(host, port);
        let mut held = self.held();
        let count = held.get(&byte).copied().unwrap_or(0);
        if count == 0 {
            lock(&self.file, range(libc::F_RDLCK, byte))?;
        }
        held.insert(byte, count + 1);
        Ok(NameLock { locks: Arc::clone(self), byte })
    }

    /// Whether this process holds the name.
    pub(super) fn is_ours(&self, host: &str, port: u16) -> bool {
        self.held().contains_key(&byte_of(host, port))
    }

    /// Whether another process holds the name, by an exclusive or a shared lock.
    pub(super) fn is_of_others(&self, host: &str, port: u16) -> io::Result<bool> {
        is_locked(&self.file, range(libc::F_WRLCK, byte_of(host, port)))
    }

    /// Whether any process holds the name.
    pub(super) fn is_taken(&self, host: &str, port: u16) -> io::Result<bool> {
        Ok(self.is_ours(host, port) || self.is_of_others(host, port)?)
    }
}

impl NameLock {
    /// Whether the lock belongs to this process. Returns false in a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.locks.file.is_open()
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // In a forked child the lock belongs to the parent, and another thread may have held the mutex.
        if self.is_ours() {
            let mut held = self.locks.held();
            let count = held.remove(&self.byte).unwrap_or(0);
            if count > 1 {
                held.insert(self.byte, count - 1);
                return;
            }
            // Errors are ignored: unlocking a locked range does not fail. If it failed, the lock would still
            // end with the process.
            let _ = lock(&self.locks.file, range(libc::F_UNLCK, self.byte));
        }
    }
}

/// The byte of a name: a 47-bit hash (FNV-1a) of the host, followed by the port. Names of one address are
/// adjacent, so that the kernel stores the locks of adjacent ports as one lock. Two addresses have the same
/// hash with probability 2^-47. In that case a process cannot reserve a port at one address while another
/// process has that port at the other address.
fn byte_of(host: &str, port: u16) -> i64 {
    (fnv1a(host.bytes()) >> 17 << 16 | u64::from(port)) as i64
}

/// A lock of one byte of a file.
fn range(kind: libc::c_int, byte: i64) -> libc::flock {
    libc::flock { l_start: byte, l_len: 1, ..whole(kind) }
}

pub(super) fn whole(kind: libc::c_int) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Locks or unlocks a range of a file. The lock belongs to the open file, and ends when the last descriptor
/// of the open file is closed.
pub(super) fn lock(file: impl AsFd, lock: libc::flock) -> Result<(), NameError> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel only reads `lock`.
    if unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(NameError::InUse),
        _ => Err(error.into()),
    }
}

/// Whether another open file holds the lock. The call does not lock the range, since even a short lock could
/// make another process fail to reserve a name.
pub(super) fn is_locked(file: impl AsFd, mut lock: libc::flock) -> io::Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and `lock` is writable.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}
