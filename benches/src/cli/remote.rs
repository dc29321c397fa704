//! The address of a server.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::errors::Error;

/// A host by address or name, with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    host: Named,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Ip(IpAddr),
    Name(String),
}

impl Remote {
    /// Returns the address of the server. If the host is given by name, the system resolves the name, and the
    /// address belongs to a family of which we have an address. `port` is the value of `--port`. If no port
    /// is given anywhere, the port is `default_port`.
    ///
    /// # Errors
    /// Returns [`Error::Usage`] if two different ports are given, if the name cannot be resolved, or if the
    /// name has no address of such a family.
    pub fn resolve(
        &self,
        port: Option<u16>,
        default_port: u16,
        ours: &[IpAddr],
    ) -> Result<SocketAddr, Error> {
        let port = match (self.port, port) {
            (Some(one), Some(other)) if one != other => {
                return Err(Error::Usage(format!("--port {other}: the server has port {one} already")));
            }
            (one, other) => one.or(other).unwrap_or(default_port),
        };
        let name = match &self.host {
            Named::Ip(ip) => return Ok(SocketAddr::new(*ip, port)),
            Named::Name(name) => name,
        };
        let found: Vec<SocketAddr> = (name.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| Error::Usage(format!("{name}: no address of this name: {error}")))?
            .collect();
        choose(name, &found, ours)
    }
}

/// Returns the first address of `found` that belongs to the family of an address in `ours`.
fn choose(name: &str, found: &[SocketAddr], ours: &[IpAddr]) -> Result<SocketAddr, Error> {
    let fits = |address: &&SocketAddr| ours.iter().any(|our| our.is_ipv4() == address.is_ipv4());
    found.iter().find(fits).copied().ok_or_else(|| {
        let family = if found.iter().any(SocketAddr::is_ipv6) { "IPv6" } else { "IPv4" };
        Error::Usage(format!("{name} has only {family} addresses: give --ip an {family} address"))
    })
}

impl FromStr for Remote {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse() {
            return Ok(Self { host: Named::Ip(ip), port: None });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { host: Named::Ip(address.ip()), port: Some(address.port()) });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().map_err(|_| WRONG)?)),
            None => (text, None),
        };
        // The system's resolver would accept addresses in other notations. iwperf refuses such addresses.
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
        let numeric = name.chars().all(|c| c.is_ascii_digit() || c == '.');
        if name.is_empty() || numeric || !name.chars().all(is_name) {
            return Err(WRONG.into());
        }
        Ok(Self { host: Named::Name(name.to_owned()), port })
    }
}

const WRONG: &str = "give HOST, HOST:PORT or [IPv6]:PORT";

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str, ours: &str) -> Result<SocketAddr, Error> {
        text.parse::<Remote>().unwrap().resolve(None, 1, &[ours.parse().unwrap()])
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:1"),
            ("10.0.0.1:2", "10.0.0.1:2"),
            ("fd00::1", "[fd00::1]:1"),
            ("[fd00::1]", "[fd00::1]:1"),
            ("[fd00::1]:2", "[fd00::1]:2"),
        ] {
            assert_eq!(resolved(text, "10.0.0.2").unwrap(), expected.parse().unwrap(), "{text}");
        }
        for text in ["10.0.0", "10.0.0.1:x", "", "a b", "host:99999", "10.0.0.300"] {
            assert!(text.parse::<Remote>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_port_is_given_once() {
        let remote = |text: &str, port| text.parse::<Remote>().unwrap().resolve(port, 9, &[]);
        assert_eq!(remote("10.0.0.1", Some(5)).unwrap().port(), 5);
        assert_eq!(remote("10.0.0.1:5", Some(5)).unwrap().port(), 5);
        assert_eq!(remote("10.0.0.1", None).unwrap().port(), 9);
        assert!(remote("10.0.0.1:4", Some(5)).unwrap_err().to_string().contains("--port 5"));
    }

    #[test]
    fn names_are_resolved_by_the_system() {
        assert_eq!(resolved("localhost:7", "10.0.0.2").unwrap(), "127.0.0.1:7".parse().unwrap());
        let error = resolved("no-such-host.invalid", "10.0.0.2").unwrap_err();
        assert!(error.to_string().starts_with("no-such-host.invalid: no address"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn the_family_is_that_of_our_address() {
        let both = ["10.0.0.1:5", "[fd00::1]:5"].map(|text| text.parse().unwrap());
        let chosen = |ours: &str| choose("a", &both, &[ours.parse().unwrap()]).unwrap();
        assert_eq!((chosen("fd00::2"), chosen("10.0.0.2")), (both[1], both[0]));
        let error = choose("a", &both[1..], &["10.0.0.2".parse().unwrap()]).unwrap_err();
        assert!(error.to_string().contains("only IPv6 addresses: give --ip an IPv6"), "{error}");
    }
}
