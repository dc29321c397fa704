//! The configuration of a port on a local wire, and the errors of opening the port.

use std::io;
use std::path::PathBuf;

/// The default of [`LocalConfig::mtu`], and its maximum. A frame has at most 64 KiB.
pub(super) const DEFAULT_MTU: u16 = 65_000;

/// The options of [`open`](super::open).
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The rendezvous folder, as an absolute path. Ports of the same folder are on the same wire.
    /// [`default_folder`](super::default_folder) returns the usual path.
    pub folder: PathBuf,
    /// The station to claim, 1 to 65535. `None` means any free station. Default: `None`.
    pub station: Option<u16>,
    /// Maximum number of bytes of an IP packet, 576 to 65000. Ports of one wire may have different values.
    /// Default: 65000.
    pub mtu: u16,
    /// Number of buffers in the pool of the port, at least 64. Each buffer has room for the MTU, but at least
    /// 2 KiB and at most 9 KiB. Default: 4096.
    pub mbufs: usize,
    /// Number of buffers for bulk sending, at least 8. Each buffer has room for the MTU, and at least 32
    /// KiB. The port has the same number of buffers of 64 KiB for receiving superframes. Default: 256.
    pub bulk_mbufs: usize,
    /// Maximum number of bytes of each of the two rings that the port makes for a peer: a power of two from
    /// 256 KiB to 256 MiB. Rings of 512 KiB and more begin with 128 or 256 KiB, and grow when they are full.
    /// All rings to which a port writes may together grow by at most 8 x `ring_bytes`. Default: 2 MiB.
    pub ring_bytes: usize,
}

impl LocalConfig {
    /// Makes the default options for the wire in `folder`.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, station: None, mtu: DEFAULT_MTU, mbufs: 4096, bulk_mbufs: 256, ring_bytes: 2 << 20 }
    }
}

/// The reason why a port could not be opened. The message of an error is one line, and most messages say what
/// to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The name of the wire is not a plain name.
    #[error("{0:?} is no name for a wire: use up to 64 letters, digits, '-', '_' and '.'")]
    Name(String),
    /// The path of the folder is not absolute.
    #[error("{} is not absolute: give the folder of the wire from the root on", .0.display())]
    Relative(PathBuf),
    /// The path names a symbolic link, or something else that is not a folder.
    #[error("{} is no folder: remove it, or choose another folder for the wire", .0.display())]
    Link(PathBuf),
    /// The folder belongs to another user.
    #[error("{} belongs to user {owner}, not to user {uid}: choose another folder for the wire", .folder.display())]
    Owner {
        /// The folder, or one of its parent folders.
        folder: PathBuf,
        /// The owner's user id.
        owner: u32,
        /// The user id of this process.
        uid: u32,
    },
    /// The permissions of the folder allow other users to use the folder, or do not allow the folder's owner
    /// to use it.
    #[error("{} has mode {mode:o}: run chmod 700 on it, or choose another folder for the wire", .folder.display())]
    Mode {
        /// The folder.
        folder: PathBuf,
        /// The mode of the folder.
        mode: u32,
    },
    /// Other users may replace the folder by another folder.
    #[error(
        "others may rename what is in {} (mode {mode:o}): run chmod +t on it, or choose another folder for the wire",
        .folder.display()
    )]
    Movable {
        /// A parent folder of the wire's folder.
        folder: PathBuf,
        /// The mode of the folder.
        mode: u32,
    },
    /// The folder could not be made or opened.
    #[error("the folder {} of the wire cannot be used: {source}", .folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path of the folder leaves no space for the name of a socket.
    #[error("{} is too long for the path of a socket: choose a folder of at most 97 bytes", .0.display())]
    TooLong(PathBuf),
    /// Another process holds the lock of the folder. A process normally holds this lock only while it claims
    /// a station.
    #[error("another process keeps {} locked: stop it, or choose another folder for the wire", .0.display())]
    Locked(PathBuf),
    /// The station is in use.
    #[error("station {station} belongs to process {pid}: choose another station, or none for any")]
    Taken {
        /// The requested station.
        station: u16,
        /// The PID of the process that has the station. The value is 0 if the PID is not known.
        pid: i32,
    },
    /// Every station is in use.
    #[error("all stations of {} are in use", .0.display())]
    Full(PathBuf),
    /// An option has a value that is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The system has no descriptor or socket for the port.
    #[error("no socket for the port: {0}")]
    System(#[source] io::Error),
}

/// The kind of the `io::Error` shows the cause, for example that a folder is missing, that a permission is
/// missing, or that no station is free. The `io::Error` contains the `LocalError`.
impl From<LocalError> for io::Error {
    fn from(error: LocalError) -> Self {
        let kind = match &error {
            LocalError::Name(_)
            | LocalError::Relative(_)
            | LocalError::TooLong(_)
            | LocalError::Link(_)
            | LocalError::Invalid(_) => io::ErrorKind::InvalidInput,
            LocalError::Owner { .. } | LocalError::Mode { .. } | LocalError::Movable { .. } => {
                io::ErrorKind::PermissionDenied
            }
            LocalError::Folder { source, .. } | LocalError::System(source) => source.kind(),
            LocalError::Taken { .. } => io::ErrorKind::AddrInUse,
            LocalError::Locked(_) | LocalError::Full(_) => io::ErrorKind::ResourceBusy,
        };
        Self::new(kind, error)
    }
}
