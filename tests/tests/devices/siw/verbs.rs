//! Our verbs against siw's, message by message: the scenes of `verbs-scenes`, with iwprobe's target in the
//! machine.

use std::time::Duration;

use tests::iwperf::{Net, START_TIMEOUT};
use tests::lab::{Process, Result, Suite, programs};
use tests::{ensure, lab_error};

use super::rig::{OURS, OURS_6, Rig, Shared, THEIRS, THEIRS_6};

/// Maximum duration of all scenes of one run on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// The port on which we or the target listens.
const PORT: u16 = 7471;
/// The beginnings of the names of all scenes, except those of `terminate.rs`, in which one side refuses a
/// message.
const GOOD: [&str; 6] = ["write", "read", "send", "both", "solicited", "invalidate"];

/// The side that listens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    SiwServes,
    SiwConnects,
}

const ROLES: [(&str, Role); 2] = [("siw_serves", Role::SiwServes), ("siw_connects", Role::SiwConnects)];

/// Adds tests of every message in both directions, with CRCs and without CRCs.
pub(crate) fn add(suite: &mut Suite, shared: &Shared, mtu: u16) {
    for (name, role) in ROLES {
        for (crc, options) in [("crc", &[][..]), ("no_crc", &["--no-crc"][..])] {
            let shared = shared.clone();
            suite.add(format!("verbs_mtu{mtu}_{crc}_{name}"), move || {
                shared.with(mtu, &[], |rig| play(rig, role, (OURS, 24, THEIRS), options, &GOOD).map(drop))
            });
        }
    }
}

/// Adds tests over IPv6, and tests of messages that a side refuses. Terminates that siw sends are reported by
/// both applications. Terminates that we send are reported by siw's kernel.
pub(crate) fn add_ends(suite: &mut Suite, shared: &Shared) {
    for (name, role) in ROLES {
        let rig = shared.clone();
        suite.add(format!("verbs_ipv6_{name}"), move || {
            rig.with(1500, &[], |rig| play(rig, role, (OURS_6, 64, THEIRS_6), &[], &GOOD).map(drop))
        });
        let rig = shared.clone();
        suite.add(format!("verbs_terminates_{name}"), move || {
            rig.with(1500, &[], |rig| terminates(rig, role))
        });
    }
}

/// Plays scenes. Returns the lines of the scenes that passed.
fn play(
    rig: &Rig,
    role: Role,
    (ours, prefix, theirs): (&str, u8, &str),
    options: &[&str],
    scenes: &[&str],
) -> Result<Vec<String>> {
    let target = rig.target()?;
    let port = PORT.to_string();
    let Net { vdev, ip, mtu } = Net { ip: format!("{ours}/{prefix}"), ..rig.net() };
    let run = rig.namespace.run(programs::own("verbs-scenes")?);
    let run = run.args(["--vdev", &vdev, "--ip", &ip, "--mtu", &mtu.to_string()]).args(options);
    let start = |how, address| rig.siw.run(LIMIT, [target, how, address, &port]).spawn();
    let (scenes, target): (Process, Process) = match role {
        Role::SiwServes => {
            let mut target = start("listen", theirs)?;
            target.wait_for("listening on port", START_TIMEOUT)?;
            let remote =
                if theirs.contains(':') { format!("[{theirs}]:{port}") } else { format!("{theirs}:{port}") };
            (run.args(["--connect", &remote]).args(scenes).spawn()?, target)
        }
        Role::SiwConnects => {
            let mut scenes = run.args(["--listen", &port]).args(scenes).spawn()?;
            scenes.wait_for("listening", START_TIMEOUT)?;
            (scenes, start("connect", ours)?)
        }
    };
    let ended = scenes.finish(LIMIT).and_then(|ended| ended.success());
    let said = ended.map_err(|error| lab_error!("{error}\n---- siw's side\n{}", target.text()))?;
    if role == Role::SiwConnects {
        target.finish(START_TIMEOUT)?.success()?;
    }
    Ok(said.lines().filter(|line| line.starts_with("ok ")).map(str::to_owned).collect())
}

/// Checks that the kernel log of siw's machine has the codes of the Terminates that we sent. In the log, the
/// layer and the type are swapped, since siw parses these two fields in the other order.
fn terminates(rig: &Rig, role: Role) -> Result<()> {
    let logged = |rig: &Rig| -> Result<Vec<String>> {
        let log = rig.siw.kernel_log()?;
        ensure!(!log.contains("kernel BUG"), "siw's kernel died:\n{log}");
        let read =
            |line: &str| line.split_once("got TERMINATE. ").map(|(_, numbers)| numbers.trim().to_owned());
        Ok(log.lines().filter_map(read).collect())
    };
    let before = logged(rig)?.len();
    let lines = play(rig, role, (OURS, 24, THEIRS), &[], &["terminate", "invalidate_local"])?;
    let sent = lines.iter().filter_map(|line| line.split_once(": we ")).map(|(_, codes)| {
        let mut codes = codes.split('/');
        let [layer, etype, code] = std::array::from_fn(|_| codes.next().unwrap_or_default());
        format!("layer {etype}, type {layer}, code {code}")
    });
    let sent: Vec<String> = sent.collect();
    let got = logged(rig)?.split_off(before);
    ensure!(!sent.is_empty() && got == sent, "siw's kernel has read {got:?}, we have sent {sent:?}");
    Ok(())
}
