//! The interface of ports, through which all frames are received and sent.
//!
//! A [`Port`] is one receive queue and one transmit queue of a device, owned by one thread. The interface of
//! a port has several parts. Each part is a trait with one purpose:
//!
//! | trait | purpose | who calls it |
//! |---|---|---|
//! | [`Port`] | the description, the packet buffers, bursts in and out, multicast groups | the polling thread |
//! | [`Link`] | whether frames can pass, and which neighbours are gone | the owner of connections |
//! | [`Sleep`] | to wait for frames without polling | a thread with nothing to do |
//! | [`Statistics`] | counters | monitoring |
//!
//! Every [`Port`] has all parts, and the functions of all parts can be called on a `dyn Port`. The layers
//! above have one `Box<dyn Port>` and call the port once per burst, so these layers need no type parameter
//! for the port. Code that has a port of a certain type, like [`LocalPort`](crate::local::LocalPort), imports
//! the traits that it calls.
//!
//! # To write a port
//!
//! Every port is a layer ([`PortLayer`]). A wrapper is a layer on the port that it wraps. A device is a layer
//! on a [`PortBase`], which has the device's description, pools and counters. If a wrapper does not define a
//! function, the function of the wrapped port is called. If a device does not define a function, the device
//! acts like a device without the function's feature. So a wrapper defines only the functions that it
//! changes, and a device defines only the functions of its features. Wrappers and devices always define
//! [`rx_burst`](Port::rx_burst) and [`tx_burst`](Port::tx_burst). All other functions of the four traits have
//! these defaults, so it is no error to leave them out.
//!
//! ```
//! use dp::{Below, Burst, Link, Port, PortBase, PortLayer, Sleep, Statistics};
//!
//! /// Receives all frames and sends none.
//! struct Mute(Box<dyn Port>);
//!
//! impl PortLayer for Mute {
//!     fn below(&self) -> Below<&dyn Port, &PortBase> {
//!         Below::Port(&*self.0)
//!     }
//!
//!     fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
//!         Below::Port(&mut *self.0)
//!     }
//! }
//!
//! impl Port for Mute {
//!     fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize {
//!         self.0.rx_burst(now_us, frames)
//!     }
//!
//!     fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
//!         frames.drain(..).count()
//!     }
//! }
//!
//! impl Link for Mute {}
//! impl Sleep for Mute {}
//! impl Statistics for Mute {}
//!
//! let (a, _b) = dp::link::pair(&dp::link::LinkConfig::default());
//! let name = a.info().name.clone();
//! let mute: Box<dyn Port> = Box::new(Mute(a));
//! assert_eq!(mute.info().name, name);
//! ```

mod base;
mod counters;
mod device_stats;
mod info;
#[cfg(test)]
mod tests;
mod words;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;

use crate::{Mbuf, Mempool};
pub use base::PortBase;
pub use counters::PortCounters;
pub use device_stats::{DeviceStat, DeviceStats};
pub use info::{Offloads, PortInfo};
pub use words::UnknownOffload;

/// Maximum number of frames that one call moves. A burst is large enough to amortise the cost of a call, and
/// so small that the headers of all frames fit in the L1 cache.
pub const BURST: usize = 64;

/// Frames to send or just received, oldest first.
pub type Burst = ArrayVec<Mbuf, BURST>;

/// Whether frames can pass: the result of [`Link::link_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames can pass.
    Up,
    /// Frames cannot pass now: for example, there is no carrier, or the vhost peer has ended. Frames that are
    /// passed to the port are dropped and counted.
    Down,
    /// The device was removed, and no frame will ever pass again. Frames that are passed to the port are
    /// dropped and counted. If the device comes back, a new port has to be opened.
    Gone,
}

/// The layer below a port.
#[derive(Debug)]
pub enum Below<P, B> {
    /// The port that a wrapper wraps.
    Port(P),
    /// The base of a device.
    Base(B),
}

impl<P, B> Below<P, B> {
    /// The port that a wrapper wraps. `None` for a device.
    pub fn port(self) -> Option<P> {
        match self {
            Self::Port(port) => Some(port),
            Self::Base(_) => None,
        }
    }
}

/// A port as a layer on another port or on a base. If the port does not define a function, a call of this
/// function is forwarded to the layer below.
pub trait PortLayer: Send {
    /// The layer below the port.
    fn below(&self) -> Below<&dyn Port, &PortBase>;

    /// The layer below the port, as a mutable reference.
    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase>;
}

/// One receive queue and one transmit queue of a device, with their packet buffers.
pub trait Port: Link + Sleep + Statistics {
    /// The port's description.
    fn info(&self) -> &PortInfo {
        match self.below() {
            Below::Port(port) => port.info(),
            Below::Base(base) => &base.info,
        }
    }

    /// The pool of received frames. (A port may receive large frames into another pool.) Frames to send
    /// should also be from this pool.
    fn mempool(&self) -> &Mempool {
        match self.below() {
            Below::Port(port) => port.mempool(),
            Below::Base(base) => &base.mempool,
        }
    }

    /// A pool of large buffers for bulk sending, if the port has one.
    fn bulk_mempool(&self) -> Option<&Mempool> {
        match self.below() {
            Below::Port(port) => port.bulk_mempool(),
            Below::Base(base) => base.bulk_mempool.as_ref(),
        }
    }

    /// Moves received frames into the free elements of `frames`. Returns the number of frames.
    ///
    /// The call may return fewer frames than are waiting: a device may return fewer large frames per call, so
    /// that the bytes of these frames fit in the core's cache. `now_us` is the time of the caller's clock. A
    /// simulated link delivers the frames that are due at this time. Other ports use the time for their
    /// timers, or ignore it.
    fn rx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize;

    /// Sends frames from the front of `frames`, and removes the accepted frames. Returns the number of
    /// accepted frames. If the ring is full, the other frames stay in `frames` for the next call. If the link
    /// is down, all frames are accepted, dropped and counted.
    fn tx_burst(&mut self, now_us: u64, frames: &mut Burst) -> usize;

    /// Sets the multicast groups that the port receives, in addition to those that its own IP addresses need.
    /// The port also receives the queries of routers for these groups. The groups of the last call are left,
    /// unless `groups` has them. The port may also receive frames for other groups. A device without a filter
    /// receives the frames for all groups, and this call does nothing.
    ///
    /// # Errors
    /// The error of the operating system or of the driver. The groups of the last call stay joined.
    fn set_groups(&mut self, groups: &[IpAddr]) -> io::Result<()> {
        self.below_mut().port().map_or(Ok(()), |port| port.set_groups(groups))
    }
}

/// The link of a port: whether frames can pass, and which neighbours are gone.
pub trait Link: PortLayer {
    /// Returns whether frames can pass. The call is so cheap that a caller can make it every few
    /// milliseconds.
    fn link_state(&mut self) -> LinkState {
        self.below_mut().port().map_or(LinkState::Down, |port| port.link_state())
    }

    /// Whether a port without [`Offloads::TX_TSO`] forwards TCP frames with `tso_segment_bytes` uncut now.
    /// For example, the driver at the other side of a vhost-user socket may accept such frames. For a port
    /// with `TX_TSO` the answer has no meaning. [`link_state`](Self::link_state) updates the answer.
    fn passes_large_frames(&self) -> bool {
        self.below().port().is_some_and(|port| port.passes_large_frames())
    }

    /// Whether frames that the port has accepted wait in the port, for example until a process on a local
    /// wire answers. Such frames are lost if the port is dropped.
    fn has_unsent(&self) -> bool {
        self.below().port().is_some_and(|port| port.has_unsent())
    }

    /// Returns the Ethernet address of a neighbour that has ended, or of a destination that does not exist.
    /// Returns `None` if nothing is to be reported. Each end, and each failed attempt to reach a destination,
    /// is reported once. The frames that a neighbour sent before it ended are received before the report.
    /// Until the report, the port does not receive frames of a new owner of the address. The caller has to
    /// call this function in each poll of a port that [tells departures](PortInfo::tells_departures).
    fn next_departed(&mut self) -> Option<[u8; 6]> {
        self.below_mut().port()?.next_departed()
    }
}

/// Lets a thread wait for a port without polling it.
///
/// Before each sleep the thread calls [`arm_wakeup`](Self::arm_wakeup). If the result is `true`, the thread
/// waits until [`poll_fd`](Self::poll_fd) is readable or until the time of
/// [`next_due_us`](Self::next_due_us). Then the thread calls [`disarm_wakeup`](Self::disarm_wakeup) and
/// polls.
pub trait Sleep: PortLayer {
    /// A descriptor that becomes readable when frames wait, if the device has one. For some ports the
    /// descriptor has to be [enabled](Self::arm_wakeup) before each sleep. The port has the same descriptor
    /// until the port is dropped.
    ///
    /// | port | its descriptor |
    /// |---|---|
    /// | interface ([`packet`](crate::packet)) | the packet socket |
    /// | [local wire](crate::local) | an epoll instance with the sockets of all stations |
    /// | DPDK: `net_vhost`, `net_virtio_user` | an epoll instance with the peer's eventfd; also readable after a link event of vhost |
    /// | DPDK: `net_tap`, `net_af_packet` | an epoll instance with the device's or the socket's descriptor |
    /// | DPDK: NICs behind `vfio-pci` | an epoll instance with the interrupt of the queue, if the driver has one for each queue. Until the interrupt has woken the port once, [`next_due_us`](Self::next_due_us) limits each sleep |
    /// | DPDK: other devices, for example NICs behind `uio_pci_generic`, `net_memif` and `net_af_xdp` | none |
    /// | wire in memory ([`link`](crate::link)) | none |
    ///
    /// In a forked child, ports of DPDK and of a local wire have no descriptor.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below().port()?.poll_fd()
    }

    /// Arms the wake-up: from now on the next frame makes [`poll_fd`](Self::poll_fd) readable. Returns
    /// `false` if frames or other work are already waiting. In this case the caller has to poll instead of
    /// sleeping. The caller must call this function before each sleep on the descriptor, since the function
    /// also clears earlier events. If a port's descriptor is readable whenever frames wait, the function may
    /// do nothing.
    fn arm_wakeup(&mut self) -> bool {
        self.below_mut().port().is_none_or(|port| port.arm_wakeup())
    }

    /// Disarms the wake-up. The caller calls this function before it polls again. There are no more wake-ups
    /// until the next [`arm_wakeup`](Self::arm_wakeup).
    fn disarm_wakeup(&mut self) {
        if let Below::Port(port) = self.below_mut() {
            port.disarm_wakeup();
        }
    }

    /// The time, in microseconds of the caller's clock, at which the port has to be polled even if no frame
    /// arrives. `None` if the port needs no such poll. Reasons are, for example, the next frame of a
    /// simulated link, a handshake on a local wire, or a NIC whose interrupt is not known to work.
    fn next_due_us(&self) -> Option<u64> {
        self.below().port()?.next_due_us()
    }
}

/// The counters of a port.
pub trait Statistics: PortLayer {
    /// The counters so far.
    fn counters(&self) -> PortCounters {
        match self.below() {
            Below::Port(port) => port.counters(),
            Below::Base(base) => base.counters,
        }
    }

    /// The device's own statistics. `None` if the device has no statistics.
    fn device_stats(&self) -> Option<DeviceStats> {
        self.below().port()?.device_stats()
    }

    /// Number of bytes of the memory that the port shares with other processes: the rings of a [local
    /// wire](crate::local), at their present size. The port's pools are not included. The bytes of a pair of
    /// rings are counted by both processes that share the pair. 0 for other ports.
    fn shared_memory_bytes(&self) -> u64 {
        self.below().port().map_or(0, |port| port.shared_memory_bytes())
    }
}

impl PortLayer for PortBase {
    fn below(&self) -> Below<&dyn Port, &PortBase> {
        Below::Base(self)
    }

    fn below_mut(&mut self) -> Below<&mut dyn Port, &mut PortBase> {
        Below::Base(self)
    }
}

/// A port without a device.
impl Port for PortBase {
    fn rx_burst(&mut self, _now_us: u64, _frames: &mut Burst) -> usize {
        0
    }

    fn tx_burst(&mut self, _now_us: u64, frames: &mut Burst) -> usize {
        let count = frames.drain(..).count();
        self.counters.tx_link_down += count as u64;
        count
    }
}

impl Link for PortBase {}
impl Sleep for PortBase {}
impl Statistics for PortBase {}
