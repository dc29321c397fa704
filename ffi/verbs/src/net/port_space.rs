//! The port spaces of the connection manager: the same port in two spaces stands for two services.

use crate::ffi::sys;

/// The port space of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PortSpace {
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
}

impl PortSpace {
    /// Returns the port space with a number of librdmacm, or `None` for InfiniBand's port spaces.
    pub(crate) fn of(ps: sys::rdma_port_space) -> Option<Self> {
        match ps {
            sys::RDMA_PS_TCP => Some(Self::Tcp),
            sys::RDMA_PS_UDP => Some(Self::Udp),
            _ => None,
        }
    }
}

/// The objects of both port spaces.
#[derive(Debug, Default)]
pub(crate) struct PerSpace<T> {
    pub(crate) tcp: T,
    pub(crate) udp: T,
}

impl<T> PerSpace<T> {
    pub(crate) fn of(&self, space: PortSpace) -> &T {
        match space {
            PortSpace::Tcp => &self.tcp,
            PortSpace::Udp => &self.udp,
        }
    }
}
