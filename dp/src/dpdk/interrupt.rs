//! Receive interrupts: a descriptor that becomes readable when frames come for a queue that waits.
//!
//! | driver | what wakes | the peer or device is asked |
//! |---|---|---|
//! | `net_vhost`, `net_virtio_user` | the peer writes to an eventfd | by a flag in the ring |
//! | NICs behind `vfio-pci` | the device interrupts, and the kernel writes to an eventfd | by a register |
//! | `net_tap`, `net_af_packet` | the kernel's descriptor has a frame | not at all: it always tells |
//!
//! A port sleeps on an epoll descriptor of its own, which stays the same when a vhost peer brings a new
//! eventfd. It watches for edges: nobody reads the eventfds, whose numbers only grow. What has come until the
//! port is about to sleep is taken from it then.

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

/// The keys of events.
const FRAMES: u64 = 0;
const LINK: u64 = 1;

/// How often a port is looked at whose interrupt is not proven: as often as one without interrupts.
const UNPROVEN_LOOK_US: u64 = 200;

/// Events taken with one call. More than these end a sleep once more.
const EVENTS_AT_ONCE: usize = 8;

/// Each event wakes once.
const EDGES: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

fn key(of: u64) -> epoll::EventData {
    epoll::EventData::new_u64(of)
}

/// Whether to ask the driver for an interrupt for each queue when it is configured. A device behind `uio` has
/// a single one.
pub(super) fn asks_for_interrupts(spec: &PortSpec) -> bool {
    let text = match spec {
        PortSpec::Pci(text) => split(text).0,
        // Its descriptors are found without, see `probed.rs`.
        PortSpec::Vdev(text) => return !vdev::is_virtio_user(text),
    };
    let Ok(address) = text.parse::<PciAddress>() else { return false };
    match Holder::of(Path::new(SYSFS), address) {
        Holder::UserSpace { driver, .. } => driver == VFIO,
        // Drivers that share the device with Linux.
        Holder::Linux(_) => true,
        Holder::Absent | Holder::Nobody => false,
    }
}

/// The interrupt of a receive queue.
pub(super) struct RxInterrupt {
    port_id: u16,
    queue: u16,
    epoll: OwnedFd,
    /// Duplicates of the driver's: one, or several of which one tells of frames.
    descriptors: Vec<OwnedFd>,
    /// They tell only when they were asked to. Otherwise they are readable while frames wait.
    is_switched: bool,
    /// They report nothing but an error: their interface is down or gone.
    is_broken: bool,
    /// A frame is known to wake. Not every NIC interrupts as its driver promises (an e1000e of QEMU never
    /// does), so until one was seen to, its port is looked at now and then.
    is_proven: bool,
    /// Frames that were received until it was armed.
    frames_before: u64,
    listener: Arc<Listener>,
}

impl RxInterrupt {
    /// The interrupt of a queue of a started device, if it has one: what was found when it was probed, or
    /// what the driver tells. The caller keeps the device started while this lives.
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

    /// From now on a frame makes [`epoll`](Self::epoll) readable. One that came before is to be looked for
    /// now. `false` if the link may have changed, or the device refuses. `frames` were received so far.
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
            // `net_tap` receives nothing before a signal handler has run, which may come after the wake-up.
            // So look at the descriptor itself again: it is readable as long as a frame waits.
            self.descriptors.iter().all(|fd| epoll::modify(&self.epoll, fd, key(FRAMES), EDGES).is_ok())
        };
        // The flag in the ring is written before the ring is read. The peer does the same in turn.
        fence(Ordering::SeqCst);
        armed
    }

    /// No frame has to be told of until the next [`arm`](Self::arm).
    pub(super) fn disarm(&mut self) {
        if self.is_switched {
            // A device that goes on telling wakes nobody who does not sleep.
            self.switch_off();
        }
    }

    /// When to look at the port although nothing woke it, if it was last polled at `polled_us`.
    pub(super) fn next_look_us(&self, polled_us: u64) -> Option<u64> {
        (!self.is_proven).then_some(polled_us + UNPROVEN_LOOK_US)
    }

    /// Takes the events so far. Returns whether there was one of the link, and one of frames.
    fn take_wakeups(&mut self) -> (bool, bool) {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; EVENTS_AT_ONCE];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&Timespec::default())) else {
            // No event can be taken: sleeps end at once.
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
        // SAFETY: `self` belongs to a `QueuePort`, which keeps the port open and started. A connection of
        // vhost that the driver knows exists while it is held.
        unsafe { sys::rte_eth_dev_rx_intr_enable(self.port_id, self.queue) }
    }

    fn switch_off(&self) -> i32 {
        let _held = self.listener.hold_connection();
        // SAFETY: as in `switch_on`.
        unsafe { sys::rte_eth_dev_rx_intr_disable(self.port_id, self.queue) }
    }
}

/// A duplicate of the descriptor that the driver has for a queue.
fn descriptor_of(port_id: u16, queue: u16) -> Option<OwnedFd> {
    // SAFETY: takes any port and queue, and only reads.
    let number = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port_id, queue) };
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1. The driver keeps the descriptor open while the port is started, and the
    // caller keeps it started.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    borrowed.try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// One that is not asked, of a device that does not exist, with the descriptor that it watches.
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
        // Frames without an event, and an event without a frame.
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
