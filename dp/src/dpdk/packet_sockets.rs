//! The sockets of a `net_af_packet` device, which its driver opens when it is probed, one for each queue.
//!
//! The driver has no interrupts, though its sockets become readable when frames come, and DPDK does not say
//! which they are. They are the packet sockets of the interface that the process did not have before.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, sockopt};

use super::descriptors::{self, inode};
use super::vdev;

/// A device that is about to be probed.
pub(super) struct PacketSockets {
    interface: u32,
    queues: usize,
    /// The inodes of what the process has open.
    before: BTreeSet<u64>,
}

impl PacketSockets {
    /// `None` if the driver is another one, or its interface does not exist.
    pub(super) fn of(spec: &str) -> Option<Self> {
        let (interface, queues) = vdev::packet_sockets(spec)?;
        let interface = number_of(interface)?;
        Some(Self { interface, queues, before: descriptors::all().filter_map(inode).collect() })
    }

    /// The sockets of the device, which has been probed since, in the order of its queues; empty if they
    /// cannot be told from others.
    ///
    /// The driver opens them one after the other, so their numbers ascend.
    pub(super) fn opened(self) -> Vec<OwnedFd> {
        let is_new = |socket: &OwnedFd| inode(socket).is_some_and(|inode| !self.before.contains(&inode));
        let is_ours = |socket: &OwnedFd| interface_of(socket) == Some(self.interface);
        let found: Vec<OwnedFd> =
            descriptors::all().filter(|socket| is_new(socket) && is_ours(socket)).collect();
        if found.len() == self.queues { found } else { Vec::new() }
    }
}

/// The number of an interface in the network namespace of this thread.
fn number_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a C string, which the call only reads.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// The interface that a packet socket is bound to; `None` for other descriptors.
fn interface_of(socket: &OwnedFd) -> Option<u32> {
    if sockopt::socket_domain(socket).ok()? != AddressFamily::PACKET {
        return None;
    }
    // SAFETY: a C structure of numbers: zero is a value of each.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let number = socket.as_raw_fd();
    // SAFETY: `address` and `bytes` are local variables to write to, and `bytes` has the length of the first:
    // the kernel writes no more.
    let done = unsafe { libc::getsockname(number, (&raw mut address).cast(), &raw mut bytes) };
    (done == 0).then_some(address.sll_ifindex as u32)
}
