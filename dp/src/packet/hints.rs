//! Hints for a log. The hints name host settings that cause losses or needless traffic, and say how to change
//! these settings.

use std::fs;
use std::net::IpAddr;

use super::config::PacketConfig;
use super::interface::Interface;
use crate::Offloads;

/// Returns one line for each hint. `rx_bytes` is the number of bytes that the kernel has granted for received
/// superframes.
pub(super) fn hints(config: &PacketConfig, found: &Interface, rx_bytes: usize) -> Vec<String> {
    let name = &found.name;
    let forwards = |family: &str| {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
    };
    lines(config, found, rx_bytes, forwards)
}

/// Returns the lines of [`hints`]. `forwards` returns whether the kernel forwards packets of a family on the
/// interface.
fn lines(
    config: &PacketConfig,
    found: &Interface,
    rx_bytes: usize,
    forwards: impl Fn(&str) -> bool,
) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const RX_BYTES: usize = 4 << 20;

    fn config(addresses: &[&str]) -> PacketConfig {
        let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().unwrap()).collect();
        PacketConfig::new("eth9", addresses)
    }

    fn found() -> Interface {
        Interface { name: "eth9".to_owned(), index: 7, mac: MAC, mtu: 1500 }
    }

    #[test]
    fn less_memory_for_superframes_than_was_asked_for_is_told_with_the_limit_to_raise() {
        let config = config(&["10.0.0.1"]);
        let told = |config: &PacketConfig, rx_bytes| lines(config, &found(), rx_bytes, |_| false);
        assert_eq!(told(&config, RX_BYTES), [""; 0], "as much as was asked for");
        // The kernel grants twice the value of `rmem_max`.
        let [hint] = &told(&config, 425_984)[..] else { panic!("no hint") };
        assert_eq!(
            hint,
            "416 KiB for received superframes instead of 4096: bursts may be lost; raise net.core.rmem_max to 2097152"
        );
        let plain = PacketConfig { offloads: Offloads::all() - Offloads::RX_LRO, ..config };
        assert_eq!(told(&plain, 425_984), [""; 0], "there are no superframes");
    }

    #[test]
    fn forwarding_is_told_for_the_families_of_our_addresses_at_the_address_of_the_kernel() {
        let told = |config: &PacketConfig, forwarded: &[&str]| -> Vec<&'static str> {
            let lines = lines(config, &found(), RX_BYTES, |family| forwarded.contains(&family));
            let family = |line: &String| {
                ["ipv4", "ipv6"].into_iter().find(|it| {
                    line.starts_with(&format!("the kernel forwards {it} on eth9"))
                        && line.contains(&format!("turn net.{it}.conf.eth9.forwarding off"))
                })
            };
            lines.iter().map(|line| family(line).unwrap_or_else(|| panic!("{line}"))).collect()
        };
        let (v4, v6) = (config(&["10.0.0.1"]), config(&["fd00::1"]));
        let both = config(&["fd00::1", "10.0.0.1"]);
        assert_eq!(told(&both, &[]), [""; 0]);
        assert_eq!(told(&both, &["ipv4", "ipv6"]), ["ipv4", "ipv6"]);
        assert_eq!(told(&v4, &["ipv4", "ipv6"]), ["ipv4"]);
        assert_eq!(told(&v6, &["ipv4", "ipv6"]), ["ipv6"]);
        let own = PacketConfig { mac: Some([2, 0, 0, 0, 0, 2]), ..both.clone() };
        assert_eq!(told(&own, &["ipv4", "ipv6"]), [""; 0], "the kernel does not take its frames");
        let same = PacketConfig { mac: Some(MAC), ..both };
        assert_eq!(told(&same, &["ipv4", "ipv6"]), ["ipv4", "ipv6"]);
    }
}
