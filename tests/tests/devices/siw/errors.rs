//! An error of a peer ends `iwperf` within `LIMIT`, with one clear line and a non-zero exit status. Some
//! tests also check that the machine is replaced after it hangs, and that a test waits for a machine that
//! answers late.

use std::time::Duration;

use tests::iwperf::{TEST_TIMEOUT, iwperf, serve, wait_to_move};
use tests::lab::{Process, Result, Suite, programs};
use tests::{ensure, lab_error};

use super::rig::{OURS, Rig, Shared, THEIRS};

/// The default time limit for waiting for a peer (ten seconds), with a margin for a busy machine.
const LIMIT: Duration = Duration::from_secs(25);

/// Words in the error if the peer's kernel closes its connection: by a FIN, a RST, or a Terminate.
const GONE: [&str; 3] = ["closed", "reset", "terminated"];

/// Whether the next test can use the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Afterwards {
    Reused,
    Replaced,
}

pub(crate) fn add(suite: &mut Suite, shared: &Shared) {
    use Afterwards::{Replaced, Reused};

    type Case = fn(&Rig) -> Result<()>;
    let cases: [(&str, Case, Afterwards); 7] = [
        ("nobody_listens", nobody_listens, Reused),
        ("machine_is_late", machine_is_late, Reused),
        ("markers_are_rejected", markers_are_rejected, Reused),
        ("server_is_killed", server_is_killed, Reused),
        ("client_is_killed", client_is_killed, Reused),
        ("peer_falls_silent", peer_falls_silent, Replaced),
        // After the machine's kernel has terminated a connection, the kernel sometimes fails and keeps the
        // listener, so the machine is replaced.
        ("siw_terminates", siw_terminates, Replaced),
    ];
    for (name, case, afterwards) in cases {
        let shared = shared.clone();
        suite.add(format!("error_{name}"), move || {
            let result = shared.with(1500, &[], case);
            if afterwards == Replaced {
                shared.end();
            }
            result
        });
    }
    let shared = shared.clone();
    suite.add("error_machine_hangs", move || machine_hangs(&shared));
}

/// If the machine of a test no longer answers, the test fails with the console in its error, and the next
/// test has another machine.
fn machine_hangs(shared: &Shared) -> Result<()> {
    let hang = |rig: &Rig| {
        rig.siw.freeze()?;
        Err::<(), _>(lab_error!("the test has failed"))
    };
    let error = shared.with(1500, &[], hang).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(
        error.starts_with("the test has failed") && error.contains("siw-peer: ready"),
        "the console is missing in: {error}"
    );
    shared.with(1500, &[], |rig| {
        ensure!(rig.siw.answers(), "the new machine does not answer");
        Ok(())
    })
}

/// A test begins only when its machine answers, even if that takes longer than a client tries to resolve a
/// neighbour.
fn machine_is_late(rig: &Rig) -> Result<()> {
    const LATE: Duration = Duration::from_secs(5);
    let siw = &rig.siw;
    siw.freeze()?;
    std::thread::scope(|scope| {
        let thaws = scope.spawn(|| {
            std::thread::sleep(LATE);
            siw.thaw()
        });
        let is_there = rig.wait_for_wire();
        thaws.join().map_err(|_| lab_error!("the thread panicked"))??;
        is_there
    })?;
    nobody_listens(rig)
}

/// Checks that the program ends by itself in time, with an error whose line contains one of these words.
fn ends_with(process: Process, words: &[&str]) -> Result<()> {
    let ended = process.finish(LIMIT)?;
    let line = ended.failure()?;
    ensure!(line.starts_with("iwperf: "), "not one clear line: {}", ended.text);
    ensure!(words.iter().any(|word| line.contains(word)), "none of {words:?} in: {line}");
    Ok(())
}

fn client(rig: &Rig, args: &[&str]) -> Result<Process> {
    iwperf(Some(&rig.namespace), ["send-bw", THEIRS])?.args(args).args(rig.net().args()).spawn()
}

fn nobody_listens(rig: &Rig) -> Result<()> {
    ends_with(client(rig, &["-n", "5"])?, &["refused"])
}

/// siw does not support markers: its Reply rejects a Request for markers (flag R is set).
fn markers_are_rejected(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-n", "5"])?;
    ends_with(client(rig, &["-n", "5", "--markers"])?, &["reject"])
}

/// After a Write to an STag that siw does not know, the application gets siw's Terminate with layer, type and
/// code.
fn siw_terminates(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["rping", "-s", "-v"])?;
    let net = rig.net();
    let run = rig.namespace.run(programs::own("bad-write")?).args(["--vdev", &net.vdev, "--ip", &net.ip]);
    let said = run.args(["--connect", &format!("{THEIRS}:7174")]).check(TEST_TIMEOUT)?;
    ensure!(said.contains("layer 0x1, type 0x1, code 0x00"), "not an invalid STag, tagged: {said}");
    Ok(())
}

fn server_is_killed(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40"])?;
    let mut client = client(rig, &["-D", "40"])?;
    wait_to_move(&mut client)?;
    kill_in_machine(rig)?;
    ends_with(client, &GONE)
}

fn client_is_killed(rig: &Rig) -> Result<()> {
    let mut server = serve(Some(&rig.namespace), &rig.net(), ["server", "--test", "send-bw", "-D", "40"])?;
    let _client = rig.siw.run(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40", OURS]).spawn()?;
    wait_to_move(&mut server)?;
    kill_in_machine(rig)?;
    ends_with(server, &GONE)
}

/// The whole machine is stopped, so it sends no FIN, no RST and no acknowledgement.
fn peer_falls_silent(rig: &Rig) -> Result<()> {
    let _server = rig.siw.serve(TEST_TIMEOUT, ["ib_send_bw", "-R", "-F", "-D", "40"])?;
    let mut client = client(rig, &["-D", "40"])?;
    wait_to_move(&mut client)?;
    rig.siw.freeze()?;
    let result = ends_with(client, &["does not answer", "silent"]);
    rig.siw.thaw()?;
    result
}

/// Kills the program in the machine by SIGKILL. The machine's kernel closes the connection.
fn kill_in_machine(rig: &Rig) -> Result<()> {
    let kill = rig.siw.run(TEST_TIMEOUT, ["killall", "-9", "ib_send_bw"]).check(TEST_TIMEOUT);
    kill.map(drop).map_err(|error| lab_error!("nothing to kill: {error}"))
}
