//! This end of the wire, and how programs see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use dp::LinkState;

use super::address::{Peer, mapped};
use super::names::{self, Listening, NameError, Names};

/// This end of the wire.
pub(crate) struct Net {
    /// Our address on the wire.
    address: IpAddr,
    /// The name service of a `local` wire, whose addresses programs do not see; `None`: programs use the
    /// addresses of the wire.
    names: Option<Names>,
    up: AtomicBool,
}

impl Net {
    pub(super) fn new(address: IpAddr, names: Option<Names>) -> Self {
        Self { address, names, up: AtomicBool::new(true) }
    }

    /// Our address on the wire.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether both ends of every connection are of this library.
    pub(crate) fn is_local(&self) -> bool {
        self.names.is_some()
    }

    /// Our GID: the address, as IPv6 has an IPv4 one.
    pub(crate) fn gid(&self) -> [u8; 16] {
        mapped(self.address).octets()
    }

    /// Our LID: the low 16 bits of the address, and never 0.
    pub(crate) fn lid(&self) -> u16 {
        let [.., high, low] = self.gid();
        u16::from_be_bytes([high, low]).max(1)
    }

    /// The address of the wire with a LID: on our network, all but its low 16 bits are ours.
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

    /// Whether frames can pass.
    pub(crate) fn link(&self) -> LinkState {
        if self.up.load(Ordering::Relaxed) { LinkState::Up } else { LinkState::Down }
    }

    pub(crate) fn set_link(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    /// Whether a program may use `address` as its own.
    pub(crate) fn is_ours(&self, address: IpAddr) -> bool {
        match &self.names {
            Some(_) => address == self.address || names::is_of_this_host(address),
            None => address == self.address,
        }
    }

    /// Whether `address` can be reached, as far as it is known without asking it.
    pub(crate) fn is_reachable(&self, address: IpAddr) -> bool {
        match &self.names {
            Some(names) => self.is_ours(address) || names.knows(address),
            None => address.is_ipv4() == self.address.is_ipv4(),
        }
    }

    /// The address that a program sees as its own when it connects to `remote`.
    pub(crate) fn source_for(&self, remote: IpAddr) -> IpAddr {
        // On one host, the kernel takes the address itself as its source.
        if self.is_local() && names::is_of_this_host(remote) { remote } else { self.address }
    }

    /// Where to connect to for a program that names `remote`.
    pub(crate) fn find(&self, remote: SocketAddr) -> Peer {
        match &self.names {
            Some(names) => names.find(remote),
            None => Peer::At(remote),
        }
    }

    /// Takes the name of an address that a program binds, if the wire has names.
    pub(crate) fn take_name(&self, visible: SocketAddr) -> Result<Option<Listening>, NameError> {
        self.names.as_ref().map(|names| names.take(visible)).transpose()
    }

    /// A name leads to `port` of ours on the wire from now on.
    pub(crate) fn publish(&self, name: &mut Listening, port: u16) -> std::io::Result<()> {
        name.publish(SocketAddr::new(self.address, port))
    }
}
