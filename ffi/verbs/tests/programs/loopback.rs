//! A network namespace for the programs on a `local` wire. Other programs do not use the loopback interface
//! of this namespace.
//!
//! perftest, `ibv_rc_pingpong` and other tools exchange their parameters over the kernel's TCP. The port of a
//! tool is fixed (often 18515), so a program that an interrupted test run left behind would hold the port.
//! Later tests would then fail without naming the cause.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use crate::wire::is_root;

/// The process that keeps the namespace. The process ends when its standard input is closed, so it ends
/// whenever the test program ends. `None` if the namespace cannot be made: in this case the programs use the
/// machine's loopback interface.
static KEEPER: LazyLock<Option<Child>> = LazyLock::new(|| {
    if !is_root() {
        return None;
    }
    // libfabric ignores hosts that have only loopback addresses.
    let script = "ip link set lo up && ip link add host0 type veth peer name host1 && ip link set host1 up && \
                  ip addr add 10.77.0.9/24 dev host0 && ip link set host0 up && echo up && exec cat";
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut keeper = command.spawn().ok()?;
    let mut line = String::new();
    BufReader::new(keeper.stdout.as_mut()?.by_ref()).read_line(&mut line).ok()?;
    (line == "up\n").then_some(keeper)
});

/// Returns the command prefix that runs a program in the namespace. The prefix is empty if there is no
/// namespace.
pub(crate) fn words() -> Vec<String> {
    let Some(keeper) = KEEPER.as_ref() else { return Vec::new() };
    let namespace = Path::new("/proc").join(keeper.id().to_string()).join("ns/net");
    vec!["nsenter".to_owned(), format!("--net={}", namespace.display())]
}

/// Tests that a program of an earlier run cannot hold a port that a program of this run needs.
pub(crate) fn a_port_outside_is_free_inside() -> Result<(), String> {
    const PORT: u16 = 18_515;
    // If binding fails, another program already holds the port, so the test needs no listener of its own.
    let _taken = std::net::TcpListener::bind(("127.0.0.1", PORT));
    let pair = crate::pairs::all().into_iter().find(|pair| pair.name == "rc_pingpong");
    pair.ok_or("no pair rc_pingpong")?.run()
}

/// Whether the namespace can be made.
pub(crate) fn can_be_made() -> bool {
    KEEPER.is_some()
}
