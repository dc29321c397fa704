//! This process's end of the wire, and the addresses under which programs see this end.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use dp::LinkState;
use iwarp::roce::{self, Mtu};

use super::address::{Lookup, mapped};
use super::address_lease::AddressLease;
use super::claim::Claim;
use super::gids::{self, Scope};
use super::hosts::{self, Hosts, Slot};
use super::kernel;
use super::local_names::{LocalNameLease, LocalNames};
use super::name_locks::NameError;
use super::name_server::UdpNameLease;
use super::port_space::{PerSpace, PortSpace};
use super::presence::Presence;

/// The MTU of Ethernet, before the wire's own MTU is known.
const DEFAULT_MTU: u16 = 1500;

/// This process's end of the wire.
///
/// `getaddrinfo` returns IPv4-mapped addresses (`::ffff:10.0.0.1`) if the kernel's interfaces have only IPv6
/// addresses. This library treats the IPv4-mapped form like the IPv4 form.
pub(crate) struct Net {
    /// The address of this process on the wire.
    address: IpAddr,
    service: NameService,
    /// Whether the wire is `local`.
    is_local: bool,
    /// The name of the kernel interface that the device reports as its own.
    interface: CString,
    up: AtomicBool,
    /// Maximum number of bytes of an IP packet on the wire.
    mtu: u16,
    /// The announcement of this process, on a wire that has no folder.
    presence: Option<Presence>,
    /// The lease of our address, on an interface whose addresses several processes share.
    lease: Option<AddressLease>,
}

/// The name service: for an address that programs see, it finds the process that listens there.
pub(super) enum NameService {
    /// There is no name service: programs use the addresses on the wire.
    None,
    /// The name service of a `local` wire, in the folder of the wire: programs see the addresses of their
    /// host.
    Local(PerSpace<LocalNames>),
    /// The name service between hosts: programs see the addresses of the kernels.
    Hosts(Hosts),
}

/// A name that this process holds until the value is dropped. The variant depends on the kind of wire.
pub(crate) enum NameLease {
    Local(LocalNameLease),
    Hosts(UdpNameLease),
}

impl Net {
    pub(super) fn new(address: IpAddr, service: NameService) -> Self {
        Self {
            address,
            service,
            is_local: false,
            interface: c"lo".into(),
            up: AtomicBool::new(true),
            mtu: DEFAULT_MTU,
            presence: None,
            lease: None,
        }
    }

    /// Holds the lease of our address as long as the value exists.
    pub(super) fn hold(&mut self, lease: Option<AddressLease>) {
        self.lease = lease;
    }

    /// Sets that the wire is `local`.
    pub(super) fn set_local(&mut self) {
        self.is_local = true;
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// The path MTU of InfiniBand: the largest message of a datagram that one packet of the wire can carry.
    pub(crate) fn path_mtu(&self) -> Mtu {
        roce::max_message(self.mtu.into()).unwrap_or(Mtu::Mtu256)
    }

    /// Maximum number of bytes of a datagram's message.
    pub(crate) fn max_datagram(&self) -> u16 {
        self.path_mtu().bytes() as u16
    }

    /// Sets the interface of the wire. On a wire without a kernel interface, the device reports the loopback
    /// interface.
    pub(super) fn set_interface(&mut self, name: &str) {
        if let Ok(name) = CString::new(name) {
            self.interface = name;
        }
    }

    /// The index of the interface, or 0 if the interface does not exist any more.
    pub(crate) fn interface_index(&self) -> u32 {
        // SAFETY: the name is a C string.
        unsafe { libc::if_nametoindex(self.interface.as_ptr()) }
    }

    /// Announces this process to [`processes`](super::processes), on a wire that has no folder.
    pub(super) fn show(&mut self, wire: &str) {
        let kind = wire.split(',').next().unwrap_or(wire);
        self.presence = Presence::announce(kind, self.address);
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether all peers on the wire use this library.
    pub(crate) fn is_private(&self) -> bool {
        !matches!(self.service, NameService::None)
    }

    /// Our address on the wire in IPv6 form. For each process this form is the same on both ends of a
    /// connection.
    pub(crate) fn mapped_address(&self) -> [u8; 16] {
        mapped(self.address).octets()
    }

    /// The GID at `index` of the device's table, or `None` behind the end of the table.
    pub(crate) fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let host = self.slot().map(|(host, _)| host);
        gids::at(index, self.address, host, self.scope())
    }

    /// The number of GIDs of the device.
    pub(crate) fn gid_count(&self) -> usize {
        gids::count(self.scope())
    }

    /// The address on the wire of a peer with this GID, whose queue pair has the number `qp_num`.
    pub(crate) fn address_of_gid(&self, gid: [u8; 16], qp_num: u32) -> IpAddr {
        gids::resolve(gid, qp_num, self.scope())
    }

    /// The last index of our GID that is this address, which has the type RoCEv2.
    pub(crate) fn gid_index_of(&self, address: IpAddr) -> Option<usize> {
        let gid = mapped(address).octets();
        (0..self.gid_count()).rev().find(|index| self.gid(*index) == Some(gid))
    }

    fn scope(&self) -> Scope {
        match self.service {
            NameService::Hosts(_) => Scope::Hosts,
            _ if self.is_local => Scope::Local,
            NameService::None | NameService::Local(_) => Scope::Network,
        }
    }

    /// The address of a multicast group on the wire, or `None` if the wire has no address for the group.
    pub(crate) fn group_on_wire(&self, group: IpAddr) -> Option<IpAddr> {
        gids::group_on_wire(self.address, group.to_canonical(), self.is_private())
    }

    /// The first byte of the numbers of our queue pairs, if this byte names this process.
    pub(crate) fn qp_num_prefix(&self) -> Option<u8> {
        self.slot().map(|(_, Slot(slot))| slot)
    }

    fn slot(&self) -> Option<(Ipv4Addr, Slot)> {
        match &self.service {
            NameService::Hosts(hosts) => hosts.slot(),
            NameService::None | NameService::Local(_) => None,
        }
    }

    /// The LID of the device: the low 16 bits of our address on the wire, or 1 if these bits are 0.
    pub(crate) fn lid(&self) -> u16 {
        let [.., high, low] = self.mapped_address();
        u16::from_be_bytes([high, low]).max(1)
    }

    /// The address on the wire of the peer with this LID: our address with the LID as its low 16 bits.
    pub(crate) fn address_of_lid(&self, lid: u16) -> IpAddr {
        let [high, low] = lid.to_be_bytes();
        match self.address {
            IpAddr::V4(ours) => {
                let [a, b, ..] = ours.octets();
                IpAddr::from([a, b, high, low])
            }
            IpAddr::V6(ours) => {
                let mut bytes = ours.octets();
                bytes[14..].copy_from_slice(&[high, low]);
                IpAddr::from(bytes)
            }
        }
    }

    pub(crate) fn link(&self) -> LinkState {
        if self.up.load(Ordering::Relaxed) { LinkState::Up } else { LinkState::Down }
    }

    pub(crate) fn set_link(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Whether a program may use `address` as its own.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(crate) fn is_ours(&self, address: IpAddr) -> io::Result<bool> {
        let address = address.to_canonical();
        Ok(address == self.address || (self.is_private() && kernel::is_of_this_host(address)?))
    }

    /// Whether binding an identifier to `address` assigns the identifier to the device. A wildcard does not.
    /// On a wire between hosts, a loopback address does not either, since libfabric would pass this address
    /// to other hosts as its own.
    pub(crate) fn is_of_device(&self, address: IpAddr) -> bool {
        let is_everywhere =
            matches!(self.service, NameService::Hosts(_)) && address.to_canonical().is_loopback();
        !address.is_unspecified() && !is_everywhere
    }

    /// Whether `address` is reachable. The check sends nothing, so the answer may be true for an address
    /// without a host.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(crate) fn is_reachable(&self, address: IpAddr) -> io::Result<bool> {
        let address = address.to_canonical();
        if address.is_multicast() {
            return Ok(self.group_on_wire(address).is_some());
        }
        match &self.service {
            NameService::None => Ok(address.is_ipv4() == self.address.is_ipv4()),
            NameService::Local(PerSpace { tcp, udp }) => {
                Ok(self.is_ours(address)? || tcp.knows(address)? || udp.knows(address)?)
            }
            NameService::Hosts(_) => Ok(hosts::source_for(address)?.is_some()),
        }
    }

    /// The address that a program sees as its own when it connects to `remote`.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(crate) fn source_for(&self, remote: IpAddr) -> io::Result<IpAddr> {
        let source = match &self.service {
            NameService::None => None,
            // If the destination is an address of an interface of this host, the kernel uses this address as
            // the source too. (The kernel's source for 127.0.0.2 is 127.0.0.1; here it is 127.0.0.2.)
            NameService::Local(_) => kernel::is_of_this_host(remote)?.then_some(remote),
            // The kernel may send to groups from another interface.
            NameService::Hosts(hosts) if remote.is_multicast() => hosts.slot().map(|(host, _)| host.into()),
            NameService::Hosts(_) => hosts::source_for(remote.to_canonical())?,
        };
        Ok(source.unwrap_or(self.address))
    }

    /// Finds the address on the wire of the listener at `remote`. Between hosts, this call waits for an
    /// answer.
    ///
    /// # Errors
    /// Returns the system's error if the lookup fails.
    pub(crate) fn find(&self, space: PortSpace, remote: SocketAddr) -> io::Result<Lookup> {
        let remote = canonical(remote);
        match &self.service {
            NameService::None => Ok(Lookup::At(remote)),
            NameService::Local(names) => names.of(space).find(remote),
            NameService::Hosts(hosts) => hosts.find(space, remote),
        }
    }

    /// Whether the process that the last [`find`](Self::find) found at `remote` still exists. Returns `None`
    /// if [`find`](Self::find) has found no process there, or if the wire has no folder.
    ///
    /// # Errors
    /// Returns the system's error if the answer cannot be determined.
    pub(crate) fn lives(&self, space: PortSpace, remote: SocketAddr) -> io::Result<Option<bool>> {
        match &self.service {
            NameService::Local(names) => names.of(space).lives(canonical(remote)),
            NameService::None | NameService::Hosts(_) => Ok(None),
        }
    }

    /// Reserves the name of an address that a program binds. Returns `None` if the wire has no names, or if
    /// the name is in use and the claim reuses the address.
    pub(crate) fn take_name(
        &self,
        space: PortSpace,
        visible: SocketAddr,
        claim: &Claim,
    ) -> Result<Option<NameLease>, NameError> {
        let visible = canonical(visible);
        match &self.service {
            NameService::None => Ok(None),
            NameService::Local(names) => {
                Ok(names.of(space).take(visible.port(), claim)?.map(NameLease::Local))
            }
            NameService::Hosts(hosts) => match hosts.take(space, visible, claim.family_only) {
                Ok(lease) => Ok(Some(NameLease::Hosts(lease))),
                Err(error) => match NameError::of_bind(error, claim.address) {
                    // The kernel does not report whether the owner of the port has also set
                    // `RDMA_OPTION_ID_REUSEADDR`. So if the port is in use, an identifier that has set this
                    // option is bound without a name in the name service. Only a listener needs the name.
                    NameError::InUse | NameError::Overlaps if claim.reuses => Ok(None),
                    error => Err(error),
                },
            },
        }
    }

    /// Reserves the name of the address from which a program connects. Returns `None` on wires other than
    /// `local`.
    pub(crate) fn take_source(
        &self,
        space: PortSpace,
        visible: SocketAddr,
        claim: &Claim,
    ) -> Result<Option<NameLease>, NameError> {
        match &self.service {
            NameService::None | NameService::Hosts(_) => Ok(None),
            NameService::Local(names) => {
                Ok(Some(NameLease::Local(names.of(space).take_source(visible.port(), claim)?)))
            }
        }
    }

    /// Whether peers can reach a listener with this claim. If programs use the addresses on the wire, peers
    /// cannot reach a listener that accepts only an address family other than the wire's.
    pub(crate) fn reaches(&self, claim: &Claim) -> bool {
        self.is_private() || !claim.family_only || claim.address.is_ipv4() == self.address.is_ipv4()
    }

    /// Publishes our address on the wire, with `port`, under a name.
    pub(crate) fn publish(&self, name: &mut NameLease, port: u16) -> Result<(), NameError> {
        let wire = SocketAddr::new(self.address, port);
        match name {
            NameLease::Local(listening) => listening.publish(wire),
            NameLease::Hosts(lease) => {
                lease.publish(wire);
                Ok(())
            }
        }
    }
}

/// Converts an IPv4-mapped address to IPv4, and leaves other addresses unchanged.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_written_as_ipv6_is_the_same() {
        let net = Net::new("10.0.0.1".parse().unwrap(), NameService::None);
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let peer: SocketAddr = "[::ffff:10.0.0.2]:7174".parse().unwrap();
        // The peer may be any iWARP implementation.
        assert!(!net.is_private());
        assert!(net.is_ours(mapped).unwrap() && net.is_reachable(peer.ip()).unwrap());
        assert_eq!(net.find(PortSpace::Tcp, peer).unwrap(), Lookup::At("10.0.0.2:7174".parse().unwrap()));
        assert!(!net.is_ours(peer.ip()).unwrap() && !net.is_reachable("fd00::2".parse().unwrap()).unwrap());
        let claim = |address: &str, family_only| Claim {
            address: address.parse().unwrap(),
            family_only,
            reuses: false,
        };
        assert!(net.reaches(&claim("0.0.0.0", true)) && net.reaches(&claim("::", false)));
        assert!(!net.reaches(&claim("::", true)), "no peer of this wire has such an address");
        let link_local: SocketAddr = "[fe80::1%3]:7174".parse().unwrap();
        assert_eq!(canonical(link_local), link_local);
    }

    #[test]
    fn a_lid_is_the_end_of_an_address_and_never_0() {
        let of = |address: &str| Net::new(address.parse().unwrap(), NameService::None);
        for (ours, lid, theirs, other) in [
            ("10.0.1.2", 0x0102, 0x0304, "10.0.3.4"),
            ("10.7.0.0", 1, 0xffff, "10.7.255.255"),
            ("fd00::1:9c41", 0x9c41, 2, "fd00::1:2"),
            ("fd00::1:0", 1, 0x10, "fd00::1:10"),
        ] {
            assert_eq!(of(ours).lid(), lid, "{ours}");
            assert_eq!(of(ours).address_of_lid(theirs), other.parse::<IpAddr>().unwrap(), "{ours}");
        }
    }
}
