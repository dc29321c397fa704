//! Virtual machines with emulated NICs. This module runs `tests/nic-lab/nic-lab` to start them.
//!
//! `tests/nic-lab/README.md` describes the machines and their NICs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::process::{Ended, Process, Run};
use super::scratch::Scratch;
use super::suite::{cache_folder, image_missing};
use super::{Namespace, Result};

/// Maximum duration of a boot, which takes 5 to 10 s, or 30 s if both cores are busy.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum duration of a short command in a machine.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

/// The folder of the scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/nic-lab");

/// Returns the reason why no machine can be started (its image is not built); `None` if machines can be
/// started.
pub(super) fn nic_image_missing() -> Option<String> {
    image_missing("nic-lab", "the image of the machines with NICs")
}

/// Returns the reason why the machines have no `igb` and no `vmxnet3` that cuts segments (Debian 12's QEMU
/// emulates neither); `None` if they have both.
pub(super) fn newer_qemu_missing() -> Option<String> {
    let qemu = cache_folder("nic-lab").map(|cache| cache.join("qemu/usr/bin/qemu-system-x86_64"));
    let missing = qemu.is_none_or(|qemu| !qemu.exists());
    missing.then(|| "QEMU 10 of Debian's backports is not there: run tests/nic-lab/fetch-qemu".to_owned())
}

/// The state of the machines, and a folder that each machine sees as `/host`.
#[derive(Debug)]
pub struct NicLab {
    state: Scratch,
}

/// The parameters of a machine.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The name of the machine.
    pub name: &'static str,
    /// The NICs of the machine, in the format of `nic-lab start --nic`.
    pub nics: Vec<String>,
    /// Whether the machine has an IOMMU, which `vfio-pci` needs.
    pub iommu: bool,
}

/// A running machine, which is stopped when the value is dropped.
#[derive(Debug)]
pub struct NicMachine {
    name: &'static str,
    lab: Arc<NicLab>,
}

impl NicLab {
    /// Creates a lab without machines.
    ///
    /// # Errors
    /// If the system reports an error.
    pub fn new() -> Result<Arc<Self>> {
        let lab = Self { state: Scratch::new()? };
        std::fs::create_dir(lab.share())?;
        Ok(Arc::new(lab))
    }

    /// Copies a program and its libraries to the folder in which the machines find the program by its name.
    ///
    /// # Errors
    /// If a library is missing.
    pub fn put(&self, program: &Path) -> Result<()> {
        self.run("put").arg("--share").arg(self.share()).arg(program).check(ASK_TIMEOUT).map(drop)
    }

    /// Returns the folder that the machines see as `/host`.
    pub fn share(&self) -> PathBuf {
        self.state.file("share")
    }

    /// Boots machines at the same time, with their taps and bridges in `namespace`, and waits until all are
    /// ready.
    ///
    /// # Errors
    /// If a machine does not start, with the output of `nic-lab`.
    pub fn boot(self: &Arc<Self>, namespace: &Namespace, configs: &[NicConfig]) -> Result<Vec<NicMachine>> {
        let starts: Vec<Process> = configs
            .iter()
            .map(|config| {
                let mut run = self.run("start").arg(config.name).args(["--netns", namespace.name()]);
                run = run.arg("--share").arg(self.share());
                for nic in &config.nics {
                    run = run.args(["--nic", nic]);
                }
                if config.iommu { run.arg("--iommu") } else { run }.spawn()
            })
            .collect::<Result<_>>()?;
        let machines =
            configs.iter().map(|config| NicMachine { name: config.name, lab: Arc::clone(self) }).collect();
        for start in starts {
            start.finish(BOOT_TIMEOUT).and_then(Ended::success)?;
        }
        Ok(machines)
    }

    fn run(&self, command: &str) -> Run {
        Run::new(Path::new(SCRIPTS).join("nic-lab")).env("NIC_LAB_STATE", self.state.path()).arg(command)
    }
}

impl NicMachine {
    /// Returns the name of the machine.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a run of a command in the machine, which kills the command after `limit`. The run has the
    /// command's output and exit code.
    pub fn run(&self, limit: Duration, argv: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Run {
        let limit = limit.as_secs().max(1).to_string();
        self.lab.run("exec").args(["-t", &limit, self.name, "--"]).args(argv)
    }

    /// Runs a short shell script in the machine, and returns its output.
    ///
    /// # Errors
    /// If the script fails, with its output.
    pub fn shell(&self, script: &str) -> Result<String> {
        self.run(ASK_TIMEOUT, ["sh", "-c", script]).check(ASK_TIMEOUT)
    }

    /// Turns the carrier of a NIC off or on.
    ///
    /// # Errors
    /// If QEMU does not know the NIC.
    pub fn set_link(&self, pci: &str, up: bool) -> Result<()> {
        self.lab
            .run("link")
            .args([self.name, pci, if up { "on" } else { "off" }])
            .check(ASK_TIMEOUT)
            .map(drop)
    }

    /// Unplugs a NIC that was started with `port=on`, or plugs it in again. The machine notices the change
    /// some time later.
    ///
    /// # Errors
    /// If the machine has no such NIC.
    pub fn set_plugged(&self, pci: &str, plugged: bool) -> Result<()> {
        let command = if plugged { "plug" } else { "unplug" };
        self.lab.run(command).args([self.name, pci]).check(ASK_TIMEOUT).map(drop)
    }

    /// Whether the machine runs a short command within the time limit.
    pub fn answers(&self) -> bool {
        self.shell("true").is_ok()
    }

    /// Returns the text on the machine's console. The text is available even if the machine does not answer.
    ///
    /// # Errors
    /// If `nic-lab` does not know the machine.
    pub fn console(&self) -> Result<String> {
        self.lab.run("log").arg(self.name).check(ASK_TIMEOUT)
    }
}

impl Drop for NicMachine {
    fn drop(&mut self) {
        // Errors are ignored: a machine that has ended cannot be stopped. All other parts of the machine are
        // removed with its namespace.
        let _ = self.lab.run("stop").arg(self.name).check(ASK_TIMEOUT);
    }
}
