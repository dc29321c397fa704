//! Finds, makes and removes the devices that DPDK drives.
//!
//! When EAL starts, EAL makes a DPDK port for each PCI device in its list. All other devices, and devices
//! that were removed, are probed when they are opened. When the last port of a device is dropped, the device
//! is removed, unless it cannot be closed. So the device can be opened again or bound to another Linux
//! driver.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use super::pci::{self, Known, PciProblem};
use super::probed::{Probe, ProbedDescriptors};
use super::unplug::{Gone, Watch};
use super::vhost_user::VhostUserBackend;
use super::{DeviceError, unplug, vdev};
use crate::eal::pci::{Holder, NoAddress, PciAddress, SYSFS, split};
use crate::eal::{self, Eal};

const PCI: &CStr = c"pci";

/// The open ports, and the lock under which devices are added, opened, closed and removed.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Locks the set of open ports. While the lock is held, no other thread adds, opens, closes or removes a
/// device.
pub(super) fn lock() -> MutexGuard<'static, BTreeSet<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that DPDK has probed and that no other code uses. The device is closed and removed when the
/// handle is dropped, unless the device cannot be closed or the handle is dropped in a forked process.
pub(super) struct DeviceHandle {
    pub(super) port_id: u16,
    watch: Watch,
    bus: &'static CStr,
    name: CString,
    /// The vhost-user backend for whose answers the driver waits.
    pub(super) backend: Option<VhostUserBackend>,
    /// File descriptors that the driver has opened.
    pub(super) probed: ProbedDescriptors,
    pub(super) started: bool,
    /// `true` if the device cannot be closed, because its backend does not answer or its registers are gone.
    pub(super) abandoned: bool,
    /// `true` if the device's registers can be accessed until the device is closed, even after the device was
    /// removed. `vfio-pci` keeps the registers until then. Behind a `uio` driver the registers disappear at
    /// once, and a DPDK driver that polls a register may then wait for ever.
    keeps_registers: bool,
}

impl DeviceHandle {
    pub(super) fn gone(&self) -> &Gone {
        &self.watch.gone
    }

    pub(super) fn is_virtual(&self) -> bool {
        self.bus != PCI
    }

    /// Whether the device was removed together with its registers, so that the device cannot be closed.
    pub(super) fn lacks_registers(&self) -> bool {
        !self.keeps_registers && self.gone().load(Ordering::Relaxed)
    }

    /// Marks the port as open and returns its handle. Fails if the port is already open.
    fn take(
        open: &mut BTreeSet<u16>,
        port_id: u16,
        bus: &'static CStr,
        name: CString,
    ) -> Result<Self, DeviceError> {
        if !open.insert(port_id) {
            return Err(DeviceError::InUse { device: name.to_string_lossy().into_owned() });
        }
        let keeps_registers = bus != PCI || !is_behind_uio(&name);
        let watch = Watch::new(port_id, &name, bus == PCI);
        Ok(Self {
            port_id,
            watch,
            bus,
            name,
            backend: None,
            probed: ProbedDescriptors::default(),
            started: false,
            abandoned: false,
            keeps_registers,
        })
    }
}

/// Whether the PCI device is bound to a `uio` driver of Linux.
fn is_behind_uio(name: &CStr) -> bool {
    let address = name.to_str().ok().and_then(|name| name.parse().ok());
    address.is_some_and(|address| Holder::of(Path::new(SYSFS), address).is_uio())
}

/// Finds a NIC and returns its name and handle. If EAL has no port for the NIC, probes the NIC. `text` is the
/// NIC's address, optionally followed by a comma and arguments for the NIC's driver.
pub(super) fn find_pci(eal: Eal, text: &str) -> Result<(String, DeviceHandle), DeviceError> {
    let mut open = lock();
    eal::log::mark();
    let refused = |problem| DeviceError::Pci { device: text.to_owned(), problem };
    let (address, arguments) = split(text);
    let address: PciAddress = address.parse().map_err(|NoAddress| refused(PciProblem::Address))?;
    let name = address.to_string();
    let arguments = if arguments.is_empty() { eal.pci_arguments(address) } else { arguments.to_owned() };
    let (Ok(c_name), Ok(devargs)) =
        (CString::new(name.as_str()), CString::new(format!("pci:{name}{arguments}")))
    else {
        return Err(refused(PciProblem::Address));
    };
    let port_id = match port_id(&c_name) {
        Some(port_id) => port_id,
        None => {
            let done = probe(&devargs);
            port_id(&c_name).ok_or_else(|| {
                let known = Known {
                    is_ordinary: eal.is_ordinary(),
                    is_virtual: eal.is_virtual(),
                    lacks_driver: -done == rustix::io::Errno::NOTSUP.raw_os_error(),
                    log: eal::log::errors(),
                };
                refused(pci::problem(Path::new(SYSFS), address, known))
            })?
        }
    };
    if open.contains(&port_id) && unplug::is_gone(port_id) {
        return Err(refused(PciProblem::TakenAway));
    }
    Ok((name, DeviceHandle::take(&mut open, port_id, PCI, c_name)?))
}

pub(super) fn make_vdev(text: &str) -> Result<(String, DeviceHandle), DeviceError> {
    let mut open = lock();
    eal::log::mark();
    let name = vdev::name(text);
    let unknown = || DeviceError::Unknown {
        device: text.to_owned(),
        log: eal::log::trouble(),
        drivers: vdev::drivers().collect::<Vec<_>>().join(" "),
    };
    let (Ok(c_text), Ok(c_name)) = (CString::new(text), CString::new(name)) else {
        return Err(unknown());
    };
    if port_id(&c_name).is_some() {
        return Err(DeviceError::InUse { device: name.to_owned() });
    }
    vdev::check(text)?;
    vdev::clear_stale_socket(text)?;
    let mut backend = VhostUserBackend::of(text);
    let descriptors = Probe::of(text);
    let done = probe(&c_text);
    if done < 0 {
        if let Some(problem) = vdev::problem(text) {
            return Err(problem);
        }
        let known = vdev::drivers().any(|driver| name.starts_with(driver));
        return Err(if known {
            DeviceError::Probe {
                device: text.to_owned(),
                cause: eal::errno_text(-done),
                log: eal::log::trouble(),
            }
        } else {
            unknown()
        });
    }
    let port_id = port_id(&c_name).ok_or_else(unknown)?;
    let mut handle = DeviceHandle::take(&mut open, port_id, c"vdev", c_name)?;
    if let Some(backend) = &mut backend {
        backend.probed();
        backend.bound_waits();
    }
    handle.backend = backend;
    handle.probed = descriptors.map(Probe::finish).unwrap_or_default();
    Ok((name.to_owned(), handle))
}

/// Makes DPDK find the device on its bus and attach a driver. Returns 0, or a negative error number.
fn probe(devargs: &CStr) -> i32 {
    // SAFETY: EAL runs, since all calls come from `device::open`, which has an `Eal`. The call copies the C
    // string. The callers hold the lock, so no other call adds or removes devices.
    unsafe { sys::rte_dev_probe(devargs.as_ptr()) }
}

fn port_id(name: &CStr) -> Option<u16> {
    let mut id = 0;
    // SAFETY: the name is a C string, and `id` is a writable local variable. The callers hold the lock, so no
    // device is added or removed during the call.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut id) } == 0).then_some(id)
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        if eal::is_forked() || self.abandoned || self.lacks_registers() {
            // The device belongs to the parent process, or cannot be closed.
            return;
        }
        let mut open = lock();
        self.watch.end();
        // Errors of the following calls are ignored, since no code could handle them.
        if self.started {
            // SAFETY: this handle owns the port, which is in `OPEN`. No thread uses a queue any more: each
            // `QueuePort` keeps the `Device`, and the `Device` is being dropped.
            unsafe { sys::rte_eth_dev_stop(self.port_id) };
        }
        // SAFETY: this handle owns the port, the port is stopped, and no thread uses a queue any more. The
        // buffers in the rings are returned to the pools, which `Device` drops after this handle.
        unsafe { sys::rte_eth_dev_close(self.port_id) };
        // SAFETY: both names are C strings. The device is on this bus, and its port is closed. The lock
        // (`open`) excludes other calls that add or remove devices.
        unsafe { sys::rte_eal_hotplug_remove(self.bus.as_ptr(), self.name.as_ptr()) };
        open.remove(&self.port_id);
    }
}
