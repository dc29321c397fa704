//! Tests that programs leave no files behind when they end, and that programs which only list devices start
//! nothing. Also tests `ibv_asyncwatch`, and `uwarp ls` on an interface.

use std::fs;
use std::time::{Duration, Instant};

use crate::interface::Interfaces;
use crate::pair::Running;
use crate::wire::Wire;

/// Maximum time that a program may take to start, to get an event, or to end.
const WITHIN: Duration = Duration::from_secs(30);

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, Test)> {
    vec![
        ("nothing_is_left_after_100_runs", nothing_is_left),
        ("a_forked_child_that_lists_devices_works", lists_devices),
    ]
}

/// Checks that the files of a wire are removed when its processes end.
fn nothing_is_left() -> Result<(), String> {
    let wire = Wire::new()?;
    for run in 0..100 {
        let mut server = Running::start(&wire, "server", "rping -s -a 127.0.0.1 -C 2")?;
        server.wait_to_listen(&wire)?;
        let mut client = Running::start(&wire, "client", "rping -c -a 127.0.0.1 -C 2")?;
        for (end, program) in [("client", &mut client), ("server", &mut server)] {
            let status = program.wait(WITHIN)?;
            if !status.success() {
                return Err(format!("run {run}: the {end} ended with {status}: {}", wire.output(end)));
            }
        }
    }
    let mut left = Vec::new();
    for folder in [wire.files(), wire.files().join("listen"), wire.rendezvous().join(".status")] {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        left.extend(
            entries
                .flatten()
                .map(|entry| entry.file_name())
                .filter(|name| name != "listen" && name != "ports"),
        );
    }
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
}

/// Checks that listing devices starts nothing. So a process that lists devices and then forks has not used
/// verbs before the fork.
fn lists_devices() -> Result<(), String> {
    let wire = Wire::new()?;
    let mut devices = Running::start(&wire, "client", "ibv_devices")?;
    let status = devices.wait(WITHIN)?;
    if !status.success() || !wire.output("client").contains("uwarp0") {
        return Err(format!("{status}: {}", wire.output("client")));
    }
    if wire.files().exists() {
        return Err("a list of devices has started the wire".into());
    }
    Ok(())
}

/// Checks that `ibv_asyncwatch` waits for events, and prints that the link of its port has gone down.
pub(crate) fn asyncwatch_sees_a_lost_link() -> Result<(), String> {
    let wire = Wire::between(Interfaces::new()?)?;
    let _watch = Running::start(&wire, "server", "stdbuf -oL ibv_asyncwatch")?;
    wait_for(&wire, "async event FD")?;
    wire.take_link(1)?;
    wait_for(&wire, "IBV_EVENT_PORT_ERR")
}

/// Checks that `uwarp ls` lists a program on an interface while the program runs.
pub(crate) fn interface_is_listed() -> Result<(), String> {
    let wire = Wire::between(Interfaces::hosts()?)?;
    let launcher = wire.launcher()?;
    let list = || {
        let output = wire.command(0, &[&launcher.to_string_lossy(), "ls"]).output();
        let output = output.map_err(|error| error.to_string())?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut watch = Running::start(&wire, "server", "stdbuf -oL ibv_asyncwatch")?;
    wait_for(&wire, "async event FD")?;
    let (there, pid) = (list()?, format!(" {} ", watch.pid()));
    watch.kill();
    let gone = list()?;
    let is_of_watch = |line: &str| line.starts_with("packet:") && line.contains("ibv_asyncwatch");
    match there.lines().any(|line| is_of_watch(line) && line.contains(&pid)) {
        true if gone.lines().any(is_of_watch) => Err(format!("it is killed, and listed:\n{gone}")),
        true => Ok(()),
        false => Err(format!("it is not listed:\n{there}")),
    }
}

/// Waits until the program `server` has printed a text.
fn wait_for(wire: &Wire, text: &str) -> Result<(), String> {
    let begun = Instant::now();
    while !wire.output("server").contains(text) {
        if begun.elapsed() > WITHIN {
            return Err(format!("no '{text}' after {WITHIN:?}: {}", wire.output("server")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
