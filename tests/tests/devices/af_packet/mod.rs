//! Packet sockets at both sides of a veth pair between two network namespaces.
//!
//! - `iwperf` over DPDK's `net_af_packet`: every test, both MTUs, IPv4 and IPv6, with and without markers;
//!   and some tests with several queues. Every byte is checked.
//! - `programs`: `iwperf` and our TCP over our own port (`dp::packet`), also against Linux's TCP.
//! - `perftest`: perftest's atomics over `libuwarp.so`, and `iwperf`.
//! - `port`: our port by itself, frame by frame, with an interface that disappears and is created again.
//! - `port_on_host`: our port's use of the interface and of its host's memory.

mod perftest;
mod port;
mod port_on_host;
mod programs;

use tests::iwperf::{Case, Net, Test, cases, client, conclude, serve};
use tests::lab::{Namespace, Prerequisite, Result, Scratch, Suite, Wire, veth};
use tests::{ensure, lab_error};

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [Prerequisite::Program("ip"), Prerequisite::Program("ethtool"), Prerequisite::Namespaces];
    let mut suite = Suite::new("af_packet", &needs);
    port::add_to(&mut suite);
    port_on_host::add_to(&mut suite);
    programs::add_to(&mut suite);
    perftest::add_to(&mut suite);
    for case in cases(61) {
        suite.add_with(&[Prerequisite::Dpdk], case.name.clone(), move || run(&case));
    }
    for test in [Test::WriteBw, Test::ReadBw, Test::SendBw] {
        suite.add_with(&[Prerequisite::Dpdk], format!("{}_4_queues", test.name()), move || {
            several_queues(test)
        });
    }
    suite.run(arguments)
}

fn run(case: &Case) -> Result<()> {
    let Case { test, ref server_ip, ref client_ip, mtu, options, .. } = *case;
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, mtu)?;
    let server_net = Net::af_packet("v0", server_ip, mtu);
    let server = serve(Some(&left), &server_net, ["server", "--validate"].iter().chain(options))?;
    let net = Net::af_packet("v0", client_ip, mtu);
    let client = client(Some(&right), test, server_ip, &net, &json)?.args(options).spawn()?;
    conclude(client, server, &json)?;
    Ok(())
}

/// Each interface has four sockets, among which the kernel spreads flows by its own hash (fanout). Most
/// frames therefore arrive at an engine that does not have their connection, and are handed over.
fn several_queues(test: Test) -> Result<()> {
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let (left, right) = (Namespace::new()?, Namespace::new()?);
    veth(Wire { namespace: &left, dev: "v0" }, Wire { namespace: &right, dev: "v0" }, 1500)?;
    let net = |ip: &str| {
        let vdev = "net_af_packet0,iface=v0,blocksz=65536,framesz=2048,framecnt=2048,qpairs=4".to_owned();
        Net { vdev, ip: ip.to_owned(), mtu: 1500 }
    };
    let options = ["--cores", "4", "--stats"];
    let server = serve(Some(&left), &net("10.61.0.1/24"), ["server", "--validate"].iter().chain(&options))?;
    let client = client(Some(&right), test, "10.61.0.1/24", &net("10.61.0.2/24"), &json)?;
    let results = conclude(client.args(options).args(["--qp", "8"]).spawn()?, server, &json)?;
    let count = |name: &str| results["counters"][name].as_u64().unwrap_or(0);
    ensure!(count("handed_over") > 0, "all frames arrived at their engines: {results}");
    // Eight engines share the machine's processors. If an engine does not run for long, its ring is full and
    // drops frames, like the ring of a device.
    let dropped = count("handed_over_dropped");
    ensure!(50 * dropped <= count("handed_over"), "frames were lost between engines: {results}");
    let engines = results["engines"].as_array().ok_or_else(|| lab_error!("no engines: {results}"))?;
    let idle = |engine: &&serde_json::Value| engine["connections"].as_u64() != Some(3);
    ensure!(engines.len() == 4 && !engines.iter().any(|engine| idle(&engine)), "{results}");
    Ok(())
}
