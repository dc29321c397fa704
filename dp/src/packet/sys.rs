//! System calls for packet sockets and interfaces that `rustix` does not have.

use std::ffi::CStr;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_char, c_int, c_ulong, socklen_t};
use rustix::io::Errno;

/// Number of bytes of `struct ifreq`: the name of an interface, and the answer.
const IFREQ_BYTES: usize = size_of::<libc::ifreq>();
/// Offset of the answer in `struct ifreq`.
const ANSWER_AT: usize = libc::IFNAMSIZ;
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_ll>();
/// Offset of the interface's index in `struct sockaddr_ll`.
const INDEX_AT: usize = 4;
/// The request that carries commands of `linux/ethtool.h` (`linux/sockios.h`).
const SIOCETHTOOL: c_ulong = 0x8946;
/// The command that queries the carrier.
const ETHTOOL_GLINK: u32 = 0xa;

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(done: c_int) -> Result<(), Errno> {
    if done < 0 { Err(errno()) } else { Ok(()) }
}

/// Sets an option of the socket to a value in the kernel's layout.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    let (start, bytes) = (value.as_ptr().cast(), value.len() as socklen_t);
    // SAFETY: the kernel reads `bytes` bytes from `start` on, which are the bytes of `value`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, start, bytes) })
}

/// Reads an option of the socket into `value`. Bytes that the kernel does not fill in are unchanged.
pub(super) fn get_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut [u8],
) -> Result<(), Errno> {
    let mut bytes = value.len() as socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which has `bytes` bytes and is borrowed
    // mutably. The kernel stores the number of written bytes in `bytes`, a writable local variable.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut bytes) })
}

/// Makes the kernel run a filter on each frame for the socket.
pub(super) fn attach_filter(fd: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> Result<(), Errno> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let (start, bytes) = ((&raw const fprog).cast(), size_of::<libc::sock_fprog>() as socklen_t);
    // SAFETY: the kernel reads `fprog`, a local variable, and the instructions of `program`, to which `fprog`
    // refers.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, start, bytes) })
}

/// Binds the packet socket to all protocols of an interface.
pub(super) fn bind(fd: BorrowedFd<'_>, index: u32) -> Result<(), Errno> {
    let mut address = [0_u8; ADDRESS_BYTES];
    address[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    address[2..4].copy_from_slice(&(libc::ETH_P_ALL as u16).to_be_bytes());
    address[INDEX_AT..INDEX_AT + 4].copy_from_slice(&index.to_ne_bytes());
    // SAFETY: the kernel reads `ADDRESS_BYTES` bytes, which is the length of `address`. The kernel copies the
    // bytes, so they need no alignment.
    check(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr().cast(), ADDRESS_BYTES as socklen_t) })
}

/// Returns the index of the interface to which the packet socket is bound, or `None` if the interface does
/// not exist any more.
pub(super) fn bound_index(fd: BorrowedFd<'_>) -> Option<u32> {
    let mut address = [0_u8; ADDRESS_BYTES];
    let mut bytes = ADDRESS_BYTES as socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `address`, which has `bytes` bytes, and stores the
    // number of written bytes in `bytes`. `address` and `bytes` are writable local variables.
    let done = unsafe { libc::getsockname(fd.as_raw_fd(), address.as_mut_ptr().cast(), &mut bytes) };
    let index = i32::from_ne_bytes([4, 5, 6, 7].map(|at| address[at]));
    // The index is -1 if the interface does not exist any more.
    (done == 0).then(|| u32::try_from(index).ok()).flatten()
}

/// Queries a property of the interface with this name. Returns the bytes of the answer.
pub(super) fn ask(
    fd: BorrowedFd<'_>,
    request: c_ulong,
    name: &str,
) -> Result<[u8; IFREQ_BYTES - ANSWER_AT], Errno> {
    let mut ifreq = [0_u8; IFREQ_BYTES];
    // The kernel regards the 16th byte as the end of the name.
    let Some(room) = ifreq[..ANSWER_AT - 1].get_mut(..name.len()) else { return Err(Errno::NODEV) };
    room.copy_from_slice(name.as_bytes());
    ioctl(fd, request, &mut ifreq)?;
    let mut answer = [0; IFREQ_BYTES - ANSWER_AT];
    answer.copy_from_slice(&ifreq[ANSWER_AT..]);
    Ok(answer)
}

/// Returns whether an interface has a carrier. Returns `None` if this is not known, for example because the
/// interface's driver does not report the carrier.
pub(super) fn has_carrier(fd: BorrowedFd<'_>, name: &str) -> Option<bool> {
    // The words of a `struct ethtool_value`: the command and the answer.
    let mut value = [ETHTOOL_GLINK, 0];
    let mut ifr_name = [0; libc::IFNAMSIZ];
    let room = ifr_name[..libc::IFNAMSIZ - 1].get_mut(..name.len())?;
    room.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte as c_char);
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: value.as_mut_ptr().cast() };
    let mut ifreq = libc::ifreq { ifr_name, ifr_ifru };
    // SAFETY: the request reads and writes `ifreq` and the `struct ethtool_value` to which `ifreq` refers.
    // This struct is `value`, which has the eight bytes of the struct. `ifreq` and `value` are writable local
    // variables.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL as _, &raw mut ifreq) };
    (done == 0).then_some(value[1] != 0)
}

pub(super) fn name_of(fd: BorrowedFd<'_>, index: u32) -> Result<String, Errno> {
    let mut ifreq = [0_u8; IFREQ_BYTES];
    ifreq[ANSWER_AT..ANSWER_AT + 4].copy_from_slice(&index.to_ne_bytes());
    ioctl(fd, libc::SIOCGIFNAME as c_ulong, &mut ifreq)?;
    let name = ifreq[..ANSWER_AT].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn ioctl(fd: BorrowedFd<'_>, request: c_ulong, ifreq: &mut [u8; IFREQ_BYTES]) -> Result<(), Errno> {
    // The type of a request differs between C libraries.
    let request = request as _;
    // SAFETY: the requests of this module read and write a `struct ifreq`, and `ifreq` has the length of this
    // struct. The kernel copies the struct, so `ifreq` needs no alignment.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, ifreq.as_mut_ptr()) })
}

/// Sends the messages in order without waiting. Returns the number of messages that the kernel has accepted,
/// which is at least one. Returns an error if the kernel has refused the first message.
///
/// # Safety
/// Each message and the memory to which the message refers are readable during the call.
pub(super) unsafe fn send_messages(
    fd: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
) -> Result<usize, Errno> {
    let (start, count) = (messages.as_mut_ptr(), messages.len() as libc::c_uint);
    // SAFETY: `messages` has `count` messages, and is borrowed mutably. The caller promises that the messages
    // and the memory to which they refer are readable.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), start, count, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| errno())
}

/// The name of an interface, and one of its addresses. The address is `None` in the entry of the interface
/// itself.
pub(super) type InterfaceAddress = (String, Option<IpAddr>);

/// Returns all interfaces with the kernel's IP addresses.
pub(super) fn interface_addresses() -> Result<Vec<InterfaceAddress>, Errno> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is a writable local variable.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an entry of the list that `getifaddrs` has made. The list is freed only below.
        let entry = unsafe { &*at };
        // SAFETY: the name of an entry is a C string, which is valid until the list is freed.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        found.push((name.to_string_lossy().into_owned(), ip_address(entry.ifa_addr)));
        at = entry.ifa_next;
    }
    // SAFETY: `getifaddrs` has made the list, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Reads an IP address. `address` is null or the address of an entry of `getifaddrs`. Returns `None` for null
/// and for other families.
fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the address of an entry is not null here, and has a family.
    let family = unsafe { (*address).sa_family };
    match c_int::from(family) {
        libc::AF_INET => {
            let address: *const libc::sockaddr_in = address.cast();
            // SAFETY: an address of this family is a `sockaddr_in`.
            let bits = unsafe { (*address).sin_addr.s_addr };
            Some(Ipv4Addr::from(bits.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            let address: *const libc::sockaddr_in6 = address.cast();
            // SAFETY: an address of this family is a `sockaddr_in6`.
            let octets = unsafe { (*address).sin6_addr.s6_addr };
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}
