//! Events of a driver while a port sleeps: the link has changed, queues came or went, the device is gone.
//!
//! Drivers report these events on DPDK's threads. A vhost connection ends on such a thread too, and its
//! memory is freed after the callback has returned. So the callback waits while a port uses the connection.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use rustix::event::{EventfdFlags, eventfd};

use crate::eal;

/// Events after which a sleeping port may have to poll.
const EVENTS: [sys::rte_eth_event_type; 3] =
    [sys::RTE_ETH_EVENT_INTR_LSC, sys::RTE_ETH_EVENT_QUEUE_STATE, sys::RTE_ETH_EVENT_INTR_RMV];

/// State that the ports of a device share with the event callback.
pub(super) struct Listener {
    /// An eventfd to which each event writes. Nobody reads it: edge-triggered epoll reports each
    /// write.
    wake: OwnedFd,
    /// Locked while a port uses the connection of the device.
    connection: Mutex<()>,
}

impl Listener {
    /// `None` without a descriptor.
    pub(super) fn new() -> Option<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Self { wake, connection: Mutex::new(()) })
    }

    /// Each event wakes an edge-triggered epoll that watches this descriptor.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn wake(&self) {
        // The write fails only after 2^64 - 1 events; the descriptor is readable then.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// While the guard is held, vhost frees no existing connection.
    pub(super) fn hold_connection(&self) -> MutexGuard<'_, ()> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of a [`Listener`] with a device. Must be dropped before the device is closed.
pub(super) struct LinkEvents {
    port_id: u16,
    listener: Arc<Listener>,
}

impl LinkEvents {
    /// Listens to an open device; `None` without a descriptor or memory.
    pub(super) fn listen(port_id: u16) -> Option<Self> {
        let events = Self { port_id, listener: Arc::new(Listener::new()?) };
        let all = EVENTS.iter().all(|event| {
            // SAFETY: the caller keeps the port open. `on_event` gets the listener, which lives until `drop`
            // has ended the registration.
            unsafe {
                sys::rte_eth_dev_callback_register(port_id, *event, Some(on_event), events.argument()) == 0
            }
        });
        all.then_some(events)
    }

    pub(super) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn argument(&self) -> *mut c_void {
        Arc::as_ptr(&self.listener).cast_mut().cast()
    }
}

impl Drop for LinkEvents {
    fn drop(&mut self) {
        if eal::is_forked() {
            return;
        }
        for event in EVENTS {
            // SAFETY: the device is open, as its owner drops this first. The call takes any callback.
            while unsafe {
                sys::rte_eth_dev_callback_unregister(self.port_id, event, Some(on_event), self.argument())
            } == -libc::EAGAIN
            {
                // The callback is running, and does not take long.
                std::thread::yield_now();
            }
        }
    }
}

/// # Safety
/// `argument` is a [`Listener`] that lives during the call.
unsafe extern "C" fn on_event(
    _port: u16,
    event: sys::rte_eth_event_type,
    argument: *mut c_void,
    _details: *mut c_void,
) -> i32 {
    // SAFETY: the caller, DPDK, passes on the argument of the registration, a `Listener` that lives until the
    // registration has ended, which waits for this call.
    let listener = unsafe { &*argument.cast::<Listener>() };
    if event == sys::RTE_ETH_EVENT_INTR_LSC {
        // vhost frees a connection after it has reported that the link is down; from then on ports find no
        // connection. vhost holds no lock of the connection's queues here, so a port that waits for such a
        // lock while it holds the connection cannot deadlock with it.
        drop(listener.hold_connection());
    }
    listener.wake();
    0
}
