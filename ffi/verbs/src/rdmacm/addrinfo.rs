//! `rdma_getaddrinfo`: names of hosts and services.
//!
//! As in librdmacm, each part of a list is allocated with `malloc`. The reason is that libfabric adds its own
//! entries or replaces parts of our entries, and frees the list with `rdma_freeaddrinfo`.

use std::ffi::{CStr, CString, c_char};
use std::net::SocketAddr;
use std::ptr;

use libc::{c_int, c_void};

use crate::ffi::abi::{self, EINVAL, Errno, Outcome};
use crate::ffi::{sockaddr, sys};

/// Implements `rdma_getaddrinfo(3)`.
///
/// # Safety
/// `node` and `service` are NULL or strings, `hints` is NULL or readable, `result` is writable.
#[unsafe(export_name = "uw_rdma_getaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const sys::rdma_addrinfo,
    result: *mut *mut sys::rdma_addrinfo,
) -> c_int {
    abi::minus_one(|| {
        // SAFETY: the caller passes NULL or a pointer to a readable struct.
        let hints = unsafe { hints.as_ref() }.copied().unwrap_or_default();
        if node.is_null() && service.is_null() && hints.ai_src_addr.is_null() && hints.ai_dst_addr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes strings or NULL, and hints whose addresses are NULL or socket addresses.
        let entry = unsafe { entry(node, service, &hints) }?;
        // SAFETY: the caller passes a pointer to writable memory.
        unsafe { *result = entry };
        Ok(0)
    })
}

/// # Safety
/// The conditions of [`rdma_getaddrinfo`]. The addresses of the hints are NULL or socket addresses.
unsafe fn entry(
    node: *const c_char,
    service: *const c_char,
    hints: &sys::rdma_addrinfo,
) -> Outcome<*mut sys::rdma_addrinfo> {
    let flags = hints.ai_flags as u32;
    let is_passive = flags & sys::RAI_PASSIVE != 0;
    // SAFETY: the caller promises that the addresses of the hints are NULL or socket addresses.
    let [hinted_source, hinted_destination] =
        [hints.ai_src_addr, hints.ai_dst_addr].map(|address| unsafe { sockaddr::read(address.cast()) });
    let named = match node.is_null() && service.is_null() {
        true => None,
        // SAFETY: the caller promises that `node` and `service` are NULL or strings.
        false => Some(unsafe { look_up(node, service, flags, hints.ai_family) }?),
    };
    let (source, destination) = match is_passive {
        true => (named.as_ref().map(|named| named.0).or(hinted_source), None),
        false => (hinted_source, named.as_ref().map(|named| named.0).or(hinted_destination)),
    };
    let mut entry = sys::rdma_addrinfo {
        ai_flags: hints.ai_flags,
        ai_family: source.or(destination).map_or(0, family),
        ai_qp_type: if hints.ai_qp_type == 0 { qp_type(hints) } else { hints.ai_qp_type },
        ai_port_space: if hints.ai_port_space == 0 { port_space(hints) } else { hints.ai_port_space },
        ..Default::default()
    };
    if let Some(address) = source {
        (entry.ai_src_addr, entry.ai_src_len) = (given(storage_of(address))?.cast(), size(address));
    }
    if let Some(address) = destination {
        (entry.ai_dst_addr, entry.ai_dst_len) = (given(storage_of(address))?.cast(), size(address));
    }
    if let Some(name) = named.and_then(|(_, name)| name) {
        // SAFETY: the name is a C string.
        let name = unsafe { libc::strdup(name.as_ptr()) };
        *(if is_passive { &mut entry.ai_src_canonname } else { &mut entry.ai_dst_canonname }) = name;
    }
    given(entry)
}

/// Copies a value to memory from `malloc`. The memory will belong to the program.
fn given<T>(value: T) -> Outcome<*mut T> {
    // SAFETY: `malloc` has no precondition.
    let place = unsafe { libc::malloc(size_of::<T>()) }.cast::<T>();
    if place.is_null() {
        return Err(abi::ENOMEM);
    }
    // SAFETY: the memory is as large as the value, and `malloc` aligns it for any type.
    unsafe { place.write(value) };
    Ok(place)
}

fn storage_of(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
    let mut storage = unsafe { std::mem::zeroed() };
    // SAFETY: `storage` is a writable `sockaddr_storage`.
    unsafe { sockaddr::write(&raw mut storage, address) };
    storage
}

fn size(address: SocketAddr) -> u32 {
    sockaddr::size(address) as u32
}

fn family(address: SocketAddr) -> c_int {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn qp_type(hints: &sys::rdma_addrinfo) -> c_int {
    let is_datagram = hints.ai_port_space == sys::RDMA_PS_UDP as c_int;
    if is_datagram { sys::IBV_QPT_UD as c_int } else { sys::IBV_QPT_RC as c_int }
}

fn port_space(hints: &sys::rdma_addrinfo) -> c_int {
    let is_datagram = hints.ai_qp_type == sys::IBV_QPT_UD as c_int;
    if is_datagram { sys::RDMA_PS_UDP as c_int } else { sys::RDMA_PS_TCP as c_int }
}

/// Looks up a name with the resolver of the system. Returns the first address, with its canonical name if the
/// resolver returns one.
///
/// # Safety
/// `node` and `service` are NULL or strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    flags: u32,
    wanted_family: c_int,
) -> Outcome<(SocketAddr, Option<CString>)> {
    // SAFETY: all-zero bytes are a valid `addrinfo`.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    if flags & sys::RAI_PASSIVE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & sys::RAI_NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    if flags & sys::RAI_FAMILY != 0 {
        hints.ai_family = wanted_family;
    }
    let mut first: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: `node` and `service` are NULL or C strings, `hints` is valid, and `first` is writable.
    let failed = unsafe { libc::getaddrinfo(node, service, &raw const hints, &raw mut first) };
    if failed != 0 {
        return Err(match failed {
            libc::EAI_MEMORY => abi::ENOMEM,
            libc::EAI_SYSTEM => std::io::Error::last_os_error().into(),
            libc::EAI_AGAIN => Errno(libc::EAGAIN),
            libc::EAI_FAMILY => Errno(libc::EAFNOSUPPORT),
            _ => Errno(libc::ENODATA),
        });
    }
    // SAFETY: the call has succeeded, so `first` points to the first entry of a list.
    let entry = unsafe { &*first };
    // SAFETY: the address of an entry is a socket address.
    let address = unsafe { sockaddr::read(entry.ai_addr) };
    // SAFETY: the name is a C string of the list.
    let name =
        (!entry.ai_canonname.is_null()).then(|| unsafe { CStr::from_ptr(entry.ai_canonname) }.to_owned());
    // SAFETY: the list was returned by `getaddrinfo` above, and nobody uses the list any more.
    unsafe { libc::freeaddrinfo(first) };
    Ok((address.ok_or(Errno(libc::EAFNOSUPPORT))?, name))
}

/// Implements `rdma_freeaddrinfo(3)`.
///
/// # Safety
/// `info` is NULL or a list, which is not used after the call. Each part of the list is NULL or was allocated
/// with `malloc`.
#[unsafe(export_name = "uw_rdma_freeaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut sys::rdma_addrinfo) {
    let mut next = info;
    // SAFETY: the caller passes a list, which ends with NULL.
    while let Some(entry) = unsafe { next.as_ref() } {
        let parts = [
            entry.ai_src_addr.cast::<c_void>(),
            entry.ai_dst_addr.cast(),
            entry.ai_src_canonname.cast(),
            entry.ai_dst_canonname.cast(),
            entry.ai_route.cast(),
            entry.ai_connect.cast(),
        ];
        let itself = std::mem::replace(&mut next, entry.ai_next);
        for part in parts.into_iter().chain([itself.cast()]) {
            // SAFETY: the part is NULL or from `malloc`, and the caller does not use it again.
            unsafe { libc::free(part) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test adds its own entry and replaces an address, as libfabric does, and then frees the list.
    #[test]
    fn entries_and_parts_that_programs_have_made_are_freed() {
        let mut list = ptr::null_mut();
        // SAFETY: the arguments are two C strings, NULL, and a writable pointer.
        let made = unsafe { rdma_getaddrinfo(c"127.0.0.1".as_ptr(), c"7".as_ptr(), ptr::null(), &mut list) };
        assert_eq!(made, 0);
        // SAFETY: the call has made an entry.
        let entry = unsafe { &mut *list };
        // SAFETY: the address of an entry is a socket address.
        let found = unsafe { sockaddr::read(entry.ai_dst_addr.cast()) };
        assert_eq!((found, entry.ai_dst_len), (Some("127.0.0.1:7".parse().unwrap()), 16));
        // SAFETY: the address is from `malloc`, and is replaced below.
        unsafe { libc::free(entry.ai_dst_addr.cast()) };
        entry.ai_dst_addr = given([7_u64; 6]).unwrap().cast();
        entry.ai_route = given(1_u8).unwrap().cast();
        // SAFETY: the argument is a C string.
        entry.ai_src_canonname = unsafe { libc::strdup(c"name".as_ptr()) };
        entry.ai_next = given(sys::rdma_addrinfo::default()).unwrap();
        // SAFETY: all parts of the list are from `malloc`.
        unsafe { rdma_freeaddrinfo(list) };
        // SAFETY: the argument may be NULL.
        unsafe { rdma_freeaddrinfo(ptr::null_mut()) };
    }
}
