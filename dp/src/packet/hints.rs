//! Conditions of the host that make a port slower or noisier than it could be, and what to do.

use std::fs;
use std::net::IpAddr;

use super::config::PacketConfig;
use super::interface::Interface;
use crate::Offloads;

/// A line for each condition. `rx_bytes` is what the kernel has granted for received superframes.
pub(super) fn hints(config: &PacketConfig, found: &Interface, rx_bytes: usize) -> Vec<String> {
    let mut hints = Vec::new();
    if rx_bytes < config.rx_bytes && config.offloads.contains(Offloads::RX_LRO) {
        hints.push(format!(
            "{} KiB for received superframes instead of {}: bursts may be lost; raise net.core.rmem_max to {}",
            rx_bytes / 1024,
            config.rx_bytes / 1024,
            config.rx_bytes / 2
        ));
    }
    let name = &found.name;
    let forwards = |family: &str| {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
    };
    let shares_mac = config.mac.is_none_or(|mac| mac == found.mac);
    let families = [
        ("ipv4", config.addresses.iter().any(IpAddr::is_ipv4)),
        ("ipv6", config.addresses.iter().any(IpAddr::is_ipv6)),
    ];
    for (family, used) in families {
        if shares_mac && used && forwards(family) {
            hints.push(format!(
                "the kernel forwards {family} on {name}, so it looks for the way to our addresses with each packet to \
                 them: give the port an Ethernet address of its own (mac), or turn net.{family}.conf.{name}.forwarding off"
            ));
        }
    }
    hints
}
