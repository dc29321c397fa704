//! Names of a `local` wire that processes keep from each other, without a descriptor for each.
//!
//! A name is a byte of the file `ports` in the folder of the wire: whoever has a lock of that byte has the
//! name. Names that many have at a time have a byte that all of them lock. A process opens the file once. Its
//! locks are those of the open file (`F_OFD_SETLK`), so the kernel gives them up when the process ends,
//! however it ends, and in whatever PID namespace it is. A child of `fork` closes the file. The file has no
//! contents, and stays.

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
use crate::ffi::abi::{self, Errno};

/// The locks of this process.
pub(super) struct NameLocks {
    file: OwnFd,
    /// The bytes that this process has locked, and how often: its own locks do not keep it out.
    held: Mutex<HashMap<i64, usize>>,
}

/// A name that is kept until this is dropped.
pub(super) struct NameLock {
    locks: Arc<NameLocks>,
    byte: i64,
}

/// Why a name could not be announced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// Another listener has it.
    #[error("the address is in use")]
    InUse,
    /// Another one takes all addresses, or is at one of those that are asked for.
    #[error("the port is in use at an address that this one includes, or is included by")]
    Overlaps,
    /// The system refused it.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl NameError {
    /// The kernel's error of binding a socket to an address.
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

impl From<NameError> for Errno {
    fn from(error: NameError) -> Self {
        match error {
            NameError::InUse => Self(libc::EADDRINUSE),
            NameError::Overlaps => Self(libc::EADDRNOTAVAIL),
            NameError::System(error) => {
                abi::log(|| format!("refused: an address cannot be taken: {error}"));
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

    /// Takes a name.
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

    /// Takes a name that others have as well.
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

    /// Whether this process has the name.
    pub(super) fn is_ours(&self, host: &str, port: u16) -> bool {
        self.held().contains_key(&byte_of(host, port))
    }

    /// Whether another process has the name, alone or with others.
    pub(super) fn is_of_others(&self, host: &str, port: u16) -> io::Result<bool> {
        is_locked(&self.file, range(libc::F_WRLCK, byte_of(host, port)))
    }

    /// Whether a process has the name.
    pub(super) fn is_taken(&self, host: &str, port: u16) -> io::Result<bool> {
        Ok(self.is_ours(host, port) || self.is_of_others(host, port)?)
    }
}

impl NameLock {
    /// Whether this process is no child of the one that has the name.
    pub(super) fn is_ours(&self) -> bool {
        self.locks.file.is_open()
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // In a child of fork the lock is the parent's, and another thread may have held the set.
        if self.is_ours() {
            let mut held = self.locks.held();
            let count = held.remove(&self.byte).unwrap_or(0);
            if count > 1 {
                held.insert(self.byte, count - 1);
                return;
            }
            // The range was locked, so the kernel only takes it out; what it keeps ends with the process.
            let _ = lock(&self.locks.file, range(libc::F_UNLCK, self.byte));
        }
    }
}

/// The byte of a name: its host, mixed (FNV-1a) to 47 bits, and its port. Names of one address are
/// neighbours, so that the kernel keeps a range of them as one lock. Two addresses may have the same bits,
/// one pair in 2^47: then one keeps ports from the other.
fn byte_of(host: &str, port: u16) -> i64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = host.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    (hash >> 17 << 16 | u64::from(port)) as i64
}

/// One byte of a file.
fn range(kind: libc::c_int, byte: i64) -> libc::flock {
    libc::flock { l_start: byte, l_len: 1, ..whole(kind) }
}

/// All of a file.
pub(super) fn whole(kind: libc::c_int) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the lock, or gives it up. It belongs to the open file, and ends when the last descriptor is closed.
pub(super) fn lock(file: impl AsFd, lock: libc::flock) -> Result<(), NameError> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the struct is read only.
    if unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(NameError::InUse),
        _ => Err(error.into()),
    }
}

/// Whether another open file has the lock. It is only asked for: one that were taken for a moment would keep
/// off the process that wants the name.
pub(super) fn is_locked(file: impl AsFd, mut lock: libc::flock) -> io::Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the struct is a writable place.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}
