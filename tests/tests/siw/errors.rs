//! What goes wrong with a peer ends as one clear line and a non-zero exit, within ten seconds.

use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, iwperf, serve};
use tests::lab::{Process, Result, Suite};
use tests::{ensure, lab_error};

use crate::rig::{OURS, Rig, Shared, THEIRS};

/// The default limit of every wait for a peer, and what a busy machine adds.
const LIMIT: Duration = Duration::from_secs(13);

/// Adds the tests; the last of them uses the machine up.
pub(crate) fn add(suite: &mut Suite, shared: &Shared) {
    type Case = fn(&Rig) -> Result<()>;
    let cases: [(&str, Case); 5] = [
        ("nobody_listens", nobody_listens),
        ("markers_are_rejected", markers_are_rejected),
        ("server_is_killed", server_is_killed),
        ("client_is_killed", client_is_killed),
        ("peer_falls_silent", peer_falls_silent),
    ];
    for (name, case) in cases {
        let shared = shared.clone();
        suite.add(format!("error_{name}"), move || {
            let result = shared.with(1500, &[], case);
            if name == "peer_falls_silent" {
                shared.end();
            }
            result
        });
    }
}

/// It ends by itself, in time, with an error that says something.
fn ends_with_error(process: Process) -> Result<()> {
    let ended = process.finish(LIMIT)?;
    let line = ended.failure()?;
    ensure!(!line.is_empty() && !line.contains("panicked"), "not one clear line: {}", ended.text);
    Ok(())
}

fn client(rig: &Rig, args: &[&str]) -> Result<Process> {
    iwperf(Some(&rig.namespace), ["send-bw", THEIRS])?.args(args).args(rig.net().args()).spawn()
}

fn nobody_listens(rig: &Rig) -> Result<()> {
    ends_with_error(client(rig, &["-n", "5"])?)
}

/// siw knows no markers: its Reply says so (R set).
fn markers_are_rejected(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-n", "5"])?;
    ends_with_error(client(rig, &["-n", "5", "--markers"])?)
}

fn server_is_killed(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40"])?;
    let client = client(rig, &["-D", "40"])?;
    let_it_run();
    kill_in_machine(rig)?;
    ends_with_error(client)
}

fn client_is_killed(rig: &Rig) -> Result<()> {
    let server = serve(Some(&rig.namespace), &rig.net(), ["server", "--test", "send-bw", "-D", "40"])?;
    let _client = rig.siw.run(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40", OURS]).spawn()?;
    let_it_run();
    kill_in_machine(rig)?;
    ends_with_error(server)
}

/// The whole machine stands still: no FIN, no RST, no acknowledgement.
fn peer_falls_silent(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40"])?;
    let client = client(rig, &["-D", "40"])?;
    let_it_run();
    rig.siw.freeze()?;
    let result = ends_with_error(client);
    rig.siw.thaw()?;
    result
}

/// Starting takes a second or two, and nothing says when data begin to flow.
fn let_it_run() {
    std::thread::sleep(Duration::from_secs(4));
}

/// SIGKILL inside the machine: its kernel closes the connection as it sees fit.
fn kill_in_machine(rig: &Rig) -> Result<()> {
    let kill = rig.siw.run(TEST_TIMEOUT, ["killall", "-9", "ib_send_bw"]).check(TEST_TIMEOUT);
    kill.map(drop).map_err(|error| lab_error!("nothing to kill: {error}"))
}
