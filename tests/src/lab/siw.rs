//! Linux's own software iWARP, in a virtual machine behind a tap device: `tests/siw-peer/siw-peer` from Rust.
//!
//! What siw does and does not do on the wire is written in `tests/siw-peer/README.md`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::{Process, Run};
use super::scratch::{Scratch, ordinal};
use super::{Namespace, Result};
use crate::{ensure, lab_error};

/// Booting takes 3 to 6 s, more with both cores busy.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// Asking the machine something short.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// How a machine is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiwConfig {
    /// MTU of its device and of the tap.
    pub mtu: u16,
    /// Its addresses, with prefix lengths.
    pub addresses: Vec<String>,
    /// siw's switches, such as `mpa_crc_required=1`.
    pub params: Vec<String>,
}

/// A running machine. Stopped on drop.
#[derive(Debug)]
pub struct Siw {
    name: String,
    state: Scratch,
}

/// The program that starts and stops machines.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("siw-peer/siw-peer")
}

/// Why no machine can be started: its image has not been built.
pub fn image_missing() -> Option<String> {
    let cache = std::env::var_os("SIW_PEER_CACHE").map(PathBuf::from).or_else(|| {
        let base = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
        base.map(|base| base.join("siw-peer"))
    });
    let built =
        cache.is_some_and(|cache| ["vmlinux", "initramfs.cpio"].iter().all(|f| cache.join(f).exists()));
    (!built).then(|| "siw's machine is not built (tests/siw-peer/build-image)".to_owned())
}

impl Siw {
    /// Boots a machine with its tap device on a bridge of `namespace`, and waits until it is ready.
    ///
    /// # Errors
    /// With what `siw-peer` said, when the machine does not come up.
    pub fn start(namespace: &Namespace, bridge: &str, config: &SiwConfig) -> Result<Self> {
        let machine = Self { name: format!("siw{}", ordinal()), state: Scratch::new()? };
        let mut run = machine.peer().args(["start", &machine.name, "--netns", namespace.name()]);
        run = run.args(["--bridge", bridge, "--mtu", &config.mtu.to_string()]);
        for address in &config.addresses {
            run = run.args(["--ip", address]);
        }
        for param in &config.params {
            run = run.args(["--siw-param", param]);
        }
        run.check(BOOT_TIMEOUT)?;
        Ok(machine)
    }

    /// A command to run in the machine, ended there after `limit`. Its output and exit code are the
    /// command's.
    pub fn run(&self, limit: Duration, argv: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Run {
        self.peer().args(["exec", "-t", &limit.as_secs().max(1).to_string(), &self.name, "--"]).args(argv)
    }

    /// Puts a program of ours into the machine.
    ///
    /// # Errors
    /// When the machine does not take it.
    pub fn push(&self, program: &Path, to: &str) -> Result<()> {
        let take = format!("cat > {to} && chmod +x {to}");
        let run = self.peer().args(["exec", "-i", "-t", "20", &self.name, "--", "sh", "-c", &take]);
        run.stdin(program).check(ASK_TIMEOUT).map(drop)
    }

    /// Starts a server in the machine and waits until an RDMA listener is there: the tools do not say so
    /// themselves.
    ///
    /// # Errors
    /// When the command ends first or never listens.
    pub fn serve(
        &self,
        limit: Duration,
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Process> {
        // The last test's server may not be gone yet, and would be taken for this one.
        let started = Instant::now();
        while self.listens()? {
            ensure!(started.elapsed() < ASK_TIMEOUT, "a server in the machine does not end");
        }
        let mut server = self.run(limit, argv).spawn()?;
        let started = Instant::now();
        while !self.listens()? {
            ensure!(server.is_running()?, "the server in the machine ended: {}", server.text());
            ensure!(
                started.elapsed() < ASK_TIMEOUT,
                "the server in the machine does not listen: {}",
                server.text()
            );
        }
        Ok(server)
    }

    /// What the kernel of the machine has logged.
    ///
    /// # Errors
    /// When the machine does not answer.
    pub fn kernel_log(&self) -> Result<String> {
        self.run(ASK_TIMEOUT, ["dmesg"]).check(ASK_TIMEOUT)
    }

    /// Stops the whole machine in its tracks: it neither answers nor closes anything.
    ///
    /// # Errors
    /// When its process is not known.
    pub fn freeze(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// Lets a frozen machine go on.
    ///
    /// # Errors
    /// When its process is not known.
    pub fn thaw(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let state = std::fs::read_to_string(self.state.file(&self.name).join("state.json"))?;
        let state: serde_json::Value =
            serde_json::from_str(&state).map_err(|error| lab_error!("{error}: {state}"))?;
        let pid = state["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| lab_error!("no process id in {state}"))?;
        rustix::process::kill_process(pid, signal).map_err(|error| lab_error!("{error}"))
    }

    fn listens(&self) -> Result<bool> {
        let ask = self.run(ASK_TIMEOUT, ["rdma", "resource", "show", "cm_id"]);
        Ok(ask
            .check(ASK_TIMEOUT)
            .map_err(|error| lab_error!("asking siw's machine: {error}"))?
            .contains("LISTEN"))
    }

    fn peer(&self) -> Run {
        Run::new(program()).env("SIW_PEER_STATE", self.state.path())
    }
}

impl Drop for Siw {
    fn drop(&mut self) {
        // A machine that is gone already cannot be stopped, and its namespace takes the rest along.
        let _ = self.peer().args(["stop", &self.name]).check(ASK_TIMEOUT);
    }
}
