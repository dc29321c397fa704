//! The options and the errors of a port on a vhost-user socket.

use std::io;
use std::path::PathBuf;

use crate::{Offloads, mac};

/// Maximum MTU. The frames of a larger MTU would not fit a buffer of the pool.
pub(super) const MAX_MTU: u16 = 9698;

/// The options of [`open`](super::open).
#[derive(Clone, Debug)]
pub struct VhostConfig {
    /// The path of the socket, which the port makes and removes.
    pub path: PathBuf,
    /// The Ethernet address of the port. `None` means a random address. Default: `None`.
    pub mac: Option<[u8; 6]>,
    /// Maximum number of bytes of an IP packet, 576 to 9698. Default: 1500.
    pub mtu: u16,
    /// Number of packet buffers, at least 64. Default: 4096.
    pub mbufs: usize,
    /// Number of buffers for bulk sending, at least 8. The port has the same number of buffers of 64 KiB for
    /// received superframes. Default: 256.
    pub bulk_mbufs: usize,
    /// Offloads that the port offers to the driver. Offloads that virtio does not have are ignored. Default:
    /// all.
    pub offloads: Offloads,
    /// Whether the port refuses memory whose file may become smaller (`F_SEAL_SHRINK` is missing): such a
    /// frontend can end this process by SIGBUS. DPDK does not seal its memory. Default: `false`.
    pub needs_seals: bool,
}

impl VhostConfig {
    /// Makes the default options for the socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mac: None,
            mtu: 1500,
            mbufs: 4096,
            bulk_mbufs: 256,
            offloads: Offloads::all(),
            needs_seals: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), VhostError> {
        let wrong = |what, value, least, most| Err(VhostError::Size { what, value, least, most });
        let Self { mtu, mbufs, bulk_mbufs, .. } = *self;
        if !(576..=MAX_MTU).contains(&mtu) {
            return wrong("mtu", mtu.into(), 576, MAX_MTU.into());
        }
        if !(64..=MAX_BUFFERS).contains(&mbufs) {
            return wrong("mbufs", mbufs, 64, MAX_BUFFERS);
        }
        if !(8..=MAX_BUFFERS).contains(&bulk_mbufs) {
            return wrong("bulk_mbufs", bulk_mbufs, 8, MAX_BUFFERS);
        }
        match self.mac {
            Some(mac) if !mac::is_of_interface(mac) => Err(VhostError::Mac { mac }),
            _ => Ok(()),
        }
    }
}

/// Maximum number of buffers of a pool.
const MAX_BUFFERS: usize = 1 << 20;

/// The reason why a port could not be opened. The message of an error is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VhostError {
    /// Another process listens on the socket.
    #[error("{} is in use: another process listens on it; stop it, or name another socket", .path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// There is a file at the path that is not a socket.
    #[error("{} exists and is no socket: remove it, or name another socket", .path.display())]
    NoSocket {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The socket cannot be made.
    #[error("{} cannot be made: {cause} (name a socket in a folder that can be written)", .path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The Ethernet address cannot belong to an interface.
    #[error("{} is no Ethernet address of an interface: give a unicast one, such as 02:00:00:00:00:01", mac::text(.mac))]
    Mac {
        /// The address.
        mac: [u8; 6],
    },
    /// An option is out of range.
    #[error("{what} of {value}: give from {least} to {most}")]
    Size {
        /// The field of [`VhostConfig`].
        what: &'static str,
        /// The value of the field.
        value: usize,
        /// The minimum value of the field.
        least: usize,
        /// The maximum value of the field.
        most: usize,
    },
    /// The system has no descriptor, thread or random bytes for the port.
    #[error("no resources for the port: {0}")]
    System(#[source] io::Error),
}

/// The kind of the `io::Error` shows the cause. The `io::Error` contains the `VhostError`.
impl From<VhostError> for io::Error {
    fn from(error: VhostError) -> Self {
        let kind = match &error {
            VhostError::InUse { .. } => io::ErrorKind::AddrInUse,
            VhostError::NoSocket { .. } => io::ErrorKind::AlreadyExists,
            VhostError::Socket { cause, .. } | VhostError::System(cause) => cause.kind(),
            VhostError::Mac { .. } | VhostError::Size { .. } => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
