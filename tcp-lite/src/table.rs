//! Which connection a segment belongs to: a hash table from 4-tuples to slots, keyed against chosen collisions.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::facade::IpAddress;
use crate::secrets::KeyedState;

/// What names a connection on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FourTuple {
    pub(crate) local: IpAddress,
    pub(crate) local_port: u16,
    pub(crate) remote: IpAddress,
    pub(crate) remote_port: u16,
}

impl FourTuple {
    pub(crate) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local.into(), self.local_port)
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote.into(), self.remote_port)
    }
}

/// The demultiplexer. Grows when connections are created, never by what arrives for existing ones.
pub(crate) type ConnTable = HashMap<FourTuple, u32, KeyedState>;
