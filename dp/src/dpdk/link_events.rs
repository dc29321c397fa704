//! Events that a driver may report while a port sleeps: the link has changed, queues were added or removed,
//! or the device was removed.
//!
//! Drivers report these events on DPDK's threads. Such a thread also ends a vhost connection, and frees the
//! connection's memory after the callback has returned. So the callback waits while a port uses the
//! connection.

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
    /// An eventfd to which the callback writes for each event. Nobody reads the eventfd, since edge-triggered
    /// epoll reports each write.
    wake: OwnedFd,
    /// Locked while a port uses the connection of the device.
    connection: Mutex<()>,
}

impl Listener {
    /// Makes a listener. Returns `None` if there is no free descriptor.
    pub(super) fn new() -> Option<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        Some(Self { wake, connection: Mutex::new(()) })
    }

    /// The descriptor that each event makes readable, for an edge-triggered epoll.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn wake(&self) {
        // The write fails only if the eventfd's counter is full. Even then the descriptor is readable.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Locks the connection. Until the guard is dropped, vhost does not free an existing connection.
    pub(super) fn hold_connection(&self) -> MutexGuard<'_, ()> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of a [`Listener`] with a device. The registration must be dropped before the device is
/// closed.
pub(super) struct LinkEvents {
    port_id: u16,
    listener: Arc<Listener>,
}

impl LinkEvents {
    /// Registers for the events of an open device. Returns `None` if there is no free descriptor or no free
    /// memory.
    pub(super) fn listen(port_id: u16) -> Option<Self> {
        let events = Self { port_id, listener: Arc::new(Listener::new()?) };
        let all = EVENTS.iter().all(|event| {
            // SAFETY: the caller keeps the port open. `on_event` receives the listener, which is not freed
            // before `drop` has ended the registration.
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
            // SAFETY: the device is open, since its owner drops this value first. The call accepts any
            // callback.
            while unsafe {
                sys::rte_eth_dev_callback_unregister(self.port_id, event, Some(on_event), self.argument())
            } == -libc::EAGAIN
            {
                // The callback is running now, and returns soon.
                std::thread::yield_now();
            }
        }
    }
}

/// # Safety
/// `argument` points to a [`Listener`] that is valid during the call.
unsafe extern "C" fn on_event(
    _port: u16,
    event: sys::rte_eth_event_type,
    argument: *mut c_void,
    _details: *mut c_void,
) -> i32 {
    // SAFETY: DPDK, the caller, passes the argument of the registration. This `Listener` is not freed before
    // the registration has ended, and the end of the registration waits for this call.
    let listener = unsafe { &*argument.cast::<Listener>() };
    if event == sys::RTE_ETH_EVENT_INTR_LSC {
        // vhost reports that the link is down before it frees a connection, and from then on ports do not
        // find the connection. vhost holds no lock of the connection's queues here. So there is no deadlock
        // with a port that holds the connection and waits for such a lock.
        drop(listener.hold_connection());
    }
    listener.wake();
    0
}
