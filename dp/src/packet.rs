//! A [`Port`](crate::Port) on an ordinary interface of Linux, for containers and virtual machines. The port
//! uses a packet socket (`packet(7)`) and no DPDK. The process needs `CAP_NET_RAW`, which Docker containers
//! have by default.
//!
//! The port shares the interface with the kernel, and needs IP addresses that the kernel does not have: the
//! kernel answers TCP segments to its own addresses with RST. A filter in the kernel passes only frames that
//! a host with the port's addresses needs (`filter.rs`), so the port does not receive other traffic of the
//! host. If the port sends a frame to one of the kernel's addresses on the same interface, the frame is sent
//! on the wire and does not reach the kernel. Ports of one host can reach each other if they set
//! [`PacketConfig::sees_host`]. Then the kernel copies each sent frame to the other packet sockets of the
//! interface. The kernel also sends the frame on the wire, where no host accepts the frame.
//!
//! Frames that fit in a slot are received through a ring in memory that the kernel shares (TPACKET_V2), so a
//! poll without frames costs only one load. Longer frames (superframes of GRO, or of a peer on the same host)
//! are queued in the socket. The port reads these frames directly into packet buffers. TPACKET_V3 would
//! deliver blocks of frames, so a single frame would wait for at least a millisecond.
//!
//! The port sends frames from packet buffers by `sendmmsg`, usually with one system call per burst, and
//! without a copy in user space. With virtio's header (`vnet.rs`), the kernel and the interface compute
//! checksums and divide superframes into segments. A transmit ring would not be faster: the kernel copies the
//! pages of the ring before it passes a frame through a veth pair, since the pages belong to user space. With
//! a ring, a superframe of 64 KiB took 17.5 us instead of 6.0 us. Shorter frames took as long as with
//! `sendmmsg` (2.0 us with 64 bytes, 2.3 us with 1,500 bytes, 3.8 us with 9,000 bytes).
//!
//! Requesting offloads makes a port faster even if the interface has none, since the kernel divides
//! superframes at the end of its own stack. On a veth pair that has no offloads, Writes of 1 MiB at MTU 1500
//! were up to one and a half times as fast with requested offloads as without. On a veth pair that has
//! offloads, the Writes were six times as fast.

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
pub(crate) mod vnet;

pub use config::PacketConfig;
pub use error::PacketError;
pub use port::PacketPort;

/// Opens a port on an interface.
///
/// # Errors
/// [`PacketError`] if the interface cannot be used. For example, the privilege is missing, the interface is
/// missing, down or unsuitable, or an address cannot be used.
pub fn open(config: &PacketConfig) -> Result<PacketPort, PacketError> {
    PacketPort::open(config).inspect(|port| crate::trace::port_opened(crate::Port::info(port)))
}
