//! Our queue pairs of type UD against Linux's rxe, which runs in the virtual machine of the suite `siw`.
//! Unmodified programs run on both sides, and a C program (`ud_peer.c`) that checks each message. Crafted
//! frames test what rxe does not send.
//!
//! `tests/siw-peer/README.md` describes rxe's behaviour on the wire.

mod crafted;
mod programs;
mod rdmacm;
mod scenes;
mod ud_peer;

use tests::lab::{Prerequisite, Suite};

use super::siw::rig::Shared;

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [
        Prerequisite::Program("python3"),
        Prerequisite::Program("qemu-system-x86_64"),
        Prerequisite::Program("ip"),
        Prerequisite::Program("ethtool"),
        Prerequisite::Program("ibv_ud_pingpong"),
        Prerequisite::Program("ib_send_lat"),
        Prerequisite::Program("udaddy"),
        Prerequisite::Tun,
        Prerequisite::SiwImage,
        Prerequisite::Program("cc"),
        Prerequisite::VerbsTarget,
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("rxe", &needs);
    let shared = Shared::default();
    programs::add(&mut suite, &shared);
    rdmacm::add(&mut suite, &shared);
    scenes::add(&mut suite, &shared);
    crafted::add(&mut suite);
    let passed = suite.run(arguments);
    shared.end();
    passed
}
