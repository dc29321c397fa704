//! `rping` in the machine, `iwperf ping` and `iwperf pong` here: Sends, Reads and Writes in both directions,
//! which both sides check.

use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, iwperf, serve};
use tests::lab::{Ended, Result, Suite};
use tests::{ensure, lab_error};

use super::rig::{OURS, Rig, Shared, THEIRS};

/// Number of rounds of one test.
const ROUNDS: usize = 10;

/// Adds tests in both directions with these sizes, on a machine of this kind.
pub(crate) fn add(
    suite: &mut Suite,
    shared: &Shared,
    kind: &str,
    mtu: u16,
    params: &'static [&'static str],
    sizes: &[usize],
) {
    for &size in sizes {
        let rig = shared.clone();
        suite.add(format!("{kind}_mtu{mtu}_rping_{size}_siw_serves"), move || {
            rig.with(mtu, params, |rig| siw_serves(rig, size))
        });
        let rig = shared.clone();
        suite.add(format!("{kind}_mtu{mtu}_rping_{size}_siw_connects"), move || {
            rig.with(mtu, params, |rig| siw_connects(rig, size))
        });
    }
}

/// Returns rping's options: number of rounds, size, validation, verbose output.
fn shape(size: usize) -> [String; 6] {
    ["-C".into(), ROUNDS.to_string(), "-S".into(), size.to_string(), "-V".into(), "-v".into()]
}

fn siw_serves(rig: &Rig, size: usize) -> Result<()> {
    let shape = shape(size);
    let argv = ["rping", "-s"].into_iter().chain(shape.iter().map(String::as_str));
    let server = rig.siw.serve(TEST_TIMEOUT, argv)?;
    let client = iwperf(Some(&rig.namespace), ["ping", THEIRS])?.args(&shape).args(rig.net().args());
    let client = client.spawn()?;
    client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- siw's side\n{}", server.text()))?;
    // The exit code of rping's server is not reliable, since the disconnect may overtake its last wait (see
    // the README of `tests/siw-peer`).
    let said = server.finish(Duration::from_secs(20))?.text;
    has_pings(&said)
}

fn siw_connects(rig: &Rig, size: usize) -> Result<()> {
    let shape = shape(size);
    let words = shape.iter().map(String::as_str);
    let server = serve(Some(&rig.namespace), &rig.net(), ["pong"].iter().copied().chain(words))?;
    let argv = ["rping", "-c", "-a", OURS].into_iter().chain(shape.iter().map(String::as_str));
    let client = rig.siw.run(TEST_TIMEOUT, argv).spawn()?;
    let said = client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- our side\n{}", server.text()))?;
    has_pings(&said)?;
    server.finish(Duration::from_secs(20))?.success()?;
    Ok(())
}

fn has_pings(text: &str) -> Result<()> {
    let pings = text.matches("ping data:").count();
    ensure!(pings >= ROUNDS, "{pings} of {ROUNDS} pings in:\n{text}");
    Ok(())
}
