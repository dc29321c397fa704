//! The packet socket. This module opens the socket, sets the sizes of the socket's buffers, and chooses the
//! frames that the interface receives.

use std::os::fd::{BorrowedFd, OwnedFd};

use libc::c_int;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::error::PacketError;
use super::sys;

/// Opens a socket. The socket receives nothing until it is bound.
pub(super) fn open(interface: &str) -> Result<OwnedFd, PacketError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(|cause| refusal(interface, cause))
}

/// Returns the error for a packet socket that cannot be opened.
fn refusal(interface: &str, cause: Errno) -> PacketError {
    match cause {
        Errno::PERM | Errno::ACCESS => PacketError::NoPrivilege { interface: interface.to_owned() },
        Errno::AFNOSUPPORT => PacketError::NoPacketSockets,
        _ => PacketError::Setup { interface: interface.to_owned(), step: "opening a packet socket", cause },
    }
}

/// Sets the size of a buffer of the socket to `bytes`. Without a privilege, the size is at most twice the
/// kernel's limit (`net.core.rmem_max` or `net.core.wmem_max`). Returns the buffer's actual size.
pub(super) fn buffer_size(
    fd: BorrowedFd<'_>,
    force: c_int,
    option: c_int,
    bytes: usize,
) -> Result<usize, Errno> {
    // The kernel doubles the value, since the kernel's own records count toward the size.
    let half = ((bytes / 2) as c_int).to_ne_bytes();
    if sys::set_option(fd, libc::SOL_SOCKET, force, &half).is_err() {
        // A size above the limit needs a privilege, so this call sets a size within the limit.
        sys::set_option(fd, libc::SOL_SOCKET, option, &half)?;
    }
    let mut size = [0; size_of::<c_int>()];
    sys::get_option(fd, libc::SOL_SOCKET, option, &mut size)?;
    Ok(usize::try_from(c_int::from_ne_bytes(size)).unwrap_or(0))
}

/// Makes an interface receive frames for an Ethernet address, as long as the socket exists.
pub(super) fn membership(fd: BorrowedFd<'_>, index: u32, kind: c_int, mac: [u8; 6]) -> Result<(), Errno> {
    change_membership(fd, libc::PACKET_ADD_MEMBERSHIP, (index, kind, mac))
}

/// Ends the effect of [`membership`].
pub(super) fn end_membership(fd: BorrowedFd<'_>, index: u32, kind: c_int, mac: [u8; 6]) -> Result<(), Errno> {
    change_membership(fd, libc::PACKET_DROP_MEMBERSHIP, (index, kind, mac))
}

fn change_membership(
    fd: BorrowedFd<'_>,
    option: c_int,
    (index, kind, mac): (u32, c_int, [u8; 6]),
) -> Result<(), Errno> {
    // The bytes of a `struct packet_mreq`.
    let mut request = [0_u8; 16];
    request[..4].copy_from_slice(&index.to_ne_bytes());
    request[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
    request[6..8].copy_from_slice(&(mac.len() as u16).to_ne_bytes());
    request[8..14].copy_from_slice(&mac);
    sys::set_option(fd, libc::SOL_PACKET, option, &request)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_missing_privilege_and_a_kernel_without_packet_sockets_are_told_apart() {
        let interface = "eth9".to_owned();
        for errno in [Errno::PERM, Errno::ACCESS] {
            assert_eq!(
                refusal("eth9", errno),
                PacketError::NoPrivilege { interface: interface.clone() },
                "{errno}"
            );
        }
        assert_eq!(refusal("eth9", Errno::AFNOSUPPORT), PacketError::NoPacketSockets);
        let other = PacketError::Setup { interface, step: "opening a packet socket", cause: Errno::MFILE };
        assert_eq!(refusal("eth9", Errno::MFILE), other);
    }

    /// This test uses a Unix socket, since every socket has these buffers.
    #[test]
    fn a_buffer_has_the_size_that_was_asked_for_and_its_real_size_is_returned() {
        let kind = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap();
        let size = |force, bytes| buffer_size(socket.as_fd(), force, libc::SO_RCVBUF, bytes).unwrap();
        for bytes in [16 << 10, 100 << 10] {
            assert_eq!(size(libc::SO_RCVBUFFORCE, bytes), bytes);
        }
        // No socket has an option with this number. So setting the option fails, as in a process that may not
        // exceed the limit.
        let unknown = 9999;
        assert_eq!(size(unknown, 64 << 10), 64 << 10);
        let least = size(libc::SO_RCVBUFFORCE, 2);
        assert!(least > 2, "the kernel's least: {least}");
        let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max");
        let Some(limit) = limit.ok().and_then(|text| text.trim().parse::<usize>().ok()) else { return };
        assert_eq!(size(unknown, 4 * limit), 2 * limit, "as much as the limit allows");
        if rustix::process::geteuid().is_root() {
            assert_eq!(size(libc::SO_RCVBUFFORCE, 4 * limit), 4 * limit, "the limit is for others");
        }
    }
}
