//! Why a device cannot be used.

use super::PciProblem;
use crate::eal::{self, errno_text};

/// Why a device cannot be used. Each message is one line and says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The process is a fork of the one that started EAL.
    #[error(
        "this process is a fork of one that uses DPDK: open devices after the fork, or spawn a new program"
    )]
    Forked,
    /// A PCI device cannot be opened.
    #[error("{device}: {problem}")]
    Pci {
        /// What was asked for.
        device: String,
        /// What is wrong with it.
        problem: PciProblem,
    },
    /// No driver takes the virtual device.
    #[error("{device}: no such device ({log}); the name of a virtual device starts with one of {drivers}")]
    Unknown {
        /// What was asked for.
        device: String,
        /// What DPDK logged.
        log: String,
        /// The drivers there are.
        drivers: String,
    },
    /// The driver knows the device and cannot use it.
    #[error("{device} cannot be opened: {cause} ({log})")]
    Probe {
        /// What was asked for.
        device: String,
        /// The error in words.
        cause: String,
        /// What DPDK logged.
        log: String,
    },
    /// Open in this process.
    #[error("{device} is open already: drop its ports first, or give the second one another name")]
    InUse {
        /// What was asked for.
        device: String,
    },
    /// Somebody listens on the device's unix socket.
    #[error("another process listens on {path}: stop it, or use another path")]
    SocketInUse {
        /// The socket's path.
        path: String,
    },
    /// The remains of a unix socket cannot be removed.
    #[error("the stale socket {path} cannot be removed: {cause}")]
    StaleSocket {
        /// The socket's path.
        path: String,
        /// What the system said.
        cause: String,
    },
    /// More queues than the device has, or none.
    #[error("{device} has 1 to {most} pairs of queues, {asked} were asked for")]
    Queues {
        /// The device.
        device: String,
        /// How many it has.
        most: u16,
        /// How many were asked for.
        asked: u16,
    },
    /// An MTU the device cannot do.
    #[error("{device} has MTUs from {least} to {most}, {asked} was asked for")]
    Mtu {
        /// The device.
        device: String,
        /// Its smallest, bytes.
        least: u16,
        /// Its largest, bytes.
        most: u16,
        /// Asked for, bytes.
        asked: u16,
    },
    /// Buffers that cannot hold a frame on a device that uses one buffer a frame.
    #[error("{device} needs a whole frame in one buffer: {frame_bytes} bytes, the buffers have {mbuf_bytes}")]
    BufferTooSmall {
        /// The device.
        device: String,
        /// Largest frame, bytes.
        frame_bytes: usize,
        /// Room in a buffer, bytes.
        mbuf_bytes: usize,
    },
    /// No memory for the pool.
    #[error(
        "no memory for {count} buffers of {bytes} bytes: {cause}; give DPDK more (hugepages or MiB) or ask for fewer"
    )]
    Memory {
        /// Buffers.
        count: u32,
        /// Bytes in each.
        bytes: usize,
        /// The error in words.
        cause: String,
    },
    /// The device refused a step of its setup.
    #[error("{device}: {step} failed: {cause} ({log})")]
    Setup {
        /// The device.
        device: String,
        /// The step.
        step: &'static str,
        /// The error in words.
        cause: String,
        /// What DPDK logged.
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
