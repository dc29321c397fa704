//! The same unmodified programs over rxe in the machine, and over `libuwarp.so` here. They exchange the
//! numbers of their queue pairs by the kernel's TCP.

use std::time::{Duration, Instant};

use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Driver, Ended, Namespace, Process, Result, Run, Suite, programs, tcp_listeners};
use tests::{ensure, lab_error};

use crate::siw::rig::{KERNELS, OURS, Rig, Shared, THEIRS};

/// The index of our GID that contains our IPv4 address, and the index of the machine's.
const GIDS: [&str; 2] = ["3", "1"];
/// The TCP port of all programs.
const PORT: u16 = 18_515;

/// A program: its options on both sides, and the option for the index of the GID.
struct Program {
    name: &'static str,
    options: &'static str,
    gid: &'static str,
    /// A text that both sides print.
    shows: &'static str,
}

const PROGRAMS: [Program; 3] = [
    // The option `-c` makes the program check the bytes of each message.
    Program { name: "ibv_ud_pingpong", options: "-c -s 1024 -n 200", gid: "-g", shows: "200 iters in" },
    Program { name: "ib_send_lat", options: "-c UD -F -s 1000 -n 200", gid: "-x", shows: "#bytes" },
    // rxe has no receive posted for messages that arrive faster than its program posts receives again, so
    // there are no more messages than receives.
    Program { name: "ib_send_bw", options: "-c UD -F -s 1024 -n 200", gid: "-x", shows: "#bytes" },
];

impl Program {
    fn words(&self, gid: &'static str, server: Option<&'static str>) -> Vec<&'static str> {
        let options = self.options.split_whitespace().chain([self.gid, gid]).chain(server);
        std::iter::once(self.name).chain(options).collect()
    }
}

/// Adds each program in both directions.
pub(super) fn add(suite: &mut Suite, shared: &Shared) {
    for program in &PROGRAMS {
        for (name, test) in
            [("rxe_serves", rxe_serves as fn(&Rig, &Program) -> _), ("rxe_connects", rxe_connects)]
        {
            let shared = shared.clone();
            suite.add(format!("{}_{name}", program.name), move || {
                shared.on(Driver::Rxe, 1500, Vec::new(), |rig| test(rig, program))
            });
        }
    }
}

/// Returns a run of a program on our side. perftest uses UD's rules only on an InfiniBand device: on an iWARP
/// device its Sends need credits, which the peer grants by Writes.
pub(super) fn ours(namespace: &Namespace, net: &str, words: &[&str]) -> Result<Run> {
    let run = namespace.run(programs::uwarp()?).args(["run", "--pretend", "ib", "--net", net, "--"]);
    Ok(run.args(words))
}

fn net(rig: &Rig) -> String {
    format!("packet:v1,addr={OURS}/24,mtu={}", rig.mtu())
}

fn rxe_serves(rig: &Rig, program: &Program) -> Result<()> {
    let server = rig.siw.serve_tcp(TEST_TIMEOUT, PORT, program.words(GIDS[1], None))?;
    let client = ours(&rig.namespace, &net(rig), &program.words(GIDS[0], Some(THEIRS)))?.spawn()?;
    both(program.shows, ("our side", client), ("rxe's side", server))
}

fn rxe_connects(rig: &Rig, program: &Program) -> Result<()> {
    let mut server = ours(&rig.namespace, &net(rig), &program.words(GIDS[0], None))?.spawn()?;
    wait_for_tcp(&rig.namespace, &mut server)?;
    let client = rig.siw.run(TEST_TIMEOUT, program.words(GIDS[1], Some(KERNELS))).spawn()?;
    both(program.shows, ("rxe's side", client), ("our side", server))
}

/// Waits until a program listens at `PORT`. A connection to the port would be taken for the client.
fn wait_for_tcp(namespace: &Namespace, server: &mut Process) -> Result<()> {
    let [ss, words @ ..] = tcp_listeners(PORT);
    let started = Instant::now();
    while namespace.run(&ss).args(&words).check(TEST_TIMEOUT)?.is_empty() {
        ensure!(server.is_running()?, "the server ended: {}", server.text());
        ensure!(started.elapsed() < START_TIMEOUT, "the server does not listen: {}", server.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits until both sides have ended, which have to succeed and to print a text.
pub(super) fn both(shows: &str, client: (&str, Process), server: (&str, Process)) -> Result<()> {
    let said = client
        .1
        .finish(TEST_TIMEOUT + Duration::from_secs(5))
        .and_then(Ended::success)
        .map_err(|error| lab_error!("{}: {error}\n---- {}\n{}", client.0, server.0, server.1.text()))?;
    let answered = server.1.finish(Duration::from_secs(20))?.success()?;
    for (side, text) in [(client.0, said), (server.0, answered)] {
        ensure!(text.contains(shows), "{side} does not print '{shows}':\n{text}");
    }
    Ok(())
}
