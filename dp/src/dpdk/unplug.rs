//! Notices when a device in use is taken away: a NIC is unplugged, or unbound from its Linux driver.
//!
//! Two sources report it, both on EAL's interrupt thread. One is the bus: Linux requests a device behind
//! `vfio-pci` back and waits until its ports are dropped; for a device behind a `uio` driver, Linux only
//! reports that it is gone. The other source is a few drivers. The registers of a device that is gone cannot
//! be accessed: the first access raises SIGBUS, and DPDK's handler maps ordinary memory in their place.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use dpdk_sys as sys;

/// Set once the device is gone.
pub(super) type Gone = Arc<AtomicBool>;

/// The open devices by port number: the name on the bus, and where to note that it is gone.
static WATCHED: Mutex<BTreeMap<u16, (String, Gone)>> = Mutex::new(BTreeMap::new());

fn watched() -> MutexGuard<'static, BTreeMap<u16, (String, Gone)>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the device of this port is gone, while the port is open or after it could not be closed.
pub(super) fn is_gone(port_id: u16) -> bool {
    watched().get(&port_id).is_some_and(|(_, gone)| gone.load(Ordering::Relaxed))
}

/// An open device that is watched until this value is dropped.
pub(super) struct Watch {
    port_id: u16,
    pub(super) gone: Gone,
}

impl Watch {
    /// Watches an open port. `is_pci`: its device can be unplugged. Without uevents (in a network namespace
    /// of another user), only the driver reports it.
    pub(super) fn new(port_id: u16, name: &CStr, is_pci: bool) -> Self {
        if is_pci {
            watch_the_bus();
        }
        let gone = Gone::default();
        let name = name.to_string_lossy().into_owned();
        watched().insert(port_id, (name, Arc::clone(&gone)));
        // After an error, events of the driver are not received.
        //
        // SAFETY: the port is open. `on_driver` stays for the life of the process, and ignores its argument.
        unsafe {
            sys::rte_eth_dev_callback_register(
                port_id,
                sys::RTE_ETH_EVENT_INTR_RMV,
                Some(on_driver),
                std::ptr::null_mut(),
            )
        };
        Self { port_id, gone }
    }

    /// Ends the watch, before the port is closed.
    pub(super) fn end(&self) {
        watched().remove(&self.port_id);
        // SAFETY: the port is open still, and the callback was registered with these arguments.
        unsafe {
            sys::rte_eth_dev_callback_unregister(
                self.port_id,
                sys::RTE_ETH_EVENT_INTR_RMV,
                Some(on_driver),
                std::ptr::null_mut(),
            )
        };
    }
}

/// Makes EAL report all devices that are taken away; done once per process.
fn watch_the_bus() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // SAFETY: EAL runs, since a device is open. `on_bus` stays for the life of the process, and ignores
        // its argument. A null name stands for all devices.
        unsafe { sys::rte_dev_event_callback_register(std::ptr::null(), Some(on_bus), std::ptr::null_mut()) };
        // SAFETY: EAL runs. It replaces the handler of SIGBUS, and calls the one before for signals that are
        // not of a device's registers.
        unsafe { sys::rte_dev_hotplug_handle_enable() };
        // SAFETY: EAL runs, whose interrupt thread reads the socket that this opens.
        unsafe { sys::rte_dev_event_monitor_start() };
    });
}

/// The bus reports that a device was added or removed.
///
/// # Safety
/// `name` is null, or a C string that does not change during the call.
unsafe extern "C" fn on_bus(name: *const c_char, event: sys::rte_dev_event_type, _argument: *mut c_void) {
    if name.is_null() || event != sys::RTE_DEV_EVENT_REMOVE {
        return;
    }
    // SAFETY: the caller passes a C string that does not change.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    for (_, gone) in watched().values().filter(|(watched, _)| *watched == name) {
        gone.store(true, Ordering::Relaxed);
    }
}

/// A driver reports that its device is gone.
unsafe extern "C" fn on_driver(
    port_id: u16,
    _event: sys::rte_eth_event_type,
    _argument: *mut c_void,
    _result: *mut c_void,
) -> i32 {
    if let Some((_, gone)) = watched().get(&port_id) {
        gone.store(true, Ordering::Relaxed);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_that_is_named_is_gone_and_no_other() {
        let flags = [Gone::default(), Gone::default()];
        for ((port_id, name), gone) in [(901, "0000:00:01.0"), (902, "0000:00:02.0")].into_iter().zip(&flags)
        {
            watched().insert(port_id, (name.into(), Arc::clone(gone)));
        }
        let state = || flags.each_ref().map(|gone| gone.load(Ordering::Relaxed));
        let (first, absent) = (c"0000:00:01.0".as_ptr(), c"0000:00:03.0".as_ptr());
        for (name, event) in [
            (first, sys::RTE_DEV_EVENT_ADD),
            (absent, sys::RTE_DEV_EVENT_REMOVE),
            (std::ptr::null(), sys::RTE_DEV_EVENT_REMOVE),
        ] {
            // SAFETY: the name is null or a constant C string.
            unsafe { on_bus(name, event, std::ptr::null_mut()) };
            assert_eq!(state(), [false, false]);
        }
        // SAFETY: a constant C string.
        unsafe { on_bus(first, sys::RTE_DEV_EVENT_REMOVE, std::ptr::null_mut()) };
        assert_eq!(state(), [true, false]);
        let null = std::ptr::null_mut;
        // SAFETY: the function has no conditions.
        unsafe { on_driver(903, sys::RTE_ETH_EVENT_INTR_RMV, null(), null()) };
        assert_eq!(state(), [true, false]);
        // SAFETY: the function has no conditions.
        unsafe { on_driver(902, sys::RTE_ETH_EVENT_INTR_RMV, null(), null()) };
        assert_eq!(state(), [true, true]);
        watched().retain(|port_id, _| ![901, 902].contains(port_id));
    }
}
