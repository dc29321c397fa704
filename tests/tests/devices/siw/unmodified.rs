//! The same unmodified programs on both sides: over siw in the machine, and over `libuwarp.so` here.

use std::net::IpAddr;
use std::time::Duration;

use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Ended, Result, Run, Suite, programs};
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

/// This program does nothing between its control connection and its second connection, so its client connects
/// before the machine's server listens again. The client ends when the server refuses the connection.
const LATENCY: Program = Program { name: "ib_send_lat", both: "-R -F -s 3000 -n 50", ..PERFTEST };

const PROGRAMS: [Program; 4] = [
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
];

/// Maximum number of attempts of a client to connect before the machine's server listens again.
const REFUSALS: usize = 10;

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
    for program in PROGRAMS.into_iter().chain([LATENCY]) {
        let rig = shared.clone();
        suite.add(format!("unmodified_mtu{mtu}_{}_siw_connects", program.name), move || {
            rig.with(mtu, &[], |rig| siw_connects(rig, program))
        });
    }
}

/// Returns a run of a program on our side.
fn ours(rig: &Rig, words: Vec<&'static str>) -> Result<Run> {
    let net = format!("packet:v1,addr={OURS}/24,mtu={}", rig.mtu());
    Ok(rig.namespace.run(programs::uwarp()?).args(["run", "--net", &net, "--"]).args(words))
}

/// Runs a program whose server is in the machine. Runs it again if the server refuses the client. perftest's
/// server closes its listener after the control connection and then creates another listener. With any
/// device, the server refuses a client that connects when there is no listener.
fn siw_serves_in_time(rig: &Rig, program: Program) -> Result<()> {
    let mut result = siw_serves(rig, program);
    for _ in 1..REFUSALS {
        match &result {
            Err(error) if error.to_string().contains("RDMA_CM_EVENT_REJECTED") => {
                result = siw_serves(rig, program);
            }
            _ => break,
        }
    }
    result
}

fn siw_serves(rig: &Rig, program: Program) -> Result<()> {
    let server = rig.siw.serve(TEST_TIMEOUT, program.words("server", None))?;
    let client = ours(rig, program.words("client", Some(THEIRS)))?.spawn()?;
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
    let mut server = ours(rig, program.words("server", None))?.spawn()?;
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
