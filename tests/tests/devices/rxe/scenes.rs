//! `ud_peer.c` on both sides. It checks each message: the bytes, the fields of the completion, the GRH, and
//! which messages are dropped. The test checks the counters of both sides.

use std::collections::BTreeMap;
use std::time::Duration;

use tests::iwperf::{START_TIMEOUT, TEST_TIMEOUT};
use tests::lab::{Driver, Ended, Result, Suite};
use tests::{ensure, lab_error};

use super::programs::ours;
use super::ud_peer::{Counters, Program};
use crate::siw::rig::{KERNELS, OURS, OURS_6, Rig, Shared};

/// The scenes that both families have, and the number of messages of each side in them.
const SCENES: [&str; 3] = ["messages", "answers", "errors"];
const MESSAGES: u64 = 20 + 16 + 6;
/// Number of messages of the scene `errors` that the receiver refuses: a wrong Q_Key, and an unknown queue
/// pair.
const REFUSED: u64 = 2;
/// Number of messages in the scene of a group, and number of those that arrive after the receiver has left
/// the group.
const OF_GROUP: u64 = 6;
const AFTER_LEAVE: u64 = 1;

/// Where the program in the machine is.
const THERE: &str = "/tmp/ud_peer";
/// The kernel's counters of rxe, and of UDP.
const ASK: &str = r#"cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep . *
awk '/^Udp:/ { if (split($0, name) && n++) for (i = 2; i <= NF; i++) print "Udp" names[i] ":" $i
               for (i in name) names[i] = name[i] }' /proc/net/snmp
awk '/^Udp6/ { print $1 ":" $2 }' /proc/net/snmp6"#;

/// An address family: our address, the indexes of the GIDs with our address and with that of the machine, and
/// a group.
#[derive(Clone, Copy)]
struct Family {
    address: &'static str,
    prefix: u8,
    gids: [&'static str; 2],
    group: &'static str,
}

const V4: Family = Family { address: OURS, prefix: 24, gids: ["3", "1"], group: "239.193.2.3" };
const V6: Family = Family { address: OURS_6, prefix: 64, gids: ["1", "2"], group: "ff15::1:7" };

pub(super) fn add(suite: &mut Suite, shared: &Shared) {
    // The machine is booted with the smaller MTU first, which the programs have used.
    for (name, family, mtu) in [("ipv4", V4, 1500), ("ipv6", V6, 1500), ("ipv4_mtu9000", V4, 9000)] {
        let shared = shared.clone();
        suite.add(format!("scenes_{name}"), move || {
            shared.on(Driver::Rxe, 1500, Vec::new(), |rig| {
                set_mtu(rig, mtu)?;
                play(rig, family, mtu)
            })
        });
    }
}

/// Sets the MTU of the wire, which takes less time than to boot another machine.
fn set_mtu(rig: &Rig, mtu: u16) -> Result<()> {
    let mtu = mtu.to_string();
    let set = ["link", "set", "eth0", "mtu", &mtu];
    rig.siw.run(TEST_TIMEOUT, ["ip"].into_iter().chain(set)).check(TEST_TIMEOUT)?;
    rig.set_mtu(&mtu)
}

fn play(rig: &Rig, family: Family, mtu: u16) -> Result<()> {
    let Family { address, prefix, gids: [own, others], group } = family;
    let program = Program::compile()?;
    let here = program.path();
    let here = here.to_str().ok_or_else(|| lab_error!("{} is not UTF-8", here.display()))?;
    rig.siw.push(&program.path(), THERE)?;
    let scenes = || SCENES.into_iter().chain([group]);
    let before = kernel_counters(rig)?;

    let net = format!("packet:v1,addr={address}/{prefix},mtu={mtu}");
    let words: Vec<_> = ["env", "HOLD=1", here, "listen", KERNELS, own].into_iter().chain(scenes()).collect();
    let mut server = ours(&rig.namespace, &net, &words)?.spawn()?;
    server.wait_for("listening", START_TIMEOUT)?;
    let words = ["env", "JOIN=eth0", THERE, "connect", KERNELS, others].into_iter().chain(scenes());
    let client = rig.siw.run(TEST_TIMEOUT, words).spawn()?;
    let said = client
        .finish(TEST_TIMEOUT + Duration::from_secs(5))
        .and_then(Ended::success)
        .map_err(|error| lab_error!("rxe's side: {error}\n---- our side\n{}", server.text()))?;
    server.wait_for("done", START_TIMEOUT)?;
    let longest = format!("messages of up to {} bytes", if mtu > 4200 { 4096 } else { 1024 });
    for text in [&said, &server.text()] {
        ensure!(text.matches(&longest).count() == 2 && text.matches("ok ").count() == 8, "{text}");
    }

    // Each side sends in each scene. Our port filters the messages to a group that we have left.
    let sent = MESSAGES + OF_GROUP;
    let expected = Counters {
        received: sent - REFUSED - 1 - AFTER_LEAVE,
        invalid: 0,
        refused: REFUSED,
        not_ready: 1,
        sent,
        unsent: 0,
    };
    Counters::wait(&server, expected)?;
    server.terminate();
    server.finish(START_TIMEOUT)?.success()?;

    let after = kernel_counters(rig)?;
    let of = |name: &str| {
        let value = |counters: &BTreeMap<String, u64>| counters.get(name).copied();
        value(&after).zip(value(&before)).map(|(after, before)| after - before)
    };
    // rxe counts a packet after its checks, which include the ICRC.
    let arrived = of("rcvd_pkts");
    ensure!(arrived == Some(sent - REFUSED), "rxe has accepted {arrived:?}: {after:?}");
    for (name, value) in &after {
        let is_error = ["err", "exceeded", "duplicate", "out_of_seq", "Errors", "NoPorts", "downed"];
        if is_error.iter().any(|word| name.contains(word)) {
            ensure!(of(name) == Some(0), "{name}: {value}");
        }
    }
    Ok(())
}

/// Reads the counters of the machine's kernel.
fn kernel_counters(rig: &Rig) -> Result<BTreeMap<String, u64>> {
    let text = rig.siw.run(TEST_TIMEOUT, ["sh", "-c", ASK]).check(TEST_TIMEOUT)?;
    let counters: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect();
    ensure!(counters.contains_key("UdpInErrors") && counters.contains_key("send_err"), "{text}");
    Ok(counters)
}
