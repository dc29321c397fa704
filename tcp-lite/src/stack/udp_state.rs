//! The state of a stack's datagrams.

use arrayvec::ArrayVec;

use crate::membership::Groups;
use crate::udp::{MAX_UDP_PORTS, Outbox};

/// Ports, groups and datagrams of a stack.
pub(super) struct Udp {
    pub(super) ports: ArrayVec<u16, MAX_UDP_PORTS>,
    pub(super) groups: Groups,
    pub(super) outbox: Outbox,
}
