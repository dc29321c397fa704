//! Opens the local wire that the options name. The wire connects processes of this user.

use std::net::Ipv4Addr;

use dp::Port;
use dp::local::{self, LocalConfig};

use crate::cli::NetArgs;
use crate::errors::Error;

/// The first two bytes of all addresses of a local wire. The last two bytes are the number of the station.
const NETWORK: [u8; 2] = [100, 64];

/// The first two bytes of an Ethernet address on a local wire. The other four bytes are the IPv4 address.
pub(super) const DERIVED_NEIGHBORS: [u8; 2] = [0x02, 0x00];

pub(super) fn open(args: &NetArgs, name: &str) -> Result<Box<dyn Port>, Error> {
    let station = match &args.ips[..] {
        [address] => station(address),
        _ => None,
    };
    let station = station.ok_or_else(|| {
        Error::Usage("--wire needs one address of its network, as --ip 100.64.0.1/16 (the first host)".into())
    })?;
    let failed = |error: local::LocalError| match error {
        local::LocalError::Taken { pid, .. } => Error::Port(format!(
            "process {pid} has this --ip on the wire {name}: give another address, or stop it"
        )),
        error => Error::Port(error.to_string()),
    };
    let usual = LocalConfig::new(local::default_folder(name).map_err(failed)?);
    let config = LocalConfig { station: Some(station), mtu: args.mtu.unwrap_or(usual.mtu), ..usual };
    Ok(Box::new(local::open(&config).map_err(failed)?))
}

/// The station of an address with its prefix length, or `None` if the address is not an address of a local
/// wire.
fn station(cidr: &str) -> Option<u16> {
    let address: Ipv4Addr = cidr.split_once('/')?.0.parse().ok()?;
    let [a, b, high, low] = address.octets();
    let station = u16::from_be_bytes([high, low]);
    ([a, b] == NETWORK && station != 0).then_some(station)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_number_of_its_station() {
        assert_eq!(station("100.64.0.1/16"), Some(1));
        assert_eq!(station("100.64.2.3/10"), Some(515));
        for other in ["100.64.0.0/16", "100.65.0.1/16", "10.0.0.1/24", "fd00::1/64", "100.64.0.1"] {
            assert_eq!(station(other), None, "{other}");
        }
    }
}
