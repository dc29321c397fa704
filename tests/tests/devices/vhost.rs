//! `iwperf` between two processes over `net_vhost` or `dp::vhost`, and `net_virtio_user`: every test, both
//! MTUs, IPv4 and IPv6, with and without markers. These tests validate every byte (`--validate`). Other tests
//! kill or stop one side and check the reaction of the other side. The suite needs neither root nor
//! hugepages.

use std::path::Path;
use std::time::{Duration, Instant};

use tests::iwperf::{
    Case, Net, START_TIMEOUT, TEST_TIMEOUT, Test, cases, client, conclude, iwperf, serve_vhost,
    serve_vhost_without_dpdk, wait_to_move,
};
use tests::lab::{Prerequisite, Process, Result, Scratch, Suite};
use tests::{ensure, lab_error};

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let mut suite = Suite::new("vhost", &[Prerequisite::Dpdk]);
    for case in cases(60) {
        let without_dpdk = case.clone();
        suite.add(case.name.clone(), move || run(&case, Server::Dpdk));
        if without_dpdk.options.is_empty() {
            let name = format!("{}_without_dpdk", without_dpdk.name);
            suite.add(name, move || run(&without_dpdk, Server::WithoutDpdk));
        }
    }
    for test in [Test::WriteBw, Test::SendBw] {
        suite.add(format!("{}_zero_copy", test.name()), move || zero_copy(test));
    }
    for queues in [2, 4] {
        for test in [Test::WriteBw, Test::ReadBw, Test::SendBw] {
            suite.add(format!("{}_{queues}_queues", test.name()), move || several_queues(test, queues));
        }
    }
    for end in [End::Vhost, End::VirtioUser] {
        for test in [Test::WriteBw, Test::ReadBw, Test::WriteLat] {
            suite.add(format!("{}_{}_killed", test.name(), end.name()), move || {
                killed(test, end, Server::Dpdk)
            });
            suite.add(format!("{}_{}_stopped", test.name(), end.name()), move || stopped(test, end));
            suite.add(format!("{}_{}_killed_without_dpdk", test.name(), end.name()), move || {
                killed(test, end, Server::WithoutDpdk)
            });
        }
    }
    suite.run(arguments)
}

/// The port of the vhost side.
#[derive(Clone, Copy)]
enum Server {
    /// `net_vhost`.
    Dpdk,
    /// `dp::vhost`.
    WithoutDpdk,
}

impl Server {
    fn start<S: AsRef<str>>(
        self,
        socket: &Path,
        ip: &str,
        mtu: u16,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Process> {
        match self {
            Self::Dpdk => serve_vhost(socket, ip, mtu, args),
            Self::WithoutDpdk => serve_vhost_without_dpdk(socket, ip, mtu, args),
        }
    }
}

/// One side of the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// `net_vhost`, the server.
    Vhost,
    /// `net_virtio_user`, the client.
    VirtioUser,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::VirtioUser => "virtio_user",
        }
    }
}

/// Starts `test` without a time limit and, once it runs, applies `harm` to one side. Returns the last output
/// line of the other side, and the time from the harm to its end.
fn harmed(
    (test, kind): (Test, Server),
    end: End,
    harm: impl FnOnce(&mut Process),
    limit: Duration,
) -> Result<(String, Duration)> {
    let scratch = Scratch::new()?;
    let socket = scratch.file("vhost.sock");
    let mut server = kind.start(&socket, "10.60.0.1/24", 1500, ["server"])?;
    let net = Net::virtio_user(&socket, "10.60.0.2/24", 1500);
    let args = [test.name(), "10.60.0.1", "-D", "600", "-s", "4096"].map(str::to_owned);
    let mut client = iwperf(None, args.into_iter().chain(net.args()))?.spawn()?;
    wait_to_move(&mut client)?;
    wait_to_move(&mut server)?;
    let (mut victim, other) = if end == End::Vhost { (server, client) } else { (client, server) };
    let start = Instant::now();
    harm(&mut victim);
    let ended = other.finish(limit)?;
    let took = start.elapsed();
    Ok((ended.failure()?.to_owned(), took))
}

/// The link goes down when the peer's socket is closed, and the connection ends within a second. The limit is
/// longer, since the machine may be busy, but shorter than the nine or ten seconds of silence after which TCP
/// ends a connection.
fn killed(test: Test, end: End, server: Server) -> Result<()> {
    let (cause, took) = harmed((test, server), end, Process::kill, Duration::from_secs(30))?;
    ensure!(cause.contains("the link is down"), "it ended with '{cause}'");
    ensure!(took < Duration::from_secs(9), "it ended {took:?} after the other end was killed");
    Ok(())
}

/// The socket stays open, and the ring fills up. The connection ends when bytes have not been acknowledged
/// for ten seconds (`TcpConfig::user_timeout`), or when an idle peer has not answered four probes
/// (`TcpConfig::keepalive_probes`, after five seconds). `iwperf` itself also gives up after ten seconds in
/// which no segment arrives (`--timeout`), and may notice the silence before its TCP does. The process ends
/// at most two seconds later: it waits because the backend of its device does not answer.
fn stopped(test: Test, end: End) -> Result<()> {
    let (cause, took) = harmed((test, Server::Dpdk), end, Process::freeze, Duration::from_secs(60))?;
    let causes = ["the peer does not answer", "the peer was silent for 10 s"];
    ensure!(causes.iter().any(|text| cause.contains(text)), "it ended with '{cause}'");
    ensure!(took < Duration::from_secs(20), "it ended {took:?} after the other end was stopped");
    Ok(())
}

/// Both sides send long messages from registered memory, in long frames without CRCs. vhost reads this memory
/// in place; virtio has to copy it.
fn zero_copy(test: Test) -> Result<()> {
    const MTU: u16 = 9000;
    let scratch = Scratch::new()?;
    let socket = scratch.file("vhost.sock");
    let server = serve_vhost(&socket, "10.60.0.1/24", MTU, ["server", "--validate", "--no-crc"])?;
    let net = Net::virtio_user(&socket, "10.60.0.2/24", MTU);
    let options = ["--validate", "--zero-copy", "--bidirectional", "--no-crc", "-s", "300000", "-n", "50"];
    let args = [test.name(), "10.60.0.1"].into_iter().chain(options).map(str::to_owned);
    let client = iwperf(None, args.chain(net.args()))?.spawn()?;
    let at_client = client.finish(TEST_TIMEOUT)?.success()?;
    let at_server = server.finish(TEST_TIMEOUT)?.success()?;
    ensure!(at_client.contains("zero copy: none"), "{at_client}");
    ensure!(at_server.contains("zero copy: 100.0 %"), "{at_server}");
    ensure!(at_server.contains("every byte as sent"), "{at_server}");
    Ok(())
}

/// There are several queues, with an engine and a core for each. A frame arrives at the queue that has the
/// number of the queue that sent it. Therefore all connections of an engine are with one engine of the peer.
fn several_queues(test: Test, queues: u32) -> Result<()> {
    let scratch = Scratch::new()?;
    let (socket, json) = (scratch.file("vhost.sock"), scratch.file("result.json"));
    let cores = format!("{queues}");
    let mut server = iwperf(None, {
        let vdev = format!("net_vhost0,iface={},queues={queues}", socket.display());
        let net = Net { vdev, ip: "10.60.0.1/24".into(), mtu: 1500 };
        ["server", "--validate", "--cores", &cores].map(str::to_owned).into_iter().chain(net.args())
    })?
    .spawn()?;
    server.wait_for("listening", START_TIMEOUT)?;
    let vdev = format!("net_virtio_user0,path={},queues={queues}", socket.display());
    let net = Net { vdev, ip: "10.60.0.2/24".into(), mtu: 1500 };
    let options = ["--cores", &cores, "--qp", "8", "--stats"];
    let client = client(None, test, "10.60.0.1/24", &net, &json)?.args(options).spawn()?;
    let results = conclude(client, server, &json)?;
    let engines = results["engines"].as_array().ok_or_else(|| lab_error!("no engines: {results}"))?;
    ensure!(engines.len() == queues as usize, "{results}");
    for engine in engines {
        let count = |name: &str| engine[name].as_u64().unwrap_or(0);
        // Each engine has its share of the queue pairs, and the control connection of its core.
        let share = u64::from(8 / queues) + 1;
        ensure!(count("connections") == share, "{share} connections for each engine: {results}");
        ensure!(count("rx_fpdus") + count("tx_fpdus") > 100, "an engine without traffic: {results}");
        ensure!(count("handed_over_dropped") == 0, "frames were lost between engines: {results}");
    }
    Ok(())
}

fn run(case: &Case, server: Server) -> Result<()> {
    let Case { test, ref server_ip, ref client_ip, mtu, options, .. } = *case;
    let scratch = Scratch::new()?;
    let (socket, json) = (scratch.file("vhost.sock"), scratch.file("result.json"));
    let server = server.start(&socket, server_ip, mtu, ["server", "--validate"].iter().chain(options))?;
    let net = Net::virtio_user(&socket, client_ip, mtu);
    let client = client(None, test, server_ip, &net, &json)?.args(options).spawn()?;
    let results = conclude(client, server, &json)?;
    if test == Test::ReadBw && options.is_empty() {
        // The vhost side answers in trains of segments, since its peer has announced that it accepts large
        // frames. Without trains, there is at least one frame for each FPDU, and further frames for
        // acknowledgements.
        let count = |name: &str| results["counters"][name].as_u64().unwrap_or(0);
        let (frames, fpdus) = (count("rx_frames"), count("rx_fpdus"));
        ensure!(0 < frames && frames < fpdus, "{fpdus} FPDUs came in {frames} frames: {results}");
    }
    Ok(())
}
