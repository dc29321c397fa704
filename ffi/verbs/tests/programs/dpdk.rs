//! Pairs of programs over DPDK's devices, idle programs, and devices whose only peer is missing.

use libtest_mimic::{Failed, Trial};

use crate::c;
use crate::idle;
use crate::interface::Interfaces;
use crate::pair::is_installed;
use crate::pairs;
use crate::wire::Wire;

type MakeInterfaces = fn() -> Result<Interfaces, String>;

/// The wires: the name, whether the wire needs namespaces, and the function that makes its two ends.
const WIRES: [(&str, bool, MakeInterfaces); 4] = [
    ("vhost", false, || Ok(Interfaces::sockets(["vhost:wire.sock", "virtio:wire.sock"]))),
    ("memif", false, || Ok(Interfaces::sockets(["memif:wire.sock,role=server", "memif:wire.sock"]))),
    ("tap", true, Interfaces::taps),
    ("xdp", true, Interfaces::xdp),
];

pub(crate) fn all(has_namespaces: bool) -> Vec<Trial> {
    let idle =
        Trial::test("dpdk_idle_programs_take_no_processor", || idle::over_devices().map_err(Failed::from));
    let first = Trial::test("dpdk_port_is_active_before_its_first_peer", || {
        first_peer_is_away().map_err(Failed::from)
    });
    let first = first.with_ignored_flag(!is_installed("cc"));
    let mut trials = vec![first, idle.with_ignored_flag(!has_namespaces || !is_installed("cc"))];
    for (wire, needs_namespaces, ends) in WIRES {
        for pair in pairs::connection_managed() {
            let is_tried = pair.name == "rping" || pair.name == "write_bw_rdmacm" && !needs_namespaces;
            if !is_tried {
                continue;
            }
            let skips = needs_namespaces && !has_namespaces || !pair.missing().is_empty();
            let name = format!("dpdk_{wire}_{}", pair.name);
            let test = move || pair.run_over(&Wire::between(ends()?)?).map_err(Failed::from);
            trials.push(Trial::test(name, test).with_ignored_flag(skips));
        }
    }
    trials
}

/// Runs a program at one end while nothing uses the other end. This tests only the wires that need no
/// namespaces: the devices on the other wires do not wait for one peer.
fn first_peer_is_away() -> Result<(), String> {
    for (name, needs_namespaces, ends) in WIRES {
        if !needs_namespaces {
            let told = c::run_over("first_peer", &Wire::between(ends()?)?);
            told.map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}
