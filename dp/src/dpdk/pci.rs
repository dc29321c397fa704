//! The reasons why a PCI device cannot be opened.
//!
//! If EAL cannot use a device, EAL's error says little. So this module then finds the cause in sysfs and in
//! EAL's log.

use std::path::Path;

use crate::eal::pci::{Holder, PciAddress, identity};

/// The reason why a PCI device cannot be opened. The message of an error is one line, and most messages say
/// what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PciProblem {
    /// The text is not a PCI address.
    #[error("no PCI address, which looks like 0000:03:00.0 or 03:00.0")]
    Address,
    /// There is no device with this address.
    #[error("this machine has no such PCI device: see `lspci -D`, or /sys/bus/pci/devices")]
    Absent,
    /// The device is not bound to a Linux driver.
    #[error(
        "the device is bound to no driver: bind it to vfio-pci (where there is an IOMMU) or uio_pci_generic, such as by \
         `dpdk-devbind.py -b vfio-pci`"
    )]
    Unbound,
    /// The device is bound to a driver of the kernel.
    #[error(
        "the device belongs to Linux, whose driver {driver} has it: bind it to vfio-pci (where there is an IOMMU) or \
         uio_pci_generic, such as by `dpdk-devbind.py -b vfio-pci`"
    )]
    Linux {
        /// The kernel's driver.
        driver: String,
    },
    /// The device needs physical addresses, and EAL was started with virtual addresses.
    #[error(
        "the device is bound to {driver}, which gives it physical addresses alone, and DPDK was started for virtual ones: \
         name the device in EalConfig::pci, in a new process"
    )]
    NotNamed {
        /// The Linux driver that passes the device to user space.
        driver: String,
    },
    /// The device was removed while this process used it, and this process has not closed it.
    #[error(
        "the device was taken away while this process used it: use what has its place now in a new process"
    )]
    TakenAway,
    /// EAL runs without hugepages, which the device needs.
    #[error(
        "the device is bound to {driver}, which gives it physical addresses alone, and DPDK runs without hugepages: let it \
         have them (no --no-huge), or bind the device to vfio-pci behind an IOMMU"
    )]
    Hugepages {
        /// The Linux driver that passes the device to user space.
        driver: String,
    },
    /// EAL has refused the device.
    #[error("DPDK refused the device, which is bound to {driver}: {log}")]
    Refused {
        /// The Linux driver that passes the device to user space.
        driver: String,
        /// The text that EAL logged.
        log: String,
    },
    /// No linked DPDK driver supports the device.
    #[error(
        "no driver of DPDK that is linked in drives a device {identity} (vendor:device); there are {drivers}"
    )]
    Unsupported {
        /// The device's vendor id and device id.
        identity: String,
        /// The drivers that are linked to this program.
        drivers: String,
    },
}

/// The state of EAL, and the result of an attempt to probe a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// `true` if EAL has no hugepages.
    pub(super) is_ordinary: bool,
    /// `true` if EAL gives virtual addresses to devices.
    pub(super) is_virtual: bool,
    /// `true` if EAL has found no driver for the device.
    pub(super) lacks_driver: bool,
    pub(super) log: String,
}

/// Finds the reason why EAL has no port for the device. `sysfs` is the folder of sysfs.
pub(super) fn problem(sysfs: &Path, address: PciAddress, known: Known) -> PciProblem {
    let holder = Holder::of(sysfs, address);
    let needs_hugepages = holder.needs_hugepages();
    match holder {
        Holder::Absent => PciProblem::Absent,
        Holder::Nobody => PciProblem::Unbound,
        Holder::Linux(driver) => PciProblem::Linux { driver },
        Holder::UserSpace { driver, .. } if needs_hugepages && known.is_ordinary => {
            PciProblem::Hugepages { driver }
        }
        Holder::UserSpace { driver, .. } if needs_hugepages && known.is_virtual => {
            PciProblem::NotNamed { driver }
        }
        Holder::UserSpace { .. } if known.lacks_driver => PciProblem::Unsupported {
            identity: identity(sysfs, address),
            drivers: dpdk_sys::DRIVERS.join(" "),
        },
        Holder::UserSpace { driver, .. } => PciProblem::Refused { driver, log: known.log },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eal::pci::fake::Sysfs;

    #[test]
    fn each_reason_has_its_own_words() {
        let sysfs = Sysfs::new("problem");
        let absent = "00:01.0".parse().unwrap();
        let nobody = sysfs.device("0000:00:02.0", None, None);
        let linux = sysfs.device("0000:00:03.0", Some("e1000"), None);
        let uio = sysfs.device("0000:00:04.0", Some("uio_pci_generic"), None);
        let vfio = sysfs.device("0000:00:05.0", Some("vfio-pci"), Some(""));
        let log = "EAL: Expecting 'PA'".to_owned();
        let virtual_only = Known { is_virtual: true, log, ..Known::default() };
        let ordinary = Known { is_ordinary: true, ..virtual_only.clone() };
        let driverless = Known { lacks_driver: true, ..Known::default() };
        for (address, known, says) in [
            (absent, &ordinary, "no such PCI device"),
            (nobody, &ordinary, "bound to no driver: bind it to vfio-pci"),
            (linux, &ordinary, "whose driver e1000 has it: bind it to vfio-pci"),
            (uio, &virtual_only, "was started for virtual ones: name the device in EalConfig::pci"),
            (uio, &ordinary, "gives it physical addresses alone, and DPDK runs without hugepages"),
            (vfio, &ordinary, "bound to vfio-pci: EAL: Expecting 'PA'"),
            (uio, &driverless, "drives a device 8086:100e (vendor:device); there are net_"),
        ] {
            let told = problem(&sysfs.0, address, known.clone()).to_string();
            assert!(told.contains(says) && !told.contains('\n'), "{says}: {told}");
        }
    }

    #[test]
    fn what_has_to_be_bound_may_be_bound_to_uio_as_well() {
        for problem in [PciProblem::Unbound, PciProblem::Linux { driver: "e1000".into() }] {
            assert!(problem.to_string().contains("vfio-pci (where there is an IOMMU) or uio_pci_generic"));
        }
    }
}
