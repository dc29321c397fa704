//! Writes, Reads and Sends with every byte checked: in jumbo frames and in ordinary ones, over IPv4 with the
//! client in `a`, and over IPv6 with the client in `b`; ordinary ones over IPv6 with a VLAN tag.

use tests::iwperf::{TEST_TIMEOUT, Test, host, results};
use tests::lab::{Ended, NicMachine, Result, Suite};
use tests::{ensure, lab_error};

use super::rig::{Binding, Family, Nic, NicPair, SharedPair};

const TESTS: [Test; 3] = [Test::WriteBw, Test::ReadBw, Test::SendBw];
/// Bytes of a message, and messages of a test: some hundred frames. The emulated machines need a second for a
/// megabyte.
const SIZE: &str = "40000";
const ITERATIONS: &str = "20";

/// Adds the transfers of a NIC; `short`: one direction in jumbo frames.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding, nic: Nic, short: bool) {
    let all = [(1500, Family::V4), (1500, Family::V6), (9000, Family::V6), (9000, Family::V4)];
    for (mtu, family) in if short { &all[2..3] } else { &all[..] } {
        let (mtu, family, shared) = (*mtu, *family, shared.clone());
        let vlan: &[&str] = if (mtu, family) == (1500, Family::V6) { &["--vlan", "7"] } else { &[] };
        let tag = if vlan.is_empty() { "" } else { "_vlan" };
        let name = format!("{}_{}_mtu{mtu}_{}{tag}", binding.name(), nic.name(), family.name());
        suite.add_with(nic.needs(), name, move || {
            shared.with(binding, |pair| {
                let rates = transfers(pair, nic, mtu, family, vlan)?;
                let line = format!("{:<4} {:<8} {mtu} {}{tag}", binding.name(), nic.name(), family.name());
                shared.note(format!("{line}  {}", rates.join("  ")));
                Ok(())
            })
        });
    }
}

fn transfers(pair: &NicPair, nic: Nic, mtu: u16, family: Family, vlan: &[&str]) -> Result<Vec<String>> {
    let (client, server) = if family == Family::V4 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
    let mtu = mtu.to_string();
    let options = [&["--mtu", &mtu][..], vlan].concat();
    let served = pair.serve(server, nic, family.server(), &options)?;
    let rate = |test| {
        transfer(pair, client, nic, (family.client(), family.server()), test, &options)
            .map_err(|error| lab_error!("{error}\n---- server\n{}", served.text()))
    };
    TESTS.into_iter().map(rate).collect()
}

/// One validated test of a client. Returns its rate in Gb/s.
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
