//! A [`Port`](crate::Port) on a vhost-user socket: the device side of a virtio network device, without DPDK
//! and without hugepages.
//!
//! The port listens on a Unix socket. A *frontend* connects to the socket, for example a virtual machine
//! (QEMU's `vhost-user` netdev), Open vSwitch, or DPDK's `net_virtio_user`. The frontend sends the
//! descriptors of its memory. The *driver* puts its rings and buffers into this memory: for example the
//! kernel in the virtual machine. A frame that the port sends is copied once, into buffers of the driver. A
//! received frame is copied once, into buffers of the port's pools.
//!
//! The port has one pair of split rings (virtio 1.2 section 2.7). One frontend at a time is connected.
//! Further connections are closed at once. If the frontend disconnects, the link goes down, and another
//! frontend may connect.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the options and the errors of [`open`] |
//! | `socket` | the socket's path |
//! | `memory` | the memory of the frontend |
//! | `ring` | a split ring |
//! | `chain` | the buffers of a descriptor chain |
//! | `header` | the header in front of each frame |
//! | `features` | the feature bits |
//! | `device` | the state that the frontend sets |
//! | `control` | the thread that answers the frontend |
//! | `receive`, `transmit` | frames from the driver, and to the driver |
//! | `port` | the port |
//!
//! # What a hostile frontend or driver can do
//!
//! The other side may write any byte of the shared memory at any time. So rings are accessed by atomics,
//! headers and payload are copied before they are parsed, and there is never a slice of the memory. Each
//! address and length of a descriptor is checked against the memory of the frontend. A chain that leaves this
//! memory, that has a wrong direction, or that is cyclic or too long is returned to the driver, and is
//! counted ([`PortCounters::rx_errors`](crate::PortCounters), `tx_dropped`). A ring whose index is impossible
//! is broken: the port closes the connection. Each loop ends after at most as many steps as a ring has
//! entries.
//!
//! If a frontend removes memory while the port uses it, the port's own mapping keeps the memory alive. But if
//! a frontend makes the *file* of its memory smaller, the kernel sends SIGBUS to the process that accesses
//! the lost pages. QEMU seals its files against this (`memory-backend-memfd`). DPDK does not seal its files,
//! so by default the port accepts such files from a trusted frontend. With
//! [`VhostConfig::needs_seals`] the port refuses each file that may become smaller.
//!
//! The frontend chooses the descriptors for notifications. The port accepts only eventfds, makes them
//! non-blocking, and never reads them.

#![forbid(unsafe_code)]

mod chain;
mod config;
mod control;
mod device;
mod features;
mod header;
mod memory;
mod port;
mod receive;
mod ring;
mod socket;
#[cfg(test)]
mod tests;
mod transmit;

pub use config::{VhostConfig, VhostError};
pub use port::VhostPort;

/// Opens a port: listens on the socket, and starts the thread that answers the frontend.
///
/// # Errors
/// [`VhostError`] if the socket cannot be used, for example because another process listens on it.
pub fn open(config: &VhostConfig) -> Result<VhostPort, VhostError> {
    VhostPort::open(config).inspect(|port| crate::trace::port_opened(crate::Port::info(port)))
}
