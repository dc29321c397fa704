//! The state of a stack's datagrams.

use crate::membership::Groups;
use crate::udp::{MAX_UDP_PORTS, Outbox};

/// Ports, groups and datagrams of a stack.
pub(super) struct Udp {
    /// The open ports; 0 for no port. A port keeps its place while it is open, because other stacks may look
    /// for it at any time.
    pub(super) ports: [u16; MAX_UDP_PORTS],
    pub(super) groups: Groups,
    pub(super) outbox: Outbox,
}
