//! Linux's software RDMA in a virtual machine behind a tap device: siw (iWARP) or rxe (RoCEv2). This module
//! runs `tests/siw-peer/siw-peer` to start it.
//!
//! `tests/siw-peer/README.md` describes the behaviour of siw and rxe on the wire.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::{Process, Run};
use super::scratch::{Scratch, ordinal};
use super::{Namespace, Result};
use crate::{ensure, lab_error};

/// Maximum duration of a boot, which takes 3 to 6 s, or longer if both cores are busy.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum duration of a short command in the machine, and maximum time until a server in the machine listens
/// or has ended.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// The driver of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// iWARP, with the RDMA device `siw0`.
    Siw,
    /// RoCEv2, with the RDMA device `rxe0`.
    Rxe,
}

impl Driver {
    fn name(self) -> &'static str {
        match self {
            Self::Siw => "siw",
            Self::Rxe => "rxe",
        }
    }
}

/// The parameters of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiwConfig {
    /// The driver.
    pub driver: Driver,
    /// MTU of the machine's device and of the tap.
    pub mtu: u16,
    /// The addresses of the machine, with prefix lengths.
    pub addresses: Vec<String>,
    /// Parameters of the kernel module `siw`, such as `mpa_crc_required=1`.
    pub params: Vec<String>,
}

/// A running machine, which is stopped when the value is dropped.
#[derive(Debug)]
pub struct Siw {
    name: String,
    state: Scratch,
}

/// Returns a command that prints a line for each TCP listener at `port`.
pub fn tcp_listeners(port: u16) -> [String; 6] {
    ["ss", "-H", "-l", "-t", "-n", &format!("sport = :{port}")].map(str::to_owned)
}

/// Returns the path of the program that starts and stops machines.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("siw-peer/siw-peer")
}

impl Siw {
    /// Boots a machine with its tap device on a bridge of `namespace`, and waits until it is ready.
    ///
    /// # Errors
    /// If the machine does not start, with the output of `siw-peer`.
    pub fn start(namespace: &Namespace, bridge: &str, config: &SiwConfig) -> Result<Self> {
        Self::boot(config, |run| run.args(["--netns", namespace.name(), "--bridge", bridge]))
    }

    /// Boots a machine whose device is on the vhost-user socket at `socket`, and waits until it is ready. The
    /// other side of the socket has to listen.
    ///
    /// # Errors
    /// If the machine does not start, with the output of `siw-peer`.
    pub fn start_on_socket(socket: &Path, config: &SiwConfig) -> Result<Self> {
        Self::boot(config, |run| run.arg("--vhost-user").arg(socket))
    }

    fn boot(config: &SiwConfig, on_wire: impl FnOnce(Run) -> Run) -> Result<Self> {
        let driver = config.driver.name();
        let machine = Self { name: format!("{driver}{}", ordinal()), state: Scratch::new()? };
        let mut run = on_wire(machine.peer().args(["start", &machine.name]));
        run = run.args(["--driver", driver]);
        run = run.args(["--mtu", &config.mtu.to_string()]);
        for address in &config.addresses {
            run = run.args(["--ip", address]);
        }
        for param in &config.params {
            run = run.args(["--siw-param", param]);
        }
        run.check(BOOT_TIMEOUT)?;
        Ok(machine)
    }

    /// Returns the name of the machine, which is also that of its tap device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a run of a command in the machine, which kills the command after `limit`. The run has the
    /// command's output and exit code.
    pub fn run(&self, limit: Duration, argv: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Run {
        self.peer().args(["exec", "-t", &limit.as_secs().max(1).to_string(), &self.name, "--"]).args(argv)
    }

    /// Copies one of our programs into the machine.
    ///
    /// # Errors
    /// If the machine does not accept the program.
    pub fn push(&self, program: &Path, to: &str) -> Result<()> {
        let take = format!("cat > {to} && chmod +x {to}");
        let run = self.peer().args(["exec", "-i", "-t", "20", &self.name, "--", "sh", "-c", &take]);
        run.stdin(program).check(ASK_TIMEOUT).map(drop)
    }

    /// Starts a server in the machine, and waits until there is an RDMA listener, since the tools do not
    /// print when they listen.
    ///
    /// # Errors
    /// If the command ends before it listens, or does not listen in time.
    pub fn serve(
        &self,
        limit: Duration,
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Process> {
        self.serve_until(limit, argv, || self.listens())
    }

    /// Starts a server in the machine, and waits until there is a TCP listener at `port`.
    ///
    /// # Errors
    /// If the command ends before it listens, or does not listen in time.
    pub fn serve_tcp(
        &self,
        limit: Duration,
        port: u16,
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Process> {
        let words = tcp_listeners(port);
        self.serve_until(limit, argv, || Ok(!self.run(ASK_TIMEOUT, &words).check(ASK_TIMEOUT)?.is_empty()))
    }

    /// Starts a program in the machine, and waits until the machine has joined a group.
    ///
    /// # Errors
    /// If the command ends before it joins, or does not join in time.
    pub fn serve_group(
        &self,
        limit: Duration,
        group: &str,
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Process> {
        let words = ["ip", "maddress", "show", "dev", "eth0"];
        let has_joined = |text: &str| text.split_whitespace().any(|word| word == group);
        self.serve_until(limit, argv, || Ok(has_joined(&self.run(ASK_TIMEOUT, words).check(ASK_TIMEOUT)?)))
    }

    fn serve_until(
        &self,
        limit: Duration,
        argv: impl IntoIterator<Item = impl AsRef<OsStr>>,
        listens: impl Fn() -> Result<bool>,
    ) -> Result<Process> {
        // The server of the last test may not have ended yet, and must not be mistaken for this server.
        let started = Instant::now();
        while listens()? {
            ensure!(started.elapsed() < ASK_TIMEOUT, "a server in the machine does not end");
        }
        let mut server = self.run(limit, argv).spawn()?;
        let started = Instant::now();
        while !listens()? {
            ensure!(server.is_running()?, "the server in the machine ended: {}", server.text());
            ensure!(
                started.elapsed() < ASK_TIMEOUT,
                "the server in the machine does not listen: {}",
                server.text()
            );
        }
        Ok(server)
    }

    /// Returns the kernel log of the machine.
    ///
    /// # Errors
    /// If the machine does not answer.
    pub fn kernel_log(&self) -> Result<String> {
        self.run(ASK_TIMEOUT, ["dmesg"]).check(ASK_TIMEOUT)
    }

    /// Whether the machine runs a short command within the time limit.
    pub fn answers(&self) -> bool {
        self.run(ASK_TIMEOUT, ["true"]).check(ASK_TIMEOUT).is_ok()
    }

    /// Returns the text on the machine's console. The text is available even if the machine does not answer;
    /// a kernel that hangs reports the hang there.
    ///
    /// # Errors
    /// If `siw-peer` does not know the machine.
    pub fn console(&self) -> Result<String> {
        self.peer().args(["log", &self.name]).check(ASK_TIMEOUT)
    }

    /// Stops the whole machine. A stopped machine neither answers nor closes a connection.
    ///
    /// # Errors
    /// If the process of the machine is unknown.
    pub fn freeze(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// Continues a stopped machine.
    ///
    /// # Errors
    /// If the process of the machine is unknown.
    pub fn thaw(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// Returns the process id of the machine's emulator.
    ///
    /// # Errors
    /// If the process id is unknown.
    pub fn id(&self) -> Result<u32> {
        Ok(self.pid()?.as_raw_nonzero().get().unsigned_abs())
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        rustix::process::kill_process(self.pid()?, signal).map_err(|error| lab_error!("{error}"))
    }

    fn pid(&self) -> Result<rustix::process::Pid> {
        let state = std::fs::read_to_string(self.state.file(&self.name).join("state.json"))?;
        let state: serde_json::Value =
            serde_json::from_str(&state).map_err(|error| lab_error!("{error}: {state}"))?;
        let pid = state["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        pid.ok_or_else(|| lab_error!("no process id in {state}"))
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
        // Errors are ignored: a machine that has ended cannot be stopped. All other parts of the machine are
        // removed with its namespace.
        let _ = self.peer().args(["stop", &self.name]).check(ASK_TIMEOUT);
    }
}
