//! Our own C programs (`c/`), which test behaviour that no packaged program tests. The programs are compiled
//! with rdma-core's headers, and run with the library like any other program.

use std::process::Command;
use std::time::Duration;

use crate::pair::Running;
use crate::wire::Wire;

/// The programs, by the names of their files.
pub(crate) const ALL: [&str; 60] = [
    "one_process",
    "destroyed",
    "exported",
    "forks",
    "own_handler",
    "handles",
    "options",
    "windows",
    "two_domains",
    "not_ready",
    "peer_away",
    "statuses",
    "come_and_go",
    "channels",
    "sleepers",
    "waiters",
    "uncounted",
    "migrated",
    "depths",
    "sections",
    "read_elements",
    "registering",
    "posts",
    "read_depths",
    "drained",
    "newer",
    "states",
    "messages",
    "accepted",
    "binds",
    "killed_peer",
    "pending",
    "keys",
    "in_use",
    "cm_calls",
    "steps",
    "answers",
    "rejected",
    "short_memory",
    "requests",
    "vectors",
    "gids",
    "rights",
    "paging",
    "timestamps",
    "timewait",
    "orderly",
    "memory_calls",
    "long_inline",
    "many_listeners",
    "ud",
    "uc",
    "services",
    "groups",
    "dummies",
    "exit_in_handler",
    "cancelled",
    "packed",
    "exit_with_waiting",
    "drain_ends",
];

/// Maximum time of each program. Some programs wait several times until a connection to a silent peer ends.
const LIMIT: Duration = Duration::from_secs(180);

/// Compiles a program and runs it over a `local` wire. If a check fails, the program prints the check and
/// exits with an error.
pub(crate) fn run(name: &str) -> Result<(), String> {
    run_over(name, &Wire::new()?).map(drop)
}

/// Checks that `rdma_reject` sends the answer before it returns, even if no thread polls the engine.
pub(crate) fn rejects_without_thread() -> Result<(), String> {
    run_over("rejected", &Wire::new()?.with("UWARP_THREAD", "caller")).map(drop)
}

/// Runs the test of connections without queue pairs, with a device that reports itself as an InfiniBand
/// device.
pub(crate) fn dummies_of_ib() -> Result<(), String> {
    run_over("dummies", &Wire::new()?.with("UWARP_PRETEND", "ib")).map(drop)
}

/// Compiles a program, runs it over the given wire, and returns its output.
pub(crate) fn run_over(name: &str, wire: &Wire) -> Result<String, String> {
    let program = compile(wire, name)?;
    wait_for("server", Running::start(wire, "server", &program)?, wire)
        .map_err(|error| format!("{name}: {error}"))?;
    Ok(wire.output("server"))
}

/// Compiles a program with rdma-core's libraries, and returns its path.
pub(crate) fn compile(wire: &Wire, name: &str) -> Result<String, String> {
    compile_with(wire, name, &["-libverbs", "-lrdmacm", "-lpthread"])
}

/// Compiles a program with these libraries, and returns its path.
pub(crate) fn compile_with(wire: &Wire, name: &str, libraries: &[&str]) -> Result<String, String> {
    let program = wire.folder().join(name);
    let source = format!("{}/tests/programs/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.arg(&source).args(libraries);
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        return Err(format!("{source}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let path = program.to_str().ok_or("a folder for temporary files that is no UTF-8")?;
    Ok(path.to_owned())
}

/// Waits until a program ends. The program has to succeed, and its output is in the file `output`.
pub(crate) fn wait_for(output: &str, mut program: Running, wire: &Wire) -> Result<(), String> {
    let status = program.wait(LIMIT)?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("it ended with {status}: {}", wire.output(output))),
    }
}
