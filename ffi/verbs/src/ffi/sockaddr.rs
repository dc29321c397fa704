//! Socket addresses of C.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Reads an address. Returns `None` for NULL and for families other than IPv4 and IPv6.
///
/// # Safety
/// `address` is NULL or points to a socket address with the length that its family has.
pub(crate) unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: `address` is not NULL, so it points to a socket address, as the caller promises.
    match unsafe { family(address) } {
        libc::AF_INET => {
            // SAFETY: an address of this family has at least the length of this struct.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has at least the length of this struct.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The family of an address that is not NULL.
///
/// # Safety
/// `address` points to a socket address.
pub(crate) unsafe fn family(address: *const libc::sockaddr) -> i32 {
    // SAFETY: every socket address has a family.
    let place = unsafe { &raw const (*address).sa_family };
    // SAFETY: the field is readable, and `read_unaligned` accepts any alignment.
    i32::from(unsafe { place.read_unaligned() })
}

/// Writes an address to a C struct that has room for an address of any family.
///
/// # Safety
/// `place` points to a `sockaddr_storage`.
pub(crate) unsafe fn write(place: *mut libc::sockaddr_storage, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large as an address of any family.
            unsafe { place.cast::<libc::sockaddr_in>().write_unaligned(v4) };
        }
        IpAddr::V6(ip) => {
            let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: scope,
            };
            // SAFETY: the storage is as large as an address of any family.
            unsafe { place.cast::<libc::sockaddr_in6>().write_unaligned(v6) };
        }
    }
}

/// The number of bytes of the C struct for the family of `address`.
pub(crate) fn size(address: SocketAddr) -> usize {
    if address.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() }
}
