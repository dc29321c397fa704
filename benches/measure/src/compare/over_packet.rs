//! The rows of packet sockets: two `iwperf` processes on the two interfaces of a veth pair, each of which the
//! process shares with the kernel. The baselines use the same interfaces: `iperf3` and small messages over
//! the kernel's TCP, and UCX's transport `tcp`. Our frames have CRCs. No run is repeated because its programs
//! lost their CPU: the kernel's work for packet sockets runs on the same CPU. All interfaces have their usual
//! offloads.

use std::time::Duration;

use serde_json::Value;
use testing::ensure;
use testing::lab::{Result, Run, Scratch};
use testing::lab_error;

use crate::compare::distance::Ranged;
use crate::compare::kernel::iperf3::{self, StreamLoad};
use crate::compare::kernel::program::RoundTrips;
use crate::compare::kernel::shape::DEV;
use crate::compare::kernel::{KernelHosts, small};
use crate::compare::over_ucx::{self, UcpTest};
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};
use crate::compare::vhost::number;

/// Our addresses on the interfaces, which the kernel does not have.
const OURS: [&str; 2] = ["10.91.0.11", "10.91.0.12"];

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// Number of bytes of a small message.
const SMALL: u32 = 64;

/// A row of large Writes: its MTU and its baseline.
struct Bulk {
    id: &'static str,
    mtu: u16,
    theirs: fn(&Session, &KernelHosts) -> Result<f64>,
}

const BULK: [Bulk; 4] = [
    Bulk { id: "packet_1500", mtu: 1500, theirs: plain_iperf3 },
    Bulk { id: "packet_9000", mtu: 9000, theirs: plain_iperf3 },
    Bulk { id: "packet_ucx_1500", mtu: 1500, theirs: ucx_put },
    Bulk { id: "packet_ucx_9000", mtu: 9000, theirs: ucx_put },
];

/// A row of the round trips of one run: the name of the row, its figure in the JSON of `iwperf`, and the
/// baseline's figure. `iwperf` reports half a round trip, so our figure is doubled.
type Percentile = (&'static str, &'static str, fn(&RoundTrips) -> f64);

const PERCENTILES: [Percentile; 2] =
    [("packet_64", "typical_us", |trips| trips.median_us), ("packet_p999", "p999_us", |trips| trips.p999_us)];

/// The row that compares the median of our Sends with UCX's tags.
const BESIDE_UCX: &str = "packet_ucx_64";

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    for mtu in [1500, 9000] {
        bulk(session, tally, mtu);
    }
    round_trips(session, tally);
}

fn bulk(session: &Session, tally: &mut Tally, mtu: u16) {
    let of_mtu = BULK.iter().filter(|row| row.mtu == mtu && session.options.wants(row.id));
    let wanted: Vec<&Bulk> = of_mtu.collect();
    if wanted.is_empty() {
        return;
    }
    let hosts = match checked(session, mtu) {
        Ok((hosts, messages)) => {
            wanted.iter().for_each(|row| tally.note(row.id, "messages_validated", messages));
            hosts
        }
        Err(error) => return wanted.iter().for_each(|row| tally.fail(row.id, &error)),
    };
    for _ in 0..session.pace.pairs {
        let ours = || goodput(session, &hosts);
        let first = session.ranged(ours);
        for row in &wanted {
            let both = session.beside(&first, ours, || (row.theirs)(session, &hosts));
            tally.add(row.id, "both", both.map(Pair::from));
        }
    }
}

/// Makes two hosts. Runs Writes between them whose bytes the target checks, and returns their number.
fn checked(session: &Session, mtu: u16) -> Result<(KernelHosts, u64)> {
    let hosts = KernelHosts::new(session, mtu)?;
    let report = iwperf(session, &hosts, &["write-bw", "-s", "64K", "-n", "500", "--validate"])?;
    let messages = report.pointer("/validation/messages_checked_by_peer").and_then(Value::as_u64);
    let messages = messages.unwrap_or(0);
    ensure!(messages > 0, "no message was checked");
    Ok((hosts, messages))
}

/// Measures the rate of Writes of 64 KiB in Gb/s that the target has confirmed.
fn goodput(session: &Session, hosts: &KernelHosts) -> Result<f64> {
    let seconds = session.pace.seconds.to_string();
    let test = ["write-bw", "-s", "64K", "-D", &seconds];
    let report = iwperf(session, hosts, &test)?;
    ensure!(report["results"][0]["confirmed_by_target"] == true, "the target did not confirm the result");
    Ok(number(&report, "/results/0/bytes_per_s")? * 8.0 / 1e9)
}

fn plain_iperf3(session: &Session, hosts: &KernelHosts) -> Result<f64> {
    let load = StreamLoad { connections: 1, bytes: None, seconds: session.pace.seconds };
    iperf3::streams(hosts, iperf3::DEFAULT, load)
}

/// Measures UCX's puts of 64 KiB over the kernel's TCP in Gb/s.
fn ucx_put(session: &Session, hosts: &KernelHosts) -> Result<f64> {
    over_ucx::between(session, hosts, UcpTest::Put).map(|gigabytes| 8.0 * gigabytes)
}

fn round_trips(session: &Session, tally: &mut Tally) {
    let wants = |id| session.options.wants(id);
    let of_kernel: Vec<&Percentile> = PERCENTILES.iter().filter(|(id, ..)| wants(id)).collect();
    if of_kernel.is_empty() && !wants(BESIDE_UCX) {
        return;
    }
    let hosts = match KernelHosts::new(session, 1500) {
        Ok(hosts) => hosts,
        Err(error) => {
            let ids = of_kernel.iter().map(|(id, ..)| *id).chain(wants(BESIDE_UCX).then_some(BESIDE_UCX));
            return ids.for_each(|id| tally.fail(id, &error));
        }
    };
    let count = session.pace.round_trips;
    let (small, messages) = (SMALL.to_string(), count.to_string());
    let test = ["send-lat", "-s", &small, "-n", &messages];
    for _ in 0..session.pace.pairs {
        let ours = || iwperf(session, &hosts, &test);
        let first = session.ranged(ours);
        if !of_kernel.is_empty() {
            let theirs = || small::round_trips(&hosts, SMALL, count);
            let both = session.beside(&first, ours, theirs);
            for row in &of_kernel {
                tally.add(row.0, "both", of_both(row, &both));
            }
        }
        if wants(BESIDE_UCX) {
            let both = session.beside(&first, ours, || over_ucx::between(session, &hosts, UcpTest::Tag));
            let pair = both.and_then(|both| {
                let Ranged { result: (report, theirs), distances } = both;
                let result = (number(&report, "/results/0/latency/typical_us")?, theirs);
                Ok(Ranged { result, distances }.into())
            });
            tally.add(BESIDE_UCX, "both", pair);
        }
    }
}

/// Returns a figure of our run and of the kernel's run. Each figure is a whole round trip in microseconds.
fn of_both(row: &Percentile, both: &Result<Ranged<(Value, RoundTrips)>>) -> Result<Pair> {
    let (_, ours, theirs) = row;
    let Ranged { result: (report, trips), distances } = both.as_ref().map_err(Clone::clone)?;
    let half = number(report, &format!("/results/0/latency/{ours}"))?;
    Ok(Ranged { result: (2.0 * half, theirs(trips)), distances: *distances }.into())
}

/// Runs a server of `iwperf` at the first host, and `test` at the second host. Returns the client's JSON.
pub(crate) fn iwperf(session: &Session, hosts: &KernelHosts, test: &[&str]) -> Result<Value> {
    let scratch = Scratch::new()?;
    let program = session.program("iwperf")?;
    let end = |at: usize, words: &[&str]| {
        let run = Run::new(&program).args(words).args(["--packet", DEV, "--ip"]);
        run.arg(format!("{}/24", OURS[at]))
    };
    let mut server = hosts.spawn(0, end(0, &["server"]))?;
    server.wait_for("listening on port", START)?;
    let (name, options) = test.split_first().ok_or_else(|| lab_error!("no test"))?;
    let json = scratch.file("client.json");
    let client = end(1, &[name, OURS[0]]).args(options).arg("--json").arg(&json);
    hosts.spawn(1, client)?.finish(LIMIT)?.success()?;
    server.finish(START)?.success()?;
    serde_json::from_slice(&std::fs::read(json)?).map_err(|error| lab_error!("iwperf's report: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testing::lab::LabError;

    use super::*;
    use crate::compare::distance::Distances;
    use crate::compare::measures::find;

    #[test]
    fn each_row_is_in_the_table() {
        assert!(BULK.iter().all(|row| find(row.id).is_some_and(|measure| measure.unit == "Gb/s")));
        let small = PERCENTILES.iter().map(|(id, ..)| *id).chain([BESIDE_UCX]);
        assert!(small.into_iter().all(|id| find(id).is_some_and(|measure| measure.unit == "us")));
    }

    #[test]
    fn a_percentile_of_halves_is_that_of_whole_round_trips() {
        let report = json!({ "results": [{ "latency": { "typical_us": 2.0, "p999_us": 5.0 } }] });
        let trips =
            RoundTrips { count: 1, median_us: 8.0, p99_us: 9.0, p999_us: 20.0, distribution: Vec::new() };
        let distances = Some(Distances::of(80.0));
        let both = Ok(Ranged { result: (report, trips), distances });
        let pairs = PERCENTILES.each_ref().map(|row| of_both(row, &both).unwrap());
        assert_eq!(pairs.map(|pair| (pair.ours, pair.theirs)), [(4.0, 8.0), (10.0, 20.0)]);
        assert!(pairs.iter().all(|pair| pair.distances == distances));
        assert!(of_both(&PERCENTILES[0], &Err(LabError::new("no"))).is_err());
    }
}
