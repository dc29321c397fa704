//! `udaddy` and `mckey` of rdmacm-utils on both sides: rdma_cm's datagram services (SIDR), and groups. Both
//! sides of `udaddy`, and the receiver of `mckey`, succeed only if they have received all messages.

use std::time::Instant;

use tests::ensure;
use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Driver, Process, Result, Suite};

use super::programs::{both, ours};
use super::ud_peer::status;
use crate::siw::rig::{OURS, OURS_6, Rig, Shared, THEIRS, THEIRS_6};

/// Options of `udaddy` on both sides: four services of one listener, and ten messages of 1000 bytes in each
/// direction of each service.
const SHAPE: [&str; 6] = ["-c", "4", "-C", "10", "-S", "1000"];
const GROUP: &str = "239.193.7.7";
/// What both sides print at their end.
const SHOWS: &str = "return status 0";

/// An address family: our address with its prefix length, and the machine's address.
#[derive(Clone, Copy)]
struct Family {
    ours: &'static str,
    prefix: u8,
    theirs: &'static str,
}

const V4: Family = Family { ours: OURS, prefix: 24, theirs: THEIRS };
const V6: Family = Family { ours: OURS_6, prefix: 64, theirs: THEIRS_6 };

/// Adds each program in both directions.
pub(super) fn add(suite: &mut Suite, shared: &Shared) {
    let mut add = |name: &str, test: fn(&Rig, Family) -> Result<()>, family| {
        let shared = shared.clone();
        suite.add(name, move || shared.on(Driver::Rxe, 1500, Vec::new(), |rig| test(rig, family)));
    };
    add("udaddy_rxe_serves", service_of_rxe, V4);
    add("udaddy_rxe_connects", service_of_ours, V4);
    add("udaddy_ipv6_rxe_serves", service_of_rxe, V6);
    add("udaddy_ipv6_rxe_connects", service_of_ours, V6);
    add("udaddy_rxe_has_no_service", no_service_of_rxe, V4);
    add("mckey_rxe_receives", rxe_receives, V4);
    add("mckey_rxe_sends", rxe_sends, V4);
}

impl Family {
    fn run(self, rig: &Rig, words: &[&str]) -> Result<Process> {
        let net = format!("packet:v1,addr={}/{},mtu={}", self.ours, self.prefix, rig.mtu());
        ours(&rig.namespace, &net, words)?.spawn()
    }
}

/// The words of a run of `udaddy`, which serves at an address (`-b`), or asks the service at an address
/// (`-s`).
fn udaddy(end: &'static str, address: &'static str) -> Vec<&'static str> {
    ["udaddy", end, address].into_iter().chain(SHAPE).collect()
}

/// The words of a run of `mckey` at an address. The run has two queue pairs, whose messages both queue pairs
/// of the other side receive.
fn mckey(address: &'static str) -> Vec<&'static str> {
    vec!["mckey", "-b", address, "-m", GROUP, "-c", "2"]
}

fn service_of_rxe(rig: &Rig, family: Family) -> Result<()> {
    let server = rig.siw.serve(TEST_TIMEOUT, udaddy("-b", family.theirs))?;
    let client = family.run(rig, &udaddy("-s", family.theirs))?;
    both(SHOWS, ("our side", client), ("rxe's side", server))
}

fn service_of_ours(rig: &Rig, family: Family) -> Result<()> {
    let mut server = family.run(rig, &udaddy("-b", family.ours))?;
    // The queue pair of the connection manager opens when the program listens.
    wait_for_status(&mut server, |process| {
        let pairs = process["queue_pairs"].as_array();
        pairs.is_some_and(|pairs| pairs.iter().any(|pair| pair["qp_num"] == 1))
    })?;
    let client = rig.siw.run(TEST_TIMEOUT, udaddy("-s", family.ours)).spawn()?;
    both(SHOWS, ("rxe's side", client), ("our side", server))
}

/// Asks for a service that the machine does not have. The machine says so (`IB_SIDR_UNSUPPORTED`).
fn no_service_of_rxe(rig: &Rig, family: Family) -> Result<()> {
    let said = family.run(rig, &udaddy("-s", family.theirs))?.finish(TEST_TIMEOUT)?;
    said.failure()?;
    let event = "event: RDMA_CM_EVENT_UNREACHABLE, error: 1\n";
    ensure!(said.text.contains(event), "the program does not print '{event}':\n{}", said.text);
    Ok(())
}

fn rxe_receives(rig: &Rig, family: Family) -> Result<()> {
    let receiver = rig.siw.serve_group(TEST_TIMEOUT, GROUP, mckey(family.theirs))?;
    let sender = family.run(rig, &[mckey(family.ours), vec!["-s"]].concat())?;
    both(SHOWS, ("our side", sender), ("rxe's side", receiver))
}

fn rxe_sends(rig: &Rig, family: Family) -> Result<()> {
    let mut receiver = family.run(rig, &mckey(family.ours))?;
    wait_for_status(&mut receiver, |process| {
        let engines = process["engines"].as_array().into_iter().flatten();
        let mut groups = engines.flat_map(|engine| engine["groups"].as_array()).flatten();
        groups.any(|group| group == GROUP)
    })?;
    let sender = rig.siw.run(TEST_TIMEOUT, [mckey(family.theirs), vec!["-s"]].concat()).spawn()?;
    both(SHOWS, ("rxe's side", sender), ("our side", receiver))
}

/// Waits until `uwarp status` reports about a program what `holds` asks for.
fn wait_for_status(program: &mut Process, holds: impl Fn(&serde_json::Value) -> bool) -> Result<()> {
    let started = Instant::now();
    loop {
        if status(program)?.is_some_and(|process| holds(&process)) {
            return Ok(());
        }
        ensure!(program.is_running()?, "the program ended: {}", program.text());
        ensure!(started.elapsed() < START_TIMEOUT, "the program is not ready: {}", program.text());
    }
}
