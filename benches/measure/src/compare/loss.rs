//! `loss_01`: Writes over a wire of 200 Mb/s with a round trip of 10 ms. The wire loses a thousandth of the
//! frames. A seed chooses the lost frames. The baseline is the TCP of two Linux hosts (`iperf3`) over such a
//! wire with the same seed. Both stacks use CUBIC and no offloads. The latencies of completions under a load
//! are noted with the row.
//!
//! The wire is the program `bad-wire`, between packet sockets on veth pairs. No process is pinned, since
//! there are three processes for two cores.

use std::time::Duration;

use serde_json::Value;
use testing::device::af_packet;
use testing::lab::{Namespace, Process, Result, Run, Scratch, Wire, veth};
use testing::{ensure, lab_error, witness};

use crate::compare::kernel::iperf3;
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};
use crate::compare::vhost::number;

const ID: &str = "loss_01";
/// Number of lost frames per million.
const LOSS_PPM: u32 = 1000;
/// The addresses of the two sides, and the devices between the sides and the wire.
const ADDRESSES: [&str; 2] = ["10.63.0.1", "10.63.0.2"];
const MIDDLE: [&str; 2] = ["w0", "w1"];
const DEV: &str = "v0";
/// Number of bytes for a frame in the rings of a packet socket.
const FRAME: usize = 2048;
const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// With these options, at most half a MiB is in flight. A run of a fixed duration waits at its end for the
/// data in flight, and this wait has to be short.
const BULK: &str = "-s 64K -t 8 -Q 4";

/// A load of 4 KiB messages at 20 Mb/s. The wire can carry this load despite its losses, so a completion
/// waits for retransmissions, but not for a queue.
const LOAD: &str = "-s 4K -t 512 -Q 1 --rate_limit 0.02 --rate_units g";

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    if !session.options.wants(ID) {
        return;
    }
    for seed in 1..=session.pace.pairs as u64 {
        let pair = || {
            let ours = goodput(&iwperf(session, seed, BULK)?)?;
            Ok(Pair::new(ours, linux(session, seed)?))
        };
        let pair = pair();
        let failed = pair.is_err();
        tally.add(ID, "loss", pair);
        if failed {
            return;
        }
    }
    completions(session, tally);
}

/// Measures the latency of completions under a load, without and with markers. The figure is the median of
/// the 99th percentiles.
fn completions(session: &Session, tally: &mut Tally) {
    for (name, markers) in [("completions_p99_us", ""), ("completions_p99_us_markers", " --markers")] {
        let p99 = |seed| {
            let reports = iwperf(session, seed, &format!("{LOAD}{markers}"))?;
            number(&reports, "/results/0/load/latency/p99_us")
        };
        match (1..=session.pace.pairs as u64).map(p99).collect::<Result<Vec<f64>>>() {
            Ok(mut all) => {
                all.sort_by(f64::total_cmp);
                tally.note(ID, name, all[all.len() / 2]);
            }
            Err(error) => tally.fail(ID, &error),
        }
    }
}

/// Returns the goodput in Mb/s that the target confirmed.
fn goodput(reports: &Value) -> Result<f64> {
    ensure!(reports["results"][0]["confirmed_by_target"] == true, "the target did not confirm the result");
    Ok(number(reports, "/results/0/bytes_per_s")? * 8.0 / 1e6)
}

/// Two sides and the wire between them.
struct Lab {
    hosts: [Namespace; 2],
    wire: Process,
    _middle: Namespace,
}

impl Lab {
    fn new(session: &Session, seed: u64) -> Result<Self> {
        let (hosts, middle) = ([Namespace::new()?, Namespace::new()?], Namespace::new()?);
        for (host, dev) in hosts.iter().zip(MIDDLE) {
            veth(Wire { namespace: host, dev: DEV }, Wire { namespace: &middle, dev }, 1500)?;
        }
        let [left, right] = [0, 1].map(|side| af_packet(side, MIDDLE[side], FRAME));
        let wire = middle.run(session.program("bad-wire")?).args(["--left", &left, "--right", &right]);
        let wire = wire.args(["--loss", &LOSS_PPM.to_string(), "--seed", &seed.to_string()]);
        let mut wire = wire.args(["--seconds", &(LIMIT + 2 * START).as_secs().to_string()]).spawn()?;
        wire.wait_for("ready", START)?;
        Ok(Self { hosts, wire, _middle: middle })
    }

    /// Ends the wire, and checks that it lost frames.
    fn finish(mut self) -> Result<()> {
        self.wire.terminate();
        let output = self.wire.finish(START)?.success()?;
        let lost = witness::count(&output, "left", "lost")? + witness::count(&output, "right", "lost")?;
        ensure!(lost > 0, "the wire lost nothing: {output}");
        Ok(())
    }
}

/// Runs `write-bw` and returns the client's JSON.
fn iwperf(session: &Session, seed: u64, options: &str) -> Result<Value> {
    let (lab, scratch) = (Lab::new(session, seed)?, Scratch::new()?);
    let end = |side: usize| -> Result<Run> {
        let device = af_packet(0, DEV, FRAME);
        let address = format!("{}/24", ADDRESSES[side]);
        let run = lab.hosts[side].run(session.program("iwperf")?);
        Ok(match side {
            0 => run.arg("server"),
            _ => run.args(["write-bw", ADDRESSES[0]]),
        }
        .args(["--vdev", &device, "--ip", &address, "--no-huge"]))
    };
    let mut server = end(0)?.spawn()?;
    server.wait_for("listening", START)?;
    let json = scratch.file("client.json");
    let client = end(1)?.args(options.split_whitespace());
    let client = client.args(["-D", &session.pace.lossy_seconds.to_string(), "--json"]).arg(&json).spawn()?;
    let ended = client.finish(LIMIT).and_then(testing::lab::Ended::success);
    ended.map_err(|error| lab_error!("{error}\n---- the server\n{}", server.text()))?;
    server.finish(START)?.success()?;
    lab.finish()?;
    let output = std::fs::read(&json)?;
    serde_json::from_slice(&output).map_err(|error| lab_error!("iwperf's JSON: {error}"))
}

/// Measures the goodput in Mb/s of `iperf3` between two Linux hosts.
fn linux(session: &Session, seed: u64) -> Result<f64> {
    let lab = Lab::new(session, seed)?;
    for (host, address) in lab.hosts.iter().zip(ADDRESSES) {
        host.address(DEV, &format!("{address}/24"))?;
    }
    let mut server = lab.hosts[0].run("iperf3").args(["-s", "-1", "--forceflush"]).spawn()?;
    server.wait_for("Server listening", START)?;
    let client = lab.hosts[1].run("iperf3").args(["-c", ADDRESSES[0], "-J", "-C", "cubic"]);
    let report = client.args(["-t", &session.pace.lossy_seconds.to_string()]).check(LIMIT)?;
    server.finish(START)?.success()?;
    lab.finish()?;
    Ok(iperf3::parse(&report)? * 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::goodput;

    #[test]
    fn only_what_the_target_confirmed_is_goodput() {
        let reports = |confirmed: bool| json!({ "results": [{ "bytes_per_s": 6.25e6, "confirmed_by_target": confirmed }] });
        assert_eq!(goodput(&reports(true)).unwrap(), 50.0);
        assert!(goodput(&reports(false)).is_err());
    }
}
