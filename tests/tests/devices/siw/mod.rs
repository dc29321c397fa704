//! Our stack against Linux's own iWARP, which runs in a virtual machine on the same bridge. `iwperf` runs
//! against Linux's unmodified RDMA tools. Our verbs run against Linux's verbs, with a target that does what a
//! scene requests (`tests/iwprobe`). Finally, the same unmodified tools run on both sides. `UWARP_SIW=short`
//! leaves out nearly all tests with jumbo frames, and all tests in which siw has parameters other than its
//! defaults.
//!
//! `tests/siw-peer/README.md` describes siw's behaviour on the wire and its defects.

mod errors;
mod perftest;
mod probe;
pub(crate) mod rig;
mod rping;
mod unmodified;
mod verbs;
mod vhost_user;

use rig::Shared;
use tests::lab::{Prerequisite, Suite};

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [
        Prerequisite::Dpdk,
        Prerequisite::Program("python3"),
        Prerequisite::Program("qemu-system-x86_64"),
        Prerequisite::Program("ip"),
        Prerequisite::Program("ethtool"),
        Prerequisite::Tun,
        Prerequisite::SiwImage,
        Prerequisite::Program("make"),
        Prerequisite::Program("cc"),
        Prerequisite::VerbsTarget,
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("siw", &needs);
    let shared = Shared::default();
    let short = std::env::var("UWARP_SIW").is_ok_and(|value| value == "short");
    if short {
        rping::add(&mut suite, &shared, "default", 9000, &[], &[60_000]);
    }
    // The tests are ordered by the kind of machine, since each kind has to be booted.
    for &mtu in if short { &[1500][..] } else { &[9000, 1500] } {
        rping::add(&mut suite, &shared, "default", mtu, &[], &[64, 4096, 60_000]);
        perftest::add_all(&mut suite, &shared, mtu);
        verbs::add(&mut suite, &shared, mtu);
        unmodified::add(&mut suite, &shared, mtu);
    }
    verbs::add_ends(&mut suite, &shared);
    probe::add(&mut suite, &shared);
    vhost_user::add(&mut suite);
    errors::add(&mut suite, &shared);
    if !short {
        add_parameters(&mut suite, &shared);
    }
    let passed = suite.run(arguments);
    shared.end();
    passed
}

/// Adds the tests of siw with other parameters of its module. Each set of parameters needs a machine of its
/// own.
fn add_parameters(suite: &mut Suite, shared: &Shared) {
    // In the tests of `add_crc`, iwperf does not ask for CRCs (`--no-crc`); in half of them siw asks for
    // CRCs.
    perftest::add_crc(suite, shared);
    rping::add(suite, shared, "peer_to_peer", 1500, &["peer_to_peer=1"], &[64, 4096]);
    perftest::add_some(suite, shared, "peer_to_peer", &["peer_to_peer=1"]);
    // rping is left out here, since its server cannot read without IRD and ORD (see the README of
    // `tests/siw-peer`).
    perftest::add_some(suite, shared, "revision1", &["mpa_version=1"]);
}
