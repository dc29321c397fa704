//! Addresses of our own on an interface (`addr=`), which several processes of one host share.
//!
//! A process holds its address by a Unix socket that is bound to a name in the abstract namespace, which the
//! system removes however the process ends. With a range of addresses, each process has the first address
//! that no other process holds. A process with a single address does not need to hold it, so that a program
//! may ask for the address of another one, as far as this works.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use iwarp_wire::Spec;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use tcp_lite::facade::IpCidr;

use crate::ffi::abi::StartError;

/// An address that this process holds until the value is dropped.
pub(super) struct AddressLease {
    _socket: OwnedFd,
}

/// The address of this process on `interface`, with its lease. Returns `None` if the specification has no
/// address.
pub(super) fn take(
    spec: &Spec,
    interface: &str,
) -> Result<Option<(IpCidr, Option<AddressLease>)>, StartError> {
    let Some(first) = spec.address else { return Ok(None) };
    let failed = |errno: Errno| {
        let error = std::io::Error::from(errno);
        StartError::with_line(format!("no address of {spec} can be held: {error}"), &error)
    };
    let Some(last) = spec.last_address else {
        return Ok(Some((first, lease(interface, first.address().into()).unwrap_or_default())));
    };
    for address in range(first.address().into(), last.into()) {
        if let Some(lease) = lease(interface, address).map_err(failed)? {
            return Ok(Some((IpCidr::new(address.into(), first.prefix_len()), Some(lease))));
        }
    }
    Err(format!("{spec}: other processes have all of these addresses: use a larger range").into())
}

/// Takes an address. Returns `None` if another process of this network namespace holds the address.
fn lease(interface: &str, address: IpAddr) -> Result<Option<AddressLease>, Errno> {
    let name = format!("uwarp-addr/{interface}/{address}");
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    match bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => Ok(Some(AddressLease { _socket: socket })),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The addresses from `first` to `last`, which have the same family.
fn range(first: IpAddr, last: IpAddr) -> Box<dyn Iterator<Item = IpAddr>> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            Box::new((first.to_bits()..=last.to_bits()).map(|bits| Ipv4Addr::from_bits(bits).into()))
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            Box::new((first.to_bits()..=last.to_bits()).map(|bits| Ipv6Addr::from_bits(bits).into()))
        }
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of an interface that no other run of the tests uses.
    fn name(interface: &str) -> String {
        format!("{interface}-{}", std::process::id())
    }

    fn take(addresses: &str, interface: &str) -> Option<(IpCidr, Option<AddressLease>)> {
        let interface = name(interface);
        let spec: Spec = format!("packet:{interface},addr={addresses}").parse().unwrap();
        super::take(&spec, &interface).unwrap()
    }

    #[test]
    fn each_process_has_the_first_address_that_is_free() {
        for (addresses, all) in [
            ("10.9.0.2-10.9.0.4/24", ["10.9.0.2/24", "10.9.0.3/24", "10.9.0.4/24"]),
            ("fd09::fffe-fd09::1:0/64", ["fd09::fffe/64", "fd09::ffff/64", "fd09::1:0/64"]),
        ] {
            let mut held: Vec<_> = all.iter().map(|_| take(addresses, "lease0").unwrap()).collect();
            let addresses_of =
                |held: &[(IpCidr, _)]| held.iter().map(|(cidr, _)| cidr.to_string()).collect::<Vec<_>>();
            assert_eq!(addresses_of(&held), all);
            assert!(held.iter().all(|(_, lease)| lease.is_some()));
            let spec: Spec = format!("packet:lease0,addr={addresses}").parse().unwrap();
            let line = super::take(&spec, &name("lease0")).err().unwrap().line;
            assert!(line.contains("all of these addresses") && !line.contains('\n'), "{line}");
            // Another interface has other addresses, and an address is free when its process has ended.
            assert_eq!(take(addresses, "lease1").unwrap().0.to_string(), all[0]);
            drop(held.remove(1));
            assert_eq!(take(addresses, "lease0").unwrap().0.to_string(), all[1]);
            // A process with the address alone has it in any case.
            let (cidr, lease) = take(all[0], "lease0").unwrap();
            assert!(cidr.to_string() == all[0] && lease.is_none());
        }
        let (cidr, lease) = take("10.9.0.2/24", "lease2").unwrap();
        assert!(cidr.to_string() == "10.9.0.2/24" && lease.is_some());
        let (next, _) = take("10.9.0.2-10.9.0.3/24", "lease2").unwrap();
        assert_eq!(next.to_string(), "10.9.0.3/24");
        assert!(super::take(&"packet:lease3".parse().unwrap(), "lease3").unwrap().is_none());
    }
}
