//! `ib_atomic_bw` and `ib_atomic_lat`, unmodified over `libuwarp.so`, with `iwperf` as their peer, each as
//! server and as client. This suite tests atomics against perftest, since siw has no atomics. It also tests
//! endless runs.

use std::net::IpAddr;
use std::time::Duration;

use tests::iwperf::{Net, START_TIMEOUT, TEST_TIMEOUT, Test, host, iwperf, perftest, results};
use tests::lab::{Ended, Namespace, Prerequisite, Process, Result, Scratch, Suite, programs};
use tests::{ensure, lab_error};

use super::programs::hosts;

/// The addresses of perftest and of iwperf.
const PERFTEST_IP: &str = "10.64.0.1/24";
const IWPERF_IP: &str = "10.64.0.2/24";
const MTU: u16 = 1500;
/// Number of messages of a test.
const ITERATIONS: u64 = 300;

/// The address of the kernel on iwperf's host, and the port of perftest.
const KERNELS_IP: &str = "10.64.0.3/24";
const PORT: u16 = 18_515;

pub(super) fn add_to(suite: &mut Suite) {
    let needs = [Prerequisite::Program("ib_atomic_bw"), Prerequisite::Program("ib_atomic_lat")];
    for (test, options) in [
        (Test::AtomicBw, "-A FETCH_AND_ADD"),
        (Test::AtomicBw, "-A CMP_AND_SWAP"),
        (Test::AtomicBw, "-A FETCH_AND_ADD -b -q 3"),
        (Test::AtomicLat, "-A FETCH_AND_ADD"),
        (Test::AtomicLat, "-A CMP_AND_SWAP"),
    ] {
        let name =
            format!("{}_{}", perftest(test), options.replace("-", "").replace(' ', "_").to_lowercase());
        suite.add_with(&needs, format!("{name}_serves"), move || perftest_serves(test, options));
        suite.add_with(&needs, format!("{name}_connects"), move || perftest_connects(test, options));
    }
    let needs = [Prerequisite::Program("ib_send_bw"), Prerequisite::Program("ib_write_bw")];
    for (test, options) in [(Test::SendBw, ""), (Test::WriteBw, "-b")] {
        let name = format!("{}_endless{}", perftest(test), options.replace('-', "_"));
        suite.add_with(&needs, name, move || endless(test, options));
    }
}

/// Returns the options of the server and the client.
fn shape(options: &str) -> Vec<String> {
    let iterations = ITERATIONS.to_string();
    ["-n", &iterations].into_iter().chain(options.split_whitespace()).map(str::to_owned).collect()
}

/// Starts a tool of perftest.
fn start(namespace: &Namespace, test: Test, options: &[String]) -> Result<Process> {
    let net = format!("packet:v0,addr={PERFTEST_IP}");
    let tool = ["run", "--net", &net, "--", perftest(test), "-R", "-F"];
    namespace.run(programs::uwarp()?).args(tool).args(options).spawn()
}

/// Starts a server, and waits until it listens.
fn serve([theirs, ours]: &[Namespace; 2], test: Test, options: &[String]) -> Result<Process> {
    // perftest does not print anything when it listens, so the kernel of the other host tries to connect.
    ours.address("v0", KERNELS_IP)?;
    let mut server = start(theirs, test, options)?;
    let address: IpAddr = host(PERFTEST_IP).parse().map_err(|error| lab_error!("{PERFTEST_IP}: {error}"))?;
    ours.wait_for_listener((address, PORT).into(), &mut server, START_TIMEOUT)?;
    Ok(server)
}

fn perftest_serves(test: Test, options: &str) -> Result<()> {
    let hosts = hosts(MTU, true)?;
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let server = serve(&hosts, test, &shape(options))?;
    let client = iwperf(Some(&hosts[1]), [test.name(), host(PERFTEST_IP)])?
        .args(shape(options))
        .arg("--json")
        .arg(&json)
        .args(Net::packet("v0", IWPERF_IP, MTU));
    let ended = client.spawn()?.finish(TEST_TIMEOUT).and_then(Ended::success);
    ended.map_err(|error| lab_error!("{error}\n---- perftest\n{}", server.text()))?;
    server.finish(TEST_TIMEOUT)?.success()?;
    let results = results(&json)?;
    let wanted = if options.contains("-q 3") { 3 * ITERATIONS } else { ITERATIONS };
    ensure!(results["results"][0]["iterations"].as_u64() == Some(wanted), "{results}");
    Ok(())
}

fn perftest_connects(test: Test, options: &str) -> Result<()> {
    let [theirs, ours] = hosts(MTU, true)?;
    let mut server = iwperf(Some(&ours), ["server", "--test", test.name()])?
        .args(shape(options))
        .args(Net::packet("v0", IWPERF_IP, MTU))
        .spawn()?;
    server.wait_for("listening on port", START_TIMEOUT)?;
    let mut options = shape(options);
    options.push(host(IWPERF_IP).to_owned());
    let said = start(&theirs, test, &options)?
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- iwperf\n{}", server.text()))?;
    let is_row = |line: &str| line.split_whitespace().next() == Some("8");
    ensure!(said.lines().any(is_row), "no row of results:\n{said}");
    server.finish(TEST_TIMEOUT)?.success()?;
    Ok(())
}

/// The server (perftest) and the client run without an end. iwperf prints a row every second, until an
/// interrupt ends it.
fn endless(test: Test, options: &str) -> Result<()> {
    let hosts = hosts(MTU, true)?;
    let endless = ["--run_infinitely", "-D", "1"].into_iter().chain(options.split_whitespace());
    let endless: Vec<String> = endless.map(str::to_owned).collect();
    let server = serve(&hosts, test, &endless)?;
    let mut client = iwperf(Some(&hosts[1]), [test.name(), host(PERFTEST_IP)])?
        .args(&endless)
        .args(Net::packet("v0", IWPERF_IP, MTU))
        .spawn()?;
    let row = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("65536 ")).count();
    let started = std::time::Instant::now();
    while row(&client.text()) < 2 {
        ensure!(client.is_running()?, "iwperf ended: {}\n---- perftest\n{}", client.text(), server.text());
        ensure!(started.elapsed() < TEST_TIMEOUT, "no rows: {}", client.text());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
