//! Writes, Reads and Sends over IPv4 and over IPv6, with every byte checked. If the client is in `b`, the
//! frames are jumbo frames. If the client is in `a`, they are ordinary frames with a VLAN tag.

use tests::iwperf::{TEST_TIMEOUT, Test, host, results};
use tests::lab::{Ended, NicMachine, Result, Suite};
use tests::{ensure, lab_error};

use super::rig::{Binding, Family, Nic, NicPair, SharedPair};

const TESTS: [Test; 3] = [Test::WriteBw, Test::ReadBw, Test::SendBw];
/// Length of a message in bytes, and number of messages of a test: about a hundred jumbo frames, or more than
/// five hundred ordinary frames. The emulated machines need a second for a megabyte.
const SIZE: &str = "40000";
const ITERATIONS: &str = "20";

/// Adds the transfers with one NIC.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding, nic: Nic) {
    let with = shared.clone();
    let name = format!("{}_{}_mtu9000", binding.name(), nic.name());
    suite.add_with(nic.needs(), name, move || {
        let families = &[Family::V6, Family::V4];
        with.with(binding, |pair| {
            transfers(&with, pair, nic, (&pair.b, &pair.a), families, &["--mtu", "9000"])
        })
    });
    let with = shared.clone();
    let name = format!("{}_{}_mtu1500_vlan", binding.name(), nic.name());
    suite.add_with(nic.needs(), name, move || {
        let (families, options) = ([Family::V4, Family::V6], ["--vlan", "7"]);
        with.with(binding, |pair| transfers(&with, pair, nic, (&pair.a, &pair.b), &families, &options))
    });
}

/// Runs each test over each of these families. One server has an address of both families.
fn transfers(
    shared: &SharedPair,
    pair: &NicPair,
    nic: Nic,
    (client, server): (&NicMachine, &NicMachine),
    families: &[Family],
    options: &[&str],
) -> Result<()> {
    let addresses = [&["--ip", Family::V4.server()], options].concat();
    let served = pair.serve(server, nic, Family::V6.server(), &addresses)?;
    for family in families {
        let rate = |test| {
            transfer(pair, client, nic, (family.client(), family.server()), test, options)
                .map_err(|error| lab_error!("{error}\n---- server\n{}", served.text()))
        };
        let rates = TESTS.into_iter().map(rate).collect::<Result<Vec<_>>>()?;
        let line =
            format!("{:<4} {:<8} {} {}", pair.binding().name(), nic.name(), options.join(" "), family.name());
        shared.note(format!("{line}  {}", rates.join("  ")));
    }
    Ok(())
}

/// Runs one validated test. Returns its rate in Gb/s.
pub(crate) fn transfer(
    pair: &NicPair,
    client: &NicMachine,
    nic: Nic,
    (ours, theirs): (&str, &str),
    test: Test,
    options: &[&str],
) -> Result<String> {
    let json = pair.shared_file("result.json");
    let mut words = vec![test.name(), host(theirs), "--ip", ours, "-s", SIZE, "-n", ITERATIONS];
    words.extend(["--validate", "--report_gbits", "--json", "/host/result.json"]);
    words.extend(options);
    pair.iwperf(client, nic, &words, TEST_TIMEOUT)?.finish(TEST_TIMEOUT).and_then(Ended::success)?;
    let value = results(&json)?;
    std::fs::remove_file(json)?;
    let checked = |by: &str| value["validation"][by].as_u64().unwrap_or(0);
    let messages = checked("messages_checked_here") + checked("messages_checked_by_peer");
    ensure!(messages > 0, "no message was validated: {value}");
    let rate = value["results"][0]["bw_average"].as_f64();
    rate.map(|rate| format!("{rate:.3}")).ok_or_else(|| lab_error!("no rate in {value}"))
}
