//! The CPUs near a NIC, and the CPUs of a NUMA node, as Linux reports them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::errors::Error;

/// Returns `allowed` with the CPUs near the PCI device `address` first. `sysfs` is usually `/sys`.
pub(super) fn first(sysfs: &Path, address: &str, allowed: &[usize]) -> Vec<usize> {
    // Linux names PCI devices with their domain.
    let name = if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.to_owned() };
    let file = sysfs.join("bus/pci/devices").join(name.to_lowercase()).join("local_cpulist");
    let near = std::fs::read_to_string(file).map(|list| cpus(&list)).unwrap_or_default();
    let (mut near, far): (Vec<_>, Vec<_>) = allowed.iter().partition(|cpu| near.contains(cpu));
    near.extend(far);
    near
}

/// The CPUs of `allowed` that are on a NUMA node.
///
/// # Errors
/// Returns [`Error::Usage`] if the node does not exist, or if this process may use none of its CPUs.
pub(super) fn of_node(sysfs: &Path, node: u32, allowed: &[usize]) -> Result<Vec<usize>, Error> {
    let file = sysfs.join(format!("devices/system/node/node{node}/cpulist"));
    let list = std::fs::read_to_string(file)
        .map_err(|_| Error::Usage(format!("--socket {node}: there is no such NUMA node (see lscpu)")))?;
    let (all, mut own) = (cpus(&list), allowed.to_vec());
    own.retain(|cpu| all.contains(cpu));
    if own.is_empty() {
        return Err(Error::Usage(format!("--socket {node}: this process may use none of its CPUs")));
    }
    Ok(own)
}

/// The CPUs of a list such as `0-3,8`.
fn cpus(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_the_node_of_the_nic_come_first() {
        let sysfs = std::env::temp_dir().join(format!("near-{}", std::process::id()));
        let device = sysfs.join("bus/pci/devices/0000:af:00.1");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("local_cpulist"), "2-3,6\n").unwrap();
        for address in ["af:00.1", "0000:AF:00.1"] {
            assert_eq!(first(&sysfs, address, &[0, 1, 2, 3, 5, 6]), [2, 3, 6, 0, 1, 5]);
        }
        assert_eq!(first(&sysfs, "00:08.0", &[1, 0]), [1, 0], "not known");
        std::fs::remove_dir_all(sysfs).unwrap();
    }

    #[test]
    fn the_cpus_of_a_node_are_those_that_may_be_used() {
        let sysfs = std::env::temp_dir().join(format!("nodes-{}", std::process::id()));
        let node = sysfs.join("devices/system/node/node1");
        std::fs::create_dir_all(&node).unwrap();
        std::fs::write(node.join("cpulist"), "2-3\n").unwrap();
        assert_eq!(of_node(&sysfs, 1, &[0, 3, 4]).unwrap(), [3]);
        let text = |node, allowed: &[usize]| of_node(&sysfs, node, allowed).unwrap_err().to_string();
        assert_eq!(text(1, &[0]), "--socket 1: this process may use none of its CPUs");
        assert_eq!(text(2, &[0]), "--socket 2: there is no such NUMA node (see lscpu)");
        std::fs::remove_dir_all(sysfs).unwrap();
    }

    #[test]
    fn a_list_of_cpus_has_ranges_and_single_ones() {
        assert_eq!(cpus("0-2,8\n").into_iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert!(cpus("\n").is_empty());
    }
}
