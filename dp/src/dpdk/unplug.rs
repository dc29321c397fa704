//! Detects that an open device is removed: a NIC is unplugged, or unbound from its Linux driver.
//!
//! Two sources report a removal on EAL's interrupt thread. The first source is the bus. For a device behind
//! `vfio-pci`, Linux asks for the device and waits until the device's ports are dropped. For a device behind
//! a `uio` driver, Linux only reports that the device is gone. The device's registers can then no longer be
//! accessed: the first access raises SIGBUS, and DPDK's handler maps ordinary memory in place of the
//! registers. The second source is the driver, but only few drivers report a removal.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use dpdk_sys as sys;

/// The flag that is set when the device is removed.
pub(super) type Gone = Arc<AtomicBool>;

/// The open devices by port number. Each entry has the device's name on the bus and the device's flag.
static WATCHED: Mutex<BTreeMap<u16, (String, Gone)>> = Mutex::new(BTreeMap::new());

fn watched() -> MutexGuard<'static, BTreeMap<u16, (String, Gone)>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the device of this port was removed. The caller passes a port that is open, or that could not be
/// closed.
pub(super) fn is_gone(port_id: u16) -> bool {
    watched().get(&port_id).is_some_and(|(_, gone)| gone.load(Ordering::Relaxed))
}

/// An open device that is watched until this value is dropped.
pub(super) struct Watch {
    port_id: u16,
    pub(super) gone: Gone,
}

impl Watch {
    /// Watches an open port. If `is_pci` is `true`, also watches the bus. A network namespace that does not
    /// belong to the initial user namespace receives no uevents. In such a namespace, only the driver reports
    /// that the device is gone.
    pub(super) fn new(port_id: u16, name: &CStr, is_pci: bool) -> Self {
        if is_pci {
            watch_the_bus();
        }
        let gone = Gone::default();
        let name = name.to_string_lossy().into_owned();
        watched().insert(port_id, (name, Arc::clone(&gone)));
        // If the registration fails, the error is ignored, and no events of the driver are received.
        //
        // SAFETY: the port is open. `on_driver` exists until the process ends, and ignores its argument.
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

    /// Ends the watch. The caller calls this function before it closes the port.
    pub(super) fn end(&self) {
        watched().remove(&self.port_id);
        // SAFETY: the port is still open, and the callback was registered with these arguments.
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

/// Makes EAL report each device that is removed. Only the first call in a process has an effect.
fn watch_the_bus() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // SAFETY: EAL runs, since a device is open. `on_bus` exists until the process ends, and ignores its
        // argument. A null name means all devices.
        unsafe { sys::rte_dev_event_callback_register(std::ptr::null(), Some(on_bus), std::ptr::null_mut()) };
        // SAFETY: EAL runs. The call replaces the handler of SIGBUS. The new handler calls the old handler
        // unless an access to a device's registers has caused the signal.
        unsafe { sys::rte_dev_hotplug_handle_enable() };
        // SAFETY: EAL runs. EAL's interrupt thread reads the socket that this call opens.
        unsafe { sys::rte_dev_event_monitor_start() };
    });
}

/// EAL calls this function when the bus reports that a device was added or removed.
///
/// # Safety
/// `name` is null, or a C string that does not change during the call.
unsafe extern "C" fn on_bus(name: *const c_char, event: sys::rte_dev_event_type, _argument: *mut c_void) {
    if name.is_null() || event != sys::RTE_DEV_EVENT_REMOVE {
        return;
    }
    // SAFETY: the caller passes a C string that does not change during this call.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    for (_, gone) in watched().values().filter(|(watched, _)| *watched == name) {
        gone.store(true, Ordering::Relaxed);
    }
}

/// EAL calls this function when a driver reports that its device is gone.
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
        // SAFETY: the name is a constant C string.
        unsafe { on_bus(first, sys::RTE_DEV_EVENT_REMOVE, std::ptr::null_mut()) };
        assert_eq!(state(), [true, false]);
        let null = std::ptr::null_mut;
        // SAFETY: the function has no preconditions.
        unsafe { on_driver(903, sys::RTE_ETH_EVENT_INTR_RMV, null(), null()) };
        assert_eq!(state(), [true, false]);
        // SAFETY: the function has no preconditions.
        unsafe { on_driver(902, sys::RTE_ETH_EVENT_INTR_RMV, null(), null()) };
        assert_eq!(state(), [true, true]);
        watched().retain(|port_id, _| ![901, 902].contains(port_id));
    }
}
