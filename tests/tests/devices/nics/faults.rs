//! A link that fails for a while, a link that fails for too long, and a peer that is killed and restarted.

use std::thread::sleep;
use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, Test, host};
use tests::lab::{Ended, Process, Result, Suite};
use tests::{ensure, lab_error};

use super::rig::{Binding, Family, Nic, NicPair, READY_TIMEOUT, SharedPair};
use super::transfers::transfer;

const FAMILY: Family = Family::V4;
/// The client's time limit for a silent peer (as an option), and the maximum time until the client ends.
/// Other programs may delay the emulated processor.
const SILENCE: (&str, Duration) = ("4", Duration::from_secs(30));

/// Adds the tests of faults with one NIC.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding, nic: Nic) {
    let named = |what: &str| format!("{}_{}_{what}", binding.name(), nic.name());
    let with = shared.clone();
    suite
        .add_with(nic.needs(), named("link_flaps"), move || with.with(binding, |pair| link_flaps(pair, nic)));
    let with = shared.clone();
    suite.add_with(nic.needs(), named("peer_is_killed"), move || {
        with.with(binding, |pair| peer_is_killed(pair, nic))
    });
    if nic == Nic::E1000e {
        let with = shared.clone();
        suite.add(named("link_stays_away"), move || with.with(binding, |pair| link_stays_away(pair, nic)));
    }
}

/// Starts a client that sends traffic for `seconds` seconds.
pub(super) fn traffic(pair: &NicPair, nic: Nic, seconds: &str, options: &[&str]) -> Result<Process> {
    let mut words = vec!["write-bw", host(FAMILY.server()), "--ip", FAMILY.client(), "-D", seconds];
    words.push("--validate");
    words.extend(options);
    let mut client = pair.iwperf(&pair.a, nic, &words, TEST_TIMEOUT)?;
    // The client prints this text when it is connected.
    client.wait_for("every byte checked", READY_TIMEOUT)?;
    sleep(Duration::from_secs(1));
    ensure!(client.is_running()?, "the client ended: {}", client.text());
    Ok(client)
}

fn link_flaps(pair: &NicPair, nic: Nic) -> Result<()> {
    let server = pair.serve(&pair.b, nic, FAMILY.server(), &[])?;
    let client = traffic(pair, nic, "5", &[])?;
    let address = pair.address(nic);
    pair.a.set_link(&address, false)?;
    sleep(Duration::from_secs(2));
    pair.a.set_link(&address, true)?;
    let said = client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- server\n{}", server.text()))?;
    ensure!(said.contains("every byte as sent"), "not validated:\n{said}");
    Ok(())
}

fn link_stays_away(pair: &NicPair, nic: Nic) -> Result<()> {
    let _server = pair.serve(&pair.b, nic, FAMILY.server(), &[])?;
    let client = traffic(pair, nic, "30", &["--link-timeout", "1"])?;
    let address = pair.address(nic);
    pair.a.set_link(&address, false)?;
    let ended = client.finish(Duration::from_secs(10));
    pair.a.set_link(&address, true)?;
    ended?.failure().map(drop)
}

fn peer_is_killed(pair: &NicPair, nic: Nic) -> Result<()> {
    let mut server = pair.serve(&pair.b, nic, FAMILY.server(), &[])?;
    let client = traffic(pair, nic, "40", &["--timeout", SILENCE.0])?;
    server.kill()?;
    client.finish(SILENCE.1)?.failure()?;
    drop(server);
    let _server = pair.serve(&pair.b, nic, FAMILY.server(), &[])?;
    let between = (FAMILY.client(), FAMILY.server());
    transfer(pair, &pair.a, nic, between, Test::WriteBw, &[]).map(drop)
}
