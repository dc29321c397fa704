//! Six tools of perftest with `-R` in the machine, and `iwperf` here, each as server and as client.

use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, Test, iwperf, perftest, quick, results, serve};
use tests::lab::{Ended, Result, Scratch, Suite};
use tests::{ensure, lab_error};

use super::rig::{OURS, Rig, Shared, THEIRS};

/// The tests of perftest without atomics and Immediate Data, which siw does not support.
const TESTS: [Test; 6] =
    [Test::WriteBw, Test::ReadBw, Test::SendBw, Test::WriteLat, Test::ReadLat, Test::SendLat];

/// The side that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Siw,
    Iwperf,
}

impl Server {
    const BOTH: [Self; 2] = [Self::Siw, Self::Iwperf];

    fn name(self) -> &'static str {
        match self {
            Self::Siw => "siw_serves",
            Self::Iwperf => "siw_connects",
        }
    }
}

/// Adds all tools in both directions, with siw's defaults.
pub(crate) fn add_all(suite: &mut Suite, shared: &Shared, mtu: u16) {
    for test in TESTS {
        for server in Server::BOTH {
            add(suite, shared, &format!("default_mtu{mtu}"), (test, server), (mtu, &[]), &[]);
        }
    }
}

/// Adds three of the tools in both directions, with these parameters of siw.
pub(crate) fn add_some(suite: &mut Suite, shared: &Shared, kind: &str, params: &'static [&'static str]) {
    for test in [Test::WriteBw, Test::SendBw, Test::WriteLat] {
        for server in Server::BOTH {
            add(suite, shared, kind, (test, server), (1500, params), &[]);
        }
    }
}

/// Adds tests in which iwperf does not ask for CRCs: without CRCs, and with CRCs for which only siw asks.
pub(crate) fn add_crc(suite: &mut Suite, shared: &Shared) {
    for (kind, params) in [("crc_by_nobody", &[][..]), ("crc_by_siw", &["mpa_crc_required=1"][..])] {
        for test in [Test::WriteBw, Test::ReadBw, Test::SendLat] {
            for server in Server::BOTH {
                add(suite, shared, kind, (test, server), (1500, params), &["--no-crc"]);
            }
        }
    }
}

fn add(
    suite: &mut Suite,
    shared: &Shared,
    kind: &str,
    (test, server): (Test, Server),
    (mtu, params): (u16, &'static [&'static str]),
    options: &'static [&'static str],
) {
    let shared = shared.clone();
    suite.add(format!("{kind}_{}_{}", perftest(test), server.name()), move || {
        shared.with(mtu, params, |rig| match server {
            Server::Siw => siw_serves(rig, test, options),
            Server::Iwperf => siw_connects(rig, test, options),
        })
    });
}

/// Returns the options that both sides have to share.
pub(super) fn shape(test: Test) -> [String; 4] {
    let (size, iterations) = quick(test);
    ["-s".to_owned(), size.to_string(), "-n".to_owned(), iterations.to_string()]
}

/// Returns perftest's command line. The option `-F` is necessary, since the machine's clock frequency is not
/// reliable.
pub(super) fn tool(test: Test) -> Vec<String> {
    [perftest(test), "-R", "-F"].map(str::to_owned).into_iter().chain(shape(test)).collect()
}

fn siw_serves(rig: &Rig, test: Test, options: &[&str]) -> Result<()> {
    let scratch = Scratch::new()?;
    let json = scratch.file("result.json");
    let server = rig.siw.serve(TEST_TIMEOUT, tool(test))?;
    let client = iwperf(Some(&rig.namespace), [test.name(), THEIRS])?
        .args(shape(test))
        .arg("--json")
        .arg(&json)
        .args(options)
        .args(rig.net().args())
        .spawn()?;
    client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- siw's side\n{}", server.text()))?;
    // The output is not checked, since the server of a Read prints no table.
    server.finish(Duration::from_secs(20))?.success()?;
    results(&json)?;
    Ok(())
}

fn siw_connects(rig: &Rig, test: Test, options: &[&str]) -> Result<()> {
    let shape = shape(test);
    let words = ["server", "--test", test.name()].into_iter().chain(shape.iter().map(String::as_str));
    let server = serve(Some(&rig.namespace), &rig.net(), words.chain(options.iter().copied()))?;
    let mut tool = tool(test);
    tool.push(OURS.to_owned());
    let client = rig.siw.run(TEST_TIMEOUT, tool).spawn()?;
    let said = client
        .finish(TEST_TIMEOUT + Duration::from_secs(5))
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- our side\n{}", server.text()))?;
    has_result(&said)?;
    server.finish(Duration::from_secs(20))?.success()?;
    Ok(())
}

/// Checks that perftest's output has a table: a line with at least four numbers.
pub(super) fn has_result(text: &str) -> Result<()> {
    let row = |line: &str| line.split_whitespace().filter(|word| word.parse::<f64>().is_ok()).count() >= 4;
    ensure!(text.lines().any(row), "no result in:\n{text}");
    Ok(())
}
