//! Our TCP against Linux's: a plain stream in each direction, opened by either side, with IPv4 and IPv6, over
//! `net_af_packet` with MTUs of 1500 and 9000, and over `net_tap` with an MTU of 1500. The receiver checks
//! every byte, and both programs report the same checksum.

use std::time::Duration;

use tests::ensure;
use tests::lab::{Namespace, Prerequisite, Process, Result, Run, Scratch, Suite, Wire, programs, veth};

/// Length of a stream in bytes: a few MiB, and not a multiple of any segment size.
const BYTES: u64 = 4 * 1024 * 1024 + 12_345;
const LIMIT: Duration = Duration::from_secs(60);
const START: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;

#[derive(Clone, Copy)]
struct Family {
    name: &'static str,
    ours: &'static str,
    linux: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { name: "ipv4", ours: "10.62.0.1/24", linux: "10.62.0.2/24" },
    Family { name: "ipv6", ours: "fd62::1/64", linux: "fd62::2/64" },
];

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [
        Prerequisite::Dpdk,
        Prerequisite::Program("ip"),
        Prerequisite::Program("ethtool"),
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("tcp_linux", &needs);
    for family in FAMILIES {
        for mtu in [1500, 9000] {
            for (opener, active) in [("active", true), ("passive", false)] {
                for way in ["send", "receive"] {
                    suite.add(format!("af_packet_{}_mtu{mtu}_{opener}_{way}", family.name), move || {
                        over_af_packet(family, mtu, active, way)
                    });
                }
            }
        }
        for (opener, active) in [("active", true), ("passive", false)] {
            for way in ["send", "receive"] {
                suite.add_with(
                    &[Prerequisite::Tun],
                    format!("tap_{}_mtu1500_{opener}_{way}", family.name),
                    move || over_tap(family, active, way),
                );
            }
        }
    }
    suite.run(arguments)
}

fn over_af_packet(family: Family, mtu: u16, active: bool, way: &str) -> Result<()> {
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, mtu)?;
    right.address("v0", family.linux)?;
    let vdev = "net_af_packet0,iface=v0,blocksz=65536,framesz=16384,framecnt=1024";
    if active {
        let linux = linux(&right, family, active, way)?;
        let ours = ours(&left, family, vdev, mtu, active, way)?.spawn()?;
        agree(ours, linux)
    } else {
        let mut ours = ours(&left, family, vdev, mtu, active, way)?.spawn()?;
        ours.wait_for("ready", START)?;
        agree(ours, linux(&right, family, active, way)?)
    }
}

/// Sends a stream over a tap device. DPDK creates the device when it starts, so Linux's side is set up after
/// that.
fn over_tap(family: Family, active: bool, way: &str) -> Result<()> {
    let (namespace, scratch) = (Namespace::new()?, Scratch::new()?);
    let (dev, go) = ("dtap0", scratch.file("go"));
    let vdev = format!("net_tap0,iface={dev}");
    let mut ours = ours(&namespace, family, &vdev, 1500, active, way)?;
    if active {
        // Linux's side can listen only when its address exists, and our side must not connect before Linux's
        // side listens.
        ours = ours.arg("--wait-for").arg(&go);
    }
    let mut ours = ours.spawn()?;
    ours.wait_for("started", START)?;
    namespace.wait_for_device(dev, START)?;
    namespace.offloads_off(dev)?;
    namespace.up(dev, 1500)?;
    namespace.address(dev, family.linux)?;
    if active {
        let linux = linux(&namespace, family, active, way)?;
        std::fs::write(go, "")?;
        agree(ours, linux)
    } else {
        ours.wait_for("ready", START)?;
        agree(ours, linux(&namespace, family, active, way)?)
    }
}

/// Returns a run of our side, which connects if `active`.
fn ours(namespace: &Namespace, family: Family, vdev: &str, mtu: u16, active: bool, way: &str) -> Result<Run> {
    let run = namespace.run(programs::own("tcp-stream")?);
    let run = run.args(["--vdev", vdev, "--ip", family.ours, "--mtu", &mtu.to_string()]);
    Ok(task(run, active, family.linux, way))
}

/// Starts Linux's side, with the opposite roles.
fn linux(namespace: &Namespace, family: Family, we_are_active: bool, our_way: &str) -> Result<Process> {
    let way = if our_way == "send" { "receive" } else { "send" };
    let run = namespace.run(programs::own("tcp-stream")?);
    let mut process = task(run, !we_are_active, family.ours, way).spawn()?;
    process.wait_for("ready", START)?;
    Ok(process)
}

fn task(run: Run, active: bool, peer: &str, way: &str) -> Run {
    let peer = peer.split_once('/').map_or(peer, |(address, _)| address);
    let peer = if peer.contains(':') { format!("[{peer}]:{PORT}") } else { format!("{peer}:{PORT}") };
    let run = if active { run.args(["--connect", &peer]) } else { run.args(["--listen", &PORT.to_string()]) };
    run.args(["--bytes", &BYTES.to_string(), "--seed", "11", "--seconds", &LIMIT.as_secs().to_string(), way])
}

/// Checks that both sides succeed and report the same bytes and checksum.
fn agree(ours: Process, linux: Process) -> Result<()> {
    let ours = ours
        .finish(LIMIT + START)
        .and_then(tests::lab::Ended::success)
        .map_err(|error| tests::lab_error!("{error}\n---- Linux's side\n{}", linux.text()))?;
    let linux = linux.finish(START)?.success()?;
    let line = |text: &str| text.lines().find(|line| line.starts_with("bytes ")).map(str::to_owned);
    ensure!(line(&ours).is_some() && line(&ours) == line(&linux), "ours: {ours}\nLinux's: {linux}");
    Ok(())
}
