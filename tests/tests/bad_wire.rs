//! Our TCP against Linux's over a wire that loses: 200 Mb/s and a round trip of 10 ms, made by our own bridge between two
//! veth pairs, offloads off. Bulk in both directions completes; the goodput of Linux with itself stands beside.

use std::process::ExitCode;
use std::time::Duration;

use tests::lab::{Ended, Namespace, Need, Process, Result, Run, Suite, Wire, programs, veth};
use tests::{ensure, lab_error};

const LEFT: &str = "10.63.0.1/24";
const RIGHT: &str = "10.63.0.2/24";
const PORT: u16 = 7000;
const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// A host's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tcp {
    Ours,
    Linux,
}

/// What is lost, and how much is sent: enough for some losses, in some seconds.
#[derive(Clone, Copy)]
struct Loss {
    name: &'static str,
    ppm: u32,
    octets: u64,
}

const LOSSES: [Loss; 3] = [
    Loss { name: "0.1", ppm: 1_000, octets: 16 << 20 },
    Loss { name: "1", ppm: 10_000, octets: 8 << 20 },
    Loss { name: "5", ppm: 50_000, octets: 2 << 20 },
];

fn main() -> ExitCode {
    let needs = [Need::Dpdk, Need::Program("ip"), Need::Program("ethtool"), Need::Namespaces];
    let mut suite = Suite::new("bad_wire", &needs);
    for loss in LOSSES {
        let pairs = [
            (Tcp::Ours, Tcp::Linux),
            (Tcp::Linux, Tcp::Ours),
            (Tcp::Ours, Tcp::Ours),
            (Tcp::Linux, Tcp::Linux),
        ];
        for (from, to) in pairs {
            suite.add(format!("loss_{}_percent_{from:?}_to_{to:?}", loss.name).to_lowercase(), move || {
                let goodput = bulk(loss, 0, from, to)?;
                println!("{}% lost, {from:?} to {to:?}: {goodput:.1} Mb/s", loss.name);
                Ok(())
            });
        }
    }
    suite.add("reordered_ours_to_linux", || {
        bulk(Loss { ppm: 0, ..LOSSES[1] }, 10_000, Tcp::Ours, Tcp::Linux).map(drop)
    });
    suite.add("reordered_linux_to_ours", || {
        bulk(Loss { ppm: 0, ..LOSSES[1] }, 10_000, Tcp::Linux, Tcp::Ours).map(drop)
    });
    suite.run()
}

/// One stream from the left to the right; its goodput, megabits a second.
fn bulk(loss: Loss, reorder_ppm: u32, from: Tcp, to: Tcp) -> Result<f64> {
    let [left, middle, right] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &middle, dev: "w0" }, 1500)?;
    veth(Wire { namespace: &right, dev: "v0" }, Wire { namespace: &middle, dev: "w1" }, 1500)?;
    let mut wire = bridge(&middle, loss, reorder_ppm)?;
    wire.wait_for("ready", START)?;
    let mut receiver =
        stream(&right, to, RIGHT, loss)?.args(["--listen", &PORT.to_string(), "receive"]).spawn()?;
    receiver.wait_for("ready", START)?;
    let (peer, _) = RIGHT.split_once('/').unwrap_or((RIGHT, ""));
    let sender =
        stream(&left, from, LEFT, loss)?.args(["--connect", &format!("{peer}:{PORT}"), "send"]).spawn()?;
    let sent = sender.finish(LIMIT + START).and_then(Ended::success).map_err(|error| {
        lab_error!("{error}\n---- the receiver\n{}\n---- the wire\n{}", receiver.text(), wire.text())
    })?;
    let received = receiver.finish(START)?.success()?;
    ensure!(line(&sent, "octets") == line(&received, "octets"), "sent: {sent}\nreceived: {received}");
    let seconds: f64 =
        line(&sent, "seconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(f64::INFINITY);
    wire.terminate();
    Ok(loss.octets as f64 * 8.0 / seconds / 1e6)
}

fn bridge(middle: &Namespace, loss: Loss, reorder_ppm: u32) -> Result<Process> {
    let device = |number: usize| {
        format!("net_af_packet{number},iface=w{number},blocksz=65536,framesz=16384,framecnt=1024")
    };
    let run = middle.run(programs::own("bad-wire")?).args(["--left", &device(0), "--right", &device(1)]);
    let run = run.args(["--loss", &loss.ppm.to_string(), "--reorder", &reorder_ppm.to_string()]);
    run.args(["--seconds", &(LIMIT + 2 * START).as_secs().to_string()]).spawn()
}

/// One end, without what it has to do.
fn stream(namespace: &Namespace, tcp: Tcp, address: &str, loss: Loss) -> Result<Run> {
    let run = namespace.run(programs::own("tcp-stream")?);
    let run = match tcp {
        Tcp::Ours => {
            let device = "net_af_packet0,iface=v0,blocksz=65536,framesz=16384,framecnt=1024";
            run.args(["--vdev", device, "--ip", address])
        }
        Tcp::Linux => {
            namespace.address("v0", address)?;
            run
        }
    };
    Ok(run.args(["--octets", &loss.octets.to_string(), "--seconds", &LIMIT.as_secs().to_string()]))
}

/// What a program printed behind a word.
fn line(text: &str, word: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(word)).map(|rest| rest.trim().to_owned())
}
