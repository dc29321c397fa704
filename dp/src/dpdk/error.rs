//! Errors of opening a device.

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
        /// The device as requested.
        device: String,
        /// What is wrong with it.
        problem: PciProblem,
    },
    /// No driver matches the virtual device.
    #[error("{device}: no such device ({log}); the name of a virtual device starts with one of {drivers}")]
    Unknown {
        /// The device as requested.
        device: String,
        /// What DPDK logged.
        log: String,
        /// The drivers that are linked in.
        drivers: String,
    },
    /// The driver matches the device but cannot use it.
    #[error("{device} cannot be opened: {cause} ({log})")]
    Probe {
        /// The device as requested.
        device: String,
        /// The error text.
        cause: String,
        /// What DPDK logged.
        log: String,
    },
    /// Already open in this process.
    #[error("{device} is open already: drop its ports first, or give the second one another name")]
    InUse {
        /// The device as requested.
        device: String,
    },
    /// Another process listens on the device's unix socket.
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
    /// More queues than the device has, or none.
    #[error("{device} has 1 to {most} pairs of queues, {asked} were asked for")]
    Queues {
        /// The device.
        device: String,
        /// The number it has.
        most: u16,
        /// The number requested.
        asked: u16,
    },
    /// Several queues on a device that would receive on one of them.
    #[error(
        "{device} works with 1 pair of queues, {asked} were asked for: its driver {driver} spreads no received flows over \
         several, as RSS is missing or left out"
    )]
    Unspread {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The number requested.
        asked: u16,
    },
    /// An MTU that the device does not support.
    #[error("{device} has MTUs from {least} to {most}, {asked} was asked for")]
    Mtu {
        /// The device.
        device: String,
        /// Its smallest, bytes.
        least: u16,
        /// Its largest, bytes.
        most: u16,
        /// The requested one, bytes.
        asked: u16,
    },
    /// Buffers that cannot hold a frame, on a device that uses one buffer per frame.
    #[error("{device} needs a whole frame in one buffer: {frame_bytes} bytes, the buffers have {mbuf_bytes}")]
    BufferTooSmall {
        /// The device.
        device: String,
        /// Largest frame, bytes.
        frame_bytes: usize,
        /// Size of a buffer, bytes.
        mbuf_bytes: usize,
    },
    /// No memory for the pool.
    #[error(
        "no memory for {count} buffers of {bytes} bytes: {cause}; give DPDK more (hugepages or MiB) or ask for fewer"
    )]
    Memory {
        /// Number of buffers.
        count: u32,
        /// Size of each.
        bytes: usize,
        /// The error text.
        cause: String,
    },
    /// A step of the device's setup failed.
    #[error("{device}: {step} failed: {cause} ({log})")]
    Setup {
        /// The device.
        device: String,
        /// The step.
        step: &'static str,
        /// The error text.
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
