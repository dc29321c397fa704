//! `iwperf` on an e1000e, and `rping` over Linux's siw in a third machine, which is on a bridge.

use std::time::Duration;

use tests::iwperf::TEST_TIMEOUT;
use tests::lab::{Driver, Ended, Prerequisite, Result, Siw, SiwConfig, Suite};
use tests::{ensure, lab_error};

use super::rig::{BRIDGES, Binding, Nic, NicPair, READY_TIMEOUT, SharedPair};

const OURS: &str = "10.80.0.1";
const THEIRS: &str = "10.80.0.2";
const ROUNDS: usize = 10;
/// rping's options: number of rounds, size, validation, verbose output.
const SHAPE: [&str; 6] = ["-C", "10", "-S", "4096", "-V", "-v"];

/// Adds the test of both directions.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair) {
    let with = shared.clone();
    suite.add_with(&[Prerequisite::SiwImage], "uio_e1000e_rping", move || {
        with.with(Binding::Uio, both_directions)
    });
}

fn both_directions(pair: &NicPair) -> Result<()> {
    let addresses = vec![format!("{THEIRS}/24")];
    let config = SiwConfig { driver: Driver::Siw, mtu: 1500, addresses, params: Vec::new() };
    let siw = Siw::start(&pair.namespace, BRIDGES[0], &config)?;
    siw_serves(pair, &siw)?;
    siw_connects(pair, &siw)
}

fn siw_serves(pair: &NicPair, siw: &Siw) -> Result<()> {
    let server = siw.serve(TEST_TIMEOUT, ["rping", "-s"].into_iter().chain(SHAPE))?;
    let ours = format!("{OURS}/24");
    let words: Vec<_> = ["ping", THEIRS, "--ip", &ours].into_iter().chain(SHAPE).collect();
    let client = pair.iwperf(&pair.a, Nic::Bridged, &words, TEST_TIMEOUT)?;
    client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- siw's side\n{}", server.text()))?;
    // The exit code of rping's server is not reliable, since the disconnect may overtake its last wait
    // (tests/siw-peer/README.md).
    has_pings(&server.finish(Duration::from_secs(20))?.text)
}

fn siw_connects(pair: &NicPair, siw: &Siw) -> Result<()> {
    let ours = format!("{OURS}/24");
    let words: Vec<_> = ["pong", "--ip", &ours].into_iter().chain(SHAPE).collect();
    let mut server = pair.iwperf(&pair.a, Nic::Bridged, &words, TEST_TIMEOUT)?;
    server.wait_for("listening on port", READY_TIMEOUT)?;
    let client = siw.run(TEST_TIMEOUT, ["rping", "-c", "-a", OURS].into_iter().chain(SHAPE)).spawn()?;
    let said = client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- our side\n{}", server.text()))?;
    has_pings(&said)?;
    server.finish(Duration::from_secs(20))?.success().map(drop)
}

fn has_pings(text: &str) -> Result<()> {
    let pings = text.matches("ping data:").count();
    ensure!(pings >= ROUNDS, "{pings} of {ROUNDS} pings in:\n{text}");
    Ok(())
}
