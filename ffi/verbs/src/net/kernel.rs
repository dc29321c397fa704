//! The addresses of the kernel's interfaces on this host.

use std::io;
use std::net::IpAddr;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) interface: String,
    pub(super) address: IpAddr,
}

/// Whether this host has an interface with this name.
pub(super) fn has_interface(name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: the name is a C string.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// Whether the address is a loopback address or an address of an interface of this host.
///
/// # Errors
/// Returns the system's error if the query fails.
pub(super) fn is_of_this_host(address: IpAddr) -> io::Result<bool> {
    let address = address.to_canonical();
    Ok(address.is_loopback() || addresses()?.iter().any(|has| has.address == address))
}

/// The addresses of the interfaces of this host.
///
/// # Errors
/// Returns the system's error if the query fails.
pub(super) fn addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is writable.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the list ends with NULL, and its entries are valid until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the field is NULL or points to a socket address with the length that its family has.
        if let Some(address) = unsafe { crate::ffi::sockaddr::read(entry.ifa_addr) } {
            // SAFETY: each entry has a name, which is a C string.
            let interface = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            let interface = interface.to_string_lossy().into_owned();
            addresses.push(InterfaceAddress { interface, address: address.ip() });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list was returned by `getifaddrs` above, and nobody uses the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}
