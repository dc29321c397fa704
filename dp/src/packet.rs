//! A [`Port`](crate::Port) on an ordinary interface of Linux, without DPDK: a packet socket (`packet(7)`),
//! for containers and virtual machines. Needs `CAP_NET_RAW`, which Docker gives by default.
//!
//! The port shares the interface with the kernel, and has addresses of its own there: the kernel would answer
//! TCP segments to its own addresses with RST. A filter in the kernel passes only frames to these addresses
//! (`filter.rs`), so that other traffic of the host costs nothing here. Frames to the kernel's own addresses
//! on the same interface do not reach it: they leave for the wire. Frames between ports of one host reach
//! these if they ask for it ([`PacketConfig::sees_host`]): the kernel hands a frame that is sent to the other
//! packet sockets of the interface, and the wire gets it, too, where nobody takes it.
//!
//! Frames that fit a slot are received through a ring in memory that the kernel shares (TPACKET_V2), so a
//! poll without frames is one load. Longer ones (superframes of GRO, or of a peer on the same host) wait in
//! the socket, and are read straight into packet buffers. TPACKET_V3 would hand over blocks of frames, a lone
//! one after a millisecond at the earliest.
//!
//! Frames are sent from packet buffers by `sendmmsg`, a burst by one system call, without a copy of ours.
//! With virtio's header (`vnet.rs`), the kernel and the interface compute checksums and cut superframes. A
//! transmit ring does not pay: before the kernel passes a frame of the ring on through a veth pair, it copies
//! the pages, which are ours. A superframe of 64 KiB then took 17.5 us instead of 6.0, shorter frames as long
//! as with `sendmmsg` (2.0 us with 64 bytes, 2.3 with 1,500, 3.8 with 9,000).
//!
//! Offloads pay even where the interface has none: the kernel cuts superframes at the end of its own stack.
//! On a veth pair without offloads, Writes of 1 MiB went at one to one and a half times the rate without
//! them, with offloads at six times, at MTU 1500.

mod config;
mod error;
mod filter;
mod hints;
mod interface;
mod port;
mod rx_ring;
mod sizes;
mod socket;
mod sys;
mod tx_batch;
mod vnet;

pub use config::PacketConfig;
pub use error::PacketError;
pub use port::PacketPort;

/// Opens a port on an interface.
///
/// # Errors
/// [`PacketError`]: without the privilege, for an interface that is missing, down or unsuitable, or for
/// addresses that cannot be used.
pub fn open(config: &PacketConfig) -> Result<PacketPort, PacketError> {
    PacketPort::open(config).inspect(|port| crate::trace::port_opened(crate::Port::info(port)))
}
