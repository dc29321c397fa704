//! `iwperf` on DPDK's drivers of PCI NICs, which QEMU emulates, in two virtual machines. The tests cover data
//! in both directions, several queues, links that fail, NICs that are unplugged, peers that die, VLANs, a
//! router between the machines, Linux's iWARP, and the commands of the guide.
//!
//! `tests/nic-lab/README.md` describes the machines. `UWARP_NICS=short` leaves out the tests that take most
//! of the time. Each NIC is then tested with UIO alone, and with one MTU, family and direction. Faults are
//! tested with one NIC. `UWARP_NICS=short` also leaves out the guide and the tests with four queues.

mod faults;
mod guide;
mod queues;
mod rig;
mod routes;
mod rping;
mod transfers;
mod unplugged;

use rig::{Binding, Nic, SharedPair};
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
    let short = std::env::var("UWARP_NICS").is_ok_and(|value| value == "short");
    // The tests are ordered by binding, since each binding needs machines of its own.
    for &binding in if short { &[Binding::Uio][..] } else { &Binding::ALL } {
        for nic in binding.nics() {
            transfers::add(&mut suite, &shared, binding, nic, short);
            if nic.has_rss() && !short {
                queues::add(&mut suite, &shared, binding, nic);
            }
            if !short || nic == Nic::E1000e {
                faults::add(&mut suite, &shared, binding, nic);
            }
        }
        unplugged::add(&mut suite, &shared, binding);
        if !short {
            guide::add(&mut suite, &shared, binding);
        }
        if binding == Binding::Uio {
            routes::add(&mut suite, &shared);
            rping::add(&mut suite, &shared);
        }
    }
    let passed = suite.run(arguments);
    shared.end();
    passed
}
