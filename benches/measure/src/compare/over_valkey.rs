//! The rows of valkey, a key-value store whose programs sleep until an event: its benchmark over RDMA with
//! the library on a local wire, and over TCP on the loopback interface. The server and the benchmark are on
//! one core each. Debian has no valkey with RDMA, so the rows are measured only with `--valkey`.

use std::path::Path;
use std::time::Duration;

use testing::lab::{LabError, Result, Run, Scratch};
use testing::lab_error;

use crate::compare::sample::Pair;
use crate::compare::session::{Session, Tally};

const HERE: &str = "127.0.0.1";
const PORT: &str = "7379";

/// What the server prints when it listens, over TCP and over RDMA.
const READY: &str = "Ready to accept connections";

const START: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(120);

/// A row, and the options of `valkey-benchmark`: bytes of a value, clients, requests that a client sends
/// before it waits, and the number of requests in a run of a second or so.
struct Load {
    id: &'static str,
    bytes: &'static str,
    clients: &'static str,
    pipeline: &'static str,
    requests: &'static str,
    /// Whether each of the two cores has another process, which computes all the time.
    busy: bool,
}

const ROWS: [Load; 6] = [
    Load { id: "valkey_64", bytes: "64", clients: "1", pipeline: "1", requests: "40000", busy: false },
    Load { id: "valkey_50", bytes: "64", clients: "50", pipeline: "1", requests: "100000", busy: false },
    Load { id: "valkey_pipe", bytes: "64", clients: "50", pipeline: "32", requests: "800000", busy: false },
    Load { id: "valkey_100k", bytes: "102400", clients: "1", pipeline: "1", requests: "15000", busy: false },
    Load { id: "valkey_busy_64", bytes: "64", clients: "1", pipeline: "1", requests: "15000", busy: true },
    Load {
        id: "valkey_busy_100k",
        bytes: "102400",
        clients: "1",
        pipeline: "1",
        requests: "5000",
        busy: true,
    },
];

/// The two commands that are measured, as the directions of a row.
const COMMANDS: [&str; 2] = ["SET", "GET"];

pub(crate) fn measure(session: &Session, tally: &mut Tally) {
    let wanted: Vec<&Load> = ROWS.iter().filter(|load| session.options.wants(load.id)).collect();
    let Some(folder) = &session.options.valkey else {
        let error = || Err(lab_error!("--valkey names no folder with valkey's programs"));
        wanted.iter().for_each(|load| tally.add(load.id, COMMANDS[0], error()));
        return;
    };
    for _ in 0..session.pace.pairs {
        for load in &wanted {
            let [ours, theirs] = [true, false].map(|rdma| move || rates(session, folder, load, rdma));
            let both = session.beside(&session.ranged(ours), ours, theirs);
            for (at, command) in COMMANDS.into_iter().enumerate() {
                let of_command = both.clone().map(|both| both.map(|(ours, theirs)| (ours[at], theirs[at])));
                tally.add(load.id, command, of_command.map(Pair::from));
            }
        }
    }
}

/// Returns the rates of SET and of GET in thousands a second.
fn rates(session: &Session, folder: &Path, load: &Load, rdma: bool) -> Result<[f64; 2]> {
    let scratch = Scratch::new()?;
    let computing = |cpu: &usize| Run::new("sh").pinned(*cpu).args(["-c", "while :; do :; done"]).spawn();
    // The busy processes end when this variable is dropped.
    let _others = session.cpus.iter().filter(|_| load.busy).map(computing).collect::<Result<Vec<_>>>()?;
    let end = |name: &str, at: usize| {
        let run = Run::new(folder.join(name)).pinned(session.cpus[at]);
        match rdma {
            true => {
                let library = session.program("libuwarp.so")?;
                Ok(run.env("LD_PRELOAD", library).env("UWARP_DIR", scratch.path()))
            }
            false => Ok::<_, LabError>(run),
        }
    };
    let listen = match rdma {
        true => ["--port", "0", "--rdma-bind", HERE, "--rdma-port", PORT],
        false => ["--port", PORT, "--bind", HERE, "--protected-mode", "no"],
    };
    let server = end("valkey-server", 0)?.args(listen).args(["--save", "", "--appendonly", "no"]);
    let mut server = server.arg("--dir").arg(scratch.path()).spawn()?;
    server.wait_for(READY, START)?;
    let benchmark = end("valkey-benchmark", 1)?.args(["-h", HERE, "-p", PORT, "-t", "set,get", "--csv"]);
    let benchmark = benchmark.args(["-d", load.bytes, "-c", load.clients, "-P", load.pipeline]);
    let benchmark = benchmark.args(["-n", load.requests]).args(rdma.then_some("--rdma"));
    let text = benchmark.check(LIMIT)?;
    server.terminate();
    server.finish(LIMIT)?.success()?;
    let [set, get] = COMMANDS.map(|command| rate(&text, command));
    Ok([set?, get?])
}

/// Returns the rate of a command in thousands a second. A line of the output has the name of the command and
/// the rate a second, both in quotation marks.
fn rate(text: &str, command: &str) -> Result<f64> {
    let start = format!("\"{command}\",\"");
    let rest = text.lines().find_map(|line| line.strip_prefix(&start));
    let figure = rest.and_then(|rest| rest.split('"').next()?.parse::<f64>().ok());
    figure.map(|rate| rate / 1000.0).ok_or_else(|| lab_error!("no rate of {command} in: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::measures::find;

    #[test]
    fn each_row_is_in_the_table() {
        assert!(ROWS.iter().all(|load| find(load.id).is_some_and(|measure| measure.unit == "k/s")));
    }

    #[test]
    fn rates_are_those_of_their_command() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"43010.75\",\"0.020\"\n\
                    \"GET\",\"38000.00\",\"0.022\"\n";
        assert_eq!(rate(text, "SET").unwrap(), 43.010_75);
        assert_eq!(rate(text, "GET").unwrap(), 38.0);
        assert!(rate(text, "INCR").is_err() && rate("\"SET\",\"fast\"\n", "SET").is_err());
    }
}
