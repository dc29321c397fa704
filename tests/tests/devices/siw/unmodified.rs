//! The same unmodified programs on both sides: over siw in the machine, and over `libuwarp.so` here.

use std::net::IpAddr;
use std::time::Duration;

use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Ended, Result, Run, Scratch, Suite, programs};
use tests::{ensure, lab_error};

use super::rig::{OURS, Rig, Shared, THEIRS};

/// A program: its options on both sides, its options on each side, and its port.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    both: &'static str,
    server: &'static str,
    client: &'static str,
    port: u16,
    /// A text that the client prints.
    shows: &'static str,
}

const PERFTEST: Program =
    Program { name: "", both: "-R -F -s 40000 -n 50", server: "", client: "", port: 18_515, shows: "#bytes" };

const PROGRAMS: [Program; 5] = [
    Program {
        name: "rping",
        both: "-V -v -C 10 -S 60000",
        server: "-s",
        client: "-c -a",
        port: 7174,
        shows: "rdma-ping-9: ",
    },
    Program { name: "ib_write_bw", ..PERFTEST },
    Program { name: "ib_read_bw", ..PERFTEST },
    Program { name: "ib_send_bw", ..PERFTEST },
    Program { name: "ib_send_lat", both: "-R -F -s 3000 -n 50", ..PERFTEST },
];

/// The source of a library that delays each call of `rdma_resolve_addr` after the first call. perftest's
/// server closes its listener after the control connection and then creates another listener. With any
/// device, the server refuses a client that connects when there is no listener, and perftest's client then
/// ends. The emulated machine needs longer for its listener than our client needs to connect again.
const LATE_RESOLVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/devices/siw/late_resolve.c");

/// The script of a shell that starts a program with `LATE_RESOLVE` before `libuwarp.so`.
const WITH_LIBRARY: &str = "LD_PRELOAD=$0:$LD_PRELOAD exec \"$@\"";

/// Maximum number of runs of a program whose server refuses the client, despite the delay.
const RUNS_OF_REFUSED: usize = 5;

impl Program {
    fn words(self, end: &str, address: Option<&'static str>) -> Vec<&'static str> {
        let own = if end == "server" { self.server } else { self.client };
        let options = own.split_whitespace().chain(address).chain(self.both.split_whitespace());
        std::iter::once(self.name).chain(options).collect()
    }
}

/// Adds each program in both directions.
pub(crate) fn add(suite: &mut Suite, shared: &Shared, mtu: u16) {
    for program in PROGRAMS {
        let rig = shared.clone();
        suite.add(format!("unmodified_mtu{mtu}_{}_siw_serves", program.name), move || {
            rig.with(mtu, &[], |rig| siw_serves_in_time(rig, program))
        });
    }
    for program in PROGRAMS {
        let rig = shared.clone();
        suite.add(format!("unmodified_mtu{mtu}_{}_siw_connects", program.name), move || {
            rig.with(mtu, &[], |rig| siw_connects(rig, program))
        });
    }
}

/// Returns a run of a command on our side.
fn ours(rig: &Rig, words: &[&str]) -> Result<Run> {
    let net = format!("packet:v1,addr={OURS}/24,mtu={}", rig.mtu());
    Ok(rig.namespace.run(programs::uwarp()?).args(["run", "--net", &net, "--"]).args(words))
}

/// Runs a program whose server is in the machine. Runs it again if the server refuses the client.
fn siw_serves_in_time(rig: &Rig, program: Program) -> Result<()> {
    let scratch = Scratch::new()?;
    let library = scratch.file("late_resolve.so");
    let library = library.to_str().ok_or_else(|| lab_error!("{} is not UTF-8", library.display()))?;
    Run::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o", library, LATE_RESOLVE])
        .check(TEST_TIMEOUT)?;
    let mut result = siw_serves(rig, program, library);
    for _ in 1..RUNS_OF_REFUSED {
        match &result {
            Err(error) if error.to_string().contains("RDMA_CM_EVENT_REJECTED") => {
                result = siw_serves(rig, program, library);
            }
            _ => break,
        }
    }
    result
}

fn siw_serves(rig: &Rig, program: Program, library: &str) -> Result<()> {
    let server = rig.siw.serve(TEST_TIMEOUT, program.words("server", None))?;
    let shell = vec!["sh", "-c", WITH_LIBRARY, library];
    let client = ours(rig, &[shell, program.words("client", Some(THEIRS))].concat())?.spawn()?;
    let said = client
        .finish(TEST_TIMEOUT)
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- siw's side\n{}", server.text()))?;
    ensure!(said.contains(program.shows), "the client does not print '{}':\n{said}", program.shows);
    let ended = server.finish(Duration::from_secs(20))?;
    // Over siw, the exit code of rping's server is not reliable (see the README of `tests/siw-peer`).
    if program.name != "rping" {
        ended.success()?;
    }
    Ok(())
}

fn siw_connects(rig: &Rig, program: Program) -> Result<()> {
    let mut server = ours(rig, &program.words("server", None))?.spawn()?;
    let address = (OURS.parse::<IpAddr>().map_err(|error| lab_error!("{OURS}: {error}"))?, program.port);
    rig.namespace.wait_for_listener(address.into(), &mut server, START_TIMEOUT)?;
    let client = rig.siw.run(TEST_TIMEOUT, program.words("client", Some(OURS))).spawn()?;
    let said = client
        .finish(TEST_TIMEOUT + Duration::from_secs(5))
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{error}\n---- our side\n{}", server.text()))?;
    ensure!(said.contains(program.shows), "the client does not print '{}':\n{said}", program.shows);
    server.finish(Duration::from_secs(20))?.success()?;
    Ok(())
}
