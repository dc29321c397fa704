//! Programs that are killed, and what is left behind.

use std::fs;
use std::time::{Duration, Instant};

use crate::pair::Running;
use crate::wire::Wire;

/// How soon the other end of a program that is killed has to end.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

type Test = fn() -> Result<(), String>;

pub(crate) fn all() -> Vec<(&'static str, Test)> {
    vec![
        ("client_ends_when_its_server_is_killed", || killed(true)),
        ("server_ends_when_its_client_is_killed", || killed(false)),
        ("nothing_is_left_after_100_runs", nothing_is_left),
        ("a_forked_child_that_lists_devices_works", lists_devices),
    ]
}

/// Kills one end of rping with kill -9. The other ends with an error at once.
fn killed(is_server: bool) -> Result<(), String> {
    let wire = Wire::new()?;
    let mut server = Running::start(&wire, "server", "rping -s -a 127.0.0.1 -C 1000000")?;
    server.wait_to_listen(&wire)?;
    let mut client = Running::start(&wire, "client", "rping -c -a 127.0.0.1 -v -C 1000000")?;
    let begun = Instant::now();
    while !wire.output("client").contains("rdma-ping-") {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err(format!("no ping after 10 s: {}", wire.output("client")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (victim, survivor) = if is_server { (&mut server, &mut client) } else { (&mut client, &mut server) };
    victim.kill();
    let begun = Instant::now();
    survivor.wait(Duration::from_secs(20))?;
    let took = begun.elapsed();
    if took > NOTICED_WITHIN {
        return Err(format!("the other end went on for {took:?}"));
    }
    Ok(())
}

/// The files of a wire are gone with its processes.
fn nothing_is_left() -> Result<(), String> {
    let wire = Wire::new()?;
    for run in 0..100 {
        let mut server = Running::start(&wire, "server", "rping -s -a 127.0.0.1 -C 2")?;
        server.wait_to_listen(&wire)?;
        let mut client = Running::start(&wire, "client", "rping -c -a 127.0.0.1 -C 2")?;
        for (end, program) in [("client", &mut client), ("server", &mut server)] {
            let status = program.wait(Duration::from_secs(10))?;
            if !status.success() {
                return Err(format!("run {run}: the {end} ended with {status}: {}", wire.output(end)));
            }
        }
    }
    let mut left = Vec::new();
    for folder in [wire.files(), wire.files().join("listen")] {
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        left.extend(entries.flatten().map(|entry| entry.file_name()).filter(|name| name != "listen"));
    }
    if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:?}")) }
}

/// Listing devices starts nothing, so a shell that lists them and then starts a program is no fork of a
/// process that uses verbs.
fn lists_devices() -> Result<(), String> {
    let wire = Wire::new()?;
    let mut devices = Running::start(&wire, "client", "ibv_devices")?;
    let status = devices.wait(Duration::from_secs(10))?;
    if !status.success() || !wire.output("client").contains("uwarp0") {
        return Err(format!("{status}: {}", wire.output("client")));
    }
    if wire.files().exists() {
        return Err("a list of devices has started the wire".into());
    }
    Ok(())
}
