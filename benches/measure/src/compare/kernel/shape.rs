//! Settings of an interface that change the performance of the kernel's TCP.

use std::time::Duration;

use testing::lab::{Namespace, Result};

/// The name of the network device of each side.
pub(crate) const DEV: &str = "v0";

/// Settings of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The defaults: TSO, GSO and checksum offload. GRO is off: veth passes superframes without dividing
    /// them, so GRO would have nothing to join.
    Plain,
    /// The receiving program's core, instead of the sender's core, processes received packets (RPS).
    Steered,
    /// GRO, with polling (NAPI) in place of the sender's interrupt.
    Gro,
    /// Superframes of more than 64 KiB (BIG TCP). The superframes use IPv6, for which iproute2 has supported
    /// BIG TCP for longest.
    BigTcp,
}

/// Maximum number of bytes of a superframe of [`Shape::BigTcp`].
const BIG: u32 = 190_000;
/// Maximum number of bytes of other superframes.
const USUAL: u32 = 65_536;

/// Time limit of one call of `ethtool` or `sh`.
const LIMIT: Duration = Duration::from_secs(10);

impl Shape {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Steered => ", RPS",
            Self::Gro => ", GRO",
            Self::BigTcp => ", BIG TCP",
        }
    }

    /// Applies these settings to the interface of `host`, whose program is on `cpu`, and resets the settings
    /// that only other values of [`Shape`] change.
    pub(super) fn apply(self, host: &Namespace, cpu: usize) -> Result<()> {
        let gro = if self == Self::Gro { "on" } else { "off" };
        host.run("ethtool").args(["-K", DEV, "gro", gro]).check(LIMIT)?;
        let steer = if self == Self::Steered { cpu_mask(cpu) } else { "0".to_owned() };
        let steer = format!("for q in /sys/class/net/{DEV}/queues/rx-*; do echo {steer} > $q/rps_cpus; done");
        host.run("sh").args(["-e", "-c", &steer]).check(LIMIT)?;
        let most = if self == Self::BigTcp { BIG } else { USUAL }.to_string();
        host.ip(["link", "set", DEV, "gso_max_size", &most, "gro_max_size", &most])?;
        Ok(())
    }
}

/// Returns the kernel's notation for a set of one CPU: hexadecimal words of 32 bits, the highest first.
fn cpu_mask(cpu: usize) -> String {
    let mut mask = format!("{:x}", 1u32 << (cpu % 32));
    for _ in 0..cpu / 32 {
        mask.push_str(",00000000");
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::cpu_mask;

    #[test]
    fn a_cpu_has_its_bit() {
        let masks = [0, 1, 5, 31, 32, 65].map(cpu_mask);
        assert_eq!(masks, ["1", "2", "20", "80000000", "1,00000000", "2,00000000,00000000"]);
    }
}
