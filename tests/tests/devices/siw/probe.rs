//! `iwprobe` against siw in both directions. siw deviates only in the cases listed in
//! `tests/siw-peer/deviations`, each with its reason. A second stack thus validates the probe, and siw's
//! defects are known case by case.

use std::time::Duration;

use tests::ensure;
use tests::iwperf::START_TIMEOUT;
use tests::lab::{Result, Run, Suite, programs};
use tests::lab_error;

use super::rig::{KERNELS, Rig, Shared, THEIRS};

/// Maximum duration of all cases on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
const PORT: &str = "7480";

pub(crate) fn add(suite: &mut Suite, shared: &Shared) {
    type Case = fn(&Rig) -> Result<()>;
    for (name, case) in [("siw_serves", siw_serves as Case), ("siw_connects", siw_connects)] {
        let shared = shared.clone();
        suite.add(format!("probe_{name}"), move || shared.with(1500, &[], case));
    }
}

fn probe(rig: &Rig, words: [&str; 3]) -> Result<Run> {
    let known = format!("{}/siw-peer/deviations/{}", env!("CARGO_MANIFEST_DIR"), words[0]);
    let run = rig.namespace.run(programs::iwprobe()?).args(words);
    Ok(run.args(["--timeout", "2", "--expect", &known]))
}

fn siw_serves(rig: &Rig) -> Result<()> {
    let mut target = rig.siw.run(LIMIT, [rig.target()?, "listen", THEIRS, PORT]).spawn()?;
    target.wait_for("listening on port", START_TIMEOUT)?;
    let said = probe(rig, ["connect", THEIRS, PORT])?.check(LIMIT)?;
    ensure!(target.is_running()?, "the target ended: {}", target.text());
    alive(rig, &said)
}

fn siw_connects(rig: &Rig) -> Result<()> {
    let mut waiting = probe(rig, ["listen", KERNELS, PORT])?.spawn()?;
    waiting.wait_for("listening on", START_TIMEOUT)?;
    let target = rig.siw.run(LIMIT, [rig.target()?, "connect", KERNELS, PORT]).spawn()?;
    let said = waiting.finish(LIMIT)?.success();
    let said = said.map_err(|error| lab_error!("{error}\n---- siw's side\n{}", target.text()))?;
    target.finish(START_TIMEOUT)?.success()?;
    alive(rig, &said)
}

/// Checks that at least 150 cases conform, and that the kernel of the siw machine has survived all cases.
fn alive(rig: &Rig, said: &str) -> Result<()> {
    let conforming = said.lines().filter(|line| line.starts_with("conforms")).count();
    ensure!(conforming >= 150, "only {conforming} cases conform:\n{said}");
    let log = rig.siw.kernel_log()?;
    ensure!(
        !["kernel BUG", "Oops", "WARNING:"].iter().any(|word| log.contains(word)),
        "siw's kernel:\n{log}"
    );
    Ok(())
}
