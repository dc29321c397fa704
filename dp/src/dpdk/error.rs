//! Errors that can occur when a device is opened.

use std::io;

use super::PciProblem;
use crate::eal::{self, errno_text};

/// The reason why a device cannot be used. The message of an error is one line, and most messages say what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The process was forked from the process that started EAL.
    #[error(
        "this process is a fork of one that uses DPDK: open devices after the fork, or spawn a new program"
    )]
    Forked,
    /// A PCI device cannot be opened.
    #[error("{device}: {problem}")]
    Pci {
        /// The device as it was requested.
        device: String,
        /// The reason why the device cannot be opened.
        problem: PciProblem,
    },
    /// No driver matches the virtual device.
    #[error("{device}: no such device ({log}); the name of a virtual device starts with one of {drivers}")]
    Unknown {
        /// The device as it was requested.
        device: String,
        /// The text that DPDK logged.
        log: String,
        /// The drivers of virtual devices that are linked to this program.
        drivers: String,
    },
    /// The driver matches the device, but cannot use it.
    #[error("{device} cannot be opened: {cause} ({log})")]
    Probe {
        /// The device as it was requested.
        device: String,
        /// The text of the error.
        cause: String,
        /// The text that DPDK logged.
        log: String,
    },
    /// Nobody listens on the socket of a virtio-user device.
    #[error(
        "nobody listens on {path} ({cause}): start the server first, the end with net_vhost0,iface={path}"
    )]
    NoServer {
        /// The socket's path.
        path: String,
        /// The system's error.
        cause: String,
    },
    /// The options of a virtual device lack an argument that its driver needs.
    #[error("{device} needs {argument}: give {device},{argument}={example}")]
    MissingArgument {
        /// The device.
        device: String,
        /// The name of the argument.
        argument: &'static str,
        /// An example of a value of the argument.
        example: &'static str,
    },
    /// The interface that a virtual device shares with the kernel does not exist.
    #[error("{device}: there is no interface {interface} here (see `ip link`)")]
    NoInterface {
        /// The device.
        device: String,
        /// The interface.
        interface: String,
    },
    /// The process lacks the privilege to open a packet socket, or to make an interface.
    #[error(
        "{device} needs {capability}: run as root or with it (`setcap {capability}+ep PROGRAM` gives it to a program)"
    )]
    NoPrivilege {
        /// The device.
        device: String,
        /// The name of the capability in `setcap`.
        capability: &'static str,
    },
    /// The folder of the device's unix socket does not exist.
    #[error("{path} cannot be made: there is no folder of that name; make it, or use another path")]
    NoFolder {
        /// The socket's path.
        path: String,
    },
    /// The device is already open in this process.
    #[error("{device} is open already: drop its ports first, or give the second one another name")]
    InUse {
        /// The device as it was requested.
        device: String,
    },
    /// Another process may already listen on the device's unix socket.
    #[error("another process listens on {path}: stop it, or use another path")]
    SocketInUse {
        /// The socket's path.
        path: String,
    },
    /// A stale unix socket cannot be removed.
    #[error("the stale socket {path} cannot be removed: {cause}")]
    StaleSocket {
        /// The socket's path.
        path: String,
        /// The system's error.
        cause: String,
    },
    /// The requested number of pairs of queues is 0, or larger than the device's maximum.
    #[error("{device} has 1 to {most} pairs of queues, {asked} were asked for")]
    Queues {
        /// The device.
        device: String,
        /// The maximum number of pairs of queues.
        most: u16,
        /// The requested number of pairs of queues.
        asked: u16,
    },
    /// Several pairs of queues are requested on a device that would receive all frames on one queue.
    #[error(
        "{device} works with 1 pair of queues, {asked} were asked for: its driver {driver} spreads no received flows over \
         several, as RSS is missing or left out"
    )]
    Unspread {
        /// The device.
        device: String,
        /// The driver of the device.
        driver: String,
        /// The requested number of pairs of queues.
        asked: u16,
    },
    /// The device does not support the MTU.
    #[error("{device} has MTUs from {least} to {most}, {asked} was asked for")]
    Mtu {
        /// The device.
        device: String,
        /// The minimum MTU of the device in bytes.
        least: u16,
        /// The maximum MTU of the device in bytes.
        most: u16,
        /// The requested MTU in bytes.
        asked: u16,
    },
    /// A buffer has no room for a whole frame, and the device uses one buffer per frame.
    #[error("{device} needs a whole frame in one buffer: {frame_bytes} bytes, the buffers have {mbuf_bytes}")]
    BufferTooSmall {
        /// The device.
        device: String,
        /// Number of bytes of the largest frame.
        frame_bytes: usize,
        /// Number of bytes of a buffer.
        mbuf_bytes: usize,
    },
    /// The memory for a pool of packet buffers cannot be allocated.
    #[error(
        "no memory for {count} buffers of {bytes} bytes: {cause}; give DPDK more (hugepages or MiB) or ask for fewer"
    )]
    Memory {
        /// Number of buffers.
        count: u32,
        /// Number of bytes of each buffer.
        bytes: usize,
        /// The text of the error.
        cause: String,
    },
    /// A step of the device's setup failed.
    #[error("{device}: {step} failed: {cause} ({log})")]
    Setup {
        /// The device.
        device: String,
        /// The name of the step.
        step: &'static str,
        /// The text of the error.
        cause: String,
        /// The text that DPDK logged.
        log: String,
    },
}

impl DeviceError {
    pub(super) fn memory(count: u32, bytes: usize, errno: i32) -> Self {
        Self::Memory { count, bytes, cause: errno_text(errno) }
    }

    pub(super) fn setup(device: &str, step: &'static str, errno: i32) -> Self {
        Self::Setup { device: device.to_owned(), step, cause: errno_text(errno), log: eal::log::trouble() }
    }
}

/// The kind of the `io::Error` shows the cause: for example, the device does not exist, the device is in use,
/// or a requested value is not supported. The `io::Error` contains the `DeviceError`.
impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> Self {
        let kind = match &error {
            DeviceError::Forked => io::ErrorKind::Unsupported,
            DeviceError::Pci { problem: PciProblem::Absent, .. }
            | DeviceError::Unknown { .. }
            | DeviceError::NoInterface { .. }
            | DeviceError::NoFolder { .. } => io::ErrorKind::NotFound,
            DeviceError::NoServer { .. } => io::ErrorKind::ConnectionRefused,
            DeviceError::Pci { problem: PciProblem::Linux { .. }, .. } | DeviceError::InUse { .. } => {
                io::ErrorKind::ResourceBusy
            }
            DeviceError::NoPrivilege { .. } => io::ErrorKind::PermissionDenied,
            DeviceError::SocketInUse { .. } => io::ErrorKind::AddrInUse,
            DeviceError::Pci { problem: PciProblem::Address, .. }
            | DeviceError::MissingArgument { .. }
            | DeviceError::Queues { .. }
            | DeviceError::Unspread { .. }
            | DeviceError::Mtu { .. }
            | DeviceError::BufferTooSmall { .. } => io::ErrorKind::InvalidInput,
            DeviceError::Memory { .. } => io::ErrorKind::OutOfMemory,
            DeviceError::Pci { .. }
            | DeviceError::Probe { .. }
            | DeviceError::StaleSocket { .. }
            | DeviceError::Setup { .. } => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
