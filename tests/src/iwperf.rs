//! Runs `iwperf` as users run it: with a command line, and with results in a JSON file.

use std::path::Path;
use std::time::{Duration, Instant};

pub use benches::params::Test;
use benches::params::{ATOMIC_BYTES, Verb};
use serde_json::Value;

use crate::lab::{Ended, Namespace, Process, Result, Run, programs};
use crate::{ensure, lab_error};

/// Maximum duration of one small test on a busy machine with two cores.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time on a busy machine until a program has started its port and listens, or until its connection
/// moves bytes.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum number of bytes that show that a connection is in the middle of a test: more than its setup moves.
const MOVED_BYTES: u64 = 1 << 18;

/// Waits until `iwperf` runs its test, and `uwarp status` shows that one of its connections has moved bytes.
///
/// # Errors
/// If the program ends, if it has not begun its test after a minute, if no connection has moved bytes after
/// another minute, or if the folder of the status cannot be read.
pub fn wait_to_move(process: &mut Process) -> Result<()> {
    // `iwperf` prints the head of the table when it begins to send data.
    process.wait_for("#bytes", START_TIMEOUT)?;
    let folder = iwarp::status::default_folder()?;
    let started = Instant::now();
    loop {
        let shown = iwarp::status::processes(&folder)?.answered;
        let of_it = shown.iter().filter(|report| report.pid == process.id());
        let mut connections = of_it.flat_map(|report| &report.engines).flat_map(|engine| &engine.connections);
        if connections.any(|connection| connection.tx_bytes + connection.rx_bytes > MOVED_BYTES) {
            return Ok(());
        }
        ensure!(process.is_running()?, "it ended: {}", process.text());
        ensure!(started.elapsed() < START_TIMEOUT, "it moves no data: {shown:#?}\n{}", process.text());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the name of the corresponding program of perftest.
pub fn perftest(test: Test) -> &'static str {
    match test {
        Test::WriteBw | Test::WriteImmBw => "ib_write_bw",
        Test::ReadBw => "ib_read_bw",
        Test::SendBw => "ib_send_bw",
        Test::AtomicBw => "ib_atomic_bw",
        Test::WriteLat => "ib_write_lat",
        Test::ReadLat => "ib_read_lat",
        Test::SendLat => "ib_send_lat",
        Test::AtomicLat => "ib_atomic_lat",
    }
}

/// Returns a message size in bytes and a number of iterations. With these values the test is fast. With an
/// MTU of 1500, each message needs several FPDUs, except for atomics, whose size is fixed.
pub fn quick(test: Test) -> (u32, u32) {
    match (test.verb(), test.is_latency()) {
        (Verb::Atomic, _) => (ATOMIC_BYTES, 50),
        (_, false) => (40_000, 50),
        (_, true) => (3_000, 50),
    }
}

/// A test with its addresses, MTU and options.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name of the test in its suite.
    pub name: String,
    /// The test.
    pub test: Test,
    /// The server's address with its prefix length.
    pub server_ip: String,
    /// The client's address with its prefix length.
    pub client_ip: String,
    /// MTU in bytes.
    pub mtu: u16,
    /// Options of both the server and the client.
    pub options: &'static [&'static str],
}

/// Returns every test over IPv4 and IPv6, with both MTUs, with and without markers. `net` distinguishes the
/// networks of suites: 10.`net`.0.0/24 and fd`net`::/64.
pub fn cases(net: u8) -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, prefix, length) in [("ipv4", format!("10.{net}.0."), 24), ("ipv6", format!("fd{net}::"), 64)]
    {
        for mtu in [1500, 9000] {
            for (framing, options) in [("plain", &[][..]), ("markers", &["--markers"][..])] {
                cases.extend(Test::ALL.map(|test| Case {
                    name: format!("{}_{family}_mtu{mtu}_{framing}", test.name()),
                    test,
                    server_ip: format!("{prefix}1/{length}"),
                    client_ip: format!("{prefix}2/{length}"),
                    mtu,
                    options,
                }));
            }
        }
    }
    cases
}

/// The network options of a command line.
#[derive(Clone, Debug)]
pub struct Net {
    /// DPDK's device string.
    pub vdev: String,
    /// Our address with its prefix length.
    pub ip: String,
    /// MTU in bytes.
    pub mtu: u16,
}

impl Net {
    /// Returns the options. The options do not use hugepages, which not every machine has.
    pub fn args(&self) -> Vec<String> {
        ["--vdev", &self.vdev, "--ip", &self.ip, "--mtu", &self.mtu.to_string(), "--no-huge"]
            .map(String::from)
            .to_vec()
    }

    /// Returns the options for DPDK's `net_af_packet` on a device of the namespace, with rings for jumbo
    /// frames.
    pub fn af_packet(dev: &str, ip: &str, mtu: u16) -> Self {
        let vdev = format!("net_af_packet0,iface={dev},blocksz=65536,framesz=16384,framecnt=1024");
        Self { vdev, ip: ip.to_owned(), mtu }
    }

    /// Returns the options of `iwperf` for our own port on a device of the namespace, which needs no options
    /// of DPDK.
    pub fn packet(dev: &str, ip: &str, mtu: u16) -> Vec<String> {
        ["--packet", dev, "--ip", ip, "--mtu", &mtu.to_string()].map(String::from).to_vec()
    }

    /// Returns the options for the listening side of a vhost-user socket.
    pub fn vhost(socket: &Path, ip: &str, mtu: u16) -> Self {
        Self { vdev: format!("net_vhost0,iface={}", socket.display()), ip: ip.to_owned(), mtu }
    }

    /// Returns the options for the connecting side of a vhost-user socket.
    pub fn virtio_user(socket: &Path, ip: &str, mtu: u16) -> Self {
        Self { vdev: format!("net_virtio_user0,path={}", socket.display()), ip: ip.to_owned(), mtu }
    }
}

/// Returns a run of `iwperf ARGS`, in `namespace` if a namespace is given.
///
/// # Errors
/// If `iwperf` does not build.
pub fn iwperf<S: AsRef<str>>(
    namespace: Option<&Namespace>,
    args: impl IntoIterator<Item = S>,
) -> Result<Run> {
    let program = programs::iwperf()?;
    let run = match namespace {
        Some(namespace) => namespace.run(program),
        None => Run::new(program),
    };
    Ok(run.args(args.into_iter().map(|arg| arg.as_ref().to_owned())))
}

/// Starts a server and waits until it listens.
///
/// # Errors
/// If the server does not start or does not listen in time.
pub fn serve<S: AsRef<str>>(
    namespace: Option<&Namespace>,
    net: &Net,
    args: impl IntoIterator<Item = S>,
) -> Result<Process> {
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
    let mut server = iwperf(namespace, args.chain(net.args()))?.spawn()?;
    server.wait_for("listening on port", START_TIMEOUT)?;
    Ok(server)
}

/// Starts a server on the listening side of a vhost-user socket, and waits until the socket exists. The link
/// comes up when the client starts.
///
/// # Errors
/// If the server does not start or the socket does not appear in time.
pub fn serve_vhost<S: AsRef<str>>(
    socket: &Path,
    ip: &str,
    mtu: u16,
    args: impl IntoIterator<Item = S>,
) -> Result<Process> {
    serve_on(socket, Net::vhost(socket, ip, mtu).args(), args)
}

/// Starts a server like [`serve_vhost`], whose port on the socket does not use DPDK.
///
/// # Errors
/// As [`serve_vhost`].
pub fn serve_vhost_without_dpdk<S: AsRef<str>>(
    socket: &Path,
    ip: &str,
    mtu: u16,
    args: impl IntoIterator<Item = S>,
) -> Result<Process> {
    let wire = format!("vhost:{}", socket.display());
    let net = ["--wire", &wire, "--ip", ip, "--mtu", &mtu.to_string()].map(String::from);
    serve_on(socket, net.to_vec(), args)
}

/// Starts a server with these options of the network, and waits until it has created its socket.
fn serve_on<S: AsRef<str>>(
    socket: &Path,
    net: Vec<String>,
    args: impl IntoIterator<Item = S>,
) -> Result<Process> {
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
    let mut server = iwperf(None, args.chain(net))?.spawn()?;
    let started = Instant::now();
    while !socket.exists() {
        ensure!(server.is_running()?, "the server ended: {}", server.text());
        ensure!(
            started.elapsed() < START_TIMEOUT,
            "the server does not create its socket: {}",
            server.text()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

/// Returns the address without its prefix length.
pub fn host(ip: &str) -> &str {
    ip.split_once('/').map_or(ip, |(address, _)| address)
}

/// Returns the command line of a quick client of `test` that validates every byte and writes its results to
/// `json`.
///
/// # Errors
/// If `iwperf` does not build.
pub fn client(
    namespace: Option<&Namespace>,
    test: Test,
    server: &str,
    net: &Net,
    json: &Path,
) -> Result<Run> {
    let (size, iterations) = quick(test);
    let run = iwperf(namespace, [test.name(), host(server), "--validate"])?.arg("--json").arg(json);
    Ok(run.args(["-s", &size.to_string(), "-n", &iterations.to_string()]).args(net.args()))
}

/// Waits until both sides of a validated test have ended, and returns the client's results.
///
/// # Errors
/// If one side fails or exceeds its time limit, or if the results do not show a completed test.
pub fn conclude(client: Process, server: Process, json: &Path) -> Result<Value> {
    client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- server\n{}", server.text()))?;
    server.finish(TEST_TIMEOUT)?.success()?;
    let value = results(json)?;
    let checked = |by: &str| value["validation"][by].as_u64().unwrap_or(0);
    let messages = checked("messages_checked_here") + checked("messages_checked_by_peer");
    ensure!(messages > 0, "no message was validated: {value}");
    Ok(value)
}

/// Reads the file that `--json` wrote.
///
/// # Errors
/// If the file is missing or is not JSON, if it has no results, or if its first result has no iterations.
pub fn results(file: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(file).map_err(|error| lab_error!("{}: {error}", file.display()))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| lab_error!("{error} in:\n{text}"))?;
    let rows = value["results"].as_array().map_or(0, Vec::len);
    ensure!(rows > 0 && value["results"][0]["iterations"].as_u64() > Some(0), "no results in:\n{text}");
    Ok(value)
}
