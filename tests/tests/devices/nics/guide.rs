//! The commands of the chapter on NICs (`docs/NIC.md`), in both machines.
//!
//! The commands run as written, with these changes. The address and the Linux driver (`ixgbe` in the chapter)
//! are those of the emulated NIC. The machines have a single NUMA node, and 800 MiB in hugepages instead of
//! 1 GiB. A client sends only a few messages. Packages are not installed, but have to be in
//! `scripts/install`.

use std::path::Path;
use std::time::Duration;

use tests::iwperf::TEST_TIMEOUT;
use tests::lab::process::Run;
use tests::lab::{Ended, LabError, NicMachine, Prerequisite, Result, Suite};
use tests::nic_guide::NicGuide;
use tests::{ensure, lab_error};

use super::rig::{Binding, Nic, NicPair, READY_TIMEOUT, SharedPair};

/// Maximum duration of a line in a machine, where Python takes seconds.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

/// A program that writes Python's compiled standard library into a file from which the machines import.
const PACK: &str = "import pathlib, sys, sysconfig, zipfile
out, library = zipfile.PyZipFile(sys.argv[1], 'w'), pathlib.Path(sysconfig.get_path('stdlib'))
for module in sorted(library.glob('*.py')): out.writepy(str(module))
for package in 'collections', 'encodings', 'importlib', 're': out.writepy(str(library / package))
out.close()";

/// Adds the test of this binding.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding) {
    let needs =
        [Nic::Igb.needs(), &[Prerequisite::Program("dpdk-devbind.py"), Prerequisite::Program("lspci")]]
            .concat();
    let shared = shared.clone();
    suite.add_with(&needs, format!("{}_igb_guide", binding.name()), move || {
        shared.with(binding, |pair| {
            let ran = Guide::new(pair).and_then(|guide| guide.run(binding));
            // The NIC is bound again, since the next tests need a bound NIC.
            let bound = pair.machines().into_iter().try_for_each(|machine| {
                machine.shell(&format!("nic-bind {}", pair.address(Nic::Igb))).map(drop)
            });
            ran.and(bound)
        })
    });
}

struct Guide<'a> {
    pair: &'a NicPair,
    commands: NicGuide,
}

impl<'a> Guide<'a> {
    /// Copies DPDK's tools to the machines, and gives the igb NICs back to Linux.
    fn new(pair: &'a NicPair) -> Result<Self> {
        let commands = NicGuide::read().map_err(LabError)?;
        for program in ["/usr/bin/python3", "/usr/bin/lspci"] {
            pair.put(Path::new(program))?;
        }
        let library = pair.shared_file("python.zip");
        Run::new("/usr/bin/python3").args(["-c", PACK]).arg(&library).check(LINE_TIMEOUT)?;
        for script in ["dpdk-devbind.py", "dpdk-hugepages.py"] {
            std::fs::copy(Path::new("/usr/bin").join(script), pair.shared_file(&format!("bin/{script}")))?;
        }
        for machine in pair.machines() {
            machine.shell("ln -sf /host/bin/python3 /usr/bin/python3")?;
            machine.shell(&format!("nic-bind {} kernel", pair.address(Nic::Igb)))?;
        }
        Ok(Self { pair, commands })
    }

    fn run(&self, binding: Binding) -> Result<()> {
        let guide = &self.commands;
        for machine in self.pair.machines() {
            match binding {
                Binding::Vfio => {
                    for line in guide.setup.iter().chain([&guide.iommu_group]).chain(&guide.hugepages) {
                        self.line(machine, line)?;
                    }
                    self.is_bound(machine, "vfio-pci")?;
                }
                Binding::Uio => {
                    for line in &guide.bind_uio {
                        self.line(machine, line)?;
                    }
                    self.is_bound(machine, "uio_pci_generic")?;
                }
            }
        }
        self.transfer(&guide.server, &guide.client)?;
        if binding == Binding::Vfio {
            let said = self.transfer(&guide.server_options, &guide.client)?;
            ensure!(said.contains("rx_good_packets"), "no counters of the NIC: {said}");
        }
        for machine in self.pair.machines() {
            self.line(machine, &guide.give_back)?;
            self.is_bound(machine, "igb")?;
        }
        Ok(())
    }

    /// Returns a line of the chapter in the form in which it runs here.
    fn adapted(&self, line: &str) -> String {
        line.replace("0000:03:00.0", &self.pair.address(Nic::Igb))
            .replace("-b ixgbe", "-b igb")
            .replace("--reserve 1G", "--reserve 800M")
            .replace("--node 1", "--node 0")
    }

    fn line(&self, machine: &NicMachine, line: &str) -> Result<()> {
        if let Some(packages) = line.strip_prefix("apt-get install ") {
            let installs =
                std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install"))?;
            let missing = packages.split(' ').find(|package| !installs.contains(package));
            return missing.map_or(Ok(()), |package| Err(lab_error!("scripts/install has no {package}")));
        }
        let line = self.adapted(line);
        let line = format!("export PYTHONHOME=/usr PYTHONPATH=/host/python.zip; {line}");
        let said = machine.run(LINE_TIMEOUT, ["sh", "-ec", &line]).check(LINE_TIMEOUT)?;
        let address = self.pair.address(Nic::Igb);
        let is_listed = !line.contains("--status-dev") || said.contains(&format!("{address} '"));
        ensure!(is_listed, "{line} does not show {address}: {said}");
        Ok(())
    }

    /// Checks which driver the NIC has, since `dpdk-devbind.py` also succeeds if it has bound nothing.
    fn is_bound(&self, machine: &NicMachine, driver: &str) -> Result<()> {
        let address = self.pair.address(Nic::Igb);
        let bound = machine.shell(&format!("readlink /sys/bus/pci/devices/{address}/driver"))?;
        ensure!(bound.trim().ends_with(&format!("/{driver}")), "{address} has {bound}, not {driver}");
        Ok(())
    }

    /// Runs a server and its client. Returns what the server printed.
    fn transfer(&self, server: &str, client: &str) -> Result<String> {
        let (server, client) = (self.adapted(server), self.adapted(client));
        let mut server = self.pair.b.run(2 * TEST_TIMEOUT, ["sh", "-c", &server]).spawn()?;
        server.wait_for("listening on port", READY_TIMEOUT)?;
        let client = format!("{client} -n 20");
        let ended = self.pair.a.run(TEST_TIMEOUT, ["sh", "-c", &client]).spawn()?.finish(TEST_TIMEOUT);
        let said = ended
            .and_then(Ended::success)
            .map_err(|error| lab_error!("{error}\n---- server\n{}", server.text()))?;
        ensure!(said.contains("BW average"), "{client} measures nothing: {said}");
        server.finish(TEST_TIMEOUT).and_then(Ended::success)
    }
}
