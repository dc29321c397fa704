//! Tests with our own C programs between interfaces: peers that violate the protocol, peers that are killed,
//! links that go down or are removed, GIDs, and the memory calls of threads.

use std::time::{Duration, Instant};

use crate::c;
use crate::interface::Interfaces;
use crate::pair::Running;
use crate::wire::Wire;

/// The TCP port at which the peer on kernel sockets receives its instructions.
const CONTROL: &str = "6000";

/// Maximum time that a program may take to start on a busy machine.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Runs a program with the library against a program that speaks MPA on kernel sockets, at the other end of
/// an interface.
pub(crate) fn odd_peers() -> Result<(), String> {
    let (ends, kernel) = (Interfaces::new()?, Interfaces::kernel_address(1));
    let own = ends.address(0);
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, "odd_peers")?;
    let _raw = Running::start(&wire, "client", &format!("{program} raw {own} {CONTROL}"))?;
    let events = Running::start(&wire, "server", &format!("{program} events {own} {kernel} {CONTROL}"))?;
    c::wait_for("server", events, &wire).map_err(|error| format!("{error}{}", wire.output("client")))
}

/// Runs two processes of one host on an interface. If one process is killed, the other process notices only
/// that its peer is silent.
pub(crate) fn killed_peer() -> Result<(), String> {
    at_kernel_address("killed_peer")
}

/// Tests queue pairs of type UC on an interface, where a killed peer is only silent.
pub(crate) fn uc() -> Result<(), String> {
    at_kernel_address("uc")
}

/// Tests binding to ports on an interface, where each port is a UDP port of the kernel.
pub(crate) fn binds() -> Result<(), String> {
    at_kernel_address("binds")
}

/// Counts the memory calls of the library's threads on an interface.
pub(crate) fn memory_calls() -> Result<(), String> {
    at_kernel_address("memory_calls")
}

/// Checks that two contexts of one process get an event when the link of their port goes down.
pub(crate) fn ports() -> Result<(), String> {
    let wire = Wire::between(Interfaces::new()?)?;
    let program = c::compile(&wire, "ports")?;
    let waits = Running::start(&wire, "server", &program)?;
    wait_until_ready(&wire)?;
    wire.take_link(1)?;
    c::wait_for("server", waits, &wire)
}

/// Checks the events and the calls of a program whose interface is removed, with an address of its own.
pub(crate) fn removed() -> Result<(), String> {
    removed_between(Interfaces::new()?)
}

/// Does the same as [`removed`] with the kernel's address.
pub(crate) fn removed_of_host() -> Result<(), String> {
    removed_between(Interfaces::hosts()?)
}

fn removed_between(ends: Interfaces) -> Result<(), String> {
    let address = ends.address(0);
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, "removed")?;
    let waits = Running::start(&wire, "server", &format!("{program} {address}"))?;
    wait_until_ready(&wire)?;
    wire.remove_link(0)?;
    c::wait_for("server", waits, &wire)
}

/// Waits until the program `server` has printed `ready`.
fn wait_until_ready(wire: &Wire) -> Result<(), String> {
    let begun = Instant::now();
    while !wire.output("server").contains("ready") {
        if begun.elapsed() > STARTS_WITHIN {
            return Err(format!("it does not start: {}", wire.output("server")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Checks that each pair of GIDs connects the two ends of an interface.
pub(crate) fn gids_of_own_addresses() -> Result<(), String> {
    by_gids(Interfaces::new()?)
}

/// Does the same as [`gids_of_own_addresses`] if programs use the kernels' addresses.
pub(crate) fn gids_of_hosts() -> Result<(), String> {
    by_gids(Interfaces::hosts()?)
}

/// Checks that two processes of one host on one interface get addresses of a range, and reach each other.
pub(crate) fn shared_interface() -> Result<(), String> {
    let wire = Wire::between(Interfaces::new()?)?.with("UWARP_ADDR", "10.77.0.21-10.77.0.24/24");
    c::run_over("gids", &wire).map(drop)
}

fn by_gids(ends: Interfaces) -> Result<(), String> {
    let addresses = [0, 1].map(|end| ends.address(end));
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, "gids")?;
    let start =
        |output, end: usize| Running::start(&wire, output, &format!("{program} {} {end}", addresses[end]));
    let (first, second) = (start("server", 0)?, start("client", 1)?);
    c::wait_for("server", first, &wire).map_err(|error| format!("{error}{}", wire.output("client")))?;
    c::wait_for("client", second, &wire)
}

/// The ends of our programs for datagrams, each with its first argument.
const SERVICE: [&str; 3] = ["services", "server", "client"];
const GROUP: [&str; 3] = ["groups", "receiver", "sender"];

/// Looks up a datagram service at the other end of an interface, and exchanges datagrams.
pub(crate) fn service() -> Result<(), String> {
    at_both_ends(SERVICE, Interfaces::new()?)
}

/// Does the same as [`service`] if programs use the kernels' addresses.
pub(crate) fn service_of_host() -> Result<(), String> {
    at_both_ends(SERVICE, Interfaces::hosts()?)
}

/// Sends to a multicast group that a program at the other end of an interface has joined.
pub(crate) fn group() -> Result<(), String> {
    at_both_ends(GROUP, Interfaces::new()?)
}

/// Does the same as [`group`] if programs use the kernels' addresses.
pub(crate) fn group_of_hosts() -> Result<(), String> {
    at_both_ends(GROUP, Interfaces::hosts()?)
}

fn at_both_ends([name, first, second]: [&str; 3], ends: Interfaces) -> Result<(), String> {
    let addresses = match name == SERVICE[0] {
        // A client names its server.
        true => [0, 0],
        false => [0, 1],
    };
    let addresses = addresses.map(|end| ends.address(end));
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, name)?;
    let server = Running::start(&wire, "server", &format!("{program} {first} {}", addresses[0]))?;
    wait_until_ready(&wire)?;
    let client = Running::start(&wire, "client", &format!("{program} {second} {}", addresses[1]))?;
    c::wait_for("client", client, &wire).map_err(|error| format!("{error}{}", wire.output("server")))?;
    c::wait_for("server", server, &wire)
}

/// Checks that a service and a group are found by another process of the same host, on one interface.
pub(crate) fn datagrams_on_shared_interface() -> Result<(), String> {
    for [name, first, second] in [SERVICE, GROUP] {
        let ends = Interfaces::hosts()?;
        let address = ends.address(0);
        let wire = Wire::between(ends)?;
        let program = c::compile(&wire, name)?;
        let server = Running::start(&wire, "server", &format!("{program} {first} {address}"))?;
        wait_until_ready(&wire)?;
        let client = wire.command(0, &["timeout", "60", &program, second, address]).output();
        let client = client.map_err(|error| error.to_string())?;
        if !client.status.success() {
            let text = String::from_utf8_lossy(&client.stderr);
            return Err(format!("{name}: {}: {text}{}", client.status, wire.output("server")));
        }
        c::wait_for("server", server, &wire)?;
    }
    Ok(())
}

/// Runs a program with the kernel's address of an interface.
fn at_kernel_address(name: &str) -> Result<(), String> {
    let ends = Interfaces::hosts()?;
    let address = ends.address(0);
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, name)?;
    c::wait_for("server", Running::start(&wire, "server", &format!("{program} {address}"))?, &wire)
}
