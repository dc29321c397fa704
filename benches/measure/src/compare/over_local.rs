//! The rows of unmodified programs on a local wire: perftest's tools with `libuwarp.so`, in two processes on
//! two cores. The rows are compared with the kernel's TCP over loopback, with `iwperf` on a local wire, with
//! a pipe between the two cores, and with UCX over shared memory. The comparison with `iwperf` shows the cost
//! of the functions of libibverbs and librdmacm. The comparison with the pipe shows the cost of everything
//! but two copies.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use testing::lab::{Process, Result, Run, Scratch};
use testing::{ensure, lab_error};

use crate::compare::kernel::iperf3;
use crate::compare::kernel::program::{READY, Received, RoundTrips};
use crate::compare::last_line::last_line;
use crate::compare::limits::pipe;
use crate::compare::over_ucx::{self, UcpTest};
use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};
use crate::compare::vhost::number;

/// Numbers of bytes of large messages and of a small message.
const MEBIBYTE: &str = "1048576";
const LARGE: &str = "65536";
const SMALL: &str = "64";
/// Number of bytes of a small message.
const MESSAGE: f64 = 64.0;

/// The address of the server for the unmodified programs and for the kernel.
const HERE: &str = "127.0.0.1";

/// The addresses of `iwperf` on the wire.
const WIRE: [&str; 2] = ["100.64.0.1", "100.64.0.2"];

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(60);

/// A tool of perftest that measures bandwidth, the number of bytes of its messages, and the rows with the
/// figure of this tool.
struct Bandwidth {
    tool: &'static str,
    bytes: &'static str,
    rows: &'static [(&'static str, Baseline)],
}

/// Measures the baseline of a row in the unit of the row.
type Baseline = fn(&Session) -> Result<f64>;

const BANDWIDTHS: [Bandwidth; 6] = [
    Bandwidth {
        tool: "ib_write_bw",
        bytes: LARGE,
        rows: &[
            ("shim_write", kernel_stream),
            ("shim_write_cost", iwperf_bandwidth),
            ("local_write_64k", pipe),
        ],
    },
    Bandwidth { tool: "ib_write_bw", bytes: MEBIBYTE, rows: &[("local_write_1m", pipe)] },
    Bandwidth { tool: "ib_send_bw", bytes: LARGE, rows: &[("local_send_64k", pipe)] },
    Bandwidth { tool: "ib_send_bw", bytes: MEBIBYTE, rows: &[("local_send_1m", pipe)] },
    Bandwidth { tool: "ib_read_bw", bytes: LARGE, rows: &[("local_read_64k", pipe)] },
    Bandwidth { tool: "ib_read_bw", bytes: MEBIBYTE, rows: &[("local_read_1m", pipe)] },
];

/// The rows of the rate of small Sends, and their baselines in millions of messages per second.
const MESSAGES: [(&str, Baseline); 2] = [
    ("local_rate_64", kernel_messages),
    ("ucx_shm_rate_64", |session| over_ucx::in_shared_memory(session, UcpTest::Messages)),
];

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    let wants = |id| session.options.wants(id);
    for _ in 0..session.pace.pairs {
        for Bandwidth { tool, bytes, rows } in &BANDWIDTHS {
            let wanted: Vec<_> = rows.iter().filter(|(id, _)| wants(id)).collect();
            if wanted.is_empty() {
                continue;
            }
            let ours = || bandwidth(session, tool, bytes);
            let first = session.ranged(ours);
            for (id, theirs) in wanted {
                tally.add(id, "both", session.beside(&first, ours, || theirs(session)).map(Pair::from));
            }
        }
        if MESSAGES.iter().any(|(id, _)| wants(id)) {
            let ours = || messages(session);
            let first = session.ranged(ours);
            for (id, theirs) in MESSAGES.iter().filter(|(id, _)| wants(id)) {
                tally.add(id, "both", session.beside(&first, ours, || theirs(session)).map(Pair::from));
            }
        }
        let of_half = ["shim_send_64", "shim_send_cost", "shim_ud_64", "ucx_shm_64"];
        if of_half.into_iter().any(wants) {
            let half = || latency(session, "ib_send_lat", &[]);
            let first = session.ranged(half);
            if wants("shim_ud_64") {
                let both = session.beside(&first, half, || latency(session, "ib_send_lat", &["-c", "UD"]));
                tally.add("shim_ud_64", "both", both.map(|both| both.map(|(rc, ud)| (ud, rc)).into()));
            }
            if wants("shim_send_64") {
                let both = session.beside(&first, half, || kernel_round_trip(session));
                let whole = both.map(|both| both.map(|(half, theirs)| (2.0 * half, theirs)));
                tally.add("shim_send_64", "both", whole.map(Pair::from));
            }
            if wants("ucx_shm_64") {
                let theirs = || over_ucx::in_shared_memory(session, UcpTest::Tag);
                tally.add("ucx_shm_64", "both", session.beside(&first, half, theirs).map(Pair::from));
            }
            if wants("shim_send_cost") {
                let both = session.beside(&first, half, || iwperf_latency(session));
                tally.add("shim_send_cost", "both", both.map(Pair::from));
            }
        }
        if wants("shim_read_64") {
            // perftest reports the whole round trip of a Read, but half the round trip of a Write or Send.
            let whole = || latency(session, "ib_read_lat", &[]);
            tally.add("shim_read_64", "both", session.pair(whole, || kernel_round_trip(session)));
        }
    }
    if wants("shim_send_64") {
        note_write_latency(session, tally);
    }
}

/// Measures `ib_write_lat`, which spins on memory without calling the library. So the library's threads have
/// to share the two cores with the spinning programs. The test has no baseline, and its result is printed
/// beside the row of Sends.
fn note_write_latency(session: &Session, tally: &mut Tally) {
    match perftest(session, "ib_write_lat", &["-s", SMALL, "-n", "1000"]).and_then(|text| figure(&text, 4)) {
        Ok(half) => tally.note("shim_send_64", "ib_write_lat_us", 2.0 * half),
        Err(error) => tally.note("shim_send_64", "ib_write_lat_error", error.to_string()),
    }
}

// ---- unmodified programs ----

/// Measures the bandwidth in Gb/s that a tool reports.
fn bandwidth(session: &Session, tool: &str, bytes: &str) -> Result<f64> {
    let seconds = session.pace.seconds.to_string();
    let text = perftest(session, tool, &["-s", bytes, "-D", &seconds, "--report_gbits"])?;
    figure(&text, 3)
}

/// Measures the rate of small Sends that `ib_send_bw` reports, in millions per second.
fn messages(session: &Session) -> Result<f64> {
    let seconds = session.pace.seconds.to_string();
    figure(&perftest(session, "ib_send_bw", &["-s", SMALL, "-D", &seconds])?, 4)
}

/// Measures the typical latency in us that a tool reports. Context switches do not indicate a disturbance
/// here, since the library's thread checks repeatedly whether the program still polls.
fn latency(session: &Session, tool: &str, options: &[&str]) -> Result<f64> {
    let count = session.pace.round_trips.to_string();
    let text = perftest(session, tool, &[&["-s", SMALL, "-n", &count], options].concat())?;
    figure(&text, 4)
}

/// Runs a server and a client of `tool` with the library. Returns the output of the client.
pub(crate) fn perftest(session: &Session, tool: &str, options: &[&str]) -> Result<String> {
    let scratch = Scratch::new()?;
    let library = session.program("libuwarp.so")?;
    let end = |cpu: usize| {
        let run = Run::new(tool).args(["-R", "-F"]).args(options);
        run.env("LD_PRELOAD", &library).env("UWARP_DIR", scratch.path()).pinned(cpu)
    };
    let [server, client] = session.cpus;
    let mut server = end(server).spawn()?;
    wait_to_listen(&mut server, scratch.path())?;
    let text = end(client).arg(HERE).spawn()?.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    Ok(text)
}

/// Waits until a program listens on the wire in `folder`: the wire has a name for each program that listens.
fn wait_to_listen(server: &mut Process, folder: &Path) -> Result<()> {
    let names = folder.join("default/listen");
    let started = Instant::now();
    while started.elapsed() < START {
        let is_there = std::fs::read_dir(&names).is_ok_and(|mut names| names.next().is_some());
        if is_there {
            return Ok(());
        }
        if !server.is_running()? {
            return Err(lab_error!("the server has ended: {}", server.text()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(lab_error!("the server does not listen: {}", server.text()))
}

/// Returns the value of a column in the last line of numbers in perftest's output.
fn figure(text: &str, column: usize) -> Result<f64> {
    let numbers =
        |line: &str| -> Option<Vec<f64>> { line.split_whitespace().map(|word| word.parse().ok()).collect() };
    let row = text.lines().rev().filter_map(numbers).find(|numbers| numbers.len() > column);
    row.map(|numbers| numbers[column]).ok_or_else(|| lab_error!("no figures of perftest in: {text}"))
}

// ---- a pipe between the two cores ----

/// Measures the rate in Gb/s at which one core copies bytes into memory, and the other core copies them out.
fn pipe(session: &Session) -> Result<f64> {
    pipe::gbps(session, pipe::LARGE)
}

// ---- iwperf on the same wire ----

fn iwperf_bandwidth(session: &Session) -> Result<f64> {
    let seconds = session.pace.seconds.to_string();
    let report = iwperf(session, &["write-bw", WIRE[0], "-s", LARGE, "-D", &seconds])?;
    Ok(number(&report, "/results/0/bytes_per_s")? * 8.0 / 1e9)
}

fn iwperf_latency(session: &Session) -> Result<f64> {
    let count = session.pace.round_trips.to_string();
    let report =
        session.undisturbed(|| iwperf(session, &["send-lat", WIRE[0], "-s", SMALL, "-n", &count]))?;
    number(&report, "/results/0/latency/typical_us")
}

/// Runs `iwperf` without CRCs, as the library runs on a local wire. Returns the client's JSON.
fn iwperf(session: &Session, test: &[&str]) -> Result<Value> {
    let scratch = Scratch::new()?;
    let program = session.program("iwperf")?;
    let end = |words: &[&str], at: usize| {
        let run = Run::new(&program).args(words).args(["--wire", "default", "--no-crc", "--ip"]);
        let address = format!("{}/16", WIRE[at]);
        run.arg(address).env("UWARP_DIR", scratch.path()).pinned(session.cpus[at])
    };
    let mut server = end(&["server"], 0).spawn()?;
    server.wait_for("listening on port", START)?;
    let json = scratch.file("client.json");
    end(test, 1).arg("--json").arg(&json).spawn()?.finish(LIMIT)?.success()?;
    server.finish(LIMIT)?.success()?;
    let bytes = std::fs::read(json)?;
    serde_json::from_slice(&bytes).map_err(|error| lab_error!("iwperf's report: {error}"))
}

// ---- the kernel's TCP over loopback ----

/// Measures the goodput of plain `iperf3` in Gb/s.
fn kernel_stream(session: &Session) -> Result<f64> {
    let seconds = session.pace.seconds.to_string();
    let [at_server, at_client] = session.cpus;
    let server = Run::new("iperf3").args(["-s", "-1", "--forceflush", "-B", HERE]).pinned(at_server);
    let mut server = server.spawn()?;
    server.wait_for("Server listening", START)?;
    let client = Run::new("iperf3").args(["-c", HERE, "-J", "-t", &seconds]).pinned(at_client);
    let report = client.spawn()?.finish(LIMIT)?.success()?;
    server.finish(START)?.success()?;
    iperf3::parse(&report)
}

/// Measures the median round trip in us of 64 bytes between sockets that spin.
fn kernel_round_trip(session: &Session) -> Result<f64> {
    let [address, count] = [format!("{HERE}:7401"), session.pace.round_trips.to_string()];
    session.undisturbed(|| {
        let end =
            |what| Session::part("kernel-tcp").map(|run| run.args([what, address.as_str(), "--size", SMALL]));
        round_trip(session.cpus, end("pong")?, end("ping")?.args(["--count", &count]))
    })
}

/// Measures the rate of messages in millions per second that a receiver counts. The sender hands each message
/// to the kernel by itself, and the receiver spins.
fn kernel_messages(session: &Session) -> Result<f64> {
    let [address, seconds] = [format!("{HERE}:7402"), session.pace.seconds.to_string()];
    let [at_sink, at_source] = session.cpus;
    session.undisturbed(|| {
        let end = |what| Session::part("kernel-tcp").map(|run| run.args([what, address.as_str()]));
        let mut sink = end("sink")?.pinned(at_sink).spawn()?;
        sink.wait_for(READY, START)?;
        let source = end("source")?.args(["--size", SMALL, "--seconds", &seconds]).pinned(at_source);
        source.spawn()?.finish(LIMIT)?.success()?;
        let received: Received = last_line(&sink.finish(START)?.success()?)?;
        ensure!(received.seconds > 0.0, "nothing came");
        Ok(received.bytes as f64 / MESSAGE / received.seconds / 1e6)
    })
}

/// Returns the median in us that `ping` reports while `pong` answers.
pub(crate) fn round_trip([at_pong, at_ping]: [usize; 2], pong: Run, ping: Run) -> Result<f64> {
    let mut server = pong.pinned(at_pong).spawn()?;
    server.wait_for(READY, START)?;
    let text = ping.pinned(at_ping).spawn()?.finish(LIMIT)?.success()?;
    server.finish(START)?.success()?;
    Ok(last_line::<RoundTrips>(&text)?.median_us)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::measures::{MEASURES, Measure, find};

    #[test]
    fn each_row_of_bandwidth_is_in_the_table() {
        let ids: Vec<&str> = BANDWIDTHS.iter().flat_map(|tool| tool.rows.iter().map(|(id, _)| *id)).collect();
        assert!(ids.iter().all(|id| find(id).is_some_and(|measure| measure.unit == "Gb/s")), "{ids:?}");
        assert!(MESSAGES.iter().all(|(id, _)| find(id).is_some_and(|measure| measure.unit == "M/s")));
        let named = |measure: &&Measure| measure.id.starts_with("local_") && measure.unit == "Gb/s";
        assert!(MEASURES.iter().filter(named).all(|measure| ids.contains(&measure.id)), "{ids:?}");
    }

    #[test]
    fn the_last_row_of_perftest_counts() {
        let text = " #bytes #iterations\n 2 1000 1.0 2.0 3.0\n 64      20000          1.10           3434.50 \
                    1.38     \t       9.63        \t123.75 \t\t9.58    \t\t2158.59\n-----\n";
        assert_eq!(figure(text, 4).unwrap(), 1.38);
        assert_eq!(figure(text, 3).unwrap(), 3434.5);
        assert!(figure(text, 9).is_err());
        assert!(figure("Couldn't connect\n", 3).is_err());
    }
}
