//! `iwperf` on DPDK's drivers of PCI NICs, which QEMU emulates, in two virtual machines. The tests cover data
//! in both directions, several queues, links that fail, NICs that are unplugged, peers that die, VLANs, a
//! router between the machines, Linux's iWARP, and the commands of the guide.
//!
//! `tests/nic-lab/README.md` describes the machines.

mod faults;
mod guide;
mod queues;
mod rig;
mod routes;
mod rping;
mod transfers;
mod unplugged;

use rig::{Binding, SharedPair};
use tests::lab::{Prerequisite, Suite};

/// Runs the suite. Returns whether all tests passed.
pub(crate) fn run_suite(arguments: &[String]) -> bool {
    let needs = [
        Prerequisite::Dpdk,
        Prerequisite::Program("python3"),
        Prerequisite::Program("qemu-system-x86_64"),
        Prerequisite::Program("ip"),
        Prerequisite::Program("strip"),
        Prerequisite::Tun,
        Prerequisite::NicImage,
        Prerequisite::Namespaces,
    ];
    let mut suite = Suite::new("nics", &needs);
    let shared = SharedPair::default();
    // The tests are ordered by binding, since each binding needs machines of its own.
    for binding in Binding::ALL {
        for nic in binding.nics() {
            transfers::add(&mut suite, &shared, binding, nic);
            if nic.has_rss() {
                queues::add(&mut suite, &shared, binding, nic);
            }
            faults::add(&mut suite, &shared, binding, nic);
        }
        unplugged::add(&mut suite, &shared, binding);
        guide::add(&mut suite, &shared, binding);
        if binding == Binding::Uio {
            routes::add(&mut suite, &shared);
            rping::add(&mut suite, &shared);
        }
    }
    let passed = suite.run(arguments);
    shared.end();
    passed
}
