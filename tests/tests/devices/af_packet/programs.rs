//! Tests `iwperf` and our TCP on `dp::packet` at the sides of a veth pair: two engines, and our stack against
//! Linux's. Also tests the kernel's own traffic on the same interface, and programs that cannot open their
//! port.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket};
use tests::iwperf::{Net, START_TIMEOUT, Test, conclude, host, iwperf};
use tests::lab::{
    Ended, Namespace, Prerequisite, Process, Result, Run, Scratch, Suite, Wire, programs, veth,
};
use tests::{ensure, lab_error};

const LIMIT: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;

/// The network of a server and a client, and their options.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    mtu: u16,
    /// Whether the veth pair passes superframes and partial checksums.
    offloads: bool,
    /// Further options of the server and of the client.
    options: [&'static [&'static str]; 2],
}

impl Setup {
    const fn new(
        name: &'static str,
        [server, client]: [&'static str; 2],
        mtu: u16,
        offloads: bool,
        options: [&'static [&'static str]; 2],
    ) -> Self {
        Self { name, server, client, mtu, offloads, options }
    }
}

const IPV4: [&str; 2] = ["10.64.0.1/24", "10.64.0.2/24"];
const IPV6: [&str; 2] = ["fd64::1/64", "fd64::2/64"];
const MACS: [&[&str]; 2] = [&["--mac", "02:00:00:00:64:01"], &["--mac", "02:00:00:00:64:02"]];
const VLAN: &[&str] = &["--vlan", "7"];

const SETUPS: [Setup; 4] = [
    Setup::new("ipv4_mtu1500_offloads", IPV4, 1500, true, [&[], &[]]),
    Setup::new("ipv6_mtu9000_own_mac", IPV6, 9000, false, MACS),
    Setup::new("ipv6_mtu1500_offloads_vlan", IPV6, 1500, true, [VLAN, VLAN]),
    Setup::new("ipv4_mtu9000_offloads_one_own_mac", IPV4, 9000, true, [&[], MACS[1]]),
];

pub(super) fn add_to(suite: &mut Suite) {
    for setup in SETUPS {
        suite.add(format!("packet_{}", setup.name), move || engines(setup));
    }
    suite.add("packet_sleeping", sleeping);
    for (family, [ours, linux]) in [("ipv4", IPV4), ("ipv6", IPV6)] {
        for (mtu, offloads) in [(1500, true), (9000, false)] {
            suite.add(format!("packet_linux_{family}_mtu{mtu}"), move || {
                against_linux(ours, linux, (mtu, offloads))
            });
        }
    }
    suite.add("packet_beside_the_kernel", beside_the_kernel);
    suite.add_with(
        &[Prerequisite::Program("setpriv")],
        "packet_without_the_privilege",
        without_the_privilege,
    );
    suite.add("packet_unusable_interfaces", unusable_interfaces);
}

/// Creates two namespaces with a veth pair.
pub(super) fn hosts(mtu: u16, offloads: bool) -> Result<[Namespace; 2]> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    // Because of this bridge, the two interfaces have different indices. With the same index, the carrier
    // would be up as much as a second later (`linkwatch_urgent_event`).
    hosts[1].bridge("first", 1500)?;
    veth(Wire { namespace: &hosts[0], dev: "v0" }, Wire { namespace: &hosts[1], dev: "v0" }, mtu)?;
    if offloads {
        for host in &hosts {
            host.offloads_on("v0")?;
        }
    }
    Ok(hosts)
}

/// Runs four tests of `iwperf` between two engines, each on a port of ours.
fn engines(setup: Setup) -> Result<()> {
    let Setup { server, client, mtu, offloads, options, .. } = setup;
    let hosts = hosts(mtu, offloads)?;
    for test in [Test::WriteBw, Test::ReadBw, Test::SendBw, Test::WriteLat] {
        let (size, iterations) = if test.is_latency() { ("3000", "50") } else { ("300000", "100") };
        run_engines(&hosts, test, [server, client], mtu, (size, iterations), options)
            .map_err(|error| lab_error!("{}: {error}", test.name()))?;
    }
    Ok(())
}

fn run_engines(
    hosts: &[Namespace; 2],
    test: Test,
    [server_ip, client_ip]: [&str; 2],
    mtu: u16,
    (size, iterations): (&str, &str),
    options: [&[&str]; 2],
) -> Result<serde_json::Value> {
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let mut server = iwperf(Some(&hosts[0]), ["server", "--validate"])?
        .args(Net::packet("v0", server_ip, mtu))
        .args(options[0])
        .spawn()?;
    server.wait_for("listening on port", START_TIMEOUT)?;
    let client = iwperf(Some(&hosts[1]), [test.name(), host(server_ip), "--validate"])?
        .args(["-s", size, "-n", iterations, "--json"])
        .arg(&json)
        .args(Net::packet("v0", client_ip, mtu))
        .args(options[1]);
    conclude(client.spawn()?, server, &json)
}

/// Both engines sleep on the descriptors of their ports while nothing arrives.
fn sleeping() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let ips = ["10.64.0.1/24", "10.64.0.2/24"];
    run_engines(&hosts, Test::WriteBw, ips, 1500, ("100000", "200"), [&["-e"], &["-e"]]).map(drop)
}

/// Sends a stream from our TCP to Linux's, and a stream from Linux's to ours.
fn against_linux(ours: &str, linux: &str, (mtu, offloads): (u16, bool)) -> Result<()> {
    let hosts = hosts(mtu, offloads)?;
    hosts[1].address("v0", linux)?;
    // The kernel also has an address on the interface, in the same network.
    let kernel = if ours.contains(':') { "fd64::101/64" } else { "10.64.0.101/24" };
    hosts[0].address("v0", kernel)?;
    for way in ["send", "receive"] {
        stream(&hosts, ours, linux, mtu, way).map_err(|error| lab_error!("{way}: {error}"))?;
    }
    Ok(())
}

/// Sends a stream. The side that connects is the sender.
fn stream(hosts: &[Namespace; 2], ours: &str, linux: &str, mtu: u16, way: &str) -> Result<()> {
    let ends = (end(&hosts[0], Some((ours, mtu)))?, end(&hosts[1], None)?);
    let (active, passive, peer) =
        if way == "send" { (ends.0, ends.1, linux) } else { (ends.1, ends.0, ours) };
    let peer = match host(peer) {
        peer if peer.contains(':') => format!("[{peer}]:{PORT}"),
        peer => format!("{peer}:{PORT}"),
    };
    let mut passive = passive.args(["--listen", &PORT.to_string(), "receive"]).spawn()?;
    passive.wait_for("ready", START)?;
    agree(active.args(["--connect", &peer, "send"]).spawn()?, passive)
}

/// Returns a run of one side of a stream: over our stack on a port with this address and MTU, or over the
/// kernel's TCP.
fn end(host: &Namespace, ours: Option<(&str, u16)>) -> Result<Run> {
    let run = host.run(programs::own("tcp-stream")?).args(["--bytes", "4206649", "--seed", "12"]);
    Ok(match ours {
        Some((ip, mtu)) => run.args(["--packet", "v0", "--ip", ip, "--mtu", &mtu.to_string()]),
        None => run,
    })
}

/// Checks that both sides succeed and report the same bytes and checksum.
fn agree(active: Process, passive: Process) -> Result<()> {
    let active = active
        .finish(LIMIT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- the other side\n{}", passive.text()))?;
    let passive = passive.finish(START)?.success()?;
    let line = |text: &str| text.lines().find(|line| line.starts_with("bytes ")).map(str::to_owned);
    ensure!(line(&active).is_some() && line(&active) == line(&passive), "{active}\n---- {passive}");
    Ok(())
}

/// Sends an ICMP echo request by the kernel, and waits for the reply.
fn ping(host: &Namespace, to: [u8; 4]) -> Result<()> {
    let failed = |error: rustix::io::Errno| lab_error!("{to:?}: {error}");
    let socket =
        host.enter(|| socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)))?.map_err(failed)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(START)).map_err(failed)?;
    // An echo request: type 8, code 0, the checksum, an identifier and a sequence number.
    let request = [8, 0, 0x82, 0x88, 0x75, 0x77, 0, 0];
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrV4::new(to.into(), 0)).map_err(failed)?;
    let reply = [&[0, 0, 0x8a, 0x88][..], &request[4..]].concat();
    let started = Instant::now();
    loop {
        let mut packet = [0; 100];
        let (bytes, _) = recv(&socket, &mut packet, RecvFlags::empty()).map_err(failed)?;
        if packet[..bytes].ends_with(&reply) {
            return Ok(());
        }
        ensure!(started.elapsed() < START, "no reply from {to:?}");
    }
}

/// The kernel's own traffic over the interface works while our stack has a connection on it.
fn beside_the_kernel() -> Result<()> {
    let hosts = hosts(1500, true)?;
    hosts[0].address("v0", "10.64.0.101/24")?;
    hosts[1].address("v0", "10.64.0.2/24")?;
    let mut ours =
        iwperf(Some(&hosts[0]), ["pong"])?.args(Net::packet("v0", "10.64.0.1/24", 1500)).spawn()?;
    ours.wait_for("listening on port", START)?;
    // One ping goes to the kernel's address, and one goes to our address. The kernel itself also sends a
    // ping.
    ping(&hosts[1], [10, 64, 0, 101])?;
    ping(&hosts[1], [10, 64, 0, 1])?;
    ping(&hosts[0], [10, 64, 0, 2])?;
    let mut passive = end(&hosts[0], None)?.args(["--listen", &PORT.to_string(), "receive"]).spawn()?;
    passive.wait_for("ready", START)?;
    let active = end(&hosts[1], None)?.args(["--connect", "10.64.0.101:7000", "send"]);
    agree(active.spawn()?, passive)?;
    ensure!(ours.is_running()?, "our side ended: {}", ours.text());
    Ok(())
}

/// Returns the last words of a program that cannot open its port.
fn refusal(run: Run) -> Result<String> {
    let ended = run.spawn()?.finish(START)?;
    ensure!(!ended.status.success(), "it has opened its port: {}", ended.text);
    Ok(ended.text.trim().to_owned())
}

fn without_the_privilege() -> Result<()> {
    let hosts = hosts(1500, true)?;
    let run = hosts[0].run("setpriv").args(["--bounding-set", "-net_raw"]).arg(programs::iwperf()?);
    let text = refusal(run.arg("server").args(Net::packet("v0", "10.64.0.1/24", 1500)))?;
    let starts =
        "iwperf: cannot open the port: a packet socket on v0 needs CAP_NET_RAW: run as root or with it";
    ensure!(text.starts_with(starts) && text.lines().count() == 1, "{text}");
    // No other privilege is needed.
    let run = hosts[0].run("setpriv").args(["--bounding-set", "-all,+net_raw"]).arg(programs::iwperf()?);
    let mut server = run.arg("server").args(Net::packet("v0", "10.64.0.1/24", 1500)).spawn()?;
    server.wait_for("listening on port", START_TIMEOUT)
}

fn unusable_interfaces() -> Result<()> {
    let hosts = hosts(1500, true)?;
    hosts[0].address("v0", "10.64.0.101/24")?;
    hosts[0].ip(["link", "add", "v1", "type", "veth", "peer", "name", "v2"])?;
    let refused = |dev: &str, ip: &str, mtu: u16, more: &[&str]| {
        let run = iwperf(Some(&hosts[0]), ["server"])?.args(Net::packet(dev, ip, mtu)).args(more);
        refusal(run)
    };
    for (dev, ip, mtu, more, expected) in [
        ("v9", "10.64.0.1/24", 1500, &[][..], "there is no interface v9 here: there are lo, v0, v1, v2"),
        ("v1", "10.64.0.1/24", 1500, &[], "v1 is down: bring it up with `ip link set v1 up`"),
        (
            "lo",
            "10.64.0.1/24",
            1500,
            &[],
            "lo is no Ethernet interface: use one with an Ethernet address (v0, v1, v2)",
        ),
        (
            "v0",
            "10.64.0.101/24",
            1500,
            &[],
            "10.64.0.101 is the kernel's own address on v0, and its TCP would answer",
        ),
        ("v0", "127.0.0.1/24", 1500, &[], "127.0.0.1 is no address of a host"),
        ("v0", "10.64.0.1/24", 1501, &[], "an MTU of 1501 on v0: it has to be from 576 to 1500"),
        ("v0", "fd64::1/64", 1279, &[], "an MTU of 1279 on v0: it has to be from 1280 to 1500"),
        (
            "v0",
            "10.64.0.1/24",
            1500,
            &["--mac", "03:00:00:00:00:01"],
            "03:00:00:00:00:01 is no Ethernet address of",
        ),
    ] {
        let text = refused(dev, ip, mtu, more)?;
        let starts = format!("iwperf: cannot open the port: {expected}");
        ensure!(text.starts_with(&starts) && text.lines().count() == 1, "{dev} {ip} {mtu}: {text}");
    }
    Ok(())
}
