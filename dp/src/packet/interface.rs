//! Reads the properties of an interface from the kernel, and checks whether a port can use it.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{c_int, c_ulong};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::config::PacketConfig;
use super::error::PacketError;
use super::{filter, sys};
use crate::mac;

/// Minimum MTU. Every host accepts IPv4 packets of this size (RFC 1122 section 3.3.2).
const MIN_MTU: u16 = 576;
/// Minimum MTU with IPv6 (RFC 8200 section 5).
const MIN_IPV6_MTU: u16 = 1280;
/// Maximum usable MTU, for jumbo frames.
const MAX_MTU: u16 = 9000;

/// An interface that a port can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    /// The Ethernet address that the kernel uses on the interface.
    pub(super) mac: [u8; 6],
    /// The MTU to use, in bytes.
    pub(super) mtu: u16,
}

impl Interface {
    /// Finds the interface of `config`, and checks the interface and the addresses. Fails if a port cannot
    /// use the interface or an address.
    pub(super) fn find(config: &PacketConfig) -> Result<Self, PacketError> {
        let name = config.interface.clone();
        let failed =
            |step| move |cause| PacketError::Setup { interface: config.interface.clone(), step, cause };
        let fd = asking_socket().map_err(failed("opening a socket"))?;
        let known = sys::interface_addresses().map_err(failed("listing the interfaces"))?;
        let index = match index(fd.as_fd(), &name) {
            Ok(index) => index,
            Err(_) => return Err(PacketError::NoInterface { interface: name, present: names(&known) }),
        };
        let Some(mac) = ethernet_address(fd.as_fd(), &name) else {
            let mut suitable = names(&known);
            suitable.retain(|name| ethernet_address(fd.as_fd(), name).is_some());
            return Err(PacketError::NotEthernet { interface: name, suitable });
        };
        check_addresses(config, &known)?;
        check_mac(config.mac)?;
        let mtu =
            sys::ask(fd.as_fd(), libc::SIOCGIFMTU as c_ulong, &name).map_err(failed("asking for its MTU"))?;
        let mtu = usable_mtu(config, u32::from_ne_bytes([0, 1, 2, 3].map(|at| mtu[at])))?;
        if flags(fd.as_fd(), &name).map_err(failed("asking for its state"))? & libc::IFF_UP == 0 {
            return Err(PacketError::Down { interface: name });
        }
        Ok(Self { name, index, mac, mtu })
    }
}

/// Makes a socket for queries about interfaces. Nearly every kernel supports this kind of socket, and the
/// socket needs no privilege.
fn asking_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// Returns the names of the interfaces. Each name is in the list once.
fn names(known: &[sys::InterfaceAddress]) -> Vec<String> {
    let mut names: Vec<String> = known.iter().map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(super) fn index(fd: BorrowedFd<'_>, name: &str) -> Result<u32, Errno> {
    let answer = sys::ask(fd, libc::SIOCGIFINDEX as c_ulong, name)?;
    Ok(u32::from_ne_bytes([0, 1, 2, 3].map(|at| answer[at])))
}

/// The flags of an interface: `IFF_UP`, `IFF_RUNNING` ...
pub(super) fn flags(fd: BorrowedFd<'_>, name: &str) -> Result<c_int, Errno> {
    let answer = sys::ask(fd, libc::SIOCGIFFLAGS as c_ulong, name)?;
    Ok(c_int::from(i16::from_ne_bytes([answer[0], answer[1]])))
}

/// The Ethernet address of an interface. `None` if the interface does not exist, or has no Ethernet address.
pub(super) fn ethernet_address(fd: BorrowedFd<'_>, name: &str) -> Option<[u8; 6]> {
    let answer = sys::ask(fd, libc::SIOCGIFHWADDR as c_ulong, name).ok()?;
    let kind = u16::from_ne_bytes([answer[0], answer[1]]);
    (kind == libc::ARPHRD_ETHER).then(|| [2, 3, 4, 5, 6, 7].map(|at| answer[at]))
}

fn check_addresses(config: &PacketConfig, known: &[sys::InterfaceAddress]) -> Result<(), PacketError> {
    let interface = || config.interface.clone();
    if config.addresses.is_empty() {
        return Err(PacketError::NoAddress { interface: interface() });
    }
    if config.addresses.len() > filter::MAX_ADDRESSES {
        let (count, most) = (config.addresses.len(), filter::MAX_ADDRESSES);
        return Err(PacketError::TooManyAddresses { interface: interface(), count, most });
    }
    for &address in &config.addresses {
        let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() || broadcast {
            return Err(PacketError::NotUnicast { address, interface: interface() });
        }
        if let Some((owner, _)) = known.iter().find(|(_, it)| *it == Some(address)) {
            return Err(PacketError::KernelAddress { address, owner: owner.clone() });
        }
    }
    Ok(())
}

fn check_mac(mac: Option<[u8; 6]>) -> Result<(), PacketError> {
    match mac {
        Some(mac) if !mac::is_of_interface(mac) => Err(PacketError::Mac { mac }),
        _ => Ok(()),
    }
}

/// Returns the MTU to use on an interface whose own MTU is `has`. Fails if the configured MTU or the
/// interface's MTU cannot be used.
fn usable_mtu(config: &PacketConfig, has: u32) -> Result<u16, PacketError> {
    let least = if config.addresses.iter().any(IpAddr::is_ipv6) { MIN_IPV6_MTU } else { MIN_MTU };
    let most = u16::try_from(has).map_or(MAX_MTU, |has| has.min(MAX_MTU));
    let mtu = config.mtu.unwrap_or(most);
    if (least..=most).contains(&mtu) {
        return Ok(mtu);
    }
    let interface = config.interface.clone();
    // If the interface's MTU is less than `least`, no MTU can be used.
    Err(PacketError::Mtu { interface, mtu: u32::from(mtu), least, most: most.max(least) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(address: &str) -> PacketConfig {
        PacketConfig::new("eth9", [address.parse().unwrap()])
    }

    #[test]
    fn the_mtu_is_that_of_the_interface_or_less_and_at_most_9000() {
        let v4 = config("10.0.0.1");
        assert_eq!(
            [1500, 9000, 9001, 65_536].map(|has| usable_mtu(&v4, has).unwrap()),
            [1500, 9000, 9000, 9000]
        );
        let less = PacketConfig { mtu: Some(1400), ..v4.clone() };
        assert_eq!(usable_mtu(&less, 1500), Ok(1400));
        for (config, has, text) in [
            (&v4, 575, "an MTU of 575 on eth9: it has to be from 576 to 576 (`ip link set eth9 mtu N`"),
            (&config("fd00::1"), 1279, "an MTU of 1279 on eth9: it has to be from 1280 to 1280"),
            (
                &PacketConfig::new("eth9", ["10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap())),
                1279,
                "an MTU of 1279 on eth9: it has to be from 1280 to 1280",
            ),
            (&less, 1300, "an MTU of 1400 on eth9: it has to be from 576 to 1300"),
            (
                &PacketConfig { mtu: Some(9001), ..v4.clone() },
                65_536,
                "an MTU of 9001 on eth9: it has to be from 576 to 9000",
            ),
        ] {
            let error = usable_mtu(config, has).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }

    #[test]
    fn addresses_that_no_host_or_the_kernel_has_are_refused() {
        let known = [("lo".to_owned(), None), ("eth0".to_owned(), Some("10.0.0.1".parse().unwrap()))];
        let refusal = |config: &PacketConfig| check_addresses(config, &known).unwrap_err().to_string();
        assert_eq!(check_addresses(&config("10.0.0.2"), &known), Ok(()));
        assert!(refusal(&config("10.0.0.1")).starts_with("10.0.0.1 is the kernel's own address on eth0"));
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "::1", "ff02::1"] {
            let error = refusal(&config(address));
            assert_eq!(
                error,
                format!("{address} is no address of a host: give a unicast address of the network of eth9")
            );
        }
        let most = PacketConfig::new("eth9", ["10.0.0.2".parse().unwrap(); 64]);
        assert_eq!(check_addresses(&most, &known), Ok(()));
        assert!(refusal(&PacketConfig::new("eth9", [])).starts_with("no address for the port on eth9"));
        let many = PacketConfig::new("eth9", ["10.0.0.2".parse().unwrap(); 65]);
        assert_eq!(refusal(&many), "65 addresses on eth9: at most 64 can be used");
    }

    #[test]
    fn an_interface_that_is_missing_or_not_ethernet_is_refused_with_those_that_there_are() {
        let missing = Interface::find(&config("10.0.0.1")).unwrap_err();
        let PacketError::NoInterface { present, .. } = &missing else { panic!("{missing}") };
        assert!(present.contains(&"lo".to_owned()) && present.is_sorted(), "{present:?}");
        assert!(present.windows(2).all(|two| two[0] != two[1]), "each once: {present:?}");
        let text = missing.to_string();
        assert!(
            text.starts_with("there is no interface eth9 here: there are ") && text.contains("lo"),
            "{text}"
        );
        assert_eq!(std::io::Error::from(missing).kind(), std::io::ErrorKind::NotFound);
        for name in ["", "a name that is longer than an interface can have"] {
            let config = PacketConfig { interface: name.to_owned(), ..config("10.0.0.1") };
            assert!(matches!(Interface::find(&config), Err(PacketError::NoInterface { .. })), "{name}");
        }
        let lo = PacketConfig { interface: "lo".to_owned(), ..config("10.0.0.1") };
        let refused = Interface::find(&lo).unwrap_err();
        let PacketError::NotEthernet { suitable, .. } = refused else { panic!("{refused}") };
        assert!(!suitable.contains(&"lo".to_owned()), "{suitable:?}");
    }

    #[test]
    fn an_ethernet_address_of_our_own_is_one_that_an_interface_can_have() {
        for mac in [None, Some([2, 0, 0, 0, 0, 1]), Some([0, 0, 0, 0, 0, 1]), Some([0xfe, 0, 0, 0, 0, 0])] {
            assert_eq!(check_mac(mac), Ok(()), "{mac:?}");
        }
        for (mac, text) in [
            ([0xff; 6], "ff:ff:ff:ff:ff:ff"),
            ([1, 0, 0x5e, 0, 0, 1], "01:00:5e:00:00:01"),
            ([0x33, 0x33, 0, 0, 0, 1], "33:33:00:00:00:01"),
            ([0; 6], "00:00:00:00:00:00"),
        ] {
            let error = check_mac(Some(mac)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text} is no Ethernet address of an interface")), "{error}");
        }
    }
}
