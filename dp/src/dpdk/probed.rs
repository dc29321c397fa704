//! File descriptors that become readable when frames arrive, but that DPDK's API does not return. The driver
//! opens these file descriptors when a device is probed.
//!
//! - `net_af_packet` has no interrupts. It opens a packet socket for each queue.
//! - `net_virtio_user` has an eventfd for each ring. The API returns the eventfds only if the device is
//!   configured with interrupts. But with interrupts, a thread of DPDK watches the device's socket, and may
//!   use the device after the device was closed. The reason is that the thread's handler cannot be removed
//!   while it runs, and `virtio_dev_stop` tries to remove the handler only once.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, sockopt};

use super::{descriptors, vdev};

/// A device that is about to be probed.
pub(super) struct Probe {
    kind: DescriptorKind,
    /// Duplicates of the file descriptors of this kind that the process had before the probe. While the
    /// duplicates are open, no new file gets the same inode or id.
    before: Vec<OwnedFd>,
}

#[derive(Clone, Copy)]
enum DescriptorKind {
    /// A socket for each queue, bound to this interface.
    PacketSockets { interface: u32, queues: usize },
    /// An eventfd for each ring.
    Eventfds,
}

/// The file descriptors that were found for a device.
#[derive(Default)]
pub(super) struct ProbedDescriptors {
    found: Vec<OwnedFd>,
    /// `true` if `found` has one descriptor for each queue, in the order of the queues. `false` if it is
    /// unknown which descriptor belongs to which queue.
    is_by_queue: bool,
}

impl Probe {
    /// Prepares for the probe of a device. Returns `None` if the driver is neither `net_af_packet` nor
    /// `net_virtio_user`, if the device's interface does not exist, or if its number of queues cannot be
    /// parsed.
    pub(super) fn of(spec: &str) -> Option<Self> {
        let kind = if let Some((interface, queues)) = vdev::packet_sockets(spec) {
            DescriptorKind::PacketSockets { interface: number_of(interface)?, queues }
        } else if vdev::is_virtio_user(spec) {
            DescriptorKind::Eventfds
        } else {
            return None;
        };
        Some(Self { kind, before: descriptors::all().filter(|fd| kind.number(fd).is_some()).collect() })
    }

    /// Returns the file descriptors that were opened since [`of`](Self::of) was called. The caller calls this
    /// function after the device was probed. If the number of packet sockets is not the number of queues, the
    /// result has no descriptors.
    pub(super) fn finish(self) -> ProbedDescriptors {
        let before: BTreeSet<u64> = self.before.iter().filter_map(|fd| self.kind.number(fd)).collect();
        let is_new = |fd: &OwnedFd| self.kind.number(fd).is_some_and(|number| !before.contains(&number));
        let found: Vec<OwnedFd> = descriptors::all().filter(is_new).collect();
        match self.kind {
            // The driver opens the sockets in the order of the queues, so the numbers of the sockets ascend.
            DescriptorKind::PacketSockets { queues, .. } if found.len() == queues => {
                ProbedDescriptors { found, is_by_queue: true }
            }
            DescriptorKind::PacketSockets { .. } => ProbedDescriptors::default(),
            // Other threads may have opened eventfds at the same time. If a port waits for one of these
            // eventfds, the port is sometimes woken without a frame. The peer writes to a queue's eventfd
            // only while the port of this queue sleeps.
            DescriptorKind::Eventfds => ProbedDescriptors { found, is_by_queue: false },
        }
    }
}

impl ProbedDescriptors {
    /// The file descriptors of which at least one becomes readable when frames arrive for a queue. Empty if
    /// no such file descriptors are known.
    pub(super) fn of_queue(&self, queue: u16) -> &[OwnedFd] {
        if self.is_by_queue {
            self.found.get(usize::from(queue)).map_or(&[], std::slice::from_ref)
        } else {
            &self.found
        }
    }
}

impl DescriptorKind {
    /// A number that identifies an open file among those of this kind. `None` if the file is of another kind.
    fn number(self, fd: &OwnedFd) -> Option<u64> {
        match self {
            Self::PacketSockets { interface, .. } if interface_of(fd) == Some(interface) => {
                descriptors::inode(fd)
            }
            Self::PacketSockets { .. } => None,
            Self::Eventfds => eventfd_id(fd),
        }
    }
}

/// Returns the id of an eventfd, which Linux 5.2 and later report. Returns `None` for other files.
fn eventfd_id(fd: &OwnedFd) -> Option<u64> {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()
}

/// Returns the number of an interface in the network namespace of this thread. Returns `None` if there is no
/// such interface.
fn number_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a C string, which the call only reads.
    let number = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (number != 0).then_some(number)
}

/// Returns the number of the interface to which a packet socket is bound. Returns `None` for other file
/// descriptors.
fn interface_of(socket: &OwnedFd) -> Option<u32> {
    if sockopt::socket_domain(socket).ok()? != AddressFamily::PACKET {
        return None;
    }
    // SAFETY: all-zero bytes are valid for this C struct of numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let number = socket.as_raw_fd();
    // SAFETY: `address` and `bytes` are writable local variables. `bytes` is the length of `address`, and the
    // kernel writes at most `bytes` bytes.
    let done = unsafe { libc::getsockname(number, (&raw mut address).cast(), &raw mut bytes) };
    (done == 0).then_some(address.sll_ifindex as u32)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// All eventfds share one inode, so [`Probe`] compares ids. Linux reuses the id of a closed eventfd, so
    /// [`Probe`] keeps duplicates of the earlier eventfds open.
    #[test]
    fn the_eventfds_of_a_device_are_those_that_were_not_there_before() {
        let new = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (stays, goes) = (new(), new());
        let (probe, old) = (Probe::of("net_virtio_user0,path=/a").unwrap(), eventfd_id(&stays).unwrap());
        drop(goes);
        let opened = [new(), new()];
        let found = probe.finish();
        let numbers: Vec<_> = found.of_queue(3).iter().filter_map(eventfd_id).collect();
        // Other tests of this process may open eventfds at the same time.
        assert!(opened.iter().all(|fd| numbers.contains(&eventfd_id(fd).unwrap())), "{numbers:?}");
        assert!(!numbers.contains(&old), "{numbers:?}");
        assert!(Probe::of("net_vhost0,iface=/a").is_none());
    }
}
