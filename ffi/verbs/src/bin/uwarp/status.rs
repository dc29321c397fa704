//! `uwarp status`: the state of this user's processes.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use iwarp::status::{ConnectionReport, EngineReport, ProcessReport, Processes, QpReport, processes};
use serde::Serialize;

use crate::output::{self, Reader};

/// Options of `uwarp status`.
#[derive(Args)]
pub(crate) struct Options {
    /// Print JSON, with all counters
    #[arg(long)]
    json: bool,
    /// Print again each second, or each SECONDS, until the command is interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    processes: Vec<ProcessReport>,
    /// The PIDs of processes that did not answer.
    silent: Vec<u32>,
}

/// Prints the status of this user's processes once, or repeatedly with `--watch`.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let folder = uwarp::net::status_folder()?;
    loop {
        let found = processes(&folder).map_err(|error| error.to_string())?;
        let mut text = if options.json { json(found, options.watch.is_some())? } else { table(&found) };
        if options.watch.is_some() && !options.json {
            // On a terminal, the new text replaces the old text.
            text =
                if io::stdout().is_terminal() { format!("\x1b[H\x1b[2J{text}") } else { format!("{text}\n") };
        }
        match (output::print(&text)?, options.watch) {
            (Reader::Reads, Some(pause)) => std::thread::sleep(pause),
            _ => return Ok(()),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("must be from 0.1 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Returns one line of JSON if `watches`, and otherwise indented JSON.
fn json(found: Processes, watches: bool) -> Result<String, String> {
    let document = Document { processes: found.answered, silent: found.silent };
    let text = match watches {
        true => serde_json::to_string(&document),
        false => serde_json::to_string_pretty(&document),
    };
    text.map(|text| text + "\n").map_err(|error| error.to_string())
}

fn table(found: &Processes) -> String {
    let mut text = String::new();
    for process in &found.answered {
        add_process(&mut text, process);
    }
    for pid in &found.silent {
        line(&mut text, format_args!("pid {pid} does not answer"));
    }
    if text.is_empty() {
        text.push_str("no process of this user runs an engine here\n");
    }
    text
}

fn add_process(text: &mut String, process: &ProcessReport) {
    let ProcessReport { pid, memory_regions, .. } = process;
    let queue_pairs = process.queue_pairs.len();
    let (program, bytes) = (printable(&process.program), bytes(process.registered_bytes));
    line(
        text,
        format_args!(
            "pid {pid} {program}  queue pairs {queue_pairs}  memory {bytes} in {memory_regions} regions"
        ),
    );
    for engine in &process.engines {
        add_engine(text, engine);
    }
    let connections = process.engines.iter().flat_map(|engine| &engine.connections);
    let connected: HashSet<u32> = connections.filter_map(|connection| connection.qp_num).collect();
    for qp in process.queue_pairs.iter().filter(|qp| !connected.contains(&qp.qp_num)) {
        add_queue_pair(text, qp);
    }
    for engine in &process.silent_engines {
        line(text, format_args!("  engine {engine} is not polled now"));
    }
}

fn add_engine(text: &mut String, report: &EngineReport) {
    let EngineReport { engine, mtu, .. } = report;
    let (port, addresses) = (printable(&report.port), report.addresses.join(" "));
    let link = if report.link_up { "up" } else { "down" };
    let mut listens = String::new();
    for port in &report.listens {
        listens.push_str(if listens.is_empty() { "  listens at " } else { " " });
        listens.push_str(&port.to_string());
    }
    if !report.groups.is_empty() {
        listens.push_str("  groups ");
        listens.push_str(&report.groups.join(" "));
    }
    let shared = match report.shared_memory_bytes {
        0 => String::new(),
        shared => format!("  shared memory {}", bytes(shared)),
    };
    let lost = match report.counters.get("uwarp_port_tx_lost_total") {
        None | Some(0) => String::new(),
        Some(lost) => format!("  lost on purpose {lost}"),
    };
    line(
        text,
        format_args!("  engine {engine} {port}  {addresses}  mtu {mtu}  link {link}{shared}{lost}{listens}"),
    );
    for connection in &report.connections {
        add_connection(text, connection);
    }
}

fn add_connection(text: &mut String, report: &ConnectionReport) {
    let ConnectionReport { local, remote, state, mss, retransmits, .. } = report;
    let qp = report.qp_num.map_or("-".into(), |number| number.to_string());
    let qp_state = report.qp_state.as_deref().unwrap_or("-");
    line(text, format_args!("    qp {qp} {qp_state}  {local} -> {remote}  {state}"));
    let (rtt, rto, cwnd) = (micros(report.rtt_us), micros(report.rto_us), bytes(report.cwnd.into()));
    let (sent, received, unacknowledged) =
        (bytes(report.tx_bytes), bytes(report.rx_bytes), bytes(report.unacknowledged_bytes));
    line(
        text,
        format_args!(
            "      rtt {rtt}  rto {rto}  cwnd {cwnd}  mss {mss}  sent {sent}  unacknowledged {unacknowledged}  \
             received {received}  retransmits {retransmits}"
        ),
    );
}

/// Adds a queue pair that has no connection, or whose engine has not answered.
fn add_queue_pair(text: &mut String, report: &QpReport) {
    let QpReport { qp_num, qp_type, qp_state, protection_domain, open_sends, open_receives, .. } = report;
    let srq = if report.has_srq { " of a shared queue" } else { "" };
    line(
        text,
        format_args!(
            "  qp {qp_num} {qp_type} {qp_state}  pd {protection_domain}  sends {open_sends}  \
             receives {open_receives}{srq}"
        ),
    );
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a `String` does not fail.
    let _ = writeln!(text, "{arguments}");
}

/// Replaces control characters: the name of a process may contain escape sequences for the terminal.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn micros(micros: u32) -> String {
    match micros {
        0 => "-".into(),
        1..10_000 => format!("{micros} us"),
        _ => format!("{} ms", micros / 1000),
    }
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_unit_that_fits() {
        assert_eq!(
            [0, 1023, 1024, 5 << 20, 3 << 40].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 TiB"]
        );
        assert_eq!([0, 45, 9_999, 200_000].map(micros), ["-", "45 us", "9999 us", "200 ms"]);
    }

    #[test]
    fn each_queue_pair_is_shown_once() {
        let qp = |qp_num: u32, qp_state: &str, has_srq: bool| {
            serde_json::json!({
                "qp_num": qp_num, "qp_type": "RC", "qp_state": qp_state, "protection_domain": 1,
                "has_srq": has_srq, "open_sends": 0, "open_receives": 16,
            })
        };
        let connection = serde_json::json!({
            "qp_num": 4, "qp_state": "RTS", "state": "established", "local": "10.0.0.1:4000",
            "remote": "10.0.0.2:5000", "tcp_state": "Established", "rtt_us": 30, "rto_us": 5000,
            "cwnd": 14600, "ssthresh": null, "mss": 1448, "retransmits": 0, "tx_bytes": 0,
            "unacknowledged_bytes": 0, "rx_bytes": 0, "out_of_order_bytes": 0,
        });
        let engine = serde_json::json!({
            "engine": 0, "port": "v0", "mac": "02:00:00:00:00:01", "mtu": 1500, "link_up": true,
            "addresses": ["10.0.0.1/24"], "listens": [], "connections": [connection], "counters": {},
        });
        let process = serde_json::json!({
            "pid": 7, "program": "it", "completion_queues": 1, "protection_domains": 1,
            "queue_pairs": [qp(4, "RTS", false), qp(5, "IDLE", false), qp(6, "ERROR", true)],
            "memory_regions": 1, "memory_windows": 0, "registered_bytes": 4096, "engines": [engine],
            "silent_engines": [],
        });
        let mut text = String::new();
        add_process(&mut text, &serde_json::from_value(process).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "pid 7 it  queue pairs 3  memory 4.0 KiB in 1 regions");
        assert_eq!(lines[1], "  engine 0 v0  10.0.0.1/24  mtu 1500  link up");
        assert_eq!(lines[2], "    qp 4 RTS  10.0.0.1:4000 -> 10.0.0.2:5000  established");
        assert_eq!(
            lines[4..],
            [
                "  qp 5 RC IDLE  pd 1  sends 0  receives 16",
                "  qp 6 RC ERROR  pd 1  sends 0  receives 16 of a shared queue",
            ]
        );
    }

    #[test]
    fn the_memory_of_a_local_wire_is_shown() {
        let engine = serde_json::json!({
            "engine": 0, "port": "local7", "mac": "02:00:64:40:00:07", "mtu": 9000, "link_up": true,
            "shared_memory_bytes": 266_240, "addresses": ["100.64.0.7/10"], "listens": [4000],
            "groups": ["239.1.2.3"], "connections": [], "counters": {},
        });
        let mut text = String::new();
        add_engine(&mut text, &serde_json::from_value(engine).unwrap());
        let line = "  engine 0 local7  100.64.0.7/10  mtu 9000  link up  shared memory 260.0 KiB  \
                    listens at 4000  groups 239.1.2.3\n";
        assert_eq!(text, line);
    }

    #[test]
    fn frames_that_a_wire_has_lost_on_purpose_are_shown() {
        let line = |lost: u64| {
            let engine = serde_json::json!({
                "engine": 0, "port": "v0", "mac": "02:00:00:00:00:01", "mtu": 1500, "link_up": true,
                "addresses": ["10.0.0.1/24"], "listens": [4000], "connections": [],
                "counters": { "uwarp_port_tx_lost_total": lost },
            });
            let mut text = String::new();
            add_engine(&mut text, &serde_json::from_value(engine).unwrap());
            text
        };
        let usual = "  engine 0 v0  10.0.0.1/24  mtu 1500  link up";
        assert_eq!(line(0), format!("{usual}  listens at 4000\n"));
        assert_eq!(line(12), format!("{usual}  lost on purpose 12  listens at 4000\n"));
    }

    #[test]
    fn a_pause_is_a_time_in_bounds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0", "-1", "x", "inf"].iter().all(|text| seconds(text).is_err()));
    }

    #[test]
    fn a_terminal_obeys_no_name() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a?[2Jb");
    }
}
