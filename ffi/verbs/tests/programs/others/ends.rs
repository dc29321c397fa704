//! Programs that exchange bytes, and whose connections the test sees before they end.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::pair::Running;
use crate::wire::Wire;

/// The bytes that the initiator reads, and then writes. `LENGTHS` in `ends.py` has the same sum.
const BYTES: u64 = 1 + 7 + 64 + 1000 + 4096 + 8193 + 65_536 + (1 << 20) + 3_000_001;
/// Maximum time of the transfers, and maximum time in which the scripts end afterwards.
const DONE_WITHIN: Duration = Duration::from_secs(120);
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
const ROLES: [&str; 2] = ["target", "initiator"];

/// Runs a script as target and as initiator, with the words of `command` before and `arguments` behind the
/// role. The scripts have to end with success, and their bytes have to move over the wire.
pub(super) fn exchange(wire: &Wire, script: &str, command: &str, arguments: &str) -> Result<(), String> {
    for (name, text) in [("ends.py", include_str!("ends.py")), ("script.py", script)] {
        write(&wire.folder().join(name), text)?;
    }
    let result = exchange_on(wire, command, arguments);
    result.map_err(|error| {
        let outputs = ROLES.map(|role| format!("--- {role}\n{}", wire.output(role)));
        format!("{error}\n{}", outputs.concat())
    })
}

fn exchange_on(wire: &Wire, command: &str, arguments: &str) -> Result<(), String> {
    let mut running = Vec::new();
    for role in ROLES {
        running.push(Running::start(wire, role, &format!("{command} script.py {role}{arguments}"))?);
    }
    let names = ROLES.map(str::to_owned).into();
    Finished { running, names }.end(wire, |pid, processes| moved_at_least(processes, pid, BYTES))
}

/// Programs that make a file `NAME.done` in the folder of the wire after their last transfer. Then they wait
/// for the file `seen`.
pub(super) struct Finished {
    pub(super) running: Vec<Running>,
    pub(super) names: Vec<String>,
}

impl Finished {
    /// Waits for the files of all programs, and calls `check` for each program with its process ID and with
    /// what `uwarp status` shows. Then all programs have to end with success.
    pub(super) fn end(
        mut self,
        wire: &Wire,
        check: impl Fn(u32, &[Value]) -> Result<(), String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        while !self.names.iter().all(|name| wire.folder().join(format!("{name}.done")).exists()) {
            for (program, name) in self.running.iter_mut().zip(&self.names) {
                if let Some(status) = program.ended()? {
                    return Err(format!("{name} ended with {status}"));
                }
            }
            if begun.elapsed() > DONE_WITHIN {
                return Err("the programs still run".to_owned());
            }
            sleep(PAUSE);
        }
        let processes = wire.processes()?;
        for program in &self.running {
            check(program.pid(), &processes)?;
        }
        write(&wire.folder().join("seen"), "")?;
        for (program, name) in self.running.iter_mut().zip(&self.names) {
            let status = program.wait(ENDS_WITHIN)?;
            if !status.success() {
                return Err(format!("{name} ended with {status}"));
            }
        }
        // A program that has freed its objects is no process of the wire.
        let left = wire.processes()?;
        if left.is_empty() { Ok(()) } else { Err(format!("left on the wire: {left:?}")) }
    }
}

/// Checks that the connections of a process have sent and received at least this number of bytes each.
pub(super) fn moved_at_least(processes: &[Value], pid: u32, bytes: u64) -> Result<(), String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let process = processes.iter().find(|process| process["pid"].as_u64() == Some(pid.into()));
    let engines = process.map_or_else(Vec::new, |process| list(&process["engines"]));
    let connections: Vec<Value> = engines.iter().flat_map(|engine| list(&engine["connections"])).collect();
    for direction in ["tx_bytes", "rx_bytes"] {
        let moved: u64 = connections.iter().filter_map(|connection| connection[direction].as_u64()).sum();
        if moved < bytes {
            return Err(format!("{direction} of process {pid}: {moved} of {bytes}: {processes:?}"));
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
