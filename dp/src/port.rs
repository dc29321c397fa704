//! The interface of ports, through which all frames are received and sent.
//!
//! A [`Port`] is one receive queue and one transmit queue of a device, owned by one thread. The trait is
//! object-safe and called once per burst, so no type parameter runs through the layers above.

mod device_stats;
mod words;

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::{Mbuf, Mempool, Queue, TsoLimits};
pub use device_stats::{DeviceStat, DeviceStats};
pub use words::UnknownOffload;

/// Most frames moved by one call: enough to spread the cost of a call, few enough for the headers of all
/// frames to stay in the first-level cache.
pub const BURST: usize = 64;

/// Frames to send or just received, oldest first.
pub type Burst = ArrayVec<Mbuf, BURST>;

bitflags! {
    /// Offloads of a port. Missing ones are done in software above.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Offloads: u32 {
        /// Fills in the IPv4 header checksum of a frame whose [`TxOffload`](crate::TxOffload) asks for it.
        const TX_IPV4_CHECKSUM = 1 << 0;
        /// Fills in the TCP checksum; the pseudo-header sum is in the checksum field already.
        const TX_TCP_CHECKSUM = 1 << 1;
        /// Sends frames of several segments.
        const TX_MULTI_SEGMENT = 1 << 2;
        /// Cuts a large TCP frame at `tso_segment_bytes`.
        const TX_TSO = 1 << 3;
        /// Reports the state of the IPv4 header checksum of a received frame.
        const RX_IPV4_CHECKSUM = 1 << 4;
        /// Reports the state of the TCP checksum of a received frame.
        const RX_TCP_CHECKSUM = 1 << 5;
        /// Coalesces consecutive TCP segments to one large frame (LRO).
        const RX_LRO = 1 << 6;
        /// Receives into chains of buffers.
        const RX_SCATTER = 1 << 7;
        /// Spreads flows over queues by a hash of addresses and ports.
        const RX_RSS = 1 << 8;
        /// Sends from any memory ([`Mbuf::external`]): reads it by its virtual address. Other ports send a
        /// copy.
        const TX_EXTERNAL = 1 << 9;
    }
}

/// Properties of a port that do not change while it runs.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Name for messages: `net_vhost0`, `0000:03:00.0`, `link-a`.
    pub name: String,
    /// Ethernet address, in the order of the wire.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes; the frame has 14 (or 18, with a VLAN tag) more.
    pub mtu: u16,
    /// The offloads in use: what the device has and its configuration allows.
    pub offloads: Offloads,
    /// Frames that it can cut, if it has TSO.
    pub tso: TsoLimits,
    /// Which queue of its device it is.
    pub queue: Queue,
}

/// Whether frames can pass, as [`Port::link_state`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames can pass.
    Up,
    /// No carrier, or the vhost peer is gone. Frames given to the port are dropped and counted.
    Down,
    /// The device was taken away, and no frame will ever pass again. Frames given to the port are dropped and
    /// counted. A device that comes back has to be opened anew.
    Gone,
}

crate::counters! {
    "uwarp_port_", "_total";
    /// Plain counters, never reset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortCounters {
        /// Frames that [`Port::rx_burst`] has returned.
        pub rx_frames: u64,
        /// Bytes received, Ethernet header included.
        pub rx_bytes: u64,
        /// Frames handed to the device or link.
        pub tx_frames: u64,
        /// Bytes handed to the device or link.
        pub tx_bytes: u64,
        /// Frames the device dropped on receive (missed, errors).
        pub rx_dropped: u64,
        /// Those of `rx_dropped` that came while no descriptor was free, if the device tells them apart.
        pub rx_missed: u64,
        /// Those of `rx_dropped` that had errors (CRC, length), if the device tells them apart.
        pub rx_errors: u64,
        /// Times no buffer was free to receive into.
        pub rx_no_mbuf: u64,
        /// Frames that a full transmit ring left with the caller.
        pub tx_ring_full: u64,
        /// Frames dropped because the link was down.
        pub tx_link_down: u64,
        /// Frames dropped because the port could not send them (too long, too many segments).
        pub tx_dropped: u64,
        /// Changes of link state seen.
        pub link_changes: u64,
    }
}

/// One receive and one transmit queue of a device.
pub trait Port: Send {
    /// The port's properties.
    fn info(&self) -> &PortInfo;

    /// The pool that received frames come from and frames to send should come from.
    fn mempool(&self) -> &Mempool;

    /// A pool of large buffers for bulk sending, if the port has one.
    fn bulk_mempool(&self) -> Option<&Mempool> {
        None
    }

    /// Whether TCP frames with `tso_segment_bytes` may be given to it now although it cuts none
    /// ([`Offloads::TX_TSO`]): its peer, the other side of a vhost-user socket, takes them uncut.
    /// [`link_state`](Port::link_state) finds out whether that has changed.
    fn passes_large_frames(&self) -> bool {
        false
    }

    /// Whether the port has exactly one peer, which is gone when the link is down: a socket of
    /// vhost-user or memif, whose peer loses its state with the connection.
    fn is_point_to_point(&self) -> bool {
        false
    }

    /// Moves received frames into the free places of `frames`; returns how many.
    ///
    /// Not always all that wait: a device may return large frames in small numbers, so that their bytes
    /// stay in the core's cache. `now_us` is the caller's clock: a simulated link delivers frames that
    /// are due, a device ignores it.
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize;

    /// Sends frames from the front of `frames` and removes those it took; the others (full ring) stay
    /// for the next call. Returns how many were taken. If the link is down, all are taken, dropped and
    /// counted.
    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize;

    /// Link state; cheap enough to call every few milliseconds.
    fn link_state(&mut self) -> LinkState;

    /// The counters so far.
    fn counters(&self) -> PortCounters;

    /// The device's own statistics, if it has any.
    fn device_stats(&self) -> Option<DeviceStats> {
        None
    }

    /// Bytes of memory that the port shares with other processes and that are in use, beside its pools: the
    /// rings of a [local wire](crate::local). Both processes of a pair of rings count them. 0 for other
    /// ports.
    fn shared_memory_bytes(&self) -> u64 {
        0
    }

    /// A descriptor that becomes readable when frames wait, if the device has one. A port may need to be
    /// [asked](Self::arm_wakeup) for that first. It stays the same while the port lives.
    ///
    /// | port | its descriptor |
    /// |---|---|
    /// | interface ([`packet`](crate::packet)) | the packet socket |
    /// | [local wire](crate::local) | an epoll instance with the sockets of all stations |
    /// | DPDK: `net_vhost`, `net_virtio_user` | an epoll instance with the peer's eventfd; also readable when a link event of vhost comes |
    /// | DPDK: `net_tap`, `net_af_packet` | an epoll instance with the device's or the socket's descriptor |
    /// | DPDK: NICs behind `vfio-pci` | an epoll instance with the interrupt of the queue, if the driver has one for each. Until it was seen to wake, [`next_due_us`](Self::next_due_us) bounds sleeps |
    /// | DPDK: NICs behind `uio_pci_generic`, `net_memif`, `net_af_xdp` | none |
    /// | wire in memory ([`link`](crate::link)) | none |
    ///
    /// Wrappers (captures, the loopback) have that of their port. A forked child has none on DPDK and on a
    /// local wire.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for a wake-up: from now on the next frame makes [`poll_fd`](Self::poll_fd) readable. `false`:
    /// frames wait already, or something else that a poll finds, and nobody has to sleep. To be called before
    /// each sleep on the descriptor: what made it readable before is taken from it here. A port whose
    /// descriptor is readable whenever frames wait has nothing to do.
    fn arm_wakeup(&mut self) -> bool {
        true
    }

    /// The caller polls again: no more wake-ups until the next [`arm_wakeup`](Self::arm_wakeup).
    fn disarm_wakeup(&mut self) {}

    /// Whether the port finds out that a neighbour is gone ([`next_departed`](Self::next_departed)). Does not
    /// change.
    fn tells_departures(&self) -> bool {
        false
    }

    /// The Ethernet address of a neighbour that is gone for good, or that frames were sent to and that is not
    /// there; each once. All frames that it had sent have been received. Nothing is received from this
    /// address before, even if another process has it by now. To be asked in every poll where the port [tells
    /// departures](Self::tells_departures).
    fn next_departed(&mut self) -> Option<[u8; 6]> {
        None
    }

    /// When a poll has something to do, microseconds, even if no frame comes: the next frame of a simulated
    /// link is due, or a local wire goes on with a handshake; or a NIC is looked at that was not seen to
    /// interrupt yet. `None` for other devices.
    fn next_due_us(&self) -> Option<u64> {
        None
    }
}
