//! The connection manager between interfaces: peers that behave oddly, and peers that die.

use crate::c;
use crate::interface::Interfaces;
use crate::pair::Running;
use crate::wire::Wire;

/// The port at which a peer on sockets of the kernel is told what to do.
const CONTROL: &str = "6000";

/// A program of the library meets one that speaks MPA on sockets of the kernel, at the other end of an
/// interface.
pub(crate) fn odd_peers() -> Result<(), String> {
    let (ends, kernel) = (Interfaces::new()?, Interfaces::kernel_address(1));
    let own = ends.address(0);
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, "odd_peers")?;
    let _raw = Running::start(&wire, "client", &format!("{program} raw {own} {CONTROL}"))?;
    let events = Running::start(&wire, "server", &format!("{program} events {own} {kernel} {CONTROL}"))?;
    c::wait_for("server", events, &wire).map_err(|error| format!("{error}{}", wire.output("client")))
}

/// Two processes of one host on an interface, where nothing but silence says that one is gone.
pub(crate) fn killed_peer() -> Result<(), String> {
    at_kernel_address("killed_peer")
}

/// Ports on an interface, which are those of the kernel.
pub(crate) fn binds() -> Result<(), String> {
    at_kernel_address("binds")
}

/// Runs a program with the address of an interface, which the kernel has.
fn at_kernel_address(name: &str) -> Result<(), String> {
    let ends = Interfaces::hosts()?;
    let address = ends.address(0);
    let wire = Wire::between(ends)?;
    let program = c::compile(&wire, name)?;
    c::wait_for("server", Running::start(&wire, "server", &format!("{program} {address}"))?, &wire)
}
