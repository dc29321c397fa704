//! Processes on wires, and how processes on wires without a folder announce themselves.
//!
//! A process on a wire without a folder binds a Unix socket to a name in the abstract namespace. The name
//! contains the process's PID, address and wire. The system removes the name however the process ends, and
//! lists the names of a network namespace in `/proc/net/unix`.

use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// A process on a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireProcess {
    /// The name of the wire.
    pub wire: String,
    /// The PID of the process, or 0 if this process cannot see the PID.
    pub pid: i32,
    /// The name of the process, as the system reports it.
    pub program: String,
    /// The address of the process on the wire.
    pub address: String,
    /// The addresses at which the process listens. The list is empty on wires other than `local`.
    pub listens: Vec<String>,
}

/// The announcement of this process, which ends when the value is dropped.
pub(super) struct Presence {
    _socket: OwnedFd,
}

/// The beginning of each socket name.
const PREFIX: &str = "uwarp/";
/// Maximum number of bytes of the wire in a socket name. A socket name has at most 107 bytes.
const WIRE_BYTES: usize = 40;

impl Presence {
    /// Announces this process on a wire. Returns `None` if the system refuses the socket. A refusal has no
    /// other effect.
    pub(super) fn announce(wire: &str, address: IpAddr) -> Option<Self> {
        let wire: String = wire.chars().filter(char::is_ascii_graphic).take(WIRE_BYTES).collect();
        let name = format!("{PREFIX}{}/{address}/{wire}", std::process::id());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
        Some(Self { _socket: socket })
    }
}

/// The announced processes whose descriptors this user may inspect.
pub(super) fn processes() -> Vec<WireProcess> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names: Vec<(&str, IpAddr, &str)> = table.lines().filter_map(name).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let sockets: Vec<String> = fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| Some(fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned()))
            .collect();
        let of_process = names.iter().filter(|(inode, ..)| {
            let socket = format!("socket:[{inode}]");
            sockets.contains(&socket)
        });
        found.extend(of_process.map(|(_, address, wire)| WireProcess {
            wire: (*wire).to_owned(),
            pid,
            program: program(pid),
            address: address.to_string(),
            listens: Vec::new(),
        }));
    }
    found.sort_by(|a, b| (&a.wire, &a.address, a.pid).cmp(&(&b.wire, &b.address, b.pid)));
    found
}

/// The inode, the address and the wire in a line of `/proc/net/unix`, or `None` if the line does not contain
/// a name of this library.
fn name(line: &str) -> Option<(&str, IpAddr, &str)> {
    let mut words = line.split_whitespace().skip(6);
    let (inode, name) = (words.next()?, words.next()?);
    let mut parts = name.strip_prefix('@')?.strip_prefix(PREFIX)?.splitn(3, '/').skip(1);
    let (address, wire) = (parts.next()?.parse().ok()?, parts.next()?);
    // Any user can bind any name, even a name with escape sequences for a terminal.
    wire.chars().all(|c| c.is_ascii_graphic()).then_some((inode, address, wire))
}

/// The name of a process, as the system reports it.
pub(super) fn program(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_listed_as_long_as_it_is_there() {
        let address: IpAddr = "fd75:7761:7270::a00:1:9c41".parse().unwrap();
        let ours = || {
            let mut processes = processes();
            processes.retain(|process| process.address == address.to_string());
            processes
        };
        assert_eq!(ours(), []);
        let presence = Presence::announce("dpdk:--vdev net_tap0", address).unwrap();
        let listed = ours();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].wire, "dpdk:--vdevnet_tap0");
        assert_eq!(listed[0].pid, std::process::id() as i32);
        assert_eq!(listed[0].program, program(listed[0].pid));
        drop(presence);
        assert_eq!(ours(), []);
    }

    #[test]
    fn names_of_others_are_not_ours() {
        let line = |name: &str| format!("0000000000000000: 00000002 00000000 00000000 0001 01 123 {name}");
        let good = line("@uwarp/7/10.0.0.1/vhost:/tmp/a");
        assert_eq!(name(&good), Some(("123", "10.0.0.1".parse().unwrap(), "vhost:/tmp/a")));
        for bad in
            ["", "/tmp/uwarp/7/10.0.0.1/tap:a", "@uwarp/7/10.0.0/tap:a", "@uwarp/7", "@uwarp/7/::/\u{1b}[m"]
        {
            assert_eq!(name(&line(bad)), None, "{bad}");
        }
    }
}
