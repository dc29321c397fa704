//! A wire between hosts, on which programs use the addresses of the kernel.
//!
//! - **Our address on the wire** combines the kernel's address of the interface with a UDP port that the
//!   process holds: `fd75:7761:7270::a4d:1:7541` stands for port 0x7541 of 10.77.0.1. So several processes
//!   can use one interface, each with its own address.
//! - **A process's slot** is the second byte of this port, and the first byte of the numbers of its queue
//!   pairs. So a peer that knows the host's IPv4 address and the number of a queue pair knows the process's
//!   address.
//! - **A listener at an address that programs see** also holds the kernel's UDP port with the same address
//!   and port number ([`name_server`](super::name_server)).
//! - **In the port space of datagrams** a name holds another UDP port of the kernel, so the same port of both
//!   port spaces may be in use ([`kernel_port`]).
//! - **A connecting process** sends a UDP question to the listener's UDP port, and the listener's process
//!   answers with its address on the wire.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::address::Lookup;
use super::hash::fnv1a;
use super::kernel::InterfaceAddress;
use super::message::{BYTES, Content, Message};
use super::name_server::{NameServer, UdpNameLease};
use super::port_space::PortSpace;
use crate::ffi::abi::StartError;
use crate::ffi::exhaustion::is_exhaustion;

/// The first 48 bits of addresses on a wire between hosts. The addresses are unique local addresses (RFC
/// 4193) that contain the name `uwarp`.
const NETWORK: [u8; 6] = *b"\xfduwarp";

pub(super) const PREFIX: u8 = 48;

/// The pauses, in milliseconds, between the questions to a host that has no listener. The question is
/// repeated because a listener may appear a little later. If no question finds a listener, the connection is
/// refused.
const APPEARS_WITHIN_MS: [u64; 4] = [40, 80, 160, 160];
/// Maximum wait for a host's answer. The host's kernel may have to resolve a neighbour first, and datagrams
/// may be lost.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The first pause before a question is sent again; the pause doubles each time.
const PAUSE: Duration = Duration::from_millis(40);

/// The first byte of the UDP ports in the addresses of processes. The ports are not among those that the
/// kernel assigns to sockets by default.
const SLOT_PORTS: u8 = 0x75;

/// The place of a process among the processes of its host with an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u8);

impl Slot {
    /// The slot of the process whose queue pair has this number.
    pub(super) fn of_qp_num(qp_num: u32) -> Self {
        Self((qp_num >> 16) as u8)
    }

    fn port(self) -> u16 {
        u16::from_be_bytes([SLOT_PORTS, self.0])
    }
}

/// The name service between hosts: this process's address on the wire, and its names.
pub(super) struct Hosts {
    address: Ipv6Addr,
    /// The IPv4 address of this host and the slot of this process, or `None` if the process has no slot.
    slot: Option<(Ipv4Addr, Slot)>,
    /// The UDP port in our address. While this process holds the port, no other process of the host can have
    /// the same address.
    _port: UdpSocket,
    server: Arc<NameServer>,
}

impl Hosts {
    /// Chooses an address on the wire of `interface`, holds its UDP port, and starts the name server. The
    /// caller has blocked the signals of the program.
    pub(super) fn open(interface: &str) -> Result<Self, StartError> {
        if !super::kernel::has_interface(interface) {
            let line =
                format!("there is no interface {interface} here: `ip link` shows those that there are");
            return Err(line.into());
        }
        let failed = |what: &str, error: io::Error| StartError::with_line(format!("{what}: {error}"), &error);
        let addresses = super::kernel::addresses()
            .map_err(|error| failed("the kernel does not tell its addresses", error))?;
        let host = host_address(interface, &addresses).ok_or_else(|| {
            format!(
                "{interface} has no address of the kernel that other hosts know: give it one \
                 (`ip addr add 10.0.0.2/24 dev {interface}`), or give the wire one of its own (addr=A/N)"
            )
        })?;
        let text = |error: io::Error| failed(&format!("no UDP port of {host} can be taken"), error);
        let slot = match host {
            IpAddr::V4(host) => free_slot(host).map_err(text)?,
            IpAddr::V6(_) => None,
        };
        let (port, slot) = match (slot, host) {
            (Some((port, slot)), IpAddr::V4(host)) => (port, Some((host, slot))),
            _ => (UdpSocket::bind(SocketAddr::new(host, 0)).map_err(text)?, None),
        };
        let address = wire_address(host, port.local_addr().map_err(text)?.port());
        let server =
            NameServer::start().map_err(|error| failed("no thread for names can be started", error))?;
        Ok(Self { address, slot, _port: port, server })
    }

    pub(super) fn address(&self) -> Ipv6Addr {
        self.address
    }

    pub(super) fn slot(&self) -> Option<(Ipv4Addr, Slot)> {
        self.slot
    }

    /// Reserves the name of `visible`. With `family_only`, the IPv6 wildcard does not include IPv4 addresses.
    pub(super) fn take(
        &self,
        space: PortSpace,
        visible: SocketAddr,
        family_only: bool,
    ) -> io::Result<UdpNameLease> {
        self.server.take(of_kernel(space, visible), family_only)
    }

    /// Asks the host of `visible` which process listens at this address, and waits for the answer. If the
    /// host has no listener there, asks again a few times.
    ///
    /// # Errors
    /// Returns the system's error if no socket can be made for the question because a resource is exhausted.
    pub(super) fn find(&self, space: PortSpace, visible: SocketAddr) -> io::Result<Lookup> {
        let visible = of_kernel(space, visible);
        // The other host's kernel limits the rate of its ICMP errors: it refuses only a few questions per
        // second, and ignores the other questions. So this call sends only a few questions.
        for pause in APPEARS_WITHIN_MS {
            match ask(visible)? {
                Lookup::NotFound => std::thread::sleep(Duration::from_millis(pause)),
                peer => return Ok(peer),
            }
        }
        ask(visible)
    }
}

/// The address of the kernel's UDP port that the name of `visible` holds.
fn of_kernel(space: PortSpace, visible: SocketAddr) -> SocketAddr {
    let mut address = visible;
    address.set_port(kernel_port(space, visible.port()));
    address
}

/// The number of the kernel's UDP port that a name with this port holds. In the port space of connections,
/// it is the same number. In the port space of datagrams, it is a number half of a range away: the range of
/// privileged ports, of other ports of services, or of ports that systems choose. So each name of datagrams
/// has another port than every other name of datagrams, and than the name of connections with the same
/// number.
fn kernel_port(space: PortSpace, port: u16) -> u16 {
    let half_away = |first: u16, last: u16| {
        let count = u32::from(last - first) + 1;
        first + ((u32::from(port - first) + count / 2) % count) as u16
    };
    match (space, port) {
        // With port 0, the kernel chooses the port.
        (PortSpace::Tcp, _) | (PortSpace::Udp, 0) => port,
        (PortSpace::Udp, 1..=0x3FF) => half_away(1, 0x3FF),
        (PortSpace::Udp, 0x400..=0x7FFF) => half_away(0x400, 0x7FFF),
        (PortSpace::Udp, 0x8000..) => half_away(0x8000, u16::MAX),
    }
}

/// The kernel's address of `interface` under which other hosts reach this host, or `None` if the interface
/// has no such address.
fn host_address(interface: &str, addresses: &[InterfaceAddress]) -> Option<IpAddr> {
    let of_interface = |has: &&InterfaceAddress| has.interface == interface;
    let mut known = addresses.iter().filter(of_interface).map(|has| has.address).filter(|has| match has {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    });
    let first = known.clone().find(IpAddr::is_ipv4);
    first.or_else(|| known.next())
}

/// Takes a slot of the host, and binds its UDP port. Returns `None` if all slots are in use.
///
/// # Errors
/// Returns the system's error if no port can be bound for another reason.
fn free_slot(host: Ipv4Addr) -> io::Result<Option<(UdpSocket, Slot)>> {
    // The first slot to try is random, so that the slot of a process that has just ended is rarely reused.
    let [first, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    for slot in (0..=u8::MAX).map(|next| Slot(first.wrapping_add(next))) {
        match UdpSocket::bind((host, slot.port())) {
            Ok(port) => return Ok(Some((port, slot))),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The address on the wire of the process in `slot` of `host`.
pub(super) fn address_in_slot(host: Ipv4Addr, slot: Slot) -> Ipv6Addr {
    wire_address(host.into(), slot.port())
}

/// Our address on the wire of `interface` before this process holds a UDP port: the port in the address is 0.
/// If the interface has no address under which other hosts reach this host, the host in the address is also
/// 0.
pub(super) fn address_without_port(interface: &str) -> Ipv6Addr {
    let addresses = super::kernel::addresses().unwrap_or_default();
    wire_address(host_address(interface, &addresses).unwrap_or(Ipv4Addr::UNSPECIFIED.into()), 0)
}

/// The address on the wire of the process that has UDP port `port` of `host`.
fn wire_address(host: IpAddr, port: u16) -> Ipv6Addr {
    let host = match host {
        IpAddr::V4(host) => u64::from(u32::from(host)),
        // A 64-bit hash (FNV-1a) of the address. The first bit distinguishes the hash from IPv4 addresses.
        IpAddr::V6(host) => fnv1a(host.octets()) | 1 << 63,
    };
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&NETWORK);
    bytes[6..14].copy_from_slice(&host.to_be_bytes());
    bytes[14..].copy_from_slice(&port.to_be_bytes());
    bytes.into()
}

/// A UDP socket of the address family of `remote`, at any free port.
fn socket_for(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind(SocketAddr::new(any, 0))
}

/// The kernel's source address for packets to `remote`, or `None` if the kernel has no route or `remote` is
/// not the address of one host.
///
/// # Errors
/// Returns the system's error if no socket can be made for the query because a resource is exhausted.
pub(super) fn source_for(remote: IpAddr) -> io::Result<Option<IpAddr>> {
    if remote.is_multicast() || remote.is_unspecified() {
        return Ok(None);
    }
    // Connecting a UDP socket sends nothing. Port 9 is the port of the discard service.
    let remote = SocketAddr::new(remote, 9);
    let socket = match socket_for(remote) {
        // If the kernel does not support the address family, the kernel has no route.
        Err(error) if !is_exhaustion(&error) => return Ok(None),
        socket => socket?,
    };
    let local = socket.connect(remote).and_then(|()| socket.local_addr());
    Ok(local.ok().map(|local| local.ip()))
}

/// A socket that reports an error if the host of `remote` refuses a question. The socket is not connected,
/// since a host may answer from another of its addresses.
fn asking_socket(remote: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket_for(remote)?;
    let (level, name) = match remote {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    let on: libc::c_int = 1;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads `bytes` bytes of `on`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), bytes) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the host of `visible` which process listens at `visible`. Repeats the question until the host answers
/// or refuses, but at most for [`ANSWERS_WITHIN`].
fn ask(visible: SocketAddr) -> io::Result<Lookup> {
    let socket = match asking_socket(visible) {
        Err(error) if !is_exhaustion(&error) => return Ok(Lookup::NoAnswer),
        socket => socket?,
    };
    // A random number: the hasher is keyed by the system's entropy.
    let number = RandomState::new().build_hasher().finish();
    let question = Message { number, content: Content::Question }.bytes();
    let end = Instant::now() + ANSWERS_WITHIN;
    let mut pause = PAUSE;
    while Instant::now() < end {
        if let Err(error) = socket.send_to(&question, visible) {
            return Ok(unanswered(&error));
        }
        let again = end.min(Instant::now() + pause);
        while let Some(left) = again.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let mut bytes = [0; BYTES + 1];
            let received = socket.set_read_timeout(Some(left)).and_then(|()| socket.recv_from(&mut bytes));
            match received.map(|(count, _)| Message::read(&bytes[..count])) {
                Ok(Some(answer)) if answer.number == number => match answer.content {
                    Content::At(wire) => return Ok(Lookup::At(wire)),
                    Content::Bound => return Ok(Lookup::Bound),
                    Content::Question => {}
                },
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => break,
                Err(error) => return Ok(unanswered(&error)),
            }
        }
        pause *= 2;
    }
    Ok(Lookup::NoAnswer)
}

/// The meaning of the kernel's error for a question.
fn unanswered(error: &io::Error) -> Lookup {
    if error.kind() == ErrorKind::ConnectionRefused { Lookup::NotFound } else { Lookup::NoAnswer }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_address_of_a_process_says_its_host_and_its_port() {
        let on_wire = |host, port| wire_address(address(host), port).to_string();
        assert_eq!(on_wire("10.77.0.1", 0x9c41), "fd75:7761:7270::a4d:1:9c41");
        assert_eq!(on_wire("255.255.255.255", 1), "fd75:7761:7270::ffff:ffff:1");
        // The hash is the same in all builds of this library.
        assert_eq!(on_wire("fd00::1", 1), "fd75:7761:7270:c3c9:5b9e:b8bf:5b8b:1");
        let of = |host| wire_address(address(host), 1).octets()[6..14].to_vec();
        assert_ne!(of("fd00::1"), of("fd00::2"));
        assert_eq!(wire_address(address("fd00::2"), 7).octets()[..6], NETWORK);
    }

    #[test]
    fn the_host_is_known_by_an_address_of_the_interface_that_is_valid_on_it() {
        let has = |interface: &str, text: &str| InterfaceAddress {
            interface: interface.into(),
            address: address(text),
        };
        let mut all =
            vec![has("lo", "127.0.0.1"), has("v0", "fe80::1"), has("v0", "fd00::1"), has("v1", "10.0.0.9")];
        assert_eq!(host_address("v0", &all), Some(address("fd00::1")));
        all.push(has("v0", "10.0.0.1"));
        assert_eq!(host_address("v0", &all), Some(address("10.0.0.1")));
        assert_eq!(host_address("v2", &all), None);
        assert_eq!(host_address("v0", &all[..2]), None);
    }

    #[test]
    fn two_processes_of_a_host_have_different_addresses() {
        let [one, two] = [(); 2].map(|()| Hosts::open("lo").unwrap());
        assert_ne!(one.address(), two.address());
        assert_eq!(one.address().octets()[..14], two.address().octets()[..14]);
        for process in [&one, &two] {
            let (host, slot) = process.slot().unwrap();
            assert_eq!(host, Ipv4Addr::LOCALHOST);
            assert_eq!(process.address(), address_in_slot(host, slot));
            assert_eq!(Slot::of_qp_num(u32::from(slot.0) << 16 | 7), slot);
        }
        let line = Hosts::open("nothere").err().unwrap().line;
        assert!(line.contains("no interface nothere") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn a_process_without_a_free_slot_has_any_port() {
        // No test uses this address of the loopback interface.
        let host = Ipv4Addr::new(127, 75, 77, 1);
        let taken: Vec<_> = (0..=u8::MAX).map(|_| free_slot(host).unwrap().unwrap()).collect();
        assert!(free_slot(host).unwrap().is_none());
        let slot = taken[3].1;
        drop(taken);
        assert!(UdpSocket::bind((host, slot.port())).is_ok());
    }

    #[test]
    fn a_listener_is_found_where_programs_see_it() {
        let [server, client] = [(); 2].map(|()| Hosts::open("lo").unwrap());
        let wire: SocketAddr = "[fd75:7761:7270::1]:18515".parse().unwrap();
        let has_ipv6 = UdpSocket::bind("[::1]:0").is_ok();
        for own in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let own: SocketAddr = own.parse().unwrap();
            if own.is_ipv6() && !has_ipv6 {
                println!("skipped: {own} (this host has no IPv6)");
                continue;
            }
            // Port 0 means that the kernel chooses the port.
            let lease = server.take(PortSpace::Tcp, own, false).unwrap();
            let port = lease.address().unwrap().port();
            let at = match own {
                SocketAddr::V4(_) => SocketAddr::new(address("127.0.0.1"), port),
                SocketAddr::V6(_) => SocketAddr::new(address("::1"), port),
            };
            assert_eq!(client.find(PortSpace::Tcp, at).unwrap(), Lookup::Bound, "{own}");
            let taken = client.take(PortSpace::Tcp, SocketAddr::new(own.ip(), port), false).err().unwrap();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{own}");
            lease.publish(wire);
            assert_eq!(client.find(PortSpace::Tcp, at).unwrap(), Lookup::At(wire), "{own}");
            drop(lease);
            let begun = Instant::now();
            assert_eq!(client.find(PortSpace::Tcp, at).unwrap(), Lookup::NotFound, "{own}");
            assert!(begun.elapsed() < ANSWERS_WITHIN, "{own}");
            client.take(PortSpace::Tcp, SocketAddr::new(own.ip(), port), false).unwrap();
        }
    }

    #[test]
    fn the_same_port_of_both_port_spaces_may_be_in_use() {
        let [server, client] = [(); 2].map(|()| Hosts::open("lo").unwrap());
        let wires: [SocketAddr; 2] = ["[fd75::1]:1", "[fd75::2]:2"].map(|wire| wire.parse().unwrap());
        // Another test or another program may have the kernel's port of the second name.
        let (at, of_connections, of_datagrams) = (0..100)
            .find_map(|_| {
                let lease = server.take(PortSpace::Tcp, "127.0.0.1:0".parse().unwrap(), false).unwrap();
                let at = lease.address().unwrap();
                Some((at, lease, server.take(PortSpace::Udp, at, false).ok()?))
            })
            .unwrap();
        assert!(client.take(PortSpace::Udp, at, false).is_err());
        of_connections.publish(wires[0]);
        assert_eq!(client.find(PortSpace::Udp, at).unwrap(), Lookup::Bound);
        of_datagrams.publish(wires[1]);
        let found = [PortSpace::Tcp, PortSpace::Udp].map(|space| client.find(space, at).unwrap());
        assert_eq!(found, wires.map(Lookup::At));
    }

    #[test]
    fn each_port_of_datagrams_has_another_port_of_the_kernel_in_the_same_range() {
        let of = |port| kernel_port(PortSpace::Udp, port);
        let all: std::collections::BTreeSet<u16> = (0..=u16::MAX).map(of).collect();
        assert_eq!(all.len(), 0x1_0000);
        let range = |port: u16| (port < 1024, port < 0x8000);
        assert!((1..=u16::MAX).all(|port| of(port) != port && range(of(port)) == range(port)));
        assert!((0..=u16::MAX).all(|port| kernel_port(PortSpace::Tcp, port) == port));
        // The numbers are the same in all builds of this library.
        assert_eq!([0, 1, 7471, 18_515, 40_000].map(of), [0, 512, 23_343, 2643, 56_384]);
    }

    #[test]
    fn a_listener_that_comes_late_is_found() {
        let [server, client] = [(); 2].map(|()| Hosts::open("lo").unwrap());
        let wire: SocketAddr = "[fd75:7761:7270::1]:18515".parse().unwrap();
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let comes = std::thread::spawn(move || {
            std::thread::sleep(2 * PAUSE);
            let lease = server.take(PortSpace::Tcp, free, false).unwrap();
            lease.publish(wire);
            (server, lease)
        });
        assert_eq!(client.find(PortSpace::Tcp, free).unwrap(), Lookup::At(wire));
        drop(comes.join().unwrap());
    }

    /// On Debian, the host's name resolves to 127.0.1.1. The kernel answers questions for 127.0.1.1 from
    /// 127.0.0.1, and such an answer counts.
    #[test]
    fn an_answer_may_come_from_another_address_of_the_host() {
        let [server, client] = [(); 2].map(|()| Hosts::open("lo").unwrap());
        let wire: SocketAddr = "[fd75:7761:7270::1]:18515".parse().unwrap();
        let lease = server.take(PortSpace::Tcp, "0.0.0.0:0".parse().unwrap(), false).unwrap();
        lease.publish(wire);
        let at = SocketAddr::new(address("127.0.1.1"), lease.address().unwrap().port());
        assert_eq!(client.find(PortSpace::Tcp, at).unwrap(), Lookup::At(wire));
        drop(lease);
        assert_eq!(client.find(PortSpace::Tcp, at).unwrap(), Lookup::NotFound);
    }

    /// Another program may own the port, and may send anything. An answer may also belong to another
    /// question. Such datagrams are ignored.
    #[test]
    fn only_the_answer_to_the_question_counts() {
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = other.local_addr().unwrap();
        let wire: SocketAddr = "[fd75:7761:7270::1]:18515".parse().unwrap();
        let answers = std::thread::spawn(move || {
            let mut bytes = [0; 100];
            let (count, from) = other.recv_from(&mut bytes).unwrap();
            let number = Message::read(&bytes[..count]).unwrap().number;
            let wrong = Message { number: number ^ 1, content: Content::Bound };
            let right = Message { number, content: Content::At(wire) };
            let itself = Message { number, content: Content::Question };
            for bytes in [&b"hello"[..], &wrong.bytes(), &itself.bytes(), &right.bytes()] {
                other.send_to(bytes, from).unwrap();
            }
            // The socket stays open until the end of the test, since the kernel would refuse questions to a
            // closed port.
            other
        });
        assert_eq!(ask(at).unwrap(), Lookup::At(wire));
        drop(answers.join().unwrap());
    }

    #[test]
    fn the_kernel_says_from_where_it_reaches_an_address() {
        assert_eq!(source_for(address("127.0.0.1")).unwrap(), Some(address("127.0.0.1")));
        assert_eq!(source_for(address("224.0.0.1")).unwrap(), None);
        assert_eq!(source_for(address("0.0.0.0")).unwrap(), None);
    }
}
