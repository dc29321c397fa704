//! Tests of a NIC (igb or virtio) with four queues, and one engine per queue. RSS uses our key and our
//! indirection table. Every connection is validated, and none of its frames is lost between engines. The
//! client chooses the ports of its connections so that their frames arrive at the engine that has opened the
//! connection.

use tests::iwperf::{TEST_TIMEOUT, Test, host, results};
use tests::lab::{Ended, NicMachine, Result, Suite};
use tests::{ensure, lab_error};

use super::rig::{Binding, Family, Nic, NicPair, SharedPair};

/// Number of queues, engines and ports of a server.
const CORES: &str = "4";

/// Adds a test of a NIC with RSS, with this binding.
pub(crate) fn add(suite: &mut Suite, shared: &SharedPair, binding: Binding, nic: Nic) {
    let shared = shared.clone();
    suite.add_with(nic.needs(), format!("{}_{}_4_queues", binding.name(), nic.name()), move || {
        shared.with(binding, |pair| {
            let server = pair.serve(&pair.b, nic, Family::V4.server(), &["--cores", CORES])?;
            for test in [Test::WriteBw, Test::ReadBw] {
                four_queues(pair, &pair.a, nic, test).map_err(|error| {
                    lab_error!("{}: {error}\n---- server\n{}", test.name(), server.text())
                })?;
            }
            Ok(())
        })
    });
}

fn four_queues(pair: &NicPair, client: &NicMachine, nic: Nic, test: Test) -> Result<()> {
    let json = pair.shared_file("result.json");
    let mut words = vec![test.name(), host(Family::V4.server()), "--ip", Family::V4.client()];
    words.extend(["-s", "20000", "-n", "20", "-q", "8", "--cores", CORES, "--validate", "--stats"]);
    words.extend(["--json", "/host/result.json"]);
    pair.iwperf(client, nic, &words, TEST_TIMEOUT)?.finish(TEST_TIMEOUT).and_then(Ended::success)?;
    let value = results(&json)?;
    std::fs::remove_file(json)?;
    let engines = value["engines"].as_array().ok_or_else(|| lab_error!("no engines: {value}"))?;
    let all = &value["counters"];
    ensure!(engines.len() == 4 && all["connections"].as_u64() == Some(12), "{value}");
    ensure!(all["handed_over_dropped"].as_u64() == Some(0), "frames were lost between engines: {value}");
    for engine in engines {
        let count = |name: &str| engine[name].as_u64().unwrap_or(0);
        ensure!(count("connections") == 3 && count("rx_frames") > 10, "not spread: {value}");
        // Only frames for all engines, such as ARP frames, arrive at the queue of another engine.
        ensure!(count("handed_over") * 20 < count("rx_frames"), "the hash is not the device's: {value}");
    }
    Ok(())
}
