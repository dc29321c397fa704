//! `rdma_getaddrinfo`: names of hosts and services.

use std::ffi::{CStr, CString, c_char};
use std::net::SocketAddr;
use std::ptr;

use libc::c_int;

use crate::abi::{self, EINVAL, Errno, Outcome};
use crate::{sockaddr, sys};

/// An entry of the list, with what it points to.
#[repr(C)]
struct Entry {
    c: sys::rdma_addrinfo,
    source: libc::sockaddr_storage,
    destination: libc::sockaddr_storage,
    name: Option<CString>,
}

/// See `rdma_getaddrinfo(3)`.
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
        // SAFETY: the caller passes NULL or a struct that is readable.
        let hints = unsafe { hints.as_ref() }.copied().unwrap_or_default();
        if node.is_null() && service.is_null() && hints.ai_src_addr.is_null() && hints.ai_dst_addr.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promises are passed on.
        let entry = unsafe { entry(node, service, &hints) }?;
        // SAFETY: the caller passes a writable place.
        unsafe { *result = Box::into_raw(entry).cast() };
        Ok(0)
    })
}

/// # Safety
/// As [`rdma_getaddrinfo`]; addresses of the hints are socket addresses.
unsafe fn entry(
    node: *const c_char,
    service: *const c_char,
    hints: &sys::rdma_addrinfo,
) -> Outcome<Box<Entry>> {
    let flags = hints.ai_flags as u32;
    let is_passive = flags & sys::RAI_PASSIVE != 0;
    // SAFETY: the caller's promise.
    let [hinted_source, hinted_destination] =
        [hints.ai_src_addr, hints.ai_dst_addr].map(|address| unsafe { sockaddr::read(address.cast()) });
    let named = match node.is_null() && service.is_null() {
        true => None,
        // SAFETY: the caller's promises are passed on.
        false => Some(unsafe { look_up(node, service, flags, hints.ai_family) }?),
    };
    let (source, destination) = match is_passive {
        true => (named.as_ref().map(|named| named.0).or(hinted_source), None),
        false => (hinted_source, named.as_ref().map(|named| named.0).or(hinted_destination)),
    };
    let mut entry = Box::new(Entry {
        c: sys::rdma_addrinfo {
            ai_flags: hints.ai_flags,
            ai_family: source.or(destination).map_or(0, family),
            ai_qp_type: if hints.ai_qp_type == 0 { sys::IBV_QPT_RC as c_int } else { hints.ai_qp_type },
            ai_port_space: if hints.ai_port_space == 0 { port_space(hints) } else { hints.ai_port_space },
            ..Default::default()
        },
        // SAFETY: zeros are a valid address of no family.
        source: unsafe { std::mem::zeroed() },
        // SAFETY: as above.
        destination: unsafe { std::mem::zeroed() },
        name: named.and_then(|(_, name)| name),
    });
    let [at_source, at_destination] = [&raw mut entry.source, &raw mut entry.destination];
    if let Some(address) = source {
        // SAFETY: the place is a storage of the entry.
        unsafe { sockaddr::write(at_source, address) };
        (entry.c.ai_src_addr, entry.c.ai_src_len) = (at_source.cast(), sockaddr::size(address) as u32);
    }
    if let Some(address) = destination {
        // SAFETY: the place is a storage of the entry.
        unsafe { sockaddr::write(at_destination, address) };
        (entry.c.ai_dst_addr, entry.c.ai_dst_len) = (at_destination.cast(), sockaddr::size(address) as u32);
    }
    let name = entry.name.as_ref().map_or(ptr::null(), |name| name.as_ptr()).cast_mut();
    if is_passive {
        entry.c.ai_src_canonname = name;
    } else {
        entry.c.ai_dst_canonname = name;
    }
    Ok(entry)
}

fn family(address: SocketAddr) -> c_int {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

fn port_space(hints: &sys::rdma_addrinfo) -> c_int {
    let is_datagram = hints.ai_qp_type == sys::IBV_QPT_UD as c_int;
    if is_datagram { sys::RDMA_PS_UDP as c_int } else { sys::RDMA_PS_TCP as c_int }
}

/// Asks the resolver of the system.
///
/// # Safety
/// `node` and `service` are NULL or strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    flags: u32,
    wanted_family: c_int,
) -> Outcome<(SocketAddr, Option<CString>)> {
    // SAFETY: zeros are valid hints.
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
    // SAFETY: the caller's strings, valid hints, and a writable place.
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
    // SAFETY: the call has made a list, whose first entry is readable.
    let entry = unsafe { &*first };
    // SAFETY: the address of an entry is a socket address.
    let address = unsafe { sockaddr::read(entry.ai_addr) };
    // SAFETY: the name is NULL or a string of the list.
    let name =
        (!entry.ai_canonname.is_null()).then(|| unsafe { CStr::from_ptr(entry.ai_canonname) }.to_owned());
    // SAFETY: the list is the one of the call above.
    unsafe { libc::freeaddrinfo(first) };
    Ok((address.ok_or(Errno(libc::EAFNOSUPPORT))?, name))
}

/// See `rdma_freeaddrinfo(3)`.
///
/// # Safety
/// `info` is NULL or one of `rdma_getaddrinfo`, and freed once.
#[unsafe(export_name = "uw_rdma_freeaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut sys::rdma_addrinfo) {
    if !info.is_null() {
        // SAFETY: the address is that of a box, and the caller gives it up.
        drop(unsafe { Box::from_raw(info.cast::<Entry>()) });
    }
}
