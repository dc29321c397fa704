//! Errors that can occur when EAL is started.

use std::io;

/// The reason why EAL is not running. The message of an error is one line, and most messages say what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// EAL was already started with different options.
    #[error(
        "DPDK was already started in this process with other options: use the same ones, or another process"
    )]
    AlreadyStarted,
    /// Hugepages were requested, but no hugepages are free.
    #[error(
        "no hugepages are free: reserve some (echo 512 > /proc/sys/vm/nr_hugepages, as root) or use ordinary memory"
    )]
    NoHugepages,
    /// An entry of [`EalConfig::pci`](super::EalConfig::pci) is not a PCI address.
    #[error("{text:?} is no PCI address, which looks like 0000:03:00.0 or 03:00.0")]
    PciAddress {
        /// The text of the entry.
        text: String,
    },
    /// Too few hugepages are free for a NIC that cannot use other memory.
    #[error(
        "{device} is bound to {driver} and needs hugepages: {free} MiB are free and {mib} needed; reserve more (of 2 MiB \
         each: echo {pages} > /proc/sys/vm/nr_hugepages, as root), or bind it to vfio-pci behind an IOMMU",
        pages = .mib.div_ceil(2)
    )]
    PciHugepages {
        /// The device.
        device: String,
        /// The Linux driver that passes the device to user space.
        driver: String,
        /// Number of MiB that are free.
        free: u64,
        /// Number of MiB that are needed.
        mib: u32,
    },
    /// The process was forked from the process that started EAL.
    #[error(
        "this process is a fork of one that uses DPDK: start DPDK after the fork, or spawn a new program"
    )]
    Forked,
    /// The process lacks a permission.
    #[error("no permission to start DPDK: run as root, or use ordinary memory and virtual devices ({log})")]
    Permission {
        /// The warnings and errors that DPDK logged.
        log: String,
    },
    /// An argument has a zero byte.
    #[error("the DPDK argument {argument:?} has a zero byte")]
    BadArgument {
        /// The argument.
        argument: String,
    },
    /// Any other error.
    #[error("DPDK does not start: {cause} ({log}); arguments: {arguments}")]
    Init {
        /// The text of `rte_errno`.
        cause: String,
        /// The warnings and errors that DPDK logged.
        log: String,
        /// The arguments of EAL.
        arguments: String,
    },
}

/// The kind of the `io::Error` shows the cause, for example that memory is missing, that a permission is
/// missing, or that an argument is wrong. The `io::Error` contains the `EalError`.
impl From<EalError> for io::Error {
    fn from(error: EalError) -> Self {
        let kind = match error {
            EalError::AlreadyStarted => io::ErrorKind::ResourceBusy,
            EalError::NoHugepages | EalError::PciHugepages { .. } => io::ErrorKind::OutOfMemory,
            EalError::PciAddress { .. } | EalError::BadArgument { .. } => io::ErrorKind::InvalidInput,
            EalError::Forked => io::ErrorKind::Unsupported,
            EalError::Permission { .. } => io::ErrorKind::PermissionDenied,
            EalError::Init { .. } => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
