//! A [`Port`](crate::Port) on an ordinary interface of Linux, without DPDK: a packet socket (`packet(7)`),
//! for containers and virtual machines. Needs `CAP_NET_RAW`, which Docker gives by default.
//!
//! The port shares the interface with the kernel, and needs IP addresses that the kernel does not have: the
//! kernel answers TCP segments to its own addresses with RST. A filter in the kernel passes only frames to
//! the port's addresses (`filter.rs`), so other traffic of the host costs nothing here. A frame that the
//! port sends to one of the kernel's addresses on the same interface does not reach the kernel: it leaves
//! for the wire. Ports of one host can reach each other if they set [`PacketConfig::sees_host`]: the kernel
//! then copies each sent frame to the other packet sockets of the interface. The frame also goes to the
//! wire, where no host accepts it.
//!
//! Frames that fit a slot are received through a ring in memory that the kernel shares (TPACKET_V2), so a
//! poll without frames is one load. Longer frames (superframes of GRO, or of a peer on the same host) wait
//! in the socket, and are read straight into packet buffers. TPACKET_V3 would hand over blocks of frames; a
//! lone frame would wait for at least a millisecond.
//!
//! Frames are sent from packet buffers by `sendmmsg`, one system call per burst, without a copy in user
//! space. With virtio's header (`vnet.rs`), the kernel and the interface compute checksums and cut
//! superframes. A transmit ring would not be faster: before the kernel passes a frame of the ring on through
//! a veth pair, it copies the pages, since they belong to user space. A superframe of 64 KiB took 17.5 us
//! that way instead of 6.0; shorter frames took as long as with `sendmmsg` (2.0 us with 64 bytes, 2.3 with
//! 1,500, 3.8 with 9,000).
//!
//! Requesting offloads pays even where the interface has none: the kernel cuts superframes at the end of its
//! own stack. At MTU 1500, this made Writes of 1 MiB up to one and a half times as fast on a veth pair
//! without offloads, and six times as fast on a veth pair with offloads.

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
