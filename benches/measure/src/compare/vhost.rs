//! Two `iwperf` processes, each pinned to a core, on a vhost-user wire.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use testing::lab::{Process, Result, Run, Scratch};
use testing::lab_error;

use crate::compare::session::Session;

/// The end of the wire that sends the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendingEnd {
    /// The `net_vhost` side, which creates the socket.
    Vhost,
    /// The `net_virtio_user` side.
    VirtioUser,
}

impl SendingEnd {
    pub(crate) const BOTH: [Self; 2] = [Self::VirtioUser, Self::Vhost];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vhost => "vhost_sends",
            Self::VirtioUser => "virtio_user_sends",
        }
    }
}

/// One run of `iwperf`.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// The name of the test on `iwperf`'s command line.
    pub(crate) name: &'static str,
    /// IP MTU in bytes.
    pub(crate) mtu: u16,
    pub(crate) options: Vec<String>,
}

impl Test {
    pub(crate) fn new(name: &'static str, mtu: u16, options: &str) -> Self {
        Self { name, mtu, options: options.split_whitespace().map(str::to_owned).collect() }
    }
}

/// The JSON of both sides.
#[derive(Clone, Debug)]
pub(crate) struct EndReports {
    /// The side that requested the test.
    pub(crate) client: Value,
    /// The side that served the test.
    pub(crate) server: Value,
}

/// Time limit for a program to start its port, and for the server to end after the client.
const START: Duration = Duration::from_secs(20);

/// Time limit of a run, including a start on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Number of descriptors of virtio-user's queues. virtio-user's default of 256 descriptors holds only four
/// superframes.
const QUEUE: u16 = 1024;

/// Number of receive descriptors with a buffer. A full ring only makes the sender wait, and the buffers of a
/// short ring stay in the cache. With all 1024 descriptors, the vhost side sends a sixth less.
const RX_DESC: u16 = 128;

const SERVER: &str = "10.90.0.1";
const CLIENT: &str = "10.90.0.2";

/// Runs `test` so that `sender` sends the data.
///
/// # Errors
/// Fails if a program fails or does not end. The error has the program's output.
pub(crate) fn run(session: &Session, test: &Test, sender: SendingEnd) -> Result<EndReports> {
    let scratch = Scratch::new()?;
    let ends = Programs { session, test, scratch: &scratch, socket: scratch.file("wire.sock") };
    // For Reads, the client is the side that receives the data.
    let client_is_vhost = (sender == SendingEnd::Vhost) == (test.name != "read-bw");
    let first = if client_is_vhost { ends.client(true) } else { ends.server(true) }?;
    wait_for_socket(&ends.socket)?;
    let second = if client_is_vhost { ends.server(false) } else { ends.client(false) }?;
    let (client, server) = if client_is_vhost { (first, second) } else { (second, first) };
    let reports = |file: &str| -> Result<Value> {
        let bytes = std::fs::read(scratch.file(file))?;
        serde_json::from_slice(&bytes).map_err(|error| lab_error!("{file}: {error}"))
    };
    let ended = client.finish(LIMIT)?;
    if !ended.status.success() {
        let said = server.text();
        return Err(lab_error!("{}: {}\n{}\n---- the server\n{said}", ended.what, ended.status, ended.text));
    }
    server.finish(START)?.success()?;
    Ok(EndReports { client: reports("client.json")?, server: reports("server.json")? })
}

struct Programs<'a> {
    session: &'a Session,
    test: &'a Test,
    scratch: &'a Scratch,
    socket: PathBuf,
}

impl Programs<'_> {
    fn client(&self, is_vhost: bool) -> Result<Process> {
        let run = Run::new(self.session.program("iwperf")?).args([self.test.name, SERVER]);
        self.common(run, is_vhost, CLIENT, "client.json").args(&self.test.options).spawn()
    }

    fn server(&self, is_vhost: bool) -> Result<Process> {
        let run = Run::new(self.session.program("iwperf")?).arg("server");
        self.common(run, is_vhost, SERVER, "server.json").spawn()
    }

    fn common(&self, run: Run, is_vhost: bool, address: &str, json: &str) -> Run {
        let cpu = self.session.cpus[usize::from(!is_vhost)].to_string();
        let no_huge = self.session.no_huge.then_some("--no-huge");
        run.args(["--vdev", &device(&self.socket, is_vhost), "--ip", &format!("{address}/24")])
            .args(["--mtu", &self.test.mtu.to_string(), "--cpu", &cpu, "--rx-desc", &RX_DESC.to_string()])
            .arg("--json")
            .arg(self.scratch.file(json))
            .args(no_huge)
    }
}

/// Returns DPDK's device string for a side of the wire.
pub(crate) fn device(socket: &Path, is_vhost: bool) -> String {
    let socket = socket.display();
    if is_vhost {
        format!("net_vhost0,iface={socket},tso=1")
    } else {
        format!("net_virtio_user0,path={socket},queue_size={QUEUE},mrg_rxbuf=1")
    }
}

/// Waits until the vhost side has created its socket.
///
/// # Errors
/// Fails if the socket does not exist after a time limit.
pub(crate) fn wait_for_socket(socket: &Path) -> Result<()> {
    let started = Instant::now();
    while !socket.exists() {
        if started.elapsed() > START {
            return Err(lab_error!("no socket {} after {START:?}", socket.display()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns a number in a JSON document, by its path.
///
/// # Errors
/// Fails if the document has no such number.
pub(crate) fn number(document: &Value, pointer: &str) -> Result<f64> {
    document.pointer(pointer).and_then(Value::as_f64).ok_or_else(|| lab_error!("no number at {pointer}"))
}
