//! Runs a server and its client.

use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::interface::Interfaces;
use crate::wire::Wire;

/// Maximum time that a server may take to listen. A server under valgrind on a busy machine starts slowly.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// Maximum time that a server may take to end after its client. A server on rsockets may notice the end of
/// its client only after five seconds.
const SERVER_ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time that a killed process may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Time between two calls of `uwarp status`.
const NEXT_LOOK: Duration = Duration::from_millis(50);
/// Maximum time that two programs may take to connect and to exchange bytes.
const CONNECTS_WITHIN: Duration = Duration::from_secs(60);
/// The options with which perftest's programs connect by rdma_cm, and wait for events.
const BY_RDMA_CM: &str = " -R";
const WITH_EVENTS: &str = " -e";
/// Maximum number of runs of a pair that fails because of a race in perftest.
const RUNS_OF_RACE: usize = 3;

/// The commands of a server and its client, and the signs that they have succeeded.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) name: String,
    /// The Debian package of the programs.
    pub(crate) package: &'static str,
    pub(crate) server: String,
    pub(crate) client: String,
    /// Maximum time of the client in seconds.
    pub(crate) limit: u64,
    /// A text that must be in the client's output.
    pub(crate) shows: &'static str,
    /// A text that must not be in the client's output. An empty text is not checked.
    pub(crate) lacks: &'static str,
    /// The exit codes that mean success.
    pub(crate) codes: &'static [i32],
    /// True if the server does not exit by itself, and is stopped at the end.
    pub(crate) server_stays: bool,
    /// Prepares files before the programs run, and checks files afterwards.
    pub(crate) files: Option<Files>,
}

/// Functions that are called with the test's folder before and after the programs run.
#[derive(Clone, Copy)]
pub(crate) struct Files {
    pub(crate) before: fn(&Path) -> Result<(), String>,
    pub(crate) after: fn(&Path) -> Result<(), String>,
}

impl Pair {
    /// Returns the packages that are not installed.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let is_there = [&self.server, &self.client].iter().all(|command| {
            // The program may be the argument of a script, or follow the variables of `env`.
            let command = command.trim_start_matches("sh with_rsockets ").trim_start_matches("env ");
            command.split(' ').find(|word| !word.contains('=')).is_some_and(is_installed)
        });
        if is_there { Vec::new() } else { vec![self.package] }
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        self.run_over(&Wire::new()?)
    }

    /// Runs the pair between two interfaces.
    pub(crate) fn run_between_interfaces(&self) -> Result<(), String> {
        self.run_over(&Wire::between(Interfaces::new()?)?)
    }

    /// Runs the pair between two hosts on which programs use the kernels' addresses.
    pub(crate) fn run_between_hosts(&self) -> Result<(), String> {
        self.run_over(&Wire::between(Interfaces::hosts()?)?)
    }

    pub(crate) fn run_over(&self, wire: &Wire) -> Result<(), String> {
        if let Some(files) = &self.files {
            (files.before)(wire.folder())?;
        }
        let mut result = self.run_on(wire);
        for _ in 1..RUNS_OF_RACE {
            match &result {
                Err(error) if self.loses_a_race(wire, error) => result = self.run_on(wire),
                _ => break,
            }
        }
        let with_output = |error: String| {
            let outputs = ["server", "client"].map(|end| format!("--- {end}\n{}", wire.output(end)));
            format!("{error}\n{}", outputs.concat())
        };
        result.map_err(with_output)
    }

    fn run_on(&self, wire: &Wire) -> Result<(), String> {
        let mut server = Running::start(wire, "server", &wire.at_server(&self.server))?;
        server.wait_to_listen(wire)?;
        let mut client = Running::start(wire, "client", &wire.at_server(&self.client))?;
        let code = client.wait(Duration::from_secs(self.limit));
        let code = code.map_err(|error| format!("{error}\n{}", state(wire, &[&server, &client])))?;
        self.check("client", code)?;
        if !wire.output("client").contains(self.shows) {
            return Err(format!("the client does not print '{}'", self.shows));
        }
        if !self.lacks.is_empty() && wire.output("client").contains(self.lacks) {
            return Err(format!("the client prints '{}'", self.lacks));
        }
        if self.server_stays {
            server.kill();
        } else {
            let code = server.wait(SERVER_ENDS_WITHIN)?;
            self.check("server", code)?;
        }
        self.files.map_or(Ok(()), |files| (files.after)(wire.folder()))
    }

    /// Whether perftest may have failed because of one of two races in its programs, which exist with any
    /// iWARP device:
    /// - With `-R`, the server closes its listener after the control connection, and then creates another
    ///   listener. A client that connects in between is refused.
    /// - The client of `ib_send_bw` may send the last message only after the server has written a credit to
    ///   its memory, which generates no completion. If the client has received all completions before the
    ///   credit arrives, then with `-e` the client waits for an event that never comes.
    fn loses_a_race(&self, wire: &Wire, error: &str) -> bool {
        let has = |text| self.client.contains(text);
        let is_refused = has(BY_RDMA_CM) && wire.output("client").contains("RDMA_CM_EVENT_REJECTED");
        let is_without_credit = has("ib_send_bw") && has(WITH_EVENTS) && error.contains("still runs");
        self.package == "perftest" && (is_refused || is_without_credit)
    }

    fn check(&self, end: &str, status: ExitStatus) -> Result<(), String> {
        match status.code() {
            Some(code) if self.codes.contains(&code) => Ok(()),
            _ => Err(format!("the {end} ended with {status}")),
        }
    }
}

/// A running program, which is killed when the value is dropped.
pub(crate) struct Running {
    child: Child,
    name: String,
}

impl Running {
    pub(crate) fn start(wire: &Wire, output: &str, command: &str) -> Result<Self, String> {
        let words: Vec<&str> = command.split(' ').collect();
        Ok(Self { child: wire.start(output, &words)?, name: command.to_owned() })
    }

    /// Waits until the program listens on the wire, or on a socket of the kernel.
    pub(crate) fn wait_to_listen(&mut self, wire: &Wire) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < LISTENS_WITHIN {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("{} ended with {status} before it listened", self.name));
            }
            if listens_on_wire(&wire.files()) || listens_on_socket(self.child.id()) {
                return Ok(());
            }
            if is_to_be_asked(wire, &self.name) && has_engine(self.child.id()) {
                if self
                    .processes(wire)?
                    .iter()
                    .any(|process| offers_datagrams(process) || list(&process["engines"]).any(serves))
                {
                    return Ok(());
                }
                sleep(NEXT_LOOK);
            }
            sleep(PAUSE);
        }
        Err(format!("{} does not listen", self.name))
    }

    /// Waits until the program exits.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            sleep(PAUSE);
        }
        Err(format!("{} still runs after {} s", self.name, limit.as_secs()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's status if the program has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.child.try_wait().map_err(|error| error.to_string())
    }

    /// Waits until `find` finds something in the output of the program, which is in the file `output`.
    pub(crate) fn wait_for_output<T>(
        &mut self,
        wire: &Wire,
        output: &str,
        limit: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        loop {
            if let Some(found) = find(&wire.output(output)) {
                return Ok(found);
            }
            if let Some(status) = self.ended()? {
                return Err(format!("{} ended with {status}", self.name));
            }
            if begun.elapsed() > limit {
                return Err(format!("{} has not printed what it should", self.name));
            }
            sleep(PAUSE);
        }
    }

    /// Sends SIGTERM to the program, and waits until the program ends.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let pid = Pid::from_raw(self.child.id() as i32).ok_or("no process ID")?;
        kill_process(pid, Signal::TERM).map_err(|error| error.to_string())?;
        self.wait(limit)
    }

    /// Waits until the program has an established connection that has moved at least `least_bytes` bytes,
    /// including the bytes of the setup.
    pub(crate) fn wait_to_connect(&mut self, wire: &Wire, least_bytes: u64) -> Result<(), String> {
        let moved = |connection: &Value| {
            let bytes = ["tx_bytes", "rx_bytes"].map(|name| connection[name].as_u64().unwrap_or(0));
            connection["state"] == "established" && bytes.iter().sum::<u64>() >= least_bytes
        };
        let begun = Instant::now();
        while begun.elapsed() < CONNECTS_WITHIN {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("{} ended with {status} before it was connected", self.name));
            }
            if has_engine(self.child.id())
                && self.has_engine_that(wire, |engine| list(&engine["connections"]).any(moved))?
            {
                return Ok(());
            }
            sleep(NEXT_LOOK);
        }
        Err(format!("{} has no connection of {least_bytes} bytes", self.name))
    }

    /// Whether `uwarp status` shows an engine for which `holds` returns true, and which belongs to the
    /// program or to a child of the program.
    fn has_engine_that(&self, wire: &Wire, holds: impl Fn(&Value) -> bool) -> Result<bool, String> {
        Ok(self.processes(wire)?.iter().flat_map(|process| list(&process["engines"])).any(holds))
    }

    /// Returns what `uwarp status` shows of the program and its children.
    fn processes(&self, wire: &Wire) -> Result<Vec<Value>, String> {
        let pid = self.child.id();
        let pids = [descendants(pid), vec![pid]].concat();
        let is_ours = |process: &Value| pids.iter().any(|&pid| process["pid"].as_u64() == Some(pid.into()));
        Ok(wire.processes()?.into_iter().filter(is_ours).collect())
    }

    pub(crate) fn kill(&mut self) {
        // The loop kills children that have left the process group. Errors are ignored: a child may have
        // ended.
        let children = descendants(self.child.id());
        for &child in &children {
            if let Some(pid) = Pid::from_raw(child as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        // The signal kills the program and its other children. Errors are ignored, since all of these
        // processes may have ended.
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
        // A child has the sockets of the program. So the next program can bind to the ports of these sockets
        // only after the child has ended.
        let begun = Instant::now();
        while children.iter().any(|&child| runs(child)) && begun.elapsed() < ENDS_WITHIN {
            sleep(PAUSE);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What `uwarp status` reports, and in which function of the kernel each thread of the programs waits.
/// Programs whose output is a file print only when they end, so the output of a hanging program is empty.
fn state(wire: &Wire, programs: &[&Running]) -> String {
    let mut text = match wire.processes() {
        Ok(processes) => format!("--- status\n{}\n", Value::from(processes)),
        Err(error) => format!("--- status: {error}\n"),
    };
    for program in programs {
        text.push_str(&format!("--- threads of {}\n", program.name));
        for pid in [vec![program.pid()], descendants(program.pid())].concat() {
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for thread in threads.flatten() {
                let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                text.push_str(&format!("{}: {} {}", read("comm").trim(), read("wchan"), read("syscall")));
            }
        }
    }
    text
}

/// Whether any process listens at a name on the wire.
fn listens_on_wire(files: &Path) -> bool {
    ["listen", "listen-udp"].iter().any(|names| {
        let entries = fs::read_dir(files.join(names)).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.metadata().is_ok_and(|file| file.len() > 0))
    })
}

/// Whether the wire shows neither a listener nor a service of the pair's server: `mckey` has none, and on an
/// interface the files of the wire show none.
fn is_to_be_asked(wire: &Wire, command: &str) -> bool {
    wire.has_interfaces() || command.contains("mckey")
}

/// Whether an engine listens, or a queue pair of the process has joined a group.
fn serves(engine: &Value) -> bool {
    ["listens", "groups"].iter().any(|of| list(&engine[*of]).next().is_some())
}

/// Whether the process offers datagram services: the queue pair of its connection manager is open.
fn offers_datagrams(process: &Value) -> bool {
    list(&process["queue_pairs"]).any(|qp| qp["qp_num"] == 1)
}

/// Whether the process has a TCP socket that listens.
fn listens_on_socket(pid: u32) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let inodes: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A is the state LISTEN.
            fields.get(3) == Some(&"0A")
                && fields.get(9).is_some_and(|inode| inodes.iter().any(|other| other == inode))
        })
    })
}

fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [descendants(child), vec![child]].concat()).collect()
}

/// Whether the process has not ended. A zombie counts as ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Returns the entries of a list in the JSON of `uwarp status`.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Whether the process or one of its children has an engine thread.
fn has_engine(pid: u32) -> bool {
    if children(pid).into_iter().any(has_engine) {
        return true;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.starts_with("iwarp-engine"))
    })
}

/// Whether a program is in the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
