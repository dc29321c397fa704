//! The options of EAL, and the command line that is made from the options.

use std::fs;
use std::path::Path;

use super::error::EalError;
use super::pci::{self, Holder, NoAddress, PciAddress};

/// A PCI address that no machine has: bus ff of the last possible domain.
const NO_DEVICE: &str = "pci:ffffffff:ff:1f.7";

/// Configuration of DPDK's environment (EAL). The default configuration needs no privileges, and uses
/// hugepages if enough are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Memory for packet buffers. Default: [`Memory::Auto`] with 512 MiB.
    pub memory: Memory,
    /// CPUs of the thread that starts EAL. Default: [`Cores::Floating`].
    pub cores: Cores,
    /// PCI addresses (`0000:03:00.0` or `03:00.0`) of devices that will be opened. Each address may be
    /// followed by a comma and arguments for the device's driver. With [`Iova::Auto`], EAL derives the
    /// address mode from these devices. Other devices can also be opened if they support this mode. If the
    /// list is empty, this mode is virtual addresses, which only PCI devices behind an IOMMU support. Virtual
    /// devices need not be listed. Default: none.
    pub pci: Vec<String>,
    /// Files through which other DPDK processes can find this process. Default: [`Files::None`].
    pub files: Files,
    /// Address mode of devices. [`Iova::Auto`] means virtual addresses unless PCI devices are listed
    /// ([`pci`](Self::pci)). Default: [`Iova::Auto`].
    pub iova: Iova,
    /// `true` if a file has many hugepages, and `false` if each hugepage has its own file. A virtio-user
    /// device can pass only a few files to its peer. Default: `true`.
    pub single_file_segments: bool,
    /// `true` if lines of DPDK's log with level notice or higher are copied to standard error. If `false`,
    /// the log only appears in errors. Default: `false`.
    pub log_to_stderr: bool,
    /// Additional EAL arguments in the form of a DPDK program's command line. Default: none.
    pub extra: Vec<String>,
}

/// Memory for packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Hugepages if at least `mib` MiB are free, and otherwise ordinary pages. A PCI device without an IOMMU
    /// cannot use ordinary pages. If such a device is listed in [`EalConfig::pci`], too few free hugepages
    /// are an error: [`EalError::PciHugepages`](super::EalError::PciHugepages).
    Auto {
        /// Number of MiB that are needed.
        mib: u32,
    },
    /// Hugepages, allocated on demand.
    Hugepages,
    /// Ordinary pages: `mib` MiB are allocated at the start. Ordinary pages are slower than hugepages, and
    /// NICs without an IOMMU cannot use them.
    Ordinary {
        /// Number of MiB to allocate.
        mib: u32,
    },
}

/// CPUs of the thread that starts EAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// The thread may run on the same CPUs as before.
    Floating,
    /// The thread is pinned to this CPU.
    Pinned(usize),
}

/// Files through which other DPDK processes can find this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// No files. Any number of processes can run at the same time, and no process leaves a file behind.
    None,
    /// Files whose names start with this prefix. No other process may use the prefix.
    Prefix(String),
}

/// Address mode of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iova {
    /// Virtual addresses if no PCI devices are listed ([`EalConfig::pci`]). If PCI devices are listed, EAL
    /// chooses the mode.
    Auto,
    /// Virtual addresses, which an IOMMU translates.
    Virtual,
    /// Physical addresses. The process needs privileges. Without an IOMMU the device can access all memory of
    /// the host.
    Physical,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            memory: Memory::Auto { mib: 512 },
            cores: Cores::Floating,
            pci: Vec::new(),
            files: Files::None,
            iova: Iova::Auto,
            single_file_segments: true,
            log_to_stderr: false,
            extra: Vec::new(),
        }
    }
}

impl EalConfig {
    /// Makes a configuration for tests, with ordinary pages. Tests with this configuration need no privileges
    /// and no hugepages.
    pub fn ordinary(mib: u32) -> Self {
        Self { memory: Memory::Ordinary { mib }, ..Self::default() }
    }

    /// Returns the arguments of `rte_eal_init`, for a machine with `huge_free_mib` MiB of free hugepages. The
    /// calling thread may run on `cpus`.
    pub(super) fn arguments(&self, huge_free_mib: u64, cpus: &[usize]) -> Vec<String> {
        let Self { memory, cores, pci, files, iova, single_file_segments, log_to_stderr: _, extra } = self;
        let mut arguments = vec!["dp".to_owned(), "--no-telemetry".to_owned()];
        let ordinary_mib = memory.ordinary_mib(huge_free_mib);
        if let Some(mib) = ordinary_mib {
            arguments.extend(["--no-huge".to_owned(), "-m".to_owned(), mib.to_string()]);
        } else if *single_file_segments {
            arguments.push("--single-file-segments".to_owned());
        }
        match files {
            Files::Prefix(prefix) => arguments.push(format!("--file-prefix={prefix}")),
            // EAL refuses --in-memory together with --no-huge.
            Files::None if ordinary_mib.is_some() => arguments.push("--no-shconf".to_owned()),
            Files::None => arguments.push("--in-memory".to_owned()),
        }
        if pci.is_empty() {
            // With a list of allowed devices, EAL ignores all other devices at the start. So this list names
            // only a device that no machine has. EAL can still scan the bus later.
            arguments.extend(["-a".to_owned(), NO_DEVICE.to_owned()]);
        }
        for address in pci {
            let (place, rest) = pci::split(address);
            let place =
                place.parse::<PciAddress>().map_or_else(|_| place.to_owned(), |place| place.to_string());
            arguments.extend(["-a".to_owned(), place + rest]);
        }
        match iova {
            Iova::Auto if !pci.is_empty() => {}
            Iova::Auto | Iova::Virtual => arguments.push("--iova-mode=va".to_owned()),
            Iova::Physical => arguments.push("--iova-mode=pa".to_owned()),
        }
        // There is one lcore with number 0, on one CPU or on all allowed CPUs. (`-l N` would always pin the
        // lcore.)
        let place = match cores {
            Cores::Pinned(cpu) => cpu.to_string(),
            Cores::Floating => {
                let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
                format!("({})", list.join(","))
            }
        };
        arguments.push(format!("--lcores=0@{place}"));
        arguments.extend(extra.iter().cloned());
        arguments
    }
}

impl Memory {
    /// Number of MiB of ordinary pages to use if `huge_free_mib` MiB of hugepages are free. `None` means that
    /// hugepages are used.
    pub(super) fn ordinary_mib(self, huge_free_mib: u64) -> Option<u32> {
        match self {
            Self::Auto { mib } if huge_free_mib < u64::from(mib) => Some(mib),
            Self::Ordinary { mib } => Some(mib),
            Self::Auto { .. } | Self::Hugepages => None,
        }
    }
}

impl EalConfig {
    /// Returns the addresses of the PCI devices that EAL may use.
    ///
    /// # Errors
    /// [`EalError::PciAddress`] if an entry is not a PCI address.
    pub(super) fn pci_addresses(&self) -> Result<Vec<PciAddress>, EalError> {
        let parse = |entry: &String| {
            pci::split(entry).0.parse().map_err(|NoAddress| EalError::PciAddress { text: entry.clone() })
        };
        self.pci.iter().map(parse).collect()
    }

    /// Returns the arguments for the driver of this device, including the comma before the arguments. The
    /// result is empty if there are no arguments.
    pub(super) fn pci_arguments(&self, address: PciAddress) -> String {
        let entries = self.pci.iter().map(|entry| pci::split(entry));
        let of_it = entries.filter(|(place, _)| place.parse() == Ok(address));
        of_it.map(|(_, arguments)| arguments.to_owned()).next_back().unwrap_or_default()
    }

    /// Checks that the PCI devices in `sysfs` can use the memory that EAL will have. With
    /// [`Memory::Hugepages`], the function only checks that a hugepage is free. With [`Memory::Ordinary`],
    /// the function does not check the memory.
    ///
    /// # Errors
    /// [`EalError::NoHugepages`] if hugepages are configured and no hugepage is free.
    /// [`EalError::PciAddress`] if an entry is not a PCI address. [`EalError::PciHugepages`] if a device
    /// without an IOMMU needs hugepages, and too few are free.
    pub(super) fn check(&self, sysfs: &Path, huge_free_mib: u64) -> Result<(), EalError> {
        if self.memory == Memory::Hugepages && huge_free_mib == 0 {
            return Err(EalError::NoHugepages);
        }
        let addresses = self.pci_addresses()?;
        let Memory::Auto { mib } = self.memory else { return Ok(()) };
        if self.memory.ordinary_mib(huge_free_mib).is_none() {
            return Ok(());
        }
        for address in addresses {
            if let Holder::UserSpace { driver, iommu: false } = Holder::of(sysfs, address) {
                let (device, free) = (address.to_string(), huge_free_mib);
                return Err(EalError::PciHugepages { device, driver, free, mib });
            }
        }
        Ok(())
    }
}

/// Number of MiB in free hugepages of all sizes.
pub(super) fn huge_free_mib(sysfs: &Path) -> u64 {
    let Ok(sizes) = fs::read_dir(sysfs.join("kernel/mm/hugepages")) else { return 0 };
    sizes
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let free: u64 =
                fs::read_to_string(entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
            Some(kib * free / 1024)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eal::pci::fake::Sysfs;

    fn line(config: &EalConfig, huge_free_mib: u64) -> String {
        config.arguments(huge_free_mib, &[0, 1]).join(" ")
    }

    #[test]
    fn without_hugepages_the_default_runs_in_ordinary_memory() {
        assert_eq!(
            line(&EalConfig::default(), 0),
            "dp --no-telemetry --no-huge -m 512 --no-shconf -a pci:ffffffff:ff:1f.7 --iova-mode=va --lcores=0@(0,1)"
        );
    }

    #[test]
    fn with_hugepages_the_default_leaves_no_files_behind() {
        assert_eq!(
            line(&EalConfig::default(), 1024),
            "dp --no-telemetry --single-file-segments --in-memory -a pci:ffffffff:ff:1f.7 --iova-mode=va \
             --lcores=0@(0,1)"
        );
    }

    #[test]
    fn a_pci_device_without_an_iommu_insists_on_hugepages() {
        let sysfs = Sysfs::new("memory");
        sysfs.device("0000:00:08.0", Some("uio_pci_generic"), None);
        sysfs.device("0000:00:09.0", Some("vfio-pci"), Some(""));
        sysfs.device("0000:00:0a.0", Some("e1000"), None);
        let check = |pci: &str, memory, free| {
            EalConfig { pci: vec![pci.into()], memory, ..EalConfig::default() }.check(&sysfs.0, free)
        };
        let auto = Memory::Auto { mib: 512 };
        let missing = EalError::PciHugepages {
            device: "0000:00:08.0".into(),
            driver: "uio_pci_generic".into(),
            free: 511,
            mib: 512,
        };
        assert_eq!(check("00:08.0", auto, 511), Err(missing));
        assert_eq!(check("00:08.0", auto, 512), Ok(()));
        assert_eq!(check("00:09.0", auto, 0), Ok(()), "it has an IOMMU");
        assert_eq!(check("00:0a.0", auto, 0), Ok(()), "not ours: the reason is told when it is opened");
        assert_eq!(check("00:0b.0", auto, 0), Ok(()), "not there: likewise");
        assert_eq!(check("00:08.0", Memory::Ordinary { mib: 512 }, 0), Ok(()), "as asked for");
        assert_eq!(check("eth0", auto, 512), Err(EalError::PciAddress { text: "eth0".into() }));
        let none = check("00:09.0", Memory::Hugepages, 0).unwrap_err();
        assert!(none.to_string().contains("reserve some (echo 512"), "{none}");
        assert_eq!(check("00:09.0", Memory::Hugepages, 1), Ok(()));
    }

    #[test]
    fn free_hugepages_of_all_sizes_count() {
        let sysfs = Sysfs::new("huge");
        assert_eq!(huge_free_mib(&sysfs.0), 0);
        for (size, free) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "1\n")] {
            let folder = sysfs.0.join("kernel/mm/hugepages").join(size);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("free_hugepages"), free).unwrap();
        }
        assert_eq!(huge_free_mib(&sysfs.0), 1030);
    }

    #[test]
    fn a_pci_address_is_given_whole_and_keeps_its_arguments() {
        let pci = vec!["03:00.0".into(), "0000:AF:00.1,arg=03:00.0".into()];
        let config = EalConfig { pci, ..EalConfig::default() };
        let line = line(&config, 1024);
        assert!(line.contains("-a 0000:03:00.0 -a 0000:af:00.1,arg=03:00.0 --lcores"), "{line}");
        let arguments = |address: &str| config.pci_arguments(address.parse().unwrap());
        assert_eq!(arguments("af:00.1"), ",arg=03:00.0", "for a device that is probed again");
        assert_eq!(["03:00.0", "04:00.0"].map(arguments), ["", ""]);
    }

    #[test]
    fn pci_devices_leave_the_address_mode_to_eal() {
        let config = EalConfig {
            memory: Memory::Hugepages,
            pci: vec!["0000:03:00.0".into()],
            cores: Cores::Pinned(3),
            files: Files::Prefix("uw".into()),
            extra: vec!["--legacy-mem".into()],
            single_file_segments: false,
            ..EalConfig::default()
        };
        assert_eq!(
            line(&config, 0),
            "dp --no-telemetry --file-prefix=uw -a 0000:03:00.0 --lcores=0@3 --legacy-mem"
        );
    }
}
