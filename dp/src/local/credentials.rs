//! Identifies the process on the other side of a socket.

use std::os::fd::{AsFd, AsRawFd};

/// The process that listens on the other side of a socket, or that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The PID of the process in the PID namespace of this process. 0 if the process has no PID there.
    pub(super) pid: i32,
    /// The effective user id of the process.
    pub(super) uid: u32,
}

/// Returns the credentials of the other side of a connected socket (`SO_PEERCRED`), or `None` if the system
/// does not return them. The function calls libc, since `rustix` cannot represent a process of another PID
/// namespace.
pub(super) fn credentials(socket: impl AsFd) -> Option<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers refer to `found`, which has `bytes` bytes, and to `bytes`. `found` and `bytes` are
    // writable local variables. Every bit pattern is a valid `ucred`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    (outcome == 0 && bytes as usize == size_of::<libc::ucred>())
        .then_some(Credentials { pid: found.pid, uid: found.uid })
}

/// Returns the PID of the process on the other side of a connected socket, in the PID namespace of this
/// process. Returns `None` if the PID is not known, for example because the process has no PID in this
/// namespace.
pub fn pid_of_peer(socket: impl AsFd) -> Option<i32> {
    credentials(socket).map(|peer| peer.pid).filter(|pid| *pid > 0)
}

/// Whether the process on the other side is known to belong to the same user as this process.
pub(super) fn is_same_user(socket: impl AsFd) -> bool {
    credentials(socket).is_some_and(|other| other.uid == rustix::process::geteuid().as_raw())
}
