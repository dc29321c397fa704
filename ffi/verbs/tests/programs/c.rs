//! Programs in C of our own (`c/`), for what no program of a package does. They are compiled against
//! rdma-core's headers, and run with the library like any other.

use std::process::Command;
use std::time::Duration;

use crate::pair::Running;
use crate::wire::Wire;

/// The programs, by their files' names.
pub(crate) const ALL: [&str; 12] = [
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
];

/// How long each may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Compiles a program and runs it over a `local` wire. It prints what is wrong, and then fails.
pub(crate) fn run(name: &str) -> Result<(), String> {
    run_over(name, &Wire::new()?).map(drop)
}

/// The same over a wire. Returns what the program prints.
pub(crate) fn run_over(name: &str, wire: &Wire) -> Result<String, String> {
    let program = wire.folder().join(name);
    let source = format!("{}/tests/programs/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compiler.args([&source, "-libverbs", "-lrdmacm", "-lpthread"]);
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if !output.status.success() {
        return Err(format!("{source}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let words = program.to_str().ok_or("a folder for temporary files that is no UTF-8")?;
    let status = Running::start(wire, "server", words)?.wait(LIMIT)?;
    match status.success() {
        true => Ok(wire.output("server")),
        false => Err(format!("{name} ended with {status}: {}", wire.output("server"))),
    }
}
