//! Engines that sleep until a frame arrives, on ports that have a descriptor: their cost while they are idle,
//! their wake-ups, and their reaction to a peer that disappears or appears.

use std::time::Duration;

use testkit::idle::are_idle;
use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{
    LabError, Namespace, Prerequisite, Process, Result, Run, Scratch, Suite, Wire, programs, veth,
};
use tests::{ensure, lab_error};

/// Number of round trips.
const COUNT: &str = "500";

const SERVER: &str = "10.66.0.1";

/// Maximum of the shortest round-trip time, in microseconds. Both sides sleep, so a round trip needs at least
/// four wake-ups: one of each engine and one of each program. The limit is far above the time on an idle
/// machine, since other programs run too. Only the shortest of all round trips is checked, since other
/// programs may use the processors for any time.
const MOST_OF_LEAST_US: f64 = 2000.0;

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let mut suite = Suite::new("sleep", &[Prerequisite::Dpdk]);
    suite.add("vhost", vhost);
    let root = [Prerequisite::Program("ip"), Prerequisite::Program("ethtool"), Prerequisite::Namespaces];
    suite.add_with(&root, "af_packet", af_packet);
    suite.add_with(&root, "tap", tap);
    suite.run(arguments)
}

/// Returns the network options of one side.
fn dpdk(vdev: String, ip: &str) -> Vec<String> {
    Net { vdev, ip: ip.to_owned(), mtu: 1500 }.args()
}

fn serve(namespace: Option<&Namespace>, net: &[String]) -> Result<Process> {
    run(namespace, &["serve"], net)?.spawn()
}

fn ask(namespace: Option<&Namespace>, net: &[String]) -> Result<Process> {
    run(namespace, &["ask", SERVER, COUNT], net)?.spawn()
}

fn run(namespace: Option<&Namespace>, role: &[&str], net: &[String]) -> Result<Run> {
    let program = programs::own("sleeper")?;
    let run = match namespace {
        Some(namespace) => namespace.run(program),
        None => Run::new(program),
    };
    Ok(run.args(net).args(role))
}

/// Checks that the server sends back the client's messages, that the shortest round trip is below its limit,
/// and that both sides are idle after that.
fn rests(server: &Process, client: &mut Process) -> Result<()> {
    client
        .wait_for("idle", START_TIMEOUT)
        .map_err(|error| lab_error!("{error}\n---- server\n{}", server.text()))?;
    let text = client.text();
    let words: Vec<&str> = text.split_whitespace().skip_while(|word| *word != "least").collect();
    println!("  {}", words[..words.len().min(6)].join(" "));
    let least = words.get(1).and_then(|word| word.parse::<f64>().ok());
    ensure!(least.is_some_and(|least| least < MOST_OF_LEAST_US), "it took {least:?} us: {text}");
    idle(&[server, client])
}

/// Checks that the processes, including DPDK's threads, rarely wake up and use hardly any processor time.
fn idle(processes: &[&Process]) -> Result<()> {
    // During this pause, the last acknowledgements are sent.
    std::thread::sleep(Duration::from_millis(500));
    let ids: Vec<(String, u32)> =
        processes.iter().map(|process| (format!("process {}", process.id()), process.id())).collect();
    are_idle(Duration::from_secs(10), &ids).map_err(LabError)
}

/// A server that sleeps serves the next peer after a peer was killed.
fn vhost() -> Result<()> {
    let scratch = Scratch::new()?;
    let socket = scratch.file("vhost.sock").display().to_string();
    let server = serve(None, &dpdk(format!("net_vhost0,iface={socket}"), "10.66.0.1/24"))?;
    let mut server = server;
    server.wait_for("ready", START_TIMEOUT)?;
    idle(&[&server])?;
    for number in 0..2 {
        let mut client = ask(None, &dpdk(format!("net_virtio_user0,path={socket}"), "10.66.0.2/24"))?;
        rests(&server, &mut client).map_err(|error| lab_error!("client {number}: {error}"))?;
        client.kill();
    }
    Ok(())
}

fn af_packet() -> Result<()> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, 1500)?;
    let net = |ip| Net::af_packet("v0", ip, 1500).args();
    let mut server = serve(Some(&left), &net("10.66.0.1/24"))?;
    server.wait_for("ready", START_TIMEOUT)?;
    let mut client = ask(Some(&right), &net("10.66.0.2/24"))?;
    rests(&server, &mut client)?;
    // The interface goes down and up again. While it is down, the socket reports an error, which must not
    // wake the engine again and again.
    left.ip(["link", "set", "v0", "down"])?;
    idle(&[&server])?;
    left.ip(["link", "set", "v0", "up"])?;
    client.kill();
    let mut client = ask(Some(&right), &net("10.66.0.3/24"))?;
    rests(&server, &mut client)
}

/// The client uses Linux's interface of the tap device, by a packet socket.
fn tap() -> Result<()> {
    let host = Namespace::new()?;
    let mut server = serve(Some(&host), &dpdk("net_tap0,iface=t0".to_owned(), "10.66.0.1/24"))?;
    server.wait_for("ready", START_TIMEOUT)?;
    host.up("t0", 1500)?;
    let net = ["--packet", "t0", "--ip", "10.66.0.2/24", "--mtu", "1500"].map(str::to_owned);
    let mut client = ask(Some(&host), &net)?;
    rests(&server, &mut client)
}
