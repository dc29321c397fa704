//! Tests of `uwarp status` with connected, stopped and killed programs, with programs in PID namespaces, with
//! `--watch`, and with a program without an engine thread.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::pair::Running;
use crate::wire::Wire;

/// Maximum time that programs may take to connect.
const WITHIN: Duration = Duration::from_secs(20);

type Test = fn() -> Result<(), String>;

pub(crate) const ALL: [(&str, Test); 4] = [
    ("status_has_the_numbers_that_its_reader_sees", in_namespaces),
    ("status_has_both_ends", both_ends),
    ("status_forgets_a_killed_program", killed),
    ("status_without_thread", without_thread),
];

/// A wire whose programs are examined.
struct Stage {
    wire: Wire,
}

impl Stage {
    /// Starts rping's server and its client. Server and client run until they are killed, and the server
    /// accepts more clients.
    fn start(&self) -> Result<[Running; 2], String> {
        let mut server = Running::start(&self.wire, "server", "rping -s -P -a 127.0.0.1 -C 100000000")?;
        server.wait_to_listen(&self.wire)?;
        let client = Running::start(&self.wire, "client", "rping -c -a 127.0.0.1 -C 100000000")?;
        Ok([server, client])
    }

    /// Waits until `is_wanted` returns true for the processes that `uwarp status --json` shows, and returns
    /// these processes.
    fn processes(&self, is_wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>, String> {
        let begun = Instant::now();
        loop {
            let processes = self.wire.processes()?;
            if is_wanted(&processes) {
                return Ok(processes);
            }
            if begun.elapsed() > WITHIN {
                return Err(format!("not after {WITHIN:?}: {processes:#?}"));
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// Returns the first connection of a process.
fn connection(process: &Value) -> &Value {
    &process["engines"][0]["connections"][0]
}

/// Whether there are two processes, and each has an established connection that has received more than
/// 100,000 bytes.
fn are_connected(processes: &[Value]) -> bool {
    let moves = |process: &Value| {
        let connection = connection(process);
        connection["state"] == "established" && connection["rx_bytes"].as_u64() > Some(100_000)
    };
    processes.len() == 2 && processes.iter().all(moves)
}

fn both_ends() -> Result<(), String> {
    let stage = Stage { wire: Wire::new()? };
    let running = stage.start()?;
    let processes = stage.processes(are_connected)?;
    let check = |holds: bool, what: &str| match holds {
        true => Ok(()),
        false => Err(format!("{what}: {processes:#?}")),
    };
    let [a, b] = &processes[..] else { return Err(format!("{processes:?}")) };
    for (process, other) in [(a, b), (b, a)] {
        let (ours, theirs) = (connection(process), connection(other));
        check(process["program"] == "rping", "another program")?;
        check(ours["local"] == theirs["remote"], "the peer is another one")?;
        check(ours["tx_bytes"].as_u64() > Some(100_000), "nothing was sent")?;
        check(ours["qp_state"] == "RTS" && ours["qp_num"].as_u64() > Some(0), "no queue pair")?;
        check(ours["cwnd"].as_u64() > Some(1000) && ours["rtt_us"].as_u64() > Some(0), "no figures of TCP")?;
        check(process["registered_bytes"].as_u64() > Some(0), "no memory")?;
        let local = ours["local"].as_str().unwrap_or_default();
        let address = process["engines"][0]["addresses"][0].as_str().unwrap_or_default();
        check(address.split('/').next() == local.rsplit_once(':').map(|(ip, _)| ip), "another address")?;
    }
    let pids: Vec<u64> = processes.iter().filter_map(|process| process["pid"].as_u64()).collect();
    check(running.iter().all(|program| pids.contains(&program.pid().into())), "other processes")?;
    for entry in fs::read_dir(stage.wire.rendezvous().join(".status")).map_err(|error| error.to_string())? {
        let metadata = entry.and_then(|entry| entry.metadata()).map_err(|error| error.to_string())?;
        check(metadata.permissions().mode() & 0o7777 == 0o600, "others may ask")?;
    }
    // The output without `--json` shows the same values.
    let text = stage.wire.status(&[])?;
    for pid in pids {
        let line = format!("pid {pid} rping  queue pairs 1  memory ");
        check(text.contains(&line), &format!("no '{line}' in {text}"))?;
    }
    let shows = [" -> ", "  established\n", "  link up", "  retransmits ", "  listens at "];
    check(shows.iter().all(|part| text.contains(part)), &text)?;
    // `uwarp ls` does not regard the folder of the status sockets as a wire.
    let launcher = stage.wire.launcher()?.display().to_string();
    let listed = stage.wire.command(0, &[&launcher, "ls"]).output().map_err(|error| error.to_string())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    check(!listed.contains(".status") && listed.matches("rping").count() == 2, &listed)?;
    watched(&stage.wire)
}

/// Runs two programs, each in its own PID namespace, in which the program has a low PID. The output has to
/// show the PIDs of the test's namespace, as `/proc` does. A program that is stopped must not be regarded as
/// dead.
fn in_namespaces() -> Result<(), String> {
    let wire = Wire::new()?;
    let inside = "unshare --user --map-current-user --pid --fork --kill-child";
    let probe = wire.command(0, &[&inside.split(' ').collect::<Vec<_>>()[..], &["true"]].concat()).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: status in namespaces (users cannot make namespaces here)");
        return Ok(());
    }
    let stage = Stage { wire };
    let mut server = Running::start(&stage.wire, "server", &format!("{inside} rping -s -P -a 127.0.0.1"))?;
    server.wait_to_listen(&stage.wire)?;
    let client = format!("{inside} rping -c -a 127.0.0.1 -C 100000000");
    let _client = Running::start(&stage.wire, "client", &client)?;
    let processes = stage.processes(are_connected)?;
    let pids: Vec<u64> = processes.iter().filter_map(|process| process["pid"].as_u64()).collect();
    let is_rping = |pid: &u64| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "rping")
    };
    let [a, b] = pids[..] else { return Err(format!("{pids:?}")) };
    if a == b || !pids.iter().all(is_rping) {
        return Err(format!("{pids:?} are not the numbers of the programs"));
    }
    let stopped = rustix::process::Pid::from_raw(a as i32).ok_or("no number")?;
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP)
        .map_err(|error| error.to_string())?;
    let text = stage.wire.status(&[])?;
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT)
        .map_err(|error| error.to_string())?;
    if !text.contains(&format!("pid {a} does not answer")) {
        return Err(text);
    }
    // The socket of the stopped program still exists.
    stage.processes(|processes| processes.len() == 2).map(drop)
}

/// With `--watch`, `uwarp status` prints lines until its reader closes the pipe. This test closes the pipe
/// when a program has sent more bytes than in an earlier line. A line may lack a program that answers late.
fn watched(wire: &Wire) -> Result<(), String> {
    let launcher = wire.launcher()?.display().to_string();
    let words = ["timeout", "60", &launcher, "status", "--json", "--watch", "0.2"];
    let mut watch =
        wire.command(0, &words).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let lines = BufReader::new(watch.stdout.take().ok_or("no output")?).lines();
    let more_was_sent = has_sent_more(lines.map_while(Result::ok));
    // The pipe is closed now.
    let status = watch.wait().map_err(|error| error.to_string())?;
    match (more_was_sent?, status.success()) {
        (true, true) => Ok(()),
        (more_was_sent, _) => Err(format!("{status}; more was sent: {more_was_sent}")),
    }
}

/// Reads lines until a program has sent more than in the first line that shows the program. Returns whether
/// this happened.
fn has_sent_more(lines: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut at_first = HashMap::new();
    for line in lines {
        let value: Value = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))?;
        let processes = value["processes"].as_array().ok_or_else(|| format!("no processes: {line}"))?;
        for process in processes {
            let (pid, sent) = (process["pid"].as_u64(), connection(process)["tx_bytes"].as_u64());
            if sent > *at_first.entry(pid).or_insert(sent) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Checks that the socket of a killed program is removed, and that the output still shows the other program.
fn killed() -> Result<(), String> {
    let stage = Stage { wire: Wire::new()? };
    let [server, mut client] = stage.start()?;
    stage.processes(are_connected)?;
    let sockets = stage.wire.rendezvous().join(".status");
    let socket = sockets.join(format!("{}-0.status", client.pid()));
    if !socket.exists() {
        return Err(format!("there is no {}", socket.display()));
    }
    client.kill();
    // The list lacks the server if the server answers late.
    stage.processes(|processes| match processes {
        [left] => left["pid"].as_u64() == Some(server.pid().into()),
        _ => false,
    })?;
    match socket.exists() {
        true => Err(format!("{} is of a dead process", socket.display())),
        false => Ok(()),
    }
}

/// Checks that `uwarp status` shows programs whose engines have no thread.
fn without_thread() -> Result<(), String> {
    let stage = Stage { wire: Wire::new()?.with("UWARP_THREAD", "caller") };
    let _running = stage.start()?;
    stage.processes(are_connected).map(drop)
}
