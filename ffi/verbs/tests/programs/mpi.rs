//! Tests of Open MPI over libfabric's verbs provider, and over UCX.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::interface::{Interfaces, Privileges};
use crate::pair::{Running, is_installed};
use crate::wire::Wire;

/// Maximum time of a run.
const LIMIT: Duration = Duration::from_secs(60);

/// The library through which Open MPI uses verbs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Libfabric,
    Ucx,
}

impl Over {
    /// Options that force this library: Open MPI must not choose another transport.
    fn options(self) -> &'static str {
        match self {
            Self::Libfabric => {
                "--oversubscribe --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"
            }
            // UCX opens only InfiniBand devices. It would also use shared memory between ranks of a host.
            Self::Ucx => {
                "--oversubscribe --mca pml ucx --mca osc ucx -x UWARP_PRETEND=ib \
                 -x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_NET_DEVICES=uwarp0:1"
            }
        }
    }

    /// The arguments of the test's script. Between hosts, Open MPI makes no windows over libfabric.
    fn arguments(self) -> &'static str {
        match self {
            Self::Libfabric => "",
            Self::Ucx => " windows",
        }
    }

    /// The last part of a test's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Libfabric => "",
            Self::Ucx => "_ucx",
        }
    }
}

/// The numbers of ranks, on one host or divided between two hosts.
pub(crate) const RUNS: [(usize, Over); 4] =
    [(2, Over::Libfabric), (4, Over::Libfabric), (2, Over::Ucx), (4, Over::Ucx)];

/// Returns the packages that are not installed.
pub(crate) fn missing() -> Vec<&'static str> {
    let programs = [("mpirun", "openmpi-bin"), ("python3", "python3")];
    programs.into_iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| package).collect()
}

/// Runs a program in which each rank sends messages of several lengths to every other rank, and checks the
/// messages that it receives. Over UCX, each rank then writes and reads memory of its neighbour.
pub(crate) fn on_one_host(ranks: usize, over: Over) -> Result<(), String> {
    run(&Wire::new()?, "", ranks, over)
}

/// Runs the program of [`on_one_host`] with half of the ranks on each of two hosts.
pub(crate) fn on_two_hosts(ranks: usize, over: Over) -> Result<(), String> {
    let (wire, options) = two_hosts(ranks / 2)?;
    run(&wire, &options, ranks, over)
}

/// Runs NetPIPE between two hosts. NetPIPE sends messages of many lengths, and compares each byte.
pub(crate) fn netpipe() -> Result<(), String> {
    let (wire, options) = two_hosts(1)?;
    let words = format!(
        "mpirun {options}{} -n 2 NPopenmpi -i -n 10 -u 100000 -o netpipe.out",
        Over::Libfabric.options()
    );
    let status = Running::start(&wire, "client", &words)?.wait(LIMIT)?;
    let output = wire.output("client");
    // NetPIPE prints each length, beginning with one byte, and its result.
    let right = output.matches("Integrity check passed").count();
    match status.success() && right > 20 && !output.contains("Integrity check failed") {
        true => Ok(()),
        false => Err(format!("{right} lengths are right, and mpirun ended with {status}: {output}")),
    }
}

/// Makes two hosts for `each` ranks each. Returns the hosts, and the options of mpirun on the first host.
/// mpirun starts its daemon on the other host by a script in place of ssh. mpirun runs as root, since other
/// users may not enter namespaces.
fn two_hosts(each: usize) -> Result<(Wire, String), String> {
    let mut hosts = Interfaces::hosts()?;
    hosts.privileges = Privileges::All;
    let [here, there] = [0, 1].map(|end| hosts.address(end));
    let (words, net) = hosts.end(1);
    let text = format!("#!/bin/sh\nshift\nexec {} env UWARP_NET={net} sh -c \"$*\"\n", words.join(" "));
    let wire = Wire::between(hosts)?;
    let agent = wire.folder().join("agent");
    let failed = |error: std::io::Error| format!("{}: {error}", agent.display());
    fs::write(&agent, text).map_err(failed)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let agent = agent.display();
    let hosts = format!("--host {here}:{each},{there}:{each}");
    Ok((wire, format!("--allow-run-as-root --mca plm_rsh_agent {agent} {hosts} ")))
}

fn run(wire: &Wire, options: &str, ranks: usize, over: Over) -> Result<(), String> {
    let script = wire.folder().join("mpi.py");
    fs::write(&script, include_str!("mpi.py")).map_err(|error| format!("{}: {error}", script.display()))?;
    let words = format!("mpirun {options}{} -n {ranks} python3 mpi.py{}", over.options(), over.arguments());
    let status = Running::start(wire, "client", &words)?.wait(LIMIT)?;
    let output = wire.output("client");
    let right = output.matches(&format!(" of {ranks}: 0 wrong")).count();
    match status.success() && right == ranks {
        true => Ok(()),
        false => Err(format!("{right} of {ranks} ranks are right, and mpirun ended with {status}: {output}")),
    }
}
