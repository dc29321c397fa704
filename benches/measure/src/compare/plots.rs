//! `--plots DIR` draws bandwidth over the message size and over connections, the round trip by percentile,
//! and goodput over cores. Each plot also shows a baseline: a loop that copies and computes CRCs, or the
//! kernel's TCP. If the table has settings for the kernel's TCP, the plots use these settings. The plots of
//! bandwidth also show `iperf3` without options.

use std::path::Path;

use benches::machine::MachineInfo;
use benches::plot::{Axis, Chart, Series};
use serde::Deserialize;
use serde_json::Value;
use testing::lab::Result;
use testing::lab_error;

use crate::compare::kernel::baseline::{Small, Stream};
use crate::compare::kernel::iperf3::{self, StreamLoad};
use crate::compare::kernel::small;
use crate::compare::over_vhost::{SMALL, goodput};
use crate::compare::session::{Row, Session};
use crate::compare::vhost::{self, SendingEnd, Test};

/// Sizes of messages in bytes.
const SIZES: [u32; 9] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

const CONNECTIONS: [u32; 5] = [1, 4, 16, 64, 128];

/// MTU of the plots in bytes.
const MTU: u16 = 9000;

/// The side that sends. Plots show only one direction.
const SENDER: SendingEnd = SendingEnd::VirtioUser;

/// Measures the data of the plots, and draws the plots into `directory`, which is created if it is missing.
/// `rows` were measured before.
///
/// # Errors
/// Fails if something cannot be measured, drawn or written.
pub(crate) fn draw(session: &Session, rows: &[Row], directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| lab_error!("{}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    let streams = streams(session, rows)?;
    let charts = [
        ("size", by_size(session, &streams)?),
        ("latency", by_percentile(session, rows)?),
        ("connections", by_connections(session, &streams)?),
    ];
    for (name, chart) in charts.into_iter().chain(by_cores(rows).map(|chart| ("cores", chart))) {
        let svg = chart.svg().map_err(|error| lab_error!("{error}"))?;
        std::fs::write(directory.join(format!("{name}.svg")), svg).map_err(failed)?;
    }
    Ok(())
}

/// Returns the note on all plots: a description of the machine.
fn notes() -> Vec<String> {
    vec![MachineInfo::here().to_string()]
}

/// Returns the kernel's settings for the row `id` of the table, or `None` if the row was not measured.
fn chosen<'a>(rows: &'a [Row], id: &str) -> Option<&'a str> {
    rows.iter().find(|row| row.measure.id == id)?.also.get("kernel")?.as_str()
}

/// Returns the kernel's streams of the plots: one with the best settings, as in the table, and one with the
/// defaults.
fn streams(session: &Session, rows: &[Row]) -> Result<[Stream; 2]> {
    let best = match chosen(rows, "write_9000").and_then(iperf3::named) {
        Some(settings) => Stream::with(session, MTU, settings)?,
        None => Stream::new(session, MTU)?,
    };
    Ok([best, Stream::with(session, MTU, iperf3::DEFAULT)?])
}

fn by_size(session: &Session, [best, default]: &[Stream; 2]) -> Result<Chart> {
    let seconds = session.pace.seconds;
    let [mut ours, mut at_best, mut by_default] = [const { Vec::new() }; 3];
    for size in SIZES {
        // The depth limits the bytes in flight, since a run of a fixed duration waits at its end for the
        // messages in flight.
        let depth = ((64 << 20) / size).clamp(16, 1024);
        let test = Test::new("write-bw", MTU, &format!("-s {size} -t {depth} -D {seconds}"));
        ours.push((f64::from(size), goodput(session, &test, SENDER)?));
        let load = StreamLoad { connections: 1, bytes: Some(size), seconds };
        at_best.push((f64::from(size), best.goodput(load)?));
        by_default.push((f64::from(size), default.goodput(load)?));
    }
    Ok(Chart {
        title: format!("Bandwidth over message size, MTU {MTU}"),
        notes: notes(),
        x: Axis::bytes("message, bytes"),
        y: Axis::linear("Gb/s"),
        series: vec![
            Series::new("uwarp, RDMA Writes", ours),
            Series::new(format!("kernel TCP at its best: {}", best.name_for_any_length()), at_best),
            Series::new("kernel TCP, plain iperf3", by_default),
        ],
    })
}

fn by_connections(session: &Session, [best, default]: &[Stream; 2]) -> Result<Chart> {
    let seconds = session.pace.seconds;
    let [mut ours, mut at_best, mut by_default] = [const { Vec::new() }; 3];
    for connections in CONNECTIONS {
        let options = format!("-s 64K -t 16 -q {connections} -D {seconds}");
        ours.push((connections.into(), goodput(session, &Test::new("write-bw", MTU, &options), SENDER)?));
        let load = StreamLoad { connections, bytes: None, seconds };
        at_best.push((connections.into(), best.goodput(load)?));
        by_default.push((connections.into(), default.goodput(load)?));
    }
    Ok(Chart {
        title: format!("Bandwidth over connections, MTU {MTU}"),
        notes: notes(),
        x: Axis::count("connections"),
        y: Axis::linear("Gb/s, all together"),
        series: vec![
            Series::new("uwarp, RDMA Writes of 64 KiB", ours),
            Series::new(format!("kernel TCP at its best: {}", best.name()), at_best),
            Series::new("kernel TCP, plain iperf3", by_default),
        ],
    })
}

fn by_percentile(session: &Session, rows: &[Row]) -> Result<Chart> {
    let count = session.pace.round_trips;
    let test = Test::new("write-lat", 1500, &format!("-s {SMALL} -n {count}"));
    let reports = session.undisturbed(|| vhost::run(session, &test, SENDER))?;
    let kernel = match chosen(rows, "pingpong_64").and_then(small::named) {
        Some(settings) => Small::with(session, 1500, settings)?,
        None => Small::for_round_trips(session, SMALL)?,
    };
    Ok(Chart {
        title: format!("Round trip of {SMALL} bytes"),
        notes: notes(),
        x: Axis::quantiles(),
        y: Axis::log10("microseconds, there and back"),
        series: vec![
            Series::new("uwarp, RDMA Writes", whole_round_trips(&reports.client)?),
            Series::new("kernel TCP, busy polling", kernel.round_trips(SMALL, count)?.distribution),
        ],
    })
}

/// Returns the distribution in the JSON of `iwperf`, with latencies doubled, since `iwperf` reports half a
/// round trip for Writes.
fn whole_round_trips(reports: &Value) -> Result<Vec<(f64, f64)>> {
    let halves = Vec::<(f64, f64)>::deserialize(&reports["results"][0]["distribution"])
        .map_err(|error| lab_error!("iwperf's distribution: {error}"))?;
    Ok(halves.into_iter().map(|(quantile, us)| (quantile, 2.0 * us)).collect())
}

/// Returns a chart of the gain by a second core, if the row of this gain was measured.
fn by_cores(rows: &[Row]) -> Option<Chart> {
    /// The share of the loop's gain that is the baseline of the row.
    const SHARE: f64 = 0.9;
    let row = rows.iter().find(|row| row.measure.id == "cores_2")?;
    let gains = |gain: f64| vec![(1.0, 1.0), (2.0, gain)];
    let pair = row.sample().median;
    Some(Chart {
        title: "Goodput over cores, each with an engine and a wire in memory".to_owned(),
        notes: notes(),
        x: Axis::count("cores"),
        y: Axis::linear("times that of one core"),
        series: vec![
            Series::new("uwarp, both ends", gains(pair.ours)),
            Series::reference("a loop that copies and sums", gains(pair.theirs / SHARE)),
        ],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::compare::measures::find;
    use crate::compare::sample::Pair;
    use crate::compare::session::Tally;

    #[test]
    fn half_round_trips_become_whole_ones() {
        let reports = json!({ "results": [{ "distribution": [[0.0, 1.5], [0.5, 2.0]] }] });
        assert_eq!(whole_round_trips(&reports).unwrap(), [(0.0, 3.0), (0.5, 4.0)]);
        assert!(whole_round_trips(&json!({ "results": [{}] })).is_err());
    }

    #[test]
    fn the_kernel_is_drawn_as_it_is_in_the_table() {
        let mut tally = Tally::default();
        tally.add("write_9000", "there", Ok(Pair::new(2.0, 1.0)));
        tally.note("write_9000", "kernel", iperf3::COPYING[6].name());
        tally.add("pingpong_64", "there", Ok(Pair::new(2.0, 1.0)));
        tally.note("pingpong_64", "kernel", small::ROUND_TRIP[1].name());
        let rows = ["write_9000", "pingpong_64"].map(|id| tally.row(find(id).unwrap()).unwrap());
        assert_eq!(chosen(&rows, "write_9000").and_then(iperf3::named), Some(iperf3::COPYING[6]));
        assert_eq!(chosen(&rows, "pingpong_64").and_then(small::named), Some(small::ROUND_TRIP[1]));
        assert_eq!(chosen(&rows, "write_1500"), None);
    }

    #[test]
    fn cores_are_drawn_where_their_row_was_measured() {
        assert!(by_cores(&[]).is_none());
        let mut tally = Tally::default();
        tally.add("cores_2", "memory", Ok(Pair::new(1.9, 1.71)));
        let chart = by_cores(&[tally.row(find("cores_2").unwrap()).unwrap()]).unwrap();
        let at_two: Vec<(f64, f64)> = chart.series.iter().map(|series| series.points[1]).collect();
        assert_eq!(at_two[0], (2.0, 1.9));
        assert!((at_two[1].1 - 1.9).abs() < 1e-9);
        assert!(chart.svg().unwrap().contains("copies and sums"));
    }
}
