//! PCI devices in sysfs: their addresses and drivers.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

pub(crate) const SYSFS: &str = "/sys";

/// The Linux driver that passes a device to user space behind the IOMMU, if there is an IOMMU.
pub(crate) const VFIO: &str = "vfio-pci";

/// Linux drivers that pass a device to user space without an IOMMU.
const UIO: &[&str] = &["uio_pci_generic", "igb_uio"];

/// The name of a device's IOMMU group if the device is bound to `vfio-pci` without an IOMMU.
const NO_IOMMU: &str = "vfio-noiommu";

/// A PCI address: `0000:03:00.0`, or `03:00.0` in domain 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// The error for a text that is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoAddress;

impl FromStr for PciAddress {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let hex = |part: &str, digits: usize, most: u32| {
            let plain =
                !part.is_empty() && part.len() <= digits && part.bytes().all(|c| c.is_ascii_hexdigit());
            let number = u32::from_str_radix(part, 16).ok().filter(|&number| plain && number <= most);
            number.ok_or(NoAddress)
        };
        let (front, function) = text.rsplit_once('.').ok_or(NoAddress)?;
        let (front, device) = front.rsplit_once(':').ok_or(NoAddress)?;
        let (domain, bus) = front.split_once(':').unwrap_or(("0", front));
        Ok(Self {
            domain: hex(domain, 8, u32::MAX)?,
            bus: hex(bus, 2, 0xff)? as u8,
            device: hex(device, 2, 0x1f)? as u8,
            function: hex(function, 1, 7)? as u8,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Splits a text such as `03:00.0,arg=1` into the device's address and the arguments for the driver. The
/// arguments include the comma before them.
pub(crate) fn split(entry: &str) -> (&str, &str) {
    entry.split_at(entry.find(',').unwrap_or(entry.len()))
}

/// The Linux driver of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// There is no such device.
    Absent,
    /// The device is not bound to a driver.
    Nobody,
    /// A kernel driver, which uses the device itself.
    Linux(String),
    /// A driver that passes the device to user space.
    UserSpace {
        driver: String,
        /// `true` if an IOMMU translates the device's addresses.
        iommu: bool,
    },
}

impl Holder {
    /// Finds the driver of a device in `sysfs`.
    pub(crate) fn of(sysfs: &Path, address: PciAddress) -> Self {
        let device = sysfs.join("bus/pci/devices").join(address.to_string());
        if !device.exists() {
            return Self::Absent;
        }
        let Ok(driver) = fs::read_link(device.join("driver")) else { return Self::Nobody };
        let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if driver != VFIO {
            let is_uio = UIO.contains(&driver.as_str());
            return if is_uio { Self::UserSpace { driver, iommu: false } } else { Self::Linux(driver) };
        }
        let group = device.join("iommu_group");
        let is_real = fs::read_to_string(group.join("name")).map_or(true, |name| name.trim() != NO_IOMMU);
        Self::UserSpace { driver, iommu: group.exists() && is_real }
    }

    /// Whether the device can be used only with physical addresses. Such a device needs hugepages, since
    /// other pages have no fixed physical address.
    pub(crate) fn needs_hugepages(&self) -> bool {
        matches!(self, Self::UserSpace { iommu: false, .. })
    }
}

impl Holder {
    pub(crate) fn is_uio(&self) -> bool {
        matches!(self, Self::UserSpace { driver, .. } if UIO.contains(&driver.as_str()))
    }
}

/// The vendor id and device id from `sysfs`, in the form `8086:100e`.
pub(crate) fn identity(sysfs: &Path, address: PciAddress) -> String {
    let device = sysfs.join("bus/pci/devices").join(address.to_string());
    let read = |file| fs::read_to_string(device.join(file)).unwrap_or_default();
    let [vendor, device] =
        ["vendor", "device"].map(|file| read(file).trim().trim_start_matches("0x").to_owned());
    format!("{vendor}:{device}")
}

/// A folder like `sysfs`, for tests.
#[cfg(test)]
pub(crate) mod fake {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A folder. The folder is removed when this value is dropped.
    pub(crate) struct Sysfs(pub(crate) PathBuf);

    impl Sysfs {
        pub(crate) fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("dp-sysfs-{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
            Self(root)
        }

        /// Makes a device, optionally with a driver and an IOMMU group. If `group` is the empty string, the
        /// group has no name file.
        pub(crate) fn device(&self, address: &str, driver: Option<&str>, group: Option<&str>) -> PciAddress {
            let device = self.0.join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), "0x8086\n").unwrap();
            fs::write(device.join("device"), "0x100e\n").unwrap();
            if let Some(driver) = driver {
                let place = self.0.join("bus/pci/drivers").join(driver);
                fs::create_dir_all(&place).unwrap();
                symlink(place, device.join("driver")).unwrap();
            }
            if let Some(name) = group {
                let place = self.0.join("kernel/iommu_groups").join(address);
                fs::create_dir_all(&place).unwrap();
                if !name.is_empty() {
                    fs::write(place.join("name"), format!("{name}\n")).unwrap();
                }
                symlink(place, device.join("iommu_group")).unwrap();
            }
            address.parse().unwrap()
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Sysfs;
    use super::*;

    #[test]
    fn an_address_is_named_as_linux_and_dpdk_name_it() {
        for (text, name) in [
            ("0000:00:08.0", "0000:00:08.0"),
            ("00:08.0", "0000:00:08.0"),
            ("0:8.0", "0000:00:08.0"),
            ("AF:1F.7", "0000:af:1f.7"),
            ("10000:e1:00.0", "10000:e1:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "eth0",
            "00:08",
            "08.0",
            "00:20.0",
            "00:08.8",
            "000:08.0",
            ":08.0",
            "0000:00:08.",
            "0:0:0:8.0",
            "+0:08.0",
            "00:08.0 ",
            "net_vhost0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(NoAddress), "{text:?}");
        }
    }

    #[test]
    fn linux_says_which_driver_has_a_device_and_whether_there_is_an_iommu() {
        let sysfs = Sysfs::new("holder");
        let user_space = |driver: &str, iommu| Holder::UserSpace { driver: driver.to_owned(), iommu };
        let holder = |address| Holder::of(&sysfs.0, address);
        assert_eq!(holder("00:01.0".parse().unwrap()), Holder::Absent);
        assert_eq!(holder(sysfs.device("0000:00:02.0", None, None)), Holder::Nobody);
        assert_eq!(
            holder(sysfs.device("0000:00:03.0", Some("e1000"), Some(""))),
            Holder::Linux("e1000".into())
        );
        for (address, driver, group, iommu) in [
            ("0000:00:04.0", "uio_pci_generic", None, false),
            ("0000:00:05.0", "igb_uio", Some(""), false),
            ("0000:00:06.0", "vfio-pci", Some(""), true),
            ("0000:00:07.0", "vfio-pci", Some("vfio-noiommu"), false),
        ] {
            let found = holder(sysfs.device(address, Some(driver), group));
            assert_eq!(found, user_space(driver, iommu));
            assert_eq!(found.needs_hugepages(), !iommu);
            assert_eq!(found.is_uio(), driver != "vfio-pci");
        }
        assert!(!Holder::Absent.needs_hugepages() && !Holder::Linux("e1000".into()).needs_hugepages());
        assert_eq!(identity(&sysfs.0, "00:02.0".parse().unwrap()), "8086:100e");
    }
}
