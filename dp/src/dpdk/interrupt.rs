//! Receive interrupts: a sleeping port has a file descriptor that becomes readable when frames arrive for its
//! queue.
//!
//! | driver | what wakes the port | how the port requests the wake-up |
//! |---|---|---|
//! | `net_vhost`, `net_virtio_user` | the peer writes to an eventfd | by a flag in the ring |
//! | NICs behind `vfio-pci` | the device interrupts, and the kernel writes to an eventfd | by a register |
//! | `net_tap`, `net_af_packet` | a frame waits on the descriptor of the tap or packet socket | no request is needed: the descriptor is readable while a frame waits |
//!
//! A port sleeps on its own epoll descriptor, which does not change when a vhost peer connects with a new
//! eventfd. The eventfds are registered edge-triggered (EPOLLET), since no code reads the eventfds to reset
//! their counters. Before a sleep, the port removes the earlier events from the epoll descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use dpdk_sys as sys;
use rustix::event::{Timespec, epoll};

use super::config::PortSpec;
use super::link_events::Listener;
use super::vdev;
use crate::eal::pci::{Holder, PciAddress, SYSFS, VFIO, split};

/// The keys of epoll events.
const FRAMES: u64 = 0;
const LINK: u64 = 1;

/// Time between two polls of a sleeping port whose interrupt is not known to work. By default, an engine's
/// thread polls a port without interrupts with the same period.
const UNPROVEN_LOOK_US: u64 = 200;

/// Maximum number of events that one call of [`RxInterrupt::take_wakeups`] removes. If there are more events,
/// the next sleep ends at once.
const EVENTS_AT_ONCE: usize = 8;

/// Each event wakes the port once (edge-triggered).
const EDGES: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

fn key(of: u64) -> epoll::EventData {
    epoll::EventData::new_u64(of)
}

/// Whether to configure the device with an interrupt for each queue. A NIC behind a `uio` driver is
/// configured without these interrupts, since it has a single interrupt.
pub(super) fn asks_for_interrupts(spec: &PortSpec) -> bool {
    let text = match spec {
        PortSpec::Pci(text) => split(text).0,
        // A virtio-user device needs no interrupts: `probed.rs` finds its file descriptors.
        PortSpec::Vdev(text) => return !vdev::is_virtio_user(text),
    };
    let Ok(address) = text.parse::<PciAddress>() else { return false };
    match Holder::of(Path::new(SYSFS), address) {
        Holder::UserSpace { driver, .. } => driver == VFIO,
        // The DPDK driver shares the device with Linux.
        Holder::Linux(_) => true,
        Holder::Absent | Holder::Nobody => false,
    }
}

pub(super) struct RxInterrupt {
    port_id: u16,
    queue: u16,
    epoll: OwnedFd,
    /// Duplicates of the driver's file descriptors. At least one of these file descriptors reports frames.
    descriptors: Vec<OwnedFd>,
    /// `true` if the file descriptors report frames only while the interrupt is enabled. `false` if the file
    /// descriptors are readable whenever frames wait.
    is_switched: bool,
    /// `true` if the file descriptors report only an error, since their interface is down or removed.
    is_broken: bool,
    /// `true` if the interrupt is known to work. Some NICs never interrupt although their driver supports
    /// interrupts (QEMU's e1000e), so a sleeping port is also polled until its interrupt is known to work.
    is_proven: bool,
    /// Number of frames that were received until the interrupt was last armed.
    frames_before: u64,
    listener: Arc<Listener>,
}

impl RxInterrupt {
    /// Makes the interrupt of a queue of a started device. The interrupt uses the file descriptors that were
    /// found when the device was probed (`probed`). If no such file descriptors were found and `driver_tells`
    /// is `true`, the driver is asked for a file descriptor. Returns `None` if the queue has no interrupt, or
    /// if a file descriptor cannot be made or watched. The caller keeps the device started until the returned
    /// value is dropped.
    pub(super) fn of(
        port_id: u16,
        queue: u16,
        probed: &[OwnedFd],
        driver_tells: bool,
        is_proven: bool,
        listener: &Arc<Listener>,
    ) -> Option<Self> {
        let mut descriptors: Vec<OwnedFd> =
            probed.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().ok()?;
        if descriptors.is_empty() {
            descriptors.push(driver_tells.then(|| descriptor_of(port_id, queue))??);
        }
        let listener = Arc::clone(listener);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        epoll::add(&epoll, listener.wake_fd(), key(LINK), EDGES).ok()?;
        for descriptor in &descriptors {
            epoll::add(&epoll, descriptor, key(FRAMES), EDGES).ok()?;
        }
        let mut interrupt = Self {
            port_id,
            queue,
            epoll,
            descriptors,
            is_switched: true,
            is_broken: false,
            is_proven,
            frames_before: 0,
            listener,
        };
        interrupt.is_switched = interrupt.switch_off() != -libc::ENOTSUP;
        Some(interrupt)
    }

    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Arms the interrupt: from now on an arriving frame makes [`epoll`](Self::epoll) readable. The caller
    /// then has to poll once for frames that arrived earlier. Returns `false` if the link may have changed,
    /// or if the device refuses to enable the interrupt. `frames` is the number of frames received so far.
    pub(super) fn arm(&mut self, frames: u64) -> bool {
        let (link, told) = self.take_wakeups();
        let came = frames != std::mem::replace(&mut self.frames_before, frames);
        self.is_proven |= told && came;
        if link {
            return false;
        }
        let armed = if self.is_switched {
            self.switch_on() >= 0
        } else if self.is_broken {
            true
        } else {
            // `net_tap` receives a frame only after its signal handler has run, which may be after the
            // wake-up. Modifying the registration makes epoll check again whether the descriptor is readable.
            // The descriptor is readable while a frame waits.
            self.descriptors.iter().all(|fd| epoll::modify(&self.epoll, fd, key(FRAMES), EDGES).is_ok())
        };
        // The fence orders the write of the flag in the ring before the port's next read of the ring. The
        // peer writes the ring, executes a fence, and then reads the flag.
        fence(Ordering::SeqCst);
        armed
    }

    /// Disables the interrupt until the next [`arm`](Self::arm).
    pub(super) fn disarm(&mut self) {
        if self.is_switched {
            // Errors are ignored: if the device still reports frames, the reports have no effect while the
            // port does not sleep.
            self.switch_off();
        }
    }

    /// The time at which a sleeping port should be polled, if the port was last polled at `polled_us`. `None`
    /// if the port's interrupt is known to work.
    pub(super) fn next_look_us(&self, polled_us: u64) -> Option<u64> {
        (!self.is_proven).then_some(polled_us + UNPROVEN_LOOK_US)
    }

    /// Removes the pending events. Returns whether there was a link event, and whether there was a frame
    /// event.
    fn take_wakeups(&mut self) -> (bool, bool) {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; EVENTS_AT_ONCE];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&Timespec::default())) else {
            // If the call fails, the events stay pending, so sleeps end at once.
            return (false, false);
        };
        let (mut link, mut told) = (false, false);
        for epoll::Event { flags, data } in events.iter().copied() {
            match data.u64() {
                FRAMES => {
                    told = true;
                    self.is_broken = !flags.contains(epoll::EventFlags::IN);
                }
                _ => link = true,
            }
        }
        (link, told)
    }

    fn switch_on(&self) -> i32 {
        let _held = self.listener.hold_connection();
        // SAFETY: `self` belongs to a `QueuePort`, which keeps the port open and started. If the driver has a
        // vhost connection, `_held` prevents the connection from being freed during the call.
        unsafe { sys::rte_eth_dev_rx_intr_enable(self.port_id, self.queue) }
    }

    fn switch_off(&self) -> i32 {
        let _held = self.listener.hold_connection();
        // SAFETY: `self` belongs to a `QueuePort`, which keeps the port open and started. If the driver has a
        // vhost connection, `_held` prevents the connection from being freed during the call.
        unsafe { sys::rte_eth_dev_rx_intr_disable(self.port_id, self.queue) }
    }
}

/// Returns a duplicate of the file descriptor that the driver has for a queue. Returns `None` if the driver
/// has no descriptor for the queue, or if the descriptor cannot be duplicated.
fn descriptor_of(port_id: u16, queue: u16) -> Option<OwnedFd> {
    // SAFETY: the function accepts any port number and any queue number, and only reads.
    let number = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port_id, queue) };
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1. The driver keeps the descriptor open while the port is started, and the
    // caller keeps the port started.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// Makes an interrupt that has no device and is always enabled. Also returns the file descriptor that the
    /// interrupt watches, and the listener.
    fn interrupt() -> (RxInterrupt, OwnedFd, Arc<Listener>) {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let listener = Arc::new(Listener::new().unwrap());
        let found = [fd.try_clone().unwrap()];
        let mut interrupt = RxInterrupt::of(u16::MAX, 0, &found, false, false, &listener).unwrap();
        interrupt.is_switched = false;
        (interrupt, fd, listener)
    }

    fn is_readable(interrupt: &RxInterrupt) -> bool {
        let mut fds = [rustix::event::PollFd::new(&interrupt.epoll, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn only_a_frame_that_was_told_of_proves_an_interrupt() {
        let (mut interrupt, fd, _listener) = interrupt();
        let is_looked_at = |interrupt: &RxInterrupt| interrupt.next_look_us(1000) == Some(1200);
        // First frames arrive without an event, and then an event arrives without a frame: the interrupt is
        // not known to work.
        assert!(interrupt.arm(0) && interrupt.arm(3) && is_looked_at(&interrupt));
        rustix::io::write(&fd, &1_u64.to_ne_bytes()).unwrap();
        assert!(interrupt.arm(3) && is_looked_at(&interrupt));
        rustix::io::write(&fd, &1_u64.to_ne_bytes()).unwrap();
        assert!(interrupt.arm(4) && !is_looked_at(&interrupt));
        assert_eq!(interrupt.next_look_us(1000), None);
    }

    #[test]
    fn a_link_event_before_a_sleep_ends_it_and_one_during_it_wakes() {
        let (mut interrupt, _fd, listener) = interrupt();
        listener.wake();
        assert!(!interrupt.arm(0) && interrupt.arm(0) && !is_readable(&interrupt));
        listener.wake();
        assert!(is_readable(&interrupt));
    }
}
